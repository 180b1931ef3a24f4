//! What a node makes of a spawned job, with its own plan of the first one.

use std::borrow::Cow;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::{SpawnedAppPlan, SpawnedJobPlan, refuse};
use crate::inspect::DetectedInterface;
use crate::plan::app_plan::{self, AppRanks, InspectionSite, app_plan};
use crate::plan::container_root::{ContainerRoot, run_in_root};
use crate::plan::host_plan::PlanMismatch;
use crate::plan::packed_files::Owner;
use crate::plan::rank_count::SizeError;
use crate::plan::reasons::{CountReason, InterfaceOffer};
use crate::plan::{AppPlan, HostPlan, JobPlan, host_binding, libpmix, pattern, rank_count};
use wireup_core::container;
use wireup_core::job::ids::{AppNum, NodeId};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};
use wireup_core::job::spec::{DebugSpec, JobSpec};
use wireup_core::node::JobContext;

impl SpawnedJobPlan {
    /// The decisions for all nodes of the launch, whose first job is that of `first`.
    pub fn decided(&self, first: &JobPlan) -> JobPlan {
        JobPlan {
            job: self.context(first),
            count_reasons: vec![CountReason::Given; self.apps.len()],
            node_names: first.node_names.clone(),
            absent: first.absent.clone(),
            offer: InterfaceOffer {
                // A tool has a PMIx server, whatever the interface of the first job is.
                pmix: first.offer.pmix || self.job.parent_tool.is_some(),
                ..first.offer.clone()
            },
            oversubscribed: self.oversubscribed,
            names: first.names.clone(),
            launcher: first.launcher.clone(),
            launch_key: first.launch_key.clone(),
            fabric_grant: first.fabric_grant.clone(),
            grant_record: None,
            origin: Some(self.origin.clone()),
            variables: Vec::new(),
        }
    }

    /// The job on all nodes of the launch: others may have joined since it was decided.
    fn context(&self, first: &JobPlan) -> Arc<JobContext> {
        let nodes = first.job.process_map.nodes();
        match self.job.process_map.nodes() == nodes {
            true => Arc::clone(&self.job),
            false => Arc::new(self.job.with_nodes(nodes)),
        }
    }

    /// The request, as the user would have given it for a first job. Input of the
    /// launcher stays with that; this job's comes from processes, if from anywhere.
    pub fn spec(&self, first: &JobSpec) -> JobSpec {
        let mut spec = first.clone();
        spec.apps = self.apps.iter().map(|app| app.spec.clone()).collect();
        spec.psets.clear();
        spec.layout.runs.clear();
        if let Some(container) = &self.container {
            spec.container.uenvs.extend_from_slice(&container.uenvs);
            spec.container.image = container.image.clone();
        }
        spec.binding = self.binding.clone();
        spec.layout.oversubscribe = self.oversubscribe;
        spec.stdio.pty = None;
        spec.impi = None;
        spec.debug = DebugSpec {
            stop_on_exec: self.job.debug.on_exec.clone(),
            stop_in_init: self.job.debug.in_init.clone(),
            ..DebugSpec::default()
        };
        spec.stdio.stdin = self.input;
        spec.stdio.output = spec.stdio.output.map(pattern::with_job);
        spec.notes.clear();
        spec
    }

    /// The nodes that have to be prepared for it: those of its ranks that may lack files, or on which a container is made for
    /// it. `plan` is the decided one.
    pub(crate) fn nodes_to_prepare(&self, plan: &JobPlan) -> Vec<NodeId> {
        match &self.container {
            None => plan.nodes_with_offers(&self.staged_files),
            Some(_) => {
                let map = &plan.job.process_map;
                map.node_ids()
                    .filter(|node| map.local_size(*node) > 0)
                    .collect()
            }
        }
    }

    /// Makes the plan of one node, or of this machine as all nodes: searches for the files that its
    /// ranks need. `first` is the first job's plan there, `inside` what the job's ranks see if they run in an image.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the reason and the remedy; on one of several hosts it names the host.
    pub fn resolve(
        &self,
        first: &HostPlan,
        node: Option<NodeId>,
        inside: Option<ContainerRoot>,
    ) -> Result<HostPlan, SpawnFailure> {
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        self.resolve_within(first, node, limit, inside)
            .map_err(|mut failure| {
                if let Some(name) = node.and_then(|node| first.node_names.get(node.index())) {
                    failure.text = format!("on {name}: {}", failure.text);
                }
                failure
            })
    }

