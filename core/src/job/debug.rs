//! What debuggers have to do with a job.

use serde::{Deserialize, Serialize};

use super::ids::{Nspace, Rank};
use super::proc::RankOrWildcard;
use super::rank_set::RankChoice;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DebugDirectives {
    /// Ranks that are stopped when they have executed their program and have not begun it.
    pub on_exec: Option<RankChoice>,
    /// Ranks that wait in `PMIx_Init` until a debugger releases them.
    pub in_init: Option<RankChoice>,
    /// Ranks that wait so at a place of the program's own.
    pub in_app: Option<RankChoice>,
    /// Its processes are daemons of a debugger. They use no slots, and their failures are none of the launch.
    pub daemons: bool,
    /// What these debug.
    pub target: Option<(Nspace, RankOrWildcard)>,
}

/// What becomes of ranks that wait for a debugger when the last PMIx tool of the launch is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ToolLossPolicy {
    /// They wait for another.
    #[default]
    Wait,
    /// They go on.
    Release,
    /// The launch ends.
    End,
}

impl ToolLossPolicy {
    /// The values of `--on-tool-loss`.
    pub const NAMES: [(&str, Self); 3] = [
        ("wait", Self::Wait),
        ("release", Self::Release),
        ("end", Self::End),
    ];
}

/// A PMIx tool that has started the launcher, and says how the job is launched before it is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IndirectLaunchTool {
    /// Where the tool listens. Without it the launcher waits for the tool to attach.
    pub uri: Option<String>,
    /// The name that the tool has given the launcher's server.
    pub server: Option<(Nspace, Rank)>,
}

/// The supported PMIx attributes for debuggers, comma separated, for queries.
pub const SUPPORTED: &str = "pmix.dbg.exec,pmix.dbg.init,pmix.dbg.notify,pmix.debugger,\
                             pmix.dbg.tgt,pmix.dbg.job,pmix.dbg.dpnd,pmix.dbg.dpproc";
