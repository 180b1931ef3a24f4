//! Jobs of the launch in one node's core: identities of processes, and jobs that start and end.

use std::sync::Arc;

use crate::fence::{FenceSeries, NodeSet};
use crate::job::ids::{NodeId, NodeRank};
use crate::job::job_table::HasProcessMap;
use crate::job::process_map::ProcessMap;
use crate::node::context::collective_policy::CollectivePolicy;
use crate::node::context::job_context::JobContext;
use crate::node::context::pmi_fences;
use crate::pmi::server as pmi;

/// One job, and the parts that serve its ranks on this node.
pub(in crate::node) struct NodeJob {
    pub(in crate::node) context: Arc<JobContext>,
    pub(in crate::node) pmi: Option<pmi::PmiServer>,
    /// Participants of the barrier of all its ranks.
    pub(in crate::node) world: (FenceSeries, NodeSet),
    /// Node rank of the job's first process on this node, if it has one there.
    pub(in crate::node) first: NodeRank,
    /// All its ranks have ended, everywhere.
    has_ended: bool,
}

impl HasProcessMap for NodeJob {
    fn ranks(&self) -> &ProcessMap {
        &self.context.process_map
    }
}

impl NodeJob {
    /// Creates a job. With `pmi`, its local ranks can use PMI.
    ///
    /// # Errors
    /// [`pmi::SetupError`] when the job cannot be described in PMI.
    pub(in crate::node) fn new(
        context: Arc<JobContext>,
        node: NodeId,
        pmi: bool,
        first: NodeRank,
        terms: CollectivePolicy,
    ) -> Result<Self, pmi::SetupError> {
        let server = pmi.then(|| {
            let local = context.process_map.ranks_on(node);
            let info = pmi::PmiJobInfo {
                kvsname: context.nspace.clone(),
                appnums: local.map(|r| context.app_map.appnum_of(r)).collect(),
                universe_size: (!context.unbounded_universe).then_some(context.universe_size),
                attributes: Vec::new(),
                preputs: context.initial_kvs.clone(),
                spawner: context
                    .requester
                    .parent()
                    .map(|parent| parent.nspace.clone()),
            };
            pmi::PmiServer::new(info, &context.process_map, node)
        });
        let server = server.transpose()?.map(|server| match terms.survives {
            true => server.surviving(),
            false => server,
        });
        let server = server.map(|server| match terms.restartable {
            true => server.restartable(),
            false => server,
        });
        Ok(Self {
            pmi: server,
            world: pmi_fences::world(&context.nspace, &context.process_map, node),
            first,
            has_ended: false,
            context,
        })
    }

    /// Adds an attribute that the job's PMI clients on this node can read.
    pub(in crate::node) fn describe(&mut self, key: &str, value: &[u8]) {
        if let Some(server) = &mut self.pmi {
            server.describe(key, value);
        }
    }

    /// Notes that all ranks of the job have ended. Returns whether they had before.
    pub(in crate::node) fn end(&mut self) -> bool {
        std::mem::replace(&mut self.has_ended, true)
    }

    /// Whether all ranks of the job have ended.
    pub(in crate::node) fn is_over(&self) -> bool {
        self.has_ended
    }
}
