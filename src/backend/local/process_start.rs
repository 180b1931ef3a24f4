//! The start of a backend's processes: sidecars first, with their first requests already in the
//! socket, then the ranks.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use super::{HostScope, LocalBackend, LocalJob};
use crate::backend::guard::GuardLine;
use crate::backend::sidecar_process::{Sidecar, SidecarSpec};
use crate::backend::step_messages::StepToLauncher;
use crate::failure::CommandError;
use crate::inspect::sidecar_files::SidecarFiles;
use crate::plan::directory::{self, DirectoryError, JobDirectory};
use crate::plan::planned_jobs::HasPlan;
use crate::plan::rank_plans::{self, app_exec, host_requests};
use crate::plan::{HostPlan, launch_directives, rank_env};
use crate::report::bindings;
use crate::report::failures::SidecarStartError;
use crate::start_ranks::{OutputPlan, PACE, RankPlan, RankStarter, StartShared, StdinPlan};
use crate::sys::access;
use crate::sys::cgroup::{self, Cgroup};
use crate::sys::descriptors;
use crate::sys::inherited_state::InheritedState;
use crate::sys::out_of_memory;
use wireup_core::job::clock::Moment;
use wireup_core::job::debug::DebugDirectives;
use wireup_core::job::ids::{AppNum, JobIndex, NodeId, Rank};
use wireup_core::job::spec::FailurePolicy;
use wireup_core::node::event::{NodeAction, NodeNotice};
use wireup_core::node::{HEAD, LaunchFacts};

/// Ranks that may have a starting thread for each processor, whatever share of these is ours.
const FEW: usize = 16;

/// What the ranks here read and write.
pub(crate) struct RankIo {
    pub(crate) outputs: Vec<OutputPlan>,
    pub(crate) stdin: Vec<StdinPlan>,
}

pub(super) fn job_directory(
    plan: &HostPlan,
    part: HostScope,
    guard: &GuardLine,
) -> Result<JobDirectory, DirectoryError> {
    let path = match part {
        HostScope::Whole => directory::job_directory(&plan.job.nspace),
        HostScope::Node(node) => directory::step_directory(&plan.job.nspace, node),
    };
    guard.announce_directory(&path);
    JobDirectory::create(path)
}

/// The control group of the launch here, where there can be one.
pub(super) fn group(plan: &HostPlan, part: HostScope, guard: &GuardLine) -> Option<Cgroup> {
    let name = match part {
        HostScope::Whole => plan.job.nspace.to_string(),
        HostScope::Node(node) => format!("{}.n{node}", plan.job.nspace),
    };
    let place = cgroup::place(&name)?;
    // Before there is one, as with the directory.
    let _ = guard.add_group(&place);
    Cgroup::make(place)
}

impl LocalBackend {
    /// The ranks here of the job the user asked for, ascending.
    pub(crate) fn ranks_here(&self) -> Vec<Rank> {
        let first = self.scope.processes_of(&self.jobs, JobIndex::INITIAL);
        first
            .into_iter()
            .map(|process| self.look_up(process).rank())
            .collect()
    }

    /// Starts a sidecar per node and has it register the job, without waiting for it.
    ///
    /// # Errors
    /// [`CommandError`] when one cannot be started.
    pub(crate) fn start_sidecars(
        &mut self,
        surroundings: &InheritedState,
    ) -> Result<(), CommandError> {
        let plan = Arc::clone(&self.plan);
        let Some(parts) = &plan.sidecar_files else {
            self.check_ready();
            return Ok(());
        };
        let env = rank_env::sidecar_variables(&plan, &parts.libpmix);
        let reset = surroundings.signals_to_reset();
        let directed = launch_directives::environment_of_sidecar(&plan, &env);
        for (index, directories) in self.jobs.first().directories.clone().iter().enumerate() {
            let node = self.scope.node_at(index);
            let env = if node == HEAD { &directed } else { &env };
            self.start_sidecar(node, parts, env, &reset, None)?;
            let requests = host_requests(&plan, node, directories)?;
            let mut actions = Vec::new();
            let now = Moment(self.now());
            let core = &mut self.nodes[index].core;
            match &plan.spec.debug.director {
                Some(by) => {
                    let by = (node == HEAD).then_some(by);
                    core.with_actions(now, &mut actions, |core| {
                        core.start_directed(&requests[0], by)
                    });
                }
                None => core.with_actions(now, &mut actions, |core| core.start_sidecar(&requests)),
            }
            self.execute_actions(node, actions);
        }
        Ok(())
    }

    /// Starts the sidecar of a node, with its environment and the signals that it resets. It takes over the
    /// `listener` at which its tools have connected, if there is one.
    pub(super) fn start_sidecar(
        &mut self,
        node: NodeId,
        parts: &SidecarFiles,
        env: &[CString],
        reset: &[i32],
        listener: Option<BorrowedFd<'_>>,
    ) -> Result<(), CommandError> {
        let group = self.cgroup.clone();
        let spec = SidecarSpec {
            program: &parts.program,
            libpmix: &parts.libpmix.path,
            shim: &parts.shim,
            env,
            reset_signals: reset,
            group: group.as_ref().map(|group| group.as_fd()),
            listener,
        };
        let index = self.scope.index(node);
        let namespaces = self
            .namespaces
            .as_ref()
            .map(|ns| ns.namespaces_of_node(index));
        let sidecar = Sidecar::start(&spec, node, namespaces, &self.poll);
        let sidecar = sidecar.map_err(|error| {
            CommandError::request(SidecarStartError::new(&parts.program, error))
        })?;
        self.add_sidecar(node, sidecar);
        Ok(())
    }

