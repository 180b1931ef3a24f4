//! The credentials of a fast network that ranks need.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::job::octets;

/// Source of the fabric grant for Slingshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FabricSource {
    /// The environment of the launcher, and of each node: a scheduler has put them there.
    Environment,
    /// The request of a scheduler that has started the launcher: as [`Environment`](Self::Environment), but a node
    /// without a device is none of our business.
    Request,
    /// The REST service of a fabric manager with this address.
    Service(String),
    /// A command of the site, as a shell would split it.
    Command(String),
}

/// Fabric settings of the user (`--fabric`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FabricSpec {
    pub source: FabricSource,
    /// File of the token for the service.
    #[serde(with = "octets")]
    pub token: Option<PathBuf>,
    /// File of the authorities that vouch for the service, in PEM.
    #[serde(with = "octets")]
    pub authorities: Option<PathBuf>,
}

/// A text that names no source.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FabricError {
    #[error("use cxi, cxi=http://HOST:PORT, cxi=https://HOST or cxi=exec:COMMAND")]
    Unknown,
    #[error(
        "the address must not have a user name or password; name a file with a token (token-file in fabric.toml)"
    )]
    Password,
    #[error("no command after exec: (use cxi=exec:COMMAND)")]
    NoCommand,
}

impl FromStr for FabricSource {
    type Err = FabricError;

    fn from_str(text: &str) -> Result<Self, FabricError> {
        if text == "cxi" {
            return Ok(Self::Environment);
        }
        let source = text.strip_prefix("cxi=").ok_or(FabricError::Unknown)?;
        if let Some(command) = source.strip_prefix("exec:") {
            return match command.trim().is_empty() {
                true => Err(FabricError::NoCommand),
                false => Ok(Self::Command(command.to_owned())),
            };
        }
        let schemes = ["http://", "https://"];
        let host = schemes
            .iter()
            .find_map(|scheme| source.strip_prefix(scheme))
            .ok_or(FabricError::Unknown)?;
        let authority = host.split('/').next().unwrap_or_default();
        match authority {
            "" => Err(FabricError::Unknown),
            _ if authority.contains('@') => Err(FabricError::Password),
            _ => Ok(Self::Service(source.trim_end_matches('/').to_owned())),
        }
    }
}

impl fmt::Display for FabricSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment => f.write_str("the environment"),
            Self::Request => f.write_str("the scheduler's request"),
            Self::Service(address) => f.write_str(address),
            Self::Command(command) => write!(f, "`{command}`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_source_is_service_command_or_environment() {
        let read = |text: &str| text.parse::<FabricSource>();
        assert_eq!(read("cxi"), Ok(FabricSource::Environment));
        let service = FabricSource::Service("https://fm:8080/api".into());
        assert_eq!(read("cxi=https://fm:8080/api/"), Ok(service));
        let command = FabricSource::Command("/opt/site/cxi -q".into());
        assert_eq!(read("cxi=exec:/opt/site/cxi -q"), Ok(command));
        for wrong in ["", "verbs", "cxi=", "cxi=fm", "cxi=http://", "cxi=ftp://x"] {
            assert_eq!(read(wrong), Err(FabricError::Unknown), "{wrong}");
        }
        assert_eq!(read("cxi=https://u:p@fm/"), Err(FabricError::Password));
        assert_eq!(read("cxi=exec: "), Err(FabricError::NoCommand));
    }
}
