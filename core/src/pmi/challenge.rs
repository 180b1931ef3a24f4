//! Authentication of a client of PMI over TCP: it proves that it has its rank's key.
//!
//! Rule: the server sends a random text, the client answers with the HMAC-SHA-256 of that text under the key's text, in
//! hexadecimal digits. Source: docs/pmi-wire.md#tcp-mode.
//! Rule: the draft of PMI-2 has the SHA-256 of the key's text and a random integer instead. Source: docs/pmi-wire.md#tcp-mode.

use std::{fmt, mem};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};

use crate::secret::Secret;

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

    /// Returns the answer of the draft's client to a challenge.
    pub fn hash(&self, challenge: &[u8]) -> String {
        let hash = Sha256::new().chain_update(self.text());
        HEXLOWER.encode(&hash.chain_update(challenge).finalize())
    }
}

/// Result of one round of an authentication.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AuthRound {
    /// The client must answer this text.
    Send(String),
    /// The client has its key.
    Accepted,
    /// The client has another key, or none.
    Refused,
}

impl AuthRound {
    fn last(is_right: bool) -> Self {
        match is_right {
            true => Self::Accepted,
            false => Self::Refused,
        }
    }
}

/// An authentication type with one client, in one round or more.
pub trait Authentication: fmt::Debug + Send {
    /// Handles the client's next message, of which the first one came with its `fullinit` and may be empty.
    fn take(&mut self, message: &[u8]) -> AuthRound;
}

/// Authentication of a port's clients.
#[derive(Clone, Debug)]
pub struct ClientAuth {
    pub key: AuthKey,
    /// Whether every client must authenticate; otherwise only those that offer it are challenged.
    pub required: bool,
    /// Whether clients may choose the draft's type as well as the HMAC.
    pub has_draft_type: bool,
}

impl ClientAuth {
    /// Starts an authentication of the type that a client has requested; `None` for another type than those offered.
    pub(super) fn start(&self, kind: &[u8], random: [u8; 16]) -> Option<Box<dyn Authentication>> {
        let key = self.key.clone();
        match kind {
            b"challenge-hmac-sha256" => Some(Box::new(HmacChallenge {
                key,
                text: HEXLOWER.encode(&random),
                is_sent: false,
            })),
            b"challenge-sha256" if self.has_draft_type => Some(Box::new(HashChallenge {
                key,
                number: u128::from_le_bytes(random).to_string(),
                is_sent: false,
            })),
            _ => None,
        }
    }
}

/// Challenge of which the client returns the HMAC.
#[derive(Debug)]
struct HmacChallenge {
    key: AuthKey,
    text: String,
    is_sent: bool,
}

impl Authentication for HmacChallenge {
    fn take(&mut self, message: &[u8]) -> AuthRound {
        match mem::replace(&mut self.is_sent, true) {
            false => AuthRound::Send(self.text.clone()),
            true => AuthRound::last(self.key.accepts(self.text.as_bytes(), message)),
        }
    }
}

/// Challenge of the draft: the client returns the hash of its key and a number.
#[derive(Debug)]
struct HashChallenge {
    key: AuthKey,
    number: String,
    is_sent: bool,
}

impl Authentication for HashChallenge {
    fn take(&mut self, message: &[u8]) -> AuthRound {
        if !mem::replace(&mut self.is_sent, true) {
            return AuthRound::Send(self.number.clone());
        }
        // The time of this comparison shows nothing of use: each number serves for one answer.
        let answer = self.key.hash(self.number.as_bytes());
        AuthRound::last(answer.as_bytes().eq_ignore_ascii_case(message))
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

    /// The expected value is the output of `printf %s%s key 42 | sha256sum`.
    #[test]
    fn hash_of_draft_equals_that_of_other_implementations() {
        let expected = "d8e1e2f31344c975c9ddcdf79c5418b44afc6c8dbb440fdcc80cfdbc96d070b5";
        assert_eq!(AuthKey::from_text("key").hash(b"42"), expected);
    }
}
