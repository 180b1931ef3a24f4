//! The port of an agent.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::settings::everywhere;
use wireup_core::failure::CommandError;

/// An address on which the agent cannot listen.
#[derive(Debug, thiserror::Error)]
enum ListenError {
    #[error(
        "cannot listen on {address}: another process, perhaps another agent, uses this port; end it, or choose another \
         port ({option})"
    )]
    InUse {
        address: SocketAddr,
        option: &'static str,
    },
    #[error("cannot listen on {address}: {error}; use an address of this node ({option})")]
    Address {
        address: SocketAddr,
        error: io::Error,
        option: &'static str,
    },
}

/// Listens on an address that this option names, or on all of this node.
pub(super) async fn listen(
    address: Option<SocketAddr>,
    option: &'static str,
) -> Result<TcpListener, CommandError> {
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
                return Err(CommandError::request(ListenError::InUse {
                    address: *address,
                    option,
                }));
            }
            Err(error) => failure = Some((address, error)),
        }
    }
    let (address, error) = failure.expect("there is an address");
    let address = *address;
    Err(CommandError::request(ListenError::Address {
        address,
        error,
        option,
    }))
}
