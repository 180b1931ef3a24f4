//! Tracks the nodes of a launch for its launcher: readiness, loss, output credit. No I/O; the time is an argument.
//!
//! ```text
//!         every node has answered      last node over, or given up
//! opening ───────────────────▶ decided ──────────────────────────▶ over
//!     └─ some cannot take part: refused
//! ```
//! - The sets in [`awaited_reports`] have the nodes that must still report: no report causes a walk over all nodes.
//! - Before the launch is decided, the loss of a node is its refusal; afterwards it fails the job. A node that joins
//!   later is part of the launch only once it is ready.
//! - Each node is given up at most once, and each of its ranks reported at most once.
//!
//! Left to others: links, the contents of the messages, and the choice of the first of several failures
//! ([`first_failure`](crate::supervisor::first_failure)).

mod awaited_reports;
mod node_state;
#[cfg(test)]
mod tests;
mod tracker_node_loss;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::awaited_reports::AwaitedReports;
use self::node_state::NodeState;
use crate::job::ids::{JobIndex, NodeId};
use crate::job::job_table::{HasProcessMap, JobTable, KnownRank};
use crate::record::Stream;

/// Time for the nodes to end a job whose ranks have all ended, in addition to the grace time.
const END_LIMIT: Duration = Duration::from_secs(15);

/// Time for a node to report the ends of killed ranks. Its step may be stopped, or a rank may hang in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Reason for which a node cannot take part in a launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeRefusal {
    /// The exit code of a run that ends by it.
    pub code: u8,
    /// One line with the remedy, without a prefix.
    pub message: String,
}

/// Output of the tracker for one event, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TrackerAction {
    /// Every node takes part: ranks may be started.
    Ready,
    /// Refusals of the launch by some nodes.
    Refused(Vec<(NodeId, NodeRefusal)>),
    /// The ranks of a job have been started everywhere.
    AllStarted(JobIndex),
    /// A node that was to join has done so, or cannot.
    Joined(NodeId, Option<NodeRefusal>),
    /// A node that was asked to leave has left.
    Left(NodeId),
    /// The job has failed by the loss of a host. Reports of that host were handled before.
    HostFailed(NodeId, String),
    /// A rank was lost before its end; no report about it will follow.
    Gone(KnownRank),
    /// A node did not do this in time, and is given up.
    Late(NodeId, &'static str),
    /// Notify the other nodes of lost nodes, and of the reason.
    NodesLost(Vec<NodeId>, String),
    /// A node may send this number of further bytes of a stream.
    Credit(NodeId, Stream, u32),
    /// Nothing of the launch is left anywhere.
    Over,
}

/// Stage in the life of a rank, as reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RankStage {
    /// To be started, or running.
    Alive,
    /// Ended, and not judged yet by the supervisor.
    Ended,
    /// Judged or never started; no event about it will follow.
    Done,
}

/// Node of a launch. Only its [`NodeTracker`] creates one, so that a number from another process is looked up before it
/// can index anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownNode(NodeId);

impl KnownNode {
    /// Returns the node's id in its launch.
    pub fn id(self) -> NodeId {
        self.0
    }

    fn index(self) -> usize {
        self.0.index()
    }
}

/// State of each node and rank of a launch, and the reports that the launcher still expects.
#[derive(Debug)]
pub struct NodeTracker {
    nodes: Vec<NodeState>,
    ranks: Vec<RankStage>,
    /// Nodes that must still report, by kind of report.
    open: AwaitedReports,
    /// Bytes of one stream that a node may send before it gets more credit.
    window: u32,
    /// Streams that are paused.
    paused: [bool; 2],
    /// Ranks were started, or are not to be.
    ranks_decided: bool,
    ending: bool,
    /// Time at which nodes that have not ended are given up.
    end_at: Option<Duration>,
    /// Time at which nodes are given up that have not reported the ends of their killed ranks.
    killed_at: Option<Duration>,
    /// Agents of which there was no sign of life any more.
    silent: u32,
}

impl NodeTracker {
    /// Creates the tracker of a launch of one job of `ranks` ranks. No node has reported anything. Each may send
    /// `window` bytes of a stream.
    pub fn new(nodes: u32, ranks: u32, window: u32) -> Self {
        Self {
            nodes: vec![NodeState::default(); nodes as usize],
            ranks: vec![RankStage::Alive; ranks as usize],
            open: AwaitedReports::new(nodes),
            window,
            paused: [false; 2],
            ranks_decided: false,
            ending: false,
            end_at: None,
            killed_at: None,
            silent: 0,
        }
    }

    /// Changes the number of bytes of a stream that a node may send before it gets more credit, for a new number of
    /// nodes.
    pub fn set_window(&mut self, window: u32) {
        self.window = window;
    }

    /// Returns the number of nodes, lost ones included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Looks up a node of the launch.
    pub fn look_up(&self, node: NodeId) -> Option<KnownNode> {
        (node.index() < self.nodes.len()).then_some(KnownNode(node))
    }

