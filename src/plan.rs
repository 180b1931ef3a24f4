//! From what the user asked for to what will be done: programs found, slots counted, ranks
//! placed, interfaces chosen. Nothing has been started yet when a plan is refused.
//!
//! ```text
//!                  one machine                 several hosts
//!  launcher        HostPlan::new               HostPlan::new ── JobPlan, JobSpec, InheritedContext ──┐
//!  each node       (the same process)          HostPlan::resolve ◀───────────────────────────────────┘
//! ```
//! Both are [`JobPlan::complete`] in the end, for the nodes that the process serves ([`HostScope`]).
//!
//! An application is an [`AppRequest`](wireup_core::job::spec::AppRequest) as it was asked for, an [`AppPlan`] as the launcher
//! decided it for all nodes, and an [`AppStart`] as a node found it.
//!
//! The launcher makes the decisions that are the same on all nodes once: those for all jobs in a [`LaunchPlan`], to which
//! each [`JobPlan`] leads. Each node searches for
//! programs, libraries and limits itself; what the launcher of several hosts finds of these is only shown.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::inspect::DetectionResult;
use crate::inspect::program::Program;
use crate::inspect::sidecar_files::SidecarFiles;
use crate::plan::container_root::ContainerRoot;
use crate::plan::host_scope::HostScope;
use crate::plan::inherited_context::InheritedContext;
use crate::plan::machine_slots::SlotLimits;
use crate::plan::mpi_choice::ChosenMpi;
use crate::plan::pattern::PatternFields;
use crate::plan::reasons::{CountReason, InterfaceOffer};
use crate::plan::wrap::Wrapper;
use wireup_core::binding::HostBinding;
use wireup_core::fabric::grant::FabricGrant;
use wireup_core::fabric::grant_record::GrantRecord;
use wireup_core::job::ids::{AppNum, NodeId, Nspace, Rank};
use wireup_core::job::octets;
use wireup_core::job::pmix_credential::LaunchKey;
use wireup_core::job::spec::JobSpec;
use wireup_core::node::{HEAD, JobContext};
use wireup_sys::spawn::ProcessSettings;

pub mod allocation_table;
mod app_start;
pub mod batch_systems;
pub mod container_root;
pub(crate) mod content_store;
pub mod directory;
pub mod environment;
pub(crate) mod host_binding;
mod host_growth;
pub mod host_lookup;
mod host_plan;
pub(crate) mod host_scope;
pub mod hostfile;
mod impi_preload;
pub mod inherited_context;
mod interface_offer;
pub(crate) mod job_facts;
pub(crate) mod job_names;
mod job_plan;
pub mod launch_directives;
pub(crate) mod launch_names;
pub(crate) mod launch_nodes;
pub(crate) mod loaded_openmpi;
pub mod machine_slots;
mod mpi_choice;
mod node_grant;
pub(crate) mod offered_files;
pub(crate) mod packed_files;
pub mod pattern;
mod placed_job;
pub mod planned_jobs;
mod program_builds;
pub(crate) mod rank_count;
pub mod rank_env;
pub(crate) mod rank_plans;
pub mod reasons;
mod spawned;
pub(crate) mod staged_files;
pub mod transports;
pub mod wrap;

pub use environment::Variable;
pub(crate) use job_plan::placed;
pub use launch_names::{ALLOCATION, LAUNCH, LaunchNames, LauncherProcess};
pub use spawned::{LaunchSnapshot, RequesterPlan, SpawnedJobPlan};
pub(crate) use staged_files::StagedFiles;

/// One application context, ready to be started.
#[derive(Clone, Debug)]
pub struct AppStart {
    pub program: Program,
    /// The wrapper of its ranks.
    pub wrapper: Option<Wrapper>,
    /// Its arguments, program name not included.
    pub args: Vec<OsString>,
    pub size: u32,
    /// Where that number comes from.
    pub count: CountReason,
    /// Environment of its ranks, before wireup's own variables.
    pub env: Vec<Variable>,
    /// Environment without what was added or changed for this program.
    pub base_env: Vec<Variable>,
    /// The MPI that was chosen for it.
    pub mpi: Option<ChosenMpi>,
    /// Which of the variables that differ from rank to rank are among these.
    pub preset_rank_vars: Vec<&'static str>,
    /// Where it starts, if not where this process is.
    pub cwd: Option<PathBuf>,
    /// What looking at the program said.
    pub detected: DetectionResult,
    /// Settings of its ranks that the kernel keeps.
    pub settings: ProcessSettings,
}

/// The part of a plan that is the same for all jobs of a launch and on every node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// The job that the user asked for, whose name identifies the processes of all jobs to each machine.
    pub nspace: Nspace,
    /// Host name of each node.
    pub node_names: Vec<String>,
    /// The name of the machine that is all nodes, where one is; nodes that are hosts have machines of their own.
    pub single_host: Option<String>,
    /// Nodes that could not join. They have no step, and their names are meaningless.
    pub absent: BTreeSet<NodeId>,
    /// The names under which others know the launch.
    pub names: LaunchNames,
    /// Who leads the launch.
    pub launcher: LauncherProcess,
    /// The secret that signs credentials of its processes, if PMIx is offered.
    pub launch_key: Option<LaunchKey>,
    /// Credentials of the network, if ranks get any.
    pub fabric_grant: Option<Arc<FabricGrant>>,
    /// Record by which the credentials are revoked after the loss of the launcher.
    pub grant_record: Option<GrantRecord>,
}

