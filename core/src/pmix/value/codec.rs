//! Encoding of one [`Value`]: a tag byte, then the body that the tag names.

use wireup_shim::wire as c;

use super::{
    Array, DataRange, DeviceDistance, Info, PmixProc, PmixRank, ProcInfo, Status, Text, Value,
};
use crate::pmix::wire::{MAX_DEPTH, Reader, WireError, Writer};

/// Whether values with this tag may be elements of an [`Array`].
pub(super) fn is_element(tag: u8) -> bool {
    matches!(
        u32::from(tag),
        c::WIREUP_TAG_BOOL..=c::WIREUP_TAG_PROC_INFO | c::WIREUP_TAG_DEVICE_DISTANCE
    )
}

impl Value {
    /// Appends tag and body.
    pub fn encode(&self, out: &mut Writer) {
        out.u8(self.tag());
        self.encode_body(out);
    }

    /// Takes tag and body; `depth` counts the arrays around it.
    pub(crate) fn decode(from: &mut Reader<'_>, depth: u32) -> Result<Self, WireError> {
        let tag = from.u8()?;
        Self::decode_body(tag, from, depth)
    }

    /// Encodes the value, for storage without parsing.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::default();
        self.encode(&mut out);
        out.into_bytes()
    }

    /// Decodes a value of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`WireError`] for any other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(bytes);
        let value = Self::decode(&mut from, 0)?;
        from.end().map(|()| value)
    }

    /// Whether it can be returned to libpmix unchanged: it and its contents are of types that
    /// the protocol carries.
    pub fn is_complete(&self) -> bool {
        match self {
            Self::Foreign(_) => false,
            Self::Infos(infos) => infos.iter().all(|info| info.value.is_complete()),
            _ => true,
        }
    }

    pub(super) fn tag(&self) -> u8 {
        let tag = match self {
            Self::Undef => c::WIREUP_TAG_UNDEF,
            Self::Bool(_) => c::WIREUP_TAG_BOOL,
            Self::Byte(_) => c::WIREUP_TAG_BYTE,
            Self::String(_) => c::WIREUP_TAG_STRING,
            Self::Size(_) => c::WIREUP_TAG_SIZE,
            Self::Pid(_) => c::WIREUP_TAG_PID,
            Self::Int(_) => c::WIREUP_TAG_INT,
            Self::Int8(_) => c::WIREUP_TAG_INT8,
            Self::Int16(_) => c::WIREUP_TAG_INT16,
            Self::Int32(_) => c::WIREUP_TAG_INT32,
            Self::Int64(_) => c::WIREUP_TAG_INT64,
            Self::Uint(_) => c::WIREUP_TAG_UINT,
            Self::Uint8(_) => c::WIREUP_TAG_UINT8,
            Self::Uint16(_) => c::WIREUP_TAG_UINT16,
            Self::Uint32(_) => c::WIREUP_TAG_UINT32,
            Self::Uint64(_) => c::WIREUP_TAG_UINT64,
            Self::Float(_) => c::WIREUP_TAG_FLOAT,
            Self::Double(_) => c::WIREUP_TAG_DOUBLE,
            Self::Timeval { .. } => c::WIREUP_TAG_TIMEVAL,
            Self::Time(_) => c::WIREUP_TAG_TIME,
            Self::Status(_) => c::WIREUP_TAG_STATUS,
            Self::Proc(_) => c::WIREUP_TAG_PROC,
            Self::Rank(_) => c::WIREUP_TAG_RANK,
            Self::Bytes(_) => c::WIREUP_TAG_BYTES,
            Self::Envar { .. } => c::WIREUP_TAG_ENVAR,
            Self::Range(_) => c::WIREUP_TAG_RANGE,
            Self::Persistence(_) => c::WIREUP_TAG_PERSISTENCE,
            Self::Scope(_) => c::WIREUP_TAG_SCOPE,
            Self::ProcState(_) => c::WIREUP_TAG_PROC_STATE,
            Self::ProcInfo(_) => c::WIREUP_TAG_PROC_INFO,
            Self::DeviceDistance(_) => c::WIREUP_TAG_DEVICE_DISTANCE,
            Self::Regex(_) => c::WIREUP_TAG_REGEX,
            Self::NodeList(_) => c::WIREUP_TAG_NODE_LIST,
            Self::PpnList(_) => c::WIREUP_TAG_PPN_LIST,
            Self::Infos(_) | Self::Array(_) => c::WIREUP_TAG_ARRAY,
            Self::Foreign(_) => c::WIREUP_TAG_FOREIGN,
        };
        tag as u8
    }

    fn encode_body(&self, out: &mut Writer) {
        match self {
            Self::Undef => {}
            Self::Bool(value) => out.u8(u8::from(*value)),
            Self::Byte(value)
            | Self::Uint8(value)
            | Self::Range(DataRange(value))
            | Self::Persistence(value)
            | Self::Scope(value)
            | Self::ProcState(value) => out.u8(*value),
            Self::Int8(value) => out.i8(*value),
            Self::Int16(value) => out.i16(*value),
            Self::Uint16(value) | Self::Foreign(value) => out.u16(*value),
            Self::Int(value) | Self::Int32(value) | Self::Status(Status(value)) => out.i32(*value),
            Self::Pid(value)
            | Self::Uint(value)
            | Self::Uint32(value)
            | Self::Rank(PmixRank(value)) => out.u32(*value),
            Self::Int64(value) | Self::Time(value) => out.i64(*value),
            Self::Size(value) | Self::Uint64(value) => out.u64(*value),
            Self::Float(value) => out.u32(value.to_bits()),
            Self::Double(value) => out.u64(value.to_bits()),
            Self::Timeval {
                seconds,
                microseconds,
            } => {
                out.i64(*seconds);
                out.i64(*microseconds);
            }
            Self::String(text) | Self::NodeList(text) | Self::PpnList(text) => text.encode(out),
            Self::Proc(proc) => proc.encode(out),
            Self::Bytes(bytes) | Self::Regex(bytes) => out.bytes(bytes),
            Self::Envar {
                name,
                value,
                separator,
            } => {
                name.encode(out);
                value.encode(out);
                out.u8(*separator);
            }
            Self::ProcInfo(info) => {
                info.proc.encode(out);
                info.hostname.encode(out);
                info.executable.encode(out);
                out.u32(info.pid);
                out.i32(info.exit_code);
                out.u8(info.state);
            }
            Self::DeviceDistance(distance) => {
                distance.uuid.encode(out);
                distance.name.encode(out);
                out.u64(distance.kinds);
                out.u16(distance.least);
                out.u16(distance.most);
            }
            Self::Infos(infos) => {
                out.u8(c::WIREUP_TAG_INFO as u8);
                Info::encode_list(infos, out);
            }
            Self::Array(array) => {
                out.u8(array.tag);
                out.count(array.items.len());
                for item in &array.items {
                    item.encode_body(out);
                }
            }
        }
    }

    fn decode_body(tag: u8, from: &mut Reader<'_>, depth: u32) -> Result<Self, WireError> {
        Ok(match u32::from(tag) {
            c::WIREUP_TAG_UNDEF => Self::Undef,
            c::WIREUP_TAG_BOOL => Self::Bool(from.bool()?),
            c::WIREUP_TAG_BYTE => Self::Byte(from.u8()?),
            c::WIREUP_TAG_STRING => Self::String(Text::decode(from)?),
            c::WIREUP_TAG_SIZE => Self::Size(from.u64()?),
            c::WIREUP_TAG_PID => Self::Pid(from.u32()?),
            c::WIREUP_TAG_INT => Self::Int(from.i32()?),
            c::WIREUP_TAG_INT8 => Self::Int8(from.i8()?),
            c::WIREUP_TAG_INT16 => Self::Int16(from.i16()?),
            c::WIREUP_TAG_INT32 => Self::Int32(from.i32()?),
            c::WIREUP_TAG_INT64 => Self::Int64(from.i64()?),
            c::WIREUP_TAG_UINT => Self::Uint(from.u32()?),
            c::WIREUP_TAG_UINT8 => Self::Uint8(from.u8()?),
            c::WIREUP_TAG_UINT16 => Self::Uint16(from.u16()?),
            c::WIREUP_TAG_UINT32 => Self::Uint32(from.u32()?),
            c::WIREUP_TAG_UINT64 => Self::Uint64(from.u64()?),
            c::WIREUP_TAG_FLOAT => Self::Float(f32::from_bits(from.u32()?)),
            c::WIREUP_TAG_DOUBLE => Self::Double(f64::from_bits(from.u64()?)),
            c::WIREUP_TAG_TIMEVAL => Self::Timeval {
                seconds: from.i64()?,
                microseconds: from.i64()?,
            },
            c::WIREUP_TAG_TIME => Self::Time(from.i64()?),
            c::WIREUP_TAG_STATUS => Self::Status(Status(from.i32()?)),
            c::WIREUP_TAG_PROC => Self::Proc(PmixProc::decode(from)?),
            c::WIREUP_TAG_RANK => Self::Rank(PmixRank(from.u32()?)),
            c::WIREUP_TAG_BYTES => Self::Bytes(from.bytes()?.to_vec()),
            c::WIREUP_TAG_ENVAR => Self::Envar {
                name: Text::decode(from)?,
                value: Text::decode(from)?,
                separator: from.u8()?,
            },
            c::WIREUP_TAG_RANGE => Self::Range(DataRange(from.u8()?)),
            c::WIREUP_TAG_PERSISTENCE => Self::Persistence(from.u8()?),
            c::WIREUP_TAG_SCOPE => Self::Scope(from.u8()?),
            c::WIREUP_TAG_PROC_STATE => Self::ProcState(from.u8()?),
            c::WIREUP_TAG_PROC_INFO => Self::ProcInfo(ProcInfo {
                proc: PmixProc::decode(from)?,
                hostname: Text::decode(from)?,
                executable: Text::decode(from)?,
                pid: from.u32()?,
                exit_code: from.i32()?,
                state: from.u8()?,
            }),
            c::WIREUP_TAG_DEVICE_DISTANCE => Self::DeviceDistance(DeviceDistance {
                uuid: Text::decode(from)?,
                name: Text::decode(from)?,
                kinds: from.u64()?,
                least: from.u16()?,
                most: from.u16()?,
            }),
            c::WIREUP_TAG_REGEX => Self::Regex(from.bytes()?.to_vec()),
            c::WIREUP_TAG_ARRAY => Self::decode_array(from, depth)?,
            c::WIREUP_TAG_NODE_LIST => Self::NodeList(Text::decode(from)?),
            c::WIREUP_TAG_PPN_LIST => Self::PpnList(Text::decode(from)?),
            c::WIREUP_TAG_FOREIGN => Self::Foreign(from.u16()?),
            _ => return Err(WireError::Tag(tag)),
        })
    }

    fn decode_array(from: &mut Reader<'_>, depth: u32) -> Result<Self, WireError> {
        if depth >= MAX_DEPTH {
            return Err(WireError::Nested);
        }
        let tag = from.u8()?;
        if u32::from(tag) == c::WIREUP_TAG_INFO {
            return Ok(Self::Infos(
                from.list(|from| Info::decode(from, depth + 1))?,
            ));
        }
        if !is_element(tag) {
            return Err(WireError::Tag(tag));
        }
        let items = from.list(|from| Self::decode_body(tag, from, depth + 1))?;
        Ok(Self::Array(Array { tag, items }))
    }
}
