//! Jobs that ranks spawn: from the request to the answer, and to their end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Launcher;
use crate::launch::message::Carried;
use crate::launch::mutation::Fault;
use wireup_core::job::appnums::Appnums;
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId, Nspace, UserId};
use wireup_core::job::job_control::{JobControlAction, JobControlRequest};
use wireup_core::job::proc::Proc;
use wireup_core::job::process_map::ProcessMap;
use wireup_core::job::spawn::{
    JobRequester, SpawnFailure, SpawnFailureKind, SpawnRequester, SpawnResult,
};
use wireup_core::link::frame::FrameAddress;
use wireup_core::node::JobContext;
use wireup_core::node::event::{NodeCommand, NodeReport, SpawnRequestId};

/// A job whose spawner waits for an answer.
struct Birth {
    asker: (NodeId, SpawnRequestId),
    failed: bool,
}

#[derive(Default)]
pub(super) struct Spawns {
    births: BTreeMap<JobIndex, Birth>,
    /// Number of ranks of each job, by job index, whose end has not been reported.
    remaining: Vec<u32>,
}

impl Spawns {
    pub(super) fn new(size: u32) -> Self {
        Self {
            births: BTreeMap::new(),
            remaining: vec![size],
        }
    }
}

fn ending() -> SpawnResult {
    Err(SpawnFailure {
        kind: SpawnFailureKind::Ending,
        text: String::new(),
    })
}

impl Launcher {
    /// A rank wants a job.
    pub(super) fn spawn(&mut self, node: NodeId, report: &NodeReport) {
        let NodeReport::Spawn {
            ticket,
            requester: SpawnRequester::Rank(by),
            request,
        } = report
        else {
            return;
        };
        let asker = (node, *ticket);
        if self.supervisor.is_ending() {
            return self.answer_spawn(asker, ending());
        }
        let size = request.apps.iter().map(|app| app.count).sum();
        let nodes = self.jobs.nodes();
        let placed = (0..size).map(|rank| NodeId((node.0 + 1 + rank) % nodes));
        let map = ProcessMap::from_runs(placed.map(|node| (node, 1))).with_nodes(nodes);
        let parent = self.look_up(*by);
        let parent_job = self.jobs.get(parent.job()).expect("it is in the roster");
        let parent = Proc::new(parent_job.nspace.clone(), parent.rank());
        let name = format!("sim.{}", self.jobs.count());
        let context = Arc::new(JobContext {
            nspace: Nspace::new(&name).expect("a fine name"),
            process_map: map,
            app_map: Appnums::from_sizes([size]),
            universe_size: size,
            unbounded_universe: false,
            uid: UserId(1000),
            psets: Vec::new(),
            requester: JobRequester::Rank(parent),
            debug: Default::default(),
            first_global_rank: GlobalRank(self.jobs.size()),
            initial_kvs: Vec::new(),
        });
        let job = self.jobs.add(Arc::clone(&context));
        self.supervisor.grow(size);
        self.fleet.add_job(job, self.jobs.size());
        self.spawns.remaining.push(size);
        let birth = Birth {
            asker,
            failed: false,
        };
        self.spawns.births.insert(job, birth);
        self.sends
            .push((FrameAddress::EveryNode, Carried::AddJob(context)));
    }

    fn answer_spawn(&mut self, (node, ticket): (NodeId, SpawnRequestId), result: SpawnResult) {
        if self.mutation.fault == Some(Fault::SpawnForgotten) {
            return;
        }
        let reply = Carried::Node(NodeCommand::Spawned { ticket, result });
        self.sends.push((FrameAddress::Node(node), reply));
    }

    pub(super) fn spawn_failed(&mut self, job: JobIndex, now: Duration) {
        match self.spawns.births.get_mut(&job) {
            Some(birth) if !birth.failed => birth.failed = true,
            _ => return,
        }
        self.sends
            .push((FrameAddress::EveryNode, Carried::DropJob(job)));
        // That they are killed is no failure.
        let demand = JobControlRequest {
            requester: Some(self.jobs.first_of(job)),
            action: JobControlAction::Kill,
            ranks: Some(self.jobs.processes_of(job).collect()),
        };
        self.supervisor.demanded(demand, now, &mut Vec::new());
        self.job_may_be_over(job);
    }

    /// Fails all pending spawns when the launch ends.
    pub(super) fn drop_births(&mut self, now: Duration) {
        let births: Vec<JobIndex> = self.spawns.births.keys().copied().collect();
        for job in births {
            self.spawn_failed(job, now);
        }
    }

    /// All ranks of a job have been started, as far as they could be.
    pub(super) fn job_started(&mut self, job: JobIndex) {
        if self
            .spawns
            .births
            .get(&job)
            .is_some_and(|birth| !birth.failed)
            && let Some(birth) = self.spawns.births.remove(&job)
        {
            let name = self.jobs.get(job).expect("it was added").nspace.clone();
            self.answer_spawn(birth.asker, Ok(name));
        }
        self.job_may_be_over(job);
    }

    /// Counts a rank as ended.
    pub(super) fn rank_over(&mut self, rank: GlobalRank) {
        let job = self.look_up(rank).job();
        let remaining = &mut self.spawns.remaining[job.index()];
        *remaining = remaining.saturating_sub(1);
        self.job_may_be_over(job);
    }

    fn job_may_be_over(&mut self, job: JobIndex) {
        let births = &self.spawns.births;
        let born = births.get(&job).is_none_or(|birth| birth.failed);
        if self.spawns.remaining[job.index()] > 0 || !born {
            return;
        }
        if let Some(birth) = self.spawns.births.remove(&job) {
            self.answer_spawn(birth.asker, ending());
        }
        if !self.supervisor.is_over() && !self.supervisor.is_ending() {
            self.sends
                .push((FrameAddress::EveryNode, Carried::JobOver(job)));
        }
    }
}
