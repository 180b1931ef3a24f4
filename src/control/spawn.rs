//! Spawned jobs: from the request to the answer, and to
//! their end.

mod family;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tracing::{Span, info_span};

pub(super) use family::Family;
use family::{Birth, FamilyMember};

use super::{Controller, RankLife};
use crate::backend::backend_message::ToBackend;
use crate::plan::allocation_table::Ground;
use crate::plan::planned_jobs::Plans;
use crate::plan::{By, Plan, SpawnedJob, Standing};
use wireup_core::job::demand::{Demand, Wish};
use wireup_core::job::ids::{GlobalRank, JobNumber, NodeId, Rank};
use wireup_core::job::outcome::{Cause, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, RankEnd};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind, SpawnRequest, SpawnResult, Spawner};
use wireup_core::job::spec::Children;
use wireup_core::node::event::{SpawnTicket, ToNode};
use wireup_core::queries::{self, JobEnd};
use wireup_core::wording::counted;

/// A waiter for an answer: a node, and its ticket for the request.
pub(super) type Asker = (NodeId, SpawnTicket);

/// A spawn that was not decided yet.
#[derive(Debug)]
pub(super) struct Wanting {
    pub(super) asker: Asker,
    pub(super) by: Spawner,
    pub(super) request: Box<SpawnRequest>,
    /// How long it may take, and when it is given up.
    pub(super) limit: Option<(Duration, Duration)>,
}

