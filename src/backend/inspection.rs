//! Looks into the processes of ranks, with a debugger on each host.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use wireup_core::job::ids::GlobalRank;
use wireup_core::job::octets;

/// What is looked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Look {
    /// Stacks.
    Stacks {
        /// Those of Python, where a rank has one.
        python: bool,
    },
    /// Memory is dumped into this directory of each host.
    Core(#[serde(with = "octets")] PathBuf),
    /// What the kernel has dumped of a rank that has ended.
    Dump,
}

/// A request to look into ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Inspection {
    /// Names the request.
    pub(crate) ticket: u32,
    /// Which ranks; those that live elsewhere are passed over.
    pub(crate) ranks: Vec<GlobalRank>,
    /// What for.
    pub(crate) look: Look,
}

/// What was found in one rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// Which.
    pub(crate) rank: GlobalRank,
    /// Frames, the outermost first, for a dump behind what is known of it; or the file of a core. Otherwise why there is nothing.
    pub(crate) found: Result<Vec<String>, String>,
}
