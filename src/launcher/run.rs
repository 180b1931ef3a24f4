//! One run of a job, from the plan to the exit code.
//!
//! The order matters: what forks without exec (guard, namespaces) comes before the first thread;
//! signals are blocked before that too; sidecars start before everything that can be prepared
//! while they start.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Instant, SystemTime};

use super::describe::{self, app_start, host_requests};
use super::directory::{JobDirectory, NodeDirectories};
use super::drive::{Drive, Parts};
use super::dry_run;
use super::explain;
use super::finish::finish;
use super::guard::Guard;
use super::outputs;
use super::plan::Plan;
use super::rank_env;
use super::report;
use super::signals::ignored_at_start;
use super::status::{Status, Target};
use super::stdin;
use super::streams::Show;
use super::surroundings::Surroundings;
use super::zone::local_clock;
use crate::agent::namespace::NodeNamespaces;
use crate::agent::sidecar::{Sidecar, SidecarSpec};
use crate::agent::spawn::reserve_low_descriptors;
use crate::agent::start::{OutputPlan, RankPlan, StartShared, Started, Starter, StdinPlan};
use crate::job::clock::Moment;
use crate::job::ids::{AppNum, NodeId, Nspace, Rank};
use crate::job::outcome::EXIT_WIREUP;
use crate::job::spec::{JobSpec, StdinTarget};

mod made;

use made::Made;

/// A run that wireup refused or could not carry out.
#[derive(Debug)]
pub struct RunFailure {
    /// Exit code.
    pub code: u8,
    /// What is wrong and what to do, without a prefix.
    pub message: String,
}

impl RunFailure {
    /// A command line or file that cannot be used.
    pub fn refused(message: String) -> Self {
        Self {
            code: EXIT_WIREUP,
            message,
        }
    }

    /// A failure of wireup's own.
    pub fn own(what: &str, error: impl std::fmt::Display) -> Self {
        Self {
            code: EXIT_WIREUP,
            message: format!("{what}: {error}"),
        }
    }
}

/// Runs a job and returns its exit code.
///
/// # Errors
/// [`RunFailure`] when the job could not be started, or wireup itself broke; nothing is left
/// running or lying about in either case.
pub fn run(spec: JobSpec) -> Result<u8, RunFailure> {
    if spec.layout.across_hosts() && !spec.dry_run {
        let text =
            "this wireup cannot start ranks on other hosts; leave --hosts and --hostfile out";
        return Err(RunFailure::refused(text.into()));
    }
    if spec.dry_run {
        let surroundings = surroundings()?;
        let limit = surroundings.nofile.rlim_max;
        let plan = Plan::new(spec, unique_nspace()?, limit)?;
        return dry_run::show(plan, &surroundings);
    }
    let started = Instant::now();
    let since = SystemTime::now();
    let status = Target::open(&spec.status, since)?;
    let prepared = prepare(spec, started, since, status.clone());
    let (mut prepared, surroundings) = prepared.inspect_err(|failure| {
        if let Some(status) = &status {
            status.refuse(failure, started.elapsed());
        }
    })?;
    let result = prepared
        .start_sidecars(&surroundings)
        .and_then(|()| prepared.launch(surroundings));
    finish(prepared.drive, result, prepared.directory, since)
}

/// What this process was given, with its low descriptors taken.
fn surroundings() -> Result<Surroundings, RunFailure> {
    let ignored = ignored_at_start();
    reserve_low_descriptors().map_err(|errno| {
        RunFailure::own(
            "out of descriptors, raise the hard limit (ulimit -Hn)",
            errno,
        )
    })?;
    Ok(Surroundings::take(ignored))
}

/// Everything that can be refused before there is a process of the job.
fn prepare(
    spec: JobSpec,
    started: Instant,
    since: SystemTime,
    status: Option<Target>,
) -> Result<(Prepared, Surroundings), RunFailure> {
    let surroundings = surroundings()?;
    let nspace = unique_nspace()?;
    // As early as possible: what is not in memory yet need not be copied on write later.
    let guard = Guard::start(&nspace).map_err(|error| {
        RunFailure::own(
            "cannot start the guard process, allow more processes and descriptors (ulimit -u, -Hn)",
            error,
        )
    })?;
    let plan = match Plan::new(spec, nspace, surroundings.nofile.rlim_max) {
        Ok(plan) => Arc::new(plan),
        Err(failure) => {
            guard.dismiss();
            return Err(failure);
        }
    };
    let namespaces = namespaces(&plan);
    let show = Show {
        label: plan.spec.stdio.label,
        times: plan.spec.stdio.timestamps.then(|| local_clock(since)),
        events: status.as_ref().and_then(Target::output_clock),
    };
    let beginning = Beginning {
        started,
        show,
        status,
    };
    let prepared = Prepared::new(&plan, &surroundings, namespaces, beginning, guard)?;
    Ok((prepared, surroundings))
}