/// What took longer than it may.
pub(super) fn too_late(limit: Duration) -> SpawnFailure {
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
fn how_it_lived(life: &RankLife) -> queries::ProcessLife {
    match (life.end, life.pid) {
        (Some((_, Some(end))), _) => queries::ProcessLife::Ended {
            end,
            connected: end == RankEnd::Code(0) && life.fate.is_some(),
        },
        (_, None) => queries::ProcessLife::Planned,
        _ => queries::ProcessLife::Running,
    }
}

impl Controller {
    /// Whether a process is a debugger's daemon.
    pub(super) fn is_daemon(&self, process: GlobalRank) -> bool {
        self.jobs.plan_of(process).0.job.debug.daemons
    }

    /// Whether these are all processes of every job that has not ended, but for daemons of debuggers.
    pub(super) fn is_everybody(&self, processes: &[GlobalRank]) -> bool {
        let members = (0..).map(JobNumber).zip(&self.family.members);
        let living = members.filter(|(_, member)| member.remaining > 0);
        let mut others = living
            .flat_map(|(job, _)| self.jobs.processes_of(job))
            .filter(|process| !self.is_daemon(*process));
        let meant: BTreeSet<GlobalRank> = processes.iter().copied().collect();
        others.all(|process| meant.contains(&process))
    }

    /// The requester, as plans know it.
    pub(super) fn requester<'a>(&'a self, (node, _): Asker, by: &'a Spawner) -> By<'a> {
        match by {
            Spawner::Rank(process) => {
                let (parent, rank) = self.jobs.plan_of(*process);
                By::Rank(&parent.decided, rank)
            }
            Spawner::Tool(name) => By::Tool(node, name),
        }
    }

    /// The same in words.
    fn name_of_spawner(&self, by: &Spawner) -> String {
        match by {
            Spawner::Rank(process) => self.jobs.name_of(*process),
            Spawner::Tool(name) => format!("the tool {}", name.nspace),
        }
    }

    /// The job that its jobs do not outlive. Those of a tool belong to the launch.
    pub(super) fn job_of_spawner(&self, by: &Spawner) -> JobNumber {
        match by {
            Spawner::Rank(process) => self.jobs.identity(*process).0,
            Spawner::Tool(_) => JobNumber(0),
        }
    }

    pub(super) fn plan_spawn(
        &self,
        asker: Asker,
        by: &Spawner,
        request: &SpawnRequest,
    ) -> Result<(SpawnedJob, Arc<Plan>), SpawnFailure> {
        if self.supervisor.is_ending() {
            return Err(ending());
        }
        if let Spawner::Rank(process) = by
            && self.lives[process.index()].end.is_some()
        {
            return Err(SpawnFailure {
                kind: SpawnFailureKind::Ending,
                text: "the requesting process has ended".to_owned(),
            });
        }
        let (live, before) = self.census(|_| true);
        let reserved = self.reserved(|_| true);
        let standing = Standing {
            offset: GlobalRank(self.jobs.size()),
            before: &before,
            ground: Ground {
                live: &live,
                reserved: &reserved,
            },
            names: &self.names,
            jobs: &self.jobs,
        };
        let first = &self.plan;
        let mut job = first.spawned(self.requester(asker, by), request, standing)?;
        let plan = match first.spec.layout.across_hosts() {
            true => {
                job.pack(first)?;
                job.seen(first)?
            }
            false => job.resolve(first, None)?,
        };
        Ok((job, Arc::new(plan)))
    }

    pub(super) fn begin_spawn(&mut self, wanting: Wanting, job: SpawnedJob, plan: Arc<Plan>) {
        let Wanting {
            asker,
            by,
            limit,
            request,
        } = wanting;
        let size = plan.job.ranks.size();
        if self.wants_details() {
            let text = format!(
                "{} spawns {}",
                self.name_of_spawner(&by),
                counted(size, "process")
            );
            self.detail(&text);
        }
        let parent = self.job_of_spawner(&by);
        let number = self.jobs.add(Arc::clone(&plan));
        self.lives
            .resize(self.jobs.size() as usize, RankLife::default());
        self.supervisor.grow(size);
        let ending = &self.plan.spec.ending;
        self.family.members.push(FamilyMember {
            parent: Some(parent),
            remaining: size,
            independent: job
                .independent
                .unwrap_or(ending.children == Children::Independent),
            allocation: job.allocation.clone(),
            end_told: false,
            span: info_span!("job", number = number.0, size, parent = parent.0),
        });
        self.record_spawn(number, &by);
        let birth = Birth {
            asker,
            by,
            limit,
            is_started: false,
            expects_mpi: request.expects_mpi(),
            failure: None,
        };
        if matches!(birth.by, Spawner::Tool(_)) {
            // Hosts may have joined since the tool came.
            self.serve_tools();
        }
        self.family.births.insert(number, birth);
        self.backend.add_job(Box::new(job), &plan);
    }

    pub(super) fn answer_spawn(
        &mut self,
        (node, ticket): Asker,
        by: &Spawner,
        result: SpawnResult,
    ) {
        if let Err(failure) = &result
            && failure.kind != SpawnFailureKind::Ending
        {
            let text = format!(
                "{} cannot spawn: {}",
                self.name_of_spawner(by),
                failure.text
            );
            self.warn(&text);
        }
        let said = ToNode::Spawned { ticket, result };
        self.backend.order(ToBackend::Node(node, said));
    }

    /// Some part of a job that is being started cannot run.
    pub(super) fn spawn_failed(&mut self, job: JobNumber, failure: SpawnFailure) {
        let Some(birth) = self.family.births.get_mut(&job) else {
            return;
        };
        if birth.failure.is_some() {
            return;
        }
        birth.failure = Some(failure);
        let by = match birth.by {
            Spawner::Rank(process) => Some(process),
            Spawner::Tool(_) => None,
        };
        let demand = Demand {
            by,
            what: Wish::Kill,
            ranks: Some(self.jobs.processes_of(job).collect()),
        };
        self.backend.order(ToBackend::DropJob(job));
        let mut orders = Vec::new();
        let now = self.now();
        self.supervisor.demanded(demand, now, &mut orders);
        self.carry_out(orders);
        self.job_may_be_over(job);
    }

    /// Whether that a process was not started is the failure of a spawn, and not of the launch.
    pub(super) fn fails_spawn(&mut self, process: GlobalRank, cause: &Cause) -> bool {
        let (job, _) = self.jobs.identity(process);
        if !self.family.births.contains_key(&job) {
            return false;
        }
        let kind = match cause.exit_code() {
            EXIT_NOT_FOUND => SpawnFailureKind::NotFound,
            EXIT_NOT_EXECUTABLE => SpawnFailureKind::NotExecutable,
            _ => SpawnFailureKind::Failed,
        };
        let text = match cause {
            Cause::NotStarted { error, .. } => error.clone(),
            _ => String::new(),
        };
        self.spawn_failed(job, SpawnFailure { kind, text });
        true
    }

    /// The start of every rank of a spawned job has been reported.
    pub(super) fn spawn_started(&mut self, job: JobNumber) {
        if let Some(birth) = self.family.births.get_mut(&job) {
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
    pub(super) fn confirm_spawn(&mut self, job: JobNumber) {
        let is_well = |birth: &Birth| birth.is_started && birth.failure.is_none();
        let Some(birth) = self.family.births.get(&job).filter(|birth| is_well(birth)) else {
            return;
        };
        let has_joined = |process: GlobalRank| self.lives[process.index()].connected;
        if birth.expects_mpi && !self.jobs.processes_of(job).any(has_joined) {
            return;
        }
        if let Some(birth) = self.family.births.remove(&job) {
            let plan = self.jobs.get(job).expect("it was added when it was begun");
            let name = plan.job.nspace.clone();
            self.answer_spawn(birth.asker, &birth.by, Ok(name));
        }
    }

    /// Returns the reason for the failure of an `MPI_Comm_spawn` whose processes have all ended without contact.
    fn never_joined(&self, job: JobNumber) -> SpawnFailure {
        let apps = self.jobs.get(job).map_or(&[][..], |plan| &plan.apps[..]);
        let programs = apps
            .iter()
            .map(|app| app.program.path().display().to_string());
        let programs: BTreeSet<String> = programs.collect();
        let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
        // One that failed or was lost with its host is reported itself.
        let has_exited = |process: GlobalRank| {
            let life = &self.lives[process.index()];
            life.fate.is_none() && matches!(life.end, Some((_, Some(RankEnd::Code(_)))))
        };
        let kind = match self.jobs.processes_of(job).all(has_exited) {
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
    pub(super) fn process_over(&mut self, process: GlobalRank) {
        let (job, _) = self.jobs.identity(process);
        let member = &mut self.family.members[job.index()];
        member.remaining = member.remaining.saturating_sub(1);
        self.job_may_be_over(job);
    }

    fn job_may_be_over(&mut self, job: JobNumber) {
        let born = |birth: &Birth| birth.is_started || birth.failure.is_some();
        let is_born = self.family.births.get(&job).is_none_or(born);
        if self.family.members[job.index()].remaining > 0 || !is_born {
            return;
        }
        self.family.members[job.index()].span = Span::none();
        if let Some(birth) = self.family.births.remove(&job) {
            let failure = birth.failure.unwrap_or_else(|| self.never_joined(job));
            self.answer_spawn(birth.asker, &birth.by, Err(failure));
        }
        if self.supervisor.is_over() || self.supervisor.is_ending() {
            return;
        }
        self.family.members[job.index()].end_told = true;
        self.backend.order(ToBackend::JobOver(job));
        self.allocations_end(job);
        let until = self.now() + self.plan.spec.ending.grace;
        let children = (0..).map(JobNumber).zip(&self.family.members);
        let orphans = children.filter(|(_, child)| {
            child.parent == Some(job) && !child.independent && child.remaining > 0
        });
        let orphans: Vec<_> = orphans.map(|(child, _)| (until, child)).collect();
        self.family.orphans.extend(orphans);
    }

    /// How the jobs ended of whose end nothing was said.
    pub(super) fn untold_ends(&self) -> Vec<JobEnd> {
        let members = (0..).map(JobNumber).zip(&self.family.members);
        let untold = members.filter(|(_, member)| !member.end_told);
        // What it did to the others is not how its job failed.
        let first = self.supervisor.cause().and_then(Cause::rank);
        let first = first.map(|process| self.jobs.identity(process));
        let ends = untold.filter_map(|(job, _)| {
            let lives = self.jobs.processes_of(job);
            let lives = lives.map(|process| &self.lives[process.index()]);
            let lives: Vec<queries::ProcessLife> = lives.map(how_it_lived).collect();
            // One that could not be started is known to its spawner alone, who has an answer.
            if lives
                .iter()
                .all(|life| *life == queries::ProcessLife::Planned)
            {
                return None;
            }
            let ranks = (0..).map(|rank| Some(Rank(rank)));
            let of_first = |(rank, _): &(Option<Rank>, queries::ProcessLife)| {
                first.is_some_and(|(in_job, first)| in_job == job && *rank == Some(first))
            };
            let first = ranks.clone().zip(lives.clone()).filter(of_first);
            let worst = queries::worst(first).or_else(|| queries::worst(ranks.zip(lives)));
            Some(JobEnd { job, worst })
        });
        ends.collect()
    }

    /// Fails spawns that have timed out, and ends jobs that have outlived their parent for too
    /// long.
    pub(super) fn look_at_family(&mut self, now: Duration) {
        let late =
            |birth: &Birth| birth.failure.is_none() && birth.limit.is_some_and(|(_, at)| at <= now);
        let births = self.family.births.iter();
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
        if self.supervisor.is_ending() {
            self.drop_births();
        }
        let (due, left) = std::mem::take(&mut self.family.orphans)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.family.orphans = left;
        let due: Vec<(Duration, JobNumber)> = due;
        for (_, job) in due {
            self.end_orphan(job, now);
        }
    }

    /// The launch is ending: jobs that were not started need not be waited for. The server that
    /// expected it may be what failed.
    fn drop_births(&mut self) {
        let births = self.family.births.iter();
        let open = births.filter(|(_, birth)| birth.failure.is_none());
        let open: Vec<JobNumber> = open.map(|(job, _)| *job).collect();
        for job in open {
            self.spawn_failed(job, ending());
        }
    }

    fn end_orphan(&mut self, job: JobNumber, now: Duration) {
        let count = self.family.members[job.index()].remaining;
        if count == 0 {
            return;
        }
        self.tell(&format!(
            "ending {} of spawned job {job}, which would outlive its parent",
            counted(count, "process")
        ));
        let living = |process: &GlobalRank| self.lives[process.index()].end.is_none();
        let ranks: Vec<_> = self.jobs.processes_of(job).filter(living).collect();
        let demand = Demand {
            by: Some(self.jobs.first_of(job)),
            what: Wish::Terminate,
            ranks: Some(ranks),
        };
        let mut orders = Vec::new();
        self.supervisor.demanded(demand, now, &mut orders);
        self.carry_out(orders);
    }
}
