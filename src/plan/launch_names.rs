//! Names of a launch for schedulers and other programs.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};

use crate::plan::batch_systems;
use crate::plan::inherited_context::InheritedContext;
use wireup_core::job::ids::Nspace;
use wireup_core::job::octets;
use wireup_sys::leftovers;

/// Variable with the name of the launch; schedulers may set it, and wireup sets it for the ranks.
pub const LAUNCH: &str = "WIREUP_LAUNCH_ID";
/// Variable with the name of the scheduler's allocation; schedulers may set it, and wireup sets it for the ranks.
pub const ALLOCATION: &str = "WIREUP_ALLOC_ID";

/// Names of a launch and its allocation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchNames {
    /// Name of the launch: the scheduler's, else the name of the initial job.
    #[serde(with = "octets")]
    pub launch: OsString,
    /// Name of the scheduler's allocation, if the launch is in one.
    #[serde(with = "octets")]
    pub allocation: Option<OsString>,
}

/// Host and pid of a launcher.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LauncherProcess {
    /// Host name of the launcher's host, from `uname`.
    pub host: String,
    pub pid: u32,
}

impl LauncherProcess {
    pub(super) fn this() -> Self {
        Self {
            host: own_host(),
            pid: std::process::id(),
        }
    }
}

/// Host name of this machine, from `uname`.
pub(crate) fn own_host() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

impl LaunchNames {
    /// Reads the names from a scheduler's variables. In a rank of another launch the variable has the name of that launch, and
    /// is ignored.
    pub(super) fn new(inheritance: &InheritedContext, nspace: &Nspace) -> Self {
        let find = |name: &str| inheritance.variable(name).filter(|value| !value.is_empty());
        let launch = find(LAUNCH).filter(|_| find(leftovers::JOB).is_none());
        Self {
            launch: launch.map_or_else(|| nspace.as_str().into(), ToOwned::to_owned),
            allocation: find(ALLOCATION)
                .or_else(|| batch_systems::allocation_name(find))
                .map(ToOwned::to_owned),
        }
    }

    /// Name that a scheduler gave the launch; empty without one, and for a name of more than 255 bytes or with blanks or other
    /// unprintable bytes.
    pub(crate) fn scheduled(&self, nspace: &Nspace) -> String {
        let name = self.launch.to_str().filter(|name| *name != nspace.as_str());
        let plain = |name: &&str| name.len() <= 255 && name.bytes().all(|b| b.is_ascii_graphic());
        name.filter(plain).unwrap_or_default().to_owned()
    }
}
