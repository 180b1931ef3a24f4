//! The services that are offered to callers of the node agent: itself, its health, and a description
//! of all.

use std::sync::Arc;

use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::NodeAgentService;
use super::turn::InTurn;
use crate::launch::launch_registry::LaunchRegistry;
use crate::proto::DESCRIPTORS;
use crate::proto::v1::node_agent_server::NodeAgentServer;
use crate::state::Agent;

/// Returns the services. They are healthy until the agent is drained.
///
/// # Panics
/// If the descriptions that were compiled in cannot be read.
pub async fn routes(agent: Arc<Agent>) -> Routes {
    let (health, health_service) = tonic_health::server::health_reporter();
    health
        .set_serving::<NodeAgentServer<NodeAgentService>>()
        .await;
    tokio::spawn(report(health, agent.registry.clone()));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("descriptions made by the compiler of the files");
    let service = NodeAgentServer::new(NodeAgentService(agent.clone()));
    Routes::new(InTurn {
        inner: service,
        agent,
    })
    .add_service(health_service)
    .add_service(reflection)
}

/// Says that nothing is served once the agent drains.
async fn report(health: HealthReporter, registry: Arc<LaunchRegistry>) {
    registry.draining_begun().await;
    health
        .set_not_serving::<NodeAgentServer<NodeAgentService>>()
        .await;
    health
        .set_service_status("", ServingStatus::NotServing)
        .await;
}
