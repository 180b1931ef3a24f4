//! Frames between agent and PMIx host, and the primitive encodings inside their payloads.
//!
//! Does not interpret operations (see [`super::sidecar_protocol`] and [`super::upcall`]) nor values (see
//! [`super::value`]). The numbers come from `shim/wire.h`; docs/shim.md has the layouts.
//!
//! Rule: 16 bytes of header, all integers little-endian, payload bounded by [`MAX_PAYLOAD`].
//! Rule: a decoder accepts nothing that the encoder would not print: unknown flags, trailing bytes
//! and texts with NUL are errors, so that a desynchronised peer is noticed at once.

use wireup_shim::wire as c;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = c::WIREUP_HEADER_LEN as usize;
/// Largest payload in bytes, header not included.
pub const MAX_PAYLOAD: usize = c::WIREUP_MAX_PAYLOAD as usize;
/// Deepest nesting of arrays.
pub const MAX_DEPTH: u32 = c::WIREUP_MAX_DEPTH;
/// Most list elements in one payload, all levels together.
pub const MAX_ITEMS: u32 = c::WIREUP_MAX_ITEMS;
/// Version of the protocol and of the shim's functions.
pub const SHIM_ABI: u32 = c::WIREUP_SHIM_ABI;

const REPLY: u16 = c::WIREUP_FLAG_REPLY as u16;
/// Memory taken for a payload before any of it has arrived.
const FIRST_RESERVE: usize = 64 * 1024;

/// The peer sent something that is not this protocol, or we were about to.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum WireError {
    /// The header announces, or an encoder produced, more than [`MAX_PAYLOAD`].
    #[error("payload of {0} bytes exceeds {MAX_PAYLOAD}")]
    TooLarge(usize),
    /// Flag bits outside the known set.
    #[error("unknown frame flags {0:#06x}")]
    Flags(u16),
    /// An operation that this side does not expect, as a request or as a reply.
    #[error("unexpected {}operation {op:#06x}", if *.reply { "reply to " } else { "" })]
    Operation {
        /// The code in the header.
        op: u16,
        /// Whether the frame was a reply.
        reply: bool,
    },
    /// A reply without a request, a request without id, or a notice with one.
    #[error("operation {op:#06x} with unexpected request id {id}")]
    Id {
        /// The code in the header.
        op: u16,
        /// The id in the header.
        id: u64,
    },
    /// The payload ends inside a field.
    #[error("payload ends inside {0}")]
    Short(&'static str),
    /// Bytes after the last field.
    #[error("{0} bytes after the last field")]
    Trailing(usize),
    /// A field with a value outside its range.
    #[error("invalid {0}")]
    Bad(&'static str),
    /// A value tag that is unknown or not allowed at its position.
    #[error("unexpected value tag {0}")]
    Tag(u8),
    /// A value has more than [`MAX_ITEMS`] elements or [`MAX_DEPTH`] levels.
    #[error("too many elements or levels")]
    Nested,
}

/// One message on either socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidecarFrame {
    pub op: u16,
    /// Whether this answers the request of the same operation and id.
    pub reply: bool,
    /// Request id; 0 for a notice.
    pub id: u64,
    /// Fields of the operation.
    pub payload: Vec<u8>,
}

impl SidecarFrame {
    /// Encodes header and payload.
    ///
    /// # Errors
    /// [`WireError::TooLarge`].
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let mut writer = Writer::frame();
        writer.raw(&self.payload);
        writer.finish(self.op, self.reply, self.id)
    }
}

/// Cuts a byte stream into frames; holds at most one incomplete frame.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    header: [u8; HEADER_LEN],
    header_len: usize,
    payload: Vec<u8>,
}

impl FrameDecoder {
    /// Takes the next bytes of the stream and appends every completed frame to `frames`.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] or [`WireError::Flags`]; the stream is lost, frames completed
    /// before the error are in `frames`.
    pub fn push(
        &mut self,
        mut bytes: &[u8],
        frames: &mut Vec<SidecarFrame>,
    ) -> Result<(), WireError> {
        loop {
            let missing = HEADER_LEN - self.header_len;
            if missing > 0 {
                let (now, rest) = bytes.split_at(missing.min(bytes.len()));
                self.header[self.header_len..][..now.len()].copy_from_slice(now);
                self.header_len += now.len();
                bytes = rest;
                if self.header_len < HEADER_LEN {
                    return Ok(());
                }
            }
            let (payload_len, op, reply, id) = self.parse_header()?;
            if self.payload.capacity() == 0 {
                self.payload.reserve(payload_len.min(FIRST_RESERVE));
            }
            let missing = payload_len - self.payload.len();
            let (now, rest) = bytes.split_at(missing.min(bytes.len()));
            self.payload.extend_from_slice(now);
            bytes = rest;
            if now.len() < missing {
                return Ok(());
            }
            self.header_len = 0;
            frames.push(SidecarFrame {
                op,
                reply,
                id,
                payload: std::mem::take(&mut self.payload),
            });
            if bytes.is_empty() {
                return Ok(());
            }
        }
    }

