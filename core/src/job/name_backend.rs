//! Which store keeps the names that launches publish for each other.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// As `--names` and `WIREUP_NAMES` have it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum NameBackend {
    /// The rendezvous: the agents, or a process of the user.
    #[default]
    Agents,
    /// Files in a directory that the hosts share.
    File(String),
    /// etcd at these endpoints; as its settings have it when empty.
    Etcd(String),
    /// The LDAP server and the entry below which names are kept; as its settings have it when empty.
    Ldap(String),
}

/// The text names no store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is no store of names; write agents, file:DIR with an absolute path, etcd:[ENDPOINTS] or ldap:[URL]"
)]
pub struct NoBackend(String);

impl FromStr for NameBackend {
    type Err = NoBackend;

    fn from_str(text: &str) -> Result<Self, NoBackend> {
        let none = || NoBackend(text.to_owned());
        match text.split_once(':') {
            None if text == "agents" => Ok(Self::Agents),
            Some(("file", path)) if path.starts_with('/') => Ok(Self::File(path.to_owned())),
            Some(("etcd", endpoints)) => Ok(Self::Etcd(endpoints.to_owned())),
            Some(("ldap", url)) if url.is_empty() || is_ldap(url) => Ok(Self::Ldap(url.to_owned())),
            // A whole URL of the scheme says the same.
            Some(("ldap" | "ldaps" | "ldapi", _)) if is_ldap(text) => {
                Ok(Self::Ldap(text.to_owned()))
            }
            _ => Err(none()),
        }
    }
}

fn is_ldap(url: &str) -> bool {
    ["ldap://", "ldaps://", "ldapi://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
}

impl fmt::Display for NameBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agents => f.write_str("agents"),
            Self::File(path) => write!(f, "file:{path}"),
            Self::Etcd(endpoints) => write!(f, "etcd:{endpoints}"),
            Self::Ldap(url) => write!(f, "ldap:{url}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_store_is_written_as_it_is_read() {
        for text in [
            "agents",
            "file:/shared/names",
            "etcd:",
            "etcd:a:2379,https://b:2379",
            "ldap:",
            "ldap:ldapi://%2Frun%2Fslapd%2Fldapi/ou=names,dc=site",
        ] {
            let backend: NameBackend = text.parse().unwrap();
            assert_eq!(backend.to_string(), text);
        }
        let short: NameBackend = "ldaps://host/ou=names".parse().unwrap();
        assert_eq!(short, NameBackend::Ldap("ldaps://host/ou=names".into()));
        for text in ["", "file:", "file:names", "ldap:host", "dns:x", "agents:"] {
            let error = text.parse::<NameBackend>().unwrap_err();
            assert!(error.to_string().contains("is no store of names"), "{text}");
        }
    }
}
