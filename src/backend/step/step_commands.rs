//! Messages on a step's link, and their execution.

use std::sync::Arc;

use super::rank_signals::SignalPath;
use super::{Messages, StepDaemon, log_line};
use crate::backend::backend_message::BackendCommand;
use crate::backend::job_label::JobStage;
use crate::backend::step_messages::StepMessage;
use crate::plan::packed_files::UnpackedFiles;
use wireup_core::link::agent_protocol::StepCommand;
use wireup_core::link::decode;
use wireup_core::link::frame::{FrameAddress, FrameClass};

impl StepDaemon {
    pub(super) fn send(&mut self, to: FrameAddress, message: &StepMessage) {
        self.link
            .send(to, FrameClass::Carried, message, &self.local.poll);
    }

    pub(super) fn take_messages(&mut self, messages: Messages) {
        for (envelope, body) in messages {
            if envelope.class == FrameClass::Control {
                match decode(&body) {
                    Ok(StepCommand::Orphaned { reason }) => self.orphaned(&reason),
                    Ok(StepCommand::Begin { .. }) | Err(_) => self.orphaned("garbled"),
                }
                continue;
            }
            match (envelope.from, decode(&body)) {
                (FrameAddress::Launcher, Ok(message)) => self.execute(message),
                // Nothing comes from a node before the launcher has reported that it joined.
                (FrameAddress::Node(from), Ok(StepMessage::Peer(message)))
                    if from.0 < self.plan.job.process_map.nodes() =>
                {
                    self.local.on_peer_message(from, message);
                }
                (_, Ok(_)) => {}
                (from, Err(error)) => {
                    self.fail(format!(
                        "it was sent a message that it cannot read ({error})"
                    ));
                    log_line(&format!("a message of {from:?} cannot be read: {error}"));
                }
            }
        }
    }

    /// Executes an order of the launcher.
    pub(super) fn execute(&mut self, message: StepMessage) {
        match message {
            StepMessage::Start => {
                if !self.state.begin() {
                    return;
                }
                if let Err(failure) = self.start_ranks() {
                    self.fail(failure.to_string());
                    self.local.order(BackendCommand::Skip);
                }
            }
            StepMessage::AddJob(job) => {
                let node = self.local.first_node();
                let resolved = self
                    .local
                    .unpack(&job, &self.plan, node)
                    .and_then(|staged_files| {
                        let plan = job.resolve(&self.plan, Some(node))?;
                        Ok((Arc::new(plan), staged_files))
                    });
                let (plan, staged_files) = match resolved {
                    Ok((plan, staged_files)) => (Ok(plan), staged_files),
                    Err(failure) => (Err(failure), UnpackedFiles::default()),
                };
                self.local.add_job(&job, plan, staged_files);
            }
            StepMessage::PastJob(context) => self.local.add_past_job(context),
            StepMessage::Joined { hosts, absent } => {
                self.plan = Arc::new(self.plan.with_hosts(&hosts, &absent));
                self.local.grow(&self.plan);
                let node = self.local.first_node();
                self.label.renew(&self.plan.job_plan, Some(node));
            }
            StepMessage::Order(BackendCommand::Skip) => {
                if self.state.begin() {
                    self.local.order(BackendCommand::Skip);
                }
            }
            StepMessage::Order(BackendCommand::Signal(signal)) => {
                self.pass_signal(signal, SignalPath::Launcher);
            }
            StepMessage::Order(order) => {
                if matches!(order, BackendCommand::Finish { .. }) {
                    self.state.finishes();
                }
                if matches!(
                    order,
                    BackendCommand::Ending | BackendCommand::Finish { .. }
                ) {
                    self.label.turn(JobStage::Ending);
                }
                if let BackendCommand::NodesLost { nodes, .. } = &order {
                    self.link.sources_lost(nodes);
                }
                self.local.order(order);
            }
            StepMessage::Credit { stream, bytes } => {
                if self.state.grant(stream, bytes) {
                    // Fails for what is not watched any more.
                    let _ = self.local.pause(stream, false);
                }
            }
            StepMessage::Input(bytes) => {
                self.stdin_feeder.input(bytes, self.now(), &self.local.poll);
                self.report_input();
            }
            StepMessage::Piece { .. }
            | StepMessage::Lacks(_)
            | StepMessage::Taken { .. }
            | StepMessage::Told(_)
            | StepMessage::Refused(_)
            | StepMessage::InputTaken { .. }
            | StepMessage::InputRead
            | StepMessage::Peer(_) => {}
        }
    }
}
