//! Connections to agents.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};
use tower::service_fn;

/// Connects over an agent's Unix socket.
pub(crate) async fn local(socket: PathBuf) -> Result<Channel> {
    // The address is not used, but has to be one.
    let endpoint = Endpoint::from_static("http://localhost");
    let connect = service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let channel = endpoint.connect_with_connector(connect).await;
    channel.context("cannot connect to the agent")
}

/// Connects over TLS; the agent has to be the one of that node. `tls` has the scheduler's `ca.pem`,
/// `cert.pem` and `key.pem`.
pub(crate) async fn remote(node: &str, address: &str, tls: &Path) -> Result<Channel> {
    let read = |name: &str| {
        let path = tls.join(name);
        std::fs::read(&path).with_context(|| path.display().to_string())
    };
    let config = ClientTlsConfig::new()
        .domain_name(node)
        .ca_certificate(Certificate::from_pem(read("ca.pem")?))
        .identity(Identity::from_pem(read("cert.pem")?, read("key.pem")?));
    let endpoint = Endpoint::from_shared(format!("https://{address}"))?.tls_config(config)?;
    let channel = endpoint.connect().await;
    channel.with_context(|| format!("cannot connect to the agent of {node} at {address}"))
}
