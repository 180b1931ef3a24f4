//! PMIx tools of a launch: the tool that started the launcher and directs it, and the tools attached to its nodes.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;

use super::launch_context::LaunchContext;
use super::launch_stage::LaunchStage;
use super::supervision;
use crate::backend::step_messages::LauncherToStep;
use crate::plan::launch_directives;
use wireup_core::job::debug::ToolLossPolicy;
use wireup_core::job::ids::NodeId;
use wireup_core::job::spawn::SpawnInfo;
use wireup_sys::poll::{PollSource, PollToken};

/// Variable with the descriptor of a pipe that a tool reads until it exits; libpmix sets it for processes that a tool starts.
const ALIVE: &str = "PMIX_KEEPALIVE_PIPE";

/// The tools of a launch.
#[derive(Default)]
pub(super) struct LaunchTools {
    /// Nodes with attached tools.
    nodes: BTreeSet<NodeId>,
    /// Write end of the pipe to the tool that started the launcher.
    director: Option<File>,
}

impl LaunchTools {
    /// Starts to watch for the exit of the tool that started the launcher, if one did.
    pub(super) fn watch_director(&mut self, cx: &mut LaunchContext) {
        let number = std::env::var(ALIVE).ok();
        let number = number.and_then(|number| number.parse::<u32>().ok());
        if cx.plan.spec.debug.director.is_none() {
            return;
        }
        let pipe = number.and_then(|number| {
            OpenOptions::new()
                .write(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(format!("/proc/self/fd/{number}"))
                .ok()
        });
        let Some(pipe) = pipe else { return };
        // Only the end of the pipe is waited for, which is always reported.
        if cx
            .events
            .poll
            .add(&pipe, PollToken::new(PollSource::Director, 0))
            .is_ok()
        {
            self.director = Some(pipe);
        }
    }

    /// Handles the exit of the tool that started the launcher. A launch that has not begun lacks its directives, and ends.
    pub(super) fn on_director_end(&mut self, cx: &mut LaunchContext) {
        if let Some(pipe) = self.director.take() {
            let _ = cx.events.poll.remove(&pipe);
            if cx.stage == LaunchStage::Preparing {
                let text =
                    "the tool that started this launcher exited before it sent launch directives";
                cx.warn(text);
                supervision::end_by_signal(cx, libc::SIGHUP);
            }
        }
    }

    /// Handles the attachment of the first tool to a node, or the loss of the last one.
    pub(super) fn on_change(&mut self, cx: &mut LaunchContext, node: NodeId, attached: bool) {
        if attached {
            self.nodes.insert(node);
            serve_tools(cx);
            return;
        }
        self.nodes.remove(&node);
        let report = match cx.plan.spec.debug.on_tool_loss {
            ToolLossPolicy::Wait => return,
            ToolLossPolicy::Release => false,
            ToolLossPolicy::End => true,
        };
        if self.nodes.is_empty() {
            cx.steps.send(LauncherToStep::LetGo { report });
        }
    }
}

/// Has nodes whose ranks are not offered PMIx start sidecars for tools.
pub(super) fn serve_tools(cx: &mut LaunchContext) {
    if !cx.plan.offer.pmix {
        cx.steps.send(LauncherToStep::ServeTools);
    }
}

/// Ends the job if ranks wait for a debugger, no tool is left, and the user chose that (`--on-tool-loss end`).
pub(super) fn end_without_tool(cx: &mut LaunchContext) {
    if cx.plan.spec.debug.on_tool_loss == ToolLossPolicy::End && !cx.supervisor.is_ending() {
        cx.print_line(
            "ranks wait for a debugger that is gone, so the job ends (--on-tool-loss end)",
        );
        supervision::end_by_signal(cx, libc::SIGTERM);
    }
}

/// Applies the launch directives of the tool that started the launcher.
pub(super) fn direct(cx: &mut LaunchContext, infos: &[SpawnInfo]) {
    if cx.plan.spec.debug.director.is_none() || cx.stage != LaunchStage::Preparing {
        return;
    }
    let directives = launch_directives::tool_directives(&cx.plan, infos);
    let debugged = directives.unwrap_or_else(|failure| {
        let text = failure.text;
        cx.warn(&format!(
            "the directives of the tool that has started this launcher are ignored: {text}"
        ));
        cx.plan.job.debug.clone()
    });
    cx.plan = Arc::new(launch_directives::directed(&cx.plan, debugged.clone()));
    cx.jobs.replace_first(Arc::clone(&cx.plan));
    cx.steps.send(LauncherToStep::Direct(debugged));
}
