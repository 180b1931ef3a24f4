//! Choice of the store for the names that launches publish for each other.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Store of names, as in `--names` and `WIREUP_NAMES`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum NameStoreKind {
    /// Name server: in the agents, or a process of the user.
    #[default]
    Agents,
    /// Files in a directory that the hosts share.
    File(String),
    /// etcd at these endpoints; as its settings have it when empty.
    Etcd(String),
    /// A directory at this URL.
    Ldap(String),
}

/// The text names no store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "invalid name store {0:?}: use agents, file:DIR (absolute), etcd:[ENDPOINTS] or ldap[s|i]://HOST/BASE"
)]
pub struct InvalidNameStore(String);

impl FromStr for NameStoreKind {
    type Err = InvalidNameStore;

    fn from_str(text: &str) -> Result<Self, InvalidNameStore> {
        let none = || InvalidNameStore(text.to_owned());
        match text.split_once(':') {
            None if text == "agents" => Ok(Self::Agents),
            Some(("file", path)) if path.starts_with('/') => Ok(Self::File(path.to_owned())),
            Some(("etcd", endpoints)) => Ok(Self::Etcd(endpoints.to_owned())),
            // All users see command lines: a password in an URL is refused.
            Some(("ldap" | "ldaps" | "ldapi", rest)) if is_place(rest) => {
                Ok(Self::Ldap(text.to_owned()))
            }
            _ => Err(none()),
        }
    }
}

/// Whether that is `//HOST`, without a user, and perhaps more.
fn is_place(rest: &str) -> bool {
    let host = rest.strip_prefix("//").unwrap_or_default();
    let host = host.split(['/', '?']).next().unwrap_or_default();
    !host.is_empty() && !host.contains('@')
}

impl fmt::Display for NameStoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agents => f.write_str("agents"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Etcd(endpoints) => write!(f, "etcd:{endpoints}"),
            Self::Ldap(url) => f.write_str(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_display_inverts_parse() {
        for text in [
            "agents",
            "file:/shared/names",
            "etcd:",
            "etcd:a:2379,https://b:2379",
            "ldap://host",
            "ldaps://host:636/ou=names,dc=example",
            "ldapi://%2frun%2fldapi/dc=example?x",
        ] {
            let backend: NameStoreKind = text.parse().unwrap();
            assert_eq!(backend.to_string(), text);
        }
        for text in [
            "",
            "file:",
            "file:names",
            "ldap:",
            "ldap:///dc=example",
            "ldap://me:secret@host/dc=example",
            "ldapx://host",
            "dns:x",
            "agents:",
        ] {
            let error = text.parse::<NameStoreKind>().unwrap_err();
            assert!(error.to_string().contains("invalid name store"), "{text}");
        }
    }
}
