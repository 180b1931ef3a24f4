//! The state of one node of one job: composes the protocol cores; no I/O.
//!
//! ```text
//! PMI sockets ──▶ pmi::server ──┐                      ┌──▶ fence, modex ◀──▶ other nodes
//! sidecar ──▶ pmix::host ──▶ upcalls (see `upcalls`) ──┘
//! ```
//! One task owns it, hands in [`Event`]s and carries out the [`Action`]s.

mod context;
mod credentials;
mod demands;
mod events;
mod fences;
mod groups;
mod host;
mod logs;
mod ranks;
mod store;
mod upcalls;

use std::sync::Arc;

pub use credentials::Voucher;
pub use fences::Terms;
use groups::Groups;
use host::HostLife;
use serde::{Deserialize, Serialize};

use super::event::{Action, Event, PeerMessage};
use crate::fence::{self, FenceEngine, FenceInput, Nodes, Participants};
use crate::groups::GroupEngine;
use crate::job::appnums::Appnums;
use crate::job::clock::Moment;
use crate::job::ids::{LocalRank, NodeId, Nspace, Rank, UserId};
use crate::job::outcome::{PmiState, RankEnd};
use crate::job::proc;
use crate::job::pset::ProcessSet;
use crate::job::rank_map::RankMap;
use crate::modex::{self, ModexEngine, ModexInput};
use crate::pmi::collective::Collective;
use crate::pmi::command::Dialect;
use crate::pmi::server::{self as pmi};
use crate::pmix::host::{HostLink, UpcallCount, UpcallId};
use crate::pmix::upcall::UpcallKind;
use crate::store::engine::StoreEngine;
use store::Asker;

/// The node where published names and values are kept.
pub const HEAD: NodeId = NodeId(0);

/// What all nodes of a job know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "context::Received")]
pub struct JobContext {
    /// The job's name.
    pub nspace: Nspace,
    /// Where its ranks live.
    pub ranks: RankMap,
    /// Application contexts of the ranks.
    pub appnums: Appnums,
    /// Slots the job could grow to.
    pub universe_size: u32,
    /// For whom its ranks run.
    pub user: UserId,
    /// Its process sets.
    pub psets: Vec<ProcessSet>,
}

/// Who waits for a fence.
#[derive(Clone, PartialEq, Eq, Debug)]
enum FenceTicket {
    /// The PMI ranks of this node that are in a barrier or ring.
    Pmi(Collective),
    /// The sidecar.
    Pmix(UpcallId),
    /// Nobody any more: the barrier was of ranks of this node, and has ended.
    Met,
}

/// What a rank did with PMIx. Kept as it was when the rank ended, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum PmixState {
    /// Never connected.
    #[default]
    Absent,
    /// Between init and finalize.
    Connected,
    /// Left in order.
    Finalized,
    /// Its process ended between init and finalize.
    Died,
    /// Its process ended and had never connected.
    Stayed,
}

/// One node of one job.
pub struct NodeCore {
    node: NodeId,
    job: Arc<JobContext>,
    pmi: Option<pmi::Server>,
    terms: Terms,
    /// Who takes part in the barrier of all ranks.
    world: (Participants, Nodes),
    fences: FenceEngine<FenceTicket>,
    modex: ModexEngine<UpcallId>,
    store: StoreEngine<Asker>,
    groups: Groups,
    voucher: Option<Voucher>,
    link: HostLink,
    host: HostLife,
    /// By local rank.
    pmix: Vec<PmixState>,
    /// When each local rank was last heard of, by its own word.
    heard: Vec<Option<Moment>>,
    /// The sidecar's requests for local ranks' data that wait for a direct modex.
    modex_requests: Vec<(crate::pmix::host::RequestId, proc::Proc)>,
}

