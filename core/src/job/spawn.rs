//! Spawn requests of processes, over any protocol, and the results
//! of that.

use serde::{Deserialize, Serialize};

use super::ids::Nspace;
use super::octets;

/// A job to be started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnRequest {
    /// What to start, in the order of application contexts; at least one.
    pub apps: Vec<SpawnApp>,
    /// Attributes of the whole job.
    pub infos: Vec<SpawnInfo>,
    /// Pairs for the new job's PMI key-value store, there before its ranks start.
    pub preputs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// One application context of a [`SpawnRequest`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnApp {
    /// The program, absolute or not.
    #[serde(with = "octets")]
    pub program: std::ffi::OsString,
    /// Its arguments, program name not included; each may be empty.
    #[serde(with = "octets")]
    pub args: Vec<std::ffi::OsString>,
    /// Variables for its ranks, `NAME=VALUE`, that must reach them as they are.
    #[serde(with = "octets")]
    pub env: Vec<std::ffi::OsString>,
    /// Where it starts; where the spawning job's first program did when absent.
    #[serde(with = "octets")]
    pub cwd: Option<std::path::PathBuf>,
    /// Number of ranks, at least 1.
    pub count: u32,
    /// Its attributes.
    pub infos: Vec<SpawnInfo>,
}

/// One attribute, as text if possible.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnInfo {
    /// A PMIx attribute (`pmix.wdir`), or a key of an `MPI_Info` (`wdir`).
    pub key: String,
    /// Its value; `true` or `false` for truth values, empty where nothing was given.
    pub value: String,
    /// The request fails unless this is honoured.
    pub required: bool,
}

/// Why nothing was spawned.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnFailure {
    /// What kind of failure.
    pub kind: SpawnFailureKind,
    /// One line for people: what, where, and the remedy.
    pub text: String,
}

/// Failures that a caller can distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SpawnFailureKind {
    /// A program does not exist.
    NotFound,
    /// A program cannot be executed, or its directory not be entered.
    NotExecutable,
    /// There are not enough slots.
    NoSlots,
    /// The request makes no sense.
    BadRequest,
    /// Something was required that is not offered.
    NotSupported,
    /// The job could not be created, or ended before it could be announced.
    Failed,
    /// It took longer than allowed.
    TimedOut,
    /// The launch is being ended.
    Ending,
}

/// The result of a [`SpawnRequest`]: the new job's name.
pub type SpawnResult = Result<Nspace, SpawnFailure>;

/// The supported PMIx attributes of a spawn, comma separated, for queries.
pub const HONOURED: &str = "pmix.host,pmix.hostfile,pmix.addhost,pmix.addhostfile,pmix.wdir,\
                            pmix.envar.set,pmix.envar.add,pmix.envar.unset,pmix.envar.prepnd,\
                            pmix.envar.appnd,pmix.mapby,pmix.ppr,pmix.nolocal,pmix.noover,\
                            pmix.preloadbin,pmix.preloadfiles,pmix.spchildsep,\
                            pmix.timeout,pmix.sp.time,pmix.notecomp,\
                            pmix.fwd.stdin,pmix.stdin,pmix.alloc.id,pmix.pset.nm";
