//! On which hosts a job runs, and how they reach each other.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::job::builds::BuildMismatchPolicy;
use crate::job::hosts::HostSpec;
use crate::job::ids::NodeId;
use crate::job::octets;

/// In which order ranks are given to nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum MapBy {
    /// A node is filled before the next one.
    #[default]
    Slot,
    /// Each node gets one rank in turn.
    Node,
}

/// Default for the largest number of nodes that form a star.
pub const STAR_LIMIT: u32 = 32;

/// Default number of children of a node in a larger launch.
pub const TREE_WIDTH: u32 = 4;

/// Connections between the hosts of a launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AgentTreeSpec {
    /// Up to this many hosts are all contacted by the first.
    pub star_limit: u32,
    /// Otherwise each host contacts at most this many others; at least 2.
    pub tree_width: u32,
    /// Socket of this machine's agent, instead of the one found.
    #[serde(with = "octets")]
    pub agent: Option<PathBuf>,
    /// Agents of this launch alone, instead of those that run on the hosts.
    pub starter: Option<AgentLaunchCommand>,
    /// Reaction to hosts that have other builds of a program or its MPI library.
    pub same_build: BuildMismatchPolicy,
}

/// Command that starts the agents of one launch on its hosts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AgentLaunchCommand {
    /// The batch system, or the option that gives the command.
    pub name: String,
    /// Command line in front of the agent's. In each word, `{host}` is the name of the only host of a part, `{hosts}`
    /// those of all its hosts with commas, `{count}` their number, and `{part}` the part's own number.
    pub command: Vec<String>,
    /// All hosts, in parts: the command is executed once for each part, and starts agents on its hosts.
    pub parts: Vec<Vec<String>>,
    /// Variables that the command must not have.
    pub without: Vec<String>,
    /// Command that prints the addresses of hosts, to which their list is appended, for names that only the batch
    /// system can resolve; empty if there is none. A line of its output has the words `NodeName=NAME NodeAddr=ADDRESS`.
    pub addresses: Vec<String>,
}

impl AgentLaunchCommand {
    /// Creates a command that reaches hosts one by one if it has `{host}`, and otherwise all at once.
    pub fn new(name: &str, command: Vec<String>, hosts: Vec<String>) -> Self {
        let each = command.iter().any(|word| word.contains("{host}"));
        Self {
            name: name.to_owned(),
            command,
            parts: match each {
                true => hosts.into_iter().map(|host| vec![host]).collect(),
                false => vec![hosts],
            },
            without: Vec::new(),
            addresses: Vec::new(),
        }
    }

    pub fn hosts(&self) -> Vec<String> {
        self.parts.concat()
    }

    /// Returns the command for a part.
    pub fn command_for(&self, part: usize) -> Vec<String> {
        let hosts = self.parts.get(part).map(Vec::as_slice).unwrap_or_default();
        let only = hosts.first().map(String::as_str).unwrap_or_default();
        let filled = |word: &String| {
            let word = word.replace("{hosts}", &hosts.join(","));
            let word = word.replace("{count}", &hosts.len().to_string());
            let word = word.replace("{part}", &part.to_string());
            word.replace("{host}", only)
        };
        self.command.iter().map(filled).collect()
    }
}

/// Placement of the ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LayoutSpec {
    /// The nodes, in the order of their numbers; this machine when empty.
    pub hosts: Vec<HostSpec>,
    /// Connections between the hosts.
    pub spread: AgentTreeSpec,
    /// Number of nodes this machine acts as; at least 1, and 1 if there are hosts.
    pub virtual_nodes: u32,
    /// Most ranks on a node; when absent, a host's slots, or as even as possible.
    pub ppn: Option<u32>,
    /// The order of placement.
    pub map_by: MapBy,
    /// Instead of all that: nodes and numbers of ranks, in the order of ranks.
    pub runs: Vec<(NodeId, u32)>,
    /// Slots of this machine, if the user set them; otherwise one for each usable core.
    pub slots: Option<u32>,
    /// Allow more ranks than slots.
    pub oversubscribe: bool,
}

impl Default for AgentTreeSpec {
    fn default() -> Self {
        Self {
            star_limit: STAR_LIMIT,
            tree_width: TREE_WIDTH,
            agent: None,
            starter: None,
            same_build: BuildMismatchPolicy::default(),
        }
    }
}

impl Default for LayoutSpec {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            spread: AgentTreeSpec::default(),
            virtual_nodes: 1,
            ppn: None,
            map_by: MapBy::default(),
            runs: Vec::new(),
            slots: None,
            oversubscribe: false,
        }
    }
}

impl LayoutSpec {
    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        match self.hosts.len() {
            0 => self.virtual_nodes,
            hosts => u32::try_from(hosts).expect("lists of hosts are bounded"),
        }
    }

    /// Whether the nodes are other machines, each with an agent.
    pub fn across_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }
}
