//! From what the user asked for to what will be done: programs found, slots counted, ranks
//! placed, interfaces chosen. Nothing has been started yet when a plan is refused.
//!
//! ```text
//!                  one machine                 several hosts
//!  launcher        Plan::new                   Plan::new ── Decided, JobSpec, Inheritance ──┐
//!  each node       (the same process)          Plan::resolve ◀──────────────────────────────┘
//! ```
//! Decisions that are the same on all nodes are made once by the launcher ([`Decided`]). Programs,
//! libraries, limits and other resources of a machine are searched by the node that needs them; the
//! launcher of several hosts sees of them is for people.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::failure::{RequestError, RunFailure};
use crate::inspect::ldso::Loader;
use crate::inspect::program::Program;
use crate::inspect::sidecar_files::HostParts;
use crate::inspect::{Finding, Wants};
use crate::plan::inheritance::Inheritance;
use crate::plan::pattern::Fields;
use crate::plan::reasons::{CountWhy, Offer, OfferWhy};
use crate::plan::slots::Slots;
use crate::plan::wrap::Wrapper;
use crate::sys::limits::RawLimit;
use wireup_core::binding::HostBinding;
use wireup_core::job::appnums::Appnums;
use wireup_core::job::debug::Debugged;
use wireup_core::job::ids::{AppNum, GlobalRank, NodeId, Nspace, Rank, UserId};
use wireup_core::job::launch_token::LaunchKey;
use wireup_core::job::octets;
use wireup_core::job::pset::ProcessSet;
use wireup_core::job::spec::{Inherited, JobSpec, PmiChoice};
use wireup_core::node::JobContext;

pub mod allocations;
mod app;
pub(crate) mod binding;
pub mod direction;
pub mod directory;
pub(crate) mod engines;
pub mod environment;
mod growth;
pub mod host_lookup;
pub mod hostfile;
pub mod inheritance;
pub(crate) mod job_facts;
pub(crate) mod job_names;
pub mod jobs;
pub(crate) mod names;
mod offer;
pub(crate) mod openmpi;
pub mod pattern;
pub(crate) mod placement;
pub mod rank_env;
pub mod reasons;
pub(crate) mod size;
pub mod slots;
pub(crate) mod slots_of_hosts;
mod spawned;
pub(crate) mod staged_files;
pub(crate) mod staging;
pub(crate) mod start_orders;
pub mod transports;
pub mod wrap;

use app::{Stand, app_plan};
pub use environment::Variable;
pub use names::{ALLOCATION, LAUNCH, LaunchNames, LauncherProcess};
use offer::{host_parts, interfaces};
use placement::{node_names, place};
use size::{sizes, total};
pub use spawned::{By, SpawnedJob, Standing};
pub(crate) use staged_files::StagedFiles;

/// One application context, ready to be started.
#[derive(Clone, Debug)]
pub struct App {
    pub program: Program,
    /// The wrapper of its ranks.
    pub wrapper: Option<Wrapper>,
    /// Its arguments, program name not included.
    pub args: Vec<OsString>,
    pub size: u32,
    /// Where that number comes from.
    pub count: CountWhy,
    /// Environment of its ranks, before wireup's own variables.
    pub env: Vec<Variable>,
    /// How many of these are there for any program; what follows was added for this one.
    pub common: usize,
    /// Which of the variables that differ from rank to rank are among these.
    pub places_given: Vec<&'static str>,
    /// Where it starts, if not where this process is.
    pub cwd: Option<PathBuf>,
    /// What looking at the program said.
    pub finding: Finding,
    /// Resource limits of its ranks.
    pub limits: Vec<RawLimit>,
    /// File mode creation mask of its ranks.
    pub umask: Option<u32>,
}

/// What holds for a job on every node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Decided {
    /// What the nodes' state machines know.
    pub job: Arc<JobContext>,
    /// By application context: the reason for its number of ranks.
    pub counts: Vec<CountWhy>,
    /// Host name of each node.
    pub node_names: Vec<String>,
    /// Nodes that could not join. They have no step, and their names are meaningless.
    pub absent: BTreeSet<NodeId>,
    /// The offered interfaces, and the reason.
    pub offer: Offer,
    /// Some node has more ranks than slots. A node that resolves it knows this of itself.
    pub oversubscribed: bool,
    /// The names under which others know the launch.
    pub names: LaunchNames,
    /// Who leads the launch.
    pub launcher: LauncherProcess,
    /// Where a spawned job comes from; nothing for the job the user asked for.
    pub origin: Option<Origin>,
    /// The secret that signs its credentials, if PMIx is offered.
    pub key: Option<LaunchKey>,
    /// By application context: its variables, before wireup's own and those of a node. Empty on one
    /// machine, where they are in [`App::env`].
    #[serde(with = "octets")]
    variables: Vec<Vec<Variable>>,
}

