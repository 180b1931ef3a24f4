//! Values that are never shown, and are cleared when they are dropped.

use std::fmt;

use data_encoding::{DecodeError, HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// A password, key or token. Texts of errors and of `Debug` never have it.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
pub struct Secret<T: Zeroize>(T);

/// Secret bytes of a fixed length, so that growth leaves no copy behind.
pub type SecretBytes = Secret<Box<[u8]>>;

impl<T: Zeroize> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl<T: Zeroize> Secret<T> {
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, for those who use it.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl SecretBytes {
    /// Reads a secret from hexadecimal digits.
    ///
    /// # Errors
    /// The reason, without the text.
    pub fn from_hex(text: &str) -> Result<Self, DecodeError> {
        let bytes = Zeroizing::new(HEXLOWER_PERMISSIVE.decode(text.trim().as_bytes())?);
        Ok(Self(bytes.as_slice().into()))
    }

    /// Returns the secret as hexadecimal digits, which are cleared when dropped as well.
    pub fn hex(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(self.0.len() * 2));
        HEXLOWER.encode_append(&self.0, &mut text);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_not_shown() {
        let password = Secret::new("s3cret".to_owned());
        assert_eq!(format!("{:?}", Some(&password)), "Some(Secret)");
        assert_eq!(password.expose(), "s3cret");
    }
}
