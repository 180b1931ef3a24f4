//! The state of one node of one launch: composes the protocol cores; no I/O.
//!
//! ```text
//! PMI sockets ──▶ pmi::server ──┐                      ┌──▶ fence, modex ◀──▶ other nodes
//! sidecar ──▶ pmix::host ──▶ upcalls (see `upcalls`) ──┘
//! ```
//! One task owns it, passes it [`Event`]s and executes the [`Action`]s.

mod allocations;
pub(crate) mod collectives;
mod context;
mod credentials;
mod deaths;
mod demands;
mod directed;
pub mod event;
mod events;
mod facts;
mod fences;
mod groups;
mod inputs;
mod jobs;
mod keys;
mod logs;
mod losses;
pub(crate) mod names;
mod output;
mod queries;
mod raised;
mod ranks;
#[cfg(test)]
mod served;
pub(crate) mod sidecar;
mod spawns;
mod stopped;
mod tools;
mod upcalls;

use std::collections::BTreeSet;
use std::sync::Arc;

use allocations::Allocations;
use collectives::{CollectiveState, ModexTicket};
pub use credentials::Voucher;
use directed::Direction;
pub use facts::Facts;
pub use fences::Terms;
use groups::Groups;
pub use inputs::InputMessage;
use inputs::Inputs;
use jobs::JobMember;
pub use keys::KeyMessage;
use keys::Keys;
use output::Outputs;
pub use output::{CachedOutput, OutputMessage};
use queries::Queries;
use serde::{Deserialize, Serialize};
use sidecar::SidecarLife;

use crate::direct_modex;
use crate::direct_modex::{ModexEngine, ModexInput};
use crate::fence::{self, FenceEngine, FenceInput, FenceResult};
use crate::job::appnums::Appnums;
use crate::job::clock::Moment;
use crate::job::debug::Debugged;
use crate::job::ids::{GlobalRank, JobNumber, LocalRank, NodeId, NodeRank, Nspace, UserId};
use crate::job::outcome::{PmiState, RankEnd};
use crate::job::proc;
use crate::job::pset::ProcessSet;
use crate::job::rank_placement::RankMap;
use crate::job::roster::{Placed, Roster};
use crate::job::spawn::SpawnedByTool;
use crate::names::engine::StoreEngine;
use crate::node::event::{Action, Event, PeerMessage, ToNode};
use crate::pmi::collective::Collective;
use crate::pmi::command::Dialect;
use crate::pmi::server::{self as pmi};
use crate::pmix::sidecar::{SidecarLink, UpcallCount, UpcallId};
use crate::pmix::upcall::UpcallKind;
use crate::pmix::value::Status;
use names::Asker;
use spawns::Spawns;
use stopped::Stopped;
use tools::Tools;

/// The node that stores published names and values.
pub const HEAD: NodeId = NodeId(0);

