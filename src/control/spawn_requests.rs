//! Spawned jobs: from the request to the answer, and to
//! their end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tracing::{Span, info_span};

use super::job_tree::JobTreeNode;
use super::{Controller, RankStatus, status, supervision};
use crate::backend::step_messages::LauncherToStep;
use crate::plan::allocation_table::SlotUsage;
use crate::plan::planned_jobs::Plans;
use crate::plan::{HostPlan, LaunchSnapshot, RequesterPlan, SpawnedJobPlan};
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId, Nspace, Rank};
use wireup_core::job::job_control::{JobControlAction, JobControlRequest};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, FailureCause, RankEnd};
use wireup_core::job::spawn::{
    SpawnFailure, SpawnFailureKind, SpawnRequest, SpawnRequester, SpawnResult,
};
use wireup_core::job::spec::ChildJobPolicy;
use wireup_core::node::HEAD;
use wireup_core::node::event::{NodeCommand, SpawnRequestId};
use wireup_core::queries::{self, JobEnd};
use wireup_core::wording::counted;

/// A waiter for an answer: a node, and its ticket for the request.
pub(super) type SpawnReplyTarget = (NodeId, SpawnRequestId);

/// A spawn that was not decided yet.
#[derive(Debug)]
pub(super) struct QueuedSpawn {
    pub(super) reply_to: SpawnReplyTarget,
    pub(super) requester: SpawnRequester<KnownRank>,
    pub(super) request: Box<SpawnRequest>,
    /// How long it may take, and when it is given up.
    pub(super) limit: Option<(Duration, Duration)>,
    /// Nodes that have been prepared for it.
    pub(super) prepared_nodes: BTreeSet<NodeId>,
    /// The name under which they have been.
    pub(super) prepared_as: Option<Nspace>,
}

/// The next step of a spawn.
#[derive(Debug)]
pub(super) enum SpawnDecision {
    Begin(Box<SpawnedJobPlan>, Arc<HostPlan>),
    /// Its nodes of this list are prepared first.
    Prepare(Box<SpawnedJobPlan>, Vec<NodeId>),
}

/// A job that is being started.
#[derive(Debug)]
struct PendingSpawn {
    reply_to: SpawnReplyTarget,
    requester: SpawnRequester<KnownRank>,
    /// How long that may take, and when it is given up.
    limit: Option<(Duration, Duration)>,
    /// Whether the start of every process has been reported.
    is_started: bool,
    /// Whether the requester waits for its processes to join: it is answered when one has made contact.
    expects_mpi: bool,
    /// Why it is given up. The answer waits until nothing of it is left.
    failure: Option<SpawnFailure>,
}

/// Jobs that are being started, and jobs that have lost their parent.
#[derive(Debug, Default)]
pub(super) struct PendingSpawns {
    pending: BTreeMap<JobIndex, PendingSpawn>,
    /// Jobs without their parent, and when they are ended too.
    orphans: Vec<(Duration, JobIndex)>,
}

impl PendingSpawns {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let pending = self
            .pending
            .values()
            .filter(|spawn| spawn.failure.is_none());
        let limits = pending.filter_map(|spawn| Some(spawn.limit?.1));
        limits.chain(self.orphans.iter().map(|(at, _)| *at)).min()
    }
}

/// What took longer than it may.
fn too_late(limit: Duration) -> SpawnFailure {
    SpawnFailure {
        kind: SpawnFailureKind::TimedOut,
        text: format!(
            "not all processes were started within the {} s allowed",
            limit.as_secs_f64()
        ),
    }
}

/// An `MPI_Comm_spawn` whose processes have not contacted PMI in time.
fn not_joined_in_time(limit: Duration) -> SpawnFailure {
    SpawnFailure {
        kind: SpawnFailureKind::TimedOut,
        text: format!(
            "no process contacted PMI or PMIx within the {} s allowed; MPI_Comm_spawn starts programs of the parent's MPI only",
            limit.as_secs_f64()
        ),
    }
}

