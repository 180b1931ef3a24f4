//! Makes the plan of a job from the user's request: finds programs, counts slots, places ranks, chooses interfaces. No
//! process has been started when a plan is refused.
//!
//! ```text
//!                  one machine                 several hosts
//!  launcher        HostPlan::new               HostPlan::new ── JobPlan, JobSpec, InheritedContext ──┐
//!  each node       (the same process)          HostPlan::resolve ◀───────────────────────────────────┘
//! ```
//! Both end in [`JobPlan::complete`], for the nodes that the process serves ([`HostScope`]).
//!
//! An [`AppRequest`](wireup_core::job::spec::AppRequest) is an application as the user requested it, an [`AppPlan`] as the
//! launcher decided it for all nodes, and an [`AppStart`] as a node resolved it.
//!
//! The launcher makes the decisions that are the same on all nodes once; those for all jobs are in the [`LaunchPlan`], which
//! each [`JobPlan`] refers to. Each node searches for programs, libraries and limits itself. A launcher of several hosts
//! searches its own machine too, but only displays the findings.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::inspect::DetectionResult;
use crate::inspect::program::Program;
use crate::inspect::sidecar_files::SidecarFiles;
use crate::plan::container_root::ContainerRoot;
use crate::plan::host_scope::HostScope;
use crate::plan::inherited_context::InheritedContext;
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
use wireup_sys::machine_slots::SlotLimits;
use wireup_sys::spawn::ProcessSettings;

pub mod allocation_table;
mod app_start;
pub mod batch_systems;
pub mod container_root;
pub(crate) mod content_store;
pub mod directory;
pub mod environment;
pub(crate) mod host_binding;
pub(crate) mod host_growth;
mod host_plan;
pub(crate) mod host_scope;
pub mod hostfile;
mod impi_preload;
pub mod inherited_context;
pub(crate) mod interface_offer;
pub(crate) mod job_facts;
pub(crate) mod job_names;
mod job_plan;
pub mod launch_directives;
pub(crate) mod launch_names;
pub(crate) mod launch_nodes;
pub(crate) mod loaded_openmpi;
mod mpi_choice;
pub(crate) mod node_grant;
pub(crate) mod offered_files;
pub(crate) mod packed_files;
pub mod pattern;
mod placed_job;
pub mod planned_jobs;
pub(crate) mod program_builds;
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
pub use spawned::{LaunchSnapshot, RequesterPlan, SpawnPlanner, SpawnedJobPlan};
pub(crate) use staged_files::StagedFiles;

/// Application context, resolved and ready to be started.
#[derive(Clone, Debug)]
pub struct AppStart {
    pub program: Program,
    pub wrapper: Option<Wrapper>,
    /// Arguments of the program, without its name.
    pub args: Vec<OsString>,
    pub size: u32,
    /// Reason for the number of ranks.
    pub count: CountReason,
    /// Environment of the ranks, before wireup's own variables.
    pub env: Vec<Variable>,
    /// Environment without additions and changes for this program.
    pub base_env: Vec<Variable>,
    /// The MPI that `--mpi` chose.
    pub mpi: Option<ChosenMpi>,
    /// Variables in `env` that wireup would otherwise set for each rank; the user's values are kept.
    pub preset_rank_vars: Vec<&'static str>,
    /// Working directory; that of this process if absent.
    pub cwd: Option<PathBuf>,
    /// Interface and MPI that the inspection of the program found.
    pub detected: DetectionResult,
    /// Limits and other settings that the kernel keeps for each rank.
    pub settings: ProcessSettings,
}

/// Part of a plan that is the same for all jobs of a launch and on every node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// Name of the initial job, by which each machine identifies the processes of all jobs.
    pub nspace: Nspace,
    /// Host name of each node.
    pub node_names: Vec<String>,
    /// Host name of the machine if it is all nodes; `None` if nodes are hosts.
    pub single_host: Option<String>,
    /// Nodes that could not join or have left. They have no step daemon, and their hosts may have joined again.
    pub absent: BTreeSet<NodeId>,
    /// Names of the launch for schedulers and other programs.
    pub names: LaunchNames,
    /// Host and process of the launcher.
    pub launcher: LauncherProcess,
    /// Secret that signs PMIx credentials of the launch's processes, if PMIx is offered.
    pub launch_key: Option<LaunchKey>,
    /// Fabric grant of the launch, if its ranks use one.
    pub fabric_grant: Option<Arc<FabricGrant>>,
    /// Record by which the fabric grant is revoked after the loss of the launcher.
    pub grant_record: Option<GrantRecord>,
}

/// Plan of a job that is the same on all nodes. The launcher sends it to every step daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobPlan {
    pub launch: Arc<LaunchPlan>,
    /// Description of the job for the nodes' state machines.
    pub job: Arc<JobContext>,
    /// Application contexts, in the order of [`JobSpec::apps`]. Empty after a node has resolved them.
    pub app_plans: Vec<AppPlan>,
    /// Offered interfaces, and the reason.
    pub offer: InterfaceOffer,
    /// Whether any node has more ranks than slots; on a node that has resolved the plan, whether this node does.
    pub oversubscribed: bool,
    /// Parent's settings and earlier processes of a spawned job; `None` for the initial job.
    pub origin: Option<SpawnOrigin>,
}

