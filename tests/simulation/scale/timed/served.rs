//! PMIx servers of the nodes: they execute the commands of their steps, and start the collectives of their ranks.

use std::sync::Arc;

use super::Timed;
use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_core::pmix::keys;
use wireup_core::pmix::sidecar_protocol::serve::{self, Body, SidecarRequest};
use wireup_core::pmix::sidecar_protocol::{ControlKind, ForkEnv};
use wireup_core::pmix::upcall::{
    GroupOp, SpawnedAppInfo, Upcall, UpcallAnswer, UpcallKind, UpcallRequest as Request,
};
use wireup_core::pmix::value::{Info, PmixProc, PmixRank, Status, Text, Value};
use wireup_core::pmix::wire::FrameDecoder;

/// Collective of the ranks of a node, in the order of execution.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Deed {
    Fence(u32),
    /// Spawn, requested by the first node alone.
    Spawn,
    Group,
}

pub(super) const FENCES: u32 = 5;

/// Most nodes whose ranks make a group: the server of each gets a list of all members.
pub(super) const GROUP: u32 = 256;

impl Timed {
    /// The PMIx server of a node carries out a request.
    pub(super) fn serve(&mut self, node: NodeId, bytes: &[u8]) {
        let mut frames = Vec::new();
        let read = FrameDecoder::default().push(bytes, &mut frames);
        read.expect("whole frames");
        let env = ForkEnv::default();
        for frame in frames {
            let (kind, body) = match SidecarRequest::decode(&frame).expect("a fine request") {
                SidecarRequest::Init { .. } => (ControlKind::Init, Body::Done),
                SidecarRequest::RegisterJob { .. } => {
                    (ControlKind::RegisterJob, Body::ForkEnv(&env))
                }
                SidecarRequest::DeregisterJob { .. } => (ControlKind::DeregisterJob, Body::Done),
                SidecarRequest::Notify { .. } => (ControlKind::Notify, Body::Done),
                SidecarRequest::Finalize => (ControlKind::Finalize, Body::Done),
                SidecarRequest::Probe => (ControlKind::Probe, Body::Done),
                _ => continue,
            };
            let reply = serve::reply(kind, frame.id, Ok(body)).expect("it is short");
            let step = self.steps.get_mut(&node).expect("it runs");
            step.served(true, &reply, self.now);
            if kind == ControlKind::Finalize {
                step.sidecar_ended(true, self.now);
            }
        }
    }

    /// A deed of a node is done.
    pub(super) fn answered(&mut self, node: NodeId, bytes: &[u8]) {
        let mut frames = Vec::new();
        let read = FrameDecoder::default().push(bytes, &mut frames);
        read.expect("whole frames");
        for frame in frames {
            let status = i32::from_le_bytes(frame.payload[..4].try_into().expect("a status"));
            assert_eq!(
                Status(status),
                Status::SUCCESS,
                "{:?}",
                UpcallAnswer::decode(&frame)
            );
            if UpcallKind::from_op(frame.op) == Some(UpcallKind::Spawn) && node == NodeId(0) {
                self.times.entry(Deed::Spawn).or_default().1 = self.now;
            }
            let deeds = self.deeds.get_mut(&node).expect("each node has some");
            let done = deeds.pop_front().expect("it was begun");
            self.times.entry(done).or_default().1 = self.now;
            self.next_deed(node);
        }
    }

    /// A node begins what is next, or ends.
    pub(super) fn next_deed(&mut self, node: NodeId) {
        let Some(deed) = self.deeds[&node].front().copied() else {
            self.ended = Some(self.now);
            let job = Arc::clone(&self.job);
            for rank in job.process_map.ranks_on(node) {
                self.exit(node, GlobalRank(rank.0));
            }
            return;
        };
        let nspace = Text::from("sim.0");
        let proc = |rank| PmixProc {
            nspace: nspace.clone(),
            rank,
        };
        let all = vec![proc(PmixRank::WILDCARD)];
        let map = &self.job.process_map;
        let members = || match map.nodes() > GROUP {
            true => {
                let each = map.local_size(node);
                (0..GROUP * each).map(|rank| proc(PmixRank(rank))).collect()
            }
            false => all.clone(),
        };
        let request = match deed {
            Deed::Fence(_) => Request::Fence {
                procs: all.clone(),
                infos: vec![Info::new(keys::COLLECT_DATA, Value::Bool(false))],
                data: Vec::new(),
            },
            Deed::Group => Request::Group {
                op: GroupOp::Construct,
                name: "all".into(),
                procs: members(),
                infos: vec![Info::new(keys::GROUP_ASSIGN_CONTEXT_ID, Value::Bool(true))],
            },
            Deed::Spawn => Request::Spawn {
                proc: proc(PmixRank(0)),
                infos: Vec::new(),
                apps: vec![SpawnedAppInfo {
                    cmd: "child".into(),
                    argv: vec!["child".into()],
                    env: Vec::new(),
                    cwd: Text::default(),
                    maxprocs: self.job.process_map.nodes().min(64) as i32,
                    infos: Vec::new(),
                }],
            },
        };
        self.times.entry(deed).or_default().0 = self.now;
        self.count += 1;
        let upcall = Upcall::Request(request)
            .encode(self.count)
            .expect("it is short");
        let step = self.steps.get_mut(&node).expect("it runs");
        step.served(false, &upcall, self.now);
    }
}
