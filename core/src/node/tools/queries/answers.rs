//! The values that answer a query, key by key.

use std::collections::{BTreeMap, BTreeSet};

use super::scope::QueryScope;
use crate::job::debug;
use crate::job::directive::supported_attributes;
use crate::job::ids::{AppNum, NodeId, Nspace, Rank};
use crate::job::outcome::RankEnd;
use crate::node::context::NodeContext;
use crate::node::context::job_context::JobContext;
use crate::node::context::node_job::NodeJob;
use crate::node::tools::raised_events::{end_of_job, status_of_end};
use crate::pmix::keys;
use crate::pmix::upcall::{Query, UpcallAnswer};
use crate::pmix::value::{Array, Info, PmixProc, ProcInfo, Status, Text, Value};
use crate::queries::{NodeQueryReply, NodeQueryResult, ProcessState, QueriedProcess};

/// QueriedProcess states. Source: `PMIX_PROC_STATE_*` in `pmix_common.h`.
mod state {
    pub(super) const UNDEF: u8 = 0;
    pub(super) const LAUNCH_UNDERWAY: u8 = 2;
    pub(super) const RUNNING: u8 = 5;
    pub(super) const CONNECTED: u8 = 6;
    pub(super) const TERMINATED: u8 = 20;
    pub(super) const ABORTED_BY_SIG: u8 = 54;
    pub(super) const TERM_WO_SYNC: u8 = 55;
    pub(super) const COMM_FAILED: u8 = 56;
    pub(super) const TERM_NON_ZERO: u8 = 62;
}

/// Bytes of a megabyte, as PMIx reports memory.
const MEGABYTE: f64 = 1_048_576.0;

const OF_JOB: &str = "pmix.nspace,pmix.jobid,pmix.procid";
const OF_RANKS: &str =
    "pmix.nspace,pmix.jobid,pmix.procid,pmix.rank,pmix.hname,pmix.nodeid,pmix.timeout";
const OF_MEMORY: &str = "pmix.nspace,pmix.jobid,pmix.procid,pmix.rank,pmix.hname,pmix.nodeid,\
                         pmix.timeout,pmix.qry.local,pmix.qry.avg,pmix.qry.minmax";

/// Supported query keys, each with its qualifiers.
pub(super) const KEYS: &[(&str, &str)] = &[
    (keys::QUERY_SUPPORTED_KEYS, ""),
    (keys::QUERY_NAMESPACES, ""),
    (keys::QUERY_NAMESPACE_INFO, OF_JOB),
    (keys::QUERY_JOB_STATUS, OF_JOB),
    (keys::QUERY_PROC_TABLE, OF_RANKS),
    (keys::QUERY_LOCAL_PROC_TABLE, OF_RANKS),
    (keys::QUERY_MEMORY_USAGE, OF_MEMORY),
    (keys::DAEMON_MEMORY, ""),
    (keys::CLIENT_AVG_MEMORY, OF_JOB),
    (keys::SERVER_URI, "pmix.hname,pmix.nodeid,pmix.timeout"),
    (keys::QUERY_RESOLVE_PEERS, OF_RANKS),
    (keys::QUERY_RESOLVE_NODE, OF_JOB),
    (keys::QUERY_SPAWN_SUPPORT, ""),
    (keys::QUERY_DEBUG_SUPPORT, ""),
    (keys::QUERY_NUM_PSETS, ""),
    (keys::QUERY_PSET_NAMES, ""),
    (keys::QUERY_PSET_MEMBERSHIP, "pmix.pset.nm"),
    (keys::JOB_SIZE, OF_JOB),
    (keys::UNIV_SIZE, OF_JOB),
    (keys::MAX_PROCS, OF_JOB),
    (keys::JOB_NUM_APPS, OF_JOB),
    (keys::NUM_NODES, OF_JOB),
];

/// Jobs, nodes and memory values that other nodes must supply for a query.
#[derive(Default)]
pub(super) struct RemoteQueryNeeds {
    pub(super) jobs: BTreeSet<Nspace>,
    pub(super) nodes: BTreeSet<NodeId>,
    pub(super) memory: bool,
}

