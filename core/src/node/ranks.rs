//! The PMI ranks' part of a node's core: what their server orders, barriers.

use super::NodeCore;
use super::fences::FenceTicket;
use super::keys::Asker;
use crate::fence::{Contribution, FenceInput};
use crate::job::ids::{JobNumber, LocalRank, NodeRank};
use crate::job::outcome::Cause;
use crate::node::event::{Action, Report};
use crate::pmi::collective::Collective;
use crate::pmi::server::Effect;

impl NodeCore {
    pub(super) fn pmi_effects(&mut self, job: JobNumber, effects: Vec<Effect>) {
        let first = self.cx.jobs.get(job).map_or(NodeRank(0), |job| job.first);
        let at = |local: LocalRank| NodeRank(first.0 + local.0);
        let failed = |cause| Action::Report(Report::Failed(cause));
        for effect in effects {
            match effect {
                Effect::Send { rank, bytes } => {
                    let rank = at(rank);
                    self.cx.order(Action::SendPmi { rank, bytes });
                }
                Effect::Begun { collective } => self.pmi_begun(job, collective),
                Effect::Ended { collective } => self.pmi_met(job, &collective),
                Effect::Entered {
                    collective,
                    contribution,
                } => self.pmi_fence((job, collective), contribution),
                Effect::Withdrawn { collective } => {
                    let (series, _) = self.cx.meeting_of(job, &collective);
                    self.fence(FenceInput::Withdraw { series });
                }
                Effect::Renew { rank, number } => {
                    self.begin_epoch(Asker { job, rank, number });
                }
                Effect::Abort {
                    rank,
                    code,
                    message,
                } => {
                    let rank = self.cx.process(at(rank));
                    self.cx.order(failed(Cause::Aborted {
                        rank,
                        code,
                        message,
                    }));
                }
                Effect::Initialized { rank } => {
                    let rank = at(rank);
                    self.cx
                        .order(Action::Report(Report::RankConnected { rank }));
                }
                Effect::Finalized { rank } => {
                    let rank = at(rank);
                    self.cx
                        .order(Action::Report(Report::RankFinalized { rank }));
                }
                Effect::Publish {
                    rank,
                    service,
                    port,
                    limits,
                } => {
                    self.names
                        .pmi_publish(at(rank), service, port, limits, &mut self.cx);
                    self.settle();
                }
                Effect::Lookup { rank, service } => {
                    self.names.pmi_lookup(at(rank), service, &mut self.cx);
                    self.settle();
                }
                Effect::Unpublish { rank, service } => {
                    self.names.pmi_unpublish(at(rank), service, &mut self.cx);
                    self.settle();
                }
                Effect::Spawn { rank, request } => {
                    self.spawns.pmi_spawn(at(rank), request, &mut self.cx)
                }
                Effect::Key {
                    rank,
                    number,
                    job: other,
                    wanted,
                } => {
                    let asker = Asker { job, rank, number };
                    self.keys.ask(asker, other, wanted, &mut self.cx);
                    self.settle();
                }
                Effect::Misbehaved { rank, error } => {
                    let rank = self.cx.process(at(rank));
                    self.cx.order(failed(Cause::Misbehaved { rank, error }));
                }
            }
        }
    }

    /// All local members have entered a barrier or ring: fence with the other nodes.
    fn pmi_fence(&mut self, (job, collective): (JobNumber, Collective), contribution: Vec<u8>) {
        let (series, nodes) = self.cx.meeting_of(job, &collective);
        let contribution = Contribution {
            data: contribution.into(),
            collect: true,
            status: 0,
        };
        let input = FenceInput::Arrive {
            series,
            nodes,
            contribution,
            timeout: self.cx.terms.timeout(),
            ticket: FenceTicket::Pmi(job, collective),
        };
        self.fence(input);
    }

    /// A barrier of ranks of this node has ended without the fences, which wait for it no more.
    fn pmi_met(&mut self, job: JobNumber, collective: &Collective) {
        let (series, nodes) = self.cx.meeting_of(job, collective);
        let contribution = Contribution {
            data: Vec::new().into(),
            collect: false,
            status: 0,
        };
        let input = FenceInput::Arrive {
            series,
            nodes,
            contribution,
            timeout: None,
            ticket: FenceTicket::Released,
        };
        self.fence(input);
    }
}
