//! The rendezvous server on TCP: one thread, which polls. A client that does not read, or sends nothing, delays no
//! other.

mod client_connection;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use wireup_impi_core::server::{Action, ConnectionId, Server, ServerNotice, ServerSettings};

use crate::secrets::challenge;
use crate::stream::prepare;
use client_connection::{ClientLink, ConnectionProgress};

/// Descriptors that connections may occupy: members, strangers, and those that still have to read.
const MAX_LINKS: usize = 4096;

/// Serves until all sessions are over; returns whether all succeeded. Reports go to `words`, one line each. A byte in `exits`
/// means that a client's process has ended: a session that has not started by then cannot start.
///
/// # Errors
/// When the listener or the poll fails.
pub fn serve(
    listener: &TcpListener,
    settings: ServerSettings,
    tls: Option<&Arc<rustls::ServerConfig>>,
    mut exits: Option<&UnixStream>,
    words: &mut dyn Write,
) -> io::Result<bool> {
    listener.set_nonblocking(true)?;
    let mut driver = Driver {
        server: Server::new(settings),
        links: BTreeMap::new(),
        limit: MAX_LINKS,
        next: 0,
        start: Instant::now(),
        words,
        refusals: RefusalCount::default(),
    };
    loop {
        driver.act();
        if let Some(success) = driver.server.finished() {
            // Those that never joined are left.
            driver.links.retain(|_, link| link.is_finishing());
            if driver.links.is_empty() {
                return Ok(success);
            }
        }
        let events = driver.wait(listener, exits)?;
        for (id, flags) in events.ready {
            driver.move_bytes(id, flags);
        }
        if events.accept {
            driver.accept(listener, tls)?;
        }
        if events.exit {
            driver.server.abandon_startup();
            // The first exit decides.
            exits = None;
        }
        let now = driver.now();
        driver.server.tick(now);
        driver.links.retain(|_, link| !link.expired());
    }
}

/// Connections refused in this period: a flood of them must not fill the output.
#[derive(Default)]
struct RefusalCount {
    /// Start of the period, since that of the server.
    start: Duration,
    count: u64,
}

impl RefusalCount {
    /// Lines for refusals in a [`Self::PERIOD`].
    const LINES: u64 = 20;
    const PERIOD: Duration = Duration::from_secs(60);

    /// Returns the lines to print for a report: only those of refusals are bounded.
    fn lines(&mut self, report: &ServerNotice, now: Duration) -> Vec<String> {
        if !matches!(report, ServerNotice::Refused { .. }) {
            return vec![report.to_string()];
        }
        let mut lines = Vec::new();
        if now >= self.start + Self::PERIOD {
            let hidden = self.count.saturating_sub(Self::LINES);
            if hidden > 0 {
                lines.push(format!("{hidden} more connections were refused"));
            }
            (self.start, self.count) = (now, 0);
        }
        self.count += 1;
        if self.count <= Self::LINES {
            lines.push(report.to_string());
        }
        if self.count == Self::LINES {
            let (count, seconds) = (Self::LINES, Self::PERIOD.as_secs());
            lines.push(format!(
                "{count} connections refused within {seconds} s: further refusals are counted and not printed"
            ));
        }
        lines
    }
}

/// State of the sockets after a wait.
#[derive(Default)]
struct SocketEvents {
    /// Whether a client connects.
    accept: bool,
    /// Connections that can be read or written.
    ready: Vec<(ConnectionId, PollFlags)>,
    /// Whether a client's process has ended.
    exit: bool,
}

struct Driver<'a> {
    server: Server,
    links: BTreeMap<ConnectionId, ClientLink>,
    /// Maximum number of connections.
    limit: usize,
    next: u64,
    start: Instant,
    words: &'a mut dyn Write,
    refusals: RefusalCount,
}