impl RemoteQueryNeeds {
    /// Adds the values that a key needs.
    pub(super) fn add(&mut self, key: &Text, scope: &QueryScope<'_>, cx: &NodeContext) {
        if scope.qualifiers_only {
            return;
        }
        let over = || cx.jobs.get(scope.number).is_some_and(NodeJob::is_over);
        let (local, memory) = if *key == keys::QUERY_JOB_STATUS && over() {
            (false, false)
        } else if *key == keys::QUERY_PROC_TABLE {
            (scope.local_only, false)
        } else if *key == keys::QUERY_LOCAL_PROC_TABLE || *key == keys::SERVER_URI {
            (scope.node.is_none(), false)
        } else if *key == keys::QUERY_MEMORY_USAGE {
            (scope.local_only, true)
        } else if *key == keys::DAEMON_MEMORY || *key == keys::CLIENT_AVG_MEMORY {
            (true, true)
        } else {
            return;
        };
        self.jobs.insert(scope.job.nspace.clone());
        self.memory |= memory;
        let rank = scope
            .rank
            .and_then(|rank| scope.job.process_map.node_of(rank));
        match scope.node.or(rank) {
            _ if local => self.nodes.extend([cx.node]),
            Some(node) => self.nodes.extend([node]),
            None => self.nodes.extend(scope.job.nodes_with_ranks()),
        }
    }
}

/// The facts for the answer to a query.
pub(super) struct QueryFacts<'a> {
    pub(super) cx: &'a NodeContext,
    /// Queried jobs, in the order of the query.
    pub(super) jobs: &'a [Nspace],
    pub(super) replies: &'a BTreeMap<NodeId, NodeQueryResult>,
}

