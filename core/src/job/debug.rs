//! Directives of debuggers for a job.

use serde::{Deserialize, Serialize};

use super::ids::{Nspace, Rank};
use super::proc::RankOrWildcard;
use super::rank_set::RankChoice;

/// Ranks of a job that stop for a debugger, and the role of the job's processes for it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DebugDirectives {
    /// Ranks that are stopped when they have executed their program and have not begun it.
    pub on_exec: Option<RankChoice>,
    /// Ranks that wait in `PMIx_Init` until a debugger releases them.
    pub in_init: Option<RankChoice>,
    /// Ranks that wait so at a place of the program's own.
    pub in_app: Option<RankChoice>,
    /// Whether the job's processes are daemons of a debugger. They use no slots, and their failures do not fail the
    /// launch.
    pub daemons: bool,
    /// Job or rank that the daemons debug.
    pub target: Option<(Nspace, RankOrWildcard)>,
}

/// Treatment of the ranks that wait for a debugger when the last PMIx tool of the launch has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ToolLossPolicy {
    /// The ranks wait for another tool.
    #[default]
    Wait,
    Release,
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

/// PMIx tool that has started the launcher and sends directives before the start of the job.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct IndirectLaunchTool {
    /// Address at which the tool listens. Without it the launcher waits for the tool to attach.
    pub uri: Option<String>,
    /// The name that the tool has given the launcher's server.
    pub server: Option<(Nspace, Rank)>,
}

/// The supported PMIx attributes for debuggers, comma separated, for queries.
pub const SUPPORTED: &str = "pmix.dbg.exec,pmix.dbg.init,pmix.dbg.notify,pmix.debugger,\
                             pmix.dbg.tgt,pmix.dbg.job,pmix.dbg.dpnd,pmix.dbg.dpproc";
