//! Texts of PMIx.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::job::ids::Nspace;
use crate::job::octets;
use crate::pmix::wire::{Reader, WireError, Writer};

/// A C string: any bytes but NUL. PMIx promises no encoding.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Vec<u8>);

impl Text {
    /// Takes the bytes up to the first NUL, as C would read them.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        let mut bytes = bytes.into();
        if let Some(end) = memchr::memchr(0, &bytes) {
            bytes.truncate(end);
        }
        Self(bytes)
    }

    /// Returns the bytes, without terminator.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the text, if it is UTF-8.
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// Returns the bytes, without terminator.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Appends length and bytes.
    pub fn encode(&self, out: &mut Writer) {
        out.bytes(&self.0);
    }

    /// Takes length and bytes.
    ///
    /// # Errors
    /// [`WireError`] when short or holding a NUL.
    pub fn decode(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let bytes = from.bytes()?;
        match memchr::memchr(0, bytes) {
            Some(_) => Err(WireError::Bad("text: it holds a NUL")),
            None => Ok(Self(bytes.to_vec())),
        }
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        octets::read(from, |bytes| match memchr::memchr(0, bytes) {
            Some(_) => Err(WireError::Bad("text: it holds a NUL")),
            None => Ok(Self(bytes.to_vec())),
        })
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<&Nspace> for Text {
    fn from(nspace: &Nspace) -> Self {
        Self::new(nspace.as_str())
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}
