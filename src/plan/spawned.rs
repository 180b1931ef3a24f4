//! Plans of spawned jobs, on one machine and on several hosts alike.
//!
//! ```text
//!  launcher        HostPlan::spawned ── SpawnedJobPlan ──┐
//!  each node       SpawnedJobPlan::resolve ◀─────────────┘
//! ```
//! A spawned job has the nodes, the interfaces and the settings of the job the user asked for; what
//! does not differ from that is not sent. A node makes a [`JobPlan`](super::JobPlan) and a
//! [`JobSpec`](wireup_core::job::spec::JobSpec) of it, and resolves these as those of every job.

mod debugger;
mod joining_hosts;
mod requester_plan;
pub(crate) mod spawn_infos;
mod spawn_nodes;
mod spawn_plan;
mod spawn_slots;
pub(crate) mod spawned_files;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use debugger::directed;
pub use requester_plan::RequesterPlan;
use serde::{Deserialize, Serialize};
use spawn_infos::{BindingAttributes, SpawnAttributes};
use spawn_nodes::NodeNames;

use super::{AppPlan, HostPlan, SpawnOrigin, StagedFiles, Variable, app_start};
use crate::failure::CommandError;
use crate::plan::allocation_table::SlotUsage;
use crate::plan::hostfile;
use crate::plan::job_names::JobNames;
use crate::plan::planned_jobs::Jobs;
use crate::plan::reasons::CountReason;
use wireup_core::job::appnums::Appnums;
use wireup_core::job::env_change::{EnvChange, EnvChangeKind};
use wireup_core::job::hosts::HostEntry;
use wireup_core::job::ids::{AppNum, GlobalRank, NodeId, Rank};
use wireup_core::job::pset::ProcessSet;
use wireup_core::job::spawn::{SpawnApp, SpawnFailure, SpawnFailureKind, SpawnRequest};
use wireup_core::job::spec::{AppRequest, BindingSpec, StagingSpec, StdinTarget};
use wireup_core::node::JobContext;
use wireup_core::placement::{AppPlacement, PlacementError, PlacementRequest, place, universe};

/// What there is in a launch when a job is added.
#[derive(Clone, Copy, Debug)]
pub struct LaunchSnapshot<'a> {
    /// The number of its processes, living or not.
    pub offset: GlobalRank,
    /// The same by node.
    pub before: &'a [u32],
    /// By node: processes that run or are starting, and reserved slots.
    pub ground: SlotUsage<'a>,
    /// The names of its jobs.
    pub names: &'a JobNames,
    /// These themselves.
    pub jobs: &'a Jobs,
}

/// A spawned job as the launcher decided it: with the first job's plan, a node makes its own of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnedJobPlan {
    /// What the nodes' state machines know.
    pub job: Arc<JobContext>,
    /// Whether it may outlive its parent, if the spawner set it.
    pub independent: Option<bool>,
    /// How long its start may take, if the spawner said.
    pub limit: Option<Duration>,
    /// Ignored keys of infos, for `-v`.
    pub ignored: Vec<String>,
    /// The allocation in which it runs.
    pub allocation: Option<String>,
    /// Which of its ranks read what processes push to them.
    input: StdinTarget,
    origin: SpawnOrigin,
    /// The binding of its ranks.
    binding: BindingSpec,
    /// The application contexts as they were asked for.
    requests: Vec<AppRequest>,
    app_plans: Vec<AppPlan>,
    /// The staged files of each application, once they are packed; nothing if there are none.
    pub(crate) staged_files: Vec<StagedFiles>,
    /// Some node has more processes than slots.
    oversubscribed: bool,
    oversubscribe: bool,
}

fn refuse(kind: SpawnFailureKind, text: impl Display) -> SpawnFailure {
    SpawnFailure {
        kind,
        text: text.to_string(),
    }
}

/// A placement that is not possible.
fn not_placed(error: PlacementError) -> SpawnFailure {
    let kind = match error {
        PlacementError::NoSoftCount => SpawnFailureKind::BadRequest,
        _ => SpawnFailureKind::NoSlots,
    };
    refuse(kind, error)
}

/// An info that makes no sense.
fn text(key: &str, problem: impl Display) -> SpawnFailure {
    refuse(
        SpawnFailureKind::BadRequest,
        format!("info key {key}: {problem}"),
    )
}

