//! TLS between agents, and from schedulers to agents: both sides show a certificate, always.
//!
//! - [`tls_certificates`]: this node's certificate, read again when its files change
//! - `life`: connections that end when the other side is revoked
//! - `connection_silence`: connections that end when nothing comes from the other side
//! - [`verify`]: accepted certificates, and the texts of refusals
//! - [`accept`]: connections from others, with their identities
//! - [`connect`]: connections to other agents
//!
//! Rule: TLS 1.3 only; every client that gRPC has can speak it, and in 1.3 no certificate is shown
//! in the clear. No session is resumed: every connection shows a certificate that is valid now.

pub mod accept;
pub mod connect;
mod connection_silence;
mod open_connections;
pub mod tls_certificates;
pub mod verify;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tonic::transport::Server;
use tower::layer::util::{Identity, Stack};

pub(crate) use accept::words;
pub use accept::{TlsConnection, server_incoming};
pub use connect::{ConnectError, PeerStream, channel, connect, dial};
pub use tls_certificates::{CertificateFilesError, TlsConfigs};

use crate::refusals::{LogRefusals, Refusals};
use crate::worker_threads::WorkerLayer;

/// Limits from which the silence of a connection's other side counts as loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// After this time without traffic the other side is probed.
    pub interval: Duration,
    /// Longest silence of the other side, after which it is lost.
    pub limit: Duration,
    /// Longest silence of a process of the same machine.
    pub silence: Duration,
    /// Timeout of a connection until the other side answers.
    pub connect: Duration,
    /// Timeout of the handshake: both sides show and accept their certificates.
    pub handshake: Duration,
}

impl Heartbeat {
    /// Returns the heartbeat that notices silence within a time.
    pub fn within(limit: Duration) -> Self {
        Self {
            // A process that is stopped for less than the rest is not lost.
            interval: limit / 5,
            limit,
            silence: limit * 2,
            connect: CONNECT_TIMEOUT.max(limit * 3 / 5),
            handshake: HANDSHAKE_TIMEOUT.max(limit * 2),
        }
    }
}

impl Default for Heartbeat {
    /// Returns the heartbeat within 5 seconds.
    fn default() -> Self {
        Self::within(Duration::from_secs(5))
    }
}

/// Bytes of one stream that may be under way and not yet read.
const STREAM_WINDOW: u32 = 1024 * 1024;

/// Bytes of all streams of a connection that may be under way and not yet read.
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// Streams of one connection at a time: a launch is one, and a question.
const STREAMS: u32 = 10_000;

/// Least time until the other side answers: twice the time in which the kernel looks for the link address of a host, on
/// networks that lose packets.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(6);

/// Least time for certificates. The host has answered, so more is lost on the way than on a host that does not exist.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the answer to a probe of HTTP/2: never over, since [`connection_silence`] judges.
const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Creates a gRPC server for [`server_incoming`], to which services are added. It probes the other side, and logs
/// refusals. Requests run on `work`.
pub fn server(
    heartbeat: Heartbeat,
    refusals: Arc<Refusals>,
    work: Handle,
) -> Server<Stack<WorkerLayer, Stack<LogRefusals, Identity>>> {
    Server::builder()
        .http2_keepalive_interval(Some(heartbeat.interval))
        .http2_keepalive_timeout(Some(NO_LIMIT))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        .layer(LogRefusals(refusals))
        .layer(WorkerLayer(work))
}

#[cfg(test)]
mod tests;