    pub(super) fn resolve_within(
        &self,
        first: &HostPlan,
        node: Option<NodeId>,
        descriptors: u64,
        inside: Option<ContainerRoot>,
    ) -> Result<HostPlan, SpawnFailure> {
        self.check(first, node)?;
        let has_ranks = |node| self.job.process_map.local_size(node) > 0;
        if self.container.is_some() && inside.is_none() && node.is_none_or(has_ranks) {
            let problem = "the container of its ranks was not made, or is removed; spawn again";
            return Err(refuse(SpawnFailureKind::Failed, problem));
        }
        let mut decided = self.decided(&first.job_plan);
        let spec = self.spec(&first.spec);
        self.check_room(first, &spec, node, descriptors)?;
        if let Some(node) = node {
            decided.oversubscribed = first.slots.exceeded_by(self.processes_on(node));
        }
        let stand = |ranks: &Range<u32>| match node.is_none_or(|node| decided.has(node, ranks)) {
            true => InspectionSite::Child,
            false => InspectionSite::Bystander,
        };
        let apps = self.inspect_apps(first, node, stand, inside.as_ref())?;
        self.check_server(first, node, &apps)?;
        let mut plan = self.plan(first, decided, spec, apps);
        plan.container_root = inside;
        let libpmix = libpmix(first.sidecar_files.as_ref());
        plan.binding = host_binding::bind(&plan.spec, &plan.job_plan, node, Some(first), libpmix)
            .map_err(|error| refuse(SpawnFailureKind::NoSlots, error.to_string()))?;
        Ok(plan)
    }

    /// Refuses ranks that need a PMIx server where there is none.
    fn check_server(
        &self,
        first: &HostPlan,
        node: Option<NodeId>,
        apps: &[AppPlan],
    ) -> Result<(), SpawnFailure> {
        let here = node.is_some_and(|node| self.job.process_map.local_size(node) > 0);
        let need = !first.offer.pmi
            || apps
                .iter()
                .any(|app| app.detected.wants == DetectedInterface::Pmix);
        match &first.sidecar_unavailable {
            Some(problem) if here && need => Err(refuse(SpawnFailureKind::NotSupported, problem)),
            _ => Ok(()),
        }
    }

    /// Makes the plan of a launcher with all ranks on other hosts: local findings are only for
    /// messages.
    ///
    /// # Errors
    /// [`SpawnFailure`] for what can run nowhere.
    pub fn launcher_plan(&self, first: &HostPlan) -> Result<HostPlan, SpawnFailure> {
        self.check(first, None)?;
        let image = self
            .container
            .as_ref()
            .and_then(|container| container.image.as_ref());
        // What this machine has under the name of a program is not what ranks in an image find.
        let stand = match image {
            Some(_) => InspectionSite::Bystander,
            None => InspectionSite::Launcher,
        };
        let apps = self.inspect_apps(first, None, |_| stand, first.container_root.as_ref())?;
        let (decided, spec) = (self.decided(&first.job_plan), self.spec(&first.spec));
        Ok(self.plan(first, decided, spec, apps))
    }

    /// Looks for what the ranks of the applications need.
    fn inspect_apps(
        &self,
        first: &HostPlan,
        node: Option<NodeId>,
        stand: impl Fn(&Range<u32>) -> InspectionSite,
        inside: Option<&ContainerRoot>,
    ) -> Result<Vec<AppPlan>, SpawnFailure> {
        let own = self.container.as_ref();
        let in_image = own.unwrap_or(&first.spec.container).image.is_some();
        let base = &first.apps[self.origin.template_app.index()];
        let mut apps = Vec::with_capacity(self.apps.len());
        for (number, app) in (0..).map(AppNum).zip(&self.apps) {
            let mut env = match &app.variables {
                None => base.env[..base.common_env_len].to_vec(),
                Some(selected) => {
                    let mut env = selected.clone();
                    if node.is_some() {
                        first.inheritance.add_local(&app.spec, &mut env);
                    }
                    if let Some(inside) = inside.filter(|_| in_image) {
                        container::environment(&mut env, &inside.env);
                    }
                    env
                }
            };
            app.env.iter().for_each(|change| change.apply(&mut env));
            let ranks = self.job.app_map.ranks_of(number);
            let stand = stand(&ranks);
            run_in_root(inside, || Ok(app.check_files(first, stand)))
                .map_err(|failure| refuse(SpawnFailureKind::Failed, failure.to_string()))??;
            let ranks = AppRanks {
                ranks,
                count: CountReason::Given,
            };
            let search = Some(app.search.as_slice());
            let mut spec = Cow::Borrowed(&app.spec);
            if let Some((node, files)) = node.zip(self.staged_files.get(number.index())) {
                let owner = Owner {
                    job: &self.job.nspace,
                    node,
                    app: number,
                };
                files.apply(owner, &mut spec, &mut env);
            }
            let inherited = &*first.inheritance;
            let looked = run_in_root(inside, move || {
                app_plan(&spec, ranks, env, inherited, stand, in_image, search)
            });
            let (app, _) = looked.map_err(|failure| {
                let kind = match failure.code() {
                    127 => SpawnFailureKind::NotFound,
                    126 => SpawnFailureKind::NotExecutable,
                    _ => SpawnFailureKind::Failed,
                };
                refuse(kind, failure.to_string())
            })?;
            apps.push(app);
        }
        Ok(apps)
    }

