//! A listener that existed before this process; the tools for which the process is started have connected to this
//! listener.
//!
//! libpmix makes a listener of its own. A thread accepts connections at the inherited one, and lets the same
//! connections in (`peers`), when their first message is complete (`handshakes`).

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use crate::{Fatal, handshakes, peer_filter};
use wireup_core::pmix::sidecar_protocol::ForkEnv;

/// Variables with the server's address for clients, one for each protocol; all have the same value.
const URI: &[u8] = b"PMIX_SERVER_URI";

/// Serves tools from now on. `env` has the variables of a job's clients.
///
/// # Errors
/// When libpmix does not state its address, or there can be no thread.
pub(crate) fn serve(listener: OwnedFd, env: &ForkEnv) -> Result<(), Fatal> {
    let own =
        address(env).ok_or_else(|| Fatal::link("libpmix does not listen at a known address"))?;
    let thread = thread::Builder::new().name("tools".to_owned());
    let started = thread.spawn(move || accept_all(&listener, own));
    started
        .map(drop)
        .map_err(|error| Fatal::link(format!("cannot create the thread for tools: {error}")))
}

fn accept_all(listener: &OwnedFd, own: SocketAddr) {
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        if let Ok(connection) = accept_with(listener, SocketFlags::CLOEXEC)
            && peer_filter::may_enter(connection.as_fd())
        {
            handshakes::pass_on(connection, own);
        }
    }
}

/// Returns the address at which libpmix listens.
fn address(env: &ForkEnv) -> Option<SocketAddr> {
    let own = env.clients.iter().flat_map(|(_, variables)| variables);
    let mut all = env.common.iter().chain(own);
    let (_, uri) = all.find(|(name, _)| name.as_bytes().starts_with(URI))?;
    let uri = uri.to_string();
    let (_, address) = uri.split_once("://")?;
    address.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn address_is_that_of_client_variables() {
        let variable = |name: &str, value: &str| (name.into(), value.into());
        let uri = "job-host.0;tcp4://127.0.0.1:4711";
        let env = ForkEnv {
            common: vec![variable("A", "b"), variable("PMIX_SERVER_URI41", uri)],
            ..ForkEnv::default()
        };
        assert_eq!(address(&env), Some("127.0.0.1:4711".parse().unwrap()));
        assert_eq!(address(&ForkEnv::default()), None);
    }
}
