//! Relays and records the conversations of clients with their server, and of their hosts.
//!
//! For the connections of hosts it replaces their ports in the bytes of the server. It listens at the address of each
//! host if that is this machine's, so that hosts which identify each other by their addresses still do; otherwise it
//! replaces the address too. Everything is recorded as it was sent.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use wireup_impi_core::kit::conversation_record::{ConversationSide, Kind};
use wireup_impi_core::kit::rewrite::Rewriter;
use wireup_impi_core::packet::{host_address, host_bytes};
use wireup_impi_core::world::Label;

use super::recorder::Recorder;
use crate::stream::connect_from;

/// Interval of checks for the end.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
/// Time for an end to connect or to send its rank.
const PATIENCE: Duration = Duration::from_secs(20);

/// The place of a host that the proxy has taken.
#[derive(Debug)]
struct ProxiedHost {
    /// IP address of the host, without its port.
    address: IpAddr,
    listener: TcpListener,
}

#[derive(Debug, Default)]
struct ProxyProgress {
    places: Arc<Vec<ProxiedHost>>,
    /// Whether the places accept connections.
    open: bool,
    /// Whether all clients have joined.
    formed: bool,
    /// Connections of clients and hosts.
    running: usize,
    /// The server cannot be reached.
    failed: Option<io::Error>,
}

#[derive(Debug)]
struct ProxyState {
    server: String,
    /// Address of the proxy for hosts whose own address it does not have.
    address: IpAddr,
    recorder: Recorder,
    progress: Mutex<ProxyProgress>,
}

impl ProxyState {
    fn progress(&self) -> std::sync::MutexGuard<'_, ProxyProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves one job: returns when all who took part have ended.
///
/// # Errors
/// When the listener fails or the server cannot be reached.
pub fn run(
    listener: &TcpListener,
    server: &str,
    address: IpAddr,
    recorder: Recorder,
) -> io::Result<()> {
    let shared = Arc::new(ProxyState {
        server: server.to_owned(),
        address,
        recorder,
        progress: Mutex::default(),
    });
    loop {
        {
            let mut progress = shared.progress();
            if let Some(error) = progress.failed.take() {
                return Err(error);
            }
            if progress.formed && progress.running == 0 {
                return Ok(());
            }
        }
        if let Some(client) = accept(listener)? {
            shared.progress().running += 1;
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                if let Err(error) = serve_client(&shared, client) {
                    shared.progress().failed = Some(error);
                }
                shared.progress().running -= 1;
            });
        }
    }
}

/// Returns the next connection, if one arrives before the next check for the end.
fn accept(listener: &TcpListener) -> io::Result<Option<TcpStream>> {
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&TICK)) {
        Ok(0) | Err(Errno::INTR) => return Ok(None),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    match listener.accept() {
        Ok((stream, _)) => Ok(Some(stream)),
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
        Err(error) => Err(error),
    }
}

fn serve_client(shared: &Arc<ProxyState>, client: TcpStream) -> io::Result<()> {
    let server = TcpStream::connect(&shared.server)?;
    let connection = shared.recorder.open(Kind::Server);
    let mut rewriter = Rewriter::default();
    let rewrite = |bytes: &[u8]| {
        rewriter.feed(bytes, |label, value| {
            // Labels are answered once all clients have joined.
            shared.progress().formed = true;
            replaced(shared, label, value)
        })
    };
    relay_both_ways(shared, connection, client, server, rewrite);
    Ok(())
}

