//! Specification of a job by its user, as plain values without command-line flags.

mod binding;
mod container;
mod fabric;
mod layout;
mod option_value;
mod termination;

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

pub use binding::{BindTo, BindingSpec, MapWithinHost, MemBind};
pub use container::{
    BindMount, ContainerSpec, ImageError, ImageSpec, MountError, Runtime, UENV_MOUNT, Uenv,
    UenvError,
};
pub use fabric::{FabricError, FabricSource, FabricSpec};
pub use layout::{AgentLaunchCommand, AgentTreeSpec, LayoutSpec, MapBy, STAR_LIMIT, TREE_WIDTH};
pub use option_value::{
    EnvOption, LayoutRuns, Mapping, OptionValueError, choice_name, parse_umask,
};
pub use termination::{
    ChildJobPolicy, FENCE_TIMEOUT, FailurePolicy, FenceTimeoutSpec, GRACE, TerminationSpec,
};

use super::debug::{IndirectLaunchTool, ToolLossPolicy};
use super::env_change::EnvChange;
use super::ids::Rank;
use super::impi::ImpiWorld;
use super::limit::ResourceLimit;
use super::mpi::MpiSpec;
use super::name_store_kind::NameStoreKind;
use super::octets;
use super::pset::ProcessSet;
use super::rank_set::{RankChoice, RankSet};
use super::trace_context::TraceContext;

/// Variables that ranks get from the launcher's environment.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum EnvInheritance {
    /// All but those of an outer launcher.
    #[default]
    All,
    None,
    /// Variables with these names; `PREFIX*` stands for all that start with the prefix.
    Only(#[serde(with = "octets")] Vec<OsString>),
}

/// A command under which ranks run their program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WrapSpec {
    /// The command as written, with patterns in its arguments.
    #[serde(with = "octets")]
    pub command: OsString,
    /// The ranks it is for; all of the program when absent.
    pub ranks: Option<RankSet>,
}

/// One application context: a program with its arguments and the ranks that run it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AppRequest {
    /// Number of ranks; the launcher chooses when absent.
    pub count: Option<u32>,
    pub inherited: EnvInheritance,
    /// Files of variables to set or to pass on, in order.
    #[serde(with = "octets")]
    pub env_files: Vec<PathBuf>,
    /// After these, variables to set or to pass on, as written: `NAME=VALUE`, `NAME` or `PREFIX*`.
    #[serde(with = "octets")]
    pub env: Vec<OsString>,
    /// Changes of the values that these files and variables give, in order.
    pub env_changes: Vec<EnvChange>,
    /// Working directory; the launcher's own when absent.
    #[serde(with = "octets")]
    pub wdir: Option<PathBuf>,
    /// Directories that are searched for the program before those of PATH.
    #[serde(with = "octets")]
    pub search: Vec<PathBuf>,
    /// Resource limits of the ranks; of several for one resource the last counts.
    pub limits: Vec<ResourceLimit>,
    /// File mode creation mask of the ranks; the launcher's own when absent.
    pub umask: Option<u32>,
    /// Command under which the ranks run their program.
    pub wrap: Option<WrapSpec>,
    pub preload: StagingSpec,
    /// Files that must be where its ranks start.
    #[serde(with = "octets")]
    pub needed_files: Vec<PathBuf>,
    /// Each rank gets a directory for its files, which is removed at the end.
    pub rank_tmpdir: bool,
    /// The MPI that the ranks load.
    pub mpi: MpiSpec,
    /// Program and arguments; never empty.
    #[serde(serialize_with = "octets::serialize", deserialize_with = "argv")]
    pub argv: Vec<OsString>,
}

/// Program and files that are staged to hosts which may not have them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StagingSpec {
    /// The program, which is executed from a directory of the job's own.
    pub program: bool,
    /// Files for the ranks' working directory.
    #[serde(with = "octets")]
    pub files: Vec<PathBuf>,
    /// The program and the libraries that it loads, as far as hosts lack them.
    pub stage: bool,
}

/// The ranks that read the launcher's standard input; all others get an empty one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum StdinTarget {
    #[default]
    None,
    Rank(Rank),
    /// Every rank gets a copy.
    All,
}

impl StdinTarget {
    /// Whether a rank reads it.
    pub fn reads(self, rank: Rank) -> bool {
        match self {
            Self::None => false,
            Self::Rank(reader) => reader == rank,
            Self::All => true,
        }
    }
}