impl HostPlan {
    /// Plans a spawned job. `self` is the plan of the first job, as the launcher has it.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the reason and the remedy.
    pub fn spawned(
        &self,
        requester: RequesterPlan<'_>,
        request: &SpawnRequest,
        standing: LaunchSnapshot<'_>,
    ) -> Result<SpawnedJobPlan, SpawnFailure> {
        let job = SpawnAttributes::from_infos(&request.infos)?;
        let base = requester.base();
        let names = self.names(requester.node());
        let mut asked = Vec::with_capacity(request.apps.len());
        let mut ignored = job.ignored.clone();
        if matches!(requester, RequesterPlan::Rank(..)) {
            job.forwards_to_no_rank(&mut ignored)?;
        }
        for app in &request.apps {
            let template = self.template_app(base, app);
            let wishes = SpawnAttributes::from_app_infos(&request.infos, &app.infos, template)?;
            ignored.extend_from_slice(&wishes.ignored);
            let cwd = self.directory(base, app);
            let wanted = self.placement_request(app, &wishes, names, &cwd)?;
            asked.push((app, wishes, wanted));
        }
        let allocation = allocation(&asked)?;
        let binding = self.binding_of(&job, &asked)?;
        let launch = self.nodes_for_spawn(&standing, allocation.as_deref(), &mut asked)?;
        let daemons = match job.is_debugger() {
            true => debugger::daemon_placement(&job, standing.jobs, &mut asked)?,
            false => None,
        };
        let empty = |app: &SpawnApp| app.count == 0 && daemons.is_none();
        if request.apps.is_empty() || request.apps.iter().any(empty) {
            let problem = "every job has a program, and every program a process";
            return Err(refuse(SpawnFailureKind::BadRequest, problem));
        }
        let placement_request = match &daemons {
            Some(daemons) => PlacementRequest::Daemons(daemons),
            None => PlacementRequest::Apps(asked.iter().map(|(.., wanted)| wanted).collect()),
        };
        let placement = place(&placement_request, &launch).map_err(not_placed)?;
        let sizes = placement.sizes.clone();
        let debug = debugger::debugged(&job, &asked, &sizes)?;
        // Daemons of a debugger mostly sleep.
        let oversubscribed = !debug.daemons && placement.oversubscribed;
        let size: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
        let input = job.input();
        if let StdinTarget::Rank(Rank(reader)) = input
            && u64::from(reader) >= size
        {
            let problem = format!(
                "rank {reader} shall read, and the ranks are 0 to {}",
                size - 1
            );
            return Err(text("pmix.stdin", problem));
        }
        let failed = |failure: CommandError| refuse(SpawnFailureKind::Failed, failure.to_string());
        let programs = asked.iter().map(|(_, wishes, _)| wishes.set.as_deref());
        let psets = ProcessSet::from_programs(programs.zip(sizes.iter().copied()))
            .map_err(|error| text("pmix.pset.nm", error.to_string()))?;
        let (universe_size, unlimited) = universe(
            &launch.nodes,
            &self.job.process_map,
            self.spec.layout.oversubscribe,
        );
        let context = JobContext {
            nspace: standing.names.fresh().map_err(failed)?,
            process_map: placement.process_map(self.job.process_map.nodes()),
            app_map: Appnums::from_sizes(sizes.iter().copied()),
            universe_size,
            unbounded_universe: unlimited,
            uid: self.job.uid,
            psets,
            parent: requester.parent(),
            parent_tool: requester.tool(&job),
            debug,
            first_global_rank: standing.offset,
            initial_kvs: request.preputs.clone(),
        };
        let mut requests = Vec::with_capacity(asked.len());
        let mut app_plans = Vec::with_capacity(asked.len());
        for ((app, wishes, _), size) in asked.iter().zip(sizes) {
            let request = app_request(app, wishes, size)?;
            app_plans.push(AppPlan {
                count: CountReason::Given,
                variables: self.selected_variables(base, &request)?,
            });
            requests.push(request);
        }
        Ok(SpawnedJobPlan {
            job: Arc::new(context),
            independent: job.independent,
            limit: job.limit,
            ignored,
            allocation,
            input,
            origin: SpawnOrigin {
                template_app: base,
                earlier_processes: standing.before.to_vec(),
                living_processes: standing.ground.live.to_vec(),
            },
            binding,
            requests,
            app_plans,
            staged_files: Vec::new(),
            oversubscribed,
            oversubscribe: asked.iter().any(|(.., wanted)| wanted.oversubscribe),
        })
    }

    /// The nodes of hosts that a process on the node `here` names, and how many processes or slots it
    /// names with each.
    ///
    /// # Errors
    /// [`SpawnFailure`] for a host that is no node of the launch.
    pub fn nodes_named(
        &self,
        local_node: NodeId,
        entries: Vec<HostEntry>,
    ) -> Result<Vec<(NodeId, Option<u32>)>, SpawnFailure> {
        self.names(local_node).find("pmix.alloc.nlist", entries)
    }

