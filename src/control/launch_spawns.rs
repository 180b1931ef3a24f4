//! Spawned jobs of a launch, from the request to the exit of the last process.

mod spawn_queue;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tracing::{Span, info_span};

use super::job_tree::JobTreeNode;
use super::launch_context::LaunchContext;
use super::launch_effect::LaunchEffect;
use super::launch_service::LaunchService;
use super::queued_spawn::{QueuedSpawn, SpawnSource};
use super::rank_status::RankStatus;
use super::spawn_answers::{
    answer_spawn, refuse_spawn, requester_job, requester_name, requester_plan, too_late,
};
use super::{allocation_requests, debugger_table, launch_tools, status_records, supervision};
use crate::backend::step_messages::LauncherToStep;
use crate::plan::allocation_table::SlotUsage;
use crate::plan::job_names::JobNames;
use crate::plan::{HostPlan, LaunchSnapshot, SpawnPlanner, SpawnedJobPlan};
use spawn_queue::SpawnQueue;
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId, Rank};
use wireup_core::job::job_control::{JobControlAction, JobControlRequest};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, FailureCause, RankEnd};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind, SpawnRequester};
use wireup_core::job::spec::ChildJobPolicy;
use wireup_core::queries::{self, JobEnd};
use wireup_core::wording::counted;

/// Next step of a spawn.
#[derive(Debug)]
pub(super) enum SpawnDecision {
    Begin(Box<SpawnedJobPlan>, Arc<HostPlan>),
    /// Prepare these nodes first.
    Prepare(Box<SpawnedJobPlan>, Vec<NodeId>),
}

/// Job that is being started.
#[derive(Debug)]
struct PendingSpawn {
    source: SpawnSource,
    /// Timeout of the spawn, and the time at which it is given up.
    limit: Option<(Duration, Duration)>,
    /// Whether the start of every process has been reported.
    is_started: bool,
    /// Whether the requester waits for the processes to join; it is answered when one has connected.
    expects_mpi: bool,
    /// Reason for giving up the spawn. The answer is sent when no process of the job is left.
    failure: Option<SpawnFailure>,
}

/// The spawned jobs of a launch, from the request to the end of the last process.
#[derive(Debug)]
pub(super) struct LaunchSpawns {
    /// Generator of the names of the launch's jobs.
    names: JobNames,
    /// Jobs that are being started.
    pending: BTreeMap<JobIndex, PendingSpawn>,
    /// Orphaned jobs, with the time at which each is terminated.
    orphans: Vec<(Duration, JobIndex)>,
    queue: SpawnQueue,
}

impl LaunchService for LaunchSpawns {
    fn next_deadline(&self) -> Option<Duration> {
        let pending = self
            .pending
            .values()
            .filter(|spawn| spawn.failure.is_none());
        let limits = pending.filter_map(|spawn| Some(spawn.limit?.1));
        let orphans = self.orphans.iter().map(|(at, _)| *at);
        limits
            .chain(orphans)
            .chain(self.queue.next_deadline())
            .min()
    }

    fn tick(&mut self, cx: &mut LaunchContext, now: Duration) {
        self.expire(cx, now);
        self.retry_queued(cx, now);
    }
}

impl LaunchSpawns {
    pub(super) fn new(names: JobNames) -> Self {
        Self {
            names,
            pending: BTreeMap::new(),
            orphans: Vec::new(),
            queue: SpawnQueue::default(),
        }
    }

    /// Records that a process has exited, so that spawns that wait for slots are decided again.
    pub(super) fn free_slots(&mut self) {
        self.queue.freed = true;
    }
}

/// Returns the failure of an `MPI_Comm_spawn` whose processes did not contact PMI in time.
fn not_joined_in_time(limit: Duration) -> SpawnFailure {
    SpawnFailure {
        kind: SpawnFailureKind::TimedOut,
        text: format!(
            "no process contacted PMI or PMIx within the {} s allowed; MPI_Comm_spawn starts programs of the parent's MPI only",
            limit.as_secs_f64()
        ),
    }
}