impl Driver<'_> {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Executes the server's orders, until there are no more: a connection that breaks while it is written to may end
    /// a session, which must be reported before the server ends.
    fn act(&mut self) {
        loop {
            let actions = self.server.take_actions();
            let is_last = actions.is_empty();
            for action in actions {
                self.execute(action);
            }
            let ids: Vec<ConnectionId> = self.links.keys().copied().collect();
            for id in ids {
                self.flush(id);
            }
            if is_last {
                return;
            }
        }
    }

    fn execute(&mut self, action: Action) {
        match action {
            Action::Send(id, bytes) => {
                if let Some(link) = self.links.get_mut(&id) {
                    link.queue(&bytes);
                }
            }
            Action::Close(id) => {
                if let Some(link) = self.links.get_mut(&id) {
                    link.finish();
                }
            }
            // A reader that is gone is no reason to stop: `impirun -server 2 | head -1`.
            Action::Report(report) => {
                for line in self.refusals.lines(&report, self.start.elapsed()) {
                    drop(writeln!(self.words, "wireup impi: {line}"));
                }
            }
            Action::Ended { .. } => {}
        }
    }

    /// Waits for the sockets.
    fn wait(
        &mut self,
        listener: &TcpListener,
        exits: Option<&UnixStream>,
    ) -> io::Result<SocketEvents> {
        let mut until = self.server.next_deadline();
        if self.links.values().any(ClientLink::is_finishing) {
            let last = self.now() + client_connection::LINGER;
            until = Some(until.map_or(last, |at| at.min(last)));
        }
        let timeout = until.map(|at| at.saturating_sub(self.now()) + Duration::from_millis(1));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let listens = self.links.len() < self.limit && self.server.finished().is_none();
        let interest = if listens {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut fds = vec![PollFd::from_borrowed_fd(listener.as_fd(), interest)];
        let ids: Vec<ConnectionId> = self.links.keys().copied().collect();
        fds.extend(
            self.links
                .values()
                .map(|link| PollFd::from_borrowed_fd(link.as_fd(), link.interest())),
        );
        let links = fds.len();
        fds.extend(exits.map(|exits| PollFd::new(exits, PollFlags::IN)));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(SocketEvents::default()),
            Err(error) => return Err(error.into()),
        }
        let ready = ids
            .into_iter()
            .zip(&fds[1..])
            .map(|(id, fd)| (id, fd.revents()));
        Ok(SocketEvents {
            accept: listens && !fds[0].revents().is_empty(),
            ready: ready.filter(|(_, flags)| !flags.is_empty()).collect(),
            exit: fds[links..].iter().any(|fd| !fd.revents().is_empty()),
        })
    }

    fn accept(
        &mut self,
        listener: &TcpListener,
        tls: Option<&Arc<rustls::ServerConfig>>,
    ) -> io::Result<()> {
        let (stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            // No descriptor is left: the oldest that has not joined makes room. Without one the listener stays readable, and is
            // not looked at before a connection has ended.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::MFILE) => {
                if !self.server.drop_stranger() {
                    self.limit = self.links.len().max(1);
                }
                return Ok(());
            }
            // Gone again.
            Err(_) => return Ok(()),
        };
        let Ok(link) = prepare(&stream).and_then(|()| ClientLink::new(stream, tls)) else {
            return Ok(());
        };
        let id = ConnectionId(self.next);
        self.next += 1;
        self.links.insert(id, link);
        let now = self.now();
        self.server
            .connected(id, peer.to_string(), peer.ip(), challenge()?, now);
        Ok(())
    }

    fn move_bytes(&mut self, id: ConnectionId, flags: PollFlags) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            let mut bytes = Vec::new();
            let progress = link.read(&mut bytes);
            if !bytes.is_empty() {
                let now = self.start.elapsed();
                self.server.received(id, &bytes, now);
            }
            if progress == ConnectionProgress::Ended {
                self.server.closed(id);
                // What the peer no longer reads is not kept.
                self.links.remove(&id);
            }
        }
    }

    fn flush(&mut self, id: ConnectionId) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        match link.write() {
            Ok(ConnectionProgress::Going) => {}
            Ok(ConnectionProgress::Ended) => drop(self.links.remove(&id)),
            Err(_) => {
                self.links.remove(&id);
                self.server.closed(id);
            }
        }
    }
}

/// Binds the first free port of a range.
///
/// # Errors
/// When none is free, with the error of the last.
pub fn bind(
    address: std::net::IpAddr,
    ports: std::ops::RangeInclusive<u16>,
) -> io::Result<TcpListener> {
    let addresses: Vec<SocketAddr> = ports.map(|port| SocketAddr::new(address, port)).collect();
    TcpListener::bind(&addresses[..])
}
