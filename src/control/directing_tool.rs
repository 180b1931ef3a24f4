//! Launches that a PMIx tool directs, which has started the launcher.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;

use super::launch_stage::LaunchStage;
use super::{Controller, supervision};
use crate::backend::step_messages::LauncherToStep;
use wireup_core::job::debug::ToolLossPolicy;
use wireup_core::job::ids::NodeId;
use wireup_core::job::spawn::SpawnInfo;
use wireup_sys::poll::{PollSource, PollToken};

/// The number of a pipe that the tool reads as long as it lives: libpmix gives it to what a tool starts.
const ALIVE: &str = "PMIX_KEEPALIVE_PIPE";

impl Controller {
    /// From now on the end of the tool is noticed, if it has started the launcher.
    pub(super) fn watch_director(&mut self) {
        let number = std::env::var(ALIVE).ok();
        let number = number.and_then(|number| number.parse::<u32>().ok());
        if self.cx.plan.spec.debug.director.is_none() {
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
        // Nothing of it is waited for but its end, which is always reported.
        if self
            .cx
            .events
            .poll
            .add(&pipe, PollToken::new(PollSource::Director, 0))
            .is_ok()
        {
            self.directing_tool = Some(pipe);
        }
    }

    /// The tool has ended. If it has not said how to launch, the launch cannot begin.
    pub(super) fn director_gone(&mut self) {
        if let Some(pipe) = self.directing_tool.take() {
            let _ = self.cx.events.poll.remove(&pipe);
            if self.cx.stage == LaunchStage::Preparing {
                let text =
                    "the tool that has started this launcher ended before it said how to launch";
                self.cx.warn(text);
                supervision::end_by_signal(&mut self.cx, libc::SIGHUP);
            }
        }
    }

    /// The first tool of a node has come, or the last is gone.
    pub(super) fn tools_changed(&mut self, node: NodeId, attached: bool) {
        if attached {
            self.nodes_with_tools.insert(node);
            self.serve_tools();
            return;
        }
        self.nodes_with_tools.remove(&node);
        let report = match self.cx.plan.spec.debug.on_tool_loss {
            ToolLossPolicy::Wait => return,
            ToolLossPolicy::Release => false,
            ToolLossPolicy::End => true,
        };
        if self.nodes_with_tools.is_empty() {
            self.cx.steps.send(LauncherToStep::LetGo { report });
        }
    }

    /// Tools are there: nodes whose ranks are not offered PMIx need a sidecar for what tools want there.
    pub(super) fn serve_tools(&mut self) {
        if !self.cx.plan.offer.pmix {
            self.cx.steps.send(LauncherToStep::ServeTools);
        }
    }

    /// Ranks wait for a debugger, and no tool is left.
    pub(super) fn held_without_tool(&mut self) {
        if self.cx.plan.spec.debug.on_tool_loss == ToolLossPolicy::End
            && !self.cx.supervisor.is_ending()
        {
            self.cx.print_line(
                "ranks wait for a debugger that is gone, so the job ends (--on-tool-loss end)",
            );
            supervision::end_by_signal(&mut self.cx, libc::SIGTERM);
        }
    }

    /// The tool that directs the launch has said how.
    pub(super) fn directed(&mut self, infos: &[SpawnInfo]) {
        if self.cx.plan.spec.debug.director.is_none() || self.cx.stage != LaunchStage::Preparing {
            return;
        }
        let wanted = self.cx.plan.tool_directives(infos);
        let debugged = wanted.unwrap_or_else(|failure| {
            let text = failure.text;
            self.cx.warn(&format!(
                "the directives of the tool that has started this launcher are ignored: {text}"
            ));
            self.cx.plan.job.debug.clone()
        });
        self.cx.plan = Arc::new(self.cx.plan.directed(debugged.clone()));
        self.cx.jobs.replace_first(Arc::clone(&self.cx.plan));
        self.cx.steps.send(LauncherToStep::Direct(debugged));
    }
}