    /// Whether there is no node, which no launch has.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Whether a node was requested to join and has not done so. It is not part of the launch yet.
    pub fn is_joining(&self, node: KnownNode) -> bool {
        self.nodes[node.index()].is_joining()
    }

    /// Whether a node cannot take part.
    pub fn is_refused(&self, node: KnownNode) -> bool {
        self.nodes[node.index()].refusal.is_some()
    }

    /// Whether no report of a node will follow.
    pub fn is_lost(&self, node: NodeId) -> bool {
        self.has_property(node, NodeState::is_lost)
    }

    /// Whether a node is ready or has refused.
    pub fn has_answered(&self, node: NodeId) -> bool {
        self.has_property(node, NodeState::has_answered)
    }

    /// Whether the job is being ended.
    pub fn is_ending(&self) -> bool {
        self.ending
    }

    /// Returns the time at which [`NodeTracker::tick`] is due.
    pub fn next_deadline(&self) -> Option<Duration> {
        [self.end_at, self.killed_at].into_iter().flatten().min()
    }

    /// Whether a node has reported that its ranks may be started.
    pub fn is_ready(&self, node: KnownNode) -> bool {
        self.nodes[node.index()].ready
    }

    /// Notes that a node's ranks may be started.
    pub fn ready(&mut self, node: KnownNode, out: &mut Vec<TrackerAction>) {
        let state = &mut self.nodes[node.index()];
        state.ready = true;
        if state.joins {
            return out.push(TrackerAction::Joined(node.id(), None));
        }
        self.open.answered(node.id());
        self.check_ready(out);
    }

    /// Notes that a node cannot take part.
    pub fn refused(&mut self, node: KnownNode, refusal: NodeRefusal, out: &mut Vec<TrackerAction>) {
        if self.nodes[node.index()].is_joining() {
            self.not_joined(node, refusal, out);
        } else {
            self.nodes[node.index()].refuse(refusal);
            self.open.gone(node.id());
        }
        self.check_ready(out);
    }

    /// Notes that a node has reported the start of all its ranks of a job.
    pub fn started(&mut self, node: KnownNode, job: JobIndex, out: &mut Vec<TrackerAction>) {
        self.open.started(job, node.id());
        self.check_started(out);
    }

    /// Notes that nothing of the launch is left on a node.
    pub fn node_over(&mut self, node: KnownNode, out: &mut Vec<TrackerAction>) {
        self.nodes[node.index()].has_ended = true;
        self.open.on_node_ended(node.id());
        self.check_over(out);
    }

    /// Notes the end of a rank's process.
    pub fn rank_ended(&mut self, rank: KnownRank) {
        self.ranks[rank.index()] = RankStage::Ended;
    }

    /// Marks a rank as done: its end was judged, or it was never started.
    pub fn rank_done(&mut self, rank: KnownRank) {
        self.ranks[rank.index()] = RankStage::Done;
    }

    /// Counts `bytes` bytes of a stream from a node.
    pub fn output(
        &mut self,
        node: KnownNode,
        stream: Stream,
        bytes: u32,
        out: &mut Vec<TrackerAction>,
    ) {
        self.nodes[node.index()]
            .uncredited_output
            .add(stream, bytes);
        self.grant_credit(node, stream, out);
    }

    /// Pauses a stream, or resumes it.
    pub fn pause(&mut self, stream: Stream, paused: bool, out: &mut Vec<TrackerAction>) {
        let before = std::mem::replace(&mut self.paused[stream as usize], paused);
        if before && !paused {
            for node in self.node_ids() {
                self.grant_credit(node, stream, out);
            }
        }
    }

    /// Notes that a node was sent a piece of standard input.
    pub fn fed(&mut self, node: NodeId) {
        if let Some(state) = self.nodes.get_mut(node.index()) {
            state.has_input = true;
        }
    }

    /// Notes that a node's ranks have the last piece of standard input; `open` if some of them still read.
    pub fn input_taken(&mut self, node: KnownNode, open: bool) {
        let state = &mut self.nodes[node.index()];
        state.has_input = false;
        state.input_closed |= !open;
    }

    /// Whether a node has not reported yet that it has the last piece of standard input.
    pub fn has_input(&self, node: NodeId) -> bool {
        self.has_property(node, |state| state.has_input)
    }

    /// Whether ranks of a node may read standard input.
    pub fn may_read_stdin(&self, node: NodeId) -> bool {
        self.has_property(node, |state| !state.is_lost() && !state.input_closed)
    }

    /// Adds a job that will be started; `ranks` is the new number of ranks.
    pub fn add_job(&mut self, job: JobIndex, ranks: u32) {
        // One that joins or leaves has no rank of a job that is started meanwhile.
        let there = |node: &NodeState| !node.is_lost() && !node.is_joining() && !node.leaves;
        let nodes = (0..).map(NodeId).zip(&self.nodes);
        let nodes = nodes.filter(|(_, node)| there(node)).map(|(node, _)| node);
        self.open.start(job, nodes);
        self.ranks.resize(ranks as usize, RankStage::Alive);
    }