/// Returns the value of a label that clients get in place of the server's.
fn replaced(shared: &Arc<ProxyState>, label: Label, value: &[u8]) -> Option<Vec<u8>> {
    let mut progress = shared.progress();
    match label {
        Label::HostAddress => {
            let (addresses, _) = value.as_chunks::<16>();
            if progress.places.is_empty() {
                let places = addresses
                    .iter()
                    .map(|bytes| place(host_address(*bytes), shared.address));
                progress.places = Arc::new(places.collect::<io::Result<_>>().ok()?);
            }
            let addresses = progress.places.iter().zip(addresses).map(|(place, bytes)| {
                let own = place.listener.local_addr().ok()?.ip();
                Some(if own == place.address {
                    *bytes
                } else {
                    host_bytes(own)
                })
            });
            Some(addresses.collect::<Option<Vec<_>>>()?.concat())
        }
        Label::HostPort => {
            let (ports, _) = value.as_chunks::<4>();
            let port = |bytes: &[u8; 4]| u16::try_from(u32::from_be_bytes(*bytes)).ok();
            let ports: Vec<u16> = ports.iter().map(port).collect::<Option<_>>()?;
            if !std::mem::replace(&mut progress.open, true) {
                for (host, port) in ports.iter().enumerate().take(progress.places.len()) {
                    let (shared, places) = (Arc::clone(shared), Arc::clone(&progress.places));
                    let port = *port;
                    std::thread::spawn(move || serve_host(&shared, &places, host, port));
                }
            }
            let own = progress.places.iter().map(|place| {
                let port = place.listener.local_addr().ok()?.port();
                Some(u32::from(port).to_be_bytes())
            });
            Some(own.collect::<Option<Vec<_>>>()?.concat())
        }
        _ => None,
    }
}

fn place(address: IpAddr, otherwise: IpAddr) -> io::Result<ProxiedHost> {
    let listener =
        TcpListener::bind((address, 0)).or_else(|_| TcpListener::bind((otherwise, 0)))?;
    Ok(ProxiedHost { address, listener })
}

/// Accepts for a host until the job is over.
fn serve_host(shared: &Arc<ProxyState>, places: &Arc<Vec<ProxiedHost>>, host: usize, port: u16) {
    let to = SocketAddr::new(places[host].address, port);
    loop {
        match accept(&places[host].listener) {
            Ok(Some(other)) => {
                shared.progress().running += 1;
                let (shared, places) = (Arc::clone(shared), Arc::clone(places));
                std::thread::spawn(move || {
                    // An end that cannot be reached shows as a connection that ends.
                    let _ = forward(&shared, &places, host, to, other);
                    shared.progress().running -= 1;
                });
            }
            Ok(None) if shared.progress().running > 0 => {}
            _ => return,
        }
    }
}

fn forward(
    shared: &Arc<ProxyState>,
    places: &[ProxiedHost],
    host: usize,
    to: SocketAddr,
    mut other: TcpStream,
) -> io::Result<()> {
    // The rank determines from which address the host would have connected.
    let mut rank = [0; 4];
    other.set_read_timeout(Some(PATIENCE))?;
    other.read_exact(&mut rank)?;
    other.set_read_timeout(None)?;
    let from = places
        .get(u32::from_be_bytes(rank) as usize)
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |place| place.address);
    let real = connect_from(from, to, PATIENCE)
        .or_else(|_| connect_from(Ipv4Addr::UNSPECIFIED.into(), to, PATIENCE))?;
    let connection = shared.recorder.open(Kind::Host(host));
    shared
        .recorder
        .bytes(connection, ConversationSide::Forth, &rank);
    (&real).write_all(&rank)?;
    relay_both_ways(shared, connection, other, real, <[u8]>::to_vec);
    Ok(())
}

/// Passes bytes in both directions until both have ended.
fn relay_both_ways(
    shared: &Arc<ProxyState>,
    connection: u32,
    forth: TcpStream,
    back: TcpStream,
    change: impl FnMut(&[u8]) -> Vec<u8>,
) {
    // A delay that both ends would not have seen.
    let _ = (forth.set_nodelay(true), back.set_nodelay(true));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let copy = <[u8]>::to_vec;
            pass(
                &shared.recorder,
                connection,
                ConversationSide::Forth,
                &forth,
                &back,
                copy,
            );
        });
        pass(
            &shared.recorder,
            connection,
            ConversationSide::Back,
            &back,
            &forth,
            change,
        );
    });
}

fn pass(
    recorder: &Recorder,
    connection: u32,
    direction: ConversationSide,
    mut from: &TcpStream,
    mut to: &TcpStream,
    mut change: impl FnMut(&[u8]) -> Vec<u8>,
) {
    let mut piece = vec![0; 64 * 1024];
    // A connection that breaks ends like one that is closed.
    while let Ok(count @ 1..) = from.read(&mut piece) {
        recorder.bytes(connection, direction, &piece[..count]);
        if to.write_all(&change(&piece[..count])).is_err() {
            let _ = from.shutdown(Shutdown::Read);
            break;
        }
    }
    recorder.end(connection, direction);
    let _ = to.shutdown(Shutdown::Write);
}