/// Decisions about a job that hold on every node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobPlan {
    pub launch: Arc<LaunchPlan>,
    /// Description of the job for the nodes' state machines.
    pub job: Arc<JobContext>,
    /// The application contexts, in the order of [`JobSpec::apps`]. Empty once a node has resolved them.
    pub app_plans: Vec<AppPlan>,
    /// The offered interfaces, and the reason.
    pub offer: InterfaceOffer,
    /// Some node has more ranks than slots. A node that resolves it knows this of itself.
    pub oversubscribed: bool,
    /// Where a spawned job comes from; nothing for the job the user asked for.
    pub origin: Option<SpawnOrigin>,
}

impl Deref for JobPlan {
    type Target = LaunchPlan;

    fn deref(&self) -> &LaunchPlan {
        &self.launch
    }
}

/// One application context, as the launcher decided it for all nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AppPlan {
    /// The reason for its number of ranks.
    count: CountReason,
    /// Variables of its ranks, before those of a node and wireup's own. Those of the program that a spawned job takes its
    /// settings from ([`SpawnOrigin::template_app`]) if absent.
    #[serde(with = "octets")]
    variables: Option<Vec<Variable>>,
}

/// Where a spawned job comes from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnOrigin {
    /// The application context of that job whose settings apply to its ranks.
    pub template_app: AppNum,
    /// By node: processes of the jobs before it, living or not.
    pub earlier_processes: Vec<u32>,
    /// By node: those of them that live.
    pub living_processes: Vec<u32>,
}

/// A job, decided, and what this machine has for it.
#[derive(Clone, Debug)]
pub struct HostPlan {
    pub job_plan: JobPlan,
    /// The nodes whose ranks this process starts; nothing in a launcher of other hosts.
    pub(crate) scope: Option<HostScope>,
    /// The requested interfaces.
    pub spec: JobSpec,
    pub inheritance: Arc<InheritedContext>,
    /// Application contexts.
    pub apps: Vec<AppStart>,
    /// What the ranks here see, if they run in an image.
    pub container_root: Option<ContainerRoot>,
    /// What the sidecars need, when PMIx is offered and this process is to start them.
    pub sidecar_files: Option<SidecarFiles>,
    /// Why there is none, on a node whose ranks do not need it.
    pub sidecar_unavailable: Option<String>,
    /// The CPUs of the ranks here, if they are bound.
    pub binding: Option<Arc<HostBinding>>,
    /// What limits the number of ranks here.
    pub slots: SlotLimits,
    /// Remarks about the origin of the job's settings, for `-v`.
    pub notes: Vec<String>,
    /// What the user should know in any case.
    pub warnings: Vec<String>,
}

impl Deref for HostPlan {
    type Target = JobPlan;

    fn deref(&self) -> &JobPlan {
        &self.job_plan
    }
}

impl HostPlan {
    /// The name of a node. One that there is not has none; no report names one.
    pub fn node_name(&self, node: NodeId) -> &str {
        let name = self.node_names.get(node.index());
        name.map_or("", String::as_str)
    }

    /// What `%` patterns stand for in texts of a rank.
    pub fn fields(&self, rank: Rank) -> PatternFields<'_> {
        let node = self.job.process_map.node_of(rank).unwrap_or_default();
        PatternFields {
            rank,
            host: self.node_name(node),
            job: self.job.nspace.as_str(),
            node: node.0,
            local: self
                .job
                .process_map
                .local_rank(rank)
                .map_or(0, |local| local.0),
            stream: None,
        }
    }

    /// Whether ranks of a program have directories of their own.
    pub fn has_rank_directories(&self, app: usize) -> bool {
        self.spec.apps.get(app).is_some_and(|app| app.rank_tmpdir)
    }

    /// Index of the application context of a rank.
    pub fn app_of(&self, rank: Rank) -> usize {
        self.job.app_map.appnum_of(rank).index()
    }
}

impl LaunchPlan {
    /// The node whose step serves a node: one machine has one step for all the nodes that it is.
    pub fn serving_node(&self, node: NodeId) -> NodeId {
        self.single_host.as_ref().map_or(node, |_| HEAD)
    }

    /// Whether hosts can join the launch, which a launch on a machine alone does not provide for.
    pub fn can_grow(&self) -> bool {
        self.single_host.is_none()
    }
}

impl JobPlan {
    /// Mutable access to the plan of the launch; plans of other jobs keep theirs.
    pub(crate) fn launch_mut(&mut self) -> &mut LaunchPlan {
        Arc::make_mut(&mut self.launch)
    }

    /// Processes of earlier jobs on a node, or on all nodes, living or not.
    pub fn earlier_processes(&self, node: Option<NodeId>) -> u32 {
        let earlier = self.origin.as_ref().map(|origin| &origin.earlier_processes);
        let earlier = earlier.map_or(&[][..], Vec::as_slice);
        match node {
            Some(node) => earlier.get(node.index()).copied().unwrap_or(0),
            None => earlier.iter().sum(),
        }
    }

    /// Living processes of a node once the ranks of this job have been started.
    fn processes_on(&self, node: NodeId) -> u32 {
        let living = self.origin.as_ref().map(|origin| &origin.living_processes);
        let living = living.and_then(|living| living.get(node.index()).copied());
        let living = living.unwrap_or(0);
        living.saturating_add(self.job.process_map.local_size(node))
    }

    /// The application context of the first job whose settings apply to a rank, and to the jobs
    /// that it spawns.
    pub fn base_of(&self, rank: Rank) -> AppNum {
        match &self.origin {
            Some(origin) => origin.template_app,
            None => self.job.app_map.appnum_of(rank),
        }
    }
}

/// The sidecar's OpenPMIx library.
fn libpmix(host: Option<&SidecarFiles>) -> Option<&Path> {
    host.map(|host| host.libpmix.path.as_path())
}

#[cfg(test)]
pub(crate) mod tests;