/// What all nodes of a job know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "context::Received")]
pub struct JobContext {
    pub nspace: Nspace,
    /// Placement of its ranks.
    pub ranks: RankMap,
    /// Application contexts of the ranks.
    pub appnums: Appnums,
    /// Slots the job could grow to.
    pub universe_size: u32,
    /// Whether it could grow beyond them, so that MPI has no universe size.
    pub unlimited: bool,
    /// For whom its ranks run.
    pub user: UserId,
    pub psets: Vec<ProcessSet>,
    /// The process that spawned it, if one did.
    pub parent: Option<proc::Proc>,
    /// The tool that spawned it, if one did.
    pub tool: Option<SpawnedByTool>,
    /// What debuggers have to do with it.
    pub debug: Debugged,
    /// Its first process among those of the launch.
    pub offset: GlobalRank,
    /// Pairs in its PMI key-value store from the beginning.
    pub preputs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Placed for Arc<JobContext> {
    fn ranks(&self) -> &RankMap {
        &self.ranks
    }
}

/// The waiters of a fence.
#[derive(Clone, PartialEq, Eq, Debug)]
enum FenceTicket {
    /// The PMI ranks of this node that are in a barrier or ring.
    Pmi(JobNumber, Collective),
    Pmix(UpcallId),
    /// The sidecar, for processes that become connected or are so no more.
    Connect(UpcallId),
    /// No waiter any more: the barrier was local to this node, and has ended.
    Released,
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

/// One node of one launch.
pub struct NodeCore {
    node: NodeId,
    jobs: Roster<JobMember>,
    terms: Terms,
    fences: FenceEngine<FenceTicket>,
    /// Fences that have failed the job, whose ranks are looked at before it ends.
    held_fences: Vec<(FenceTicket, FenceResult)>,
    modex: ModexEngine<ModexTicket>,
    collectives: CollectiveState,
    store: StoreEngine<Asker>,
    groups: Groups,
    queries: Queries,
    spawns: Spawns,
    allocations: Allocations,
    voucher: Option<Voucher>,
    outputs: Outputs,
    tools: Tools,
    direction: Direction,
    stopped: Stopped,
    inputs: Inputs,
    keys: Keys,
    link: SidecarLink,
    host: SidecarLife,
    /// By position on the node.
    pmix: Vec<PmixState>,
    /// When each process here was last heard of, by its own word.
    heard: Vec<Option<Moment>>,
    /// The sidecar's requests for local ranks' data that wait for a direct modex.
    modex_requests: Vec<(crate::pmix::sidecar::RequestId, proc::Proc)>,
    /// Aborts of all ranks, which are answered after all ranks have ended.
    aborts: Vec<UpcallId>,
    /// Requests to register spawned jobs.
    registering: Vec<(crate::pmix::sidecar::RequestId, JobNumber)>,
    /// Processes of this node that have ended.
    ended: BTreeSet<GlobalRank>,
}

impl NodeCore {
    /// A node of a launch of one job, whose ranks are offered PMI-1 and PMI-2 (`pmi`) or PMIx through a sidecar (`pmix`), or
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
        let member = JobMember::new(Arc::clone(&job), node, pmi, NodeRank(0), terms)?;
        let mut fences = FenceEngine::new(node, terms.shape, fence::Limits::default());
        fences.of_launch(job.ranks.nodes());
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
            jobs: Roster::new(member),
            fences: match terms.survives {
                true => fences.surviving(),
                false => fences,
            }
            .observed(terms.observed),
            held_fences: Vec::new(),
            terms,
            heard: vec![None; local_size],
            modex,
            store: StoreEngine::new(node, HEAD, job.ranks.nodes()),
            groups: Groups::new(node, job.ranks.nodes()),
            queries: Queries::new(node),
            spawns: Spawns::default(),
            allocations: Allocations::default(),
            collectives: CollectiveState::default(),
            voucher: None,
            outputs: Outputs::default(),
            tools: Tools::default(),
            direction: Direction::default(),
            stopped: Stopped::default(),
            inputs: Inputs::default(),
            keys: Keys::default(),
            link: SidecarLink::new(),
            host: SidecarLife::new(pmix),
            pmix: vec![PmixState::default(); local_size],
            modex_requests: Vec::new(),
            aborts: Vec::new(),
            registering: Vec::new(),
            ended: BTreeSet::new(),
        })
    }

    /// Handles one event and appends the resulting actions.
    pub fn handle(&mut self, event: Event<'_>, now: Moment, actions: &mut Vec<Action>) {
        match event {
            Event::PmiReceived { rank, bytes } => {
                self.heard[rank.index()] = Some(now);
                if let Some((job, local, pmi)) = self.pmi_of(rank) {
                    let mut effects = Vec::new();
                    pmi.receive(local, bytes, &mut effects);
                    self.pmi_effects(job, effects, now, actions);
                }
            }
            Event::RankStarted { rank, pid } => {
                self.rank_started(rank, pid);
                self.started_stopped(rank, now, actions);
            }
            Event::Fed { number, rank, fed } => self.fed((number, rank), fed, actions),
            Event::RankEnded { rank, end } => self.rank_ended(rank, end, now, actions),
            Event::Printed {
                rank,
                channel,
                bytes,
            } => self.output(rank, channel, bytes, now, actions),
            Event::ControlReceived(bytes) => {
                let events = self.link.on_control_bytes(bytes);
                self.sidecar_replied(events, now, actions);
            }
            Event::UpcallReceived(bytes) => {
                let events = self.link.on_upcall_bytes(bytes);
                self.sidecar_replied(events, now, actions);
            }
            Event::SidecarSeen(doing) => self.sidecar_inspected(doing, now, actions),
            Event::SidecarClosed => self.sidecar_closed(now),
            Event::SidecarEnded { how, in_order } => {
                self.sidecar_ended(how, in_order, now, actions)
            }
            Event::Peer { from, message } => self.peer_message(from, message, now, actions),
            Event::NodesLost { nodes, reason } => self.nodes_lost(nodes, &reason, now, actions),
            Event::StartsKnown(asked) => self.starts_known(asked, now, actions),
            Event::Weighed {
                asked,
                server,
                processes,
            } => self.weighed(asked, server, &processes, now, actions),
            Event::Told(told) => match told {
                ToNode::Rendezvous(message) => self.rendezvous_said(message, now, actions),
                ToNode::RendezvousLost => self.rendezvous_lost(now, actions),
                ToNode::Spawned { ticket, result } => self.spawned(ticket, &result, now, actions),
                ToNode::Allocated { ticket, result } => self.allocated(ticket, &result, actions),
                ToNode::Launched => self.launched(now, actions),
            },
            Event::JobOver(job) => self.job_over(job, now, actions),
            Event::JobsEnded(ends) => self.tell_tools_of_ends(ends, now, actions),
            Event::LaunchEnded => self.launch_ended(now, actions),
            Event::Tick => {
                self.fence(FenceInput::Tick, now, actions);
                self.modex(ModexInput::Tick, now, actions);
                self.store_tick(now, actions);
                self.groups(actions, |engine, out| engine.tick(now, out));
                self.collectives_tick(now, actions);
                self.ask_nodes(now, actions, |engine, out| engine.tick(now, out));
                self.tell_kept_ends(false, now, actions);
                self.sidecar_tick(now, actions);
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
            self.collectives.next_deadline(),
            self.queries.next_deadline(),
            self.host.next_deadline(),
            self.outputs.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// What a rank has done with its process-management interfaces.
    pub fn pmi_state(&self, rank: NodeRank) -> PmiState {
        let pmix = self.pmix[rank.index()];
        let pmi = self
            .pmi_seen(rank)
            .map(|(local, server)| server.state(local));
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
    pub fn pmi_dialect(&self, rank: NodeRank) -> Option<Dialect> {
        let (local, server) = self.pmi_seen(rank)?;
        let state = server.state(local);
        state.contacted().then(|| state.dialect())
    }

    /// Whether some rank of a job is between init and finalize on this node.
    pub fn any_active(&self, job: JobNumber) -> bool {
        let Some(member) = self.jobs.get(job) else {
            return false;
        };
        let here = member.context.ranks.local_size(self.node);
        (0..here).map(LocalRank).any(|local| {
            let pmi = member.pmi.as_ref();
            self.pmix[(member.first.0 + local.0) as usize] == PmixState::Connected
                || pmi.is_some_and(|pmi| pmi.state(local).in_session())
        })
    }

    /// Whether a rank of this node waits for this rank of the launch, whose process has ended: for
    /// instance in a PMI barrier, or a PMIx fence between nodes.
    pub fn waits_for(&self, process: GlobalRank) -> bool {
        let Some((job, rank)) = self.jobs.find(process) else {
            return false;
        };
        let pmi = self.jobs.get(job).and_then(|job| job.pmi.as_ref());
        pmi.is_some_and(|pmi| pmi.waits_for(rank)) || self.is_fenced_with(&self.name_of(process))
    }

    /// Whether a fence or connection of this node's processes needs this one.
    fn is_fenced_with(&self, proc: &proc::Proc) -> bool {
        self.fences.has_waiters() && self.fences.waits_for(proc)
    }

    /// How often libpmix asked for something, and how many bytes that were.
    pub fn upcalls(&self, kind: UpcallKind) -> UpcallCount {
        self.link.count(kind)
    }

    fn rank_ended(&mut self, at: NodeRank, end: RankEnd, now: Moment, actions: &mut Vec<Action>) {
        let process = self.process(at);
        let was_active = self.pmi_state(at).active;
        self.ended.insert(process);
        let pmix = &mut self.pmix[at.index()];
        let died = *pmix == PmixState::Connected;
        *pmix = match *pmix {
            PmixState::Absent => PmixState::Stayed,
            PmixState::Connected => PmixState::Died,
            other => other,
        };
        self.note_end(at, end, died);
        if let Some((job, local, pmi)) = self.pmi_of(at) {
            let mut effects = Vec::new();
            pmi.closed(local, &mut effects);
            self.pmi_effects(job, effects, now, actions);
        }
        self.store_rank_ended(process, now, actions);
        self.pull_ended(now, actions);
        if self.host.is_offered() {
            let proc = self.name_of(process);
            self.groups(actions, |engine, out| engine.rank_ended(proc, out));
        }
        // What a rank published stays with the sidecar after it has left in order.
        if died {
            let proc = self.name_of(process);
            self.modex(ModexInput::RankGone { proc }, now, actions);
        }
        let failed = was_active || end != RankEnd::Code(0);
        if died || failed && self.terms.survives {
            self.tell_of_death(process, end, now, actions);
        }
        if died {
            self.tell_groups_of_death(process, now, actions);
        }
        if failed && self.terms.survives {
            actions.push(Action::SendEveryPeer(PeerMessage::Died(process)));
            self.died(process, now, actions);
        }
    }

    fn peer_message(
        &mut self,
        from: NodeId,
        message: PeerMessage,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        match message {
            // Ranks that have ended get no answer to a fence.
            PeerMessage::Fence(message)
                if message
                    .last_node()
                    .is_some_and(|last| last.0 >= self.jobs.nodes()) => {}
            PeerMessage::Fence(message) => {
                self.fence(FenceInput::Message { from, message }, now, actions);
            }
            PeerMessage::Modex(message) => {
                self.modex(ModexInput::Message { from, message }, now, actions);
            }
            PeerMessage::Store(message) => self.store_message(from, message, now, actions),
            PeerMessage::Group(message) => self.group_message(from, message, now, actions),
            PeerMessage::Collective(message) => {
                self.collective_message(from, message, now, actions)
            }
            PeerMessage::Query(message) => self.query_message(from, message, now, actions),
            PeerMessage::Notify(event) if event.code == Status::READY_FOR_DEBUG => {
                self.node_stopped(from, &event, now, actions);
            }
            PeerMessage::Notify(event) => self.notify(&event, now, actions),
            PeerMessage::Died(process) => {
                if self.jobs.node_of(process) == Some(from) {
                    self.died(process, now, actions);
                }
            }
            PeerMessage::Output(message) => self.output_message(from, message, now, actions),
            PeerMessage::Key(message) => self.key_message(from, message, now, actions),
            PeerMessage::Input(message) => self.input_message(from, message, actions),
        }
    }

    fn modex(&mut self, input: ModexInput<ModexTicket>, now: Moment, actions: &mut Vec<Action>) {
        let mut outputs = Vec::new();
        self.modex.handle(input, now, &mut outputs);
        for output in outputs {
            match output {
                direct_modex::ModexOutput::Send { to, message } => {
                    actions.push(Action::SendPeer {
                        to,
                        message: PeerMessage::Modex(message),
                    });
                }
                direct_modex::ModexOutput::AskHost { proc } => self.ask_sidecar(proc, now, actions),
                direct_modex::ModexOutput::Complete { ticket, result } => match ticket {
                    ModexTicket::Pmix(id) => self.modex_answer(id, result, actions),
                    ModexTicket::Far { to, serial } => {
                        self.answer_far(to, serial, result, actions);
                    }
                },
            }
        }
    }
}