impl NodeCore {
    /// A node whose ranks are offered PMI-1 and PMI-2 (`pmi`) or PMIx through a sidecar (`pmix`), or
    /// both. The terms are the same on all nodes.
    ///
    /// # Errors
    /// [`pmi::SetupError`] when the job cannot be described in PMI.
    pub fn new(
        node: NodeId,
        job: Arc<JobContext>,
        pmi: bool,
        pmix: bool,
        terms: Terms,
    ) -> Result<Self, pmi::SetupError> {
        let server = pmi
            .then(|| {
                let appnums = job
                    .ranks
                    .ranks_on(node)
                    .map(|r| job.appnums.of(r))
                    .collect();
                let info = pmi::JobInfo {
                    kvsname: job.nspace.clone(),
                    appnums,
                    universe_size: Some(job.universe_size),
                    attributes: Vec::new(),
                };
                pmi::Server::new(info, &job.ranks, node)
            })
            .transpose()?;
        let mut modex = ModexEngine::new(node, terms.timeout().map(|timeout| timeout.after));
        let local = job.ranks.ranks_on(node).collect();
        let added = ModexInput::NspaceAdded {
            nspace: job.nspace.clone(),
            local,
        };
        modex.handle(added, Moment::default(), &mut Vec::new());
        let local_size = job.ranks.local_size(node) as usize;
        Ok(Self {
            node,
            pmi: server,
            fences: FenceEngine::new(node, terms.shape, fence::Limits::default()),
            world: fences::world(&job.nspace, &job.ranks, node),
            terms,
            heard: vec![None; local_size],
            modex,
            store: StoreEngine::new(node, HEAD, job.ranks.nodes()),
            groups: Groups::new(node, job.ranks.nodes()),
            voucher: None,
            link: HostLink::new(),
            host: HostLife::new(pmix),
            pmix: vec![PmixState::default(); local_size],
            modex_requests: Vec::new(),
            job,
        })
    }

    /// Takes one event and appends what has to be done.
    pub fn handle(&mut self, event: Event<'_>, now: Moment, actions: &mut Vec<Action>) {
        match event {
            Event::PmiReceived { rank, bytes } => {
                self.heard[rank.index()] = Some(now);
                let mut effects = Vec::new();
                if let Some(pmi) = &mut self.pmi {
                    pmi.receive(rank, bytes, &mut effects);
                }
                self.pmi_effects(effects, now, actions);
            }
            Event::RankEnded { rank, end } => self.rank_ended(rank, end, now, actions),
            Event::ControlReceived(bytes) => {
                let events = self.link.on_control_bytes(bytes);
                self.host_said(events, now, actions);
            }
            Event::UpcallReceived(bytes) => {
                let events = self.link.on_upcall_bytes(bytes);
                self.host_said(events, now, actions);
            }
            Event::HostClosed => self.host_closed(now),
            Event::HostEnded { how, in_order } => self.host_ended(how, in_order, now, actions),
            Event::Peer { from, message } => self.peer_message(from, message, now, actions),
            Event::NodesLost { nodes, reason } => self.nodes_lost(nodes, &reason, now, actions),
            Event::JobEnded => self.job_ended(now, actions),
            Event::Tick => {
                self.fence(FenceInput::Tick, now, actions);
                self.modex(ModexInput::Tick, now, actions);
                self.store_tick(now, actions);
                self.groups(actions, |engine, out| engine.tick(now, out));
                self.host_tick(now, actions);
            }
        }
    }

    /// When [`Event::Tick`] is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        [
            self.fences.next_deadline(),
            self.modex.next_deadline(),
            self.store.next_deadline(),
            self.groups.engine.next_deadline(),
            self.host.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// What a rank has done with its process-management interfaces.
    pub fn pmi_state(&self, rank: LocalRank) -> PmiState {
        let pmix = self.pmix[rank.index()];
        let pmi = self.pmi.as_ref().map(|server| server.state(rank));
        let last = match (pmi.filter(|state| state.contacted()), pmix) {
            (Some(state), _) => format!("{}: {state}", state.dialect()),
            (None, PmixState::Connected | PmixState::Died) => "PMIx: connected".to_owned(),
            (None, PmixState::Finalized) => "PMIx: finalized".to_owned(),
            (None, PmixState::Absent | PmixState::Stayed) => "never contacted PMI".to_owned(),
        };
        PmiState {
            contacted: !matches!(pmix, PmixState::Absent | PmixState::Stayed)
                || pmi.is_some_and(|state| state.contacted()),
            active: pmix == PmixState::Connected || pmi.is_some_and(|state| state.in_session()),
            last,
        }
    }

    /// The form in which a rank speaks PMI, once it has said something.
    pub fn pmi_dialect(&self, rank: LocalRank) -> Option<Dialect> {
        let state = self.pmi.as_ref()?.state(rank);
        state.contacted().then(|| state.dialect())
    }

    /// Whether some rank of this node is between init and finalize.
    pub fn any_active(&self) -> bool {
        let mut local = (0..self.job.ranks.local_size(self.node)).map(LocalRank);
        self.pmix.contains(&PmixState::Connected)
            || self
                .pmi
                .as_ref()
                .is_some_and(|pmi| local.any(|rank| pmi.state(rank).in_session()))
    }

