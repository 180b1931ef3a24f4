//! Plans of spawned jobs, on one machine and on several hosts.
//!
//! ```text
//!  launcher        SpawnPlanner::plan ─ SpawnedJobPlan ──┐
//!  each node       SpawnedJobPlan::resolve ◀─────────────┘
//! ```
//! A spawned job has the nodes, the interfaces and the settings of the initial job; the launcher sends only the
//! differences. A node makes a [`JobPlan`](super::JobPlan) and a
//! [`JobSpec`](wireup_core::job::spec::JobSpec) from them, and resolves these as those of the initial job.

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
use crate::plan::allocation_table::SlotUsage;
use crate::plan::hostfile;
use crate::plan::job_names::JobNames;
use crate::plan::placed_job::PlacedJob;
use crate::plan::planned_jobs::Jobs;
use crate::plan::reasons::CountReason;
use wireup_core::failure::CommandError;
use wireup_core::job::appnums::Appnums;
use wireup_core::job::env_change::{EnvChange, EnvChangeKind};
use wireup_core::job::hosts::{HERE, HostEntry};
use wireup_core::job::ids::{AppNum, GlobalRank, NodeId, Nspace, Rank};
use wireup_core::job::pset::ProcessSet;
use wireup_core::job::rankfile::{Rankfile, RankfileCpus};
use wireup_core::job::spawn::{SpawnApp, SpawnFailure, SpawnFailureKind, SpawnRequest};
use wireup_core::job::spec::{
    AppRequest, BindingSpec, ContainerSpec, LayoutRuns, StagingSpec, StdinTarget,
};
use wireup_core::node::JobContext;
use wireup_core::placement::{
    AppPlacement, LaunchNodes, NodeCapacity, PlacementError, PlacementRequest,
};

/// Processes, slots and jobs of a launch when a job is spawned.
#[derive(Clone, Copy, Debug)]
pub struct LaunchSnapshot<'a> {
    /// First global rank of the new job: the number of processes so far, exited ones included.
    pub offset: GlobalRank,
    /// Number of processes on each node so far, exited ones included.
    pub before: &'a [u32],
    /// By node: processes that run or are starting, and reserved slots.
    pub ground: SlotUsage<'a>,
    /// Names of the launch's jobs.
    pub names: &'a JobNames,
    pub jobs: &'a Jobs,
}

/// Launcher's plan of a spawned job, from which a node makes its own with the plan of the initial job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnedJobPlan {
    /// Description of the job for the nodes' state machines.
    pub job: Arc<JobContext>,
    /// Whether the job may outlive its parent, if the requester set it.
    pub independent: Option<bool>,
    /// Timeout of the job's start, if the requester set it.
    pub limit: Option<Duration>,
    /// Ignored keys of infos, for `-v`.
    pub ignored: Vec<String>,
    /// Allocation in which the job runs.
    pub allocation: Option<String>,
    /// Ranks that read the standard input that other processes push to the job.
    input: StdinTarget,
    origin: SpawnOrigin,
    binding: BindingSpec,
    /// Application contexts as the requester asked for them.
    requests: Vec<AppRequest>,
    app_plans: Vec<AppPlan>,
    /// Staged files of each application after they were packed; empty if no application has any.
    pub(crate) staged_files: Vec<StagedFiles>,
    /// Container that is made for the job's ranks; `None` if they run where those of the launch do.
    pub(crate) container: Option<ContainerSpec>,
    /// Name under which nodes have been prepared for the job, if they have.
    pub(crate) prepared_as: Option<Nspace>,
    /// Whether any node has more processes than slots.
    oversubscribed: bool,
    oversubscribe: bool,
}

fn refuse(kind: SpawnFailureKind, text: impl Display) -> SpawnFailure {
    SpawnFailure {
        kind,
        text: text.to_string(),
    }
}

/// Refusal of a spawn whose ranks cannot be placed.
fn not_placed(error: PlacementError) -> SpawnFailure {
    let kind = match error {
        PlacementError::NoSoftCount => SpawnFailureKind::BadRequest,
        _ => SpawnFailureKind::NoSlots,
    };
    refuse(kind, error)
}

