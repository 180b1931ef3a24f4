//! Description of a launch that all its agents have: from the launcher at the first agent, from the parent at the
//! others.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use prost::Message;
use prost::bytes::Bytes;

use wireup_core::job::hosts::has_port;
use wireup_core::job::ids::NodeId;
pub use wireup_core::link::agent_protocol::NODES_MAX;
use wireup_core::link::agent_protocol::{LaunchTree, NodeAddress};
use wireup_core::link::routing_tree::RoutingTree;

use super::frame_router::GrowthRequest;
use super::launch_members::{OPENING_MAX, check_count, members_of, members_to};
use crate::budget::{BudgetAccount, BudgetExceeded, ByteReservation};
use crate::proto::v1;

/// Longest name of a launch, in bytes.
pub const LAUNCH_MAX: usize = 255;

/// Longest name of a node, in bytes, as DNS has it.
const NAME_MAX: usize = 253;

/// Longest address of a node, in bytes: a name, brackets, a port.
const ADDRESS_MAX: usize = 300;

/// Cost of a node in addition to its bytes.
const MEMBER: usize = 128;

/// Most other agents that one agent contacts for a launch; those of nodes that join are others.
const CHILDREN_MAX: u32 = 4096;

/// Token that proves that a stream belongs to a launch. It is never shown.
#[derive(Clone, Copy)]
pub struct LaunchToken([u8; 32]);

/// A launch. Shared by everything at this agent that works for it.
#[derive(Debug)]
pub struct LaunchDescriptor {
    /// Name of the launch, 1 to [`LAUNCH_MAX`] bytes.
    pub launch: String,
    /// Id of the job at a scheduler; empty without a scheduler.
    pub scheduled: String,
    pub token: LaunchToken,
    /// User id of the launch's steps.
    pub uid: u32,
    pub spread: LaunchTree,
    /// Launch description for the steps.
    pub description: Bytes,
    /// Encoded [`v1::LaunchDescriptor`] for the children.
    pub bytes: Bytes,
    /// The share of its nodes in its user's budget.
    reservation: ByteReservation,
}

/// Error: the description of a launch is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LaunchDescriptorError {
    #[error("invalid launch name {0:?}: use 1 to {LAUNCH_MAX} printable ASCII characters")]
    Launch(String),
    /// Too many or no nodes.
    #[error("invalid launch of {0} nodes: use 1 to {NODES_MAX}")]
    Nodes(usize),
    /// Too many for one agent.
    #[error(
        "each agent of the launch would contact up to {0} others, at most {CHILDREN_MAX} are supported: use a smaller \
         --tree-width"
    )]
    Children(u32),
    /// The user's budget is used up.
    #[error(transparent)]
    Spent(#[from] BudgetExceeded),
    /// The name of a node.
    #[error("invalid node name {0:?}: use 1 to {NAME_MAX} printable ASCII characters")]
    Name(String),
    /// The address of a node.
    #[error(
        "invalid address {address:?} of node {name}: use HOST:PORT, or [ADDRESS]:PORT for IPv6"
    )]
    Address { name: String, address: String },
    /// A name that two nodes have; agents know each other by their names.
    #[error("node {0} occurs twice; name it once")]
    Twice(String),
    /// Too much for agents to hold.
    #[error(
        "the nodes and description of the launch have {0} bytes; at most {OPENING_MAX} are allowed"
    )]
    Size(usize),
    /// A node that is none of the launch.
    #[error("invalid node {node}: the launch has {nodes} nodes")]
    Node {
        node: u32,
        /// Number of the launch's nodes.
        nodes: usize,
    },
    /// The token has another length than every token.
    #[error("invalid token of {0} bytes: it must have 32")]
    Token(usize),
    /// The bytes cannot be decoded.
    #[error("invalid launch request: {0}")]
    Encoding(String),
}

impl LaunchToken {
    /// Creates a random token.
    ///
    /// # Panics
    /// If the system has no random numbers.
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        rustls::crypto::ring::default_provider()
            .secure_random
            .fill(&mut bytes)
            .expect("the kernel gives random bytes");
        Self(bytes)
    }

    /// Returns the token in the form for a child.
    pub fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }

    /// Whether both are the same. Takes the same time for all that differ.
    pub fn matches(self, other: Self) -> bool {
        let pairs = self.0.iter().zip(other.0);
        pairs.fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
    }
}

impl TryFrom<&[u8]> for LaunchToken {
    type Error = LaunchDescriptorError;

    fn try_from(bytes: &[u8]) -> Result<Self, LaunchDescriptorError> {
        let token = <[u8; 32]>::try_from(bytes);
        token
            .map(Self)
            .map_err(|_| LaunchDescriptorError::Token(bytes.len()))
    }
}

impl fmt::Debug for LaunchToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl LaunchDescriptor {
    /// Makes the launch that a launcher asks for.
    ///
    /// # Errors
    /// [`LaunchDescriptorError`].
    pub fn from_launcher(
        launch: String,
        scheduled: String,
        uid: u32,
        spread: LaunchTree,
        description: Vec<u8>,
        account: &Arc<BudgetAccount>,
    ) -> Result<Self, LaunchDescriptorError> {
        let known = Self {
            launch,
            scheduled,
            token: LaunchToken::random(),
            uid,
            reservation: hold(&spread, account)?,
            spread,
            description: Bytes::new(),
            bytes: Bytes::new(),
        };
        known.described(description.into())
    }

    /// Removes the parts that are no longer needed after the launch has been opened at all agents.
    pub fn without_description(mut self) -> Self {
        self.description = Bytes::new();
        self.bytes = Bytes::new();
        self
    }

