//! Names that ranks publish for each other (`MPI_Publish_name`): the job's one store, on its head
//! node; no I/O.

use std::collections::BTreeMap;

use crate::job::ids::Rank;

/// Most names one job may have published at a time.
pub const NAMES_MAX: usize = 65_536;

/// A call of the name service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameRequest {
    /// Make a port known under a name.
    Publish {
        /// The name.
        service: Vec<u8>,
        /// The port.
        port: Vec<u8>,
    },
    /// Ask for the port of a name; does not wait for it to appear.
    Lookup {
        /// The name.
        service: Vec<u8>,
    },
    /// Withdraw a name.
    Unpublish {
        /// The name.
        service: Vec<u8>,
    },
}

/// The answer to a [`NameRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameAnswer {
    /// Published, or withdrawn.
    Done,
    /// The port that was asked for.
    Port(Vec<u8>),
    /// Not done, and why.
    Refused(&'static str),
}

/// The names of one job.
#[derive(Debug, Default)]
pub struct Names {
    ports: BTreeMap<Vec<u8>, (Rank, Vec<u8>)>,
}

impl Names {
    /// Carries out a call of `rank`.
    ///
    /// Rule: publishing a name twice fails, as under Hydra; any rank may withdraw a name.
    /// Source: docs/pmi-wire.md#names.
    pub fn handle(&mut self, rank: Rank, request: NameRequest) -> NameAnswer {
        match request {
            NameRequest::Publish { service, .. } if self.ports.contains_key(&service) => {
                NameAnswer::Refused("already_published")
            }
            NameRequest::Publish { .. } if self.ports.len() >= NAMES_MAX => {
                NameAnswer::Refused("too_many_names")
            }
            NameRequest::Publish { service, port } => {
                self.ports.insert(service, (rank, port));
                NameAnswer::Done
            }
            NameRequest::Lookup { service } => match self.ports.get(&service) {
                Some((_, port)) => NameAnswer::Port(port.clone()),
                None => NameAnswer::Refused("service_not_found"),
            },
            NameRequest::Unpublish { service } => match self.ports.remove(&service) {
                Some(_) => NameAnswer::Done,
                None => NameAnswer::Refused("service_not_found"),
            },
        }
    }

    /// Forgets what a rank published: names die with their owner.
    pub fn rank_ended(&mut self, rank: Rank) {
        self.ports.retain(|_, (owner, _)| *owner != rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_lives_until_it_is_withdrawn_or_its_owner_ends() {
        let mut names = Names::default();
        let name = || b"svc one".to_vec();
        let lookup = || NameRequest::Lookup { service: name() };
        let publish = || NameRequest::Publish {
            service: name(),
            port: b"p".to_vec(),
        };
        assert_eq!(
            names.handle(Rank(0), lookup()),
            NameAnswer::Refused("service_not_found")
        );
        assert_eq!(names.handle(Rank(1), publish()), NameAnswer::Done);
        assert_eq!(
            names.handle(Rank(0), publish()),
            NameAnswer::Refused("already_published")
        );
        assert_eq!(
            names.handle(Rank(0), lookup()),
            NameAnswer::Port(b"p".to_vec())
        );
        assert_eq!(
            names.handle(Rank(0), NameRequest::Unpublish { service: name() }),
            NameAnswer::Done
        );
        assert_eq!(names.handle(Rank(1), publish()), NameAnswer::Done);
        names.rank_ended(Rank(1));
        assert_eq!(
            names.handle(Rank(0), lookup()),
            NameAnswer::Refused("service_not_found")
        );
    }
}
