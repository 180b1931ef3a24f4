//! What the clients agree on at start-up: labels, and the world that follows from them.
//!
//! Rule: all labels of 0.0 are mandatory; limits are the minima; XSIZE and MAXLINEAR must agree once -1 is replaced by
//! the default. Source: IMPI 2.3.5. That ACKMARK and HIWATER are minima over all hosts is LAM's reading.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::packet::ProcId;

/// Labels of version 0.0, in the order in which they are sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(i32)]
#[allow(missing_docs, reason = "the specification's names")]
pub enum Label {
    Version = 0x1000,
    Hosts = 0x1100,
    Procs = 0x1200,
    DataLength = 0x1300,
    TagUpperBound = 0x1400,
    CrossoverSize = 0x1500,
    MaxLinear = 0x1600,
    HostAddress = 0x2000,
    HostPort = 0x2100,
    HostProcs = 0x2200,
    AckMark = 0x2300,
    HighWater = 0x2400,
    ProcAddress = 0x3000,
    ProcPid = 0x3100,
}

impl Label {
    /// All that 0.0 mandates.
    pub const ALL: [Self; 14] = [
        Self::Version,
        Self::Hosts,
        Self::Procs,
        Self::DataLength,
        Self::TagUpperBound,
        Self::CrossoverSize,
        Self::MaxLinear,
        Self::HostAddress,
        Self::HostPort,
        Self::HostProcs,
        Self::AckMark,
        Self::HighWater,
        Self::ProcAddress,
        Self::ProcPid,
    ];

    /// The specification's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Version => "IMPI_C_VERSION",
            Self::Hosts => "IMPI_C_NHOSTS",
            Self::Procs => "IMPI_C_NPROCS",
            Self::DataLength => "IMPI_C_DATALEN",
            Self::TagUpperBound => "IMPI_C_TAGUB",
            Self::CrossoverSize => "IMPI_C_COLL_XSIZE",
            Self::MaxLinear => "IMPI_C_COLL_MAXLINEAR",
            Self::HostAddress => "IMPI_H_IPV6",
            Self::HostPort => "IMPI_H_PORT",
            Self::HostProcs => "IMPI_H_NPROCS",
            Self::AckMark => "IMPI_H_ACKMARK",
            Self::HighWater => "IMPI_H_HIWATER",
            Self::ProcAddress => "IMPI_P_IPV6",
            Self::ProcPid => "IMPI_P_PID",
        }
    }

    /// The label of a number.
    pub fn of(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|label| *label as i32 == number)
    }
}

/// Default of `IMPI_C_COLL_XSIZE`.
pub const CROSSOVER_SIZE: i32 = 1024;
/// Default of `IMPI_C_COLL_MAXLINEAR`.
pub const MAX_LINEAR: i32 = 4;
/// Most processes that a world may have here.
pub const MAX_PROCS: u64 = 1 << 20;

/// A host that a client announces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostOffer {
    /// Where it listens.
    pub address: [u8; 16],
    pub port: u16,
    /// Packets between acks.
    pub ack_mark: u32,
    /// Packets without ack.
    pub high_water: u32,
    /// Its processes.
    pub procs: Vec<ProcId>,
}

/// What a client announces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Versions, ascending, 0.0 first.
    pub versions: Vec<(u32, u32)>,
    /// Most data of a packet.
    pub data_length: u32,
    /// Greatest tag.
    pub tag_upper_bound: i32,
    /// Bytes from which collectives are long; -1 for the default.
    pub crossover_size: i32,
    /// Masters up to which collectives are linear; -1 for the default.
    pub max_linear: i32,
    pub hosts: Vec<HostOffer>,
}

impl Offer {
    /// The value under a label.
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

fn count(len: usize) -> u32 {
    u32::try_from(len).expect("a job has fewer than 2^32 processes")
}

/// A client of the world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Client {
    /// Its first process, as rank in the world.
    pub first: usize,
    /// Its processes.
    pub size: usize,
}

/// A host of the world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// The client it belongs to.
    pub client: usize,
    /// Where it listens.
    pub address: [u8; 16],
    pub port: u16,
    /// Its first process, as rank in the world.
    pub first: usize,
    /// Its processes.
    pub size: usize,
}

/// What holds for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// `IMPI_Pk_maxdatalen`.
    pub data_length: u32,
    /// `IMPI_Tag_ub`.
    pub tag_upper_bound: i32,
    /// Bytes from which collectives are long.
    pub crossover_size: u32,
    /// Masters up to which collectives are linear.
    pub max_linear: u32,
    /// `IMPI_Pk_ackmark`.
    pub ack_mark: u32,
    /// `IMPI_Pk_hiwater`.
    pub high_water: u32,
}