    /// The tool that directs the launch has said how: the first job is made known to the sidecars.
    pub(super) fn direct(&mut self, debugged: DebugDirectives) {
        let plan = Arc::new(self.plan.directed(debugged));
        self.plan = Arc::clone(&plan);
        self.jobs.first_mut().grow(&plan);
        let directories = self.jobs.first().directories.clone();
        for (index, directories) in directories.iter().enumerate() {
            let node = self.scope.node_at(index);
            let mut actions = Vec::new();
            let now = Moment(self.now());
            match host_requests(&plan, node, directories) {
                Ok([_, register]) => {
                    let core = &mut self.nodes[index].core;
                    core.with_actions(now, &mut actions, |core| {
                        core.apply_launch_directives(Arc::clone(&plan.job), &register)
                    });
                    core.add_facts(JobIndex::INITIAL, Arc::clone(&plan) as Arc<dyn LaunchFacts>);
                }
                Err(failure) => {
                    let error = failure.to_string();
                    actions.push(NodeAction::Notify(NodeNotice::SidecarLost { error }));
                }
            }
            self.execute_actions(node, actions);
        }
    }

    /// Starts the ranks of the job the user asked for.
    ///
    /// # Errors
    /// [`CommandError`] if a resource for them cannot be created.
    pub(crate) fn start_ranks(
        &mut self,
        io: RankIo,
        surroundings: &InheritedState,
    ) -> Result<(), CommandError> {
        self.start_job(JobIndex::INITIAL, io, surroundings)?;
        self.await_tools();
        Ok(())
    }

    /// Starts the ranks of a job from several threads.
    ///
    /// # Errors
    /// [`CommandError`] if a resource for them cannot be created.
    pub(super) fn start_job(
        &mut self,
        number: JobIndex,
        io: RankIo,
        surroundings: &InheritedState,
    ) -> Result<(), CommandError> {
        let job = self.jobs.get(number).expect("only known jobs are started");
        let plan = Arc::clone(job.plan());
        let shared = self.shared(number, job, surroundings)?;
        self.report_bindings(&plan);
        self.record_bindings(number, &plan);
        let mut plans = self.rank_plans(number, io);
        self.make_rank_directories(number, &mut plans)
            .map_err(|error| CommandError::system("cannot make the directories of ranks", error))?;
        if plans.is_empty() {
            return self
                .all_started(number)
                .map_err(|error| CommandError::system("the run broke", error));
        }
        // For a few ranks it is not worth asking how much of its processors the machine gives.
        let threads = match plans.len() {
            0..=FEW => plan.slots.affinity,
            _ => plan.slots.count(),
        };
        let starter = RankStarter::start(
            shared,
            plans,
            &mut self.threads,
            threads as usize,
            &self.start_result_tx,
            &self.wake,
        )
        .map_err(|error| CommandError::system("cannot start a thread", error))?;
        if let Some(job) = self.jobs.get_mut(number) {
            job.starter = Some(starter);
        }
        self.next_check = Some(self.now() + PACE);
        Ok(())
    }

    /// Makes the directories of ranks that are to have one, and names them in their environments.
    fn make_rank_directories(
        &self,
        number: JobIndex,
        plans: &mut [RankPlan],
    ) -> std::io::Result<()> {
        let job = self.jobs.get(number).expect("only known jobs are started");
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        for plan in plans {
            if job.plan().has_rank_directories(plan.app) {
                let rank = self.look_up(plan.process).rank();
                let path = directory.make_rank_directory(number, rank)?;
                plan.env.extend(rank_env::tmpdir(&path));
            }
        }
        Ok(())
    }

    /// Shows the user where the ranks of a job are bound here, if that is wanted.
    fn report_bindings(&mut self, plan: &HostPlan) {
        if !plan.spec.binding.report {
            return;
        }
        let host = match (self.scope, &plan.node_names[..]) {
            (HostScope::Node(node), names) => names[node.index()].as_str(),
            (HostScope::Whole, [name]) => name,
            (HostScope::Whole, _) => "this machine",
        };
        for text in bindings::report(host, plan.binding.as_deref()) {
            self.report(StepToLauncher::Tell { text });
        }
    }

    /// Reports where the ranks of a job are bound here, if the launch is recorded.
    fn record_bindings(&mut self, number: JobIndex, plan: &HostPlan) {
        let recorded = plan.spec.status.is_recorded();
        if let Some(binding) = plan.binding.as_ref().filter(|_| recorded) {
            let ranks = bindings::ranks(binding).into_iter();
            let ranks = ranks.map(|(rank, cpus)| (self.jobs.global(number, rank), cpus));
            let ranks = ranks.collect();
            let topology = binding.topology.summary();
            self.report(StepToLauncher::Bound { topology, ranks });
        }
    }

