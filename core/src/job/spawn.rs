//! Spawn requests of processes, over any protocol, and their results.

use serde::{Deserialize, Serialize};

use super::ids::{GlobalRank, NodeId, Nspace};
use super::octets;
use super::proc::Proc;

/// The requester of a job; `R` identifies a rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SpawnRequester<R = GlobalRank> {
    /// A process of the launch.
    Rank(R),
    /// A tool, which is attached to the server of the node that passes the request on.
    Tool(Proc),
}

impl<R> SpawnRequester<R> {
    /// Identifies its rank another way, if that is possible.
    pub fn try_map<S>(self, identify: impl FnOnce(R) -> Option<S>) -> Option<SpawnRequester<S>> {
        Some(match self {
            Self::Rank(rank) => SpawnRequester::Rank(identify(rank)?),
            Self::Tool(name) => SpawnRequester::Tool(name),
        })
    }
}

/// The requester of a job, as all nodes of the launch know it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum JobRequester {
    /// The user, directly, through a scheduler or a controlling process.
    #[default]
    User,
    /// A process of the launch.
    Rank(Proc),
    Tool(ToolRequester),
}

impl JobRequester {
    /// The parent of the job's processes for MPI and PMI: no tool is one.
    pub fn parent(&self) -> Option<&Proc> {
        match self {
            Self::Rank(parent) => Some(parent),
            Self::User | Self::Tool(_) => None,
        }
    }

    pub fn tool(&self) -> Option<&ToolRequester> {
        match self {
            Self::Tool(tool) => Some(tool),
            Self::User | Self::Rank(_) => None,
        }
    }

    /// The process or tool that spawned the job, for PMIx.
    pub fn spawner(&self) -> Option<&Proc> {
        match self {
            Self::User => None,
            Self::Rank(parent) => Some(parent),
            Self::Tool(tool) => Some(&tool.name),
        }
    }
}

/// The tool that has requested a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ToolRequester {
    pub name: Proc,
    /// The node to whose server it is attached.
    pub node: NodeId,
    /// Whether the tool gets the job's standard output. The launcher does not get it while the tool is attached.
    pub stdout: bool,
    /// Whether the tool gets the job's standard error, on the same terms.
    pub stderr: bool,
}

/// A job to be started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnRequest {
    /// Applications to start, in the order of application contexts; at least one.
    pub apps: Vec<SpawnApp>,
    /// Attributes of the whole job.
    pub infos: Vec<SpawnInfo>,
    /// Pairs for the new job's PMI key-value store, there before its ranks start.
    pub preputs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Variable or key with which MPICH and Intel MPI pass the parent's port to spawned processes.
const MPICH_PARENT_PORT: &str = "PARENT_ROOT_PORT_NAME";

/// Variable with which Open MPI passes the parent's port; empty with the info key `ompi_non_mpi`.
const OPENMPI_PARENT_PORT: &str = "OMPI_PARENT_PORT";

impl SpawnRequest {
    /// Whether this is the request of an `MPI_Comm_spawn`: the parent waits until the new processes connect to
    /// the port that the request passes to them.
    pub fn expects_mpi(&self) -> bool {
        let has_port = |entry: &std::ffi::OsString| {
            let entry = entry.as_encoded_bytes();
            let port = |name: &str| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=");
            let port = port(MPICH_PARENT_PORT).or_else(|| port(OPENMPI_PARENT_PORT));
            port.is_some_and(|port| !port.is_empty())
        };
        let mut keys = self.preputs.iter().map(|(key, _)| key);
        keys.any(|key| key == MPICH_PARENT_PORT.as_bytes())
            || self.apps.iter().flat_map(|app| &app.env).any(has_port)
    }
}

/// One application context of a [`SpawnRequest`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnApp {
    /// The program, absolute or not.
    #[serde(with = "octets")]
    pub program: std::ffi::OsString,
    /// Arguments without the program's name; each may be empty.
    #[serde(with = "octets")]
    pub args: Vec<std::ffi::OsString>,
    /// Variables for its ranks, `NAME=VALUE`, that must reach them as they are.
    #[serde(with = "octets")]
    pub env: Vec<std::ffi::OsString>,
    /// Working directory; that of the spawning job's first application when absent.
    #[serde(with = "octets")]
    pub cwd: Option<std::path::PathBuf>,
    /// Number of ranks; may be 0 if the attributes decide.
    pub count: u32,
    /// Attributes of this application context.
    pub infos: Vec<SpawnInfo>,
}

/// One attribute, as text if possible.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnInfo {
    /// A PMIx attribute (`pmix.wdir`), or a key of an `MPI_Info` (`wdir`).
    pub key: String,
    /// Value as text; `true` or `false` for truth values, empty without a value.
    pub value: String,
    /// The request fails unless this is honoured.
    pub required: bool,
}

/// Error: the spawn was refused or failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SpawnFailure {
    pub kind: SpawnFailureKind,
    /// One line for people: the failure, its place, and the remedy.
    pub text: String,
}

impl SpawnFailure {
    /// Creates a failure of a kind with the line for people.
    pub fn new(kind: SpawnFailureKind, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text }
    }
}

/// Failures that a caller can distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SpawnFailureKind {
    /// A program does not exist.
    NotFound,
    /// A program cannot be executed, or its directory not be entered.
    NotExecutable,
    /// The launch has too few free slots.
    NoSlots,
    /// The request makes no sense.
    BadRequest,
    /// Something was required that is not offered.
    NotSupported,
    /// The job could not be created, or ended before it could be announced.
    Failed,
    /// The allowed time has passed.
    TimedOut,
    /// The launch is being ended.
    Ending,
}

/// The result of a [`SpawnRequest`]: the new job's name.
pub type SpawnResult = Result<Nspace, SpawnFailure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpi_spawn_is_recognised_by_port_of_parent() {
        let request = |env: &[&str], preput: Option<&str>| SpawnRequest {
            apps: vec![SpawnApp {
                program: "p".into(),
                args: Vec::new(),
                env: env.iter().map(Into::into).collect(),
                cwd: None,
                count: 1,
                infos: Vec::new(),
            }],
            infos: Vec::new(),
            preputs: preput
                .map(|key| (key.into(), b"port".to_vec()))
                .into_iter()
                .collect(),
        };
        for (env, preput, expected) in [
            (&["A=1"][..], None, false),
            (&[], Some("other"), false),
            (&[], Some("PARENT_ROOT_PORT_NAME"), true),
            (&["PARENT_ROOT_PORT_NAME=tag#0$"], None, true),
            (&["A=1", "OMPI_PARENT_PORT=1.0:2"], None, true),
            // Open MPI with the info key ompi_non_mpi.
            (&["OMPI_PARENT_PORT="], None, false),
            (&["OMPI_PARENT_PORTS=1"], None, false),
        ] {
            let request = request(env, preput);
            assert_eq!(request.expects_mpi(), expected, "{request:?}");
        }
    }
}
