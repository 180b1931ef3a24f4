//! Errors in a request.

use std::ffi::OsString;
use std::path::PathBuf;

use wireup_core::link::agent_protocol::NODES_MAX;

/// Errors in a request. Every text names the field and the remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    /// No name for a launch.
    #[error(
        "launch_id {0:?}: use 1 to 64 of A-Z a-z 0-9 . _ -, beginning with a letter or a digit"
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
    #[error("the ranks of job.apps add up to {ranks}, world_size is {size}; each needs at least 1")]
    AppRanks { ranks: u64, size: u32 },
    #[error("{0} has a zero byte in it")]
    Nul(&'static str),
    #[error("directory {0:?} must be an absolute path")]
    Directory(PathBuf),
    /// No name for a variable.
    #[error("variable {0:?}: a name is not empty and has neither = nor a zero byte in it")]
    VariableName(OsString),
    /// No value for a variable.
    #[error("variable {0:?}: its value has a zero byte in it")]
    VariableValue(OsString),
    /// Too long a key.
    #[error("cxi_credentials.auth_key of {0} bytes: at most 256 are possible")]
    Key(usize),
    #[error("pmi_mode {0} is not known to this agent: use PMI2, PMIX, AUTO, PMI1, ALL or NONE")]
    PmiMode(i32),
    /// The target of standard input is unknown.
    #[error("job.stdin has neither a rank nor all: leave it out if no rank reads")]
    Stdin,
    /// The job has no such rank.
    #[error("job.stdin is for rank {rank}, the last rank is {last}", last = size - 1)]
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
    #[error("job.exit_policy names rank {rank}, the last rank is {last}", last = size - 1)]
    ExitRank {
        rank: u32,
        /// The number of ranks.
        size: u32,
    },
    /// The umask is invalid.
    #[error("job.umask 0o{0:o}: at most 0o777 is possible")]
    Umask(u32),
    /// No rank anywhere, or too many.
    #[error("world_size is {0}: a launch has 1 to 1048576 ranks")]
    Size(u32),
    /// Fields that need others.
    #[error(
        "without peers this node is the only one: first_rank {first} must be 0, and tasks_per_node \
         {tasks} the same as world_size {size}"
    )]
    Alone { first: u32, tasks: u32, size: u32 },
    /// The launch has too many nodes.
    #[error("peers has {0} nodes: a launch has at most {NODES_MAX}")]
    Nodes(usize),
    /// A node without a name, or whose name cannot be one.
    #[error("peers[{0}].node_id {1:?} cannot be a node's name: give the one its agent has")]
    NodeId(usize, String),
    /// A name that occurs twice.
    #[error("peers has node {0:?} twice: each node is in it once, with all its ranks")]
    TwiceNode(String),
    /// An address that occurs twice.
    #[error("peers has the address {0:?} twice: each node has an agent of its own")]
    TwiceAddress(String),
    /// An address that cannot be one.
    #[error("peers[{index}].grpc_address {address:?}: give HOST:PORT or [ADDRESS]:PORT")]
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
    #[error("{field} is {index}, peers has {nodes} nodes, counted from 0")]
    NoNode {
        field: &'static str,
        index: u32,
        /// The number of nodes.
        nodes: usize,
    },
    /// The fields about this node contradict the list.
    #[error(
        "tasks_per_node {tasks} and first_rank {first} are not those of peers[{node}]: {ranks} ranks \
         from {peer_first} on"
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
    #[error("the num_ranks of peers add up to {ranks}, world_size is {size}")]
    Sum { ranks: u64, size: u32 },
    /// The nodes' ranks leave a gap or overlap.
    #[error(
        "peers[{node}].first_rank is {first}, the nodes before it end at {expected}: make them \
         consecutive, or give job.layout"
    )]
    Gap {
        node: usize,
        first: u32,
        expected: u32,
    },
    /// Blocks that contradict the list.
    #[error("job.layout gives node {node} {ranks} ranks, peers has {expected} for it")]
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
        "job.layout's lowest rank on node {node} is {lowest}, peers[{node}].first_rank is {first}"
    )]
    LayoutFirst {
        node: usize,
        lowest: u32,
        first: u32,
    },
}