/// Refusal of a spawn because of an info.
fn text(key: &str, problem: impl Display) -> SpawnFailure {
    refuse(
        SpawnFailureKind::BadRequest,
        format!("info key {key}: {problem}"),
    )
}

/// Plans spawned jobs of a launch, in the launcher.
#[derive(Clone, Copy, Debug)]
pub struct SpawnPlanner<'a> {
    /// Launcher's plan of the initial job.
    initial: &'a HostPlan,
}

impl<'a> SpawnPlanner<'a> {
    pub fn new(initial: &'a HostPlan) -> Self {
        Self { initial }
    }

    /// Plans a spawned job.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the reason and the remedy.
    pub fn plan(
        &self,
        requester: RequesterPlan<'_>,
        request: &SpawnRequest,
        standing: LaunchSnapshot<'_>,
    ) -> Result<SpawnedJobPlan, SpawnFailure> {
        let job = SpawnAttributes::from_infos(&request.infos)?;
        let base = requester.base();
        let names = self.names(requester.node());
        let mut app_requests = Vec::with_capacity(request.apps.len());
        let mut ignored = job.ignored.clone();
        if !matches!(requester, RequesterPlan::Tool(..)) {
            job.forwards_to_no_rank(&mut ignored)?;
        }
        for app in &request.apps {
            let template = self.template_app(requester, app);
            let wishes = SpawnAttributes::from_app_infos(&request.infos, &app.infos, template)?;
            ignored.extend_from_slice(&wishes.ignored);
            let cwd = self.directory(base, app);
            let placement = self.placement_request(app, &wishes, names, &cwd)?;
            app_requests.push((app, wishes, placement));
        }
        let allocation = allocation(&app_requests)?;
        let layout = self.job_layout(base, &app_requests)?;
        let binding = self.binding_of(&job, &app_requests, layout.cpus)?;
        let container = self.container_of(&app_requests)?;
        let launch = self.nodes_for_spawn(&standing, allocation.as_deref(), &mut app_requests)?;
        let daemons = match job.is_debugger() {
            true => debugger::daemon_placement(&job, standing.jobs, &mut app_requests)?,
            false => None,
        };
        let empty = |app: &SpawnApp| app.count == 0 && daemons.is_none();
        if request.apps.is_empty() || request.apps.iter().any(empty) {
            let problem = "a spawn must request at least one program, and at least one process of each program";
            return Err(refuse(SpawnFailureKind::BadRequest, problem));
        }
        let counts = || app_requests.iter().map(|(app, ..)| app.count);
        let placements = || app_requests.iter().map(|(.., placement)| placement);
        let oversubscribe = placements().any(|placement| placement.oversubscribe);
        let placement_request = match (&daemons, layout.runs) {
            (Some(daemons), _) => PlacementRequest::Daemons(daemons),
            (None, Some(runs)) => {
                self.check_layout(&runs, &launch)?;
                PlacementRequest::Runs {
                    size: counts().map(u64::from).sum(),
                    runs,
                    oversubscribe,
                    even: false,
                }
            }
            (None, None) => PlacementRequest::Apps(placements().collect()),
        };
        let (layout, map) = (&self.initial.spec.layout, &self.initial.job.process_map);
        let placed = PlacedJob::new(
            &placement_request,
            counts().collect(),
            &launch,
            layout,
            Some(map),
        );
        let PlacedJob {
            sizes,
            process_map,
            oversubscribed,
            universe: (universe_size, unlimited),
        } = placed.map_err(not_placed)?;
        let debug = debugger::debugged(&job, &app_requests, &sizes)?;
        // Daemons of a debugger mostly sleep, so they do not oversubscribe a node.
        let oversubscribed = !debug.daemons && oversubscribed;
        let size: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
        let input = job.input();
        if let StdinTarget::Rank(Rank(reader)) = input
            && u64::from(reader) >= size
        {
            let problem = format!("no rank {reader}; the job has ranks 0 to {}", size - 1);
            return Err(text("pmix.stdin", problem));
        }
        let failed = |failure: CommandError| refuse(SpawnFailureKind::Failed, failure.to_string());
        let programs = app_requests
            .iter()
            .map(|(_, wishes, _)| wishes.set.as_deref());
        let psets = ProcessSet::from_programs(programs.zip(sizes.iter().copied()))
            .map_err(|error| text("pmix.pset.nm", error))?;
        let psets = with_rank_sets(psets, &app_requests, size)?;
        let context = JobContext {
            nspace: standing.names.fresh().map_err(failed)?,
            process_map,
            app_map: Appnums::from_sizes(sizes.iter().copied()),
            universe_size,
            unbounded_universe: unlimited,
            uid: self.initial.job.uid,
            psets,
            requester: requester.job_requester(&job),
            debug,
            first_global_rank: standing.offset,
            initial_kvs: request.preputs.clone(),
        };
        let mut requests = Vec::with_capacity(app_requests.len());
        let mut app_plans = Vec::with_capacity(app_requests.len());
        for ((app, wishes, _), size) in app_requests.iter().zip(sizes) {
            let request = self.app_request(app, wishes, size, container.as_ref())?;
            app_plans.push(AppPlan {
                count: CountReason::UserChoice,
                variables: self.selected_variables(base, &request, container.as_ref())?,
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
            container,
            prepared_as: None,
            oversubscribed,
            oversubscribe,
        })
    }

    /// Finds the nodes of the hosts that a process on the node `local_node` names, with the number of processes or slots
    /// that it names with each.
    ///
    /// # Errors
    /// [`SpawnFailure`] for a host that is not in the launch.
    pub fn nodes_named(
        &self,
        local_node: NodeId,
        entries: Vec<HostEntry>,
    ) -> Result<Vec<(NodeId, Option<u32>)>, SpawnFailure> {
        self.names(local_node).find("pmix.alloc.nlist", entries)
    }

    fn names(&self, here: NodeId) -> NodeNames<'a> {
        NodeNames {
            nodes: &self.initial.node_names,
            absent: &self.initial.absent,
            hostname: self.initial.single_host.as_deref(),
            requester_node: here,
        }
    }

