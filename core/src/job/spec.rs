//! What the user asked for, as a plain value: flags end here.

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
pub use option_value::{EnvOption, LayoutRuns, Mapping, OptionValueError, parse_umask};
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

/// What ranks get of the launcher's own variables.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum EnvInheritance {
    /// All but those of an outer launcher.
    #[default]
    All,
    /// Nothing.
    None,
    /// Those with these names; `PREFIX*` means all that start so.
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
    /// Which of the launcher's variables the ranks get.
    pub inherited: EnvInheritance,
    /// Files of variables to set or to pass on, in order.
    #[serde(with = "octets")]
    pub env_files: Vec<PathBuf>,
    /// After these, variables to set or to pass on, as written: `NAME=VALUE`, `NAME` or `PREFIX*`.
    #[serde(with = "octets")]
    pub env: Vec<OsString>,
    /// Changes of what these give, in order.
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
    /// What the ranks run their program under.
    pub wrap: Option<WrapSpec>,
    /// What goes along to other hosts.
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

/// What goes along to hosts that may not have it.
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
    /// No rank.
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
    /// What the programs need, found by inspecting them.
    #[default]
    Auto,
    /// PMI on an inherited socket; PMI-1 is expected on it.
    Pmi1,
    /// The same socket; PMI-2 is expected on it.
    Pmi2,
    /// PMIx through the sidecar.
    Pmix,
    All,
    /// Nothing: the ranks are plain processes.
    None,
}

impl fmt::Display for InterfaceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Pmi1 => "pmi1",
            Self::Pmi2 => "pmi2",
            Self::Pmix => "pmix",
            Self::All => "all",
            Self::None => "none",
        })
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
    /// Who reads standard input.
    pub stdin: StdinTarget,
    /// The rank that gets its own terminal, and standard input through it.
    pub pty: Option<Rank>,
}

/// Where the status stream goes.
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
    /// Where events and result are written as JSON.
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
    /// The user does not want to see what is waited for.
    pub no_progress: bool,
    /// What is waited for is shown on a terminal; decided by the launcher.
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

/// What the ranks are offered for process management, and the parts that serve it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct InterfaceSpec {
    /// Interfaces to offer.
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
    /// Kinds of memory, as MPI 4.1 has them, that MPI libraries are asked to offer.
    pub memory_kinds: Option<String>,
    /// Ranks get Slurm's names for their place too.
    pub slurm_env: bool,
    /// Those launches of the user meet that have the same one here; at most
    /// [`MEET_MAX`](crate::name_server::MEET_MAX) bytes.
    pub meet: Option<String>,
    /// Where names are kept that launches publish for each other; as the environment says when absent.
    pub names: Option<NameStoreKind>,
    /// Names stay after their publishers, for so many seconds; until they are withdrawn if 0.
    pub keep_names: Option<u32>,
    /// The Unix socket of the allocator that decides on nodes and slots; the launch decides by
    /// itself when absent.
    #[serde(with = "octets")]
    pub allocator: Option<PathBuf>,
}

/// What is done for debuggers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DebugSpec {
    /// Ranks that are stopped when they have executed their program and have not begun it, until a SIGCONT.
    pub stop_on_exec: Option<RankChoice>,
    /// A debugger leads the launcher: all ranks are stopped so, and those that the user has not named go
    /// on when the debugger lets the launcher go on.
    pub is_debugger_led: bool,
    /// The user is shown where the ranks are when a fence is late and when the job's time is over.
    pub stacks: bool,
    /// Ranks that wait in `PMIx_Init` until a debugger releases them.
    pub stop_in_init: Option<RankChoice>,
    /// The tool that directs the launch, if one does.
    pub director: Option<IndirectLaunchTool>,
    /// What becomes of ranks that wait for a debugger when there is none any more.
    pub on_tool_loss: ToolLossPolicy,
    /// Where the first node's PMIx server writes how it is reached, for a tool that has named that file.
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
    /// What the ranks run in.
    pub container: ContainerSpec,
    /// The credentials of the network that they need.
    pub fabric: Option<FabricSpec>,
    /// Process sets beside those of the applications.
    pub psets: Vec<ProcessSet>,
    /// Input and output.
    pub stdio: StdioSpec,
    /// The end of the job.
    pub ending: TerminationSpec,
    /// Reports about it.
    pub status: StatusSpec,
    /// Process-management interfaces.
    pub interface: InterfaceSpec,
    /// Debuggers.
    pub debug: DebugSpec,
    /// The IMPI world that the job is a part of.
    pub impi: Option<ImpiWorld>,
    /// Only show the plan; start nothing.
    pub dry_run: bool,
    /// Tell every decision with its reasons.
    pub explain: bool,
    /// Messages about the origin of these settings.
    pub notes: Vec<String>,
    /// Verbosity: 0 only failures, 1 decisions, 2 and more every step.
    pub verbose: u8,
    /// What its launcher, steps and sidecars log, as a filter.
    pub log: Option<String>,
}

impl JobSpec {
    /// A job of these application contexts with defaults for all else: no rank reads standard input, and the
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
            explain: false,
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
