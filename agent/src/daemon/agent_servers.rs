//! The servers of an agent: for other agents and schedulers over the network, and for clients of gRPC on this host.

use std::io;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

use super::settings::AgentSettings;
use crate::launch::launch_registry::LaunchRegistry;
use crate::local_socket::grpc_clients::Clients;
use crate::peer::MESSAGE_MAX;
use crate::peer_service::PeerService;
use crate::proto::v1::peer_server::PeerServer;
use crate::refusals::LogRefusals;
use crate::state::Agent;
use crate::{node_agent, tls};

/// Servers that run in threads of their own.
pub(super) struct AgentServers {
    /// Connections of clients on this host go here.
    pub(super) clients: Clients,
    /// Completes when the listener of the network is closed.
    pub(super) network_closed: oneshot::Receiver<()>,
    pub(super) tasks: [JoinHandle<io::Result<()>>; 2],
}

impl AgentServers {
    /// Starts the servers. They end with the last launch of an agent that is drained, and when the agent leaves its
    /// listeners.
    pub(super) async fn start(
        agent: &Arc<Agent>,
        settings: &AgentSettings,
        listener: std::net::TcpListener,
        network: &Handle,
        requests: &Handle,
        leaving: &watch::Receiver<bool>,
    ) -> Self {
        let routes = node_agent::routes(agent.clone()).await;
        let (clients, local_incoming) = mpsc::channel(1);
        let (open, network_closed) = oneshot::channel::<()>();
        let (tls, heartbeat) = (settings.tls.clone(), settings.heartbeat);
        let refusals = agent.refusals.clone();
        let service =
            PeerServer::new(PeerService(agent.clone())).max_decoding_message_size(MESSAGE_MAX);
        let remote = tls::server(heartbeat, refusals.clone(), requests.clone())
            .add_routes(routes.clone())
            .add_service(service);
        let drained_remote = drained(agent.registry.clone(), leaving.clone());
        let remote = network.spawn(async move {
            let listener = TcpListener::from_std(listener).map_err(io::Error::other)?;
            let incoming = tls::server_incoming(listener, tls, heartbeat, refusals, open);
            let served = remote.serve_with_incoming_shutdown(incoming, drained_remote);
            served.await.map_err(io::Error::other)
        });
        let local = Server::builder()
            .layer(LogRefusals(agent.refusals.clone()))
            .add_routes(routes)
            .serve_with_incoming_shutdown(
                ReceiverStream::new(local_incoming),
                drained(agent.registry.clone(), leaving.clone()),
            );
        let local = requests.spawn(async move { local.await.map_err(io::Error::other) });
        Self {
            clients,
            network_closed,
            tasks: [remote, local],
        }
    }
}

/// Returns when both servers have ended, or one has failed.
pub(super) async fn ended([remote, local]: [JoinHandle<io::Result<()>>; 2]) -> io::Result<()> {
    let ended = |served: JoinHandle<io::Result<()>>| async move {
        served
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
    };
    tokio::try_join!(ended(remote), ended(local))?;
    Ok(())
}

/// Returns when the agent is to take no connection any more.
async fn drained(registry: Arc<LaunchRegistry>, leaving: watch::Receiver<bool>) {
    tokio::select! {
        () = registry.drained() => {}
        () = wait_for_leave(leaving) => {}
    }
}

/// Returns when the agent leaves its listeners to the next one.
pub(super) async fn wait_for_leave(mut leaving: watch::Receiver<bool>) {
    if leaving.wait_for(|leaving| *leaving).await.is_err() {
        // It is never left.
        std::future::pending::<()>().await;
    }
}