/// Where a spawned job comes from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// The job the user asked for, which gives the launch its name.
    pub launch: Nspace,
    /// The application context of that job whose settings apply to its ranks.
    pub base: AppNum,
    /// By node: processes of the jobs before it, living or not.
    pub before: Vec<u32>,
}

/// A job, decided, and what this machine has for it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub decided: Decided,
    /// The requested interfaces.
    pub spec: JobSpec,
    pub inheritance: Arc<Inheritance>,
    /// Application contexts.
    pub apps: Vec<App>,
    /// What the sidecars need, when PMIx is offered and this process is to start them.
    pub host: Option<HostParts>,
    /// Why there is none, on a node whose ranks do not need it.
    pub without_host: Option<String>,
    /// The CPUs of the ranks here, if they are bound. The launcher of several hosts does not know it.
    pub binding: Option<Arc<HostBinding>>,
    /// What limits the number of ranks here.
    pub slots: Slots,
    /// Remarks about the origin of the job's settings, for `-v`.
    pub notes: Vec<String>,
    /// What the user should know in any case.
    pub warnings: Vec<String>,
}

impl Deref for Plan {
    type Target = Decided;

    fn deref(&self) -> &Decided {
        &self.decided
    }
}

/// Options that this machine or the job's programs do not allow.
#[derive(Debug, thiserror::Error)]
enum OptionError {
    #[error(
        "--stop-in-init: the ranks are not offered PMIx; --stop-on-exec stops ranks of every kind"
    )]
    StopInInit,
    #[error("--allocator {} {problem}; start the allocator first", path.display())]
    Allocator {
        path: PathBuf,
        problem: SocketProblem,
    },
}

impl RequestError for OptionError {}

#[derive(Debug, thiserror::Error)]
enum SocketProblem {
    #[error("is no socket")]
    NoSocket,
    #[error("does not exist")]
    Absent,
    #[error("cannot be looked at: {0}")]
    Unreadable(std::io::Error),
}

/// A random secret.
fn secret() -> Result<LaunchKey, RunFailure> {
    let mut random = [0; 32];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| RunFailure::system("no random numbers from the system", errno))?;
    Ok(LaunchKey::new(random))
}

