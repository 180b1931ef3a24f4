//! Nodes and processes of the launch's jobs, for `PMIx_Resolve_peers` and `PMIx_Resolve_nodes`. Rule: libpmix 5 first
//! calls its host when a client calls one of them, with an empty nspace for all jobs, and searches by itself after any
//! status but success. Source: `src/server/pmix_server_resolve.c` of 5.0.11.

use super::scope::QueryScope;
use crate::job::ids::NodeId;
use crate::node::context::NodeContext;
use crate::node::context::job_context::JobContext;
use crate::pmix::value::{Array, PmixProc, Status, Value};

impl QueryScope<'_> {
    /// Returns the queried jobs: the named one, or all that have not ended.
    pub(super) fn jobs<'a>(&'a self, cx: &'a NodeContext) -> impl Iterator<Item = &'a JobContext> {
        let named = self.names_job.then_some(&**self.job);
        let all = cx.running_jobs().map(|(_, job)| &**job);
        named.into_iter().chain(all.filter(|_| !self.names_job))
    }

    /// Returns the processes on a node: on this one, if none is named.
    pub(super) fn peers(&self, cx: &NodeContext) -> Result<Value, Status> {
        let node = self.node.unwrap_or(cx.node);
        let procs = self.jobs(cx).flat_map(|job| {
            let ranks = job.process_map.ranks_on(node);
            let meant = ranks.filter(|rank| self.holds(node, *rank));
            meant.map(|rank| Value::Proc(PmixProc::new(&job.nspace, rank)))
        });
        let procs = Array::new(procs.collect()).ok_or(Status::ERR_NOT_FOUND)?;
        Ok(Value::Array(procs))
    }

    /// Returns the nodes with processes, ascending.
    pub(super) fn nodes(&self, cx: &NodeContext) -> Value {
        let hosts = |node: &NodeId| {
            let mut jobs = self.jobs(cx);
            jobs.any(|job| job.process_map.local_size(*node) > 0)
        };
        let nodes = cx.launch().process_map.node_ids().filter(hosts);
        let names = nodes.filter_map(|node| cx.host_name(node));
        Value::String(names.collect::<Vec<_>>().join(",").into())
    }
}
