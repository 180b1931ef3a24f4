//! What a launcher or step and its agent say to each other, and what agents tell a launcher.
//!
//! ```text
//! launcher                agent                          step
//!    │ ── Open ─────────▶ │  (user known by SO_PEERCRED)
//!    │                    │ ── starts it as the user ──▶ │
//!    │                    │ ── Begin ──────────────────▶ │
//!    │ ◀─ Unreachable ─── │  (per part of the tree that cannot be reached or was lost)
//!    │ ◀═════════════ carried frames, both ways ═══════▶ │
//!    │ ── Grow ─────────▶ │  (nodes join; the root's agent contacts theirs)
//!    │ ── closes ───────▶ │ ── Orphaned ───────────────▶ │  ends its ranks, then itself
//! ```

use serde::{Deserialize, Serialize};

use super::tree::{Shape, Tree};
pub use crate::job::hosts::PORT;
use crate::job::ids::NodeId;

/// Version of everything on the links. Agents and launchers of different versions refuse each other.
pub const VERSION: u32 = 1;

/// One node of a launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The node's name: what its agent's certificate must be for.
    pub name: String,
    /// Where its agent listens: `HOST:PORT`; `[ADDRESS]:PORT` for IPv6.
    pub address: String,
}

/// How a launch is spread over its nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Spread {
    /// The nodes, in the order of their numbers. The first one's agent is the root.
    pub members: Vec<Member>,
    /// How many of them joined after the launch had begun; these are the last ones.
    pub joined: u32,
    /// Up to this many nodes are all contacted by the root.
    pub star_limit: u32,
    /// Otherwise each agent contacts this many others; at least 2.
    pub width: u32,
}

impl Spread {
    /// How wide its trees are.
    pub fn shape(&self) -> Shape {
        Shape {
            star_limit: self.star_limit,
            width: self.width,
        }
    }

    /// The tree over the nodes.
    ///
    /// # Panics
    /// If there are more nodes than a `u32` counts.
    pub fn tree(&self) -> Tree {
        let nodes = u32::try_from(self.members.len()).expect("lists of nodes are bounded");
        let first = nodes.saturating_sub(self.joined);
        self.shape().over(first).grown(nodes)
    }
}

/// To an agent's local socket, from a launcher.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToAgent {
    /// Starts a launch. The connection belongs to it from now on; its end is the launch's end.
    Open {
        /// [`VERSION`] of the launcher.
        version: u32,
        /// Name of the launch, unique and not to be guessed.
        launch: String,
        /// What a scheduler calls it; empty if none does.
        scheduled: String,
        /// Its nodes.
        spread: Spread,
        /// What the steps need to know; nothing for agents.
        description: Vec<u8>,
    },
    /// More nodes are to join the launch that was opened on this connection. Those that cannot are
    /// told with [`FromAgent::Unreachable`], as always.
    Grow {
        /// They get the next numbers, in this order, whether they come to take part or not.
        members: Vec<Member>,
        /// What their steps need to know.
        description: Vec<u8>,
    },
    /// Asks what nodes this agent knows and how they are; answered by [`FromAgent::Nodes`].
    Nodes {
        /// [`VERSION`] of who asks.
        version: u32,
        /// Whom to ask; this agent alone when empty.
        members: Vec<Member>,
    },
    /// To an agent, or to a process that is a rendezvous: a launch of the user who calls wants to meet
    /// others. What follows on the connection is carried for nobody:
    /// [`ToRendezvous`](crate::rendezvous::message::ToRendezvous), and in the other direction
    /// [`FromRendezvous`](crate::rendezvous::message::FromRendezvous).
    Meet {
        /// [`VERSION`] of the launcher.
        version: u32,
        /// Those meet that say the same; at most [`MEET_MAX`](crate::rendezvous::MEET_MAX) bytes, or none.
        name: String,
    },
}

/// From an agent, to a launcher.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FromAgent {
    /// What was asked for is not done, and the connection ends.
    Refused {
        /// One line: why, and what to do.
        reason: String,
    },
    /// Nodes that take no part in the launch, or no longer do. Frames to them are dropped.
    Unreachable {
        /// Which.
        nodes: Vec<NodeId>,
        /// The first of them is the one that failed; the others are behind it in the tree.
        reason: String,
        /// The agent's step had ended by itself, or was killed; the agent lives.
        step: bool,
    },
    /// How nodes are.
    Nodes(Vec<NodeStatus>),
}

/// How a node is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// The address its agent tells others to use; empty when it was not reached.
    pub advertised: String,
    /// The address it was asked at; empty for the agent that was asked itself.
    pub asked: String,
    /// Version of its agent; empty when it was not reached.
    pub version: String,
    /// Launches it takes part in.
    pub launches: u32,
    /// It takes no new launch and ends with the last.
    pub draining: bool,
    /// Why it could not be asked.
    pub problem: Option<String>,
}

/// From an agent, to a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToStep {
    /// The first message.
    Begin {
        /// The node this step is for.
        node: NodeId,
        /// Name of the launch.
        launch: String,
        /// How the launch is spread.
        spread: Spread,
        /// As the launcher gave it.
        description: Vec<u8>,
    },
    /// The launcher cannot be reached any more.
    Orphaned {
        /// Why, for people.
        reason: String,
    },
}