impl Plan {
    /// What `%` patterns stand for in texts of a rank.
    pub fn fields(&self, rank: Rank) -> Fields<'_> {
        let node = self.job.ranks.node_of(rank).unwrap_or_default();
        Fields {
            rank,
            host: &self.node_names[node.index()],
            job: self.job.nspace.as_str(),
            node: node.0,
            local: self.job.ranks.local_rank(rank).map_or(0, |local| local.0),
            stream: None,
        }
    }

    /// Decides everything about the job named `nspace`. `descriptors` is the hard limit of open descriptors.
    ///
    /// A job on several hosts is decided for all; what a program is, is then known as far as this
    /// machine has a copy.
    ///
    /// # Errors
    /// [`RunFailure`] with the reason and the remedy.
    pub fn new(spec: JobSpec, nspace: Nspace, descriptors: u64) -> Result<Self, RunFailure> {
        let across = spec.layout.across_hosts();
        if let Some(socket) = &spec.interface.allocator {
            check_allocator(socket)?;
        }
        let inheritance = Inheritance::here(across)?;
        let mut warnings = Vec::new();
        let slots = Slots::detect();
        let sizes = sizes(&spec.apps, &spec.layout, &slots);
        let size = total(&sizes)?;
        let (ranks, oversubscribed) = place(&spec, size, &slots)?;
        size::check(&spec, size, descriptors)?;
        let psets = ProcessSet::of_job(&spec.psets, sizes.iter().map(|(size, _)| *size))
            .map_err(RunFailure::request)?;
        let stand = if across {
            Stand::Launcher
        } else {
            Stand::Alone
        };
        let mut variables = Vec::new();
        let mut looked = Vec::with_capacity(spec.apps.len());
        for (app, ranks) in spec.apps.iter().zip(size::ranges(&sizes)) {
            let env = app::variables(app, &inheritance, across, &mut warnings)?;
            if across {
                variables.push(env.clone());
            }
            looked.push(app_plan(app, ranks, env, &inheritance, stand, None)?);
        }
        let (apps, loaders): (Vec<App>, Vec<Loader>) = looked.into_iter().unzip();
        if !across && spec.apps.iter().any(|app| !app.preload.files.is_empty()) {
            let text = "--preload-files: nothing is copied on one machine, only to hosts (--hosts)";
            warnings.push(text.to_owned());
        }
        if spec.interface.pmi != PmiChoice::None {
            warnings.extend(offer::two_mpis(&apps));
        }
        let mut offer = interfaces(spec.interface.pmi, &apps);
        // Of the parts of a server only those count that are where it runs.
        let host = match (offer.pmix && !across)
            .then(|| host_parts(&spec, &apps, &loaders, &inheritance))
            .transpose()
        {
            Ok(host) => host,
            // No program is known to need PMIx; they may work without it.
            Err(failure)
                if matches!(offer.why, OfferWhy::Unknown(_))
                    && !apps.iter().any(|app| app.finding.wants == Wants::Pmix) =>
            {
                offer.without_pmix = Some(failure.to_string());
                None
            }
            Err(failure) => return Err(failure),
        };
        offer.pmix &= across || host.is_some();
        if spec.debug.stop_in_init.is_some() && !offer.pmix {
            return Err(OptionError::StopInInit.into());
        }
        let (universe_size, unlimited) = match across {
            true => slots_of_hosts::universe(&spec.layout, &ranks),
            false => size::universe(&spec.layout, size, &slots),
        };
        let node_names = match across {
            true => spec
                .layout
                .hosts
                .iter()
                .map(|host| host.name.clone())
                .collect(),
            false => node_names(ranks.nodes()),
        };
        let names = LaunchNames::new(&inheritance, &nspace);
        let key = offer.pmix.then(secret).transpose()?;
        let job = JobContext {
            nspace,
            ranks,
            appnums: Appnums::from_sizes(sizes.iter().map(|(size, _)| *size)),
            universe_size,
            unlimited,
            user: UserId(rustix::process::getuid().as_raw()),
            psets,
            parent: None,
            tool: None,
            debug: Debugged {
                on_exec: spec.debug.stop_on_exec.clone(),
                in_init: spec.debug.stop_in_init.clone(),
                ..Debugged::default()
            },
            offset: GlobalRank(0),
            preputs: Vec::new(),
        };
        let decided = Decided {
            job: Arc::new(job),
            counts: sizes.into_iter().map(|(_, why)| why).collect(),
            node_names,
            absent: BTreeSet::new(),
            offer,
            oversubscribed,
            names,
            launcher: LauncherProcess::this(),
            origin: None,
            key,
            variables,
        };
        let binding = match across {
            true => None,
            false => binding::bind(&spec, &decided, None, (None, libpmix(host.as_ref())))?,
        };
        Ok(Self {
            decided,
            inheritance: Arc::new(inheritance),
            apps,
            host,
            without_host: None,
            binding,
            slots,
            notes: spec.notes.clone(),
            warnings,
            spec,
        })
    }

    /// Makes the plan of one node of a job on several hosts: searches for the files that its ranks
    /// need.
    ///
    /// `inheritance` is the launcher's, with what the node itself adds ([`Inheritance::on_node`]);
    /// `staged files` are those that were sent and stored; `descriptors` is the hard limit of open
    /// descriptors here.
    ///
    /// # Errors
    /// [`RunFailure`] with the reason and the remedy, in words that are the same on every node with
    /// this problem: see [`by_node`](crate::report::failures::by_node).
    pub(crate) fn resolve(
        mut decided: Decided,
        spec: JobSpec,
        inheritance: Inheritance,
        node: NodeId,
        staged_files: &[StagedFiles],
        descriptors: u64,
    ) -> Result<Self, RunFailure> {
        decided.check(&spec, node)?;
        let slots = Slots::detect();
        let ranks = decided.job.ranks.local_size(node);
        size::check_node(&spec, node, ranks, &slots, descriptors)?;
        decided.oversubscribed = slots.exceeded_by(ranks);
        let mut looked = Vec::with_capacity(spec.apps.len());
        let contexts = (0..).map(AppNum).zip(&spec.apps);
        let variables = std::mem::take(&mut decided.variables);
        for ((number, app), mut env) in contexts.zip(variables) {
            if app.inherited == Inherited::All {
                inheritance.add_local(&mut env);
            }
            let ranks = decided.job.appnums.ranks_of(number);
            let stand = match decided.has(node, &ranks) {
                true => Stand::Node,
                false => Stand::Bystander,
            };
            let ranks = (ranks, decided.counts[number.index()]);
            let mut app = Cow::Borrowed(app);
            let owner = (&decided.job.nspace, node, number);
            let staged_files = staged_files.get(number.index());
            if let Some(program) = staged_files.and_then(|staged_files| staged_files.program(owner))
            {
                app.to_mut().argv[0] = program.into();
            }
            looked.push(app_plan(&app, ranks, env, &inheritance, stand, None)?);
        }
        let (apps, loaders): (Vec<App>, Vec<Loader>) = looked.into_iter().unzip();
        let host = decided
            .offer
            .pmix
            .then(|| host_parts(&spec, &apps, &loaders, &inheritance));
        let (host, without_host) = match host {
            Some(Ok(host)) => (Some(host), None),
            // Processes spawned here may notice.
            Some(Err(failure)) if ranks == 0 => (None, Some(failure.to_string())),
            Some(Err(failure)) => return Err(failure),
            None => (None, None),
        };
        let known = (None, libpmix(host.as_ref()));
        let binding = binding::bind(&spec, &decided, Some(node), known)?;
        Ok(Self {
            decided,
            inheritance: Arc::new(inheritance),
            apps,
            host,
            without_host,
            binding,
            slots,
            notes: Vec::new(),
            warnings: Vec::new(),
            spec,
        })
    }

    /// The job that the user started, whose name identifies the processes of all jobs of the launch
    /// to this machine.
    pub fn launch(&self) -> &Nspace {
        match &self.origin {
            Some(origin) => &origin.launch,
            None => &self.job.nspace,
        }
    }

    /// Index of the application context of a rank.
    pub fn app_of(&self, rank: Rank) -> usize {
        self.job.appnums.of(rank).index()
    }
}

