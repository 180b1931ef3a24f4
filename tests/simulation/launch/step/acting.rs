//! Execution of the actions of a step's core and of its failure decisions.

use std::mem::take;
use std::time::Duration;

use super::{Does, Server, Step};
use crate::launch::message::SimulatedReport;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::JobIndex;
use wireup_core::job::job_control::{JobControlAction, JobControlRequest};
use wireup_core::job::outcome::FailureCause;
use wireup_core::link::frame::FrameAddress;
use wireup_core::node::event::{NodeAction, NodeEvent, NodeNotice, NodeReport};
use wireup_core::supervisor::first_failure::{self, FailureDecision, HostView as _};

impl Step {
    pub(super) fn feed(&mut self, event: NodeEvent<'_>, now: Duration) {
        let mut actions = Vec::new();
        self.core.handle(event, Moment(now), &mut actions);
        self.act(actions, now);
        while let Some(message) = self.own.pop() {
            let from = self.node;
            let mut actions = Vec::new();
            let event = NodeEvent::Peer { from, message };
            self.core.handle(event, Moment(now), &mut actions);
            self.act(actions, now);
        }
    }

    pub(super) fn act(&mut self, actions: Vec<NodeAction>, now: Duration) {
        for action in actions {
            match action {
                NodeAction::SendPmi { rank, bytes } => {
                    let rank = self.jobs.process_at(self.node, rank);
                    let rank = rank.expect("a rank of this node");
                    let times = self.mutation.times(&bytes);
                    let sent = (0..times).map(|_| Does::Pmi(rank, bytes.clone()));
                    self.does.extend(sent);
                }
                NodeAction::SendPeer { to, message } if to == self.node => self.own.push(message),
                NodeAction::SendPeer { to, message } => {
                    let to = self
                        .mutation
                        .parent(to, &message, self.jobs.nodes(), self.node);
                    self.outbound.push((FrameAddress::Node(to), message));
                }
                NodeAction::SendEveryPeer(message) => {
                    self.outbound.push((FrameAddress::EveryNode, message));
                }
                NodeAction::SendControl(bytes) => self.does.push(Does::Pmix(true, bytes)),
                NodeAction::SendUpcall(bytes) => {
                    let times = self.mutation.times_served(&bytes);
                    let sent = (0..times).map(|_| Does::Pmix(false, bytes.clone()));
                    self.does.extend(sent);
                }
                NodeAction::AwaitStarts { query, jobs } => self.awaited.push((query, jobs)),
                NodeAction::ObserveSidecar => self.does.push(Does::Look),
                NodeAction::KillSidecar => self.does.push(Does::KillSidecar),
                NodeAction::Notify(NodeNotice::Failed(cause)) => {
                    self.happened(first_failure::FailureEvent::Failed(cause), now);
                }
                NodeAction::Notify(NodeNotice::SidecarReady { job, .. }) => match job {
                    JobIndex(0) => self.ready(),
                    job => self.start_spawned(job, now),
                },
                NodeAction::Notify(NodeNotice::SidecarLost { error }) => {
                    self.server = Server::Lost;
                    let node = self.node;
                    self.happened(
                        first_failure::FailureEvent::SidecarLost { node, error },
                        now,
                    );
                }
                NodeAction::ReportToLauncher(NodeReport::JobControl(JobControlRequest {
                    requester: Some(rank),
                    action: JobControlAction::Abort { code, message },
                    ..
                })) => {
                    let cause = FailureCause::Aborted {
                        rank,
                        code,
                        message,
                    };
                    self.happened(first_failure::FailureEvent::Failed(cause), now);
                }
                NodeAction::ReportToLauncher(report @ NodeReport::Spawn { .. }) => {
                    self.queue_report(SimulatedReport::Node(report))
                }
                NodeAction::Notify(
                    NodeNotice::RankConnected { .. }
                    | NodeNotice::RankFinalized { .. }
                    | NodeNotice::SidecarLoaded(_),
                )
                | NodeAction::ReportToLauncher(NodeReport::FenceLate(_)) => {}
                other => self.broken = Some(format!("{:?} orders {other:?}", self.node)),
            }
        }
    }

    pub(super) fn happened(&mut self, event: first_failure::FailureEvent, now: Duration) {
        let mut decisions = Vec::new();
        let mut failures = take(&mut self.failures);
        failures.handle(event, self, now, &mut decisions);
        self.failures = failures;
        for decision in decisions {
            match decision {
                FailureDecision::Judge { rank, end } => {
                    let state = self.pmi_state(rank);
                    self.queue_report(SimulatedReport::Judged(rank, end, state));
                    let rank = self.place(rank);
                    self.feed(NodeEvent::RankEnded { rank, end }, now);
                }
                FailureDecision::Fail(cause) => {
                    self.queue_report(SimulatedReport::Failed(cause));
                    self.ending = true;
                }
                FailureDecision::ProbeSidecars => {
                    let mut actions = Vec::new();
                    self.core
                        .with_actions(Moment(now), &mut actions, |core| core.probe_sidecar());
                    self.act(actions, now);
                }
                FailureDecision::SidecarUnneeded { .. } => {}
                other => self.broken = Some(format!("{:?} decides {other:?}", self.node)),
            }
        }
    }
}
