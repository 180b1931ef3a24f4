//! The port of an agent.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::settings::everywhere;
use wireup::failure::RunFailure;

/// An address on which the agent cannot listen.
#[derive(Debug, thiserror::Error)]
enum ListenError {
    #[error(
        "cannot listen on {0}: another process, perhaps another agent, already does; end it, or name another port \
         (--listen)"
    )]
    InUse(SocketAddr),
    #[error("cannot listen on {address}: {error}; name an address of this node (--listen)")]
    Address {
        address: SocketAddr,
        error: io::Error,
    },
}

pub(super) async fn listen(address: Option<SocketAddr>) -> Result<TcpListener, RunFailure> {
    let addresses = match &address {
        Some(address) => std::slice::from_ref(address),
        None => &everywhere()[..],
    };
    let mut failure = None;
    for address in addresses {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            // A port that is in use is in use for both.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(RunFailure::request(ListenError::InUse(*address)));
            }
            Err(error) => failure = Some((address, error)),
        }
    }
    let (address, error) = failure.expect("there is an address");
    let address = *address;
    Err(RunFailure::request(ListenError::Address { address, error }))
}
