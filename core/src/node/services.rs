//! The services of a node, in their order.

use std::collections::BTreeMap;

use crate::direct_modex::ModexEngine;
use crate::fence::FenceEngine;
use crate::job::ids::{JobIndex, NodeId};
use crate::node::collectives::fences::Fences;
use crate::node::collectives::groups::GroupState;
use crate::node::collectives::interlaunch_upcalls::InterlaunchState;
use crate::node::collectives::restart_epochs::EpochRequests;
use crate::node::context::node_effect::{FenceRequester, ModexRequester};
use crate::node::jobs::allocations::PendingAllocations;
use crate::node::jobs::credentials::Credentials;
use crate::node::jobs::job_control_upcalls::Demands;
use crate::node::jobs::spawns::PendingSpawns;
use crate::node::lookups::modex::DirectModex;
use crate::node::lookups::names::Names;
use crate::node::lookups::remote_keys::RemoteKeyReads;
use crate::node::node_service::NodeService;
use crate::node::tools::end_notices::EndNotices;
use crate::node::tools::indirect_launch::IndirectLaunchState;
use crate::node::tools::iof_pull::IofPulls;
use crate::node::tools::iof_push::IofPushes;
use crate::node::tools::queries::QueryState;
use crate::node::tools::stop_points::StoppedRanks;
use crate::pmix::sidecar_link::RequestId;

/// Number of services with deadlines, losses or an end.
pub(super) const SERVICES: usize = 12;

/// All services of a node.
pub(super) struct NodeServices {
    pub(super) fences: Fences,
    pub(super) modex: DirectModex,
    pub(super) interlaunch: InterlaunchState,
    pub(super) names: Names,
    pub(super) groups: GroupState,
    pub(super) queries: QueryState,
    pub(super) spawns: PendingSpawns,
    pub(super) allocations: PendingAllocations,
    pub(super) credentials: Credentials,
    pub(super) iof_pulls: IofPulls,
    pub(super) end_notices: EndNotices,
    pub(super) indirect_launch: IndirectLaunchState,
    pub(super) stopped_ranks: StoppedRanks,
    pub(super) iof_pushes: IofPushes,
    pub(super) remote_keys: RemoteKeyReads,
    pub(super) epoch_requests: EpochRequests,
    pub(super) demands: Demands,
    /// Requests to register spawned jobs.
    pub(super) pending_registrations: BTreeMap<RequestId, JobIndex>,
}

impl NodeServices {
    /// Makes the services of a node of a launch with this number of nodes.
    pub(super) fn new(
        node: NodeId,
        nodes: u32,
        fences: FenceEngine<FenceRequester>,
        modex: ModexEngine<ModexRequester>,
    ) -> Self {
        Self {
            fences: Fences::new(fences),
            modex: DirectModex::new(modex),
            interlaunch: InterlaunchState::default(),
            names: Names::new(node, nodes),
            groups: GroupState::new(node, nodes),
            queries: QueryState::new(node),
            spawns: PendingSpawns::default(),
            allocations: PendingAllocations::default(),
            credentials: Credentials::default(),
            iof_pulls: IofPulls::default(),
            end_notices: EndNotices::default(),
            indirect_launch: IndirectLaunchState::default(),
            stopped_ranks: StoppedRanks::default(),
            iof_pushes: IofPushes::default(),
            remote_keys: RemoteKeyReads::default(),
            epoch_requests: EpochRequests::default(),
            demands: Demands::default(),
            pending_registrations: BTreeMap::new(),
        }
    }

    /// Returns the services, in the order in which each is called.
    pub(super) fn each(&self) -> [&dyn NodeService; SERVICES] {
        [
            &self.fences,
            &self.modex,
            &self.groups,
            &self.names,
            &self.queries,
            &self.iof_pulls,
            &self.iof_pushes,
            &self.remote_keys,
            &self.interlaunch,
            &self.spawns,
            &self.allocations,
            &self.demands,
        ]
    }

    /// Returns the services for changes, in the order of [`each`](Self::each).
    pub(super) fn each_mut(&mut self) -> [&mut dyn NodeService; SERVICES] {
        [
            &mut self.fences,
            &mut self.modex,
            &mut self.groups,
            &mut self.names,
            &mut self.queries,
            &mut self.iof_pulls,
            &mut self.iof_pushes,
            &mut self.remote_keys,
            &mut self.interlaunch,
            &mut self.spawns,
            &mut self.allocations,
            &mut self.demands,
        ]
    }
}
