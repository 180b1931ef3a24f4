//! PMIx data and its encoding: texts, ranks, statuses, values, infos.
//!
//! Only the shim has libpmix's structures; here they are plain values.

mod codec;
mod status;
mod text;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use wireup_shim::wire as c;

use super::wire::{Reader, WireError, Writer};
use crate::job::ids::Rank;
use crate::job::octets;
use crate::job::proc::Proc;
pub use status::Status;
pub use text::Text;

/// A rank as PMIx writes it: a process, or one of the special values of [`PmixRank`]'s constants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PmixRank(pub u32);

impl PmixRank {
    /// Rank that is not specified.
    pub const UNDEF: Self = Self(u32::MAX);
    /// All ranks of the nspace.
    pub const WILDCARD: Self = Self(u32::MAX - 1);
    /// All ranks on the local node.
    pub const LOCAL_NODE: Self = Self(u32::MAX - 2);
    /// All ranks of the nspace on the local node.
    pub const LOCAL_PEERS: Self = Self(u32::MAX - 4);
    /// First value that is no process.
    const FIRST_SPECIAL: u32 = u32::MAX - 50;

    /// Returns the rank, or `None` for a special value.
    pub fn rank(self) -> Option<Rank> {
        (self.0 < Self::FIRST_SPECIAL).then_some(Rank(self.0))
    }
}

impl From<Rank> for PmixRank {
    fn from(rank: Rank) -> Self {
        Self(rank.0)
    }
}

/// A PMIx process name. The nspace may be empty ("any") or one that is not ours.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PmixProc {
    /// At most 255 bytes.
    #[serde(deserialize_with = "nspace")]
    pub nspace: Text,
    /// A process or a special value.
    pub rank: PmixRank,
}

impl PmixProc {
    /// Names a process, or with a special rank a set of them.
    pub fn new(nspace: impl Into<Text>, rank: impl Into<PmixRank>) -> Self {
        Self {
            nspace: nspace.into(),
            rank: rank.into(),
        }
    }

    /// Appends nspace and rank.
    pub fn encode(&self, out: &mut Writer) {
        self.nspace.encode(out);
        out.u32(self.rank.0);
    }

    /// Decodes nspace and rank.
    ///
    /// # Errors
    /// [`WireError`] when short or the nspace is over its limit.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            nspace: short(Text::decode(from)?)?,
            rank: PmixRank(from.u32()?),
        })
    }
}

impl From<&Proc> for PmixProc {
    fn from(proc: &Proc) -> Self {
        Self::new(&proc.nspace, proc.rank)
    }
}

fn short(nspace: Text) -> Result<Text, WireError> {
    match nspace.as_bytes().len() > c::WIREUP_MAX_NSPACE as usize {
        true => Err(WireError::Bad("nspace: too long")),
        false => Ok(nspace),
    }
}

fn nspace<'de, D: Deserializer<'de>>(from: D) -> Result<Text, D::Error> {
    short(Text::deserialize(from)?).map_err(Error::custom)
}

/// Visibility of an event or a published value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct DataRange(pub u8);

/// Numbers of the PMIx standard.
#[allow(missing_docs, reason = "the PMIx standard's names")]
impl DataRange {
    pub const UNDEF: Self = Self(0);
    pub const RM: Self = Self(1);
    pub const LOCAL: Self = Self(2);
    pub const NAMESPACE: Self = Self(3);
    pub const SESSION: Self = Self(4);
    pub const GLOBAL: Self = Self(5);
    pub const CUSTOM: Self = Self(6);
    pub const PROC_LOCAL: Self = Self(7);
}

/// Standard streams, one or more of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Channels(pub u16);

/// Numbers of the PMIx standard.
#[allow(missing_docs, reason = "the PMIx standard's names")]
impl Channels {
    pub const STDIN: Self = Self(1);
    pub const STDOUT: Self = Self(2);
    pub const STDERR: Self = Self(4);
    pub const STDDIAG: Self = Self(8);

    /// Whether any of the others is among these.
    pub fn has(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }
}

/// Lifetime of a published value: numbers of the PMIx standard for [`Value::Persistence`].
#[allow(missing_docs, reason = "the PMIx standard's names")]
pub mod persistence {
    pub const INDEF: u8 = 0;
    pub const FIRST_READ: u8 = 1;
    pub const PROC: u8 = 2;
    pub const APP: u8 = 3;
    pub const SESSION: u8 = 4;
}

/// PMIx's data about one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcInfo {
    pub proc: PmixProc,
    /// Host name; empty if unknown.
    pub hostname: Text,
    /// Path of the executable; empty if unknown.
    pub executable: Text,
    /// Process id on its node.
    pub pid: u32,
    /// Exit code, once it has one.
    pub exit_code: i32,
    /// State as a `pmix_proc_state_t`.
    pub state: u8,
}

