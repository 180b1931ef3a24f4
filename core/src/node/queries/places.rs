//! Where jobs of the launch have processes. Rule: libpmix 5 asks its host first when a client calls
//! `PMIx_Resolve_peers` or `PMIx_Resolve_nodes`, with an empty nspace for all jobs, and takes any
//! status but success to mean that it must look itself. Source: `src/server/pmix_server_resolve.c` of
//! 5.0.11.

use super::scope::QueryScope;
use crate::job::ids::NodeId;
use crate::node::{JobContext, NodeCore};
use crate::pmix::value::{Array, Proc, Status, Value};

impl NodeCore {
    /// The jobs meant: that which is named, or all that have not ended.
    pub(super) fn jobs_meant<'a>(
        &'a self,
        scope: &'a QueryScope<'a>,
    ) -> impl Iterator<Item = &'a JobContext> {
        let named = scope.names_job.then_some(&**scope.job);
        let all = self.running_jobs().map(|(_, job)| &**job);
        named.into_iter().chain(all.filter(|_| !scope.names_job))
    }

    /// The processes on a node: on this one, if none is named.
    pub(super) fn peers(&self, scope: &QueryScope<'_>) -> Result<Value, Status> {
        let node = scope.node.unwrap_or(self.cx.node);
        let procs = self.jobs_meant(scope).flat_map(|job| {
            let ranks = job.ranks.ranks_on(node);
            let meant = ranks.filter(|rank| scope.holds(node, *rank));
            meant.map(|rank| Value::Proc(Proc::new(&job.nspace, rank)))
        });
        let procs = Array::new(procs.collect()).ok_or(Status::ERR_NOT_FOUND)?;
        Ok(Value::Array(procs))
    }

    /// The nodes with processes, ascending.
    pub(super) fn nodes_of(&self, scope: &QueryScope<'_>) -> Value {
        let hosts = |node: &NodeId| {
            let mut jobs = self.jobs_meant(scope);
            jobs.any(|job| job.ranks.local_size(*node) > 0)
        };
        let nodes = self.cx.launch().ranks.node_ids().filter(hosts);
        let names = nodes.filter_map(|node| self.host_name(node));
        Value::String(names.collect::<Vec<_>>().join(",").into())
    }
}
