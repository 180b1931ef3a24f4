//! The PMI ranks' part of a node's core: what their server orders, barriers.

use super::{FenceTicket, NodeCore};
use crate::agent::event::{Action, Report};
use crate::fence::{self, Contribution, FenceInput, Participants};
use crate::job::clock::Moment;
use crate::job::ids::{NodeId, Nspace};
use crate::job::outcome::Cause;
use crate::job::proc::ProcRank;
use crate::pmi::collective::{Collective, Scope};
use crate::pmi::server::Effect;

impl NodeCore {
    pub(super) fn pmi_effects(
        &mut self,
        effects: Vec<Effect>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let failed = |cause| Action::Report(Report::Failed(cause));
        for effect in effects {
            match effect {
                Effect::Send { rank, bytes } => actions.push(Action::SendPmi { rank, bytes }),
                Effect::Entered {
                    collective,
                    contribution,
                } => self.pmi_fence(collective, contribution, now, actions),
                Effect::Abort {
                    rank,
                    code,
                    message,
                } => {
                    let rank = self.rank(rank);
                    actions.push(failed(Cause::Aborted {
                        rank,
                        code,
                        message,
                    }));
                }
                Effect::Initialized { rank } => {
                    actions.push(Action::Report(Report::RankConnected { rank }));
                }
                Effect::Finalized { rank } => {
                    actions.push(Action::Report(Report::RankFinalized { rank }));
                }
                Effect::Publish {
                    rank,
                    service,
                    port,
                } => {
                    self.pmi_publish(rank, service, port, now, actions);
                }
                Effect::Lookup { rank, service } => {
                    self.pmi_lookup(rank, service, now, actions);
                }
                Effect::Unpublish { rank, service } => {
                    self.pmi_unpublish(rank, service, now, actions);
                }
                Effect::Misbehaved { rank, error } => {
                    let rank = self.rank(rank);
                    actions.push(failed(Cause::Misbehaved { rank, error }));
                }
            }
        }
    }

    /// All local members have entered a barrier or ring: fence with the other nodes.
    fn pmi_fence(
        &mut self,
        collective: Collective,
        contribution: Vec<u8>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let ranks = &self.job.ranks;
        let mut nodes: Vec<NodeId> = match &collective {
            Collective::Barrier {
                scope: Scope::Ranks(members),
                ..
            } => members
                .iter()
                .filter_map(|rank| ranks.node_of(*rank))
                .collect(),
            _ => ranks
                .node_ids()
                .filter(|node| ranks.local_size(*node) > 0)
                .collect(),
        };
        nodes.dedup();
        let contribution = Contribution {
            data: contribution.into(),
            collect: true,
            status: 0,
        };
        let input = FenceInput::Arrive {
            participants: participants(&self.job.nspace, &collective),
            nodes,
            contribution,
            // A rank may compute for hours between two barriers. One that ended is noticed by its
            // process, so nothing is gained by a limit.
            timeout: None,
            ticket: FenceTicket::Pmi(collective),
        };
        self.fence(input, now, actions);
    }

    pub(super) fn pmi_released(
        &mut self,
        collective: &Collective,
        result: fence::FenceResult,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let Some(server) = &mut self.pmi else { return };
        let mut effects = Vec::new();
        let failure = match &result {
            Ok(released) => server
                .released(collective, Ok(&released.data), &mut effects)
                .err()
                .map(|error| error.to_string()),
            Err(failure) => {
                let text = failure.to_string();
                // Telling the ranks is all that is left; the job fails below in any case.
                let _ = server.released(collective, Err(&text), &mut effects);
                (!matches!(failure, fence::FenceFailure::TornDown { .. })).then_some(text)
            }
        };
        if let Some(error) = failure {
            actions.push(Action::Report(Report::Failed(Cause::FenceFailed { error })));
        }
        self.pmi_effects(effects, now, actions);
    }
}

/// Who fences for a barrier or ring. PMI and PMIx may be served side by side, and barriers of the
/// same ranks may be open at a time: a name of its own keeps each one's fences apart.
fn participants(job: &Nspace, collective: &Collective) -> Participants {
    let name = match collective {
        Collective::Ring => format!("{job}#ring"),
        &Collective::WORLD => format!("{job}#pmi"),
        Collective::Barrier { tag, .. } => format!("{job}#pmi:{tag}"),
    };
    let name = Nspace::new(&name).expect("an nspace with a short ASCII suffix");
    match collective {
        Collective::Barrier {
            scope: Scope::Ranks(ranks),
            ..
        } => {
            let procs = ranks
                .iter()
                .map(|rank| (name.clone(), ProcRank::One(*rank)));
            Participants::from_procs(procs).expect("ranks of a job that has at least one")
        }
        _ => Participants::whole_job(name),
    }
}
