//! The services of a node, in their order.

use super::allocations::Allocations;
use super::collectives::CollectiveState;
use super::credentials::Credentials;
use super::demands::Demands;
use super::directed::Direction;
use super::epochs::Epochs;
use super::fences::Fences;
use super::groups::Groups;
use super::inputs::Inputs;
use super::keys::Keys;
use super::modex::DirectModex;
use super::names::Names;
use super::node_effect::{FenceTicket, ModexTicket};
use super::node_service::NodeService;
use super::output::Outputs;
use super::queries::Queries;
use super::spawns::Spawns;
use super::stopped::Stopped;
use super::tools::EndNotices;
use crate::direct_modex::ModexEngine;
use crate::fence::FenceEngine;
use crate::job::ids::{JobNumber, NodeId};
use crate::pmix::sidecar::RequestId;

/// Number of services with deadlines, losses or an end.
pub(super) const SERVICES: usize = 12;

/// All services of a node.
pub(super) struct NodeServices {
    pub(super) fences: Fences,
    pub(super) modex: DirectModex,
    pub(super) collectives: CollectiveState,
    pub(super) names: Names,
    pub(super) groups: Groups,
    pub(super) queries: Queries,
    pub(super) spawns: Spawns,
    pub(super) allocations: Allocations,
    pub(super) credentials: Credentials,
    pub(super) outputs: Outputs,
    pub(super) end_notices: EndNotices,
    pub(super) direction: Direction,
    pub(super) stopped: Stopped,
    pub(super) inputs: Inputs,
    pub(super) keys: Keys,
    pub(super) epochs: Epochs,
    pub(super) demands: Demands,
    /// Requests to register spawned jobs.
    pub(super) registering: Vec<(RequestId, JobNumber)>,
}

impl NodeServices {
    /// Makes the services of a node of a launch with this number of nodes.
    pub(super) fn new(
        node: NodeId,
        nodes: u32,
        fences: FenceEngine<FenceTicket>,
        modex: ModexEngine<ModexTicket>,
    ) -> Self {
        Self {
            fences: Fences::new(fences),
            modex: DirectModex::new(modex),
            collectives: CollectiveState::default(),
            names: Names::new(node, nodes),
            groups: Groups::new(node, nodes),
            queries: Queries::new(node),
            spawns: Spawns::default(),
            allocations: Allocations::default(),
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
        }
    }

    /// The services, in the order in which each has its turn.
    pub(super) fn each(&self) -> [&dyn NodeService; SERVICES] {
        [
            &self.fences,
            &self.modex,
            &self.groups,
            &self.names,
            &self.queries,
            &self.outputs,
            &self.inputs,
            &self.keys,
            &self.collectives,
            &self.spawns,
            &self.allocations,
            &self.demands,
        ]
    }

    /// The services for changes, in the order of [`each`](Self::each).
    pub(super) fn each_mut(&mut self) -> [&mut dyn NodeService; SERVICES] {
        [
            &mut self.fences,
            &mut self.modex,
            &mut self.groups,
            &mut self.names,
            &mut self.queries,
            &mut self.outputs,
            &mut self.inputs,
            &mut self.keys,
            &mut self.collectives,
            &mut self.spawns,
            &mut self.allocations,
            &mut self.demands,
        ]
    }
}
