//! The names under which others know a launch.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use crate::plan::batch_systems;
use crate::plan::inherited_context::InheritedContext;
use wireup_core::job::ids::Nspace;
use wireup_core::job::octets;
use wireup_sys::leftovers;

/// Name of the launch, for its ranks and from a scheduler.
pub const LAUNCH: &str = "WIREUP_LAUNCH_ID";
/// Name of the scheduler's allocation, for the ranks and from the scheduler.
pub const ALLOCATION: &str = "WIREUP_ALLOC_ID";

/// The names under which others know a launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchNames {
    /// That of the launch: a scheduler's, or the job's.
    #[serde(with = "octets")]
    pub launch: OsString,
    /// That of the scheduler's allocation, if there is one.
    #[serde(with = "octets")]
    pub allocation: Option<OsString>,
}

/// The process that leads a launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LauncherProcess {
    /// By which name its host knows itself.
    pub host: String,
    /// Its number there.
    pub pid: u32,
}

impl LauncherProcess {
    /// This process.
    pub(super) fn this() -> Self {
        Self {
            host: own_host(),
            pid: std::process::id(),
        }
    }
}

/// By which name this host knows itself.
pub(crate) fn own_host() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

impl LaunchNames {
    /// A scheduler gives names by variables. In a rank of ours that of the launch is its own job's.
    pub(super) fn new(inheritance: &InheritedContext, nspace: &Nspace) -> Self {
        let find = |name: &str| inheritance.variable(name).filter(|value| !value.is_empty());
        let given = find(LAUNCH).filter(|_| find(leftovers::JOB).is_none());
        Self {
            launch: given.map_or_else(|| nspace.as_str().into(), ToOwned::to_owned),
            allocation: find(ALLOCATION)
                .or_else(|| batch_systems::allocation_name(find))
                .map(ToOwned::to_owned),
        }
    }

    /// The name that a scheduler gave the launch; empty if none did, or it is none of a scheduler's.
    pub(crate) fn scheduled(&self, nspace: &Nspace) -> String {
        let name = self.launch.to_str().filter(|name| *name != nspace.as_str());
        let plain = |name: &&str| name.len() <= 255 && name.bytes().all(|b| b.is_ascii_graphic());
        name.filter(plain).unwrap_or_default().to_owned()
    }
}
