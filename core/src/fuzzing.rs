//! Entry point of the fuzzer, and of the plain test that runs it over random messages and changes of
//! them.
//!
//! An input arrives as from another host: frames, messages, and what the cores of two nodes do with
//! them. Panics when a promise is broken.

use std::sync::Arc;

use crate::interlaunch::HeadNodeMessage;
use crate::job::appnums::Appnums;
use crate::job::clock::Moment;
use crate::job::ids::{NodeId, Nspace, UserId};
use crate::job::process_map::ProcessMap;
use crate::job::spawn::JobRequester;
use crate::job::spec::JobSpec;
use crate::link::agent_protocol::{AgentReport, AgentRequest, StepCommand, StepReport};
use crate::link::frame::FrameAddress;
use crate::link::fuzzing::{messages, read};
use crate::name_server::message::{NameServerCommand, NameServerReport};
use crate::node::event::{NodeAction, NodeCommand, NodeEvent, NodeReport, PeerMessage};
use crate::node::{CollectivePolicy, JobContext, NodeCore};

/// Nodes of the job that get the messages, and ranks of each.
const NODES: u32 = 4;
const LOCAL: u32 = 2;

/// Runs one input.
///
/// # Panics
/// When a promise is broken that this module checks.
pub fn link(data: &[u8]) {
    let mut cores = [NodeId(0), NodeId(1)].map(|node| (node, core(node)));
    messages(data, |from, body| message(&mut cores, from, body));
    let mut actions = Vec::new();
    for (_, core) in &mut cores {
        core.handle(NodeEvent::Tick, Moment::default(), &mut actions);
        core.handle(NodeEvent::LaunchEnded, Moment::default(), &mut actions);
    }
    known(&actions);
}

fn core(node: NodeId) -> NodeCore {
    NodeCore::new(
        node,
        Arc::new(job()),
        true,
        true,
        CollectivePolicy::default(),
    )
    .expect("a job that can be served")
}

/// A job of two ranks on each of four nodes, in two application contexts.
pub fn job() -> JobContext {
    JobContext {
        nspace: Nspace::new("job").expect("a valid name"),
        process_map: ProcessMap::from_runs((0..NODES).map(|node| (NodeId(node), LOCAL))),
        app_map: Appnums::from_sizes([3, NODES * LOCAL - 3]),
        universe_size: NODES * LOCAL,
        unbounded_universe: false,
        uid: UserId(1),
        psets: Vec::new(),
        requester: JobRequester::User,
        debug: Default::default(),
        first_global_rank: Default::default(),
        initial_kvs: Vec::new(),
    }
}

fn message(cores: &mut [(NodeId, NodeCore)], from: FrameAddress, body: &[u8]) {
    read::<AgentRequest>(body);
    read::<AgentReport>(body);
    read::<StepCommand>(body);
    read::<StepReport>(body);
    read::<NodeReport>(body);
    read::<NodeCommand>(body);
    read::<JobSpec>(body);
    read::<JobContext>(body);
    read::<NameServerCommand>(body);
    read::<NameServerReport>(body);
    read::<HeadNodeMessage>(body);
    let (Some(message), FrameAddress::Node(from)) = (read::<PeerMessage>(body), from) else {
        return;
    };
    // The transport names senders that there are.
    let from = NodeId(from.0 % NODES);
    for (node, core) in cores {
        if *node != from {
            let mut actions = Vec::new();
            let message = message.clone();
            core.handle(
                NodeEvent::Peer { from, message },
                Moment::default(),
                &mut actions,
            );
            known(&actions);
        }
    }
}

/// Only nodes of the job get messages.
fn known(actions: &[NodeAction]) {
    for action in actions {
        if let NodeAction::SendPeer { to, .. } = action {
            assert!(to.0 < NODES, "{action:?}");
        }
    }
}

/// Streams of random messages, as inputs.
#[cfg(any(test, feature = "testing"))]
pub fn link_seeds(count: usize) -> Vec<Vec<u8>> {
    use proptest::prelude::*;

    use crate::job::arbitrary::job_spec;
    use crate::link::encode;
    use crate::node::event::arbitrary::{from_node, job_context, peer_message};

    let body = prop_oneof![
        12 => peer_message().prop_map(|message| encode(&message)),
        1 => from_node().prop_map(|report| encode(&report)),
        1 => job_context().prop_map(|job| encode(&job)),
        1 => job_spec().prop_map(|spec| encode(&spec)),
    ];
    crate::link::fuzzing::seeds::seeds(count, NODES, body.boxed())
}
