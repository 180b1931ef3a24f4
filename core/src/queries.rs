//! Queries to all nodes about their processes.
//!
//! One engine per node plays both roles. A query goes to each node that hosts processes of its scope, this one
//! included, and each replies once.
//!
//! ```text
//!  requester      requesting node                   another node
//!    │ ask ─────▶ gathering ── Request ───────────▶ Look ──▶ its core
//!    │               │ ◀──────────────────── Reply ─────────── inspected
//!    ◀─ Complete ── (gone), when all have replied, are lost, or the deadline has passed
//! ```
//!
//! - No state is kept between queries: a reply describes the moment when it was made.
//! - A lost node does not fail the query: the result marks the node as lost.
//! - Requests carry a serial number; a reply to a completed query is dropped.
//!
//! Left to others: the nodes of each job, and the state of processes.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::job::clock::Moment;
use crate::job::ids::{JobIndex, NodeId, Nspace, Rank};
use crate::job::octets;
use crate::job::outcome::RankEnd;

/// A query to a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeQuery {
    /// The jobs whose processes are queried.
    pub jobs: Vec<Nspace>,
    /// Whether the memory use of processes is requested too, which costs the node some work.
    pub memory: bool,
}

/// The answer of one node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeQueryReply {
    /// By job, in the order of the question: its processes there, ascending.
    pub jobs: Vec<Vec<QueriedProcess>>,
    /// Bytes of memory that the node's PMIx server uses, if requested and known.
    pub server: Option<u64>,
    /// Address of the node's PMIx server; empty without a server.
    #[serde(with = "octets")]
    pub uri: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueriedProcess {
    pub rank: Rank,
    /// Process id on its node; `None` if it was not started.
    pub pid: Option<u32>,
    /// Path of the executable; empty if unknown.
    #[serde(with = "octets")]
    pub executable: Vec<u8>,
    pub life: ProcessState,
    /// Bytes of memory that the process uses, if requested and it runs.
    pub memory: Option<u64>,
}

/// State of a process in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProcessState {
    Planned,
    Running,
    /// Connected to its PMIx server.
    Connected,
    Ended {
        end: RankEnd,
        /// Whether the process was connected to its PMIx server when it ended.
        connected: bool,
    },
}

impl ProcessState {
    /// Returns the severity of the state as the end of a process; 0 for a normal end.
    fn severity(self) -> u8 {
        match self {
            Self::Ended { end, connected } => match end {
                RankEnd::Code(0) if !connected => 0,
                RankEnd::Code(0) => 1,
                RankEnd::Code(_) => 2,
                RankEnd::Signal(_) => 4,
            },
            // The process was never started, or its end is unknown.
            Self::Planned | Self::Running | Self::Connected => 3,
        }
    }
}

/// End of a job: the worst end of its processes, with its rank if known; `None` if all ended normally.
pub type JobEndStatus = Option<(Option<Rank>, ProcessState)>;

/// Returns the worst of these ends; of equally bad ones, the first.
pub fn worst(lives: impl IntoIterator<Item = (Option<Rank>, ProcessState)>) -> JobEndStatus {
    let bad = lives.into_iter().filter(|(_, life)| life.severity() > 0);
    bad.reduce(
        |worst, other| match other.1.severity() > worst.1.severity() {
            true => other,
            false => worst,
        },
    )
}

/// The end of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobEnd {
    pub job: JobIndex,
    pub worst: JobEndStatus,
}

/// Result of a query at one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeQueryResult {
    Part(NodeQueryReply),
    Lost,
    /// The node did not reply in time.
    Nothing,
}

/// The requester, and the number of its query.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct QueryId {
    pub requester: NodeId,
    /// Chosen by it, rising.
    pub serial: u64,
}

/// A message between the engines of two nodes. Sender and receiver are named by the transport.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum QueryMessage {
    /// Say this of your processes.
    Request {
        /// Chosen by the asking node, rising.
        serial: u64,
        question: NodeQuery,
    },
    /// To the asking node.
    Reply { serial: u64, part: NodeQueryReply },
}

/// Output of the engine: an action for its driver.
#[derive(PartialEq, Eq, Debug)]
pub enum QueryAction<T> {
    /// Deliver a message; `to` is never this node.
    Send { to: NodeId, message: QueryMessage },
    /// Say this of the processes of this node, with [`QueryEngine::on_inspected`].
    Look {
        /// Number for the reply.
        query: QueryId,
        question: NodeQuery,
    },
    /// Answer a local asker; happens once per ticket.
    Complete {
        ticket: T,
        /// The answer of each queried node.
        results_by_node: BTreeMap<NodeId, NodeQueryResult>,
    },
}

/// A question under way: at least one node has not answered.
struct PendingQuery<T> {
    ticket: T,
    deadline: Moment,
    awaited: BTreeSet<NodeId>,
    results_by_node: BTreeMap<NodeId, NodeQueryResult>,
}

