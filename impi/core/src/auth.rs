//! Authentication of a client to the server.
//!
//! Rule: a method is available where it is implemented and enabled; the server picks the first of its preference that
//! both sides have. Source: IMPI 2.3.3. Method 8 is wireup's own: the specification leaves further methods to sites.

use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;

/// Bytes of a challenge and of its answer.
pub const CHALLENGE: usize = 32;

/// A method by its number on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Method {
    /// Method without authentication (`IMPI_AUTH_NONE`).
    None,
    /// `IMPI_AUTH_KEY`: 64 bits in clear.
    Key,
    /// The client answers a challenge with HMAC-SHA256 under a shared token, which does not cross the network.
    Token,
}

impl Method {
    /// Strongest first: a server's own preference.
    pub const ALL: [Self; 3] = [Self::Token, Self::Key, Self::None];

    /// Returns the method's number: `which` on the wire, and the bit of the mask.
    pub fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Key => 1,
            Self::Token => 8,
        }
    }

    /// Returns the method of a number, if this program implements it.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|method| method.number() == number)
    }
}

/// Secrets of a side for the methods that its user enabled.
#[derive(Clone, Default)]
pub struct Secrets {
    /// `IMPI_AUTH_NONE` is set, even to nothing.
    pub none: bool,
    /// The number in `IMPI_AUTH_KEY`.
    pub key: Option<u64>,
    /// The text in `WIREUP_IMPI_TOKEN`.
    pub token: Option<String>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(Method::ALL.into_iter().filter(|method| self.has(*method)))
            .finish()
    }
}

/// Reason for which the secrets of the environment cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AuthError {
    /// The value itself is not shown.
    #[error("invalid IMPI_AUTH_KEY: use a decimal number of at most 64 bits")]
    Key,
    /// The token is too short, and could be guessed.
    #[error("WIREUP_IMPI_TOKEN must have at least 16 characters")]
    Token,
    /// No method is available. The text is that of the specification.
    #[error(
        "no authentication methods available for negotiation: set IMPI_AUTH_KEY, WIREUP_IMPI_TOKEN or IMPI_AUTH_NONE"
    )]
    NoMethod,
    /// A list of preference that is none.
    #[error("invalid list of methods {0:?}: use numbers and ranges such as `3,1-0`")]
    List(String),
}

impl Secrets {
    /// Reads the secrets from the environment, by the caller's function.
    ///
    /// # Errors
    /// When a value cannot be used, or no method is enabled.
    pub fn from_environment(read: impl Fn(&str) -> Option<String>) -> Result<Self, AuthError> {
        let secrets = Self {
            none: read("IMPI_AUTH_NONE").is_some(),
            key: read("IMPI_AUTH_KEY")
                .filter(|text| !text.is_empty())
                .map(|text| parse_key(&text))
                .transpose()?,
            token: read("WIREUP_IMPI_TOKEN").filter(|text| !text.is_empty()),
        };
        if secrets.token.as_ref().is_some_and(|token| token.len() < 16) {
            return Err(AuthError::Token);
        }
        if !Method::ALL.into_iter().any(|method| secrets.has(method)) {
            return Err(AuthError::NoMethod);
        }
        Ok(secrets)
    }

    /// Whether a method is available.
    pub fn has(&self, method: Method) -> bool {
        match method {
            Method::None => self.none,
            Method::Key => self.key.is_some(),
            Method::Token => self.token.is_some(),
        }
    }

    /// Returns the mask that a client offers.
    pub fn mask(&self) -> u32 {
        Method::ALL
            .into_iter()
            .filter(|method| self.has(*method))
            .fold(0, |mask, method| mask | 1 << method.number())
    }

    /// Whether these eight bytes are the key, in constant time.
    pub fn is_key(&self, sent: &[u8]) -> bool {
        let Some(key) = self.key else { return false };
        let differ = key.to_be_bytes().into_iter().zip(sent);
        sent.len() == 8 && differ.fold(0, |sum, (ours, theirs)| sum | (ours ^ theirs)) == 0
    }

    fn mac(&self, challenge: &[u8]) -> Option<Hmac<Sha256>> {
        let token = self.token.as_ref()?;
        let mut mac = Hmac::<Sha256>::new_from_slice(token.as_bytes())
            .expect("a key for HMAC has any length");
        mac.update(b"wireup impi client\0");
        mac.update(challenge);
        Some(mac)
    }

    /// Returns the client's answer to a challenge.
    pub fn answer(&self, challenge: &[u8]) -> Option<Vec<u8>> {
        let mac = self.mac(challenge)?;
        Some(mac.finalize().into_bytes().to_vec())
    }

    /// Whether this answers the challenge, in constant time.
    pub fn answers(&self, challenge: &[u8], answer: &[u8]) -> bool {
        self.mac(challenge)
            .is_some_and(|mac| mac.verify_slice(answer).is_ok())
    }
}