impl QueryFacts<'_> {
    /// Returns the answer to all queries of a call.
    pub(super) fn answer(&self, queries: &[Query]) -> UpcallAnswer {
        let mut infos = Vec::new();
        let mut missing = None;
        for query in queries {
            let scope = QueryScope::from_query(self.cx, query);
            for key in &query.keys {
                let value = scope
                    .as_ref()
                    .map_err(|status| *status)
                    .and_then(|scope| self.value(key, scope, query));
                // Open MPI 5.0 cannot read the number, but counts the names if they come first.
                if let (true, Ok(scope), true) =
                    (*key == keys::QUERY_NUM_PSETS, &scope, value.is_ok())
                {
                    let names = keys::QUERY_PSET_NAMES.into();
                    let names = scope.query_sets(&names, query, self.cx);
                    infos.extend(names.map(|names| Info::new(keys::QUERY_PSET_NAMES, names)));
                }
                match value {
                    Ok(value) => infos.push(Info {
                        key: key.clone(),
                        required: false,
                        value,
                    }),
                    // An invalid query takes precedence over a missing value.
                    Err(status) => {
                        if missing.is_none_or(|before| before == Status::ERR_NOT_FOUND) {
                            missing = Some(status);
                        }
                    }
                }
            }
        }
        let silent = || {
            self.replies
                .values()
                .any(|result| *result == NodeQueryResult::Nothing)
        };
        match missing {
            // libpmix 5.0 would search by itself, for any name in memory, and return the nodes of all jobs. An empty
            // answer prevents that.
            Some(Status::ERR_NOT_FOUND) if asks_for_nodes(queries) => {
                UpcallAnswer::Infos(Status::SUCCESS, Vec::new())
            }
            Some(status) if infos.is_empty() => UpcallAnswer::Status(status),
            None if !silent() => UpcallAnswer::Infos(Status::SUCCESS, infos),
            _ => UpcallAnswer::Infos(Status::ERR_PARTIAL_SUCCESS, infos),
        }
    }

    fn value(&self, key: &Text, scope: &QueryScope<'_>, query: &Query) -> Result<Value, Status> {
        let key_text = key.to_str().unwrap_or_default();
        let known = KEYS.iter().find(|(known, _)| *known == key_text);
        let Some((_, qualifiers)) = known else {
            return Err(Status::ERR_NOT_SUPPORTED);
        };
        if scope.qualifiers_only {
            return Ok(Value::String((*qualifiers).into()));
        }
        let job = scope.job;
        match key_text {
            keys::QUERY_SUPPORTED_KEYS => {
                let keys: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
                Ok(Value::String(keys.join(",").into()))
            }
            keys::QUERY_NAMESPACES => {
                let names = self.cx.running_jobs().map(|(_, job)| job.nspace.as_str());
                Ok(Value::String(names.collect::<Vec<_>>().join(",").into()))
            }
            keys::QUERY_NAMESPACE_INFO => Ok(self.namespaces(scope)),
            keys::QUERY_JOB_STATUS => Ok(Value::Status(self.job_status(scope))),
            keys::QUERY_PROC_TABLE | keys::QUERY_LOCAL_PROC_TABLE => {
                let local = key_text == keys::QUERY_LOCAL_PROC_TABLE && scope.node.is_none();
                self.table(scope, local || scope.local_only)
            }
            keys::SERVER_URI => {
                let part = self.part(scope.node.unwrap_or(self.cx.node));
                let uri = part.map(|part| Text::new(&part.uri[..]));
                let uri = uri.filter(|uri| !uri.as_bytes().is_empty());
                uri.map(Value::String).ok_or(Status::ERR_NOT_FOUND)
            }
            keys::QUERY_RESOLVE_PEERS => scope.peers(self.cx),
            keys::QUERY_RESOLVE_NODE => Ok(scope.nodes(self.cx)),
            keys::QUERY_MEMORY_USAGE => self.memory(scope),
            keys::DAEMON_MEMORY => {
                let part = self.part(self.cx.node);
                let server = part.and_then(|part| part.server);
                server.map(megabytes).ok_or(Status::ERR_NOT_FOUND)
            }
            keys::CLIENT_AVG_MEMORY => {
                let sizes = self.sizes(scope, self.cx.node);
                average(&sizes).ok_or(Status::ERR_NOT_FOUND)
            }
            keys::QUERY_SPAWN_SUPPORT => Ok(Value::String(supported_attributes().into())),
            keys::QUERY_DEBUG_SUPPORT => Ok(Value::String(debug::SUPPORTED.into())),
            keys::JOB_SIZE => Ok(Value::Uint32(job.process_map.size())),
            keys::UNIV_SIZE | keys::MAX_PROCS => Ok(Value::Uint32(job.universe_size)),
            keys::JOB_NUM_APPS => Ok(Value::Uint32(apps(job))),
            keys::NUM_NODES => Ok(Value::Uint32(job.nodes_with_ranks().len() as u32)),
            _ => {
                let value = scope.query_sets(key, query, self.cx);
                value.ok_or(Status::ERR_NOT_FOUND)
            }
        }
    }

    /// Success while it runs; then how it ended.
    fn job_status(&self, scope: &QueryScope<'_>) -> Status {
        let job = self.cx.jobs.get(scope.number);
        if !job.is_some_and(NodeJob::is_over) {
            return Status::SUCCESS;
        }
        let at = self.jobs.iter().position(|job| *job == scope.job.nspace);
        let hosting = scope.job.nodes_with_ranks();
        let results = self
            .replies
            .iter()
            .filter(|(node, _)| hosting.contains(node));
        let worst = end_of_job(results.map(|(_, result)| result), at.unwrap_or_default());
        status_of_end(worst)
    }

    /// Returns an array of the jobs, each with its name, command lines, size, and nodes.
    fn namespaces(&self, scope: &QueryScope<'_>) -> Value {
        let jobs = self.cx.running_jobs();
        let meant = jobs.filter(|(number, _)| !scope.names_job || *number == scope.number);
        let infos = meant.map(|(number, job)| {
            let commands = (0..apps(job)).filter_map(|app| {
                let facts = self.cx.facts.get(&number)?;
                facts.command(AppNum(app))
            });
            let command = commands.collect::<Vec<_>>().join(&b" : "[..]);
            let mut infos = vec![
                Info::new(keys::NSPACE, Value::String((&job.nspace).into())),
                Info::new(keys::CMD_LINE, Value::String(Text::new(command))),
                Info::new(keys::JOB_SIZE, Value::Uint32(job.process_map.size())),
            ];
            infos.extend((0..job.process_map.size()).map(|rank| self.place(job, Rank(rank))));
            Info::new(keys::JOB_INFO_ARRAY, Value::Infos(infos))
        });
        Value::Infos(infos.collect())
    }

    fn place(&self, job: &JobContext, rank: Rank) -> Info {
        let mut infos = vec![Info::new(keys::RANK, Value::Rank(rank.into()))];
        let host = job.process_map.node_of(rank);
        let host = host.and_then(|node| self.cx.host_name(node));
        infos.extend(host.map(|host| Info::new(keys::HOSTNAME, Value::String(host.into()))));
        let local = job.process_map.local_rank(rank);
        let local = local.and_then(|local| u16::try_from(local.0).ok());
        infos.extend(local.map(|local| Info::new(keys::LOCAL_RANK, Value::Uint16(local))));
        Info::new(keys::PROC_INFO_ARRAY, Value::Infos(infos))
    }

    /// Returns the process table, in ascending order of ranks; with `local`, only that of this node.
    fn table(&self, scope: &QueryScope<'_>, local: bool) -> Result<Value, Status> {
        let here = |node: &NodeId| !local || *node == self.cx.node;
        let mut rows: Vec<(Rank, ProcInfo)> = Vec::new();
        for (node, result) in self.replies.iter().filter(|(node, _)| here(node)) {
            let host = Text::from(self.cx.host_name(*node).unwrap_or_default());
            let row = |rank, executable, pid, exit_code, state| {
                let row = ProcInfo {
                    proc: PmixProc::new(&scope.job.nspace, rank),
                    hostname: host.clone(),
                    executable: Text::new(executable),
                    pid,
                    exit_code,
                    state,
                };
                (rank, row)
            };
            let unknown = match result {
                NodeQueryResult::Part(part) => {
                    let of_job = self.processes_of_job(part, scope);
                    rows.extend(
                        of_job
                            .filter(|one| scope.holds(*node, one.rank))
                            .map(|one| {
                                let (state, code) = state_of(one.life);
                                let pid = one.pid.unwrap_or(0);
                                row(one.rank, one.executable.clone(), pid, code, state)
                            }),
                    );
                    continue;
                }
                NodeQueryResult::Lost => state::COMM_FAILED,
                NodeQueryResult::Nothing => state::UNDEF,
            };
            let ranks = scope.job.process_map.ranks_on(*node);
            let meant = ranks.filter(|rank| scope.holds(*node, *rank));
            rows.extend(meant.map(|rank| row(rank, Vec::new(), 0, 0, unknown)));
        }
        rows.sort_by_key(|(rank, _)| *rank);
        let rows = rows.into_iter().map(|(_, row)| Value::ProcInfo(row));
        let array = Array::new(rows.collect()).ok_or(Status::ERR_NOT_FOUND)?;
        Ok(Value::Array(array))
    }

    fn part(&self, node: NodeId) -> Option<&NodeQueryReply> {
        match self.replies.get(&node)? {
            NodeQueryResult::Part(part) => Some(part),
            NodeQueryResult::Lost | NodeQueryResult::Nothing => None,
        }
    }

    /// Returns a node's data about the processes of the queried job.
    fn processes_of_job<'a>(
        &self,
        part: &'a NodeQueryReply,
        scope: &QueryScope<'_>,
    ) -> impl Iterator<Item = &'a QueriedProcess> + use<'a> {
        let at = self.jobs.iter().position(|job| *job == scope.job.nspace);
        at.and_then(|at| part.jobs.get(at)).into_iter().flatten()
    }

    /// Bytes that processes of a node use.
    fn sizes(&self, scope: &QueryScope<'_>, node: NodeId) -> Vec<u64> {
        let part = self.part(node).into_iter();
        let processes = part.flat_map(|part| self.processes_of_job(part, scope));
        let meant = processes.filter(|one| scope.holds(node, one.rank));
        meant.filter_map(|one| one.memory).collect()
    }

    /// Returns the memory use of server and clients: that of this node if the query is local, otherwise an array with
    /// an entry for each node.
    fn memory(&self, scope: &QueryScope<'_>) -> Result<Value, Status> {
        if scope.local_only {
            let infos = self.memory_of(scope, self.cx.node);
            return infos.map(Value::Infos).ok_or(Status::ERR_NOT_FOUND);
        }
        let nodes = self.replies.keys().filter_map(|node| {
            if scope.node.is_some_and(|only| only != *node) {
                return None;
            }
            let mut infos = vec![Info::new(keys::NODEID, Value::Uint32(node.0))];
            let host = self.cx.host_name(*node);
            infos.extend(host.map(|host| Info::new(keys::HOSTNAME, Value::String(host.into()))));
            infos.extend(self.memory_of(scope, *node)?);
            Some(Info::new(keys::NODE_INFO_ARRAY, Value::Infos(infos)))
        });
        let nodes: Vec<Info> = nodes.collect();
        match nodes.is_empty() {
            true => Err(Status::ERR_NOT_FOUND),
            false => Ok(Value::Infos(nodes)),
        }
    }

    fn memory_of(&self, scope: &QueryScope<'_>, node: NodeId) -> Option<Vec<Info>> {
        let part = self.part(node)?;
        let sizes = self.sizes(scope, node);
        let mut infos = Vec::new();
        let mut add = |key, value: Option<Value>| {
            infos.extend(value.map(|value| Info::new(key, value)));
        };
        add(keys::DAEMON_MEMORY, part.server.map(megabytes));
        add(keys::CLIENT_AVG_MEMORY, average(&sizes));
        if scope.minmax {
            add(keys::MIN_VALUE, sizes.iter().min().copied().map(megabytes));
            add(keys::MAX_VALUE, sizes.iter().max().copied().map(megabytes));
        }
        (!infos.is_empty()).then_some(infos)
    }
}

