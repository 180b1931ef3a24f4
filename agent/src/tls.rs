//! TLS between agents, and from schedulers to agents: both sides show a certificate, always.
//!
//! - [`credentials`]: this node's certificate, read again when its files change
//! - `life`: connections that end when the other side is revoked
//! - [`verify`]: accepted certificates, and the texts of refusals
//! - [`accept`]: connections from others, with their identities
//! - [`connect`]: connections to other agents
//!
//! Rule: TLS 1.3 only; every client that gRPC has can speak it, and in 1.3 no certificate is shown
//! in the clear. No session is resumed: every connection shows a certificate that is valid now.

pub mod accept;
pub mod connect;
pub mod credentials;
mod life;
pub mod verify;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tonic::transport::Server;
use tower::layer::util::{Identity, Stack};

pub(crate) use accept::words;
pub use accept::{TlsConnection, server_incoming, server_incoming_until_closed};
pub use connect::{Accepted, ConnectError, channel, connect, dial};
pub use credentials::{CredentialsError, Tls};

use crate::refusals::{LogRefusals, Refusals};
use crate::work::OnWork;

/// How soon the silence of the other side of a connection is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// After this time without traffic the other side is probed.
    pub interval: Duration,
    /// If it does not answer for so long, it is lost.
    pub timeout: Duration,
    /// For so long a process of the same machine may be silent.
    pub silence: Duration,
    /// So long may making a connection take, certificates included.
    pub connect: Duration,
}

impl Heartbeat {
    /// The one that notices silence within a time.
    pub fn within(limit: Duration) -> Self {
        // The asking and the noticing take a little time themselves.
        let interval = limit * 2 / 5;
        let timeout = limit / 2;
        Self {
            interval,
            timeout,
            silence: limit * 2,
            connect: CONNECT_TIMEOUT.max(limit * 3 / 5),
        }
    }
}

impl Default for Heartbeat {
    /// 5 seconds.
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

/// Least time that making a connection may take: a slow network needs a longer heartbeat and longer connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A gRPC server for [`server_incoming`], to which services are added: it finds out when the other
/// side is silent, and logs refusals. Requests run where `work` says.
pub fn server(
    heartbeat: Heartbeat,
    refusals: Arc<Refusals>,
    work: Handle,
) -> Server<Stack<OnWork, Stack<LogRefusals, Identity>>> {
    Server::builder()
        .http2_keepalive_interval(Some(heartbeat.interval))
        .http2_keepalive_timeout(Some(heartbeat.timeout))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        .layer(LogRefusals(refusals))
        .layer(OnWork(work))
}

#[cfg(test)]
mod tests;