/// Distance of a device of the node from the CPUs of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceDistance {
    /// libpmix's name of the device on all nodes.
    pub uuid: Text,
    /// The system's name of it, as `eth0`.
    pub name: Text,
    /// Types of the device: bits of `pmix_device_type_t`.
    pub kinds: u64,
    /// From the nearest of the CPUs, in libpmix's own measure.
    pub least: u16,
    /// From the farthest of the CPUs.
    pub most: u16,
}

/// Typed value of PMIx.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs, reason = "the PMIx standard's types, one each")]
pub enum Value {
    Undef,
    Bool(bool),
    Byte(u8),
    String(Text),
    Size(u64),
    Pid(u32),
    Int(i32),
    Int8(i8),
    Int16(i16),
    Int32(i32),
    Int64(i64),
    Uint(u32),
    Uint8(u8),
    Uint16(u16),
    Uint32(u32),
    Uint64(u64),
    Float(f32),
    Double(f64),
    Timeval {
        seconds: i64,
        microseconds: i64,
    },
    Time(i64),
    Status(Status),
    Proc(PmixProc),
    Rank(PmixRank),
    Bytes(Vec<u8>),
    Envar {
        name: Text,
        value: Text,
        separator: u8,
    },
    Range(DataRange),
    Persistence(u8),
    Scope(u8),
    ProcState(u8),
    ProcInfo(ProcInfo),
    DeviceDistance(DeviceDistance),
    /// Bytes of a `PMIX_REGEX` value.
    Regex(Vec<u8>),
    /// Comma separated node names, which the host turns into a `PMIX_REGEX`.
    NodeList(Text),
    /// Ranks per node as `0,1;2,3`, which the host turns into a `PMIX_REGEX`.
    PpnList(Text),
    /// An array of infos: PMIx's record.
    Infos(Vec<Info>),
    /// An array of anything else.
    Array(Array),
    /// A value of a PMIx type that the protocol does not carry, by its number. The host leaves such
    /// an info out, or refuses the list if it is required.
    Foreign(u16),
}

impl Value {
    /// Whether a directive with this value is set: PMIx takes a key without a value for a yes.
    pub fn is_set(&self) -> bool {
        matches!(self, Self::Bool(true) | Self::Undef)
    }
}

/// A homogeneous array of values that are neither infos nor arrays.
#[derive(Clone, PartialEq, Debug)]
pub struct Array {
    tag: u8,
    items: Vec<Value>,
}

impl Array {
    /// Creates an array of a simple type; `None` without elements, or if an element is not a simple value or not of the
    /// first one's type.
    pub fn new(items: Vec<Value>) -> Option<Self> {
        let tag = items.first()?.tag();
        (codec::is_element(tag) && items.iter().all(|item| item.tag() == tag))
            .then_some(Self { tag, items })
    }

    /// Returns the array's elements.
    pub fn items(&self) -> &[Value] {
        &self.items
    }
}

/// A key with a value: PMIx's universal attribute.
#[derive(Clone, PartialEq, Debug)]
pub struct Info {
    /// At most 511 bytes.
    pub key: Text,
    /// The receiver must honour it or refuse.
    pub required: bool,
    pub value: Value,
}

impl Info {
    /// Creates an optional info.
    pub fn new(key: &str, value: Value) -> Self {
        Self {
            key: key.into(),
            required: false,
            value,
        }
    }

    /// Appends a counted list.
    pub fn encode_list(list: &[Self], out: &mut Writer) {
        out.count(list.len());
        for info in list {
            info.encode(out);
        }
    }

    /// Takes a counted list.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode_list(from: &mut Reader<'_>) -> Result<Vec<Self>, WireError> {
        from.list(|from| Self::decode(from, 0))
    }

    fn encode(&self, out: &mut Writer) {
        self.key.encode(out);
        out.u32(if self.required {
            c::WIREUP_INFO_REQUIRED
        } else {
            0
        });
        self.value.encode(out);
    }

    fn decode(from: &mut Reader<'_>, depth: u32) -> Result<Self, WireError> {
        let key = Text::decode(from)?;
        if key.as_bytes().len() > c::WIREUP_MAX_KEY as usize {
            return Err(WireError::Bad("key: too long"));
        }
        let flags = from.u32()?;
        if flags & !c::WIREUP_INFO_REQUIRED != 0 {
            return Err(WireError::Bad("info flags"));
        }
        let value = Value::decode(from, depth)?;
        Ok(Self {
            key,
            required: flags != 0,
            value,
        })
    }
}

/// In the encoding of [`Info::encode_list`], which bounds depth and number of its values.
impl Serialize for Info {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut out = Writer::default();
        self.encode(&mut out);
        to.serialize_bytes(&out.into_bytes())
    }
}

impl<'de> Deserialize<'de> for Info {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        octets::read(from, |bytes| {
            let mut from = Reader::new(bytes);
            let info = Self::decode(&mut from, 0)?;
            from.end().map(|()| info)
        })
    }
}

/// Returns the first value under a key.
pub fn find<'a>(infos: &'a [Info], key: &str) -> Option<&'a Value> {
    infos
        .iter()
        .find(|info| info.key == key)
        .map(|info| &info.value)
}

#[cfg(test)]
mod tests;
