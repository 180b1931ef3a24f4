//! Packets between hosts, as bytes.
//!
//! Rule: a header of 128 bytes in big-endian order; data follows DATA and DATASYNC only. Fields that a type does not
//! use hold anything, `pk_len` included. Source: IMPI 3.5, table 3.1; LAM/MPI 7.1.4 for the second sentence.

use std::net::{IpAddr, Ipv6Addr};

use thiserror::Error;

/// Bytes of a header.
pub const HEADER: usize = 128;

/// A process, unique in the job: an address that need not be the process's, and a number under it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct ProcId {
    /// `p_hostid`; compared as bytes only.
    pub host: [u8; 16],
    /// Number of the process, `p_pid`.
    pub pid: i64,
}

/// Returns an address in the specification's form; of IPv4 in the embedding that LAM uses.
pub fn host_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(four) => four.to_ipv6_compatible().octets(),
        IpAddr::V6(six) => six.octets(),
    }
}

/// Returns the address of 16 bytes, with either embedding of IPv4.
pub fn host_address(bytes: [u8; 16]) -> IpAddr {
    let six = Ipv6Addr::from(bytes);
    match six.to_ipv4() {
        Some(four) if six != Ipv6Addr::LOCALHOST => four.into(),
        _ => six.into(),
    }
}

/// Type of a packet, `pk_type`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u32)]
pub enum PacketType {
    /// A short message, or a further part of a long one.
    Data = 0,
    /// A short message of a synchronous send, or the first part of a long one.
    DataSync = 1,
    /// Acknowledgement of `ackmark` packets.
    ProtoAck = 2,
    /// The message was matched.
    SyncAck = 3,
    /// Take the message back.
    Cancel = 4,
    /// The message was not matched and is destroyed.
    CancelYes = 5,
    /// The message was matched.
    CancelNo = 6,
    /// The host sends no more.
    Fini = 7,
}

impl PacketType {
    /// All of them, by their number.
    pub const ALL: [Self; 8] = [
        Self::Data,
        Self::DataSync,
        Self::ProtoAck,
        Self::SyncAck,
        Self::Cancel,
        Self::CancelYes,
        Self::CancelNo,
        Self::Fini,
    ];

    /// Whether data follows the header.
    pub fn has_body(self) -> bool {
        matches!(self, Self::Data | Self::DataSync)
    }

    /// Whether it counts in the window of its pair of processes.
    ///
    /// Rule: protocol acks and FINI do not. Source: IMPI 3.6, 3.8; that all others count is LAM's reading.
    pub fn counts(self) -> bool {
        !matches!(self, Self::ProtoAck | Self::Fini)
    }
}

/// Header of a packet, `IMPI_Packet`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketHeader {
    /// Type of the packet, `pk_type`.
    pub kind: PacketType,
    /// `pk_len`: bytes that follow.
    pub length: u32,
    /// Sender of the packet, `pk_src`.
    pub source: ProcId,
    /// Receiver of the packet, `pk_dest`.
    pub destination: ProcId,
    /// Request of the source, `pk_srqid`.
    pub source_request: u64,
    /// Request of the destination, `pk_drqid`.
    pub destination_request: u64,
    /// `pk_msglen`: bytes of the whole message.
    pub message_length: u64,
    /// `pk_lsrank`: the sender's rank in the communicator.
    pub rank: i32,
    /// Tag of the message, `pk_tag`.
    pub tag: i32,
    /// Context of the message, `pk_cid`.
    pub context: u64,
    /// `pk_seqnum`, `pk_count`, `pk_dtype`: for implementations that agree on them.
    pub service: [u64; 3],
}

/// Error: the bytes are not a valid header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PacketError {
    /// A type of no version that was agreed on.
    #[error("packet of type {0}")]
    Type(u32),
    /// The packet exceeds the negotiated `IMPI_Pk_maxdatalen`.
    #[error("packet with {length} bytes of data; at most {limit} were agreed on")]
    TooLong {
        /// Length in the packet, `pk_len`.
        length: u32,
        /// Negotiated maximum length, `IMPI_Pk_maxdatalen`.
        limit: u32,
    },
}

impl PacketHeader {
    /// Makes a packet without data from one process to another.
    pub fn new(kind: PacketType, source: ProcId, destination: ProcId) -> Self {
        Self {
            kind,
            length: 0,
            source,
            destination,
            source_request: 0,
            destination_request: 0,
            message_length: 0,
            rank: 0,
            tag: 0,
            context: 0,
            service: [0; 3],
        }
    }

