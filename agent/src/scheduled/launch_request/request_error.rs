//! Errors in a request.

use std::ffi::OsString;
use std::path::PathBuf;

use wireup_core::link::agent_protocol::NODES_MAX;

/// Errors in a request. Every text names the field and the remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    /// No name for a launch.
    #[error(
        "invalid launch_id {0:?}: use 1 to 64 of A-Z a-z 0-9 . _ -, beginning with a letter or a digit"
    )]
    LaunchId(String),
    /// Too long a name, or a zero byte in it.
    #[error("allocation_id of {0} bytes: use at most 256, without a zero byte")]
    Allocation(usize),
    /// The request has no program.
    #[error("no program: set entrypoint, or program in each of job.apps")]
    NoProgram,
    #[error("job.apps has {0} programs: use at most 4096, or several launches")]
    Apps(usize),
    #[error("invalid request: {0}")]
    Encoding(String),
    /// Programs times variables of the launch.
    #[error(
        "{0} programs in job.apps with {1} variables in env: use fewer variables, or env of the programs that need \
         them; programs times variables may be at most 1048576"
    )]
    Names(usize, usize),
    /// Both ways to name programs.
    #[error("both entrypoint or args and job.apps are set: use one of them")]
    TwoPrograms,
    /// The programs' ranks are not the job's.
    #[error(
        "the ranks of job.apps add up to {ranks}, but world_size is {size}: make them equal, with at least 1 rank for each program"
    )]
    AppRanks { ranks: u64, size: u32 },
    #[error("{0} contains a zero byte; remove it")]
    Nul(&'static str),
    #[error("directory {0:?} must be an absolute path")]
    Directory(PathBuf),
    /// No name for a variable.
    #[error("invalid variable name {0:?}: it must not be empty or contain = or a zero byte")]
    VariableName(OsString),
    /// No value for a variable.
    #[error("invalid value of variable {0:?}: it must not contain a zero byte")]
    VariableValue(OsString),
    /// Too long a key.
    #[error("cxi_credentials.auth_key has {0} bytes: at most 256 are allowed")]
    Key(usize),
    #[error("unknown pmi_mode {0}: use PMI2, PMIX, AUTO, PMI1, ALL or NONE")]
    PmiMode(i32),
    /// The target of standard input is unknown.
    #[error("job.stdin has neither a rank nor all: omit it if no rank reads")]
    Stdin,
    /// The job has no such rank.
    #[error("invalid rank {rank} in job.stdin: the last rank is {last}", last = size - 1)]
    StdinRank {
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
    /// The exit policy is unknown.
    #[error("job.exit_policy {text:?}: {remedy}")]
    ExitPolicy {
        /// Text from the request.
        text: String,
        remedy: &'static str,
    },
    /// The job has no such rank.
    #[error("invalid rank {rank} in job.exit_policy: the last rank is {last}", last = size - 1)]
    ExitRank {
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
    /// The umask is invalid.
    #[error("invalid job.umask 0o{0:o}: use at most 0o777")]
    Umask(u32),
    /// No rank anywhere, or too many.
    #[error("invalid world_size {0}: use 1 to 1048576")]
    Size(u32),
    /// Fields that need others.
    #[error(
        "without peers this node is the only one: first_rank {first} must be 0, and tasks_per_node \
         {tasks} the same as world_size {size}"
    )]
    Alone { first: u32, tasks: u32, size: u32 },
    /// The launch has too many nodes.
    #[error("peers has {0} nodes: use at most {NODES_MAX}")]
    Nodes(usize),
    /// A node without a name, or whose name cannot be one.
    #[error("invalid peers[{0}].node_id {1:?}: use the name of the node's agent")]
    NodeId(usize, String),
    /// A name that occurs twice.
    #[error("peers has node {0:?} twice: list each node once, with all its ranks")]
    TwiceNode(String),
    /// An address that occurs twice.
    #[error("peers has the address {0:?} twice: each node needs its own agent")]
    TwiceAddress(String),
    /// An address that cannot be one.
    #[error("invalid peers[{index}].grpc_address {address:?}: use HOST:PORT or [ADDRESS]:PORT")]
    Address {
        index: usize,
        /// Address from the request.
        address: String,
    },
    /// The agent is not among the nodes.
    #[error(
        "this agent is {node_name:?}, which is not in peers: call the agents of the launch's nodes, or set \
         node_index"
    )]
    NotHere { node_name: String },
    /// The launch has no such node.
    #[error("invalid {field} {index}: peers has {nodes} nodes, counted from 0")]
    NoNode {
        field: &'static str,
        index: u32,
        /// The number of nodes.
        nodes: usize,
    },
    /// The fields about this node contradict the list.
    #[error(
        "tasks_per_node {tasks} and first_rank {first} do not match peers[{node}], which has {ranks} ranks from \
         {peer_first} on"
    )]
    OtherRanks {
        tasks: u32,
        first: u32,
        node: u32,
        /// Number of the node's ranks in the list.
        ranks: u32,
        /// First rank of the node in the list.
        peer_first: u32,
    },
    /// The nodes' ranks are not the job's.
    #[error("the num_ranks of peers add up to {ranks}, but world_size is {size}: make them equal")]
    Sum { ranks: u64, size: u32 },
    /// The nodes' ranks leave a gap or overlap.
    #[error(
        "peers[{node}].first_rank is {first}, but the nodes before it end at {expected}: make them consecutive, or set \
         job.layout"
    )]
    Gap {
        node: usize,
        first: u32,
        expected: u32,
    },
    /// Blocks that contradict the list.
    #[error(
        "job.layout gives node {node} {ranks} ranks, but peers gives it {expected}: make them equal"
    )]
    Layout {
        node: usize,
        ranks: u64,
        expected: u32,
    },
    /// An empty block, or one on no node.
    #[error("job.layout.blocks[{0}] has no ranks, or a node that peers does not have")]
    Block(usize),
    /// Blocks whose first rank of a node is not the list's.
    #[error(
        "the lowest rank of node {node} in job.layout is {lowest}, but peers[{node}].first_rank is {first}: make them equal"
    )]
    LayoutFirst {
        node: usize,
        lowest: u32,
        first: u32,
    },
}
