//! Jobs, their cores, and what cores tell each other, for the tests of several parts.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::job::appnums::Appnums;
use crate::job::clock::Moment;
use crate::job::ids::{GlobalRank, NodeId, Nspace, UserId};
use crate::job::process_map::ProcessMap;
use crate::job::spawn::JobRequester;
use crate::node::event::NodeEvent;
use crate::node::{CollectivePolicy, JobContext, NodeAction, NodeCore};
use crate::pmix::sidecar_protocol::serve::{self, Body};
use crate::pmix::sidecar_protocol::{ControlKind, ForkEnv, SidecarCommand};
use crate::pmix::upcall::{AnswerParts, UpcallAnswer};
use crate::pmix::wire::{FrameDecoder, SidecarFrame};

/// A job called `job`, of one program, with these numbers of ranks on nodes 0, 1 and so on.
pub(super) fn job(ranks: &[u32]) -> JobContext {
    let size = ranks.iter().sum();
    JobContext {
        nspace: Nspace::new("job").unwrap(),
        process_map: ProcessMap::from_runs((0..).map(NodeId).zip(ranks.iter().copied())),
        app_map: Appnums::from_sizes([size]),
        universe_size: size,
        unbounded_universe: false,
        uid: UserId(1000),
        psets: Vec::new(),
        requester: JobRequester::User,
        debug: Default::default(),
        first_global_rank: GlobalRank(0),
        initial_kvs: Vec::new(),
    }
}

/// The core of each node of a job, with a sidecar that does not serve it yet.
pub(super) fn cores(job: JobContext, pmi: bool) -> Vec<NodeCore> {
    let job = Arc::new(job);
    let core = |node| {
        let job = Arc::clone(&job);
        let mut core =
            NodeCore::new(NodeId(node), job, pmi, true, CollectivePolicy::default()).unwrap();
        core.with_actions(Moment::default(), &mut Vec::new(), |core| {
            core.start_sidecar(&[SidecarCommand::Finalize])
        });
        core
    };
    (0..job.process_map.nodes()).map(core).collect()
}

/// Hands an event to a node's core, and what cores tell each other because of it to them. What else
/// they want done, in the order in which they do, each with its node.
pub(super) fn deliver(
    cores: &mut [NodeCore],
    node: u32,
    event: NodeEvent<'_>,
    now: Moment,
) -> Vec<(u32, NodeAction)> {
    let (mut actions, mut done) = (Vec::new(), Vec::new());
    cores[node as usize].handle(event, now, &mut actions);
    let mut actions: VecDeque<_> = actions.into_iter().map(|action| (node, action)).collect();
    while let Some((node, action)) = actions.pop_front() {
        let (to, message) = match action {
            NodeAction::SendPeer { to, message } => (to.0..to.0 + 1, message),
            NodeAction::SendEveryPeer(message) => (0..cores.len() as u32, message),
            other => {
                done.push((node, other));
                continue;
            }
        };
        let from = NodeId(node);
        for to in to.filter(|to| *to != node) {
            let (message, mut more) = (message.clone(), Vec::new());
            cores[to as usize].handle(NodeEvent::Peer { from, message }, now, &mut more);
            actions.extend(more.into_iter().map(|action| (to, action)));
        }
    }
    done
}

/// The frames of what is written to a sidecar.
pub(super) fn frames(bytes: &[u8]) -> Vec<SidecarFrame> {
    let mut frames = Vec::new();
    FrameDecoder::default().push(bytes, &mut frames).unwrap();
    frames
}

/// The answers in what is written to a sidecar, each with the number of its upcall.
pub(super) fn answers(bytes: &[u8]) -> impl Iterator<Item = (u64, AnswerParts)> {
    let answer = |frame: SidecarFrame| (frame.id, UpcallAnswer::decode(&frame).unwrap());
    frames(bytes).into_iter().map(answer)
}

/// Three nodes with two ranks each, whose sidecars serve the job.
pub(super) fn three_nodes() -> Vec<NodeCore> {
    let job = Arc::new(job(&[2, 2, 2]));
    let register = SidecarCommand::RegisterJob {
        nspace: job.nspace.clone(),
        infos: Vec::new(),
        clients: Vec::new(),
    };
    let core = |node| {
        let (node, job) = (NodeId(node), Arc::clone(&job));
        let mut core = NodeCore::new(node, job, false, true, CollectivePolicy::default()).unwrap();
        let requests = std::slice::from_ref(&register);
        core.with_actions(Moment::default(), &mut Vec::new(), |core| {
            core.start_sidecar(requests)
        });
        let env = ForkEnv::default();
        let body = Ok(Body::ForkEnv(&env));
        let ready = serve::reply(ControlKind::RegisterJob, 1, body).unwrap();
        let ready = NodeEvent::ControlReceived(&ready);
        core.handle(ready, Moment::default(), &mut Vec::new());
        core
    };
    (0..3).map(core).collect()
}
