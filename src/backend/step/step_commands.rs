//! Messages on a step's link, and their execution.

use std::sync::Arc;

use super::rank_signals::SignalPath;
use super::receive_files::find_brought;
use super::{Messages, StepDaemon, log_line};
use crate::backend::job_label::JobStage;
use crate::backend::step_messages::{LauncherToStep, StepToLauncher};
use crate::plan::host_growth::with_hosts;
use crate::plan::packed_files::UnpackedFiles;
use wireup_core::link::agent_protocol::StepCommand;
use wireup_core::link::decode;
use wireup_core::link::frame::{FrameAddress, FrameClass};

impl StepDaemon {
    /// Sends the launcher these reports, in their order.
    pub(super) fn report_to_launcher(&mut self, reports: &[StepToLauncher]) {
        let (to, class) = (FrameAddress::Launcher, FrameClass::Carried);
        self.link.send(to, class, &reports, self.local.poll());
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
            let read = match envelope.from {
                FrameAddress::Launcher => decode(&body).map(|message| self.execute(message)),
                FrameAddress::Node(from) => decode(&body).map(|message| {
                    // A node sends messages only after the launcher has reported that it joined.
                    if from.0 < self.plan.job.process_map.nodes() {
                        self.local.on_peer_message(from, message);
                    }
                }),
                FrameAddress::EveryNode | FrameAddress::Children => continue,
            };
            if let Err(error) = read {
                let from = envelope.from;
                self.fail(format!("its step received an invalid message ({error})"));
                log_line(&format!("invalid message from {from:?}: {error}"));
            }
        }
    }

    /// Executes an order of the launcher.
    pub(super) fn execute(&mut self, message: LauncherToStep) {
        match message {
            LauncherToStep::Start => {
                if !self.state.begin() {
                    return;
                }
                if let Err(failure) = self.start_ranks() {
                    self.fail(failure.to_string());
                    self.local.order(LauncherToStep::Skip);
                }
            }
            LauncherToStep::Prepare(job) => self.prepare(job),
            LauncherToStep::Forget(name) => {
                if let Some((_, job)) = &mut self.incoming
                    && job.prepared_as.as_ref() == Some(&name)
                {
                    // Files of the job still arrive, and other hosts wait until they are complete.
                    job.container = None;
                }
                self.local.order(LauncherToStep::Forget(name));
            }
            LauncherToStep::Piece { file, bytes } => self.take_piece(file, &bytes),
            LauncherToStep::AddJob { mut job, .. } => {
                let node = self.local.first_node();
                let resolved = find_brought(&mut job, &self.plan, node)
                    .and_then(|()| self.local.unpack(&job, &self.plan, node))
                    .and_then(|staged_files| {
                        let inside = self.local.container_root(&job, &self.plan);
                        let plan = job.resolve(&self.plan, inside)?;
                        Ok((Arc::new(plan), staged_files))
                    });
                let (plan, staged_files) = match resolved {
                    Ok((plan, staged_files)) => (Ok(plan), staged_files),
                    Err(failure) => (Err(failure), UnpackedFiles::default()),
                };
                self.local.add_job(&job, plan, staged_files);
            }
            LauncherToStep::NodesChanged {
                hosts,
                absent,
                departed,
            } => {
                // A step that is joining knows more hosts than the others, which is announced later.
                if hosts.len() < self.plan.spec.layout.hosts.len() {
                    return;
                }
                self.plan = Arc::new(with_hosts(&self.plan, &hosts, &absent));
                self.local.change_nodes(&self.plan, &departed);
                let node = self.local.first_node();
                self.label.renew(&self.plan.job_plan, Some(node));
            }
            LauncherToStep::Skip => {
                if self.state.begin() {
                    self.local.order(LauncherToStep::Skip);
                }
            }
            LauncherToStep::Signal(signal) => {
                self.pass_signal(signal, SignalPath::Launcher);
            }
            LauncherToStep::Credit { stream, bytes } => {
                if self.state.grant(stream, bytes) {
                    // The call fails for a stream that is no longer watched.
                    let _ = self.local.pause(stream, false);
                }
            }
            LauncherToStep::Input(bytes) => {
                self.stdin_feeder
                    .input(bytes, self.now(), self.local.poll());
                self.report_input();
            }
            order => {
                if matches!(order, LauncherToStep::Finish { .. }) {
                    self.state.finishes();
                }
                if matches!(
                    order,
                    LauncherToStep::Ending | LauncherToStep::Finish { .. }
                ) {
                    self.label.turn(JobStage::Ending);
                }
                if let LauncherToStep::NodesLost { nodes, .. } = &order {
                    self.link.sources_lost(nodes);
                }
                self.local.order(order);
            }
        }
    }
}