/// Returns the failure of a spawn that is requested or pending when the launch is ending.
fn ending() -> SpawnFailure {
    SpawnFailure {
        kind: SpawnFailureKind::Ending,
        text: "the launch is being ended".to_owned(),
    }
}

/// Returns the state of a process as tools get it at the end of its job.
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

impl LaunchSpawns {
    /// Places the ranks of a spawned job among the processes that `stays` selects.
    fn place(
        &self,
        cx: &LaunchContext,
        spawn: &QueuedSpawn,
        stays: impl Fn(KnownRank) -> bool + Copy,
    ) -> Result<SpawnedJobPlan, SpawnFailure> {
        let (live, before) = allocation_requests::census(cx, stays);
        let reserved = allocation_requests::reserved(cx, stays);
        let standing = LaunchSnapshot {
            offset: GlobalRank(cx.jobs.size()),
            before: &before,
            ground: SlotUsage {
                live: &live,
                reserved: &reserved,
            },
            names: &self.names,
            jobs: &cx.jobs,
        };
        let requester = requester_plan(cx, &spawn.source);
        SpawnPlanner::new(&cx.plan).plan(requester, &spawn.request, standing)
    }

    /// Plans a spawned job, and names the nodes that must be prepared before its plan is complete.
    pub(super) fn plan(
        &self,
        cx: &LaunchContext,
        spawn: &QueuedSpawn,
    ) -> Result<SpawnDecision, SpawnFailure> {
        if cx.supervisor.is_ending() {
            return Err(ending());
        }
        if let Some(process) = spawn.source.rank()
            && cx.ranks.get(process).end.is_some()
        {
            return Err(SpawnFailure {
                kind: SpawnFailureKind::Ending,
                text: "the requesting process has ended".to_owned(),
            });
        }
        let first = &cx.plan;
        let mut job = self.place(cx, spawn, |_| true)?;
        job.prepared_as = spawn.prepared_as.clone();
        job.pack(first)?;
        let nodes = job.nodes_to_prepare(first);
        let nodes: Vec<NodeId> = nodes.difference(&spawn.prepared_nodes).copied().collect();
        if !nodes.is_empty() {
            let name = job.prepared_as.is_none().then(|| job.job.nspace.clone());
            job.prepared_as = job.prepared_as.or(name);
            return Ok(SpawnDecision::Prepare(Box::new(job), nodes));
        }
        let plan = job.resolve(first, cx.steps.container_root(&job, first))?;
        Ok(SpawnDecision::Begin(Box::new(job), Arc::new(plan)))
    }

    pub(super) fn begin(
        &mut self,
        cx: &mut LaunchContext,
        wanting: QueuedSpawn,
        job: Box<SpawnedJobPlan>,
        plan: Arc<HostPlan>,
    ) {
        let QueuedSpawn {
            source,
            limit,
            request,
            ..
        } = wanting;
        let size = plan.job.process_map.size();
        if cx.wants_details() {
            let text = format!(
                "{} spawns {}",
                requester_name(&source),
                counted(size, "process")
            );
            cx.detail(&text);
        }
        let parent = requester_job(&source);
        let number = cx.jobs.add(Arc::clone(&plan));
        cx.ranks.grow(cx.jobs.size());
        cx.supervisor.grow(size);
        let ending = &cx.plan.spec.ending;
        cx.job_tree.add(JobTreeNode {
            parent: Some(parent),
            remaining: size,
            independent: job
                .independent
                .unwrap_or(ending.children == ChildJobPolicy::Independent),
            allocation: job.allocation.clone(),
            end_reported: false,
            span: info_span!("job", number = number.0, size, parent = parent.0),
        });
        status_records::record_spawn(cx, number, &source);
        let birth = PendingSpawn {
            source,
            limit,
            is_started: false,
            expects_mpi: request.expects_mpi(),
            failure: None,
        };
        if matches!(birth.source, SpawnSource::Node(_, SpawnRequester::Tool(_))) {
            // Hosts may have joined since the tool attached.
            launch_tools::serve_tools(cx);
        }
        self.pending.insert(number, birth);
        cx.steps.send(LauncherToStep::AddJob {
            job,
            plan: Some(plan),
        });
    }

