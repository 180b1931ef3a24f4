//! Shared code of fuzz targets for streams of messages between hosts.
//!
//! The first byte of an input is the size of the pieces in which the rest arrives.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::frame::{FrameAddress, FrameReader};
use super::reassembly::Reassembly;
use super::{decode, encode};

/// Most bytes of unfinished messages.
const LIMIT: usize = 1 << 20;

/// Passes on every message of an input, up to the first invalid one.
pub fn messages(data: &[u8], mut take: impl FnMut(FrameAddress, &[u8])) {
    let [piece, bytes @ ..] = data else {
        return;
    };
    let mut reader = FrameReader::default();
    let mut reassembly = Reassembly::new(LIMIT, LIMIT);
    for piece in bytes.chunks(usize::from(*piece).max(1)) {
        reader.push(piece);
        loop {
            let frame = match reader.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(_) => return,
            };
            match reassembly.take(frame) {
                Ok(Some((envelope, body))) => take(envelope.from, &body),
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }
}

/// What can be read can be written, and is the same when it is read again.
pub fn read<T: Serialize + DeserializeOwned + Debug>(body: &[u8]) -> Option<T> {
    let message: T = decode(body).ok()?;
    let again: T = decode(&encode(&message)).expect("was read before");
    // By text: a float that is no number differs from itself.
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
    Some(message)
}

#[cfg(any(test, feature = "testing"))]
pub mod seeds {
    //! Inputs that are streams of messages.

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;
    use crate::job::ids::NodeId;
    use crate::link::frame::FrameClass;
    use crate::link::reassembly::{Envelope, cut};

    /// `count` inputs with such bodies from `nodes` nodes, always the same.
    pub fn seeds(count: usize, nodes: u32, body: BoxedStrategy<Vec<u8>>) -> Vec<Vec<u8>> {
        let messages = (0..=u8::MAX, vec((0..nodes, body), 1..5)).prop_map(|(piece, messages)| {
            let mut input = vec![piece];
            for (from, body) in messages {
                let envelope = Envelope {
                    to: FrameAddress::EveryNode,
                    from: FrameAddress::Node(NodeId(from)),
                    class: FrameClass::Carried,
                };
                for (header, body) in cut(envelope, &body) {
                    input.extend_from_slice(&header.encode());
                    input.extend_from_slice(body);
                }
            }
            input
        });
        let mut runner = TestRunner::deterministic();
        let mut input = || {
            messages
                .new_tree(&mut runner)
                .expect("no filters")
                .current()
        };
        (0..count).map(|_| input()).collect()
    }
}
