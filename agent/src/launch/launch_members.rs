//! The nodes of a launch in messages between agents, and the limits of such a message.

use prost::encoding::{DecodeContext, decode_key, skip_field};

use crate::proto::v1;
use wireup_core::link::agent_protocol::{NODES_MAX, NodeAddress};

/// Most bytes of an opening: the nodes, the description and the 64 MiB of files that may go along.
pub const OPENING_MAX: usize = 80 * 1024 * 1024;

/// Refuses an encoded message with more nodes than there can be, before they are held: they are its
/// field 1.
///
/// # Errors
/// How many there are.
pub(super) fn check_count(message: &[u8]) -> Result<(), usize> {
    let mut rest = message;
    let mut count = 0;
    while let Ok((tag, wire)) = decode_key(&mut rest) {
        count += usize::from(tag == 1);
        if skip_field(wire, tag, &mut rest, DecodeContext::default()).is_err() {
            // Decoding it finds that too.
            break;
        }
    }
    match count > NODES_MAX {
        true => Err(count),
        false => Ok(()),
    }
}

/// Nodes in messages between agents.
pub(super) fn members_to(members: &[NodeAddress]) -> Vec<v1::Member> {
    let member = |member: &NodeAddress| v1::Member {
        name: member.name.clone(),
        address: member.address.clone(),
    };
    members.iter().map(member).collect()
}

/// Nodes from a message of another agent.
pub(super) fn members_of(members: Vec<v1::Member>) -> Vec<NodeAddress> {
    let member = |member: v1::Member| NodeAddress {
        name: member.name,
        address: member.address,
    };
    members.into_iter().map(member).collect()
}