impl Deref for JobPlan {
    type Target = LaunchPlan;

    fn deref(&self) -> &LaunchPlan {
        &self.launch
    }
}

/// Application context, as the launcher decided it for all nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AppPlan {
    /// Reason for the number of ranks.
    count: CountReason,
    /// Variables of the ranks, before those of a node and wireup's own. `None` in a spawned job that uses the variables of
    /// its [`template_app`](SpawnOrigin::template_app).
    #[serde(with = "octets")]
    variables: Option<Vec<Variable>>,
}

/// Template of a spawned job's settings, and the processes that existed before it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnOrigin {
    /// Application context of the initial job whose settings apply to the spawned ranks.
    pub template_app: AppNum,
    /// Number of processes of earlier jobs on each node, exited ones included.
    pub earlier_processes: Vec<u32>,
    /// Number of living processes of earlier jobs on each node.
    pub living_processes: Vec<u32>,
}

/// Plan of a job on this host: the launcher's decisions, and the files and resources that this host has for the job.
#[derive(Clone, Debug)]
pub struct HostPlan {
    pub job_plan: JobPlan,
    /// Nodes whose ranks this process starts; `None` in a launcher of other hosts.
    pub(crate) scope: Option<HostScope>,
    /// Request of the user.
    pub spec: JobSpec,
    pub inheritance: Arc<InheritedContext>,
    pub apps: Vec<AppStart>,
    /// Root directory and environment of the image in which the ranks here run, if they do.
    pub container_root: Option<ContainerRoot>,
    /// Files of the sidecars, when PMIx is offered and this process starts sidecars.
    pub sidecar_files: Option<SidecarFiles>,
    /// Reason why `sidecar_files` is `None`, on a node whose ranks do not need PMIx.
    pub sidecar_unavailable: Option<String>,
    /// CPUs of the ranks here, if they are bound.
    pub binding: Option<Arc<HostBinding>>,
    /// Limits of the number of ranks on this machine.
    pub slots: SlotLimits,
    /// Remarks about the origin of the job's settings, for `-v`.
    pub notes: Vec<String>,
    /// Warnings that are printed without `-v` too.
    pub warnings: Vec<String>,
}

impl Deref for HostPlan {
    type Target = JobPlan;

    fn deref(&self) -> &JobPlan {
        &self.job_plan
    }
}

impl HostPlan {
    /// Host name of a node; empty for a node that does not exist.
    pub fn node_name(&self, node: NodeId) -> &str {
        let name = self.node_names.get(node.index());
        name.map_or("", String::as_str)
    }

    /// Values of the `%` patterns in texts of a rank.
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

    /// Whether the ranks of an application have temporary directories of their own.
    pub fn has_rank_directories(&self, app: usize) -> bool {
        self.spec.apps.get(app).is_some_and(|app| app.rank_tmpdir)
    }

    /// Index of the application context of a rank.
    pub fn app_of(&self, rank: Rank) -> usize {
        self.job.app_map.appnum_of(rank).index()
    }
}

impl LaunchPlan {
    /// Node whose step daemon serves a node: a machine that is several nodes has one step daemon.
    pub fn serving_node(&self, node: NodeId) -> NodeId {
        self.single_host.as_ref().map_or(node, |_| HEAD)
    }

    /// Whether hosts can join the launch; they cannot if one machine is all nodes.
    pub fn can_grow(&self) -> bool {
        self.single_host.is_none()
    }
}

impl JobPlan {
    /// Mutable access to the plan of the launch; the plans of other jobs are unchanged.
    pub(crate) fn launch_mut(&mut self) -> &mut LaunchPlan {
        Arc::make_mut(&mut self.launch)
    }

    /// Number of processes of earlier jobs on a node, or on all nodes; exited ones included.
    pub fn earlier_processes(&self, node: Option<NodeId>) -> u32 {
        let earlier = self.origin.as_ref().map(|origin| &origin.earlier_processes);
        let earlier = earlier.map_or(&[][..], Vec::as_slice);
        match node {
            Some(node) => earlier.get(node.index()).copied().unwrap_or(0),
            None => earlier.iter().sum(),
        }
    }

    /// Number of living processes of a node after the ranks of this job have been started.
    fn processes_on(&self, node: NodeId) -> u32 {
        let living = self.origin.as_ref().map(|origin| &origin.living_processes);
        let living = living.and_then(|living| living.get(node.index()).copied());
        let living = living.unwrap_or(0);
        living.saturating_add(self.job.process_map.local_size(node))
    }

    /// Nodes of the launch without those that could not join or have left.
    pub fn present(&self) -> impl Iterator<Item = NodeId> + '_ {
        let nodes = self.job.process_map.node_ids();
        nodes.filter(|node| !self.absent.contains(node))
    }

    pub fn present_names(&self) -> Vec<&str> {
        let names = self.node_names.iter().map(String::as_str);
        let named = (0..).map(NodeId).zip(names);
        let present = named.filter(|(node, _)| !self.absent.contains(node));
        present.map(|(_, name)| name).collect()
    }

    /// Application context of the initial job whose settings apply to a rank, and to the jobs that the rank spawns.
    pub fn base_of(&self, rank: Rank) -> AppNum {
        match &self.origin {
            Some(origin) => origin.template_app,
            None => self.job.app_map.appnum_of(rank),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