    fn names(&self, here: NodeId) -> NodeNames<'_> {
        NodeNames {
            nodes: &self.node_names,
            absent: &self.absent,
            hostname: self.single_host.as_deref(),
            requester_node: here,
        }
    }

    /// The base directory for relative paths of an application.
    fn directory(&self, base: AppNum, app: &SpawnApp) -> PathBuf {
        let first = self.spec.apps.get(base.index());
        let first = first.and_then(|first| first.wdir.as_deref());
        let own = app
            .cwd
            .as_deref()
            .or(first)
            .unwrap_or_else(|| Path::new(""));
        self.inheritance.cwd.join(own)
    }

    /// The binding of a job's ranks, which is the same for all its programs: what the first says that says anything.
    fn binding_of(
        &self,
        job: &SpawnAttributes,
        asked: &[(&SpawnApp, SpawnAttributes, AppPlacement)],
    ) -> Result<BindingSpec, SpawnFailure> {
        if job.is_debugger() {
            return Ok(BindingSpec::default());
        }
        let says = |wishes: &&SpawnAttributes| wishes.binding != BindingAttributes::default();
        let all = || asked.iter().map(|(_, wishes, _)| wishes);
        let Some(wishes) = all().find(says).or_else(|| all().next()) else {
            return Ok(BindingSpec::default());
        };
        let by = wishes.map_by.unwrap_or_default();
        wishes.binding.spec(&self.spec.binding, by)
    }

    /// The nodes on which an application's ranks may run.
    fn placement_request(
        &self,
        app: &SpawnApp,
        wishes: &SpawnAttributes,
        names: NodeNames<'_>,
        cwd: &Path,
    ) -> Result<AppPlacement, SpawnFailure> {
        let mut entries = wishes.hosts.clone();
        entries.extend(hostfiles(&wishes.hostfiles, cwd)?);
        let mut on: Vec<_> = match entries.is_empty() {
            true => self.present().map(|node| (node, None)).collect(),
            false => names.find("host", entries)?,
        };
        if wishes.no_head {
            on.retain(|(node, _)| *node != NodeId(0));
        }
        if on.is_empty() {
            let problem = "no node is left beside the head node; start the launch with more hosts";
            return Err(refuse(SpawnFailureKind::NoSlots, problem));
        }
        let oversubscribe = self.spec.layout.oversubscribe;
        Ok(AppPlacement {
            count: app.count,
            soft: wishes.soft.clone(),
            nodes: on,
            map_by: wishes.map_by.unwrap_or_default(),
            per_node: wishes.per_node,
            oversubscribe: wishes.oversubscribe.unwrap_or(oversubscribe),
            even: false,
        })
    }

    /// The settings of an application without infos: those of the initial job's program.
    fn template_app(&self, base: AppNum, app: &SpawnApp) -> AppRequest {
        let first = self.spec.apps.get(base.index());
        let first = first.cloned().unwrap_or_default();
        let program = std::iter::once(app.program.clone());
        AppRequest {
            wdir: app.cwd.clone().or(first.wdir),
            // A wrapper for some ranks is for those of that job.
            wrap: first.wrap.filter(|wrap| wrap.ranks.is_none()),
            argv: program.chain(app.args.iter().cloned()).collect(),
            preload: StagingSpec::default(),
            ..first
        }
    }

    /// The variables of an application that inherits others than the initial job's program.
    fn selected_variables(
        &self,
        base: AppNum,
        spec: &AppRequest,
    ) -> Result<Option<Vec<Variable>>, SpawnFailure> {
        let first = self.spec.apps.get(base.index());
        let chosen = |app: &AppRequest| {
            (
                app.inherited.clone(),
                app.env_files.clone(),
                app.env.clone(),
            )
        };
        if first.map(chosen) == Some(chosen(spec)) {
            return Ok(None);
        }
        let across = self.spec.layout.across_hosts();
        let in_image = self.spec.container.image.is_some();
        let mut unset = Vec::new();
        let variables = app_start::variables(spec, &self.inheritance, across, in_image, &mut unset);
        let variables = variables.map_err(|error| text("env", error))?;
        match unset.first() {
            Some(problem) => Err(text("env", problem)),
            None => Ok(Some(variables)),
        }
    }
}

/// An application with its request and its nodes.
type AppPlacementRequest<'a> = (&'a SpawnApp, SpawnAttributes, AppPlacement);

/// An application with its own settings and this number of ranks.
fn app_request(
    app: &SpawnApp,
    wishes: &SpawnAttributes,
    size: u32,
) -> Result<AppRequest, SpawnFailure> {
    let mut request = wishes.app.clone();
    request.count = Some(size);
    if let Some(dir) = &wishes.wdir {
        request.wdir = Some(request.wdir.unwrap_or_default().join(dir));
    }
    for variable in &app.env {
        let problem = "a variable of the request is none; it is written NAME=VALUE";
        let change = EnvChange::parse(EnvChangeKind::Set, variable);
        let change = change.ok_or_else(|| refuse(SpawnFailureKind::BadRequest, problem))?;
        request.env_changes.push(change);
    }
    Ok(request)
}

/// The allocation in which all applications must run, if there is one.
fn allocation(asked: &[AppPlacementRequest<'_>]) -> Result<Option<String>, SpawnFailure> {
    let mut named = asked.iter().map(|(_, wishes, _)| &wishes.allocation);
    let first = named.next().and_then(Option::as_deref);
    match named.all(|other| other.as_deref() == first) {
        true => Ok(first.map(str::to_owned)),
        false => Err(text("pmix.alloc.id", "a job is in one allocation")),
    }
}

/// The hosts of files.
fn hostfiles(paths: &[PathBuf], cwd: &Path) -> Result<Vec<HostEntry>, SpawnFailure> {
    let mut entries = Vec::new();
    for path in paths {
        let read = hostfile::read(&cwd.join(path));
        entries.extend(read.map_err(|error| text("hostfile", error.to_string()))?);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests;
