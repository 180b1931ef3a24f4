//! The start of the ranks' processes, from several threads.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::local_job::LocalJob;
use super::step_context::StepContext;
use crate::backend::step_messages::StepToLauncher;
use crate::plan::host_scope::HostScope;
use crate::plan::planned_jobs::HasPlan;
use crate::plan::rank_plans::{self, app_exec};
use crate::plan::{HostPlan, rank_env};
use crate::report::bindings;
use crate::start_ranks::{
    OutputPlan, PACE, RankPlan, RankStarter, StartResult, StartShared, StarterThreads, StdinPlan,
};
use crate::stdio::rank_files::{self, OutputError};
use wireup_core::failure::CommandError;
use wireup_core::job::ids::{AppNum, JobIndex, NodeId, Rank};
use wireup_core::job::spec::FailurePolicy;
use wireup_core::node::event::NodeEvent;
use wireup_core::queries::QueryId;
use wireup_sys::access;
use wireup_sys::descriptors;
use wireup_sys::inherited_state::InheritedState;
use wireup_sys::out_of_memory;

/// Number of ranks up to which a starting thread for each processor is used, without a measurement of the available
/// processor time.
const FEW: usize = 16;

/// Standard input and output of local ranks.
pub(crate) struct RankIo {
    pub(crate) outputs: Vec<OutputPlan>,
    pub(crate) stdin: Vec<StdinPlan>,
}

impl RankIo {
    /// Opens the outputs of some ranks of a job, and plans a pipe for each that reads standard input.
    ///
    /// # Errors
    /// As [`rank_files::open_here`].
    pub(crate) fn open(plan: &HostPlan, ranks: &[Rank]) -> Result<Self, OutputError> {
        let target = plan.spec.stdio.stdin;
        let stdin = ranks.iter().map(|rank| match target.reads(*rank) {
            true => StdinPlan::Pipe,
            false => StdinPlan::Empty,
        });
        Ok(Self {
            outputs: rank_files::open_here(plan, ranks)?,
            stdin: stdin.collect(),
        })
    }
}

/// Query of a node core that waits until the starts of some jobs' ranks are known.
struct StartQuery {
    node: NodeId,
    query: QueryId,
    jobs: Vec<JobIndex>,
}

/// Starts the ranks of jobs in threads, and receives the threads' reports.
pub(super) struct RankStarts {
    threads: StarterThreads,
    /// Sender for the reports of the starting threads.
    results_tx: Sender<StartResult>,
    pub(super) results: Receiver<StartResult>,
    /// Eventfd by which other threads wake the loop.
    wake: Arc<OwnedFd>,
    /// Time of the next check, while threads start ranks.
    next_check: Option<Duration>,
    queries: Vec<StartQuery>,
}

impl RankStarts {
    /// Creates the state without ranks. Threads wake the loop by the eventfd.
    pub(super) fn new(wake: Arc<OwnedFd>) -> Self {
        let (results_tx, results) = channel();
        Self {
            threads: StarterThreads::default(),
            results_tx,
            results,
            wake,
            next_check: None,
            queries: Vec::new(),
        }
    }

    /// Starts the ranks of a job from several threads. Returns whether it has local ranks.
    ///
    /// # Errors
    /// [`CommandError`] if a resource for them cannot be created.
    pub(super) fn start_job(
        &mut self,
        cx: &mut StepContext,
        number: JobIndex,
        io: RankIo,
        surroundings: &InheritedState,
    ) -> Result<bool, CommandError> {
        let job = cx.jobs.get(number).expect("only known jobs are started");
        let plan = Arc::clone(job.plan());
        let shared = shared(cx, number, job, surroundings)?;
        report_bindings(cx, &plan);
        record_bindings(cx, number, &plan);
        let mut plans = rank_plans(cx, number, io);
        make_rank_directories(cx, number, &mut plans)
            .map_err(|error| CommandError::system("cannot make the directories of ranks", error))?;
        if plans.is_empty() {
            return Ok(false);
        }
        // For a few ranks it is not worth measuring the available processor time.
        let threads = match plans.len() {
            0..=FEW => plan.slots.affinity,
            _ => plan.slots.count(),
        };
        let starter = RankStarter::start(
            shared,
            plans,
            &mut self.threads,
            threads as usize,
            &self.results_tx,
            &self.wake,
        )
        .map_err(|error| CommandError::system("cannot start a thread", error))?;
        if let Some(job) = cx.jobs.get_mut(number) {
            job.starter = Some(starter);
        }
        self.next_check = Some(cx.now() + PACE);
        Ok(true)
    }