/// The process-management interfaces a job is offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum InterfaceChoice {
    /// Interfaces that the programs need, found by inspecting them.
    #[default]
    Auto,
    /// PMI on an inherited socket; PMI-1 is expected on it.
    Pmi1,
    /// Socket as for PMI-1, on which PMI-2 is expected.
    Pmi2,
    /// PMIx through the sidecar.
    Pmix,
    All,
    /// Nothing: the ranks are plain processes.
    None,
}

impl InterfaceChoice {
    /// The values of `--pmi`.
    pub const NAMES: [(&str, Self); 6] = [
        ("auto", Self::Auto),
        ("pmi1", Self::Pmi1),
        ("pmi2", Self::Pmi2),
        ("pmix", Self::Pmix),
        ("all", Self::All),
        ("none", Self::None),
    ];
}

impl fmt::Display for InterfaceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(choice_name(&Self::NAMES, *self))
    }
}

/// Text in front of the output lines of a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LabelSpec {
    /// Rank in brackets, with the job if that was spawned.
    Rank,
    /// Pattern that is filled in for each process.
    Pattern(#[serde(with = "octets")] OsString),
}

/// Handling of the ranks' input and output.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StdioSpec {
    /// Text in front of every output line.
    pub label: Option<LabelSpec>,
    /// Put the time in front of every output line.
    pub timestamps: bool,
    /// File name pattern for per-rank output.
    #[serde(with = "octets")]
    pub output: Option<OsString>,
    /// Ranks that read standard input.
    pub stdin: StdinTarget,
    /// The rank that gets its own terminal, and standard input through it.
    pub pty: Option<Rank>,
}

/// Destination of the status stream.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StatusTarget {
    /// To standard output, which then carries nothing else: the ranks' output becomes part of it.
    Stdout,
    /// To a descriptor that was inherited; at least 3.
    Descriptor(i32),
    File(#[serde(with = "octets")] PathBuf),
}

/// Reports about the job while it runs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StatusSpec {
    /// Destination of events and result as JSON; `None` for no status stream.
    pub json: Option<StatusTarget>,
    /// Descriptor that was inherited, from which orders are read; at least 3.
    pub control: Option<i32>,
    /// Page about the launch that is written at its end.
    #[serde(with = "octets")]
    pub report: Option<PathBuf>,
    /// File in the Trace Event Format that is written at its end.
    #[serde(with = "octets")]
    pub trace: Option<PathBuf>,
    /// Whether its critical path is printed at its end.
    pub timing: bool,
    /// Loopback address at which metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Whether the user disabled the display of the launcher's waits.
    pub no_progress: bool,
    /// Whether a terminal shows the launcher's waits; decided by the launcher.
    pub live: bool,
    /// The trace to which its spans are sent at its end; decided by the launcher.
    pub spans: Option<TraceContext>,
}

impl StatusSpec {
    /// Whether something is made of the status stream when the launch ends.
    pub fn is_kept(&self) -> bool {
        self.report.is_some() || self.trace.is_some() || self.timing || self.spans.is_some()
    }

    /// Whether the time that each fence takes is recorded.
    pub fn observes_fences(&self) -> bool {
        self.is_recorded() || self.metrics.is_some()
    }

    /// Whether there is a status stream.
    pub fn is_recorded(&self) -> bool {
        self.json.is_some() || self.is_kept()
    }
}

/// Process-management interfaces of the ranks, and the parts that serve them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct InterfaceSpec {
    pub pmi: InterfaceChoice,
    /// libpmix for the sidecar, instead of the one found.
    #[serde(with = "octets")]
    pub libpmix: Option<PathBuf>,
    /// The sidecar's executable, instead of the one found.
    #[serde(with = "octets")]
    pub pmix_host: Option<PathBuf>,
    /// The shim library, instead of the one found.
    #[serde(with = "octets")]
    pub shim: Option<PathBuf>,
    /// Kinds of memory in MPI 4.1's notation that MPI libraries are requested to support.
    pub memory_kinds: Option<String>,
    /// Ranks get Slurm's names for their place too.
    pub slurm_env: bool,
    /// Name scope; the launches of a user share names only within one scope. At most
    /// [`MEET_MAX`](crate::name_server::MEET_MAX) bytes.
    pub meet: Option<String>,
    /// Store of the names that launches publish for each other; the choice of the environment when absent.
    pub names: Option<NameStoreKind>,
    /// Seconds for which names stay published after their publishers have ended; until they are unpublished if 0.
    pub keep_names: Option<u32>,
    /// The Unix socket of the allocator that decides on nodes and slots; the launch decides by
    /// itself when absent.
    #[serde(with = "octets")]
    pub allocator: Option<PathBuf>,
}