/// Whether the query is libpmix's own for a `PMIx_Resolve_nodes`.
fn asks_for_nodes(queries: &[Query]) -> bool {
    let [query] = queries else {
        return false;
    };
    let [key] = &query.keys[..] else {
        return false;
    };
    *key == keys::QUERY_RESOLVE_NODE && query.qualifiers.len() == 1
}

fn apps(job: &JobContext) -> u32 {
    let last = job.process_map.size().checked_sub(1);
    last.map_or(0, |last| job.app_map.appnum_of(Rank(last)).0 + 1)
}

fn megabytes(bytes: u64) -> Value {
    Value::Float((bytes as f64 / MEGABYTE) as f32)
}

fn average(sizes: &[u64]) -> Option<Value> {
    let count = sizes.len() as u64;
    (count > 0).then(|| megabytes(sizes.iter().sum::<u64>() / count))
}

/// Returns PMIx's process state, and the exit code.
fn state_of(life: ProcessState) -> (u8, i32) {
    match life {
        ProcessState::Planned => (state::LAUNCH_UNDERWAY, 0),
        ProcessState::Running => (state::RUNNING, 0),
        ProcessState::Connected => (state::CONNECTED, 0),
        ProcessState::Ended { end, connected } => {
            let state = match end {
                RankEnd::Signal(_) => state::ABORTED_BY_SIG,
                RankEnd::Code(0) if connected => state::TERM_WO_SYNC,
                RankEnd::Code(0) => state::TERMINATED,
                RankEnd::Code(_) => state::TERM_NON_ZERO,
            };
            (state, end.exit_code().into())
        }
    }
}
