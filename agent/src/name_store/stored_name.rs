//! Stored form of a published value, and its id.
//!
//! Rule: a record is JSON, with octets in base64. Rule: an id is the published name, as far as that is a safe file
//! name: MPICH's file name server (`src/nameserv/file`) uses the unchanged name. All other bytes are percent-encoded.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::{BASE64, HEXLOWER};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wireup_core::job::ids::{AppNum, NodeId, UserId};
use wireup_core::job::proc::Proc;
use wireup_core::names::request::{
    FoundName, ListedName, NameRange, NameRequester, Persistence, PublishedData, ValueLimits,
};

/// Longest id; a file's name has at most 255 bytes.
const ID_MAX: usize = 200;

/// Longest name by which launches meet that an id contains unchanged.
const SCOPE_MAX: usize = 60;

/// The time for which a value is published.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    pub(super) persistence: Persistence,
    pub(super) limits: ValueLimits,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct StoredName {
    /// Published key in base64.
    key: String,
    pub(super) data: StoredData,
    pub(super) owner: Proc,
    /// The number of its node; of its launch alone.
    node: u32,
    pub(super) user: u32,
    pub(super) app: u32,
    app_size: u32,
    pub(super) range: NameRange,
    pub(super) persistence: Persistence,
    /// Time of the expiry, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires: Option<u64>,
    /// Lookups that may still get it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reads: Option<u32>,
    /// The session of its publisher, and which of its publications this is.
    pub(super) session: String,
    pub(super) number: u64,
    /// Whether the value is removed at the end of the session.
    pub(super) bound: bool,
}

/// [`PublishedData`] as JSON has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StoredData {
    Text(String),
    /// A text that is not in UTF-8, in base64.
    Bytes(String),
    /// Encoded value in base64.
    Typed(String),
}

impl StoredData {
    fn from_data(data: &PublishedData) -> Self {
        match data {
            PublishedData::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Self::Text(text.to_owned()),
                Err(_) => Self::Bytes(BASE64.encode(bytes)),
            },
            PublishedData::Typed(bytes) => Self::Typed(BASE64.encode(bytes)),
        }
    }

    fn data(&self) -> Option<PublishedData> {
        let bytes = |text: &String| BASE64.decode(text.as_bytes()).ok().map(Arc::from);
        Some(match self {
            Self::Text(text) => PublishedData::Text(text.as_bytes().into()),
            Self::Bytes(text) => PublishedData::Text(bytes(text)?),
            Self::Typed(text) => PublishedData::Typed(bytes(text)?),
        })
    }
}

/// Returns the present time in milliseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

impl StoredName {
    pub(super) fn new(
        key: &[u8],
        data: &PublishedData,
        owner: &NameRequester,
        range: &NameRange,
        lifetime: Lifetime,
        session: &str,
        number: u64,
    ) -> Self {
        let Lifetime {
            persistence,
            limits,
        } = lifetime;
        let after = |time: Duration| {
            now().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
        };
        let once = (persistence == Persistence::FirstRead).then_some(1);
        Self {
            key: BASE64.encode(key),
            data: StoredData::from_data(data),
            owner: owner.proc.clone(),
            node: owner.node.0,
            user: owner.user.0,
            app: owner.app.0,
            app_size: owner.app_size,
            range: range.clone(),
            persistence,
            expires: limits.expires.map(after),
            reads: once.or_else(|| limits.reads.map(u32::from)),
            session: session.to_owned(),
            number,
            bound: persistence != Persistence::Indefinite,
        }
    }

    /// Creates the record of a value that another program has stored under a key for all launches of the user.
    pub(super) fn foreign(key: &str, text: &str, owner: Proc, user: u32) -> Self {
        Self {
            key: BASE64.encode(key.as_bytes()),
            data: StoredData::Text(text.to_owned()),
            owner,
            node: u32::MAX,
            user,
            app: 0,
            app_size: 1,
            range: NameRange::Session,
            persistence: Persistence::Indefinite,
            expires: None,
            reads: None,
            session: String::new(),
            number: 0,
            bound: false,
        }
    }

    pub(super) fn key(&self) -> Vec<u8> {
        BASE64.decode(self.key.as_bytes()).unwrap_or_default()
    }

    /// Returns the text of the value, if a line can hold it.
    pub(super) fn port(&self) -> Option<&str> {
        match &self.data {
            StoredData::Text(text) if !text.contains('\n') => Some(text),
            _ => None,
        }
    }

