//! What remains on disk of a credential that is not revoked yet: enough for any later process of the user to revoke it,
//! and nothing that is secret.

use serde::{Deserialize, Serialize};

use super::rest::ServiceId;
use crate::job::spec::FabricSpec;

/// Version of a record's contents; others are left alone.
pub const VERSION: u32 = 1;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    pub version: u32,
    /// Of the launch.
    pub name: String,
    /// Where to ask. It names the file of the token, which is not part of it.
    pub spec: FabricSpec,
    /// The services that are known to exist.
    pub services: Vec<ServiceId>,
    /// There may be others, whose answer was lost.
    pub uncertain: bool,
}
