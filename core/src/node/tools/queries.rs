//! PMIx queries: answers from this node's state, and requests to other nodes.
//!
//! Rule: libpmix gives the server's own name, not the client's. So no answer depends on the client:
//! every client of a sidecar is of the launch's user, since the sidecar runs as that user and lets
//! no other user connect (see `pmix_states-host/src/peers.rs`). Source: `pmix_server.h`, `query`.
//! Rule: a client of libpmix 5 drops the answers that come with any status but success and
//! `PMIX_ERR_PARTIAL_SUCCESS`; one of 4.2 keeps them with success alone. Source: `query_cbfunc` in
//! `src/common/pmix_query.c` of 4.2.2 and 5.0.11.

mod answers;
mod locations;
mod psets;
mod scope;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use answers::{QueryFacts, RemoteQueryNeeds};
use scope::QueryScope;

use crate::job::clock::Moment;
use crate::job::ids::{JobIndex, NodeId, NodeRank, Nspace, Rank};
use crate::job::outcome::RankEnd;
use crate::node::context::NodeContext;
use crate::node::context::pmi_state::PmixState;
use crate::node::event::{NodeAction, PeerMessage};
use crate::node::node_service::NodeService;
use crate::node::tools::raised_events::raise_job_end;
use crate::pmix::sidecar_link::UpcallId;
use crate::pmix::sidecar_protocol::ForkEnv;
use crate::pmix::upcall::Query;
use crate::pmix::value::Text;
use crate::queries::{
    NodeQuery, NodeQueryReply, NodeQueryResult, ProcessState, QueriedProcess, QueryAction,
    QueryEngine, QueryId, QueryMessage,
};

/// Timeout for the replies of other nodes if the requester sets none. No rank has to act for a reply, so a node that
/// takes longer has a problem.
const LIMIT: Duration = Duration::from_secs(10);

/// Requester of a query.
pub(in crate::node) enum QueryRequester {
    Upcall {
        id: UpcallId,
        queries: Vec<Query>,
        /// Queried jobs, in the order of the query.
        jobs: Vec<Nspace>,
    },
    /// This node, to report how a job has ended.
    End(JobIndex),
}

/// One process of this node.
#[derive(Clone, Copy, Default)]
struct ProcessEntry {
    pid: Option<u32>,
    end: Option<(RankEnd, bool)>,
}

/// State of a node's queries.
pub(in crate::node) struct QueryState {
    engine: QueryEngine<QueryRequester>,
    /// By position on the node.
    entries: Vec<ProcessEntry>,
    /// Answers of this node that wait for data from the caller.
    looking: BTreeMap<QueryId, NodeQuery>,
    /// Address of the node's PMIx server; empty until a client of it was described.
    uri: Text,
}

impl QueryState {
    pub(in crate::node) fn new(node: NodeId) -> Self {
        Self {
            engine: QueryEngine::new(node),
            entries: Vec::new(),
            looking: BTreeMap::new(),
            uri: Text::default(),
        }
    }

    fn entry(&self, rank: NodeRank) -> ProcessEntry {
        self.entries.get(rank.index()).copied().unwrap_or_default()
    }

    fn entry_mut(&mut self, rank: NodeRank) -> &mut ProcessEntry {
        if self.entries.len() <= rank.index() {
            self.entries
                .resize_with(rank.index() + 1, ProcessEntry::default);
        }
        &mut self.entries[rank.index()]
    }

    /// Stores the server's address from the variables that the sidecar reports for a job's clients. Rule: every libpmix
    /// from 4.2 on gives them this variable, and with several versions the same value in each.
    pub(in crate::node) fn note_server(&mut self, env: &ForkEnv) {
        let all = env.clients.iter().flat_map(|(_, own)| own);
        let mut all = env.common.iter().chain(all);
        if let Some((_, uri)) = all.find(|(name, _)| *name == "PMIX_SERVER_URI4") {
            self.uri = uri.clone();
        }
    }

    pub(in crate::node) fn rank_started(&mut self, rank: NodeRank, pid: u32) {
        self.entry_mut(rank).pid = Some(pid);
    }