    /// Gives up a job that is being started, and kills its processes.
    pub(super) fn fail(&mut self, cx: &mut LaunchContext, job: JobIndex, failure: SpawnFailure) {
        let birth = self.pending.get_mut(&job);
        let Some(birth) = birth.filter(|birth| birth.failure.is_none()) else {
            return;
        };
        birth.failure = Some(failure);
        let demand = JobControlRequest {
            requester: birth.source.rank().map(KnownRank::global),
            action: JobControlAction::Kill,
            ranks: Some(cx.jobs.processes_of(job).collect()),
        };
        cx.steps.send(LauncherToStep::DropJob(job));
        supervision::demand(cx, demand);
        self.job_may_be_over(cx, job);
    }

    /// Treats a process that could not be started as the failure of its spawn. Returns false if its job is not being
    /// spawned: the launch fails then.
    pub(super) fn fails_spawn(
        &mut self,
        cx: &mut LaunchContext,
        process: KnownRank,
        cause: &FailureCause,
    ) -> bool {
        let job = process.job();
        if !self.pending.contains_key(&job) {
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
        self.fail(cx, job, SpawnFailure { kind, text });
        true
    }

    /// Handles the report that every rank of a spawned job was started.
    pub(super) fn on_started(&mut self, cx: &mut LaunchContext, job: JobIndex) {
        if let Some(birth) = self.pending.get_mut(&job) {
            birth.is_started = true;
            if birth.failure.is_none() {
                debugger_table::show_to_debuggers(cx, job);
            }
        }
        self.confirm(cx, job);
        self.job_may_be_over(cx, job);
    }

    /// Answers a spawn whose processes run. The spawn of an MPI program is answered when one of its processes has
    /// connected: the parent then waits for the others without limit.
    pub(super) fn confirm(&mut self, cx: &mut LaunchContext, job: JobIndex) {
        let is_well = |birth: &PendingSpawn| birth.is_started && birth.failure.is_none();
        let Some(birth) = self.pending.get(&job).filter(|birth| is_well(birth)) else {
            return;
        };
        let has_joined = |process: KnownRank| cx.ranks.get(process).connected;
        if birth.expects_mpi && !cx.jobs.ranks_of_job(job).any(has_joined) {
            return;
        }
        if let Some(birth) = self.pending.remove(&job) {
            answer_spawn(cx, &birth.source, Ok(job));
        }
    }

    /// Handles the last report about a process: it has exited, was lost, or was not started.
    pub(super) fn on_process_gone(&mut self, cx: &mut LaunchContext, process: KnownRank) {
        let job = process.job();
        if let Some(member) = cx.job_tree.get_mut(job) {
            member.remaining = member.remaining.saturating_sub(1);
        }
        self.job_may_be_over(cx, job);
    }

    fn job_may_be_over(&mut self, cx: &mut LaunchContext, job: JobIndex) {
        let born = |birth: &PendingSpawn| birth.is_started || birth.failure.is_some();
        let is_born = self.pending.get(&job).is_none_or(born);
        let member = cx.job_tree.get_mut(job);
        let Some(member) = member.filter(|member| member.remaining == 0 && is_born) else {
            return;
        };
        member.span = Span::none();
        if let Some(birth) = self.pending.remove(&job) {
            let failure = birth.failure.unwrap_or_else(|| never_joined(cx, job));
            answer_spawn(cx, &birth.source, Err(failure));
        }
        if cx.supervisor.is_over() || cx.supervisor.is_ending() {
            return;
        }
        if let Some(member) = cx.job_tree.get_mut(job) {
            member.end_reported = true;
        }
        cx.steps.send(LauncherToStep::JobOver(job));
        cx.effects.push(LaunchEffect::JobEnded(job));
        let until = cx.now() + cx.plan.spec.ending.grace;
        let children = cx.job_tree.iter();
        let orphans = children.filter(|(_, child)| {
            child.parent == Some(job) && !child.independent && child.remaining > 0
        });
        let orphans: Vec<_> = orphans.map(|(child, _)| (until, child)).collect();
        self.orphans.extend(orphans);
    }

    /// Fails spawns that have timed out or wait too long for hosts, and ends orphaned jobs whose time has passed.
    fn expire(&mut self, cx: &mut LaunchContext, now: Duration) {
        let late = |birth: &PendingSpawn| {
            birth.failure.is_none() && birth.limit.is_some_and(|(_, at)| at <= now)
        };
        let births = self.pending.iter();
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
            self.fail(cx, job, failure);
        }
        for spawn in self.queue.preparation.line.take_late(now) {
            let (limit, _) = spawn.limit.unwrap_or_default();
            refuse_spawn(cx, spawn, too_late(limit));
        }
        if cx.supervisor.is_ending() {
            self.abandon_pending_spawns(cx);
        }
        for (_, job) in self.orphans.extract_if(.., |(at, _)| *at <= now) {
            end_orphan(cx, job);
        }
    }

