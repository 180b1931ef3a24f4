//! Spawned jobs on this host.
//!
//! Every backend is notified of every job, in the same order, even if it has none of its ranks, so job indexes are equal
//! on all hosts. It finally always reports that the job is started, after it has reported the ranks that are not.

use std::sync::Arc;

use rustix::process::Signal;

use super::dispatch::StepDispatcher;
use super::local_job::LocalJob;
use super::process_signals::signal_ranks;
use super::rank_starts::RankIo;
use super::registered_resources::RegisteredResources;
use super::sidecars;
use super::step_context::StepContext;
use super::tool_files::show_to_tools;
use crate::backend::step_messages::StepToLauncher;
use crate::plan::packed_files::UnpackedFiles;
use crate::plan::rank_plans::register_request;
use crate::plan::{HostPlan, SpawnedJobPlan};
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};
use wireup_core::node::event::NodeEvent;
use wireup_core::node::{JobContext, LaunchFacts};
use wireup_core::pmix::sidecar_protocol::{ForkEnv, SidecarCommand};

fn failed(text: String) -> SpawnFailure {
    SpawnFailure {
        kind: SpawnFailureKind::Failed,
        text,
    }
}

/// Prepares a job on this host, before its ranks are started.
fn prepare_job(
    cx: &StepContext,
    plan: Arc<HostPlan>,
    ranks: u32,
) -> Result<(LocalJob, Vec<Vec<SidecarCommand>>), SpawnFailure> {
    let count = cx.nodes.len();
    let mut requests = vec![Vec::new(); count];
    let mut directories = Vec::new();
    let served = cx.nodes.iter().any(|node| node.sidecar.is_some());
    if let Some(directory) = cx.cleanup.directory.as_ref().filter(|_| served) {
        for (index, requests) in requests.iter_mut().enumerate() {
            let node = cx.scope.node_at(index);
            let node_directories = directory.node(node, &plan.job.nspace);
            let node_directories =
                node_directories.map_err(|error| failed(format!("its directories: {error}")))?;
            let others = cx.nodes[index].core.running_local_processes();
            let request = register_request(&plan, node, &others, &node_directories);
            requests.push(request.map_err(|error| failed(error.to_string()))?);
            directories.push(node_directories);
        }
    }
    let mut job = LocalJob::new(Arc::clone(&plan), ranks, count, directories);
    let here = plan
        .job
        .process_map
        .node_ids()
        .filter(|node| cx.scope.holds(*node));
    let here = here.flat_map(|node| plan.job.process_map.ranks_on(node));
    let mut here: Vec<_> = here.collect();
    here.sort_unstable();
    let io = RankIo::open(&plan, &here).map_err(|error| failed(error.to_string()))?;
    job.io = Some(io);
    Ok((job, requests))
}

