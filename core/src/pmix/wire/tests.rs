use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn frame() -> impl Strategy<Value = SidecarFrame> {
    let payload = vec(any::<u8>(), 0..300);
    (any::<u16>(), any::<bool>(), any::<u64>(), payload).prop_map(|(op, reply, id, payload)| {
        SidecarFrame {
            op,
            reply,
            id,
            payload,
        }
    })
}

fn header(len: u32, flags: u16) -> Vec<u8> {
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend([0x11, 0x01]);
    bytes.extend(flags.to_le_bytes());
    bytes.extend(7_u64.to_le_bytes());
    bytes
}

#[test]
fn frame_has_documented_layout() {
    let frame = SidecarFrame {
        op: 0x0111,
        reply: true,
        id: 7,
        payload: b"ab".to_vec(),
    };
    let bytes = b"\x02\0\0\0\x11\x01\x01\0\x07\0\0\0\0\0\0\0ab";
    assert_eq!(frame.encode().unwrap(), bytes);
}

#[test]
fn oversized_and_unknown_frames_are_refused_by_header_alone() {
    let push = |bytes: &[u8]| {
        let mut frames = Vec::new();
        let result = FrameDecoder::default().push(bytes, &mut frames);
        (result, frames.len())
    };
    let most = u32::try_from(MAX_PAYLOAD).unwrap();
    assert_eq!(push(&header(most, 0)), (Ok(()), 0));
    let over = Err(WireError::TooLarge(MAX_PAYLOAD + 1));
    assert_eq!(push(&header(most + 1, 0)), (over, 0));
    assert_eq!(push(&header(0, 2)), (Err(WireError::Flags(2)), 0));
    // What came before the bad frame is kept.
    let mut bytes = header(0, 1);
    bytes.extend(header(0, 0x8000));
    assert_eq!(push(&bytes), (Err(WireError::Flags(0x8000)), 1));
}

#[test]
fn announced_payload_gets_no_memory_before_arrival() {
    let mut decoder = FrameDecoder::default();
    let len = u32::try_from(MAX_PAYLOAD).unwrap();
    decoder.push(&header(len, 0), &mut Vec::new()).unwrap();
    assert!(decoder.payload.capacity() <= FIRST_RESERVE);
    assert!(!decoder.is_idle());
}

#[test]
fn payload_over_limit_is_not_sent() {
    let mut out = Writer::frame();
    out.raw(&vec![0; MAX_PAYLOAD + 1]);
    assert_eq!(
        out.finish(1, false, 1),
        Err(WireError::TooLarge(MAX_PAYLOAD + 1))
    );
}

#[test]
fn counts_are_charged_to_one_budget_and_must_be_backed_by_bytes() {
    let mut bytes = 3_u32.to_le_bytes().to_vec();
    bytes.extend([1, 2]);
    assert_eq!(Reader::new(&bytes).count(), Err(WireError::Short("list")));
    let mut bytes = (MAX_ITEMS + 1).to_le_bytes().to_vec();
    bytes.resize(MAX_ITEMS as usize + 8, 0);
    assert_eq!(Reader::new(&bytes).count(), Err(WireError::Nested));
    bytes[..4].copy_from_slice(&MAX_ITEMS.to_le_bytes());
    bytes[4] = 1;
    let mut from = Reader::new(&bytes);
    assert_eq!(from.count(), Ok(MAX_ITEMS as usize));
    assert_eq!(from.count(), Err(WireError::Nested), "the second list");
}

#[test]
fn truth_values_are_zero_or_one() {
    assert_eq!(Reader::new(&[2]).bool(), Err(WireError::Bad("truth value")));
    assert_eq!(Reader::new(&[]).bool(), Err(WireError::Short("u8")));
}

proptest! {
    #[test]
    fn frames_survive_any_chunking(frames in vec(frame(), 1..6), cuts in vec(1..40_usize, 1..50)) {
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.encode().unwrap()).collect();
        let mut decoder = FrameDecoder::default();
        let mut read = Vec::new();
        let mut rest = bytes.as_slice();
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            let cut = cuts.next().map_or(1, |cut| *cut).min(rest.len());
            decoder.push(&rest[..cut], &mut read).unwrap();
            rest = &rest[cut..];
        }
        prop_assert!(decoder.is_idle());
        prop_assert_eq!(read, frames);
    }

    #[test]
    fn any_bytes_are_decoded_without_panic(bytes in vec(any::<u8>(), 0..600)) {
        let mut frames = Vec::new();
        let _ = FrameDecoder::default().push(&bytes, &mut frames);
        let again: Vec<u8> = frames.iter().flat_map(|frame| frame.encode().unwrap()).collect();
        prop_assert!(bytes.starts_with(&again), "what was read is what is printed");
    }
}