    /// Resets the eventfd; the caller reads the reports next.
    pub(super) fn clear_wake(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
    }

    /// Returns the time of the next check for reports.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.next_check
    }

    /// Whether it is time for a check.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.next_check.is_some_and(|at| at <= now)
    }

    /// Schedules the next check for reports while threads start ranks.
    pub(super) fn schedule_check(&mut self, cx: &StepContext, starting: bool) {
        self.next_check = starting.then(|| cx.now() + PACE);
    }

    /// Adds a query of a node core that waits until the starts of these jobs' ranks are known.
    pub(super) fn add_query(&mut self, node: NodeId, query: QueryId, jobs: Vec<JobIndex>) {
        self.queries.push(StartQuery { node, query, jobs });
    }

    /// Removes the queries whose jobs' starts are known, and returns the events for their node cores.
    pub(super) fn answered_queries(
        &mut self,
        cx: &StepContext,
    ) -> Vec<(NodeId, NodeEvent<'static>)> {
        let starting = |job: &JobIndex| {
            let job = cx.jobs.get(*job);
            job.is_some_and(|job| job.starter.is_some())
        };
        let ready = self
            .queries
            .extract_if(.., |query| !query.jobs.iter().any(starting));
        ready
            .map(|query| (query.node, NodeEvent::StartsReported(query.query)))
            .collect()
    }
}

/// Creates the private directories of ranks that have one, and sets the variables that name them.
fn make_rank_directories(
    cx: &StepContext,
    number: JobIndex,
    plans: &mut [RankPlan],
) -> std::io::Result<()> {
    let job = cx.jobs.get(number).expect("only known jobs are started");
    let Some(directory) = &cx.cleanup.directory else {
        return Ok(());
    };
    for plan in plans {
        if job.plan().has_rank_directories(plan.app) {
            let rank = cx.look_up(plan.process).rank();
            let path = directory.make_rank_directory(number, rank)?;
            plan.env.extend(rank_env::tmpdir(&path));
        }
    }
    Ok(())
}

/// Prints the binding of a job's local ranks, if the user asked for it.
fn report_bindings(cx: &mut StepContext, plan: &HostPlan) {
    if !plan.spec.binding.report {
        return;
    }
    let host = match (cx.scope, &plan.node_names[..]) {
        (HostScope::Node(node), names) => names[node.index()].as_str(),
        (HostScope::Whole, [name]) => name,
        (HostScope::Whole, _) => "this machine",
    };
    for text in bindings::report(host, plan.binding.as_deref()) {
        cx.report_text(text);
    }
}

/// Reports the binding of a job's local ranks, if the launch is recorded.
fn record_bindings(cx: &mut StepContext, number: JobIndex, plan: &HostPlan) {
    let recorded = plan.spec.status.is_recorded();
    if let Some(binding) = plan.binding.as_ref().filter(|_| recorded) {
        let ranks = bindings::ranks(binding).into_iter();
        let ranks = ranks.map(|(rank, cpus)| (cx.jobs.global(number, rank), cpus));
        let ranks = ranks.collect();
        let topology = binding.topology.summary();
        cx.report(StepToLauncher::Bound { topology, ranks });
    }
}

