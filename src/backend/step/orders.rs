//! Messages on a step's link, and their execution.

use std::sync::Arc;

use super::rank_signals::SignalPath;
use super::{Messages, Step, say};
use crate::backend::backend_message::ToBackend;
use crate::backend::job_label::JobStage;
use crate::backend::link_message::Carried;
use crate::plan::packed_files::Unpacked;
use wireup_core::link::control::ToStep;
use wireup_core::link::decode;
use wireup_core::link::frame::{Address, Class};

impl Step {
    pub(super) fn send(&mut self, to: Address, message: &Carried) {
        self.link
            .send(to, Class::Carried, message, &self.local.poll);
    }

    pub(super) fn take_messages(&mut self, messages: Messages) {
        for (envelope, body) in messages {
            if envelope.class == Class::Control {
                match decode(&body) {
                    Ok(ToStep::Orphaned { reason }) => self.orphaned(&reason),
                    Ok(ToStep::Begin { .. }) | Err(_) => self.orphaned("garbled"),
                }
                continue;
            }
            match (envelope.from, decode(&body)) {
                (Address::Launcher, Ok(message)) => self.obey(message),
                // Nothing comes from a node before the launcher has reported that it joined.
                (Address::Node(from), Ok(Carried::Peer(message)))
                    if from.0 < self.plan.job.ranks.nodes() =>
                {
                    self.local.peer_said(from, message);
                }
                (_, Ok(_)) => {}
                (from, Err(error)) => {
                    self.fail(format!(
                        "it was sent a message that it cannot read ({error})"
                    ));
                    say(&format!("a message of {from:?} cannot be read: {error}"));
                }
            }
        }
    }

    /// Executes an order of the launcher.
    pub(super) fn obey(&mut self, message: Carried) {
        match message {
            Carried::Start => {
                if !self.duty.begin() {
                    return;
                }
                if let Err(failure) = self.start_ranks() {
                    self.fail(failure.to_string());
                    self.local.order(ToBackend::Skip);
                }
            }
            Carried::AddJob(job) => {
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
                    Err(failure) => (Err(failure), Unpacked::default()),
                };
                self.local.add_job(&job, plan, staged_files);
            }
            Carried::PastJob(context) => self.local.add_past_job(context),
            Carried::Joined { hosts, absent } => {
                self.plan = Arc::new(self.plan.with_hosts(&hosts, &absent));
                self.local.grow(&self.plan);
                let node = self.local.first_node();
                self.label.renew(&self.plan.decided, Some(node));
            }
            Carried::Order(ToBackend::Skip) => {
                if self.duty.begin() {
                    self.local.order(ToBackend::Skip);
                }
            }
            Carried::Order(ToBackend::Signal(signal)) => {
                self.pass_signal(signal, SignalPath::Launcher);
            }
            Carried::Order(order) => {
                if matches!(order, ToBackend::Finish { .. }) {
                    self.duty.finishes();
                }
                if matches!(order, ToBackend::Ending | ToBackend::Finish { .. }) {
                    self.label.turn(JobStage::Ending);
                }
                if let ToBackend::NodesLost { nodes, .. } = &order {
                    self.link.sources_lost(nodes);
                }
                self.local.order(order);
            }
            Carried::Credit { stream, bytes } => {
                if self.duty.grant(stream, bytes) {
                    // Fails for what is not watched any more.
                    let _ = self.local.pause(stream, false);
                }
            }
            Carried::Input(bytes) => {
                self.feeds.input(bytes, self.now(), &self.local.poll);
                self.report_input();
            }
            Carried::Piece { .. }
            | Carried::Lacks(_)
            | Carried::Taken { .. }
            | Carried::Told(_)
            | Carried::Refused(_)
            | Carried::InputTaken { .. }
            | Carried::InputRead
            | Carried::Peer(_) => {}
        }
    }
}