    fn shared(
        &self,
        number: JobIndex,
        job: &LocalJob,
        surroundings: &InheritedState,
    ) -> Result<Arc<StartShared>, CommandError> {
        let plan = job.plan();
        let null = rustix::fs::open(
            "/dev/null",
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(|errno| CommandError::system("/dev/null", errno))?;
        let stdin = std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| CommandError::system("standard input", error))?;
        let own_name = self.namespaces.is_some();
        let host_env = |node: NodeId| job.env(self.scope.index(node));
        let here = || self.scope.nodes(self.jobs.nodes());
        let node_env: Vec<Vec<CString>> = here()
            .map(|node| {
                let directories = job.directories.get(self.scope.index(node));
                rank_env::node_variables(plan, node, host_env(node), directories, own_name)
            })
            .collect();
        let mut env = rank_env::job_variables(plan);
        env.extend(rank_env::spawned_variable(number));
        // Every rank has the same names.
        let first = here().next().unwrap_or_default();
        let rank_env = rank_env::rank_variables(plan, number, Rank(0), host_env(first));
        let tmpdir = rank_env::tmpdir(Path::new("/"));
        let all = env.iter().chain(node_env.iter().flatten());
        let own = rank_env::names(all.chain(&rank_env).chain(&tmpdir));
        let inside = plan
            .container_root
            .as_ref()
            .map(|inside| Arc::clone(&inside.view));
        // A directory that was only inherited may be closed to this user: it cannot be entered again.
        let can_enter =
            || access::check(&plan.inheritance.cwd, rustix::fs::Access::EXEC_OK).is_ok();
        let hosts = || self.namespaces.as_ref()?.hosts().ok().map(Arc::clone);
        let hosts = || hosts().filter(|_| can_enter());
        let view = inside.or_else(hosts);
        let mut apps = (0..)
            .map(AppNum)
            .take(plan.apps.len())
            .map(|app| app_exec(plan, app, &own, surroundings.nofile))
            .collect::<Result<Vec<_>, _>>()?;
        if view.is_some() {
            // Who joins other mounts is at their root.
            let here = CString::new(plan.inheritance.cwd.as_os_str().as_bytes());
            let here =
                here.map_err(|error| CommandError::system("the current directory", error))?;
            for app in &mut apps {
                app.cwd.get_or_insert_with(|| here.clone());
            }
        }
        Ok(Arc::new(StartShared {
            apps,
            env,
            node_env,
            view,
            namespaces: self.namespaces.clone(),
            group: self.cgroup.clone(),
            oom_score: out_of_memory::rank_score(),
            reset_signals: self.signals_to_reset(surroundings),
            null,
            stdin,
            kept_from: descriptors::lowest_rank_fd(self.ranks.len()),
        }))
    }

    /// What ranks reset. Where they outlive each other they go on ignoring SIGPIPE, which would kill those
    /// that write to one that has died: Open MPI's sockets raise it.
    fn signals_to_reset(&self, surroundings: &InheritedState) -> Vec<i32> {
        let mut signals = surroundings.signals_to_reset();
        if self.plan.spec.ending.on_failure == FailurePolicy::Continue {
            signals.retain(|signal| *signal != libc::SIGPIPE);
        }
        signals
    }

    fn rank_plans(&self, number: JobIndex, io: RankIo) -> Vec<RankPlan> {
        let job = self.jobs.get(number).expect("only known jobs are started");
        let plan = job.plan();
        let processes = self.scope.processes_of(&self.jobs, number).into_iter();
        processes
            .zip(io.outputs.into_iter().zip(io.stdin))
            .map(|(process, (output, stdin))| {
                let known = self.look_up(process);
                let (rank, node) = (known.rank(), self.scope.index(known.node()));
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

    /// Tells the launcher once that every sidecar is ready to have its ranks started.
    pub(super) fn check_ready(&mut self) {
        let known = |env: &Option<_>| env.is_some();
        let any_sidecar = self.nodes.iter().any(|node| node.sidecar.is_some());
        if !self.ready_reported && (!any_sidecar || self.jobs.first().envs.iter().all(known)) {
            self.ready_reported = true;
            self.report(StepToLauncher::Ready);
        }
    }

    /// Nodes whose PMIx server is not ready.
    pub(crate) fn late_hosts(&self) -> Vec<NodeId> {
        let late = |index: &usize| {
            let node = &self.nodes[*index];
            node.sidecar.is_some() && self.jobs.first().envs[*index].is_none()
        };
        let late = (0..self.nodes.len()).filter(late);
        late.map(|index| self.scope.node_at(index)).collect()
    }
}

impl RankIo {
    /// For ranks that print into pipes; those that read standard input do it as given.
    pub(crate) fn new(outputs: Vec<OutputPlan>, stdin: Vec<StdinPlan>) -> Self {
        Self { outputs, stdin }
    }
}
