//! The nodes of the job: what happens is handed to their cores, and what these order is done.

use std::sync::Arc;

use super::{Drive, RankSlot};
use crate::agent::core::NodeCore;
use crate::agent::event::{Action, Event, Report};
use crate::agent::poll::Source;
use crate::agent::sidecar::Sidecar;
use crate::job::clock::Moment;
use crate::job::ids::{LocalRank, NodeId};
use crate::job::spec::PmiChoice;
use crate::launcher::late;
use crate::launcher::record::RankState;
use crate::pmi::command::Dialect;
use crate::pmix::control::{ForkEnv, Hello};

/// One node of the job.
pub(in crate::launcher) struct Node {
    /// Its state machine.
    pub(in crate::launcher) core: NodeCore,
    /// Its sidecar, if the job needs one.
    pub(in crate::launcher) sidecar: Option<Sidecar>,
    /// What the ranks get from the sidecar, once it is ready.
    pub(in crate::launcher) env: Option<ForkEnv>,
    /// What the sidecar said about itself.
    pub(in crate::launcher) hello: Option<Hello>,
    /// The last it printed.
    pub(in crate::launcher) printed: Vec<u8>,
}

impl Node {
    /// A node without a sidecar yet.
    pub(in crate::launcher) fn new(core: NodeCore) -> Self {
        Self {
            core,
            sidecar: None,
            env: None,
            hello: None,
            printed: Vec::new(),
        }
    }
}

impl Drive {
    /// Hands an event to a node's core, and everything that follows from it to the others.
    pub(in crate::launcher) fn feed(&mut self, node: NodeId, event: Event<'_>) {
        let now = Moment(self.now());
        let mut actions = Vec::new();
        self.nodes[node.index()]
            .core
            .handle(event, now, &mut actions);
        self.act(node, actions);
        while let Some((to, from, message)) = self.peers.pop_front() {
            let mut actions = Vec::new();
            let event = Event::Peer { from, message };
            self.nodes[to.index()].core.handle(event, now, &mut actions);
            self.act(to, actions);
        }
    }

    /// Carries out the orders of a node's core.
    pub(in crate::launcher) fn act(&mut self, node: NodeId, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::SendPmi { rank, bytes } => {
                    let ranks = &self.plan.job.ranks;
                    let slot = ranks
                        .rank_at(node, rank)
                        .map(|r| &mut self.ranks[r.index()]);
                    if let Some(RankSlot::Running {
                        pmi: Some(channel), ..
                    }) = slot
                    {
                        channel.send(&bytes, &self.poll);
                    }
                }
                Action::SendControl(bytes) => {
                    if let Some(sidecar) = &mut self.nodes[node.index()].sidecar {
                        sidecar.control.send(&bytes, &self.poll);
                    }
                }
                Action::SendUpcall(bytes) => {
                    if let Some(sidecar) = &mut self.nodes[node.index()].sidecar {
                        sidecar.upcall.send(&bytes, &self.poll);
                    }
                }
                Action::KillHost => self.kill_host(node),
                Action::SendPeer { to, message } => self.peers.push_back((to, node, message)),
                Action::Report(report) => self.report(node, report),
            }
        }
    }

    fn report(&mut self, node: NodeId, report: Report) {
        match report {
            Report::HostLoaded(hello) => {
                self.nodes[node.index()].hello = Some(hello);
            }
            Report::HostReady(env) => self.nodes[node.index()].env = Some(env),
            Report::HostLost { error } => self.host_lost(node, error),
            Report::HostWarning { text } => {
                let name = &self.plan.node_names[node.index()];
                let text = format!("PMIx server of {name}: {text}");
                self.tell(&text);
            }
            Report::RankConnected { rank } => {
                self.judge_dialect(node, rank);
                self.rank_said(node, rank, RankState::Connected);
            }
            Report::RankFinalized { rank } => {
                self.rank_said(node, rank, RankState::Finalized);
            }
            Report::FenceLate(late) => {
                if !self.late_told {
                    self.late_told = true;
                    let plan = Arc::clone(&self.plan);
                    let text = late::note(&plan, &late, &|rank| self.pid_of(rank));
                    self.warn(&text);
                }
            }
            Report::Failed(cause) => self.fail_unless_consequence(cause),
            Report::Log { stdout, text } => {
                let source = match stdout {
                    true => Source::Stdout,
                    false => Source::Stderr,
                };
                let now = self.now();
                self.streams.pass_on(source, text, now);
            }
        }
    }

    /// Says once that a client speaks another form of PMI than was asked for. It is served all the
    /// same: which form a library speaks was decided when it was built.
    fn judge_dialect(&mut self, node: NodeId, rank: LocalRank) {
        let wanted = match self.plan.spec.interface.pmi {
            PmiChoice::Pmi1 => Dialect::Pmi1,
            PmiChoice::Pmi2 => Dialect::Pmi2,
            _ => return,
        };
        let spoken = self.nodes[node.index()].core.pmi_dialect(rank);
        let ranks = &self.plan.job.ranks;
        let Some((spoken, rank)) = spoken.zip(ranks.rank_at(node, rank)) else {
            return;
        };
        if spoken != wanted && !self.dialect_told {
            self.dialect_told = true;
            let choice = self.plan.spec.interface.pmi;
            self.warn(&format!(
                "rank {rank} speaks {spoken}, not {wanted} as --pmi {choice} expects: its library \
                 decides that, and is served"
            ));
        }
    }
}
