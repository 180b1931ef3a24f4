//! Nodes that join a launch, on their way to the agent of its first node. No I/O.

use prost::Message;
use prost::bytes::{Bytes, BytesMut};
use wireup::link::control::{Member, ToAgent};
use wireup::link::decode;
use wireup::link::frame::BODY_MAX;

use super::opening::{OPENING_MAX, members_of, members_to};
use crate::proto::v1;

/// Nodes that are to join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Growth {
    /// They get the next numbers.
    pub members: Vec<Member>,
    /// What their steps need to know.
    pub description: Bytes,
}

/// A growth that comes in pieces.
#[derive(Debug, Default)]
pub struct Pieces(BytesMut);

impl Pieces {
    /// Takes a piece; everything when it was the last one.
    fn take(&mut self, piece: &[u8], more: bool) -> Result<Option<Bytes>, String> {
        if self.0.len() + piece.len() > OPENING_MAX {
            let most = OPENING_MAX >> 20;
            return Err(format!(
                "more than {most} MiB about nodes that are to join a launch"
            ));
        }
        self.0.extend_from_slice(piece);
        Ok((!more).then(|| self.0.split().freeze()))
    }

    /// Takes what a launcher sent.
    ///
    /// # Errors
    /// For people: what it sent.
    pub fn of_launcher(&mut self, piece: &[u8], more: bool) -> Result<Option<Growth>, String> {
        let Some(whole) = self.take(piece, more)? else {
            return Ok(None);
        };
        match decode(&whole) {
            Ok(ToAgent::Grow {
                members,
                description,
            }) => Ok(Some(Growth {
                members,
                description: description.into(),
            })),
            Ok(_) => Err("a second request".to_owned()),
            Err(error) => Err(format!("a request that cannot be read: {error}")),
        }
    }

    /// Takes what another agent sent.
    ///
    /// # Errors
    /// For people: what it sent.
    pub fn of_parent(&mut self, grow: &v1::Grow) -> Result<Option<Growth>, String> {
        let Some(whole) = self.take(&grow.growth, grow.more)? else {
            return Ok(None);
        };
        let growth = v1::Growth::decode(whole)
            .map_err(|error| format!("nodes to join that cannot be read: {error}"))?;
        Ok(Some(Growth {
            members: members_of(growth.members),
            description: growth.description,
        }))
    }
}

impl Growth {
    /// As it goes to another agent.
    pub fn pieces(&self) -> impl Iterator<Item = v1::Grow> + use<> {
        let growth = v1::Growth {
            members: members_to(&self.members),
            description: self.description.clone(),
        };
        let mut rest = Some(Bytes::from(growth.encode_to_vec()));
        std::iter::from_fn(move || {
            let mut whole = rest.take()?;
            let piece = whole.split_to(whole.len().min(BODY_MAX));
            let more = !whole.is_empty();
            rest = more.then_some(whole);
            Some(v1::Grow {
                growth: piece,
                more,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(bytes: usize) -> Growth {
        Growth {
            members: vec![Member {
                name: "n9".into(),
                address: "n9:7437".into(),
            }],
            description: vec![7; bytes].into(),
        }
    }

    #[test]
    fn what_a_launcher_asks_for_arrives_in_as_many_pieces_as_it_takes() {
        for bytes in [0, 10, BODY_MAX, 3 * BODY_MAX] {
            let asked = growth(bytes);
            let request = wireup::link::encode(&ToAgent::Grow {
                members: asked.members.clone(),
                description: asked.description.to_vec(),
            });
            let mut pieces = Pieces::default();
            let chunks: Vec<_> = request.chunks(BODY_MAX).collect();
            let mut found = None;
            for (at, chunk) in chunks.iter().enumerate() {
                assert_eq!(found, None);
                found = pieces.of_launcher(chunk, at + 1 < chunks.len()).unwrap();
            }
            assert_eq!(found.as_ref(), Some(&asked));

            let mut pieces = Pieces::default();
            let mut found = None;
            for piece in asked.pieces() {
                assert!(piece.growth.len() <= BODY_MAX);
                assert_eq!(found, None);
                found = pieces.of_parent(&piece).unwrap();
            }
            assert_eq!(found, Some(asked));
        }
    }

    #[test]
    fn what_is_no_growth_is_named() {
        let said = |piece: &[u8]| Pieces::default().of_launcher(piece, false).unwrap_err();
        assert!(said(b"\xff\xff\xff").contains("cannot be read"));
        let nodes = wireup::link::encode(&ToAgent::Nodes {
            version: 1,
            members: Vec::new(),
        });
        assert_eq!(said(&nodes), "a second request");
        let garbage = v1::Grow {
            growth: Bytes::from_static(b"\xff\xff"),
            more: false,
        };
        assert!(Pieces::default().of_parent(&garbage).is_err());
        let mut pieces = Pieces::default();
        let long = vec![0; BODY_MAX];
        let refused =
            (0..=OPENING_MAX / BODY_MAX).find_map(|_| pieces.of_launcher(&long, true).err());
        assert!(refused.unwrap().contains("80 MiB"));
    }
}