    fn plan(
        &self,
        first: &HostPlan,
        decided: JobPlan,
        spec: JobSpec,
        apps: Vec<AppPlan>,
    ) -> HostPlan {
        HostPlan {
            job_plan: decided,
            spec,
            inheritance: Arc::clone(&first.inheritance),
            apps,
            container_root: None,
            sidecar_files: first.sidecar_files.clone(),
            sidecar_unavailable: first.sidecar_unavailable.clone(),
            binding: None,
            slots: first.slots.clone(),
            notes: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Checks that a plan from a link is consistent.
    fn check(&self, first: &HostPlan, node: Option<NodeId>) -> Result<(), SpawnFailure> {
        let apps = u32::try_from(self.apps.len()).unwrap_or(u32::MAX);
        let nodes = first.job.process_map.nodes();
        let last = AppNum(apps.saturating_sub(1));
        let fits = apps > 0
            && self.job.app_map.ranks_of(last).end == self.job.process_map.size()
            && self.job.process_map.nodes() <= nodes
            && self.origin.template_app.index() < first.apps.len()
            && node.is_none_or(|node| node.0 < nodes);
        match fits {
            true => Ok(()),
            false => Err(refuse(SpawnFailureKind::Failed, PlanMismatch)),
        }
    }

    /// Living processes of a node once its ranks have been started.
    fn processes_on(&self, node: NodeId) -> u32 {
        let live = self.live.get(node.index()).copied().unwrap_or(0);
        live.saturating_add(self.job.process_map.local_size(node))
    }

    /// Refuses what the cores and descriptors here do not allow.
    fn check_room(
        &self,
        first: &HostPlan,
        spec: &JobSpec,
        node: Option<NodeId>,
        descriptors: u64,
    ) -> Result<(), SpawnFailure> {
        let full = |failure: SizeError| refuse(SpawnFailureKind::NoSlots, failure.to_string());
        match node {
            Some(node) if self.job.process_map.local_size(node) == 0 => Ok(()),
            Some(node) => {
                let processes = self.processes_on(node);
                rank_count::check_node(spec, node, processes, &first.slots, descriptors)
                    .map_err(full)
            }
            None => {
                let nodes = self.job.process_map.node_ids();
                let processes = nodes.map(|node| self.processes_on(node)).sum();
                rank_count::check_all_here(processes, descriptors).map_err(full)
            }
        }
    }
}

impl SpawnedAppPlan {
    /// Refuses a directory and files that are not where its ranks start.
    fn check_files(&self, first: &HostPlan, stand: InspectionSite) -> Result<(), SpawnFailure> {
        if stand != InspectionSite::Child {
            return Ok(());
        }
        let entered = app_plan::working_directory(&self.spec, &first.inheritance, stand);
        let entered = entered
            .map_err(|failure| refuse(SpawnFailureKind::NotExecutable, failure.to_string()))?;
        let cwd = entered.as_deref().unwrap_or(&first.inheritance.cwd);
        // One that was brought along is there under its last name.
        let brought = |path: &PathBuf| path.file_name().is_some_and(|name| cwd.join(name).exists());
        let lost = |path: &&PathBuf| !cwd.join(path).exists() && !brought(path);
        match self.needs.iter().find(lost) {
            None => Ok(()),
            Some(path) => Err(refuse(
                SpawnFailureKind::NotSupported,
                format!(
                    "the file {} exists neither there nor where wireup runs; put it there",
                    cwd.join(path).display()
                ),
            )),
        }
    }
}
