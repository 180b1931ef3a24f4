//! What a node makes of a spawned job, with its own plan of the first one.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::{SpawnedApp, SpawnedJob, refuse};
use crate::inspect::Wants;
use crate::plan::app_plan::{self, AppRanks, Stand, app_plan};
use crate::plan::inside::look;
use crate::plan::reasons::{CountWhy, Offer};
use crate::plan::resolve::Contradiction;
use crate::plan::size::SizeError;
use crate::plan::{App, Decided, Plan, host_binding, libpmix, pattern, size};
use wireup_core::job::ids::{AppNum, NodeId};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};
use wireup_core::job::spec::{DebugSpec, JobSpec};
use wireup_core::node::JobContext;

impl SpawnedJob {
    /// The decisions for all nodes of the launch, whose first job is that of `first`.
    pub fn decided(&self, first: &Decided) -> Decided {
        Decided {
            job: self.context(first),
            counts: vec![CountWhy::Given; self.apps.len()],
            node_names: first.node_names.clone(),
            absent: first.absent.clone(),
            offer: Offer {
                // A tool has a PMIx server, whatever the interface of the first job is.
                pmix: first.offer.pmix || self.job.tool.is_some(),
                ..first.offer.clone()
            },
            oversubscribed: self.oversubscribed,
            names: first.names.clone(),
            launcher: first.launcher.clone(),
            key: first.key.clone(),
            credential: first.credential.clone(),
            lease: None,
            origin: Some(self.origin.clone()),
            variables: Vec::new(),
        }
    }

    /// The job on all nodes of the launch: others may have joined since it was decided.
    fn context(&self, first: &Decided) -> Arc<JobContext> {
        let nodes = first.job.ranks.nodes();
        match self.job.ranks.nodes() == nodes {
            true => Arc::clone(&self.job),
            false => Arc::new(self.job.over(nodes)),
        }
    }

