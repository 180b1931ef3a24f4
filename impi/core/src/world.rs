//! Labels that the clients exchange at start-up, and the world that follows from them.
//!
//! Rule: all labels of 0.0 are mandatory; limits are the minima; XSIZE and MAXLINEAR must agree once -1 is replaced by
//! the default. Source: IMPI 2.3.5. That ACKMARK and HIWATER are minima over all hosts is LAM's interpretation.

mod collected;
mod label;
mod offer;

use std::collections::BTreeMap;

use thiserror::Error;

use crate::packet::ProcId;
use collected::Reader;
pub use collected::{LabelValues, decode, encode};
pub use label::Label;
pub use offer::{ClientOffer, HostOffer};

/// Default of `IMPI_C_COLL_XSIZE`, in bytes.
pub const CROSSOVER_SIZE: i32 = 1024;
/// Default of `IMPI_C_COLL_MAXLINEAR`, in masters.
pub const MAX_LINEAR: i32 = 4;
/// Most processes that a world may have here.
pub const MAX_PROCS: u64 = 1 << 20;

/// A client of the world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImpiClient {
    /// World rank of the client's first process.
    pub first: usize,
    /// Number of the client's processes.
    pub size: usize,
}

/// A host of the world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImpiHost {
    /// The client it belongs to.
    pub client: usize,
    /// IPv6 address at which the host listens.
    pub address: [u8; 16],
    pub port: u16,
    /// World rank of the host's first process.
    pub first: usize,
    /// Number of the host's processes.
    pub size: usize,
}

/// Limits that all clients share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum bytes of a packet's data (`IMPI_Pk_maxdatalen`).
    pub data_length: u32,
    /// Largest tag of a message (`IMPI_Tag_ub`).
    pub tag_upper_bound: i32,
    /// Bytes from which collectives are long.
    pub crossover_size: u32,
    /// Masters up to which collectives are linear.
    pub max_linear: u32,
    /// Packets between acks (`IMPI_Pk_ackmark`).
    pub ack_mark: u32,
    /// Maximum of unacknowledged packets (`IMPI_Pk_hiwater`).
    pub high_water: u32,
}

/// The world that all clients form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImpiJob {
    /// The greatest version that all have.
    pub version: (u32, u32),
    /// By rank of the client.
    pub clients: Vec<ImpiClient>,
    /// By rank of the host.
    pub hosts: Vec<ImpiHost>,
    /// By rank in the world.
    pub procs: Vec<ProcId>,
    /// Limits that all clients share.
    pub limits: Limits,
}

/// Reason for which the values of the clients form no world.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum WorldError {
    /// A mandatory label that a client left out, with the mask of those that sent it.
    #[error("{label}: not all clients sent it (mask {mask:#x})")]
    Missing {
        /// Name of the label.
        label: &'static str,
        /// Mask of the clients that sent the label.
        mask: u32,
    },
    /// The number of values differs from that of the clients, hosts or processes.
    #[error("{label}: {got} bytes instead of {expected_length}")]
    Length {
        /// Name of the label.
        label: &'static str,
        /// Number of received values.
        got: usize,
        /// Number of required values.
        expected_length: usize,
    },
    /// A value outside its range.
    #[error("{label}: client or host {index} sent {value}, which is out of range")]
    Range {
        /// Name of the label.
        label: &'static str,
        /// Index of the client or host.
        index: usize,
        value: i64,
    },
    /// Values that must be equal.
    #[error("{label}: the clients do not agree: {values:?}")]
    Disagree {
        /// Name of the label.
        label: &'static str,
        /// Values of the clients, in order.
        values: Vec<i64>,
    },
    /// No version in common, or not ascending lists that begin with 0.0.
    #[error("IMPI_C_VERSION: not a list of ascending versions with 0.0 for each client")]
    Versions,
    /// Two processes with one address and number.
    #[error("processes {0} and {1} have the same IMPI_P_IPV6 and IMPI_P_PID")]
    Twins(usize, usize),
}

impl WorldError {
    fn out_of_range(label: Label, index: usize, value: impl Into<i64>) -> Self {
        Self::Range {
            label: label.name(),
            index,
            value: value.into(),
        }
    }
}