    /// Returns the launch with more nodes, in the form for these nodes.
    ///
    /// # Errors
    /// [`LaunchDescriptorError`].
    pub fn grown(&self, growth: &GrowthRequest) -> Result<Self, LaunchDescriptorError> {
        let mut spread = self.spread.clone();
        spread.nodes.extend(growth.members.iter().cloned());
        // The sum is checked with the number of nodes.
        spread.joined += u32::try_from(growth.members.len()).unwrap_or(u32::MAX);
        let known = Self {
            launch: self.launch.clone(),
            scheduled: self.scheduled.clone(),
            token: self.token,
            uid: self.uid,
            reservation: hold(&spread, self.reservation.account())?,
            spread,
            description: Bytes::new(),
            bytes: Bytes::new(),
        };
        known.described(growth.description.clone())
    }

    /// Returns the launch with placeholders for nodes that cannot join: their numbers are used up.
    pub fn without(mut self, nodes: usize) -> Self {
        let nobody = NodeAddress {
            name: "-".to_owned(),
            address: "-:1".to_owned(),
        };
        // With more nodes than there can be none joins any more.
        let nodes = nodes.min(NODES_MAX);
        let members = &mut self.spread.nodes;
        if members.len() <= NODES_MAX {
            members.extend(std::iter::repeat_n(nobody, nodes));
            self.spread.joined += nodes as u32;
        }
        self
    }

    /// Adds the data for its steps, and the form for children.
    fn described(self, description: Bytes) -> Result<Self, LaunchDescriptorError> {
        check(&self.launch, &self.scheduled, &self.spread)?;
        let account = Arc::clone(self.reservation.account());
        let description = account.count_message(description);
        let opening = v1::Opening {
            members: members_to(&self.spread.nodes),
            star_limit: self.spread.star_limit,
            width: self.spread.width,
            description: description.clone(),
            scheduled: self.scheduled.clone(),
            joined: self.spread.joined,
        };
        let bytes = Bytes::from(opening.encode_to_vec());
        if bytes.len() > OPENING_MAX {
            return Err(LaunchDescriptorError::Size(bytes.len()));
        }
        Ok(Self {
            description,
            bytes: account.count_message(bytes),
            ..self
        })
    }

    /// Makes the launch from a parent, with the contents of its first Hello and all openings, which are
    /// [kept](BudgetAccount::keep).
    ///
    /// # Errors
    /// [`LaunchDescriptorError`].
    pub fn from_parent(
        hello: &v1::Hello,
        bytes: Bytes,
        account: &Arc<BudgetAccount>,
    ) -> Result<Self, LaunchDescriptorError> {
        let token = LaunchToken::try_from(&hello.token[..])?;
        check_count(&bytes).map_err(LaunchDescriptorError::Nodes)?;
        let opening = v1::Opening::decode(bytes.clone())
            .map_err(|error| LaunchDescriptorError::Encoding(error.to_string()))?;
        let spread = LaunchTree {
            nodes: members_of(opening.members),
            joined: opening.joined,
            star_limit: opening.star_limit,
            width: opening.width,
        };
        check(&hello.launch, &opening.scheduled, &spread)?;
        if hello.node as usize >= spread.nodes.len() {
            return Err(LaunchDescriptorError::Node {
                node: hello.node,
                nodes: spread.nodes.len(),
            });
        }
        Ok(Self {
            launch: hello.launch.clone(),
            scheduled: opening.scheduled,
            token,
            uid: hello.uid,
            reservation: hold(&spread, account)?,
            spread,
            description: opening.description,
            bytes,
        })
    }

    /// Returns the tree over its nodes.
    pub fn tree(&self) -> RoutingTree {
        self.spread.tree()
    }

    /// Returns one of its nodes.
    ///
    /// # Panics
    /// If the launch has no such node.
    pub fn member(&self, node: NodeId) -> &NodeAddress {
        &self.spread.nodes[node.0 as usize]
    }
}

/// Reserves the bytes of a launch's nodes.
fn hold(
    spread: &LaunchTree,
    account: &Arc<BudgetAccount>,
) -> Result<ByteReservation, BudgetExceeded> {
    let bytes = |member: &NodeAddress| MEMBER + member.name.len() + member.address.len();
    account.take(spread.nodes.iter().map(bytes).sum())
}

fn check(launch: &str, scheduled: &str, spread: &LaunchTree) -> Result<(), LaunchDescriptorError> {
    let printable = |text: &str, max: usize| {
        (1..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let beginning = |text: &str| text.chars().take(80).collect::<String>();
    if !printable(launch, LAUNCH_MAX) {
        return Err(LaunchDescriptorError::Launch(beginning(launch)));
    }
    if !scheduled.is_empty() && !printable(scheduled, LAUNCH_MAX) {
        return Err(LaunchDescriptorError::Launch(beginning(scheduled)));
    }
    let members = &spread.nodes;
    let first = members.len().saturating_sub(spread.joined as usize);
    if !(1..=NODES_MAX).contains(&members.len()) || first == 0 {
        return Err(LaunchDescriptorError::Nodes(first));
    }
    let most = members.len().min(spread.star_limit as usize) as u32;
    let most = most.max(spread.width.min(members.len() as u32));
    if most > CHILDREN_MAX {
        return Err(LaunchDescriptorError::Children(most));
    }
    let mut names = BTreeSet::new();
    for (number, NodeAddress { name, address }) in members.iter().enumerate() {
        if !printable(name, NAME_MAX) {
            return Err(LaunchDescriptorError::Name(beginning(name)));
        }
        if !printable(address, ADDRESS_MAX) || !has_port(address) {
            return Err(LaunchDescriptorError::Address {
                name: name.clone(),
                address: beginning(address),
            });
        }
        // One that could not join may be tried again.
        if !names.insert(name) && number < first {
            return Err(LaunchDescriptorError::Twice(name.clone()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
