//! TLS between agents, and from schedulers to agents: both sides show a certificate, always.
//!
//! - [`credentials`]: this node's certificate, read again when its files change
//! - [`verify`]: whose certificate is accepted, and why one is not, in words
//! - [`accept`]: connections from others, with who they are
//! - [`connect`]: connections to other agents
//! - [`refusals`]: a line in the log for requests that are refused
//!
//! Rule: TLS 1.3 only; every client that gRPC has can speak it, and in 1.3 no certificate is shown
//! in the clear. No session is resumed: whoever connects shows a certificate that is valid now.

pub mod accept;
pub mod connect;
pub mod credentials;
pub mod refusals;
pub mod verify;

use std::time::Duration;

use tonic::transport::Server;
use tower::layer::util::{Identity, Stack};

pub use accept::{Connection, Peer, server_incoming};
pub use connect::{ConnectError, connect, dial};
pub use credentials::{CredentialsError, Tls};

/// After so long without a word, the other side of a connection is asked whether it lives.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// If it does not answer for so long, it is lost: 5 s after its last word at the latest.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_millis(2500);

/// So long may making a connection take, certificates included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A gRPC server for [`server_incoming`], to which services are added: it finds out when the other
/// side is silent, and logs what it refuses.
pub fn server() -> Server<Stack<refusals::LogRefusals, Identity>> {
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .layer(refusals::LogRefusals)
}

#[cfg(test)]
mod tests;