    /// Whether the stream may end here: no frame is incomplete.
    pub fn is_idle(&self) -> bool {
        self.header_len == 0
    }

    fn parse_header(&self) -> Result<(usize, u16, bool, u64), WireError> {
        let mut reader = Reader::new(&self.header);
        let payload_len = reader.u32()? as usize;
        let (op, flags, id) = (reader.u16()?, reader.u16()?, reader.u64()?);
        if payload_len > MAX_PAYLOAD {
            return Err(WireError::TooLarge(payload_len));
        }
        if flags & !REPLY != 0 {
            return Err(WireError::Flags(flags));
        }
        Ok((payload_len, op, flags & REPLY != 0, id))
    }
}

/// Builds one frame: room for the header first, then the fields in order. An empty one by default,
/// without that room, builds a part for storage.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

macro_rules! write_number {
    ($($name:ident: $type:ty),+) => {
        $(
            /// Appends the number, little-endian.
            pub fn $name(&mut self, value: $type) {
                self.0.extend_from_slice(&value.to_le_bytes());
            }
        )+
    };
}

impl Writer {
    /// Creates an empty frame.
    pub fn frame() -> Self {
        Self(vec![0; HEADER_LEN])
    }

    write_number!(u8: u8, u16: u16, u32: u32, u64: u64, i8: i8, i16: i16, i32: i32, i64: i64);

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends a u32 length and the bytes.
    ///
    /// A length beyond u32 is written as the largest one: such a frame is far over the limit and
    /// [`finish`](Self::finish) refuses it.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.raw(bytes);
    }

    /// Appends the u32 number of elements that follow.
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Returns the written bytes, for a part that is stored.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Fills in the header and returns the frame's bytes.
    ///
    /// # Errors
    /// [`WireError::TooLarge`].
    pub fn finish(mut self, op: u16, reply: bool, id: u64) -> Result<Vec<u8>, WireError> {
        let payload_len = self.0.len() - HEADER_LEN;
        if payload_len > MAX_PAYLOAD {
            return Err(WireError::TooLarge(payload_len));
        }
        let mut header = Self(Vec::with_capacity(HEADER_LEN));
        header.count(payload_len);
        header.u16(op);
        header.u16(if reply { REPLY } else { 0 });
        header.u64(id);
        self.0[..HEADER_LEN].copy_from_slice(&header.0);
        Ok(self.0)
    }
}

/// Takes the fields of a payload in order; never reads past its end.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    items: u32,
}

macro_rules! read_number {
    ($($name:ident: $type:ty),+) => {
        $(
            /// Takes a little-endian number.
            ///
            /// # Errors
            /// [`WireError::Short`].
            pub fn $name(&mut self) -> Result<$type, WireError> {
                let (now, rest) = self
                    .rest
                    .split_first_chunk()
                    .ok_or(WireError::Short(stringify!($type)))?;
                self.rest = rest;
                Ok(<$type>::from_le_bytes(*now))
            }
        )+
    };
}

impl<'a> Reader<'a> {
    /// Reads a payload from its start.
    pub fn new(payload: &'a [u8]) -> Self {
        Self {
            rest: payload,
            items: MAX_ITEMS,
        }
    }

    read_number!(u8: u8, u16: u16, u32: u32, u64: u64, i8: i8, i16: i16, i32: i32, i64: i64);

    /// Takes a u8 that must be 0 or 1.
    ///
    /// # Errors
    /// [`WireError::Short`] or [`WireError::Bad`].
    pub fn bool(&mut self) -> Result<bool, WireError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Bad("truth value")),
        }
    }

    /// Takes a u32 length and as many bytes.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn bytes(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.u32()? as usize;
        let (now, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(WireError::Short("bytes"))?;
        self.rest = rest;
        Ok(now)
    }

    /// Takes the u32 number of elements that follow and charges them to the payload's budget.
    ///
    /// # Errors
    /// [`WireError::Nested`] over [`MAX_ITEMS`]; [`WireError::Short`] if not even one byte per
    /// element is left.
    pub fn count(&mut self) -> Result<usize, WireError> {
        let count = self.u32()?;
        self.items = self.items.checked_sub(count).ok_or(WireError::Nested)?;
        if count as usize > self.rest.len() {
            return Err(WireError::Short("list"));
        }
        Ok(count as usize)
    }

    /// Takes a counted list.
    ///
    /// # Errors
    /// Those of [`count`](Self::count) and of `element`.
    pub fn list<T>(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let count = self.count()?;
        // A claimed count is not trusted with memory before its elements were seen.
        let mut list = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            list.push(element(self)?);
        }
        Ok(list)
    }

    /// Takes all remaining bytes, for a field that another decoder parses.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Asserts that the payload is used up.
    ///
    /// # Errors
    /// [`WireError::Trailing`].
    pub fn end(&self) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(WireError::Trailing(extra)),
        }
    }
}

#[cfg(test)]
mod tests;