    /// Encodes the header as bytes.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend((self.kind as u32).to_be_bytes());
        bytes.extend(self.length.to_be_bytes());
        for id in [self.source, self.destination] {
            bytes.extend(id.host);
            bytes.extend(id.pid.to_be_bytes());
        }
        for field in [
            self.source_request,
            self.destination_request,
            self.message_length,
        ] {
            bytes.extend(field.to_be_bytes());
        }
        bytes.extend(self.rank.to_be_bytes());
        bytes.extend(self.tag.to_be_bytes());
        bytes.extend(self.context.to_be_bytes());
        self.service
            .iter()
            .for_each(|field| bytes.extend(field.to_be_bytes()));
        bytes.extend([0; 8]);
        bytes.try_into().expect("the fields above are 128 bytes")
    }

    /// Decodes a header. For a type without data the length is 0, whatever the bytes contain.
    ///
    /// # Errors
    /// When the type is unknown, or more data is to follow than `limit`.
    pub fn decode(bytes: &[u8; HEADER], limit: u32) -> Result<Self, PacketError> {
        let u32_at = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let proc_at = |at: usize| ProcId {
            host: std::array::from_fn(|i| bytes[at + i]),
            pid: u64_at(at + 16).cast_signed(),
        };
        let number = u32_at(0);
        let kind = PacketType::ALL.get(number as usize).copied();
        let kind = kind.ok_or(PacketError::Type(number))?;
        let length = if kind.has_body() { u32_at(4) } else { 0 };
        if length > limit {
            return Err(PacketError::TooLong { length, limit });
        }
        Ok(Self {
            kind,
            length,
            source: proc_at(8),
            destination: proc_at(32),
            source_request: u64_at(56),
            destination_request: u64_at(64),
            message_length: u64_at(72),
            rank: u32_at(80).cast_signed(),
            tag: u32_at(84).cast_signed(),
            context: u64_at(88),
            service: [u64_at(96), u64_at(104), u64_at(112)],
        })
    }
}

/// A packet with its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The header; its length is that of the data.
    pub header: PacketHeader,
    pub data: Vec<u8>,
}

impl From<PacketHeader> for Packet {
    /// Makes a packet without data.
    fn from(header: PacketHeader) -> Self {
        Self {
            header,
            data: Vec::new(),
        }
    }
}

impl Packet {
    /// Returns header and data in the order in which they are written.
    pub fn bytes(&self) -> Vec<u8> {
        [&self.header.encode()[..], &self.data].concat()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_embeddings_of_ipv4_are_read() {
        let four = IpAddr::from([127, 0, 0, 2]);
        assert_eq!(host_address(host_bytes(four)), four);
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 2];
        assert_eq!(host_address(mapped), four);
        let six: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(host_address(host_bytes(six)), six);
        let loopback = IpAddr::V6(Ipv6Addr::LOCALHOST);
        assert_eq!(host_address(host_bytes(loopback)), loopback);
    }

    #[test]
    fn header_fields_are_placed_as_specified() {
        let header = PacketHeader {
            kind: PacketType::DataSync,
            length: 0x0102_0304,
            source: ProcId {
                host: [0xaa; 16],
                pid: 0x2766,
            },
            destination: ProcId {
                host: [0xbb; 16],
                pid: -1,
            },
            source_request: 1,
            destination_request: 2,
            message_length: 200_000,
            rank: 3,
            tag: 110,
            context: 1,
            service: [4, 5, 6],
        };
        let bytes = header.encode();
        for (at, expected) in [
            (0, &[0, 0, 0, 1, 1, 2, 3, 4][..]),
            (8, &[0xaa; 16]),
            (24, &[0, 0, 0, 0, 0, 0, 0x27, 0x66]),
            (32, &[0xbb; 16]),
            (48, &[0xff; 8]),
            (56, &[0, 0, 0, 0, 0, 0, 0, 1]),
            (64, &[0, 0, 0, 0, 0, 0, 0, 2]),
            (72, &[0, 0, 0, 0, 0, 3, 0x0d, 0x40]),
            (80, &[0, 0, 0, 3, 0, 0, 0, 110]),
            (88, &[0, 0, 0, 0, 0, 0, 0, 1]),
            (120, &[0; 8]),
        ] {
            assert_eq!(&bytes[at..at + expected.len()], expected, "at {at}");
        }
        assert_eq!(PacketHeader::decode(&bytes, u32::MAX), Ok(header));
    }

    #[test]
    fn length_of_ack_is_not_read() {
        // As LAM sends a SYNCACK: 128 in pk_len and nothing behind it.
        let mut bytes =
            PacketHeader::new(PacketType::SyncAck, ProcId::default(), ProcId::default()).encode();
        bytes[7] = 128;
        assert_eq!(
            PacketHeader::decode(&bytes, 64).map(|header| header.length),
            Ok(0)
        );
        bytes[3] = 0;
        assert_eq!(
            PacketHeader::decode(&bytes, 64),
            Err(PacketError::TooLong {
                length: 128,
                limit: 64
            })
        );
        bytes[3] = 8;
        assert_eq!(PacketHeader::decode(&bytes, 64), Err(PacketError::Type(8)));
    }

    proptest! {
        #[test]
        fn decoded_packet_encodes_to_same_bytes(start in 0_u32..2, bytes in proptest::array::uniform32(any::<u32>())) {
            let mut bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_be_bytes()).collect();
            bytes[..4].copy_from_slice(&start.to_be_bytes());
            bytes[120..].fill(0);
            let bytes: [u8; HEADER] = bytes.try_into().unwrap();
            prop_assert_eq!(PacketHeader::decode(&bytes, u32::MAX).unwrap().encode(), bytes);
        }
    }
}