/// Why nothing is spawned any more.
fn ending() -> SpawnFailure {
    SpawnFailure {
        kind: SpawnFailureKind::Ending,
        text: "the launch is being ended".to_owned(),
    }
}

/// A process as reported to tools when all have ended.
fn how_it_lived(life: &RankStatus) -> queries::ProcessState {
    match (life.end, life.pid) {
        (Some((_, Some(end))), _) => queries::ProcessState::Ended {
            end,
            connected: end == RankEnd::Code(0) && life.fate.is_some(),
        },
        (_, None) => queries::ProcessState::Planned,
        _ => queries::ProcessState::Running,
    }
}

impl Controller {
    /// The requester, as plans know it.
    pub(super) fn requester<'a>(
        &'a self,
        (node, _): SpawnReplyTarget,
        by: &'a SpawnRequester<KnownRank>,
    ) -> RequesterPlan<'a> {
        match by {
            SpawnRequester::Rank(process) => {
                let (parent, rank) = self.cx.jobs.plan_of(*process);
                RequesterPlan::Rank(&parent.job_plan, rank)
            }
            SpawnRequester::Tool(name) => RequesterPlan::Tool(node, name),
        }
    }

    /// The same in words.
    fn requester_name(&self, by: &SpawnRequester<KnownRank>) -> String {
        match by {
            SpawnRequester::Rank(process) => process.to_string(),
            SpawnRequester::Tool(name) => format!("the tool {}", name.nspace),
        }
    }

    /// The job that its jobs do not outlive. Those of a tool belong to the launch.
    pub(super) fn requester_job(&self, by: &SpawnRequester<KnownRank>) -> JobIndex {
        match by {
            SpawnRequester::Rank(process) => process.job(),
            SpawnRequester::Tool(_) => JobIndex::INITIAL,
        }
    }

    /// Plans a spawned job, and names the nodes that have to be prepared for it before its plan is complete.
    pub(super) fn plan_spawn(&self, spawn: &QueuedSpawn) -> Result<SpawnDecision, SpawnFailure> {
        let QueuedSpawn {
            reply_to,
            requester,
            request,
            ..
        } = spawn;
        if self.cx.supervisor.is_ending() {
            return Err(ending());
        }
        if let SpawnRequester::Rank(process) = requester
            && self.cx.ranks.get(*process).end.is_some()
        {
            return Err(SpawnFailure {
                kind: SpawnFailureKind::Ending,
                text: "the requesting process has ended".to_owned(),
            });
        }
        let (live, before) = self.census(|_| true);
        let reserved = self.reserved(|_| true);
        let standing = LaunchSnapshot {
            offset: GlobalRank(self.cx.jobs.size()),
            before: &before,
            ground: SlotUsage {
                live: &live,
                reserved: &reserved,
            },
            names: &self.job_names,
            jobs: &self.cx.jobs,
        };
        let first = &self.cx.plan;
        let mut job = first.spawned(self.requester(*reply_to, requester), request, standing)?;
        job.prepared_as = spawn.prepared_as.clone();
        let across = first.spec.layout.across_hosts();
        let mut plan = None;
        let mut nodes = match across {
            true => {
                let plan = plan.insert(job.launcher_plan(first)?);
                job.pack(plan)?;
                job.nodes_to_prepare(plan)
            }
            // It is all nodes.
            false => job.container.iter().map(|_| HEAD).collect(),
        };
        nodes.retain(|node| !spawn.prepared_nodes.contains(node));
        if !nodes.is_empty() {
            let name = job.prepared_as.is_none().then(|| job.job.nspace.clone());
            job.prepared_as = job.prepared_as.or(name);
            return Ok(SpawnDecision::Prepare(Box::new(job), nodes));
        }
        let plan = match plan {
            Some(plan) => plan,
            None => job.resolve(first, None, self.cx.steps.container_root(&job, first))?,
        };
        Ok(SpawnDecision::Begin(Box::new(job), Arc::new(plan)))
    }

    pub(super) fn begin_spawn(
        &mut self,
        wanting: QueuedSpawn,
        job: Box<SpawnedJobPlan>,
        plan: Arc<HostPlan>,
    ) {
        let QueuedSpawn {
            reply_to: asker,
            requester: by,
            limit,
            request,
            ..
        } = wanting;
        let size = plan.job.process_map.size();
        if self.cx.wants_details() {
            let text = format!(
                "{} spawns {}",
                self.requester_name(&by),
                counted(size, "process")
            );
            self.cx.detail(&text);
        }
        let parent = self.requester_job(&by);
        let number = self.cx.jobs.add(Arc::clone(&plan));
        self.cx.ranks.grow(self.cx.jobs.size());
        self.cx.supervisor.grow(size);
        let ending = &self.cx.plan.spec.ending;
        self.cx.job_tree.add(JobTreeNode {
            parent: Some(parent),
            remaining: size,
            independent: job
                .independent
                .unwrap_or(ending.children == ChildJobPolicy::Independent),
            allocation: job.allocation.clone(),
            end_told: false,
            span: info_span!("job", number = number.0, size, parent = parent.0),
        });
        status::record_spawn(&mut self.cx, number, &by);
        let birth = PendingSpawn {
            reply_to: asker,
            requester: by,
            limit,
            is_started: false,
            expects_mpi: request.expects_mpi(),
            failure: None,
        };
        if matches!(birth.requester, SpawnRequester::Tool(_)) {
            // Hosts may have joined since the tool came.
            self.serve_tools();
        }
        self.births.pending.insert(number, birth);
        self.cx.steps.send(LauncherToStep::AddJob {
            job,
            plan: Some(plan),
        });
    }

    /// Refuses a spawn that was not begun.
    pub(super) fn refuse_spawn(&mut self, spawn: QueuedSpawn, failure: SpawnFailure) {
        if let Some(name) = spawn.prepared_as {
            self.cx.steps.send(LauncherToStep::Forget(name));
        }
        self.answer_spawn(spawn.reply_to, &spawn.requester, Err(failure));
    }

    pub(super) fn answer_spawn(
        &mut self,
        (node, ticket): SpawnReplyTarget,
        requester: &SpawnRequester<KnownRank>,
        result: SpawnResult,
    ) {
        if let Err(failure) = &result
            && failure.kind != SpawnFailureKind::Ending
        {
            let text = format!(
                "{} cannot spawn: {}",
                self.requester_name(requester),
                failure.text
            );
            self.cx.warn(&text);
        }
        let said = NodeCommand::Spawned { ticket, result };
        self.cx.steps.send(LauncherToStep::Node(node, said));
    }

    /// Some part of a job that is being started cannot run.
    pub(super) fn spawn_failed(&mut self, job: JobIndex, failure: SpawnFailure) {
        let Some(birth) = self.births.pending.get_mut(&job) else {
            return;
        };
        if birth.failure.is_some() {
            return;
        }
        birth.failure = Some(failure);
        let by = match birth.requester {
            SpawnRequester::Rank(process) => Some(process.global()),
            SpawnRequester::Tool(_) => None,
        };
        let demand = JobControlRequest {
            requester: by,
            action: JobControlAction::Kill,
            ranks: Some(self.cx.jobs.processes_of(job).collect()),
        };
        self.cx.steps.send(LauncherToStep::DropJob(job));
        supervision::demand(&mut self.cx, demand);
        self.job_may_be_over(job);
    }

    /// Whether that a process was not started is the failure of a spawn, and not of the launch.
    pub(super) fn fails_spawn(&mut self, process: KnownRank, cause: &FailureCause) -> bool {
        let job = process.job();
        if !self.births.pending.contains_key(&job) {
            return false;
        }
        let kind = match cause.exit_code() {
            EXIT_NOT_FOUND => SpawnFailureKind::NotFound,
            EXIT_NOT_EXECUTABLE => SpawnFailureKind::NotExecutable,
            _ => SpawnFailureKind::Failed,
        };
        let text = match cause {
            FailureCause::NotStarted { error, .. } => error.clone(),
            _ => String::new(),
        };
        self.spawn_failed(job, SpawnFailure { kind, text });
        true
    }

    /// The start of every rank of a spawned job has been reported.
    pub(super) fn spawn_started(&mut self, job: JobIndex) {
        if let Some(birth) = self.births.pending.get_mut(&job) {
            birth.is_started = true;
            if birth.failure.is_none() {
                self.show_to_debuggers(job);
            }
        }
        self.confirm_spawn(job);
        self.job_may_be_over(job);
    }

    /// Answers a spawn whose processes run; that of an MPI once one of them has made contact: its
    /// parent then waits for them without limit.
    pub(super) fn confirm_spawn(&mut self, job: JobIndex) {
        let is_well = |birth: &PendingSpawn| birth.is_started && birth.failure.is_none();
        let Some(birth) = self.births.pending.get(&job).filter(|birth| is_well(birth)) else {
            return;
        };
        let has_joined = |process: KnownRank| self.cx.ranks.get(process).connected;
        if birth.expects_mpi && !self.cx.jobs.ranks_of_job(job).any(has_joined) {
            return;
        }
        if let Some(birth) = self.births.pending.remove(&job) {
            let plan = self
                .cx
                .jobs
                .get(job)
                .expect("it was added when it was begun");
            let name = plan.job.nspace.clone();
            self.answer_spawn(birth.reply_to, &birth.requester, Ok(name));
        }
    }

    /// Returns the reason for the failure of an `MPI_Comm_spawn` whose processes have all ended without contact.
    fn never_joined(&self, job: JobIndex) -> SpawnFailure {
        let apps = self.cx.jobs.get(job).map_or(&[][..], |plan| &plan.apps[..]);
        let programs = apps
            .iter()
            .map(|app| app.program.path().display().to_string());
        let programs: BTreeSet<String> = programs.collect();
        let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
        // One that failed or was lost with its host is reported itself.
        let has_exited = |process: KnownRank| {
            let life = self.cx.ranks.get(process);
            life.fate.is_none() && matches!(life.end, Some((_, Some(RankEnd::Code(_)))))
        };
        let kind = match self.cx.jobs.ranks_of_job(job).all(has_exited) {
            true => SpawnFailureKind::Failed,
            false => SpawnFailureKind::Ending,
        };
        SpawnFailure {
            kind,
            text: format!(
                "all processes of {} ended without contacting PMI or PMIx; MPI_Comm_spawn starts programs of the parent's MPI only",
                programs.join(", ")
            ),
        }
    }

    /// Nothing more will be heard of a process.
    pub(super) fn on_process_gone(&mut self, process: KnownRank) {
        let job = process.job();
        if let Some(member) = self.cx.job_tree.get_mut(job) {
            member.remaining = member.remaining.saturating_sub(1);
        }
        self.job_may_be_over(job);
    }

    fn job_may_be_over(&mut self, job: JobIndex) {
        let born = |birth: &PendingSpawn| birth.is_started || birth.failure.is_some();
        let is_born = self.births.pending.get(&job).is_none_or(born);
        let member = self.cx.job_tree.get_mut(job);
        let Some(member) = member.filter(|member| member.remaining == 0 && is_born) else {
            return;
        };
        member.span = Span::none();
        if let Some(birth) = self.births.pending.remove(&job) {
            let failure = birth.failure.unwrap_or_else(|| self.never_joined(job));
            self.answer_spawn(birth.reply_to, &birth.requester, Err(failure));
        }
        if self.cx.supervisor.is_over() || self.cx.supervisor.is_ending() {
            return;
        }
        if let Some(member) = self.cx.job_tree.get_mut(job) {
            member.end_told = true;
        }
        self.cx.steps.send(LauncherToStep::JobOver(job));
        self.allocations_end(job);
        let until = self.cx.now() + self.cx.plan.spec.ending.grace;
        let children = self.cx.job_tree.iter();
        let orphans = children.filter(|(_, child)| {
            child.parent == Some(job) && !child.independent && child.remaining > 0
        });
        let orphans: Vec<_> = orphans.map(|(child, _)| (until, child)).collect();
        self.births.orphans.extend(orphans);
    }

    /// How the jobs ended of whose end nothing was said.
    pub(super) fn unreported_job_ends(&self) -> Vec<JobEnd> {
        let members = self.cx.job_tree.iter();
        let untold = members.filter(|(_, member)| !member.end_told);
        // What it did to the others is not how its job failed.
        let first = self.cx.supervisor.cause().and_then(FailureCause::rank);
        let first = first.and_then(|process| self.cx.jobs.find(process));
        let ends = untold.filter_map(|(job, _)| {
            let lives = self.cx.jobs.ranks_of_job(job);
            let lives = lives.map(|process| self.cx.ranks.get(process));
            let lives: Vec<queries::ProcessState> = lives.map(how_it_lived).collect();
            // One that could not be started is known to its spawner alone, who has an answer.
            if lives
                .iter()
                .all(|life| *life == queries::ProcessState::Planned)
            {
                return None;
            }
            let ranks = (0..).map(|rank| Some(Rank(rank)));
            let of_first = |(rank, _): &(Option<Rank>, queries::ProcessState)| {
                first.is_some_and(|(in_job, first)| in_job == job && *rank == Some(first))
            };
            let first = ranks.clone().zip(lives.clone()).filter(of_first);
            let worst = queries::worst(first).or_else(|| queries::worst(ranks.zip(lives)));
            Some(JobEnd { job, worst })
        });
        ends.collect()
    }

    /// Fails spawns that have timed out or wait too long for hosts, and ends jobs that have outlived their parent for too
    /// long.
    pub(super) fn expire_spawns(&mut self, now: Duration) {
        let late = |birth: &PendingSpawn| {
            birth.failure.is_none() && birth.limit.is_some_and(|(_, at)| at <= now)
        };
        let births = self.births.pending.iter();
        let late: Vec<_> = births
            .filter(|(_, birth)| late(birth))
            .filter_map(|(job, birth)| {
                let failure = match birth.is_started {
                    true => not_joined_in_time,
                    false => too_late,
                };
                Some((*job, failure(birth.limit?.0)))
            })
            .collect();
        for (job, failure) in late {
            self.spawn_failed(job, failure);
        }
        let mut late = self.growth.line.take_late(now);
        late.extend(self.spawn_queue.preparation.line.take_late(now));
        for spawn in late {
            let (limit, _) = spawn.limit.unwrap_or_default();
            self.refuse_spawn(spawn, too_late(limit));
        }
        if self.cx.supervisor.is_ending() {
            self.abandon_pending_spawns();
        }
        let (due, left) = std::mem::take(&mut self.births.orphans)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.births.orphans = left;
        let due: Vec<(Duration, JobIndex)> = due;
        for (_, job) in due {
            self.end_orphan(job);
        }
    }

    /// The launch is ending: jobs that were not started need not be waited for. The server that
    /// expected it may be what failed.
    fn abandon_pending_spawns(&mut self) {
        let births = self.births.pending.iter();
        let open = births.filter(|(_, birth)| birth.failure.is_none());
        let open: Vec<JobIndex> = open.map(|(job, _)| *job).collect();
        for job in open {
            self.spawn_failed(job, ending());
        }
    }

    fn end_orphan(&mut self, job: JobIndex) {
        let count = self.cx.job_tree.remaining(job);
        if count == 0 {
            return;
        }
        self.cx.print_line(&format!(
            "ending {} of spawned job {job}, which would outlive its parent",
            counted(count, "process")
        ));
        let living = |process: &KnownRank| self.cx.ranks.get(*process).end.is_none();
        let ranks = self.cx.jobs.ranks_of_job(job).filter(living);
        let ranks: Vec<_> = ranks.map(KnownRank::global).collect();
        let demand = JobControlRequest {
            requester: Some(self.cx.jobs.first_of(job)),
            action: JobControlAction::Terminate,
            ranks: Some(ranks),
        };
        supervision::demand(&mut self.cx, demand);
    }
}
