//! What comes over a step's link, and what it does about it.

use std::sync::Arc;

use super::{Messages, Step, say};
use crate::backend::carried::Carried;
use crate::backend::message::ToCrew;
use crate::backend::plate::Stage;
use crate::plan::staging::Unpacked;
use wireup_core::link::control::ToStep;
use wireup_core::link::decode;
use wireup_core::link::frame::{Address, Class};

impl Step {
    pub(super) fn send(&mut self, to: Address, message: &Carried) {
        self.link.send(to, Class::Carried, message, &self.crew.poll);
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
                // Nothing comes of a node before the launcher has told that it has joined.
                (Address::Node(from), Ok(Carried::Peer(message)))
                    if from.0 < self.plan.job.ranks.nodes() =>
                {
                    self.crew.peer_said(from, message);
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

    /// Does what the launcher wants.
    pub(super) fn obey(&mut self, message: Carried) {
        match message {
            Carried::Start if !self.started => {
                self.started = true;
                if let Err(failure) = self.start_ranks() {
                    self.fail(failure.message);
                    self.crew.order(ToCrew::Skip);
                }
            }
            Carried::AddJob(job) => {
                let node = self.crew.first_node();
                let resolved = self
                    .crew
                    .unpack(&job, &self.plan, node)
                    .and_then(|luggage| {
                        let plan = job.resolve(&self.plan, Some(node))?;
                        Ok((Arc::new(plan), luggage))
                    });
                let (plan, luggage) = match resolved {
                    Ok((plan, luggage)) => (Ok(plan), luggage),
                    Err(failure) => (Err(failure), Unpacked::default()),
                };
                self.crew.add_job(&job, plan, luggage);
            }
            Carried::PastJob(context) => self.crew.add_past_job(context),
            Carried::Joined { hosts, absent } => {
                self.plan = Arc::new(self.plan.with_hosts(&hosts, &absent));
                self.crew.grow(&self.plan);
                let node = self.crew.first_node();
                self.plate.renew(&self.plan.decided, Some(node));
            }
            Carried::Order(ToCrew::Skip) if !self.started => {
                self.started = true;
                self.crew.order(ToCrew::Skip);
            }
            Carried::Order(ToCrew::Skip) | Carried::Start => {}
            Carried::Order(order) => {
                self.finishing |= matches!(order, ToCrew::Finish { .. });
                if matches!(order, ToCrew::Ending | ToCrew::Finish { .. }) {
                    self.plate.turn(Stage::Ending);
                }
                self.crew.order(order);
            }
            Carried::Credit { stream, bytes } => {
                let credit = &mut self.credit[stream as usize];
                *credit += i64::from(bytes);
                if *credit > 0 {
                    // Fails for what is not watched any more.
                    let _ = self.crew.pause(stream, false);
                }
            }
            Carried::Input(bytes) => {
                self.feeds.input(bytes, &self.crew.poll);
                self.report_input();
            }
            Carried::Told(_)
            | Carried::Refused(_)
            | Carried::InputTaken { .. }
            | Carried::Peer(_) => {}
        }
    }
}
