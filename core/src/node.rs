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
mod dispatch;
mod epochs;
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
mod modex;
pub(crate) mod names;
mod node_context;
mod output;
mod pmi_state;
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
mod waits;

use std::collections::BTreeSet;
use std::sync::Arc;

use allocations::Allocations;
use collectives::CollectiveState;
use credentials::Credentials;
pub use credentials::Voucher;
use demands::Demands;
use directed::Direction;
pub use epochs::EpochMessage;
use epochs::Epochs;
pub use facts::Facts;
use fences::Fences;
pub use fences::Terms;
use groups::Groups;
pub use inputs::InputMessage;
use inputs::Inputs;
use jobs::JobMember;
pub use keys::KeyMessage;
use keys::Keys;
use modex::DirectModex;
use output::Outputs;
pub use output::{CachedOutput, OutputMessage};
use pmi_state::PmixState;
use queries::Queries;
use serde::{Deserialize, Serialize};
pub use waits::FenceWait;

use crate::direct_modex::{ModexEngine, ModexInput};
use crate::fence::{self, FenceEngine};
use crate::job::appnums::Appnums;
use crate::job::clock::Moment;
use crate::job::debug::Debugged;
use crate::job::ids::{GlobalRank, JobNumber, NodeId, NodeRank, Nspace, UserId};
use crate::job::outcome::RankEnd;
use crate::job::proc;
use crate::job::pset::ProcessSet;
use crate::job::rank_placement::RankMap;
use crate::job::roster::Placed;
use crate::job::spawn::SpawnedByTool;
use crate::node::event::{Action, PeerMessage};
use crate::pmi::server::{self as pmi};
use crate::pmix::sidecar::UpcallCount;
use crate::pmix::upcall::UpcallKind;
use crate::pmix::value::Channels;
use names::Names;
use node_context::NodeContext;
use spawns::Spawns;
use stopped::Stopped;
use tools::EndNotices;

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

impl JobContext {
    /// The nodes that host processes of the job.
    pub(crate) fn hosting(&self) -> BTreeSet<NodeId> {
        let nodes = self.ranks.node_ids();
        nodes
            .filter(|node| self.ranks.local_size(*node) > 0)
            .collect()
    }
}

impl Placed for Arc<JobContext> {
    fn ranks(&self) -> &RankMap {
        &self.ranks
    }
}

/// One node of one launch.
pub struct NodeCore {
    cx: NodeContext,
    fences: Fences,
    modex: DirectModex,
    collectives: CollectiveState,
    names: Names,
    groups: Groups,
    queries: Queries,
    spawns: Spawns,
    allocations: Allocations,
    /// What PMI clients of all jobs can ask for here.
    attributes: Vec<(&'static str, Vec<u8>)>,
    credentials: Credentials,
    outputs: Outputs,
    end_notices: EndNotices,
    direction: Direction,
    stopped: Stopped,
    inputs: Inputs,
    keys: Keys,
    epochs: Epochs,
    demands: Demands,
    /// Requests to register spawned jobs.
    registering: Vec<(crate::pmix::sidecar::RequestId, JobNumber)>,
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
        Ok(Self {
            cx: NodeContext::new(node, terms, pmix, member),
            fences: Fences::new(
                match terms.survives {
                    true => fences.surviving(),
                    false => fences,
                }
                .observed(terms.observed),
            ),
            modex: DirectModex::new(modex),
            names: Names::new(node, job.ranks.nodes()),
            groups: Groups::new(node, job.ranks.nodes()),
            queries: Queries::new(node),
            spawns: Spawns::default(),
            allocations: Allocations::default(),
            collectives: CollectiveState::default(),
            attributes: Vec::new(),
            credentials: Credentials::default(),
            outputs: Outputs::default(),
            end_notices: EndNotices::default(),
            direction: Direction::default(),
            stopped: Stopped::default(),
            inputs: Inputs::default(),
            keys: Keys::default(),
            epochs: Epochs::default(),
            demands: Demands::default(),
            registering: Vec::new(),
        })
    }

    /// Returns the node with a voucher for the credentials of its processes.
    #[must_use]
    pub fn vouching(mut self, voucher: Option<Voucher>) -> Self {
        self.credentials = Credentials(voucher);
        self
    }

    /// Whether ranks of this node wait in PMIx for a debugger.
    pub fn holds_ranks(&self) -> bool {
        self.stopped.holds_ranks(&self.cx)
    }

    /// Lets ranks go on that wait in PMIx for a debugger.
    pub fn let_go(&mut self) {
        self.stopped.let_go(&mut self.cx);
    }

    /// Where answers to queries about a job come from that no message carries.
    pub fn add_facts(&mut self, job: JobNumber, facts: Arc<dyn Facts>) {
        self.cx.facts.insert(job, facts);
    }

    /// The jobs of the launch that have not ended, in the order of their start.
    pub fn running_jobs(&self) -> impl Iterator<Item = (JobNumber, &Arc<JobContext>)> {
        self.cx.running_jobs()
    }

    /// Whether this stream of a local process is not for the launcher: a tool gets it.
    pub fn claims_output(&self, at: NodeRank, channel: Channels) -> bool {
        self.outputs.claims(at, channel)
    }

    /// Whether another node gets output from this one.
    pub fn has_readers(&self) -> bool {
        self.outputs.has_readers()
    }

    /// Takes the names of the launch's nodes, for other launches and for clients of PMI.
    pub fn name_nodes(&mut self, names: &[String]) {
        self.collectives.name_nodes(names, &mut self.cx);
    }

    /// How often libpmix asked for something, and how many bytes that were.
    pub fn upcalls(&self, kind: UpcallKind) -> UpcallCount {
        self.cx.link.count(kind)
    }

    fn rank_ended(&mut self, at: NodeRank, end: RankEnd) {
        let process = self.cx.process(at);
        let was_active = self.pmi_state(at).active;
        self.cx.ended.insert(process);
        let pmix = &mut self.cx.pmix[at.index()];
        let died = *pmix == PmixState::Connected;
        *pmix = match *pmix {
            PmixState::Absent => PmixState::Stayed,
            PmixState::Connected => PmixState::Died,
            other => other,
        };
        self.queries.note_end(at, end, died);
        if let Some((job, local, pmi)) = self.cx.pmi_of(at) {
            let mut effects = Vec::new();
            pmi.closed(local, &mut effects);
            self.pmi_effects(job, effects);
        }
        self.names.rank_ended(process, &mut self.cx);
        self.settle();
        self.outputs.unsubscribe_ended(&mut self.cx);
        if self.cx.sidecar.is_offered() {
            let proc = self.cx.name_of(process);
            self.groups
                .with_engine(|engine, out| engine.rank_ended(proc, out), &mut self.cx);
        }
        // What a rank published stays with the sidecar after it has left in order.
        if died {
            let proc = self.cx.name_of(process);
            self.modex(ModexInput::RankGone { proc });
        }
        let failed = was_active || end != RankEnd::Code(0);
        if (died || failed && self.cx.terms.survives)
            && let Some(event) = self.cx.death(process, end)
        {
            self.cx.raise(Arc::new(event));
            self.settle();
        }
        if died {
            self.groups.raise_death(process, &mut self.cx);
        }
        if failed && self.cx.terms.survives {
            self.cx
                .order(Action::SendEveryPeer(PeerMessage::Died(process)));
            self.died(process);
        }
    }
}