/// The world that all clients form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct World {
    /// The greatest version that all have.
    pub version: (u32, u32),
    /// By rank of the client.
    pub clients: Vec<Client>,
    /// By rank of the host.
    pub hosts: Vec<Host>,
    /// By rank in the world.
    pub procs: Vec<ProcId>,
    /// What holds for all.
    pub limits: Limits,
}

/// Why the values of the clients make no world.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum WorldError {
    /// A mandatory label that a client left out, with the mask of those that sent it.
    #[error("{label}: not all clients sent it (mask {mask:#x})")]
    Missing {
        /// Name of the label.
        label: &'static str,
        /// Who sent it.
        mask: u32,
    },
    /// Not as many values as there are clients, hosts or processes.
    #[error("{label}: {got} bytes instead of {wanted}")]
    Length {
        /// Name of the label.
        label: &'static str,
        /// As received.
        got: usize,
        /// As counted.
        wanted: usize,
    },
    /// A value outside its range.
    #[error("{label}: client or host {index} says {value}, which is out of range")]
    Range {
        /// Name of the label.
        label: &'static str,
        /// Whose value.
        index: usize,
        value: i64,
    },
    /// Values that must be equal.
    #[error("{label}: the clients do not agree: {values:?}")]
    Disagree {
        /// Name of the label.
        label: &'static str,
        /// Their values.
        values: Vec<i64>,
    },
    /// No version in common, or not ascending lists that begin with 0.0.
    #[error("IMPI_C_VERSION: not a list of ascending versions with 0.0 for each client")]
    Versions,
    /// Two processes with one address and number.
    #[error("processes {0} and {1} have the same IMPI_P_IPV6 and IMPI_P_PID")]
    Twins(usize, usize),
}

/// The values under each label, as the server sent them: mask and concatenation.
pub type Collected = BTreeMap<i32, (u32, Vec<u8>)>;

/// The values as bytes, to hand them on to processes.
pub fn encode(clients: usize, collected: &Collected) -> Vec<u8> {
    let mut bytes = count(clients).to_be_bytes().to_vec();
    for (label, (mask, data)) in collected {
        bytes.extend(label.to_be_bytes());
        bytes.extend(mask.to_be_bytes());
        bytes.extend(count(data.len()).to_be_bytes());
        bytes.extend_from_slice(data);
    }
    bytes
}

/// What [`encode`] wrote; nothing if it is something else.
pub fn decode(bytes: &[u8]) -> Option<(usize, Collected)> {
    fn word(bytes: &mut &[u8]) -> Option<u32> {
        let (word, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u32::from_be_bytes(*word))
    }
    let mut rest = bytes;
    let clients = word(&mut rest)? as usize;
    let mut collected = Collected::new();
    while !rest.is_empty() {
        let (label, mask, length) = (
            word(&mut rest)?,
            word(&mut rest)?,
            word(&mut rest)? as usize,
        );
        let data = rest.get(..length)?;
        rest = &rest[length..];
        collected.insert(label.cast_signed(), (mask, data.to_vec()));
    }
    Some((clients, collected))
}

impl World {
    /// What follows from the values of `clients` clients.
    ///
    /// # Errors
    /// When they make no world.
    pub fn new(clients: usize, collected: &Collected) -> Result<Self, WorldError> {
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
        let high_water = reader.least(Label::HighWater, hosts, |value| {
            value >= i64::from(ack_mark)
        })?;
        let host_procs = reader.words(Label::HostProcs, hosts)?;
        let ports = reader.words(Label::HostPort, hosts)?;
        let addresses = reader.exactly(Label::HostAddress, hosts * 16)?;
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
            world.clients.push(Client {
                first,
                size: proc_count,
            });
            let end = first + proc_count;
            for index in host..host + host_count {
                let size = host_procs[index] as usize;
                let range = |label: Label, value: u32| WorldError::Range {
                    label: label.name(),
                    index,
                    value: value.into(),
                };
                if first + size > end {
                    return Err(range(Label::HostProcs, host_procs[index]));
                }
                let port = u16::try_from(ports[index])
                    .map_err(|_| range(Label::HostPort, ports[index]))?;
                let address = std::array::from_fn(|i| addresses[index * 16 + i]);
                world.hosts.push(Host {
                    client,
                    address,
                    port,
                    first,
                    size,
                });
                first += size;
            }
            if first != end {
                let label = Label::HostProcs.name();
                let short = i64::try_from(end - first).unwrap_or(i64::MAX);
                return Err(WorldError::Range {
                    label,
                    index: host,
                    value: -short,
                });
            }
            host += host_count;
        }
        let ids = reader.exactly(Label::ProcAddress, size * 16)?;
        let pids = reader.exactly(Label::ProcPid, size * 8)?;
        let mut known = BTreeMap::new();
        for rank in 0..size {
            let pid: [u8; 8] = std::array::from_fn(|i| pids[rank * 8 + i]);
            let host = std::array::from_fn(|i| ids[rank * 16 + i]);
            let id = ProcId {
                host,
                pid: i64::from_be_bytes(pid),
            };
            if let Some(other) = known.insert(id, rank) {
                return Err(WorldError::Twins(other, rank));
            }
            world.procs.push(id);
        }
        Ok(world)
    }

    /// The client of a process.
    pub fn client_of(&self, rank: usize) -> usize {
        self.clients
            .partition_point(|client| client.first + client.size <= rank)
    }

    /// The host of a process.
    pub fn host_of(&self, rank: usize) -> usize {
        self.hosts
            .partition_point(|host| host.first + host.size <= rank)
    }
}