/// Settings of a job for debuggers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DebugSpec {
    /// Ranks that are stopped when they have executed their program and have not begun it, until a SIGCONT.
    pub stop_on_exec: Option<RankChoice>,
    /// Whether a debugger directs the launcher: all ranks are stopped at exec, and those that the user has not named
    /// continue when the debugger lets the launcher continue.
    pub is_debugger_led: bool,
    /// Whether the user is shown the stacks of ranks when a fence is late and when the job's time has passed.
    pub stacks: bool,
    /// Ranks that wait in `PMIx_Init` until a debugger releases them.
    pub stop_in_init: Option<RankChoice>,
    /// The tool that directs the launch, if one does.
    pub director: Option<IndirectLaunchTool>,
    /// Treatment of waiting ranks when the last debugger has ended.
    pub on_tool_loss: ToolLossPolicy,
    /// File to which the first node's PMIx server writes its address, for a tool that has named that file.
    pub rendezvous: Option<String>,
}

impl DebugSpec {
    /// Whether a rank is stopped, and the user decides until when.
    pub fn stays_stopped(&self, rank: Rank) -> bool {
        let stopped = self.stop_on_exec.as_ref();
        stopped.is_some_and(|stopped| stopped.holds(rank))
    }

    /// Whether a rank is stopped before it begins its program.
    pub fn stops(&self, rank: Rank) -> bool {
        self.is_debugger_led || self.stays_stopped(rank)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobSpec {
    /// Application contexts in command-line order; never empty.
    #[serde(deserialize_with = "apps")]
    pub apps: Vec<AppRequest>,
    /// Placement of the ranks.
    pub layout: LayoutSpec,
    /// CPUs of the ranks.
    pub binding: BindingSpec,
    /// Container of the ranks.
    pub container: ContainerSpec,
    /// The credentials of the network that they need.
    pub fabric: Option<FabricSpec>,
    /// Process sets in addition to those of the applications.
    pub psets: Vec<ProcessSet>,
    pub stdio: StdioSpec,
    /// The end of the job.
    pub ending: TerminationSpec,
    pub status: StatusSpec,
    pub interface: InterfaceSpec,
    pub debug: DebugSpec,
    /// The IMPI world that the job is a part of.
    pub impi: Option<ImpiWorld>,
    /// Only show the plan; start nothing.
    pub dry_run: bool,
    /// Messages about the origin of these settings.
    pub notes: Vec<String>,
    /// Verbosity: 0 only failures, 1 decisions with their reasons, 2 and more every step.
    pub verbose: u8,
    /// Log filter of the launcher, its steps and sidecars.
    pub log: Option<String>,
}

impl JobSpec {
    /// Creates a job of these application contexts with defaults for all else: no rank reads standard input, and the
    /// programs are inspected.
    pub fn from_apps(apps: Vec<AppRequest>) -> Self {
        Self {
            apps,
            layout: LayoutSpec::default(),
            binding: BindingSpec::default(),
            container: ContainerSpec::default(),
            fabric: None,
            psets: Vec::new(),
            stdio: StdioSpec::default(),
            ending: TerminationSpec::default(),
            status: StatusSpec::default(),
            interface: InterfaceSpec::default(),
            debug: DebugSpec::default(),
            impi: None,
            dry_run: false,
            notes: Vec::new(),
            verbose: 0,
            log: None,
        }
    }
}

fn argv<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<OsString>, D::Error> {
    not_empty(octets::deserialize(from)?)
}

fn apps<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<AppRequest>, D::Error> {
    not_empty(Vec::deserialize(from)?)
}

fn not_empty<T, E: Error>(list: Vec<T>) -> Result<Vec<T>, E> {
    match list.is_empty() {
        true => Err(E::invalid_length(0, &"at least one")),
        false => Ok(list),
    }
}