    /// Adds nodes that were requested to join; `nodes` is the new number of nodes.
    pub fn add_nodes(&mut self, nodes: usize) {
        let first = self.nodes.len();
        let joining = NodeState {
            joins: true,
            ..NodeState::default()
        };
        self.nodes.resize(nodes, joining);
        self.open
            .join((first..nodes).map(|node| NodeId(node as u32)));
    }

    /// Handles a node that cannot join, or was lost before it had. Nothing of the launch depends on it.
    pub fn not_joined(
        &mut self,
        node: KnownNode,
        refusal: NodeRefusal,
        out: &mut Vec<TrackerAction>,
    ) {
        let state = &mut self.nodes[node.index()];
        if state.refusal.is_some() {
            return;
        }
        state.refuse(refusal.clone());
        self.open.gone(node.id());
        out.push(TrackerAction::Joined(node.id(), Some(refusal)));
        self.check_over(out);
    }

    /// Begins the departure of a node, if each of its ranks is done and it is part of the launch; returns whether it
    /// has begun. From then on its loss is no failure, and [`TrackerAction::Left`] follows.
    pub fn release(&mut self, node: NodeId, jobs: &JobTable<impl HasProcessMap>) -> bool {
        let is_done = |rank: KnownRank| self.ranks[rank.index()] == RankStage::Done;
        let is_idle = jobs.ranks_on_node(node).all(is_done);
        match self.nodes.get_mut(node.index()) {
            Some(state) if is_idle && state.ready && !state.is_lost() => {
                !std::mem::replace(&mut state.leaves, true)
            }
            _ => false,
        }
    }

    /// Whether a node was asked to leave: its reports about failures do not concern the launch.
    pub fn is_leaving(&self, node: KnownNode) -> bool {
        self.nodes[node.index()].leaves
    }

    /// Notes that the job is being ended; returns false if it was before.
    pub fn end(&mut self) -> bool {
        !std::mem::replace(&mut self.ending, true)
    }

    /// Notes that all ranks are killed.
    pub fn kill(&mut self, now: Duration) {
        if self.ending {
            self.killed_at.get_or_insert(now + KILL_LIMIT);
        }
    }

    /// Starts the end of the nodes after the end of all ranks, which may take the grace time. Nodes that have not joined
    /// are not waited for: their agents end what was started there when the launcher has disconnected.
    pub fn finish(&mut self, grace: Duration, now: Duration, out: &mut Vec<TrackerAction>) {
        for (node, state) in (0..).map(NodeId).zip(&self.nodes) {
            if state.is_joining() {
                self.open.gone(node);
            }
        }
        self.killed_at = None;
        self.end_at = Some(now + grace + END_LIMIT);
        self.check_over(out);
    }

    /// Whether there is such a node, and it has a property.
    fn has_property(&self, node: NodeId, property: impl FnOnce(&NodeState) -> bool) -> bool {
        self.nodes.get(node.index()).is_some_and(property)
    }

    /// Returns all nodes, those that joined included.
    fn node_ids(&self) -> impl Iterator<Item = KnownNode> + use<> {
        (0..self.nodes.len() as u32).map(NodeId).map(KnownNode)
    }

    /// Decides the launch once every node has answered: the ranks may be started or the job is refused.
    fn check_ready(&mut self, out: &mut Vec<TrackerAction>) {
        if self.ranks_decided || !self.open.ready.is_empty() {
            return;
        }
        self.ranks_decided = true;
        let nodes = self.node_ids().zip(&self.nodes);
        let refused = nodes.filter_map(|(node, state)| Some((node.id(), state.refusal.clone()?)));
        let refused: Vec<_> = refused.collect();
        out.push(match refused.is_empty() {
            true => TrackerAction::Ready,
            false => TrackerAction::Refused(refused),
        });
    }

    fn check_started(&mut self, out: &mut Vec<TrackerAction>) {
        let started = self.open.take_started().into_iter();
        out.extend(started.map(TrackerAction::AllStarted));
    }

    fn check_over(&mut self, out: &mut Vec<TrackerAction>) {
        if self.open.pending_ends.is_empty() {
            out.push(TrackerAction::Over);
        }
    }

    /// Gives a node credit for output of its that was taken.
    fn grant_credit(&mut self, node: KnownNode, stream: Stream, out: &mut Vec<TrackerAction>) {
        if self.paused[stream as usize] {
            return;
        }
        if let Some(bytes) = self.nodes[node.index()]
            .uncredited_output
            .take(stream, self.window)
        {
            out.push(TrackerAction::Credit(node.id(), stream, bytes));
        }
    }
}
