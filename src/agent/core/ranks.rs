//! The PMI ranks' part of a node's core: what their server orders, barriers.

use super::{FenceTicket, NodeCore};
use crate::agent::event::{Action, Report};
use crate::fence::{self, Contribution, FenceInput, Participants};
use crate::job::clock::Moment;
use crate::job::ids::Nspace;
use crate::job::outcome::Cause;
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
                Effect::BarrierComplete { contribution } => {
                    self.pmi_barrier(contribution, now, actions);
                }
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
                Effect::Initialized { .. } | Effect::Finalized { .. } => {}
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

    /// All local ranks wait in the PMI barrier: fence with the other nodes.
    fn pmi_barrier(&mut self, contribution: Vec<u8>, now: Moment, actions: &mut Vec<Action>) {
        // PMI-1 and PMIx may be served side by side; a name of its own keeps their fences apart.
        let name = format!("{}#pmi", self.job.nspace);
        let participants = Participants::whole_job(
            Nspace::new(&name).expect("an nspace with a short ASCII suffix"),
        );
        let ranks = &self.job.ranks;
        let nodes = ranks
            .node_ids()
            .filter(|node| ranks.local_size(*node) > 0)
            .collect();
        let contribution = Contribution {
            data: contribution.into(),
            collect: true,
            status: 0,
        };
        let input = FenceInput::Arrive {
            participants,
            nodes,
            contribution,
            // A rank may compute for hours between two barriers. One that ended is noticed by its
            // process, so nothing is gained by a limit.
            timeout: None,
            ticket: FenceTicket::Pmi,
        };
        self.fence(input, now, actions);
    }

    pub(super) fn pmi_released(
        &mut self,
        result: fence::FenceResult,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let Some(server) = &mut self.pmi else { return };
        let mut effects = Vec::new();
        let failure = match &result {
            Ok(released) => server
                .barrier_released(Ok(&released.data), &mut effects)
                .err()
                .map(|error| error.to_string()),
            Err(failure) => {
                let text = failure.to_string();
                // Telling the ranks is all that is left; the job fails below in any case.
                let _ = server.barrier_released(Err(&text), &mut effects);
                (!matches!(failure, fence::FenceFailure::TornDown { .. })).then_some(text)
            }
        };
        if let Some(error) = failure {
            actions.push(Action::Report(Report::Failed(Cause::FenceFailed { error })));
        }
        self.pmi_effects(effects, now, actions);
    }
}