impl ImpiJob {
    /// Creates the world from the values of `clients` clients.
    ///
    /// # Errors
    /// When they form no world.
    pub fn new(clients: usize, collected: &LabelValues) -> Result<Self, WorldError> {
        let reader = Reader { clients, collected };
        let version = reader.version()?;
        let hosts_of = reader.counts(Label::Hosts, clients)?;
        let procs_of = reader.counts(Label::Procs, clients)?;
        let hosts: usize = hosts_of.iter().sum();
        let size: usize = procs_of.iter().sum();
        let data_length = reader.least(Label::DataLength, clients, |value| value >= 1)?;
        let tags = reader.least(Label::TagUpperBound, clients, |value| {
            (32_767..=0x7fff_ffff).contains(&value)
        })?;
        let crossover_size = reader.equal(Label::CrossoverSize, CROSSOVER_SIZE)?;
        let max_linear = reader.equal(Label::MaxLinear, MAX_LINEAR)?;
        let ack_mark = reader.least(Label::AckMark, hosts, |value| value >= 1)?;
        let high_water = reader.least(Label::HighWater, hosts, |value| value >= ack_mark)?;
        let host_procs = reader.words(Label::HostProcs, hosts)?;
        let ports = reader.words(Label::HostPort, hosts)?;
        let (addresses, _) = reader.exactly(Label::HostAddress, hosts * 16)?.as_chunks();
        let mut world = Self {
            version,
            clients: Vec::new(),
            hosts: Vec::new(),
            procs: Vec::new(),
            limits: Limits {
                data_length,
                tag_upper_bound: tags.cast_signed(),
                crossover_size,
                max_linear,
                ack_mark,
                high_water,
            },
        };
        let (mut host, mut first) = (0, 0);
        for (client, (host_count, proc_count)) in hosts_of.into_iter().zip(procs_of).enumerate() {
            world.clients.push(ImpiClient {
                first,
                size: proc_count,
            });
            let end = first + proc_count;
            for index in host..host + host_count {
                let size = host_procs[index] as usize;
                let range = |label, value: u32| WorldError::out_of_range(label, index, value);
                if first + size > end {
                    return Err(range(Label::HostProcs, host_procs[index]));
                }
                let port = u16::try_from(ports[index])
                    .map_err(|_| range(Label::HostPort, ports[index]))?;
                world.hosts.push(ImpiHost {
                    client,
                    address: addresses[index],
                    port,
                    first,
                    size,
                });
                first += size;
            }
            if first != end {
                let missing = i64::try_from(end - first).unwrap_or(i64::MAX);
                return Err(WorldError::out_of_range(Label::HostProcs, host, -missing));
            }
            host += host_count;
        }
        let (hosts, _) = reader.exactly(Label::ProcAddress, size * 16)?.as_chunks();
        let (pids, _) = reader.exactly(Label::ProcPid, size * 8)?.as_chunks();
        let mut known = BTreeMap::new();
        for (rank, (host, pid)) in hosts.iter().zip(pids).enumerate() {
            let id = ProcId {
                host: *host,
                pid: i64::from_be_bytes(*pid),
            };
            if let Some(other) = known.insert(id, rank) {
                return Err(WorldError::Twins(other, rank));
            }
            world.procs.push(id);
        }
        Ok(world)
    }

    /// Returns the client of a process.
    pub fn client_of(&self, rank: usize) -> usize {
        self.clients
            .partition_point(|client| client.first + client.size <= rank)
    }

    /// Returns the rank of a process.
    pub fn rank_of(&self, id: ProcId) -> Option<usize> {
        self.procs.iter().position(|known| *known == id)
    }

    /// Returns the number of a client's first host.
    pub fn first_host(&self, client: usize) -> usize {
        self.hosts.partition_point(|host| host.client < client)
    }

    /// Returns the host of a process.
    pub fn host_of(&self, rank: usize) -> usize {
        self.hosts
            .partition_point(|host| host.first + host.size <= rank)
    }
}

#[cfg(test)]
mod tests;
