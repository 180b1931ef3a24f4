//! Executables of wireup, and the hidden commands with which its processes start each other.
//!
//! ARCHITECTURE.md has the table of these processes.

/// Executable of the agent, and of what needs its runtime.
pub const AGENT: &str = "wireup-agent";

/// Executable that speaks Interoperable MPI.
pub const IMPI: &str = "wireup-impi";

/// Command of `wireup`: the privileged helper of an agent, which starts step daemons.
pub const STEP_SERVER: &str = "steps";

/// Command of `wireup`: prints the
/// [capabilities](crate::link::agent_protocol::NodeCapabilities) of its host for an agent, as JSON.
pub const CAPABILITIES: &str = "capabilities";

/// Command of [`AGENT`]: the first agent of a launch, whose launcher it serves over [`LAUNCH_LINK`].
pub const LAUNCH_ENTRY: &str = "launch-entry";

/// Descriptor of the launcher's link in a process of [`LAUNCH_ENTRY`].
pub const LAUNCH_LINK: i32 = 3;

/// Command of [`AGENT`]: asks PBS to start an agent on another host of the batch allocation.
pub const TASK_CALLER: &str = "tm-caller";

/// Command of [`AGENT`]: looks hosts up. Its arguments: the lookup, the number of hosts, milliseconds.
pub const FIND_HOSTS: &str = "find-hosts";

/// Command of [`AGENT`]: obtains and revokes a fabric grant.
pub const GRANT_HOLDER: &str = "fabric-keeper";

/// Command of [`AGENT`]: serves TLS in front of the PMI port of a rank. Its arguments: the socket of the rank proxy, the rank.
pub const PMI_TLS_PORT: &str = "pmi-tls-port";

/// Command of [`AGENT`]: sends the spans of a launch, which it reads from standard input, to a collector.
pub const EXPORT_SPANS: &str = "export-spans";