    /// Fails the pending spawns of an ending launch, without waiting for their processes: the server that these
    /// should contact may have failed.
    fn abandon_pending_spawns(&mut self, cx: &mut LaunchContext) {
        let births = self.pending.iter();
        let open = births.filter(|(_, birth)| birth.failure.is_none());
        let open: Vec<JobIndex> = open.map(|(job, _)| *job).collect();
        for job in open {
            self.fail(cx, job, ending());
        }
    }
}

/// Returns the reason for the failure of an `MPI_Comm_spawn` whose processes have all ended without contact.
fn never_joined(cx: &LaunchContext, job: JobIndex) -> SpawnFailure {
    let apps = cx.jobs.get(job).map_or(&[][..], |plan| &plan.apps[..]);
    let programs = apps
        .iter()
        .map(|app| app.program.path().display().to_string());
    let programs: BTreeSet<String> = programs.collect();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    // A process that failed or was lost with its host is reported separately.
    let has_exited = |process: KnownRank| {
        let life = cx.ranks.get(process);
        life.fate.is_none() && matches!(life.end, Some((_, Some(RankEnd::Code(_)))))
    };
    let kind = match cx.jobs.ranks_of_job(job).all(has_exited) {
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

/// Returns the ends of the jobs whose end was not reported to the nodes.
pub(super) fn unreported_job_ends(cx: &LaunchContext) -> Vec<JobEnd> {
    let members = cx.job_tree.iter();
    let unreported = members.filter(|(_, member)| !member.end_reported);
    // The exit of the rank that failed first counts, not the exits of others that it caused.
    let first = cx.supervisor.cause().and_then(FailureCause::rank);
    let first = first.and_then(|process| cx.jobs.find(process));
    let ends = unreported.filter_map(|(job, _)| {
        let lives = cx.jobs.ranks_of_job(job);
        let lives = lives.map(|process| cx.ranks.get(process));
        let lives: Vec<queries::ProcessState> = lives.map(how_it_lived).collect();
        // A job without started processes is known only to its requester, which has an answer.
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

fn end_orphan(cx: &mut LaunchContext, job: JobIndex) {
    let count = cx.job_tree.get(job).map_or(0, |job| job.remaining);
    if count == 0 {
        return;
    }
    cx.print_line(&format!(
        "ending {} of spawned job {job}, which would outlive its parent",
        counted(count, "process")
    ));
    let living = |process: &KnownRank| cx.ranks.get(*process).end.is_none();
    let ranks = cx.jobs.ranks_of_job(job).filter(living);
    let ranks: Vec<_> = ranks.map(KnownRank::global).collect();
    let demand = JobControlRequest {
        requester: Some(cx.jobs.first_of(job)),
        action: JobControlAction::Terminate,
        ranks: Some(ranks),
    };
    supervision::demand(cx, demand);
}