/// An inconsistent description of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the launcher's description of the job contradicts itself; use one version of wireup everywhere"
)]
struct Contradiction;

impl RequestError for Contradiction {}

impl Decided {
    /// The application context of the first job whose settings apply to a rank, and to the jobs
    /// that it spawns.
    pub fn base_of(&self, rank: Rank) -> AppNum {
        match &self.origin {
            Some(origin) => origin.base,
            None => self.job.appnums.of(rank),
        }
    }

    /// Checks that a plan from a link is consistent.
    fn check(&self, spec: &JobSpec, node: NodeId) -> Result<(), Contradiction> {
        let (apps, nodes) = (spec.apps.len(), self.job.ranks.nodes() as usize);
        let last = AppNum(u32::try_from(apps).unwrap_or(0).saturating_sub(1));
        let fits = self.counts.len() == apps
            && self.variables.len() == apps
            && apps > 0
            && self.job.appnums.ranks_of(last).end == self.job.ranks.size()
            && self.node_names.len() == nodes
            && spec.layout.hosts.len() == nodes
            && node.index() < nodes;
        if fits { Ok(()) } else { Err(Contradiction) }
    }

    /// Whether one of these ranks is on a node.
    fn has(&self, node: NodeId, ranks: &Range<u32>) -> bool {
        self.job
            .ranks
            .ranks_on(node)
            .any(|rank| ranks.contains(&rank.0))
    }
}

#[cfg(test)]
pub(crate) mod tests;

/// The library of a server's.
fn libpmix(host: Option<&HostParts>) -> Option<&Path> {
    host.map(|host| host.libpmix.path.as_path())
}

/// Whether an allocator may listen there.
fn check_allocator(path: &Path) -> Result<(), OptionError> {
    let problem = match std::fs::metadata(path) {
        Ok(meta) if meta.file_type().is_socket() => return Ok(()),
        Ok(_) => SocketProblem::NoSocket,
        Err(error) if error.kind() == ErrorKind::NotFound => SocketProblem::Absent,
        Err(error) => SocketProblem::Unreadable(error),
    };
    let path = path.to_owned();
    Err(OptionError::Allocator { path, problem })
}
