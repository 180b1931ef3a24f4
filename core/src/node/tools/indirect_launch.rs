//! Launches that a PMIx tool directs (indirect launch). The tool has started the launcher, sets the directives of the
//! initial job before its start, and is notified when its ranks run.
//!
//! ```text
//! Init ──the tool releases the launcher──▶ directed ──all ranks run──▶ PMIX_LAUNCH_COMPLETE
//! ```
//! The initial job is registered when the launcher has decided about the tool's directives.
//!
//! Rule: a server with `PMIX_LAUNCHER_RNDZ_URI` in its environment connects to the tool in `PMIx_server_init`, which
//! returns when the tool has raised `PMIX_DEBUGGER_RELEASE`; the shim reports that as an event. Without it the tool
//! attaches, and its own event comes. Source: `pmix_server.c` of 4.2.2 and 5.0.11.

use crate::job::ids::Rank;
use crate::node::context::NodeContext;
use crate::node::event::NodeReport;
use crate::node::jobs::spawns::to_spawn_info;
use crate::node::tools::end_notices::attach_tool;
use crate::pmix::keys;
use crate::pmix::sidecar_protocol::SidecarCommand;
use crate::pmix::value::{DataRange, Info, PmixProc, PmixRank, Status, Value, find};

/// State of an indirect launch at this node.
#[derive(Debug, Default)]
pub(in crate::node) enum IndirectLaunchState {
    /// No tool directs the launch, or not from this node.
    #[default]
    None,
    /// The launch waits for the tool. With `attach`, the tool has to find the server by itself.
    Awaited { attach: bool },
    /// Directives of this tool have arrived.
    Directed(PmixProc),
}

impl IndirectLaunchState {
    /// Notifies the tool that the server runs and has no job yet, if the tool has to attach.
    pub(in crate::node) fn server_started(&self, cx: &mut NodeContext) {
        if !matches!(self, IndirectLaunchState::Awaited { attach: true }) {
            return;
        }
        // The source is the job's name: an event whose source is the server comes back.
        let source = PmixProc::new(&cx.launch().nspace, Rank(0));
        let control = SidecarCommand::Notify {
            code: Status::LAUNCHER_READY,
            source,
            range: DataRange::SESSION,
            infos: vec![Info::new(keys::EVENT_NON_DEFAULT, Value::Bool(true))],
        };
        cx.control(&control);
    }

    /// Handles the release of a process from a debugger. Returns true if the process was the launcher, and the tool
    /// directs it.
    pub(in crate::node) fn launcher_released(
        &mut self,
        source: &PmixProc,
        infos: &[Info],
        cx: &mut NodeContext,
    ) -> bool {
        let IndirectLaunchState::Awaited { attach } = *self else {
            return false;
        };
        let directives = find(infos, keys::LAUNCH_DIRECTIVES);
        if !attach {
            // The tool's own event arrives first, without directives.
            if directives.is_none() {
                return false;
            }
            // The server has connected to it, and libpmix does not report that.
            attach_tool(cx, source);
        }
        *self = IndirectLaunchState::Directed(source.clone());
        let directives = match directives {
            Some(Value::Infos(infos)) => infos.iter().map(to_spawn_info).collect(),
            _ => Vec::new(),
        };
        cx.report_to_launcher(NodeReport::LaunchDirectives(directives));
        true
    }

    /// Notifies the tool that directs the launch that all ranks of the initial job run.
    pub(in crate::node) fn report_launch_complete(&self, cx: &mut NodeContext) {
        let IndirectLaunchState::Directed(tool) = self else {
            return;
        };
        let job = &cx.launch().nspace;
        let control = SidecarCommand::Notify {
            code: Status::LAUNCH_COMPLETE,
            source: PmixProc::new(job, PmixRank(0)),
            range: DataRange::CUSTOM,
            infos: vec![
                Info::new(keys::EVENT_CUSTOM_RANGE, Value::Proc(tool.clone())),
                Info::new(keys::NSPACE, Value::String(job.into())),
                Info::new(keys::EVENT_NON_DEFAULT, Value::Bool(true)),
            ],
        };
        cx.control(&control);
    }
}
