//! Bytes that are never shown, and are cleared when they are dropped.

use std::fmt;

use data_encoding::{DecodeError, HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Secret bytes that are never shown and are cleared when dropped. Their length is fixed, so that growth leaves no copy
/// behind.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct Secret(Box<[u8]>);

impl fmt::Debug for Secret {
    /// Writes the type's name only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Reads a secret from hexadecimal digits.
    ///
    /// # Errors
    /// The reason, without the text.
    pub fn from_hex(text: &str) -> Result<Self, DecodeError> {
        let bytes = Zeroizing::new(HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes())?);
        Ok(Self::new(&bytes))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the secret as hexadecimal digits, which are cleared when dropped as well.
    pub fn hex(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(self.0.len() * 2));
        HEXLOWER.encode_append(&self.0, &mut text);
        text
    }
}