/// The questions of one node. See the module.
pub struct QueryEngine<T> {
    node: NodeId,
    next_serial: u64,
    gatherings: BTreeMap<u64, PendingQuery<T>>,
    lost_nodes: BTreeSet<NodeId>,
    torn_down: bool,
}

impl<T> QueryEngine<T> {
    /// Creates an engine for `node`, without any query.
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            next_serial: 0,
            gatherings: BTreeMap::new(),
            lost_nodes: BTreeSet::new(),
            torn_down: false,
        }
    }

    /// Starts a query of a local process about the processes on these nodes.
    pub fn start_query(
        &mut self,
        question: &NodeQuery,
        nodes: impl IntoIterator<Item = NodeId>,
        ticket: T,
        deadline: Moment,
        out: &mut Vec<QueryAction<T>>,
    ) {
        let serial = self.next_serial;
        self.next_serial += 1;
        let mut gathering = PendingQuery {
            ticket,
            deadline,
            awaited: BTreeSet::new(),
            results_by_node: BTreeMap::new(),
        };
        for node in nodes {
            let known = match self.torn_down {
                true => Some(NodeQueryResult::Nothing),
                false => self
                    .lost_nodes
                    .contains(&node)
                    .then_some(NodeQueryResult::Lost),
            };
            if let Some(known) = known {
                gathering.results_by_node.insert(node, known);
                continue;
            }
            if !gathering.awaited.insert(node) {
                continue;
            }
            let question = question.clone();
            out.push(if node == self.node {
                let query = QueryId {
                    requester: node,
                    serial,
                };
                QueryAction::Look { query, question }
            } else {
                let message = QueryMessage::Request { serial, question };
                QueryAction::Send { to: node, message }
            });
        }
        self.gatherings.insert(serial, gathering);
        self.complete_queries(|query| query.awaited.is_empty(), out);
    }

    /// Handles the result of a [`QueryAction::Look`].
    pub fn on_inspected(
        &mut self,
        query: QueryId,
        part: NodeQueryReply,
        out: &mut Vec<QueryAction<T>>,
    ) {
        let (by, serial) = (query.requester, query.serial);
        if by == self.node {
            self.on_result(by, serial, NodeQueryResult::Part(part), out);
        } else if !self.lost_nodes.contains(&by) && !self.torn_down {
            let message = QueryMessage::Reply { serial, part };
            out.push(QueryAction::Send { to: by, message });
        }
    }

    /// Handles a message of the engine of another node.
    pub fn message(&mut self, from: NodeId, message: QueryMessage, out: &mut Vec<QueryAction<T>>) {
        if from == self.node || self.torn_down {
            return;
        }
        match message {
            QueryMessage::Request { serial, question } => {
                let query = QueryId {
                    requester: from,
                    serial,
                };
                out.push(QueryAction::Look { query, question });
            }
            QueryMessage::Reply { serial, part } => {
                self.on_result(from, serial, NodeQueryResult::Part(part), out);
            }
        }
    }

    /// Handles the loss of a node.
    pub fn node_lost(&mut self, node: NodeId, out: &mut Vec<QueryAction<T>>) {
        self.lost_nodes.insert(node);
        let serials: Vec<u64> = self.gatherings.keys().copied().collect();
        for serial in serials {
            self.on_result(node, serial, NodeQueryResult::Lost, out);
        }
    }

    /// Completes the queries whose deadline has passed.
    pub fn tick(&mut self, now: Moment, out: &mut Vec<QueryAction<T>>) {
        self.complete_queries(|query| now >= query.deadline, out);
    }

    /// Returns the time at which the next [`QueryEngine::tick`] is due; `None` without a pending query.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.gatherings.values().map(|one| one.deadline).min()
    }

    /// Completes the pending queries with the replies so far, at the end of the launch.
    pub fn tear_down(&mut self, out: &mut Vec<QueryAction<T>>) {
        self.torn_down = true;
        self.complete_queries(|_| true, out);
    }

    /// Completes queries; the result of a node that has not replied is [`NodeQueryResult::Nothing`].
    fn complete_queries(
        &mut self,
        is_over: impl Fn(&PendingQuery<T>) -> bool,
        out: &mut Vec<QueryAction<T>>,
    ) {
        for (_, mut query) in self.gatherings.extract_if(.., |_, query| is_over(query)) {
            let silent = query.awaited.into_iter();
            query
                .results_by_node
                .extend(silent.map(|node| (node, NodeQueryResult::Nothing)));
            out.push(QueryAction::Complete {
                ticket: query.ticket,
                results_by_node: query.results_by_node,
            });
        }
    }

    fn on_result(
        &mut self,
        from: NodeId,
        serial: u64,
        result: NodeQueryResult,
        out: &mut Vec<QueryAction<T>>,
    ) {
        if let Some(gathering) = self.gatherings.get_mut(&serial)
            && gathering.awaited.remove(&from)
        {
            gathering.results_by_node.insert(from, result);
            self.complete_queries(|query| query.awaited.is_empty(), out);
        }
    }
}
