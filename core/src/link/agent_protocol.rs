//! Messages between a launcher or step and its agent, and reports of agents to a launcher.
//!
//! ```text
//! launcher                agent                          step
//!    │ ── Open ─────────▶ │  (user known by SO_PEERCRED)
//!    │                    │ ── starts it as the user ──▶ │
//!    │                    │ ── Begin ──────────────────▶ │
//!    │ ◀─ Unreachable ─── │  (per part of the tree that cannot be reached or was lost)
//!    │ ◀─ Returned ────── │  (a lost host answers again)
//!    │ ◀═════════════ carried frames, both ways ═══════▶ │
//!    │ ── Grow ─────────▶ │  (nodes join; the root's agent contacts theirs)
//!    │ ── closes ───────▶ │ ── Orphaned ───────────────▶ │  ends its ranks, then itself
//! ```

use std::time::Duration;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::job::hosts::HostSpec;
pub use crate::job::hosts::PORT;
use crate::job::ids::NodeId;
use crate::job::octets;
use crate::link::routing_tree::RoutingTree;
use crate::metrics::Histogram;

/// Version of everything on the links. Processes of different versions refuse each other.
pub const VERSION: u32 = 19;

/// The end of an agent's reason for a loss if it is silence.
pub const NO_SIGN: &str = "no sign of life";

/// Most nodes of a launch, and of a question about nodes.
pub const NODES_MAX: usize = crate::job::hosts::HOSTS_MAX;

/// One node of a launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeAddress {
    /// The node's name, which its agent's certificate must contain.
    pub name: String,
    /// Address at which the node's agent listens: `HOST:PORT`; `[ADDRESS]:PORT` for IPv6.
    pub address: String,
}

impl From<&HostSpec> for NodeAddress {
    fn from(host: &HostSpec) -> Self {
        Self {
            name: host.name.clone(),
            address: host.address.clone(),
        }
    }
}

/// Nodes of a launch and the shape of its trees.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchTree {
    /// The nodes, in the order of their numbers. The first one's agent is the root. At most [`NODES_MAX`].
    #[serde(deserialize_with = "bounded")]
    pub nodes: Vec<NodeAddress>,
    /// Number of nodes that joined after the start of the launch; these are the last ones.
    pub joined: u32,
    /// Up to this many nodes are all contacted by the root.
    pub star_limit: u32,
    /// Otherwise each agent contacts this many others; at least 2.
    pub width: u32,
}

impl LaunchTree {
    /// Returns the tree over the nodes.
    ///
    /// # Panics
    /// If there are more nodes than a `u32` counts.
    pub fn tree(&self) -> RoutingTree {
        let nodes = u32::try_from(self.nodes.len()).expect("lists of nodes are bounded");
        let first = nodes.saturating_sub(self.joined);
        RoutingTree::new(first, self.star_limit, self.width).grown(nodes)
    }
}

/// To an agent's local socket, from a launcher.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AgentRequest {
    /// Starts a launch. The connection belongs to it from now on; its end is the launch's end.
    Open {
        /// [`VERSION`] of the launcher.
        version: u32,
        /// Name of the launch, unique and not to be guessed.
        launch: String,
        /// Id of the job at a scheduler; empty without a scheduler.
        scheduled: String,
        spread: LaunchTree,
        /// Launch description for the steps; agents do not parse it.
        #[serde(with = "octets")]
        description: Vec<u8>,
    },
    /// Adds nodes to the launch that was opened on this connection. Those that cannot join are reported with
    /// [`AgentReport::Unreachable`].
    Grow {
        /// Nodes that get the next numbers, in this order, whether or not they join.
        #[serde(deserialize_with = "bounded")]
        members: Vec<NodeAddress>,
        /// Launch description for the steps of these nodes.
        #[serde(with = "octets")]
        description: Vec<u8>,
    },
    /// Queries the nodes that this agent has, and their state; answered by [`AgentReport::Nodes`].
    Nodes {
        /// [`VERSION`] of the caller.
        version: u32,
        /// Nodes that are queried; this agent alone when empty.
        #[serde(deserialize_with = "bounded")]
        members: Vec<NodeAddress>,
    },
    /// To an agent, or to a name server process: a launch of the calling user connects to the name
    /// server. The following messages are not forwarded:
    /// [`ToRendezvous`](crate::name_server::message::ToRendezvous), and in the other direction
    /// [`FromRendezvous`](crate::name_server::message::FromRendezvous).
    Meet {
        /// [`VERSION`] of the launcher.
        version: u32,
        /// Only launches with the same value see each other; at most
        /// [`MEET_MAX`](crate::name_server::MEET_MAX) bytes, or none.
        name: String,
    },
    /// The launch that was opened on this connection is about to end.
    Ended(LaunchSummary),
}

/// Summary of a launch, for the metrics of the agent of the launcher's machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchSummary {
    /// Whether the launch failed.
    pub failed: bool,
    /// Processes that were started, those of spawned jobs included.
    pub ranks: u32,
    /// PMIx servers that were started again.
    pub sidecar_restarts: u32,
    /// Durations of the launch's fences, from the last entry to the release, if they were observed.
    pub fences: Histogram,
}

/// From an agent, to a launcher.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AgentReport {
    /// The request is refused, and the connection ends.
    Refused {
        /// One line: the reason, and the remedy.
        reason: String,
    },
    /// Nodes that take no part in the launch, or no longer do. Frames to them are dropped.
    Unreachable(NodeLoss),
    Nodes(Vec<NodeStatus>),
    /// The agent of a node that was reported as lost answers again. The node takes no part all the same.
    Returned(NodeReturned),
}