    /// The request, as the user would have given it for a first job. Input of the
    /// launcher stays with that; this job's comes from processes, if from anywhere.
    pub fn spec(&self, first: &JobSpec) -> JobSpec {
        let mut spec = first.clone();
        spec.apps = self.apps.iter().map(|app| app.spec.clone()).collect();
        spec.psets.clear();
        spec.layout.runs.clear();
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

    /// Makes the plan of one node, or of this machine as all nodes: searches for the files that its
    /// ranks need. `first` is the first job's plan there.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the reason and the remedy; on one of several hosts it names the host.
    pub fn resolve(&self, first: &Plan, node: Option<NodeId>) -> Result<Plan, SpawnFailure> {
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        self.resolve_within(first, node, limit)
            .map_err(|mut failure| {
                if let Some(name) = node.and_then(|node| first.node_names.get(node.index())) {
                    failure.text = format!("on {name}: {}", failure.text);
                }
                failure
            })
    }

    pub(super) fn resolve_within(
        &self,
        first: &Plan,
        node: Option<NodeId>,
        descriptors: u64,
    ) -> Result<Plan, SpawnFailure> {
        self.check(first, node)?;
        let mut decided = self.decided(&first.decided);
        let spec = self.spec(&first.spec);
        self.check_room(first, &spec, node, descriptors)?;
        if let Some(node) = node {
            decided.oversubscribed = first.slots.exceeded_by(self.processes_on(node));
        }
        let stand = |ranks: &Range<u32>| match node.is_none_or(|node| decided.has(node, ranks)) {
            true => Stand::Child,
            false => Stand::Bystander,
        };
        let apps = self.look(first, node, stand)?;
        self.check_server(first, node, &apps)?;
        let mut plan = self.plan(first, decided, spec, apps);
        let libpmix = libpmix(first.host.as_ref());
        plan.binding = host_binding::bind(&plan.spec, &plan.decided, node, Some(first), libpmix)
            .map_err(|error| refuse(SpawnFailureKind::NoSlots, error.to_string()))?;
        Ok(plan)
    }

    /// Refuses ranks that need a PMIx server where there is none.
    fn check_server(
        &self,
        first: &Plan,
        node: Option<NodeId>,
        apps: &[App],
    ) -> Result<(), SpawnFailure> {
        let here = node.is_some_and(|node| self.job.ranks.local_size(node) > 0);
        let need = !first.offer.pmi || apps.iter().any(|app| app.detected.wants == Wants::Pmix);
        match &first.without_host {
            Some(problem) if here && need => Err(refuse(SpawnFailureKind::NotSupported, problem)),
            _ => Ok(()),
        }
    }

    /// Makes the plan of a launcher with all ranks on other hosts: local findings are only for
    /// messages.
    ///
    /// # Errors
    /// [`SpawnFailure`] for what can run nowhere.
    pub fn seen(&self, first: &Plan) -> Result<Plan, SpawnFailure> {
        self.check(first, None)?;
        let apps = self.look(first, None, |_| Stand::Launcher)?;
        let (decided, spec) = (self.decided(&first.decided), self.spec(&first.spec));
        Ok(self.plan(first, decided, spec, apps))
    }

    /// Looks for what the ranks of the applications need.
    fn look(
        &self,
        first: &Plan,
        node: Option<NodeId>,
        stand: impl Fn(&Range<u32>) -> Stand,
    ) -> Result<Vec<App>, SpawnFailure> {
        let base = &first.apps[self.origin.base.index()];
        let mut apps = Vec::with_capacity(self.apps.len());
        for (number, app) in (0..).map(AppNum).zip(&self.apps) {
            let mut env = base.env[..base.common].to_vec();
            app.env.iter().for_each(|change| change.apply(&mut env));
            let ranks = self.job.appnums.ranks_of(number);
            let stand = stand(&ranks);
            look(first.inside.as_ref(), || Ok(app.check_files(first, stand)))
                .map_err(|failure| refuse(SpawnFailureKind::Failed, failure.to_string()))??;
            let ranks = AppRanks {
                ranks,
                count: CountWhy::Given,
            };
            let search = Some(app.search.as_slice());
            let mut spec = app.spec.clone();
            if let Some(program) = node.and_then(|node| self.brought(number, node)) {
                spec.argv[0] = program.into();
            }
            let in_image = first.spec.container.image.is_some();
            let inherited = &*first.inheritance;
            let looked = look(first.inside.as_ref(), move || {
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

    fn plan(&self, first: &Plan, decided: Decided, spec: JobSpec, apps: Vec<App>) -> Plan {
        Plan {
            decided,
            spec,
            inheritance: Arc::clone(&first.inheritance),
            apps,
            inside: first.inside.clone(),
            host: first.host.clone(),
            without_host: first.without_host.clone(),
            binding: None,
            slots: first.slots.clone(),
            notes: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Checks that a plan from a link is consistent.
    fn check(&self, first: &Plan, node: Option<NodeId>) -> Result<(), SpawnFailure> {
        let apps = u32::try_from(self.apps.len()).unwrap_or(u32::MAX);
        let nodes = first.job.ranks.nodes();
        let last = AppNum(apps.saturating_sub(1));
        let fits = apps > 0
            && self.job.appnums.ranks_of(last).end == self.job.ranks.size()
            && self.job.ranks.nodes() <= nodes
            && self.origin.base.index() < first.apps.len()
            && node.is_none_or(|node| node.0 < nodes);
        match fits {
            true => Ok(()),
            false => Err(refuse(SpawnFailureKind::Failed, Contradiction)),
        }
    }

    /// Living processes of a node once its ranks have been started.
    fn processes_on(&self, node: NodeId) -> u32 {
        let live = self.live.get(node.index()).copied().unwrap_or(0);
        live.saturating_add(self.job.ranks.local_size(node))
    }

    /// Refuses what the cores and descriptors here do not allow.
    fn check_room(
        &self,
        first: &Plan,
        spec: &JobSpec,
        node: Option<NodeId>,
        descriptors: u64,
    ) -> Result<(), SpawnFailure> {
        let full = |failure: SizeError| refuse(SpawnFailureKind::NoSlots, failure.to_string());
        match node {
            Some(node) if self.job.ranks.local_size(node) == 0 => Ok(()),
            Some(node) => {
                let processes = self.processes_on(node);
                size::check_node(spec, node, processes, &first.slots, descriptors).map_err(full)
            }
            None => {
                let nodes = self.job.ranks.node_ids();
                let processes = nodes.map(|node| self.processes_on(node)).sum();
                size::check_all_here(processes, descriptors).map_err(full)
            }
        }
    }
}

impl SpawnedApp {
    /// Refuses a directory and files that are not where its ranks start.
    fn check_files(&self, first: &Plan, stand: Stand) -> Result<(), SpawnFailure> {
        if stand != Stand::Child {
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
