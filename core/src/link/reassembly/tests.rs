use proptest::collection::vec;
use proptest::prelude::*;

use super::super::frame::FrameReader;
use super::*;

fn envelope(from: u32) -> Envelope {
    Envelope {
        to: FrameAddress::Node(NodeId(7)),
        from: FrameAddress::Node(NodeId(from)),
        class: FrameClass::Carried,
    }
}

fn frames(stream: &[u8]) -> Vec<Frame> {
    let mut reader = FrameReader::default();
    reader.push(stream);
    let frames = std::iter::from_fn(|| reader.next_frame().unwrap()).collect();
    assert!(reader.is_idle());
    frames
}

/// Lengths around which cutting changes.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..100_usize,
        BODY_MAX - 9..BODY_MAX + 9,
        2 * BODY_MAX - 9..2 * BODY_MAX + 9,
        0..4 * BODY_MAX,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn message_written_as_frames_equals_encoded_message_cut(length in length(), numbers in vec(any::<u64>(), 0..50)) {
        let message = (numbers, String::from_utf8(vec![b'x'; length]).unwrap(), 7_u8);
        let mut direct = vec![1, 2, 3];
        write(envelope(1), &message, &mut direct);
        let mut cut_later = vec![1, 2, 3];
        for (header, body) in cut(envelope(1), &crate::link::encode(&message)) {
            cut_later.extend_from_slice(&header.encode());
            cut_later.extend_from_slice(body);
        }
        prop_assert!(direct == cut_later);
    }

    #[test]
    fn interleaved_messages_of_several_sources_are_reassembled(
        lengths in vec((0..3_u32, length()), 1..8),
        order in vec(any::<usize>(), 0..40),
    ) {
        // Each source's frames stay in order; whose turn it is does not matter.
        let mut waiting: Vec<(Vec<u8>, Envelope)> = Vec::new();
        let mut queues = [const { std::collections::VecDeque::new() }; 3];
        for (number, (source, length)) in (0_u8..).zip(lengths) {
            let message = vec![number; length];
            for (header, body) in cut(envelope(source), &message) {
                let mut stream = header.encode().to_vec();
                stream.extend_from_slice(body);
                queues[source as usize].extend(frames(&stream));
            }
            waiting.push((message, envelope(source)));
        }
        let mut reassembly = Reassembly::default();
        let mut order = order.into_iter();
        while queues.iter().any(|queue| !queue.is_empty()) {
            let start = order.next().unwrap_or(0);
            let queue = (0..3).map(|n| (start % 3 + n) % 3).find(|n| !queues[*n].is_empty());
            let frame = queues[queue.unwrap()].pop_front().unwrap();
            if let Some((envelope, message)) = reassembly.take(frame).unwrap() {
                let first = waiting.iter().position(|(_, other)| *other == envelope).unwrap();
                prop_assert!(waiting.remove(first).0 == message);
            }
        }
        prop_assert!(waiting.is_empty());
        prop_assert_eq!((reassembly.bytes, reassembly.parts.len()), (0, 0));
    }
}

fn part(from: u32, more: bool, body: usize) -> Frame {
    envelope(from).header(more, body).with(vec![0; body])
}

#[test]
fn single_and_unfinished_messages_are_limited() {
    let mut reassembly = Reassembly::new(100, 150);
    assert_eq!(reassembly.take(part(1, true, 60)), Ok(None));
    let message = reassembly.take(part(1, false, 41));
    assert_eq!(message, Err(ReassemblyError::Message(100)));
    assert_eq!(reassembly.take(part(2, true, 90)), Ok(None));
    let total = reassembly.take(part(3, true, 1));
    assert_eq!(total, Err(ReassemblyError::Total(150)));
    assert_eq!(
        reassembly.take(part(4, true, 0)),
        Err(ReassemblyError::Empty)
    );
    // What completes a message makes room, whatever else waits.
    let whole = reassembly.take(part(2, false, 10)).unwrap();
    assert_eq!(whole.map(|(_, body)| body.len()), Some(100));
    assert_eq!(reassembly.take(part(3, true, 90)), Ok(None));
}

#[test]
fn lost_source_leaves_nothing_and_others_continue() {
    let mut reassembly = Reassembly::new(100, 100);
    assert_eq!(reassembly.take(part(1, true, 60)), Ok(None));
    assert_eq!(reassembly.take(part(2, true, 40)), Ok(None));
    reassembly.source_lost(envelope(1).from);
    assert_eq!(reassembly.take(part(2, true, 60)), Ok(None));
    let whole = reassembly.take(part(2, false, 0)).unwrap();
    assert_eq!(whole.map(|(_, body)| body.len()), Some(100));
    assert_eq!(reassembly.bytes, 0);
}

#[test]
fn equal_messages_to_all_children_are_sent_once() {
    let gather = |children: &[u32], messages: &[(u32, char)]| {
        let children: Vec<NodeId> = children.iter().copied().map(NodeId).collect();
        let messages = messages.iter().map(|(to, what)| match to {
            0 => (FrameAddress::EveryNode, *what),
            to => (FrameAddress::Node(NodeId(*to)), *what),
        });
        let gathered = gathered(messages, &children).into_iter();
        let text = gathered.map(|(to, what)| match to {
            FrameAddress::Node(NodeId(node)) => format!("{node}{what}"),
            FrameAddress::Children => format!("*{what}"),
            FrameAddress::EveryNode => format!("all{what}"),
            other => panic!("{other:?}"),
        });
        text.collect::<Vec<_>>().join(" ")
    };
    let all = [(3, 'a'), (4, 'a'), (5, 'a')];
    assert_eq!(gather(&[3, 4, 5], &all), "*a");
    assert_eq!(gather(&[3, 4], &all), "*a 5a");
    assert_eq!(gather(&[4, 5], &all), "3a *a");
    assert_eq!(gather(&[3, 5], &all), "3a 4a 5a");
    assert_eq!(gather(&[3], &all[..1]), "3a");
    assert_eq!(gather(&[], &all), "3a 4a 5a");
    let twice = [all, all].concat();
    assert_eq!(gather(&[3, 4, 5], &twice), "*a *a");
    let two = [(3, 'a'), (4, 'b'), (3, 'b'), (4, 'b'), (9, 'b'), (3, 'c')];
    let event = [(3, 'a'), (4, 'a'), (0, 'b'), (3, 'b'), (4, 'b')];
    assert_eq!(gather(&[3, 4], &event), "*a allb *b");
    assert_eq!(gather(&[3, 4], &two), "3a 4b *b 9b 3c");
}