/// Nodes that take no part in a launch, or no longer do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeLoss {
    /// Lost nodes. The first one failed; the others are behind it in the tree.
    pub nodes: Vec<NodeId>,
    /// One line for people.
    pub reason: String,
    /// Whether only the node's step has ended; its agent continues to route frames.
    pub step: bool,
}

/// The agent of a lost node answers again. The node takes no part all the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeReturned {
    pub node: NodeId,
    /// Whether the node's machine has rebooted since the loss; otherwise it was only silent.
    pub rebooted: bool,
}

/// Status of a node and its agent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeStatus {
    pub name: String,
    /// The address that its agent advertises; empty if it was not reached.
    pub advertised: String,
    /// Address of the query; empty for the agent that got the request.
    #[serde(rename = "asked")]
    pub queried_address: String,
    /// Version of its agent; empty when it was not reached.
    pub version: String,
    /// Launches it takes part in.
    pub launches: u32,
    /// Whether the agent accepts no new launch and exits after the last one.
    pub draining: bool,
    /// Error of the query.
    pub problem: Option<String>,
    /// Interfaces of its launches; `None` if its agent does not report them.
    pub capabilities: Option<NodeCapabilities>,
}

/// Process-management interfaces that a node can offer to ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeCapabilities {
    /// Names as of `--pmi`: `pmi1`, `pmi2`, and `pmix` if the PMIx server is installed.
    pub interfaces: Vec<String>,
    /// Release of the libpmix for programs that have none of their own, if there is one.
    pub libpmix: Option<String>,
    /// Error if the PMIx server or that libpmix is missing.
    pub pmix_problem: Option<String>,
}

impl NodeCapabilities {
    /// Returns why no program can be offered PMIx, if that is so.
    pub fn missing_pmix(&self) -> Option<&str> {
        let is_missing = !self.interfaces.iter().any(|name| name == "pmix");
        is_missing.then(|| self.pmix_problem.as_deref().unwrap_or_default())
    }
}

/// From an agent, to a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StepCommand {
    Begin {
        /// [`VERSION`] of the agent.
        version: u32,
        /// The node this step is for.
        node: NodeId,
        /// Name of the launch.
        launch: String,
        /// Nodes and tree shape of the launch.
        spread: LaunchTree,
        /// Longest accepted silence of a process of the launch on this host.
        silence: Duration,
        /// Launch description, as the launcher has sent it.
        #[serde(with = "octets")]
        description: Vec<u8>,
    },
    /// The launcher cannot be reached any more.
    Orphaned { reason: String },
}

/// From a step, to its agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StepReport {
    /// The agent's version is not the step's, which ends.
    OtherVersion {
        /// [`VERSION`] of the step.
        version: u32,
    },
}

/// Returns the version in the first message on a link, even if the message itself has the format of another version.
///
/// Rule: the version follows the number of the message, in all versions. Source:
/// docs/decisions/0009-bodies-of-frames-are-postcard.md.
pub fn version_in(message: &[u8]) -> Option<u32> {
    // Of the kinds of first messages.
    const NUMBERS: u32 = 4;
    let ((number, version), _) = postcard::take_from_bytes::<(u32, u32)>(message).ok()?;
    (number < NUMBERS).then_some(version)
}

/// Reads a list of at most [`NODES_MAX`] nodes. One that claims more is refused before it is held.
fn bounded<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<NodeAddress>, D::Error> {
    struct Members;

    impl<'de> Visitor<'de> for Members {
        type Value = Vec<NodeAddress>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "at most {NODES_MAX} nodes")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<NodeAddress>, A::Error> {
            let claimed = from.size_hint().unwrap_or(usize::MAX);
            if claimed > NODES_MAX {
                return Err(A::Error::invalid_length(claimed, &self));
            }
            let mut members = Vec::with_capacity(claimed);
            while let Some(member) = from.next_element()? {
                members.push(member);
            }
            Ok(members)
        }
    }

    from.deserialize_seq(Members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{decode, encode};

    #[test]
    fn version_of_first_message_is_read_whatever_follows() {
        let mut messages = vec![encode(&StepReport::OtherVersion { version: 7 })];
        let spread = LaunchTree {
            nodes: Vec::new(),
            joined: 0,
            star_limit: 1,
            width: 2,
        };
        messages.push(encode(&StepCommand::Begin {
            version: 7,
            node: NodeId(9),
            launch: "l".into(),
            spread: spread.clone(),
            silence: Duration::ZERO,
            description: Vec::new(),
        }));
        messages.push(encode(&AgentRequest::Open {
            version: 7,
            launch: "l".into(),
            scheduled: String::new(),
            spread,
            description: Vec::new(),
        }));
        messages.push(encode(&AgentRequest::Meet {
            version: 7,
            name: "n".into(),
        }));
        messages.push(encode(&(3_u32, 7_u32, "of a later version")));
        for message in messages {
            assert_eq!(version_in(&message), Some(7), "{message:?}");
        }
        assert_eq!(version_in(b""), None);
        assert_eq!(version_in(&[77; 10]), None);
    }

    #[test]
    fn oversized_node_list_is_refused_at_decoding() {
        let nodes = |count| {
            let nobody = NodeAddress {
                name: String::new(),
                address: String::new(),
            };
            let members = vec![nobody; count];
            decode::<AgentRequest>(&encode(&AgentRequest::Nodes {
                version: VERSION,
                members,
            }))
        };
        assert!(nodes(NODES_MAX).is_ok());
        assert!(nodes(NODES_MAX + 1).is_err());
    }
}
