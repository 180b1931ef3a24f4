use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn address() -> impl Strategy<Value = FrameAddress> {
    prop_oneof![
        (0..9_u32).prop_map(|node| FrameAddress::Node(NodeId(node))),
        Just(FrameAddress::EveryNode),
        Just(FrameAddress::Children),
        Just(FrameAddress::Launcher),
    ]
}

fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let size = prop_oneof![
        8 => 0..200_usize,
        2 => 15_000..18_000_usize,
        1 => 60_000..70_000_usize,
        1 => Just(BODY_MAX),
    ];
    let frame = (
        address(),
        address(),
        (0..3_u8, any::<bool>(), any::<u8>()),
        size,
    );
    vec(
        frame.prop_map(|(to, from, (class, more, seed), size)| Frame {
            to,
            from,
            class: [FrameClass::Carried, FrameClass::Control, FrameClass::Sign][usize::from(class)],
            more,
            body: (0..size)
                .map(|at| (at as u8).wrapping_mul(31) ^ seed)
                .collect(),
        }),
        0..12,
    )
}

fn written(frames: &[Frame]) -> Vec<u8> {
    let mut stream = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut stream));
    stream
}

fn read(reader: &mut FrameReader, frames: &mut Vec<Frame>) {
    while let Some(frame) = reader.next_frame().unwrap() {
        frames.push(frame);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn frames_are_found_in_any_pieces_of_their_stream(
        sent in frames(),
        pieces in vec(1..40_000_usize, 1..9),
        greedy in any::<bool>(),
    ) {
        let stream = written(&sent);
        let mut reader = FrameReader::default();
        let (mut got, mut at, mut pieces) = (Vec::new(), 0, pieces.iter().cycle());
        while at < stream.len() {
            let piece = *pieces.next().unwrap();
            let end = (at + piece).min(stream.len());
            if piece % 2 == 0 {
                reader.push(&stream[at..end]);
                at = end;
            } else {
                // As a read does, into the room there is; more than that when asked to grow.
                let room = reader.room();
                let spare = room.capacity() - room.len();
                prop_assert!(spare > 0);
                let end = if greedy { end } else { end.min(at + spare) };
                room.extend_from_slice(&stream[at..end]);
                at = end;
            }
            if piece % 3 > 0 {
                read(&mut reader, &mut got);
            }
        }
        read(&mut reader, &mut got);
        prop_assert!(reader.is_idle());
        prop_assert!(got == sent, "{} of {} frames", got.len(), sent.len());
    }
}

#[test]
fn invalid_frame_is_refused_at_first_invalid_byte() {
    let header = Header {
        to: FrameAddress::EveryNode,
        from: FrameAddress::Launcher,
        class: FrameClass::Carried,
        more: false,
        body: 3,
    };
    let good = header.encode();
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good;
        bytes[at..at + value.len()].copy_from_slice(value);
        let mut reader = FrameReader::default();
        reader.push(&bytes);
        reader.next_frame()
    };
    assert_eq!(with(0, &[]), Ok(None));
    let short = HEADER as u32 - 5;
    assert_eq!(
        with(0, &short.to_le_bytes()),
        Err(FrameError::Length(short))
    );
    let long = (HEADER - 4 + BODY_MAX + 1) as u32;
    assert_eq!(with(0, &long.to_le_bytes()), Err(FrameError::Length(long)));
    assert_eq!(with(12, &[3]), Err(FrameError::Class(3)));
    assert_eq!(with(13, &[3]), Err(FrameError::Flags(3)));

    let mut reader = FrameReader::default();
    reader.push(&u32::MAX.to_le_bytes());
    assert_eq!(reader.next_frame(), Err(FrameError::Length(u32::MAX)));
}

#[test]
fn stream_must_not_end_within_frame() {
    let frame = Frame {
        to: FrameAddress::Launcher,
        from: FrameAddress::Node(NodeId(1)),
        class: FrameClass::Control,
        more: false,
        body: vec![1; 100_000],
    };
    let stream = written(&[frame]);
    for end in [1, 4, HEADER, HEADER + 1, stream.len() - 1] {
        let mut reader = FrameReader::default();
        reader.push(&stream[..end]);
        assert_eq!(reader.next_frame(), Ok(None));
        assert!(!reader.is_idle(), "{end}");
        reader.push(&stream[end..]);
        assert!(!reader.is_idle(), "{end}");
        assert!(reader.next_frame().unwrap().is_some());
        assert!(reader.is_idle(), "{end}");
    }
}
