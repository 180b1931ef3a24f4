//! The challenge by which a client of PMI over TCP proves that it knows its rank's key.
//!
//! Rule: the server sends a random text, the client answers with the HMAC-SHA-256 of that text under the key's text, in
//! hexadecimal digits. Source: docs/pmi-wire.md#tcp-mode.

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::secret::Secret;

/// Value of `authtype` that a client sends.
pub const AUTH_TYPE: &[u8] = b"challenge-hmac-sha256";

/// Variable in which a client finds its key.
pub const KEY_VARIABLE: &str = "PMI_AUTH_KEY";

/// A key, as it stands in the client's environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthKey(Secret<String>);

impl AuthKey {
    /// Creates a key from random bytes.
    pub fn new(random: [u8; 32]) -> Self {
        Self(Secret::new(HEXLOWER.encode(&random)))
    }

    /// Creates the key that a client was given.
    pub fn from_text(text: &str) -> Self {
        Self(Secret::new(text.to_owned()))
    }

    /// Returns the key's text, for the client's environment.
    pub fn text(&self) -> &str {
        self.0.expose()
    }

    fn mac(&self, challenge: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(self.text().as_bytes());
        mac.expect("HMAC takes keys of any length")
            .chain_update(challenge)
    }

    /// Returns the client's answer to a challenge.
    pub fn answer(&self, challenge: &[u8]) -> String {
        HEXLOWER.encode(&self.mac(challenge).finalize().into_bytes())
    }

    /// Whether that is the answer; takes as long for each wrong one.
    pub fn accepts(&self, challenge: &[u8], answer: &[u8]) -> bool {
        let answer = HEXLOWER_PERMISSIVE.decode(answer);
        answer.is_ok_and(|answer| self.mac(challenge).verify_slice(&answer).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `printf %s text | openssl dgst -sha256 -hmac key` computes it.
    #[test]
    fn hmac_reply_equals_that_of_other_implementations() {
        let key = AuthKey::from_text("key");
        let text = b"The quick brown fox jumps over the lazy dog";
        let expected = "f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8";
        assert_eq!(key.answer(text), expected);
        assert!(key.accepts(text, expected.to_uppercase().as_bytes()));
        assert!(!key.accepts(b"another", expected.as_bytes()));
        assert!(!key.accepts(text, &expected.as_bytes()[2..]));
        assert!(!key.accepts(text, b""));
    }
}