    /// Whether some rank of this node waits for what it gets only with the help of this rank of the
    /// job, whose process has ended: as in a PMI barrier, or a PMIx fence between nodes.
    pub fn waits_for(&self, rank: Rank) -> bool {
        let proc = proc::Proc::new(self.job.nspace.clone(), rank);
        self.pmi.as_ref().is_some_and(|pmi| pmi.waits_for(rank)) || self.fences.waits_for(&proc)
    }

    /// How often libpmix asked for something, and how many bytes that were.
    pub fn upcalls(&self, kind: UpcallKind) -> UpcallCount {
        self.link.count(kind)
    }

    fn rank(&self, local: LocalRank) -> Rank {
        self.job
            .ranks
            .rank_at(self.node, local)
            .expect("the driver uses local ranks of the map")
    }

    fn local(&self, rank: Rank) -> Option<LocalRank> {
        (self.job.ranks.node_of(rank)? == self.node).then(|| self.job.ranks.local_rank(rank))?
    }

    fn rank_ended(
        &mut self,
        local: LocalRank,
        end: RankEnd,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let rank = self.rank(local);
        let pmix = &mut self.pmix[local.index()];
        let died = *pmix == PmixState::Connected;
        *pmix = match *pmix {
            PmixState::Absent => PmixState::Stayed,
            PmixState::Connected => PmixState::Died,
            other => other,
        };
        let mut effects = Vec::new();
        if let Some(pmi) = &mut self.pmi {
            pmi.closed(local, &mut effects);
        }
        self.pmi_effects(effects, now, actions);
        self.store_rank_ended(rank, now, actions);
        if self.host.is_offered() {
            let proc = proc::Proc::new(self.job.nspace.clone(), rank);
            self.groups(actions, |engine, out| engine.rank_ended(proc, out));
        }
        // What a rank published stays with the sidecar after it has left in order.
        if died {
            let proc = proc::Proc::new(self.job.nspace.clone(), rank);
            self.modex(ModexInput::RankGone { proc }, now, actions);
            self.tell_of_death(rank, end, now, actions);
        }
    }

    /// Whatever waits for these nodes is answered.
    fn nodes_lost(
        &mut self,
        nodes: &[NodeId],
        reason: &Arc<str>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        for &node in nodes {
            let reason = Arc::clone(reason);
            self.fence(
                FenceInput::PeerLost {
                    node,
                    reason: Arc::clone(&reason),
                },
                now,
                actions,
            );
            let lost = ModexInput::PeerLost {
                node,
                reason: Arc::clone(&reason),
            };
            self.modex(lost, now, actions);
            self.groups(actions, |engine, out| engine.node_lost(node, out));
            self.store_node_lost(node, now, actions);
        }
    }

    fn job_ended(&mut self, now: Moment, actions: &mut Vec<Action>) {
        self.fence(FenceInput::Teardown, now, actions);
        self.modex(ModexInput::Teardown, now, actions);
        self.store_tear_down(now, actions);
        self.groups(actions, GroupEngine::tear_down);
        self.stop_host(now, actions);
    }

    fn peer_message(
        &mut self,
        from: NodeId,
        message: PeerMessage,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        match message {
            // Nobody is told of a fence who is not there.
            PeerMessage::Fence(message)
                if message
                    .last_node()
                    .is_some_and(|last| last.0 >= self.job.ranks.nodes()) => {}
            PeerMessage::Fence(message) => {
                self.fence(FenceInput::Message { from, message }, now, actions);
            }
            PeerMessage::Modex(message) => {
                self.modex(ModexInput::Message { from, message }, now, actions);
            }
            PeerMessage::Store(message) => self.store_message(from, message, now, actions),
            PeerMessage::Group(message) => self.group_message(from, message, now, actions),
            PeerMessage::Notify(event) => self.notify(&event, now, actions),
        }
    }

    fn modex(&mut self, input: ModexInput<UpcallId>, now: Moment, actions: &mut Vec<Action>) {
        let mut outputs = Vec::new();
        self.modex.handle(input, now, &mut outputs);
        for output in outputs {
            match output {
                modex::Output::Send { to, message } => {
                    actions.push(Action::SendPeer {
                        to,
                        message: PeerMessage::Modex(message),
                    });
                }
                modex::Output::AskHost { proc } => self.ask_host(proc, now, actions),
                modex::Output::Complete { ticket, result } => {
                    self.modex_answer(ticket, result, actions);
                }
            }
        }
    }
}
