//! Entry point of the fuzzer, and of the plain test that runs it over random messages and changes of
//! them.
//!
//! The first byte of an input is the size of the pieces in which the rest arrives, as from another
//! host: frames, messages, and what the cores of two nodes do with them. Panics when a promise is
//! broken.

use std::fmt::Debug;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::core::{JobContext, NodeCore, Terms};
use super::event::{Action, Event, PeerMessage, Report};
use crate::crossing::Packet;
use crate::job::appnums::Appnums;
use crate::job::clock::Moment;
use crate::job::ids::{NodeId, Nspace, UserId};
use crate::job::rank_map::RankMap;
use crate::job::spec::JobSpec;
use crate::link::control::{FromAgent, ToAgent, ToStep};
use crate::link::frame::{Address, FrameReader};
use crate::link::message::Reassembly;
use crate::link::{decode, encode};
use crate::rendezvous::message::{FromRendezvous, ToRendezvous};

/// Nodes of the job whose cores get the messages, and ranks of each.
const NODES: u32 = 4;
const LOCAL: u32 = 2;

/// Most bytes of unfinished messages.
const LIMIT: usize = 1 << 20;

/// Runs one input.
///
/// # Panics
/// When a promise is broken that this module checks.
pub fn link(data: &[u8]) {
    let [piece, bytes @ ..] = data else {
        return;
    };
    let mut cores = [NodeId(0), NodeId(1)].map(|node| (node, core(node)));
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
                Ok(Some((envelope, body))) => message(&mut cores, envelope.from, &body),
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }
    let mut actions = Vec::new();
    for (_, core) in &mut cores {
        core.handle(Event::Tick, Moment::default(), &mut actions);
        core.handle(Event::LaunchEnded, Moment::default(), &mut actions);
    }
    known(&actions);
}

fn core(node: NodeId) -> NodeCore {
    let job = JobContext {
        nspace: Nspace::new("job").expect("a valid name"),
        ranks: RankMap::from_runs((0..NODES).map(|node| (NodeId(node), LOCAL))),
        appnums: Appnums::from_sizes([3, NODES * LOCAL - 3]),
        universe_size: NODES * LOCAL,
        user: UserId(1),
        psets: Vec::new(),
        parent: None,
        offset: Default::default(),
        preputs: Vec::new(),
    };
    NodeCore::new(node, Arc::new(job), true, true, Terms::default())
        .expect("a job that can be served")
}

fn message(cores: &mut [(NodeId, NodeCore)], from: Address, body: &[u8]) {
    read::<ToAgent>(body);
    read::<FromAgent>(body);
    read::<ToStep>(body);
    read::<Report>(body);
    read::<JobSpec>(body);
    read::<JobContext>(body);
    read::<ToRendezvous>(body);
    read::<FromRendezvous>(body);
    read::<Packet>(body);
    let (Some(message), Address::Node(from)) = (read::<PeerMessage>(body), from) else {
        return;
    };
    // The transport names senders that there are.
    let from = NodeId(from.0 % NODES);
    for (node, core) in cores {
        if *node != from {
            let mut actions = Vec::new();
            let message = message.clone();
            core.handle(
                Event::Peer { from, message },
                Moment::default(),
                &mut actions,
            );
            known(&actions);
        }
    }
}

/// What can be read can be written, and is the same when it is read again.
fn read<T: Serialize + DeserializeOwned + Debug>(body: &[u8]) -> Option<T> {
    let message: T = decode(body).ok()?;
    let again: T = decode(&encode(&message)).expect("was read before");
    // By text: a float that is no number differs from itself.
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
    Some(message)
}

/// Only nodes of the job are told anything.
fn known(actions: &[Action]) {
    for action in actions {
        if let Action::SendPeer { to, .. } = action {
            assert!(to.0 < NODES, "{action:?}");
        }
    }
}

#[cfg(test)]
pub(crate) mod seeds {
    //! Inputs that are streams of messages.

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::super::event::arbitrary::{job_context, peer_message, report};
    use super::*;
    use crate::job::arbitrary::job_spec;
    use crate::link::frame::Class;
    use crate::link::message::{Envelope, cut};

    /// So many inputs, always the same.
    pub(crate) fn seeds(count: usize) -> Vec<Vec<u8>> {
        let body = prop_oneof![
            12 => peer_message().prop_map(|message| encode(&message)),
            1 => report().prop_map(|report| encode(&report)),
            1 => job_context().prop_map(|job| encode(&job)),
            1 => job_spec().prop_map(|spec| encode(&spec)),
        ];
        let messages = (0..=u8::MAX, vec((0..NODES, body), 1..5)).prop_map(|(piece, messages)| {
            let mut input = vec![piece];
            for (from, body) in messages {
                let envelope = Envelope {
                    to: Address::EveryNode,
                    from: Address::Node(NodeId(from)),
                    class: Class::Carried,
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
