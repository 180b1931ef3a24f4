//! Nodes that join a launch, on their way to the agent of its first node. No I/O.

use std::sync::Arc;

use prost::Message;
use prost::bytes::{Bytes, BytesMut};

use super::frame_router::{GrowthRequest, frame_bodies};
use super::launch_members::{OPENING_MAX, check_count, members_of, members_to};
use crate::budget::{BudgetAccount, BudgetExceeded, ByteReservation};
use crate::proto::v1;
use wireup_core::link::agent_protocol::{AgentRequest, LaunchSummary};
use wireup_core::link::{DecodeError, decode};

/// Reason for which a message about new nodes is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GrowthError {
    /// Longer than [`OPENING_MAX`] bytes.
    #[error("a request with more than {} MiB for nodes to join", OPENING_MAX >> 20)]
    Long,
    /// The user's budget is used up.
    #[error("a request for nodes to join, but {0}")]
    Spent(#[from] BudgetExceeded),
    /// The launch is open already.
    #[error("a second request for nodes to join")]
    Second,
    #[error("an invalid request for nodes to join: {0}")]
    Request(DecodeError),
    /// The launch would have too many nodes.
    #[error("a request for too many nodes to join ({0})")]
    Count(usize),
    #[error("an invalid list of nodes to join: {0}")]
    Message(#[from] prost::DecodeError),
}

/// Message of a launcher to its agent while its launch is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LauncherMessage {
    Growth(GrowthRequest),
    Ended(LaunchSummary),
}

/// A growth that arrives in pieces.
#[derive(Debug)]
pub struct GrowthAssembler {
    buffer: BytesMut,
    reservation: ByteReservation,
}

impl GrowthAssembler {
    /// Creates an assembler for a launch of this user.
    pub fn new(account: &Arc<BudgetAccount>) -> Self {
        Self {
            buffer: BytesMut::new(),
            reservation: account.hold(0),
        }
    }

    /// Takes a piece; everything when it was the last one.
    fn take(&mut self, piece: &[u8], more: bool) -> Result<Option<Bytes>, GrowthError> {
        if self.buffer.len() + piece.len() > OPENING_MAX {
            return Err(GrowthError::Long);
        }
        self.reservation.grow(piece.len())?;
        self.buffer.extend_from_slice(piece);
        if more {
            return Ok(None);
        }
        let whole = std::mem::take(&mut self.buffer).freeze();
        self.reservation.set(0);
        Ok(Some(self.reservation.account().count_message(whole)))
    }

    /// Takes a piece that a launcher sent.
    ///
    /// # Errors
    /// [`GrowthError`]
    pub fn push_launcher_piece(
        &mut self,
        piece: &[u8],
        more: bool,
    ) -> Result<Option<LauncherMessage>, GrowthError> {
        let Some(whole) = self.take(piece, more)? else {
            return Ok(None);
        };
        match decode(&whole) {
            Ok(AgentRequest::Grow {
                members,
                description,
            }) => Ok(Some(LauncherMessage::Growth(GrowthRequest {
                members,
                description: self.reservation.account().count_message(description.into()),
            }))),
            Ok(AgentRequest::Ended(end)) => Ok(Some(LauncherMessage::Ended(end))),
            Ok(_) => Err(GrowthError::Second),
            Err(error) => Err(GrowthError::Request(error)),
        }
    }

    /// Takes a piece that another agent sent.
    ///
    /// # Errors
    /// [`GrowthError`]
    pub fn push_parent_piece(
        &mut self,
        grow: &v1::Grow,
    ) -> Result<Option<GrowthRequest>, GrowthError> {
        let Some(whole) = self.take(&grow.growth, grow.more)? else {
            return Ok(None);
        };
        check_count(&whole).map_err(GrowthError::Count)?;
        let growth = v1::Growth::decode(whole)?;
        Ok(Some(GrowthRequest {
            members: members_of(growth.members),
            description: growth.description,
        }))
    }
}

/// Encodes a request for another agent, in pieces.
pub fn pieces(growth: &GrowthRequest) -> impl Iterator<Item = v1::Grow> + use<> {
    let growth = v1::Growth {
        members: members_to(&growth.members),
        description: growth.description.clone(),
    };
    let pieces = frame_bodies(growth.encode_to_vec().into());
    pieces.map(|(growth, more)| v1::Grow { growth, more })
}

#[cfg(test)]
mod tests {
    use wireup_core::link::agent_protocol::{NODES_MAX, NodeAddress};
    use wireup_core::link::frame::BODY_MAX;

    use super::*;

    fn begun() -> GrowthAssembler {
        GrowthAssembler::new(&crate::budget::Budgets::default().account(1))
    }

    fn growth(bytes: usize) -> GrowthRequest {
        GrowthRequest {
            members: vec![NodeAddress {
                name: "n9".into(),
                address: "n9:7437".into(),
            }],
            description: vec![7; bytes].into(),
        }
    }

    #[test]
    fn request_of_launcher_arrives_in_any_number_of_pieces() {
        for bytes in [0, 10, BODY_MAX, 3 * BODY_MAX] {
            let expected = growth(bytes);
            let request = wireup_core::link::encode(&AgentRequest::Grow {
                members: expected.members.clone(),
                description: expected.description.to_vec(),
            });
            let mut pieces = begun();
            let chunks: Vec<_> = request.chunks(BODY_MAX).collect();
            let mut found = None;
            for (at, chunk) in chunks.iter().enumerate() {
                assert_eq!(found, None);
                found = pieces
                    .push_launcher_piece(chunk, at + 1 < chunks.len())
                    .unwrap();
            }
            assert_eq!(found, Some(LauncherMessage::Growth(expected.clone())));

            let mut pieces = begun();
            let mut found = None;
            for piece in super::pieces(&expected) {
                assert!(piece.growth.len() <= BODY_MAX);
                assert_eq!(found, None);
                found = pieces.push_parent_piece(&piece).unwrap();
            }
            assert_eq!(found, Some(expected));
        }
    }

    #[test]
    fn invalid_growth_is_named() {
        let error_of = |piece: &[u8]| begun().push_launcher_piece(piece, false).unwrap_err();
        assert!(matches!(error_of(b"\xff\xff\xff"), GrowthError::Request(_)));
        let nodes = wireup_core::link::encode(&AgentRequest::Nodes {
            version: 1,
            members: Vec::new(),
        });
        assert_eq!(error_of(&nodes), GrowthError::Second);
        let garbage = v1::Grow {
            growth: Bytes::from_static(b"\xff\xff"),
            more: false,
        };
        assert!(begun().push_parent_piece(&garbage).is_err());
        let many = v1::Growth {
            members: vec![v1::Member::default(); NODES_MAX + 1],
            ..Default::default()
        };
        let grow = v1::Grow {
            growth: many.encode_to_vec().into(),
            more: false,
        };
        let refused = begun().push_parent_piece(&grow).unwrap_err();
        assert_eq!(refused, GrowthError::Count(NODES_MAX + 1));
        let mut pieces = begun();
        let long = vec![0; BODY_MAX];
        let refused = (0..=OPENING_MAX / BODY_MAX)
            .find_map(|_| pieces.push_launcher_piece(&long, true).err());
        assert!(refused.unwrap().to_string().contains("80 MiB"));
    }
}
