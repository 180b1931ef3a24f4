//! What a step's core and its decisions about failures order, carried out.

use std::mem::take;
use std::time::Duration;

use super::{Does, Server, Step};
use crate::launch::message::Told;
use wireup_core::job::clock::Moment;
use wireup_core::job::demand::{Demand, Wish};
use wireup_core::job::ids::JobNumber;
use wireup_core::job::outcome::Cause;
use wireup_core::link::frame::Address;
use wireup_core::node::event::{Action, Event, FromNode, Report};
use wireup_core::supervisor::first_failure::{self, Decision, Host as _};

impl Step {
    pub(super) fn feed(&mut self, event: Event<'_>, now: Duration) {
        let mut actions = Vec::new();
        self.core.handle(event, Moment(now), &mut actions);
        self.act(actions, now);
        while let Some(message) = self.own.pop() {
            let from = self.node;
            let mut actions = Vec::new();
            let event = Event::Peer { from, message };
            self.core.handle(event, Moment(now), &mut actions);
            self.act(actions, now);
        }
    }

    pub(super) fn act(&mut self, actions: Vec<Action>, now: Duration) {
        for action in actions {
            match action {
                Action::SendPmi { rank, bytes } => {
                    let rank = self.jobs.process_at(self.node, rank);
                    let rank = rank.expect("a rank of this node");
                    let times = self.mutation.times(&bytes);
                    let sent = (0..times).map(|_| Does::Pmi(rank, bytes.clone()));
                    self.does.extend(sent);
                }
                Action::SendPeer { to, message } if to == self.node => self.own.push(message),
                Action::SendPeer { to, message } => {
                    let to = self
                        .mutation
                        .parent(to, &message, self.jobs.nodes(), self.node);
                    self.outbound.push((Address::Node(to), message));
                }
                Action::SendEveryPeer(message) => {
                    self.outbound.push((Address::EveryNode, message));
                }
                Action::SendControl(bytes) => self.does.push(Does::Pmix(true, bytes)),
                Action::SendUpcall(bytes) => {
                    let times = self.mutation.times_served(&bytes);
                    let sent = (0..times).map(|_| Does::Pmix(false, bytes.clone()));
                    self.does.extend(sent);
                }
                Action::AwaitStarts { asked, jobs } => self.awaited.push((asked, jobs)),
                Action::LookAtSidecar => self.does.push(Does::Look),
                Action::KillSidecar => self.does.push(Does::KillSidecar),
                Action::Report(Report::Failed(cause)) => {
                    self.happened(first_failure::Event::Failed(cause), now);
                }
                Action::Report(Report::SidecarReady { job, .. }) => match job {
                    JobNumber(0) => self.ready(),
                    job => self.start_spawned(job, now),
                },
                Action::Report(Report::SidecarLost { error }) => {
                    self.server = Server::Lost;
                    let node = self.node;
                    self.happened(first_failure::Event::SidecarLost { node, error }, now);
                }
                Action::Tell(FromNode::Demanded(Demand {
                    by: Some(rank),
                    what: Wish::Abort { code, message },
                    ..
                })) => {
                    let cause = Cause::Aborted {
                        rank,
                        code,
                        message,
                    };
                    self.happened(first_failure::Event::Failed(cause), now);
                }
                Action::Tell(said @ FromNode::Spawn { .. }) => self.tell(Told::Node(said)),
                Action::Report(
                    Report::RankConnected { .. }
                    | Report::RankFinalized { .. }
                    | Report::SidecarLoaded(_),
                )
                | Action::Tell(FromNode::FenceLate(_)) => {}
                other => self.broken = Some(format!("{:?} orders {other:?}", self.node)),
            }
        }
    }

    pub(super) fn happened(&mut self, event: first_failure::Event, now: Duration) {
        let mut decisions = Vec::new();
        let mut failures = take(&mut self.failures);
        failures.handle(event, self, now, &mut decisions);
        self.failures = failures;
        for decision in decisions {
            match decision {
                Decision::Judge { rank, end } => {
                    let state = self.pmi_state(rank);
                    self.tell(Told::Judged(rank, end, state));
                    let rank = self.place(rank);
                    self.feed(Event::RankEnded { rank, end }, now);
                }
                Decision::Fail(cause) => {
                    self.tell(Told::Failed(cause));
                    self.ending = true;
                }
                Decision::ProbeSidecars => {
                    let mut actions = Vec::new();
                    self.core
                        .with_actions(Moment(now), &mut actions, |core| core.probe_sidecar());
                    self.act(actions, now);
                }
                Decision::SidecarUnneeded { .. } => {}
                other => self.broken = Some(format!("{:?} decides {other:?}", self.node)),
            }
        }
    }
}