    /// Base directory for relative paths of an application.
    fn directory(&self, base: AppNum, app: &SpawnApp) -> PathBuf {
        let first = self.initial.spec.apps.get(base.index());
        let first = first.and_then(|first| first.wdir.as_deref());
        let own = app
            .cwd
            .as_deref()
            .or(first)
            .unwrap_or_else(|| Path::new(""));
        self.initial.inheritance.cwd.join(own)
    }

    /// Binding of a job's ranks, which is the same for all its programs: that of the first program with infos about binding.
    fn binding_of(
        &self,
        job: &SpawnAttributes,
        app_requests: &[AppPlacementRequest<'_>],
        cpus: Option<Vec<Vec<RankfileCpus>>>,
    ) -> Result<BindingSpec, SpawnFailure> {
        if job.is_debugger() {
            return Ok(BindingSpec::default());
        }
        let has_binding =
            |wishes: &&SpawnAttributes| wishes.binding != BindingAttributes::default();
        let all = || app_requests.iter().map(|(_, wishes, _)| wishes);
        let Some(wishes) = all().find(has_binding).or_else(|| all().next()) else {
            return Ok(BindingSpec::default());
        };
        let map_by = wishes.map_by.unwrap_or_default();
        wishes
            .binding
            .spec(&self.initial.spec.binding, map_by, cpus)
    }

    /// Container of a job's ranks: that of the first program with infos about images.
    fn container_of(
        &self,
        app_requests: &[AppPlacementRequest<'_>],
    ) -> Result<Option<ContainerSpec>, SpawnFailure> {
        let mut images = app_requests.iter().map(|(_, wishes, _)| &wishes.images);
        let image_infos = images.find(|images| images.is_given());
        let spec = image_infos.map(|images| images.spec(&self.initial.spec.container));
        spec.transpose()
    }

    /// Layout of a job: that of the first program with infos about one.
    fn job_layout(
        &self,
        base: AppNum,
        app_requests: &[AppPlacementRequest<'_>],
    ) -> Result<JobLayout, SpawnFailure> {
        let has_layout =
            |wishes: &SpawnAttributes| wishes.layout.is_some() || wishes.rankfile.is_some();
        let Some((app, wishes, _)) = app_requests
            .iter()
            .find(|(_, wishes, _)| has_layout(wishes))
        else {
            return Ok(JobLayout::default());
        };
        let keys = app_requests.iter().find_map(|(_, other, _)| {
            let layout = (wishes.layout.is_some(), "layout");
            let candidates = [(wishes.rankfile.is_some(), "rankfile"), layout];
            let mut candidates = candidates.into_iter().chain(other.placement_keys());
            let mut next = || candidates.find_map(|(is_given, key)| is_given.then_some(key));
            Some((next()?, next()?))
        });
        if let Some((key, other)) = keys {
            let problem = format!("contradicts {other}; omit one of them");
            return Err(text(key, problem));
        }
        let Some(path) = &wishes.rankfile else {
            let runs = wishes.layout.clone().map(|LayoutRuns(runs)| runs);
            return Ok(JobLayout { runs, cpus: None });
        };
        let path = self.directory(base, app).join(path);
        let wrong =
            |problem: &dyn Display| text("rankfile", format!("{}: {problem}", path.display()));
        let bytes = hostfile::bytes(&path).map_err(|error| wrong(&error))?;
        let file = Rankfile::parse(&bytes).map_err(|error| wrong(&error))?;
        let counts = app_requests.iter().map(|(app, ..)| app.count);
        let size = counts.fold(0, u32::saturating_add);
        let names: Vec<&str> = self.initial.node_names.iter().map(String::as_str).collect();
        let here: &[&str] = if names.len() == 1 { &HERE } else { &[] };
        let runs = file
            .runs(size, &names, here)
            .map_err(|error| wrong(&error))?;
        Ok(JobLayout {
            runs: Some(runs),
            cpus: file.slots,
        })
    }

    /// Refuses a layout with nodes that have left, leave or could not join, or that allocations reserve.
    fn check_layout(
        &self,
        runs: &[(NodeId, u32)],
        launch: &LaunchNodes<'_>,
    ) -> Result<(), SpawnFailure> {
        let is_free = |node: &NodeId| {
            let offered = launch.offered.get(node.index());
            offered != Some(&NodeCapacity::NONE) && !self.initial.absent.contains(node)
        };
        let mut nodes = runs.iter().map(|(node, _)| node);
        match nodes.find(|node| !is_free(node)) {
            None => Ok(()),
            Some(node) => {
                let problem = format!(
                    "the layout has node {node}, which is not in the launch or reserved; omit it"
                );
                Err(refuse(SpawnFailureKind::NoSlots, problem))
            }
        }
    }

    /// Request to place an application's ranks, with the nodes on which they may run.
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
            true => self.initial.present().map(|node| (node, None)).collect(),
            false => names.find("host", entries)?,
        };
        if wishes.no_head {
            on.retain(|(node, _)| *node != NodeId(0));
        }
        if on.is_empty() {
            let problem = "no node except the head node; start the launch with more hosts";
            return Err(refuse(SpawnFailureKind::NoSlots, problem));
        }
        let oversubscribe = self.initial.spec.layout.oversubscribe;
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

    /// Settings of an application without infos: those of the initial job's program, and the MPI of the requester.
    fn template_app(&self, requester: RequesterPlan<'_>, app: &SpawnApp) -> AppRequest {
        let first = self.initial.spec.apps.get(requester.base().index());
        let first = first.cloned().unwrap_or_default();
        let program = std::iter::once(app.program.clone());
        AppRequest {
            wdir: app.cwd.clone().or(first.wdir),
            // A wrapper for some ranks is for ranks of the initial job alone.
            wrap: first.wrap.filter(|wrap| wrap.ranks.is_none()),
            argv: program.chain(app.args.iter().cloned()).collect(),
            preload: StagingSpec::default(),
            mpi: requester.mpi().cloned().unwrap_or(first.mpi),
            ..first
        }
    }

    /// Request for an application with its own settings and this number of ranks.
    fn app_request(
        &self,
        app: &SpawnApp,
        wishes: &SpawnAttributes,
        size: u32,
        container: Option<&ContainerSpec>,
    ) -> Result<AppRequest, SpawnFailure> {
        let mut request = wishes.app.clone();
        if request.preload.stage && request.preload.program {
            let problem = "contradicts preload_binary; omit one of them";
            return Err(text("stage", problem));
        }
        let image = &container.unwrap_or(&self.initial.spec.container).image;
        if request.preload.stage && image.is_some() {
            let problem = "ranks find their programs in the image, into which wireup copies no files; put the program \
                           into it, or mount its directory (image_mount)";
            return Err(text("stage", problem));
        }
        request.count = Some(size);
        if let Some(dir) = &wishes.wdir {
            request.wdir = Some(request.wdir.unwrap_or_default().join(dir));
        }
        for variable in &app.env {
            let problem = "invalid environment variable in the request: write NAME=VALUE";
            let change = EnvChange::parse(EnvChangeKind::Set, variable);
            let change = change.ok_or_else(|| refuse(SpawnFailureKind::BadRequest, problem))?;
            request.env_changes.push(change);
        }
        Ok(request)
    }

    /// Variables of an application that inherits others than the initial job's program, or that runs in a container of its
    /// own; `None` for other applications.
    fn selected_variables(
        &self,
        base: AppNum,
        spec: &AppRequest,
        container: Option<&ContainerSpec>,
    ) -> Result<Option<Vec<Variable>>, SpawnFailure> {
        let first = self.initial.spec.apps.get(base.index());
        let chosen = |app: &AppRequest| {
            (
                app.inherited.clone(),
                app.env_files.clone(),
                app.env.clone(),
            )
        };
        let has_same_choices = first.map(chosen) == Some(chosen(spec));
        if container.is_none() && has_same_choices {
            return Ok(None);
        }
        let in_image = container
            .unwrap_or(&self.initial.spec.container)
            .image
            .is_some();
        let mut unset = Vec::new();
        let variables = app_start::variables(spec, &self.initial.inheritance, in_image, &mut unset);
        let variables = variables.map_err(|error| text("env", error))?;
        match unset.first() {
            Some(problem) if !has_same_choices => Err(text("env", problem)),
            _ => Ok(Some(variables)),
        }
    }
}

/// Nodes and CPUs of a job's ranks, as far as the request names them.
#[derive(Default)]
struct JobLayout {
    runs: Option<Vec<(NodeId, u32)>>,
    cpus: Option<Vec<Vec<RankfileCpus>>>,
}

/// Adds the process sets that the request names for a job of this size.
fn with_rank_sets(
    mut psets: Vec<ProcessSet>,
    app_requests: &[AppPlacementRequest<'_>],
    size: u64,
) -> Result<Vec<ProcessSet>, SpawnFailure> {
    for set in app_requests
        .iter()
        .flat_map(|(_, wishes, _)| &wishes.rank_sets)
    {
        let (name, highest) = (set.name(), set.highest());
        if psets.contains(set) {
            // Infos of the whole job are repeated for each program.
            continue;
        }
        if psets.iter().any(|other| other.name() == name) {
            let problem = format!("two sets have the name {name:?}; rename one");
            return Err(text("pset", problem));
        }
        if u64::from(highest.0) >= size {
            let last = size - 1;
            let problem = format!("{name} contains rank {highest}; the job has ranks 0 to {last}");
            return Err(text("pset", problem));
        }
        psets.push(set.clone());
    }
    Ok(psets)
}

/// Application with its attributes and its placement request.
type AppPlacementRequest<'a> = (&'a SpawnApp, SpawnAttributes, AppPlacement);

/// Restricts applications whose requests name no hosts to some of the nodes.
fn restrict_to_nodes(
    app_requests: &mut [AppPlacementRequest<'_>],
    is_meant: impl Fn(&NodeId) -> bool,
) {
    for (_, wishes, placement) in app_requests {
        if !wishes.names_hosts() {
            placement.nodes.retain(|(node, _)| is_meant(node));
        }
    }
}

/// Allocation in which all applications must run, if they name one.
fn allocation(app_requests: &[AppPlacementRequest<'_>]) -> Result<Option<String>, SpawnFailure> {
    let mut named = app_requests.iter().map(|(_, wishes, _)| &wishes.allocation);
    let first = named.next().and_then(Option::as_deref);
    match named.all(|other| other.as_deref() == first) {
        true => Ok(first.map(str::to_owned)),
        false => Err(text(
            "pmix.alloc.id",
            "all programs of a job must name the same allocation",
        )),
    }
}

/// Reads the hosts of hostfiles.
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
