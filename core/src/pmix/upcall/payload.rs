//! The fields of which payloads of upcalls are made. Layouts: docs/shim.md.

use wireup_shim::wire as c;

use super::{GroupOp, Query, SpawnedAppInfo};
use crate::pmix::value::{Channels, DataRange, Info, PmixProc, Status, Text};
#[cfg(any(test, feature = "testing"))]
use crate::pmix::wire::Writer;
use crate::pmix::wire::{Reader, WireError};

/// A field of a payload.
pub(super) trait PayloadField: Sized {
    /// Appends the field to a payload, as the shim does, which is C.
    #[cfg(any(test, feature = "testing"))]
    fn encode_field(&self, out: &mut Writer);

    /// Decodes the field from a payload.
    ///
    /// # Errors
    /// [`WireError`].
    fn decode_field(from: &mut Reader<'_>) -> Result<Self, WireError>;
}

/// Declares fields that are numbers, each by the function of [`Writer`] and [`Reader`] with its type's name.
macro_rules! numbers {
    ($($type:ident),*) => {
        $(impl PayloadField for $type {
            #[cfg(any(test, feature = "testing"))]
            fn encode_field(&self, out: &mut Writer) {
                out.$type(*self);
            }

            fn decode_field(from: &mut Reader<'_>) -> Result<Self, WireError> {
                from.$type()
            }
        })*
    };
}

numbers!(u8, u32, i32);

/// Declares fields that are types around a number.
macro_rules! numbered_types {
    ($($type:ident($number:ident)),*) => {
        $(impl PayloadField for $type {
            #[cfg(any(test, feature = "testing"))]
            fn encode_field(&self, out: &mut Writer) {
                out.$number(self.0);
            }

            fn decode_field(from: &mut Reader<'_>) -> Result<Self, WireError> {
                from.$number().map(Self)
            }
        })*
    };
}

numbered_types!(Status(i32), DataRange(u8), Channels(u16));

impl PayloadField for GroupOp {
    #[cfg(any(test, feature = "testing"))]
    fn encode_field(&self, out: &mut Writer) {
        out.u8(match self {
            Self::Construct => c::WIREUP_GROUP_CONSTRUCT as u8,
            Self::Destruct => c::WIREUP_GROUP_DESTRUCT as u8,
        });
    }

    fn decode_field(from: &mut Reader<'_>) -> Result<Self, WireError> {
        match u32::from(from.u8()?) {
            c::WIREUP_GROUP_CONSTRUCT => Ok(Self::Construct),
            c::WIREUP_GROUP_DESTRUCT => Ok(Self::Destruct),
            _ => Err(WireError::Bad("group operation")),
        }
    }
}

impl PayloadField for PmixProc {
    #[cfg(any(test, feature = "testing"))]
    fn encode_field(&self, out: &mut Writer) {
        self.encode(out);
    }

    fn decode_field(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Self::decode(from)
    }
}

impl PayloadField for Text {
    #[cfg(any(test, feature = "testing"))]
    fn encode_field(&self, out: &mut Writer) {
        self.encode(out);
    }

    fn decode_field(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Self::decode(from)
    }
}

impl PayloadField for Vec<u8> {
    #[cfg(any(test, feature = "testing"))]
    fn encode_field(&self, out: &mut Writer) {
        out.bytes(self);
    }

    fn decode_field(from: &mut Reader<'_>) -> Result<Self, WireError> {
        from.bytes().map(<[u8]>::to_vec)
    }
}

impl PayloadField for Vec<Info> {
    #[cfg(any(test, feature = "testing"))]
    fn encode_field(&self, out: &mut Writer) {
        Info::encode_list(self, out);
    }

    fn decode_field(from: &mut Reader<'_>) -> Result<Self, WireError> {
        Info::decode_list(from)
    }
}

/// Declares counted lists of fields.
macro_rules! lists {
    ($($type:ident),*) => {
        $(impl PayloadField for Vec<$type> {
            #[cfg(any(test, feature = "testing"))]
            fn encode_field(&self, out: &mut Writer) {
                out.count(self.len());
                self.iter().for_each(|element| element.encode_field(out));
            }

            fn decode_field(from: &mut Reader<'_>) -> Result<Self, WireError> {
                from.list($type::decode_field)
            }
        })*
    };
}

lists!(PmixProc, Text, Status, Query, SpawnedAppInfo);
