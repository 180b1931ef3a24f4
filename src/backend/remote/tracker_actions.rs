//! Passes events to the node tracker and executes its actions.

use std::sync::Arc;

use super::RemoteBackend;
use crate::backend::job_label::JobStage;
use crate::backend::launcher_reports::{LauncherReport, LinkReport};
use crate::backend::step_messages::{LauncherToStep, StepToLauncher};
use wireup_core::job::job_table::JobTable;
use wireup_core::job::outcome::FailureCause;
use wireup_core::link::frame::FrameAddress;
use wireup_core::node::JobContext;
use wireup_core::node_tracker::{NodeTracker, TrackerAction};

impl RemoteBackend {
    /// Passes an event to the node tracker, and executes the resulting actions.
    pub(super) fn conclude(
        &mut self,
        event: impl FnOnce(&mut NodeTracker, &JobTable<Arc<JobContext>>, &mut Vec<TrackerAction>),
    ) {
        let mut conclusions = Vec::new();
        event(&mut self.fleet, &self.jobs, &mut conclusions);
        for conclusion in conclusions {
            self.carry_out(conclusion);
        }
    }

    fn carry_out(&mut self, conclusion: TrackerAction) {
        match conclusion {
            TrackerAction::Ready => self.queue_report(StepToLauncher::Ready),
            TrackerAction::Refused(refused) => self.queue_report(LinkReport::NodesRefused(refused)),
            TrackerAction::AllStarted(job) => {
                self.queue_report(StepToLauncher::AllStarted { job });
                if job.is_initial() {
                    self.label.turn(JobStage::Running);
                    self.start_input();
                }
            }
            TrackerAction::Joined(node, None) => self.joined(node),
            TrackerAction::Joined(node, refusal) => {
                self.queue_report(LinkReport::NodeJoined { node, refusal })
            }
            TrackerAction::Left(node) => {
                self.link.sources_lost(&[node]);
                self.queue_report(LinkReport::NodeLeft { node });
            }
            TrackerAction::HostFailed(node, error) => {
                let cause = match self.link_error {
                    Some(_) => FailureCause::LauncherIsolated { error },
                    None => FailureCause::NodeFailed { node, error },
                };
                let (before, after) = self.failures.settle_around_loss(node);
                let step = LauncherReport::Step;
                self.reports.extend(before.into_iter().map(step));
                self.queue_report(StepToLauncher::Failed { cause, state: None });
                self.reports.extend(after.into_iter().map(step));
            }
            TrackerAction::Gone(rank) => self.queue_report(LinkReport::RankLost { rank }),
            TrackerAction::Late(node, what) => {
                let name = self.plan.node_name(node);
                let text = format!(
                    "warning: {name} did not {what} in time; its agent continues with that"
                );
                self.queue_report(StepToLauncher::Tell { text });
            }
            TrackerAction::NodesLost(nodes, reason) => {
                self.link.sources_lost(&nodes);
                let order = LauncherToStep::NodesLost { nodes, reason };
                self.send(FrameAddress::EveryNode, &order);
            }
            TrackerAction::Credit(node, stream, bytes) => {
                let credit = LauncherToStep::Credit { stream, bytes };
                self.send(FrameAddress::Node(node), &credit);
            }
            TrackerAction::Over => self.queue_report(StepToLauncher::Over),
        }
    }
}