    pub(super) fn has_expired(&self) -> bool {
        self.expires.is_some_and(|at| at <= now())
    }

    /// Whether this is the very publication.
    pub(super) fn is(&self, other: &Self) -> bool {
        (&self.session, self.number) == (&other.session, other.number)
    }

    /// Returns the publisher, as processes of `session` see it.
    pub(super) fn publisher(&self, session: &str) -> NameRequester {
        let own = self.session == session;
        NameRequester {
            proc: self.owner.clone(),
            node: NodeId(if own { self.node } else { u32::MAX }),
            user: UserId(self.user),
            app: AppNum(self.app),
            app_size: self.app_size,
        }
    }

    /// Returns the record with one lookup less; `None` if there is none left.
    pub(super) fn read_once(&self) -> Option<Self> {
        let reads = self.reads?.checked_sub(1).filter(|left| *left > 0)?;
        Some(Self {
            reads: Some(reads),
            ..self.clone()
        })
    }

    pub(super) fn found(&self) -> Option<FoundName> {
        Some(FoundName {
            key: self.key(),
            owner: self.owner.clone(),
            data: self.data.data()?,
            once: self.reads == Some(1),
        })
    }

    pub(super) fn listed(&self) -> Option<ListedName> {
        let left = |at: u64| Duration::from_millis(at.saturating_sub(now()));
        Some(ListedName {
            key: self.key(),
            owner: self.owner.clone(),
            data: self.data.data()?,
            range: self.range.clone(),
            persistence: self.persistence,
            limits: ValueLimits {
                expires: self.expires.map(left),
                reads: self.reads.and_then(std::num::NonZeroU32::new),
            },
        })
    }
}

/// Returns the prefix of all ids in a name scope.
pub(super) fn scope(meet: &str) -> String {
    match meet {
        "" => String::new(),
        name => match encode(name.as_bytes()) {
            long if long.len() > SCOPE_MAX => {
                let digest = HEXLOWER.encode(&Sha256::digest(name));
                format!("%MH{digest}%:")
            }
            short => format!("%M{short}%:"),
        },
    }
}

/// Returns the id of a key in the range `SESSION`, or `GLOBAL`.
pub(super) fn id(scope: &str, global: bool, key: &[u8]) -> String {
    let mark = if global { "%G" } else { "" };
    let name = encode(key);
    match scope.len() + mark.len() + name.len() {
        0..=ID_MAX => format!("{scope}{mark}{name}"),
        _ => {
            let digest = HEXLOWER.encode(&Sha256::digest(key));
            format!("{scope}{mark}%H{digest}")
        }
    }
}

/// Whether an id belongs to this scope.
pub(super) fn is_in(scope: &str, id: &str) -> bool {
    match scope {
        "" => !id.starts_with("%M"),
        scope => id.starts_with(scope),
    }
}

fn encode(key: &[u8]) -> String {
    let mut text = String::new();
    for (at, byte) in key.iter().enumerate() {
        let plain = matches!(byte, b' '..=b'~') && !matches!(byte, b'/' | b'%');
        match plain && !(at == 0 && *byte == b'.') {
            true => text.push(char::from(*byte)),
            false => text.push_str(&format!("%{byte:02x}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_safe_file_names_and_no_two_keys_share_one() {
        let long = "x".repeat(300);
        let keys = [
            "service",
            "the service",
            ".",
            "..",
            ".hidden",
            "a/b",
            "a%2fb",
            "%2e",
            "%Gname",
            "%H",
            "\n",
            "é",
            &long,
            "%Mmeet%:a",
            "a.b",
        ];
        let mut ids = BTreeSet::new();
        for meet in ["", "m", "m%:", &"é".repeat(32)] {
            for global in [false, true] {
                for key in keys {
                    let id = id(&scope(meet), global, key.as_bytes());
                    assert!(id.len() <= 255 && !id.starts_with('.'), "{id}");
                    assert!(
                        id.bytes()
                            .all(|byte| matches!(byte, b' '..=b'~') && byte != b'/')
                    );
                    assert!(is_in(&scope(meet), &id), "{id}");
                    assert!(ids.insert(id));
                }
            }
        }
        assert_eq!(id("", false, b"the service"), "the service");
        assert!(!is_in("", &id(&scope("m"), false, b"a")));
        assert!(!is_in(&scope("m"), &id("", false, b"%Mm%:a")));
    }
}
