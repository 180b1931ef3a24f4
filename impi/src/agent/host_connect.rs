//! Connections between hosts: the higher rank connects, and sends its rank in 4 bytes. Source: IMPI 2.3.8.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use wireup_impi_core::packet::host_address;
use wireup_impi_core::world::ImpiJob;

use super::AgentError;
use super::pending_connections::PendingConnections;
use crate::stream::{connect_from, prepare};

/// Time for the other hosts to connect.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for a connection to send its rank.
const SAYS: Duration = Duration::from_secs(5);

/// Makes a channel to each other host, including those of the own client; no other client sees these.
///
/// # Errors
/// When a host cannot be reached, or does not connect.
pub(super) fn connect_all(
    world: &ImpiJob,
    me: usize,
    listener: &TcpListener,
    from: IpAddr,
) -> Result<Vec<(usize, TcpStream)>, AgentError> {
    let others = || (0..world.hosts.len()).filter(|host| *host != me);
    let mut channels = Vec::new();
    for host in others().filter(|host| *host < me) {
        let address = SocketAddr::new(
            host_address(world.hosts[host].address),
            world.hosts[host].port,
        );
        let name = || {
            format!(
                "host {host} of client {} at {address}",
                world.hosts[host].client
            )
        };
        let mut stream = connect_from(from, address, PATIENCE).map_err(AgentError::io(name()))?;
        prepare(&stream).map_err(AgentError::io(name()))?;
        let rank = u32::try_from(me).expect("fewer than 2^32 hosts");
        stream
            .write_all(&rank.to_be_bytes())
            .map_err(AgentError::io(name()))?;
        channels.push((host, stream));
    }
    let mut missing: Vec<usize> = others().filter(|host| *host > me).collect();
    let until = Instant::now() + PATIENCE;
    let mut strangers = PendingConnections::<4>::new(SAYS);
    while !missing.is_empty() {
        let waiting = || AgentError::io(format!("waiting for hosts {missing:?}"));
        let (stream, rank) = strangers.next(listener, Some(until)).map_err(waiting())?;
        let host = u32::from_be_bytes(rank) as usize;
        // Any other connection is no host of this job.
        if let Some(at) = missing.iter().position(|known| *known == host) {
            prepare(&stream).map_err(waiting())?;
            missing.remove(at);
            channels.push((host, stream));
        }
    }
    Ok(channels)
}