    /// Notes the end of a rank; `connected` if it was between init and finalize of PMIx.
    pub(in crate::node) fn note_end(&mut self, rank: NodeRank, end: RankEnd, connected: bool) {
        self.entry_mut(rank).end = Some((end, connected));
    }

    pub(in crate::node) fn query(
        &mut self,
        id: UpcallId,
        queries: Vec<Query>,
        cx: &mut NodeContext,
    ) {
        let mut wants = RemoteQueryNeeds::default();
        let mut limit = LIMIT;
        for query in &queries {
            if let Ok(scope) = QueryScope::from_query(cx, query) {
                limit = scope.timeout.unwrap_or(limit);
                for key in &query.keys {
                    wants.add(key, &scope, cx);
                }
            }
        }
        let jobs: Vec<Nspace> = wants.jobs.into_iter().collect();
        if wants.nodes.is_empty() {
            return self.answer_query(id, &queries, &jobs, &BTreeMap::new(), cx);
        }
        let pending = QueryRequester::Upcall {
            id,
            queries,
            jobs: jobs.clone(),
        };
        let question = NodeQuery {
            jobs,
            memory: wants.memory,
        };
        let deadline = cx.now + limit;
        self.with_engine(cx, |engine, out| {
            engine.start_query(&question, wants.nodes, pending, deadline, out);
        });
    }

    /// Calls the engine and executes its orders.
    pub(in crate::node) fn with_engine(
        &mut self,
        cx: &mut NodeContext,
        act: impl FnOnce(&mut QueryEngine<QueryRequester>, &mut Vec<QueryAction<QueryRequester>>),
    ) {
        let mut outputs = Vec::new();
        act(&mut self.engine, &mut outputs);
        for output in outputs {
            match output {
                QueryAction::Send { to, message } => cx.send(to, PeerMessage::Query(message)),
                QueryAction::Look { query, question } => {
                    let jobs = question.jobs.iter();
                    let jobs = jobs.filter_map(|nspace| cx.find_job(nspace.as_str()));
                    let jobs = jobs.map(|(job, _)| job).collect();
                    self.looking.insert(query, question);
                    cx.order(NodeAction::AwaitStarts { query, jobs });
                }
                QueryAction::Complete {
                    ticket,
                    results_by_node,
                } => match ticket {
                    QueryRequester::Upcall { id, queries, jobs } => {
                        self.answer_query(id, &queries, &jobs, &results_by_node, cx);
                    }
                    QueryRequester::End(job) => raise_job_end(job, &results_by_node, cx),
                },
            }
        }
    }

    pub(in crate::node) fn peer_message(
        &mut self,
        from: NodeId,
        message: QueryMessage,
        cx: &mut NodeContext,
    ) {
        self.with_engine(cx, |engine, out| engine.message(from, message, out));
    }

    /// Answers a query about this node's processes, at once unless their memory must be measured.
    pub(in crate::node) fn starts_known(&mut self, query: QueryId, cx: &mut NodeContext) {
        let Some(question) = self.looking.get(&query) else {
            return;
        };
        match question.memory {
            true => {
                let pids = self.live_pids(question, cx).collect();
                cx.order(NodeAction::MeasureMemory { query, pids });
            }
            false => self.on_memory_measured(query, None, &BTreeMap::new(), cx),
        }
    }

    /// Handles the measured memory, if any was requested.
    pub(in crate::node) fn on_memory_measured(
        &mut self,
        query: QueryId,
        server: Option<u64>,
        processes: &BTreeMap<u32, u64>,
        cx: &mut NodeContext,
    ) {
        let Some(question) = self.looking.remove(&query) else {
            return;
        };
        let part = self.part(&question, server, processes, cx);
        self.with_engine(cx, |engine, out| engine.on_inspected(query, part, out));
    }

    fn live_pids(&self, question: &NodeQuery, cx: &NodeContext) -> impl Iterator<Item = u32> {
        let jobs = question.jobs.iter();
        let jobs = jobs.filter_map(|nspace| cx.find_job(nspace.as_str()));
        let entries = jobs.flat_map(|(job, _)| self.entries_of(job, cx));
        entries.filter_map(|(_, _, entry)| entry.pid.filter(|_| entry.end.is_none()))
    }

