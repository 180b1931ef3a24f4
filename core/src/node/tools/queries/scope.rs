//! Scope of a query, from its qualifiers.

use std::sync::Arc;
use std::time::Duration;

use crate::job::ids::{JobIndex, NodeId, Rank};
use crate::node::context::NodeContext;
use crate::node::context::job_context::JobContext;
use crate::node::context::upcalls::timeout;
use crate::pmix::keys;
use crate::pmix::upcall::Query;
use crate::pmix::value::{PmixRank, Status, Text, Value};

/// A query's qualifiers, read.
pub(super) struct QueryScope<'a> {
    /// Index of the queried job; the initial job if none is named.
    pub(super) number: JobIndex,
    pub(super) job: &'a Arc<JobContext>,
    /// One job was named.
    pub(super) names_job: bool,
    /// Rank in the job to which the query is limited.
    pub(super) rank: Option<Rank>,
    /// Node to which the query is limited.
    pub(super) node: Option<NodeId>,
    /// Whether the query needs no other node.
    pub(super) local_only: bool,
    /// Smallest and largest values too.
    pub(super) minmax: bool,
    /// Whether the query is for the qualifiers of the keys instead of their values.
    pub(super) qualifiers_only: bool,
    pub(super) timeout: Option<Duration>,
}

impl<'a> QueryScope<'a> {
    /// Reads the qualifiers of a query.
    ///
    /// # Errors
    /// The status of the query: a qualifier of a wrong type, an unknown one that is required, or a job or node that is
    /// not of this launch.
    pub(super) fn from_query(cx: &'a NodeContext, query: &Query) -> Result<Self, Status> {
        let mut scope = Self {
            number: JobIndex::INITIAL,
            job: cx.launch(),
            names_job: false,
            rank: None,
            node: None,
            local_only: false,
            minmax: false,
            qualifiers_only: false,
            timeout: timeout(&query.qualifiers),
        };
        for info in &query.qualifiers {
            match (info.key.to_str().unwrap_or_default(), &info.value) {
                (keys::NSPACE | keys::JOBID, Value::String(nspace)) => {
                    scope.name_job(cx, nspace)?;
                }
                (keys::PROCID, Value::Proc(proc)) => {
                    scope.name_job(cx, &proc.nspace)?;
                    scope.rank = proc.rank.rank();
                }
                (keys::RANK, Value::Rank(rank)) => scope.rank = rank.rank(),
                // As PRRTE's example of a debugger has it.
                (keys::RANK, Value::Int32(rank) | Value::Int(rank)) => {
                    scope.rank = PmixRank(rank.cast_unsigned()).rank();
                }
                (keys::HOSTNAME, Value::String(name)) => {
                    let node = scope
                        .job
                        .process_map
                        .node_ids()
                        .find(|node| cx.host_name(*node).is_some_and(|host| *name == host));
                    scope.node = Some(node.ok_or(Status::ERR_NOT_FOUND)?);
                }
                (keys::NODEID, Value::Uint32(node) | Value::Uint(node)) => {
                    if *node >= scope.job.process_map.nodes() {
                        return Err(Status::ERR_NOT_FOUND);
                    }
                    scope.node = Some(NodeId(*node));
                }
                (keys::QUERY_LOCAL_ONLY, Value::Bool(yes)) => scope.local_only = *yes,
                (keys::QUERY_REPORT_MINMAX, Value::Bool(yes)) => scope.minmax = *yes,
                (keys::QUERY_SUPPORTED_QUALIFIERS, Value::Bool(yes)) => {
                    scope.qualifiers_only = *yes;
                }
                // Nothing is cached here, averages are given anyway, and the others were read.
                (keys::QUERY_REFRESH_CACHE | keys::QUERY_REPORT_AVG, Value::Bool(_))
                | (keys::PSET_NAME, Value::String(_))
                | (keys::TIMEOUT, _) => {}
                (
                    keys::NSPACE
                    | keys::JOBID
                    | keys::PROCID
                    | keys::RANK
                    | keys::HOSTNAME
                    | keys::NODEID
                    | keys::QUERY_LOCAL_ONLY
                    | keys::QUERY_REPORT_MINMAX
                    | keys::QUERY_SUPPORTED_QUALIFIERS
                    | keys::QUERY_REFRESH_CACHE
                    | keys::QUERY_REPORT_AVG
                    | keys::PSET_NAME,
                    _,
                ) => return Err(Status::ERR_BAD_PARAM),
                _ if info.required => return Err(Status::ERR_NOT_SUPPORTED),
                _ => {}
            }
        }
        if scope
            .rank
            .is_some_and(|rank| rank.0 >= scope.job.process_map.size())
        {
            return Err(Status::ERR_NOT_FOUND);
        }
        Ok(scope)
    }

    fn name_job(&mut self, cx: &'a NodeContext, nspace: &Text) -> Result<(), Status> {
        // The empty nspace stands for all jobs.
        if nspace.as_bytes().is_empty() {
            return Ok(());
        }
        // A process named twice may be two different ones.
        if self.names_job && *nspace != *self.job.nspace.as_str() {
            return Err(Status::ERR_BAD_PARAM);
        }
        let (number, member) = cx.find_pmix_job(nspace).ok_or(Status::ERR_NOT_FOUND)?;
        (self.number, self.job) = (number, &member.context);
        self.names_job = true;
        Ok(())
    }

    /// Whether a rank on a node is meant.
    pub(super) fn holds(&self, node: NodeId, rank: Rank) -> bool {
        self.node.is_none_or(|only| only == node) && self.rank.is_none_or(|only| only == rank)
    }
}