#[cfg(test)]
mod tests;

struct Reader<'a> {
    clients: usize,
    collected: &'a Collected,
}

impl Reader<'_> {
    fn bytes(&self, label: Label) -> Result<&[u8], WorldError> {
        let name = label.name();
        let all = u32::MAX >> (32 - self.clients.clamp(1, 32));
        let (mask, data) = self
            .collected
            .get(&(label as i32))
            .ok_or(WorldError::Missing {
                label: name,
                mask: 0,
            })?;
        (*mask == all)
            .then_some(&data[..])
            .ok_or(WorldError::Missing {
                label: name,
                mask: *mask,
            })
    }

    fn exactly(&self, label: Label, wanted: usize) -> Result<&[u8], WorldError> {
        let bytes = self.bytes(label)?;
        let wrong = WorldError::Length {
            label: label.name(),
            got: bytes.len(),
            wanted,
        };
        (bytes.len() == wanted).then_some(bytes).ok_or(wrong)
    }

    fn words(&self, label: Label, count: usize) -> Result<Vec<u32>, WorldError> {
        let bytes = self.exactly(label, count * 4)?;
        let word = |word: &[u8]| u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        Ok(bytes.chunks_exact(4).map(word).collect())
    }

    fn counts(&self, label: Label, count: usize) -> Result<Vec<usize>, WorldError> {
        let words = self.words(label, count)?;
        let mut total = 0;
        for (index, value) in words.iter().enumerate() {
            total += u64::from(*value);
            if *value == 0 || total > MAX_PROCS {
                let value = i64::from(*value);
                return Err(WorldError::Range {
                    label: label.name(),
                    index,
                    value,
                });
            }
        }
        Ok(words.into_iter().map(|value| value as usize).collect())
    }

    fn least(
        &self,
        label: Label,
        count: usize,
        allowed: impl Fn(i64) -> bool,
    ) -> Result<u32, WorldError> {
        let words = self.words(label, count)?;
        for (index, value) in words.iter().enumerate() {
            let value = i64::from(*value);
            if !allowed(value) {
                return Err(WorldError::Range {
                    label: label.name(),
                    index,
                    value,
                });
            }
        }
        Ok(words.into_iter().min().unwrap_or_default())
    }

    fn equal(&self, label: Label, default: i32) -> Result<u32, WorldError> {
        let words = self.words(label, self.clients)?;
        let values: Vec<i32> = words
            .into_iter()
            .map(u32::cast_signed)
            .map(|value| if value == -1 { default } else { value })
            .collect();
        let first = values.first().copied().unwrap_or(default);
        if values.iter().any(|value| *value != first) {
            let values = values.into_iter().map(i64::from).collect();
            return Err(WorldError::Disagree {
                label: label.name(),
                values,
            });
        }
        let range = WorldError::Range {
            label: label.name(),
            index: 0,
            value: first.into(),
        };
        u32::try_from(first).map_err(|_| range)
    }

    /// Every list is ascending and contains 0.0, so each 0.0 begins the next client's.
    fn version(&self) -> Result<(u32, u32), WorldError> {
        let bytes = self.bytes(Label::Version)?;
        if bytes.len() % 8 != 0 {
            return Err(WorldError::Versions);
        }
        let words = self.words(Label::Version, bytes.len() / 4)?;
        let mut lists: Vec<Vec<(u32, u32)>> = Vec::new();
        for pair in words.chunks_exact(2) {
            let version = (pair[0], pair[1]);
            if version == (0, 0) {
                lists.push(Vec::new());
            }
            let list = lists.last_mut().ok_or(WorldError::Versions)?;
            if list.last().is_some_and(|last| *last >= version) {
                return Err(WorldError::Versions);
            }
            list.push(version);
        }
        if lists.len() != self.clients {
            return Err(WorldError::Versions);
        }
        let first = lists.first().ok_or(WorldError::Versions)?;
        let common = first
            .iter()
            .rev()
            .find(|version| lists.iter().all(|list| list.contains(version)));
        common.copied().ok_or(WorldError::Versions)
    }
}