    /// Returns the ranks of a job on this node, with their node ranks.
    fn entries_of(
        &self,
        job: JobIndex,
        cx: &NodeContext,
    ) -> impl Iterator<Item = (Rank, NodeRank, ProcessEntry)> {
        let ranks = cx.job(job).process_map.ranks_on(cx.node);
        ranks.filter_map(move |rank| {
            let at = cx.jobs.node_rank(cx.jobs.global(job, rank))?;
            Some((rank, at, self.entry(at)))
        })
    }

    fn part(
        &self,
        question: &NodeQuery,
        server: Option<u64>,
        memory: &BTreeMap<u32, u64>,
        cx: &NodeContext,
    ) -> NodeQueryReply {
        let of_job = |nspace: &Nspace| {
            let Some((job, _)) = cx.find_job(nspace.as_str()) else {
                return Vec::new();
            };
            let entries = self.entries_of(job, cx);
            entries
                .map(|entry| self.describe_process(job, entry, memory, cx))
                .collect()
        };
        NodeQueryReply {
            jobs: question.jobs.iter().map(of_job).collect(),
            server,
            uri: self.uri.as_bytes().to_vec(),
        }
    }

    fn describe_process(
        &self,
        job: JobIndex,
        (rank, at, ProcessEntry { pid, end }): (Rank, NodeRank, ProcessEntry),
        memory: &BTreeMap<u32, u64>,
        cx: &NodeContext,
    ) -> QueriedProcess {
        let connected = cx.pmix_states[at.index()] == PmixState::Connected;
        let life = match (end, pid) {
            (Some((end, connected)), _) => ProcessState::Ended { end, connected },
            (None, None) => ProcessState::Planned,
            (None, Some(_)) if connected => ProcessState::Connected,
            (None, Some(_)) => ProcessState::Running,
        };
        let app = cx.job(job).app_map.appnum_of(rank);
        let facts = cx.facts.get(&job);
        let executable = facts.and_then(|facts| facts.executable(app));
        QueriedProcess {
            rank,
            pid,
            executable: executable.unwrap_or_default(),
            life,
            memory: pid.and_then(|pid| memory.get(&pid).copied()),
        }
    }

    fn answer_query(
        &mut self,
        id: UpcallId,
        queries: &[Query],
        jobs: &[Nspace],
        replies: &BTreeMap<NodeId, NodeQueryResult>,
        cx: &mut NodeContext,
    ) {
        let facts = QueryFacts { cx, jobs, replies };
        let answer = facts.answer(queries);
        cx.answer(id, &answer);
    }

    /// Queries the end of a spawned job that has ended on all nodes. Only the lowest living node of the job does this,
    /// and notifies the others.
    pub(in crate::node) fn query_job_end(&mut self, job: JobIndex, cx: &mut NodeContext) {
        let now = cx.now;
        if !cx.sidecar.is_offered() {
            return;
        }
        let nodes = cx.job(job).nodes_with_ranks();
        if nodes.iter().find(|node| !cx.lost_nodes.contains(*node)) != Some(&cx.node) {
            return;
        }
        let question = NodeQuery {
            jobs: vec![cx.job(job).nspace.clone()],
            memory: false,
        };
        self.with_engine(cx, |engine, out| {
            engine.start_query(&question, nodes, QueryRequester::End(job), now + LIMIT, out);
        });
    }
}

impl NodeService for QueryState {
    fn next_deadline(&self) -> Option<Moment> {
        self.engine.next_deadline()
    }

    fn tick(&mut self, cx: &mut NodeContext) {
        let now = cx.now;
        self.with_engine(cx, |engine, out| engine.tick(now, out));
    }

    fn node_lost(&mut self, node: NodeId, _: &Arc<str>, cx: &mut NodeContext) {
        self.with_engine(cx, |engine, out| engine.node_lost(node, out));
    }

    fn tear_down(&mut self, cx: &mut NodeContext) {
        self.with_engine(cx, QueryEngine::tear_down);
    }
}