/// What is known of a run before anything is made.
struct Beginning {
    started: Instant,
    show: Show,
    status: Option<Target>,
}

/// What a run is made of once its processes can be started.
struct Prepared {
    drive: Drive,
    /// Reports of the starting threads go here.
    results: Sender<Started>,
    namespaces: Option<Arc<NodeNamespaces>>,
    directory: Option<JobDirectory>,
    /// By node, when there is a job directory.
    directories: Vec<NodeDirectories>,
}

impl Prepared {
    /// Makes everything that is not a process of the job. If that fails nothing is left of it, and
    /// the guard is gone.
    fn new(
        plan: &Arc<Plan>,
        surroundings: &Surroundings,
        namespaces: Option<NodeNamespaces>,
        beginning: Beginning,
        mut guard: Guard,
    ) -> Result<Self, RunFailure> {
        let mut directory = None;
        let made = Made::new(
            plan,
            surroundings,
            beginning.show,
            &mut guard,
            &mut directory,
        );
        let made = match made {
            Ok(made) => made,
            Err(failure) => {
                if let Some(directory) = directory {
                    // What cannot be removed now could not be removed by the guard either.
                    let _ = directory.remove();
                }
                guard.dismiss();
                return Err(failure);
            }
        };
        let (sender, results) = channel();
        let status = beginning
            .status
            .map(|target| Status::new(target, &made.wake));
        let parts = Parts {
            plan: Arc::clone(plan),
            started: beginning.started,
            status,
            poll: made.poll,
            signals: made.signals,
            wake: made.wake,
            results,
            nodes: made.nodes,
            streams: made.streams,
            guard,
            strangers: surroundings.children.clone(),
        };
        Ok(Self {
            drive: Drive::new(parts),
            results: sender,
            namespaces: namespaces.map(Arc::new),
            directory,
            directories: made.directories,
        })
    }

    /// Starts a sidecar per node and has it register the job, without waiting for it.
    fn start_sidecars(&mut self, surroundings: &Surroundings) -> Result<(), RunFailure> {
        self.drive.tell_plan();
        let plan = Arc::clone(&self.drive.plan);
        let Some(parts) = &plan.host else {
            return Ok(());
        };
        let env = rank_env::of_sidecar(&plan, &parts.libpmix.path);
        let reset = surroundings.signals_to_reset();
        let spec = SidecarSpec {
            program: &parts.program,
            libpmix: &parts.libpmix.path,
            shim: &parts.shim,
            env: &env,
            reset_signals: &reset,
        };
        for (index, directories) in self.directories.iter().enumerate() {
            let node = NodeId(index as u32);
            let namespaces = self.namespaces.as_ref().map(|ns| ns.of_node(index));
            let sidecar = Sidecar::start(&spec, node, namespaces, &self.drive.poll);
            let sidecar = sidecar.map_err(|error| RunFailure {
                code: EXIT_WIREUP,
                message: report::host_not_started(&parts.program, error),
            })?;
            self.drive.add_sidecar(node, sidecar);
            let requests = host_requests(&plan, node, directories)?;
            let mut actions = Vec::new();
            let now = Moment(self.drive.now());
            let core = &mut self.drive.nodes[index].core;
            core.start_host(&requests, now, &mut actions);
            self.drive.act(node, actions);
        }
        Ok(())
    }

    /// Starts the ranks as soon as the sidecars are ready, and stays until the last has ended.
    fn launch(&mut self, surroundings: Surroundings) -> Result<(), RunFailure> {
        let broken = |error| RunFailure::own("the run broke", error);
        let plan = Arc::clone(&self.drive.plan);
        for warning in &plan.warnings {
            self.drive.warn(warning);
        }
        let told = match (plan.spec.explain, plan.spec.verbose) {
            (true, _) => explain::long(&plan),
            (false, 0) => Vec::new(),
            (false, _) => explain::short(&plan),
        };
        for line in &told {
            self.drive.tell(line);
        }
        let outputs = self.drive.streams.take_files(outputs::open(&plan)?);
        self.drive
            .run_until(|drive| drive.hosts_ready() || drive.supervisor.is_ending())
            .map_err(broken)?;
        self.tell_hosts();
        if self.drive.supervisor.is_ending() {
            self.drive.skip_ranks();
            return Ok(());
        }
        let shared = self.shared(&plan, surroundings)?;
        let mut plans = self.rank_plans(&plan, outputs);
        if let Some(rank) = plan.spec.stdio.pty {
            let opened = self.drive.open_pty(&mut plans[rank.index()]);
            opened.map_err(|error| RunFailure::own("cannot open a terminal for --pty", error))?;
        }
        let threads = plan.slots.count() as usize;
        let starter = Starter::start(shared, plans, threads, &self.results, &self.drive.wake)
            .map_err(|error| RunFailure::own("cannot start a thread", error))?;
        self.drive.starter = Some(starter);
        self.drive
            .run_until(|drive| drive.supervisor.is_over())
            .map_err(broken)
    }

