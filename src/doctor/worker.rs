//! The part of `wireup doctor` that runs on each host.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::network_facts::{CONNECT, addresses_of};
use super::protocol::{HostEndpoint, WorkerCommand, WorkerReply, lines};
use super::{DoctorSubject, facts};
use wireup_core::doctor::NeighbourView;
use wireup_sys::address_names;

/// Reports facts, and executes the commands on standard input until it ends. `own` is the number of this host.
///
/// # Errors
/// If standard output or input cannot be used.
pub fn work(subject: &DoctorSubject, cwd: &Path, own: usize) -> io::Result<()> {
    // The kernel completes connections to the listener, which no code accepts.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let port = listener.as_ref().ok();
    let port = port.and_then(|listener| listener.local_addr().ok());
    answer(&WorkerReply::Facts {
        facts: Box::new(facts(subject, cwd)),
        port: port.map_or(0, |at| at.port()),
    })?;
    for line in io::stdin().lock().lines() {
        match serde_json::from_str(&line?).map_err(io::Error::other)? {
            WorkerCommand::Time(number) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let seconds = now.map_or(0.0, |time| time.as_secs_f64());
                answer(&WorkerReply::Time { number, seconds })?;
            }
            WorkerCommand::Neighbours(places) => {
                answer(&WorkerReply::Neighbours(check_neighbours(&places, own)))?
            }
        }
    }
    Ok(())
}

fn answer(answer: &WorkerReply) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for line in lines(answer) {
        out.write_all(line.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

/// Checks the neighbours of this host at the same time, since each check may take long.
fn check_neighbours(places: &BTreeMap<usize, HostEndpoint>, own: usize) -> Vec<NeighbourView> {
    let reaches = places.get(&own).map(|place| place.reaches.as_slice());
    let reaches = reaches.unwrap_or_default().iter();
    std::thread::scope(|scope| {
        let looks: Vec<_> = reaches
            .filter_map(|number| Some((*number, places.get(number)?)))
            .map(|(number, place)| scope.spawn(move || resolve_neighbour(number, place)))
            .collect();
        looks
            .into_iter()
            .filter_map(|look| look.join().ok())
            .collect()
    })
}

fn resolve_neighbour(number: usize, place: &HostEndpoint) -> NeighbourView {
    let forward = addresses_of(&place.name);
    let back = forward
        .as_ref()
        .ok()
        .and_then(|all| address_names::resolve_name(*all.first()?));
    // A name with addresses of another host is a separate finding, and proves nothing about the network.
    let named = forward.as_ref().map_or(&[][..], Vec::as_slice);
    let theirs = |at: &&IpAddr| place.addresses.contains(at);
    let mut targets: Vec<IpAddr> = named.iter().filter(theirs).copied().collect();
    if targets.is_empty() {
        targets.clone_from(&place.addresses);
        targets.truncate(1);
    }
    if targets.iter().any(IpAddr::is_ipv4) {
        targets.retain(IpAddr::is_ipv4);
    }
    NeighbourView {
        host: number,
        unreached: unreached(&targets, place.port),
        forward,
        back,
    }
}

/// Returns the reason why one of these addresses cannot be reached, if any.
fn unreached(targets: &[IpAddr], port: u16) -> Option<String> {
    if port == 0 {
        return None;
    }
    targets.iter().find_map(|ip| {
        let at = SocketAddr::new(*ip, port);
        let error = TcpStream::connect_timeout(&at, CONNECT).err()?;
        // The text has no port, which differs each time: hosts with the same fault are shown together.
        Some(format!("{ip}, at a port above 1024: {error}"))
    })
}