impl StepDispatcher<'_> {
    /// Adds a spawned job with a plan for this host. Its ranks are started when the sidecars have registered it.
    pub(super) fn add_job(
        &mut self,
        spawned: &SpawnedJobPlan,
        plan: Result<Arc<HostPlan>, SpawnFailure>,
        staged_files: UnpackedFiles,
    ) {
        let ranks = self.cx.scope.size(&spawned.job.process_map);
        self.cx.ranks.grow(ranks);
        let facts = plan.as_ref().ok().cloned();
        let context = facts.as_ref().map_or(&spawned.job, |plan| &plan.job);
        let context = Arc::clone(context);
        let prepared = plan.and_then(|plan| prepare_job(self.cx, plan, ranks));
        let (job, requests, problem) = match prepared {
            Ok((mut job, requests)) => {
                job.staged_files = staged_files;
                job.container = spawned.prepared_as.clone().filter(|_| ranks > 0);
                (job, requests, None)
            }
            Err(failure) => {
                let job = LocalJob::refused(Arc::clone(&context));
                (job, vec![Vec::new(); self.cx.nodes.len()], Some(failure))
            }
        };
        if let Some(name) = &spawned.prepared_as
            && job.container.is_none()
        {
            // The job has no ranks on this host, or cannot run here.
            self.cx.cleanup.containers.remove(name);
        }
        let number = self.cx.jobs.add(job);
        for (index, requests) in requests.into_iter().enumerate() {
            self.add_to_core(index, &context, &requests);
            if let Some(facts) = &facts {
                let core = &mut self.cx.nodes[index].core;
                core.add_facts(number, Arc::clone(facts) as Arc<dyn LaunchFacts>);
            }
        }
        match problem {
            Some(failure) => self.refuse_job(number, failure),
            None => self.start_spawned(number),
        }
    }

    /// Notes a job without local ranks whose ranks have all ended.
    pub(super) fn add_past_job(&mut self, context: Arc<JobContext>) {
        let job = self.cx.jobs.add(LocalJob::refused(Arc::clone(&context)));
        for index in 0..self.cx.nodes.len() {
            self.add_to_core(index, &context, &[]);
        }
        self.job_over(job);
    }

    fn add_to_core(
        &mut self,
        index: usize,
        context: &Arc<JobContext>,
        requests: &[SidecarCommand],
    ) {
        let offered = self.cx.plan.offer.pmi;
        let added = self.with_core(index, |core| {
            core.add_job(Arc::clone(context), offered, requests)
        });
        added.expect("the PMI parameters of the initial job were valid");
    }

    /// Handles the registration of a job by a sidecar.
    pub(super) fn job_ready(&mut self, node: NodeId, number: JobIndex, env: ForkEnv) {
        let index = self.cx.scope.index(node);
        if number.is_initial() && index == 0 && self.cx.plan.offer.pmix {
            show_to_tools(self.cx, &env);
        }
        if let Some(job) = self.cx.jobs.get_mut(number) {
            job.envs[index] = Some(env);
        }
        match number.is_initial() {
            true => sidecars::check_ready(self.cx),
            false => self.start_spawned(number),
        }
    }

    /// Handles a sidecar's refusal of a spawned job.
    pub(super) fn job_refused(&mut self, node: NodeId, job: JobIndex, error: &str) {
        let name = self.cx.plan.node_name(node);
        let text = format!("the PMIx server of {name} cannot serve it: {error}");
        self.refuse_job(job, failed(text));
    }

    /// Refuses the jobs that wait for a lost sidecar, if it was started for tools. The loss of any other sidecar fails the
    /// launch.
    pub(super) fn refuse_unserved(&mut self, node: NodeId, error: &str) {
        if self.cx.plan.offer.pmix {
            return;
        }
        let index = self.cx.scope.index(node);
        let waits =
            |job: &LocalJob| job.io.is_some() && job.uses_pmix() && job.env(index).is_none();
        let jobs = self.cx.jobs.jobs().filter(|(_, job)| waits(job));
        let jobs: Vec<JobIndex> = jobs.map(|(number, _)| number).collect();
        for job in jobs {
            self.job_refused(node, job, error);
        }
    }

    /// Starts the ranks of a spawned job once every local sidecar has registered it.
    fn start_spawned(&mut self, number: JobIndex) {
        let served = self.cx.nodes.iter().any(|node| node.sidecar.is_some());
        let ending = self.cx.ending;
        let Some(job) = self.cx.jobs.get_mut(number) else {
            return;
        };
        let needed = served && job.uses_pmix();
        if needed && job.envs.iter().any(Option::is_none) || job.dropped {
            return;
        }
        let Some(io) = job.io.take() else { return };
        if ending {
            let text = "the launch is being ended".to_owned();
            let kind = SpawnFailureKind::Ending;
            return self.refuse_job(number, SpawnFailure { kind, text });
        }
        let surroundings = self.cx.inherited_state.clone();
        if let Err(failure) = self.start_job(number, io, &surroundings) {
            self.refuse_job(number, failed(failure.to_string()));
        }
    }

    /// Refuses a job: none of its local ranks is started.
    fn refuse_job(&mut self, number: JobIndex, failure: SpawnFailure) {
        self.cx.report(StepToLauncher::JobRefused {
            job: number,
            failure,
        });
        self.drop_job(number);
    }

    /// Handles the failure of a spawned job. Ranks that are being started are still reported.
    pub(super) fn drop_job(&mut self, number: JobIndex) {
        let Some(job) = self.cx.jobs.get_mut(number) else {
            return;
        };
        job.dropped = true;
        let processes = self.cx.scope.processes_of(&self.cx.jobs, number);
        let job = self.cx.jobs.get_mut(number).expect("looked at before");
        match &job.starter {
            Some(starter) => starter.stop(),
            None => {
                job.io = None;
                job.unreported = 0;
                let was_reported = std::mem::replace(&mut job.start_reported, true);
                for process in &processes {
                    if self.cx.slot(*process).is_planned() {
                        self.cx.slot_mut(*process).skip();
                        let (rank, cause) = (*process, None);
                        self.cx.report(StepToLauncher::NotStarted { rank, cause });
                    }
                }
                if !was_reported {
                    self.cx.report(StepToLauncher::AllStarted { job: number });
                }
            }
        }
        signal_ranks(self.cx, &processes, Signal::KILL);
    }

    /// Releases the resources of a spawned job, whose ranks have ended on all hosts.
    pub(super) fn job_over(&mut self, number: JobIndex) {
        self.end_pushed_input(number);
        for index in 0..self.cx.nodes.len() {
            self.handle_event(self.cx.scope.node_at(index), NodeEvent::JobOver(number));
        }
        let spawned = self
            .cx
            .jobs
            .get_mut(number)
            .filter(|_| !number.is_initial());
        let Some(job) = spawned else {
            return;
        };
        // A launch may have thousands of jobs, one after another.
        for env in job.envs.iter_mut().flatten() {
            *env = ForkEnv::default();
        }
        job.staged_files = UnpackedFiles::default();
        job.registered = RegisteredResources::default();
        if let Some(name) = job.container.take() {
            self.cx.cleanup.containers.remove(&name);
        }
        if let Some(directory) = &self.cx.cleanup.directory {
            directory.forget_ranks(number);
        }
        for directories in std::mem::take(&mut job.directories) {
            directories.forget();
        }
    }
}
