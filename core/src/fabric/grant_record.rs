//! Record on disk of a grant that is not revoked yet. Any later process of the user can revoke the grant with it. It
//! contains no secret.

use serde::{Deserialize, Serialize};

use super::manager_rest::ServiceId;
use crate::job::spec::FabricSpec;
use crate::wording::json_problem;

/// Version of a record's contents; others are left alone.
pub const VERSION: u32 = 1;

/// Record of a fabric grant, for its revocation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GrantRecord {
    pub version: u32,
    /// Name of the launch.
    pub name: String,
    /// Address of the manager. It names the file of the token, and does not contain the token.
    pub spec: FabricSpec,
    /// The services that are known to exist.
    pub services: Vec<ServiceId>,
    /// Whether more services may exist, because an answer was lost.
    pub uncertain: bool,
}

/// Error: a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("record of version {0}; this wireup reads version {VERSION}")]
    Version(u32),
    #[error("invalid record: {}", json_problem(.0))]
    Malformed(#[from] serde_json::Error),
}

impl GrantRecord {
    /// Reads the record that a text begins with: a process that was killed may have left the end of a longer one behind it.
    ///
    /// # Errors
    /// [`RecordError`]
    pub fn read(text: &[u8]) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = first(text)?;
        match version {
            VERSION => Ok(first(text)?),
            _ => Err(RecordError::Version(version)),
        }
    }
}

/// Parses the value at the start of a text.
fn first<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, serde_json::Error> {
    T::deserialize(&mut serde_json::Deserializer::from_slice(text))
}