/// Parses a decimal key, like LAM; a negative number means its two's complement.
fn parse_key(text: &str) -> Result<u64, AuthError> {
    let negative = || i64::from_str(text).map(i64::cast_unsigned);
    let text_is_plain = !text.starts_with('+');
    u64::from_str(text)
        .or_else(|_| negative())
        .ok()
        .filter(|_| text_is_plain)
        .ok_or(AuthError::Key)
}

/// Parses the server's order of preference: `-auth 3,1-0` is 3, then 1, then 0.
///
/// Numbers that this program does not implement are left out: they cannot become common.
///
/// # Errors
/// When the text is no such list.
pub fn parse_preference(text: &str) -> Result<Vec<Method>, AuthError> {
    let wrong = || AuthError::List(text.to_owned());
    let number = |text: &str| -> Result<u32, AuthError> {
        let number: u32 = text.trim().parse().map_err(|_| wrong())?;
        (number < 1024).then_some(number).ok_or_else(wrong)
    };
    let mut chosen = Vec::new();
    for item in text.split(',') {
        let (first, last) = match item.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(item)?, number(item)?),
        };
        let numbers: Vec<u32> = if first <= last {
            (first..=last).collect()
        } else {
            (last..=first).rev().collect()
        };
        for method in numbers.into_iter().filter_map(Method::from_number) {
            if !chosen.contains(&method) {
                chosen.push(method);
            }
        }
    }
    Ok(chosen)
}

/// Returns the method that both sides have and the server likes best. `masks` are the client's words, first one first.
pub fn choose(preference: &[Method], ours: &Secrets, masks: &[u32]) -> Option<Method> {
    let theirs = |method: Method| {
        let (word, bit) = (method.number() / 32, method.number() % 32);
        masks
            .get(word as usize)
            .is_some_and(|mask| mask >> bit & 1 == 1)
    };
    preference
        .iter()
        .copied()
        .find(|method| ours.has(*method) && theirs(*method))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    #[test]
    fn empty_auth_none_enables_it_and_empty_key_does_not() {
        let none = Secrets::from_environment(environment(&[("IMPI_AUTH_NONE", "")])).unwrap();
        assert_eq!(none.mask(), 1);
        let empty = Secrets::from_environment(environment(&[("IMPI_AUTH_KEY", "")]));
        assert_eq!(empty.unwrap_err(), AuthError::NoMethod);
        let both = Secrets::from_environment(environment(&[
            ("IMPI_AUTH_NONE", ""),
            ("IMPI_AUTH_KEY", "5678"),
        ]));
        assert_eq!(both.unwrap().mask(), 3);
    }

    #[test]
    fn keys_are_decimal() {
        for (text, key) in [
            ("5678", 0x162e),
            ("18446744073709551615", u64::MAX),
            ("-1", u64::MAX),
        ] {
            assert_eq!(parse_key(text), Ok(key));
        }
        for text in ["", "0x10", "12a", " 1", "+1", "18446744073709551616"] {
            assert_eq!(parse_key(text), Err(AuthError::Key), "{text:?}");
        }
        let secrets = Secrets {
            key: Some(5678),
            ..Secrets::default()
        };
        assert!(secrets.is_key(&[0, 0, 0, 0, 0, 0, 0x16, 0x2e]));
        assert!(!secrets.is_key(&[0, 0, 0, 0, 0, 0, 0x16, 0x2f]));
        assert!(!secrets.is_key(&[]));
    }

    #[test]
    fn preference_ranges_run_in_written_direction() {
        use Method::{Key, None, Token};
        assert_eq!(parse_preference("3,1-0").unwrap(), [Key, None]);
        assert_eq!(parse_preference("0-9").unwrap(), [None, Key, Token]);
        assert_eq!(parse_preference("8,1,1").unwrap(), [Token, Key]);
        for text in ["", "a", "1-", "-1", "1,,2", "99999999999"] {
            assert!(parse_preference(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn bits_beyond_31_are_in_further_words() {
        let secrets = Secrets {
            none: true,
            key: Some(1),
            token: None,
        };
        let order = [Method::Token, Method::Key, Method::None];
        assert_eq!(choose(&order, &secrets, &[3, 0]), Some(Method::Key));
        assert_eq!(choose(&order, &secrets, &[0, 3]), None);
        assert_eq!(choose(&[Method::None], &secrets, &[2]), None);
    }

    #[test]
    fn token_answers_its_challenge_only() {
        let secrets = Secrets {
            token: Some("0123456789abcdef".into()),
            ..Secrets::default()
        };
        let answer = secrets.answer(&[1; CHALLENGE]).unwrap();
        assert!(secrets.answers(&[1; CHALLENGE], &answer));
        assert!(!secrets.answers(&[2; CHALLENGE], &answer));
        let other = Secrets {
            token: Some("0123456789abcdeF".into()),
            ..Secrets::default()
        };
        assert!(!other.answers(&[1; CHALLENGE], &answer));
    }
}
