//! Credentials of a launch: tokens by which its processes identify each other.
//!
//! A token names a process, its user and group, and until when it is good; it is signed with a secret
//! that the launch's nodes share and no rank gets. So one that was changed, made up, or made for
//! another launch is none. Rule: HMAC-SHA-256, compared in constant time. Source: RFC 2104.
//!
//! As text, so that code that handles it as a string does not truncate it: `WIREUP:` and hexadecimal digits of
//! version, expiry, user, group, rank (little-endian), nspace, MAC.

use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::secret::Secret;

/// Start of each token.
const PREFIX: &[u8] = b"WIREUP:";
/// Version of the data that follows. Also separates these MACs from all others.
const VERSION: u8 = 1;
/// Bytes in front of the nspace.
const HEAD: usize = 1 + 8 + 4 + 4 + 4;
/// Bytes of a MAC.
const MAC: usize = 32;
/// Bytes of a token before it is text; an nspace has at most 255.
const TOKEN_MAX: usize = HEAD + 255 + MAC;

/// The secret of a launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchKey(Secret<[u8; 32]>);

/// Process that a token identifies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CredentialSubject {
    pub nspace: Vec<u8>,
    pub rank: u32,
    pub uid: u32,
    pub gid: u32,
}

/// Reason for which a token is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CredentialError {
    /// Token of another launch, or a changed one.
    #[error("not a credential of this launch")]
    Invalid,
    #[error("the credential has expired")]
    Expired,
}

impl LaunchKey {
    /// Creates a key from random bytes.
    pub fn new(random: [u8; 32]) -> Self {
        Self(Secret::new(random))
    }

    fn mac(&self, payload: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(self.0.expose());
        let mac = mac.expect("HMAC takes keys of any length");
        mac.chain_update(payload)
    }

    /// Creates a token that is valid until `expiry`, in seconds since 1970-01-01T00:00:00Z.
    pub fn sign(&self, identity: &CredentialSubject, expiry: u64) -> Vec<u8> {
        let mut token = Vec::with_capacity(TOKEN_MAX);
        token.push(VERSION);
        token.extend(expiry.to_le_bytes());
        token.extend(identity.uid.to_le_bytes());
        token.extend(identity.gid.to_le_bytes());
        token.extend(identity.rank.to_le_bytes());
        token.extend(&identity.nspace);
        let mac = self.mac(&token).finalize().into_bytes();
        token.extend(mac);
        [PREFIX, HEXLOWER.encode(&token).as_bytes()].concat()
    }

    /// Validates a token and returns its identity; `now` is in seconds since 1970-01-01T00:00:00Z.
    ///
    /// # Errors
    /// [`CredentialError`].
    pub fn check(&self, token: &[u8], now: u64) -> Result<CredentialSubject, CredentialError> {
        let token = decode(token).ok_or(CredentialError::Invalid)?;
        let split = token.len().checked_sub(MAC).filter(|split| *split >= HEAD);
        let (payload, mac) = token.split_at(split.ok_or(CredentialError::Invalid)?);
        let verified = self.mac(payload).verify_slice(mac);
        verified.map_err(|_| CredentialError::Invalid)?;
        // From here on the content is authentic.
        let number = |at: usize| {
            let bytes = payload[at..at + 4].try_into();
            u32::from_le_bytes(bytes.expect("four bytes"))
        };
        let expiry = u64::from(number(1)) | u64::from(number(5)) << 32;
        match payload[0] == VERSION {
            true if expiry > now => Ok(CredentialSubject {
                uid: number(9),
                gid: number(13),
                rank: number(17),
                nspace: payload[HEAD..].to_vec(),
            }),
            true => Err(CredentialError::Expired),
            false => Err(CredentialError::Invalid),
        }
    }
}

/// Decodes a token's text. A terminator that a C program appended is removed.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    let digits = text.strip_prefix(PREFIX)?;
    match digits.len() > 2 * TOKEN_MAX {
        true => None,
        false => HEXLOWER.decode(digits).ok(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rank(rank: u32) -> CredentialSubject {
        CredentialSubject {
            nspace: b"job-1".to_vec(),
            rank,
            uid: 1000,
            gid: 100,
        }
    }

    #[test]
    fn credential_names_its_subject_until_it_expires() {
        let key = LaunchKey::new([7; 32]);
        let token = key.sign(&rank(3), 1_000_300);
        assert!(token.is_ascii(), "{token:?}");
        assert_eq!(key.check(&token, 1_000_299), Ok(rank(3)));
        assert_eq!(key.check(&token, 1_000_300), Err(CredentialError::Expired));
        let terminated = [&token[..], b"\0"].concat();
        assert_eq!(key.check(&terminated, 0), Ok(rank(3)));
        let far = key.sign(&rank(3), u64::MAX);
        assert_eq!(key.check(&far, u64::from(u32::MAX) + 1), Ok(rank(3)));
    }

    #[test]
    fn credential_of_other_launch_is_refused() {
        let token = LaunchKey::new([7; 32]).sign(&rank(3), 300);
        let other = LaunchKey::new([8; 32]);
        assert_eq!(other.check(&token, 0), Err(CredentialError::Invalid));
    }

    #[test]
    fn secret_is_never_printed() {
        assert_eq!(
            format!("{:?}", LaunchKey::new([7; 32])),
            "LaunchKey(Secret)"
        );
    }

    /// Made by another implementation: Python's hmac and hashlib.
    #[test]
    fn mac_equals_that_of_other_implementations() {
        let token = LaunchKey::new([7; 32]).sign(&rank(3), 300);
        let token = String::from_utf8(token).unwrap();
        assert_eq!(token, KNOWN);
    }

    const KNOWN: &str = "WIREUP:012c01000000000000e803000064000000030000006a6f622d31158e183720b6905b\
        f489e7b024e0b5648e42c6a79c606a17c25c42fb681d1af9";

    proptest! {
        #[test]
        fn modified_credential_is_refused(at in 0..200_usize, with in any::<u8>()) {
            let key = LaunchKey::new([7; 32]);
            let mut token = key.sign(&rank(3), 300);
            let at = at % token.len();
            prop_assume!(token[at] != with);
            token[at] = with;
            prop_assert_eq!(key.check(&token, 0), Err(CredentialError::Invalid));
        }

        #[test]
        fn anything_may_be_presented(token in proptest::collection::vec(any::<u8>(), 0..99)) {
            let key = LaunchKey::new([7; 32]);
            prop_assert_eq!(key.check(&token, 0), Err(CredentialError::Invalid));
            let token = [PREFIX, &token].concat();
            prop_assert_eq!(key.check(&token, 0), Err(CredentialError::Invalid));
        }
    }
}