fn shared(
    cx: &StepContext,
    number: JobIndex,
    job: &LocalJob,
    surroundings: &InheritedState,
) -> Result<Arc<StartShared>, CommandError> {
    let plan = job.plan();
    let null = descriptors::open_null();
    let null = null.map_err(|errno| CommandError::system("/dev/null", errno))?;
    let stdin = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| CommandError::system("standard input", error))?;
    let own_name = cx.namespaces.is_some();
    let host_env = |node: NodeId| job.env(cx.scope.index(node));
    let here = || cx.scope.nodes(cx.jobs.nodes());
    let node_env: Vec<Vec<CString>> = here()
        .map(|node| {
            let directories = job.directories.get(cx.scope.index(node));
            rank_env::node_variables(plan, node, host_env(node), directories, own_name)
        })
        .collect();
    let mut env = rank_env::job_variables(plan);
    env.extend(rank_env::spawned_variable(number));
    // The variables have the same names for every rank.
    let first = here().next().unwrap_or_default();
    let rank_env = rank_env::rank_variables(plan, number, Rank(0), host_env(first));
    let tmpdir = rank_env::tmpdir(Path::new("/"));
    let all = env.iter().chain(node_env.iter().flatten());
    let own = rank_env::names(all.chain(&rank_env).chain(&tmpdir));
    let inside = plan
        .container_root
        .as_ref()
        .map(|inside| Arc::clone(&inside.view));
    // An inherited working directory may be inaccessible to this user, so that it cannot be entered again.
    let can_enter = || access::check(&plan.inheritance.cwd, rustix::fs::Access::EXEC_OK).is_ok();
    let hosts = || cx.namespaces.as_ref()?.hosts().ok().map(Arc::clone);
    let hosts = || hosts().filter(|_| can_enter());
    let view = inside.or_else(hosts);
    let mut apps = (0..)
        .map(AppNum)
        .take(plan.apps.len())
        .map(|app| app_exec(plan, app, &own, surroundings.nofile))
        .collect::<Result<Vec<_>, _>>()?;
    if view.is_some() {
        // A process that joins other mounts is in their root directory.
        let here = CString::new(plan.inheritance.cwd.as_os_str().as_bytes());
        let here = here.map_err(|error| CommandError::system("the current directory", error))?;
        for app in &mut apps {
            app.cwd.get_or_insert_with(|| here.clone());
        }
    }
    Ok(Arc::new(StartShared {
        apps,
        env,
        node_env,
        view,
        namespaces: cx.namespaces.clone(),
        group: cx.cleanup.cgroup.clone(),
        oom_score: out_of_memory::rank_score(),
        reset_signals: signals_to_reset(cx, surroundings),
        null,
        stdin,
        lowest_rank_fd: descriptors::lowest_rank_fd(cx.ranks.len()),
    }))
}

/// Returns the signals that ranks reset to their defaults. If ranks survive failures of others, SIGPIPE stays ignored:
/// Open MPI's sockets raise it, and it would kill ranks that write to a dead one.
fn signals_to_reset(cx: &StepContext, surroundings: &InheritedState) -> Vec<i32> {
    let mut signals = surroundings.signals_to_reset();
    if cx.plan.spec.ending.on_failure == FailurePolicy::Continue {
        signals.retain(|signal| *signal != libc::SIGPIPE);
    }
    signals
}

fn rank_plans(cx: &StepContext, number: JobIndex, io: RankIo) -> Vec<RankPlan> {
    let job = cx.jobs.get(number).expect("only known jobs are started");
    let plan = job.plan();
    let processes = cx.scope.processes_of(&cx.jobs, number).into_iter();
    processes
        .zip(io.outputs.into_iter().zip(io.stdin))
        .map(|(process, (output, stdin))| {
            let known = cx.look_up(process);
            let (rank, node) = (known.rank(), cx.scope.index(known.node()));
            RankPlan {
                process,
                node,
                app: plan.app_of(rank),
                wrapper: rank_plans::wrapper(plan, rank),
                env: rank_env::rank_variables(plan, number, rank, job.env(node)),
                cpus: rank_plans::cpus(plan, rank),
                memory: rank_plans::memory(plan, rank),
                stdin,
                output,
                pmi: plan.offer.pmi,
                stopped: plan.spec.debug.stops(rank),
            }
        })
        .collect()
}
