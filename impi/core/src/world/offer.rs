//! Values that a client announces under each label.

use super::label::Label;
use crate::packet::ProcId;

/// A host that a client announces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostOffer {
    /// IPv6 address at which the host listens.
    pub address: [u8; 16],
    pub port: u16,
    /// Number of packets between acks.
    pub ack_mark: u32,
    /// Maximum number of unacknowledged packets.
    pub high_water: u32,
    /// Processes of the host.
    pub procs: Vec<ProcId>,
}

/// Values that a client announces at start-up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientOffer {
    /// Versions, ascending, 0.0 first.
    pub versions: Vec<(u32, u32)>,
    /// Most data of a packet.
    pub data_length: u32,
    /// Largest tag of a message.
    pub tag_upper_bound: i32,
    /// Bytes from which collectives are long; -1 for the default.
    pub crossover_size: i32,
    /// Masters up to which collectives are linear; -1 for the default.
    pub max_linear: i32,
    pub hosts: Vec<HostOffer>,
}

impl ClientOffer {
    /// Returns the value under a label.
    pub fn value(&self, label: Label) -> Vec<u8> {
        let hosts = |field: fn(&HostOffer) -> u32| {
            self.hosts
                .iter()
                .flat_map(|host| field(host).to_be_bytes())
                .collect()
        };
        let procs = || self.hosts.iter().flat_map(|host| &host.procs);
        match label {
            Label::Version => {
                let words = self
                    .versions
                    .iter()
                    .flat_map(|(major, minor)| [*major, *minor]);
                words.flat_map(u32::to_be_bytes).collect()
            }
            Label::Hosts => count(self.hosts.len()).to_be_bytes().to_vec(),
            Label::Procs => count(procs().count()).to_be_bytes().to_vec(),
            Label::DataLength => self.data_length.to_be_bytes().to_vec(),
            Label::TagUpperBound => self.tag_upper_bound.to_be_bytes().to_vec(),
            Label::CrossoverSize => self.crossover_size.to_be_bytes().to_vec(),
            Label::MaxLinear => self.max_linear.to_be_bytes().to_vec(),
            Label::HostAddress => self.hosts.iter().flat_map(|host| host.address).collect(),
            Label::HostPort => hosts(|host| host.port.into()),
            Label::HostProcs => hosts(|host| count(host.procs.len())),
            Label::AckMark => hosts(|host| host.ack_mark),
            Label::HighWater => hosts(|host| host.high_water),
            Label::ProcAddress => procs().flat_map(|id| id.host).collect(),
            Label::ProcPid => procs().flat_map(|id| id.pid.to_be_bytes()).collect(),
        }
    }
}

pub(super) fn count(len: usize) -> u32 {
    u32::try_from(len).expect("a job has fewer than 2^32 processes")
}