    /// Which libpmix each sidecar really loaded, and what is to be known about it. A warning about
    /// its age is for those who ask: a distribution repairs old versions under their old number.
    fn tell_hosts(&mut self) {
        if self.drive.plan.spec.verbose == 0 {
            return;
        }
        let plan = Arc::clone(&self.drive.plan);
        let path = plan.host.as_ref().map(|host| host.libpmix.path.display());
        let mut lines = Vec::new();
        for (node, name) in self.drive.nodes.iter().zip(&plan.node_names) {
            let (Some(hello), Some(path)) = (&node.hello, &path) else {
                continue;
            };
            lines.push(format!("PMIx server of {name}: {} ({path})", hello.libpmix));
            let warnings = hello.warnings.iter().map(|text| format!("warning: {text}"));
            lines.extend(warnings.filter(|_| name == &plan.node_names[0]));
        }
        for line in &lines {
            self.drive.tell(line);
        }
    }

    fn shared(
        &self,
        plan: &Plan,
        surroundings: Surroundings,
    ) -> Result<Arc<StartShared>, RunFailure> {
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(|errno| RunFailure::own("/dev/null", errno))?;
        let stdin = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| RunFailure::own("standard input", error))?;
        let own_name = self.namespaces.is_some();
        let host_env = |node: NodeId| self.drive.nodes[node.index()].env.as_ref();
        let node_env: Vec<Vec<CString>> = plan
            .job
            .ranks
            .node_ids()
            .map(|node| {
                let directories = self.directories.get(node.index());
                rank_env::of_node(plan, node, host_env(node), directories, own_name)
            })
            .collect();
        let env = rank_env::of_job(plan);
        // Every rank has the same names.
        let rank_env = rank_env::of_rank(plan, Rank(0), host_env(NodeId(0)));
        let own = rank_env::names(env.iter().chain(node_env.iter().flatten()).chain(&rank_env));
        let apps = (0..)
            .map(AppNum)
            .take(plan.apps.len())
            .map(|app| app_start(plan, app, &own, surroundings.nofile))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(StartShared {
            apps,
            env,
            node_env,
            namespaces: self.namespaces.clone(),
            reset_signals: surroundings.signals_to_reset(),
            null,
            stdin,
        }))
    }

    fn rank_plans(&self, plan: &Plan, outputs: Vec<OutputPlan>) -> Vec<RankPlan> {
        let stdin_target = plan.spec.stdio.stdin;
        let readers = match stdin_target {
            StdinTarget::None => 0,
            StdinTarget::Rank(_) => 1,
            StdinTarget::All => plan.job.ranks.size() as usize,
        };
        let copied = stdin::needs_copy(std::io::stdin().as_fd(), readers);
        outputs
            .into_iter()
            .enumerate()
            .map(|(index, output)| {
                let rank = Rank(index as u32);
                let (node, _) = self.drive.place(rank);
                let reads = match stdin_target {
                    StdinTarget::None => false,
                    StdinTarget::Rank(reader) => reader == rank,
                    StdinTarget::All => true,
                };
                RankPlan {
                    rank,
                    node,
                    app: plan.app_of(rank),
                    wrapper: describe::wrapper(plan, rank),
                    env: rank_env::of_rank(plan, rank, self.drive.nodes[node.index()].env.as_ref()),
                    stdin: match (reads, copied) {
                        (false, _) => StdinPlan::Empty,
                        (true, true) => StdinPlan::Pipe,
                        (true, false) => StdinPlan::Inherit,
                    },
                    output,
                    pmi: plan.offer.pmi,
                }
            })
            .collect()
    }
}

/// A name that no other job has had on this machine, and that nobody can guess: PMIx lets every
/// local process that knows it pose as a rank.
fn unique_nspace() -> Result<Nspace, RunFailure> {
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| RunFailure::own("no random numbers", errno))?;
    let name = format!("wireup-{:016x}", u64::from_le_bytes(random));
    Ok(Nspace::new(&name).expect("letters, digits and a dash"))
}

/// Names of their own for virtual nodes, if the system permits it.
fn namespaces(plan: &Plan) -> Option<NodeNamespaces> {
    if plan.job.ranks.nodes() == 1 {
        return None;
    }
    match NodeNamespaces::create(&plan.node_names) {
        Ok(namespaces) => Some(namespaces),
        Err(error) => {
            if plan.spec.verbose > 0 {
                eprintln!("wireup: virtual nodes share this machine's name: {error}");
            }
            None
        }
    }
}
