//! Bounds the output that libpmix keeps for clients and tools that do not read.
//!
//! libpmix queues without limit the data that a client does not take, and does not report its queue. But the kernel
//! knows of each connection whether it holds data that the other end does not take, and how many bytes that end has
//! taken. So the bytes that were handed to libpmix since a connection was last seen without such data, less those that
//! it has taken since, are the most that libpmix may keep for it. Beyond [`MOST`] further output waits until the
//! connection has caught up. A connection that takes nothing for [`PATIENCE`] does not read. A tool's is closed. A
//! client needs its connection, so output is dropped for all subscribers of this server instead, since libpmix does not
//! name them.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use crate::tcp_acks;

/// Bytes of output that libpmix may keep for one connection.
const MOST: u64 = 32 << 20;

/// Bytes that are handed over between two inspections of the connections.
const BETWEEN: u64 = 1 << 20;

/// Time for which a connection that is too far behind may take nothing.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection as the kernel sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ConnectionBacklog {
    pub(crate) fd: c_int,
    /// Whether a tool has opened the connection by itself.
    pub(crate) tool: bool,
    /// Whether the connection has data that could not be sent yet.
    pub(crate) waits: bool,
    /// Bytes that the other end has taken.
    pub(crate) acked_bytes: u64,
}

/// Decision on a piece of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OutputDecision {
    Pass,
    /// The connection is to be judged again later.
    Wait,
    Drop,
    /// The first that is dropped.
    DropAndTell,
}

/// A connection that has not taken all.
#[derive(Clone, Copy, Debug)]
struct StalledConnection {
    tool: bool,
    /// Bytes handed to libpmix, and bytes that this connection had taken, when it last had no unsent data.
    handed: u64,
    before: u64,
    /// Bytes that the connection has taken so far, and the time of the last change.
    acked_bytes: u64,
    moved: Instant,
    cut: bool,
}

impl StalledConnection {
    /// Bytes that libpmix may keep for it.
    fn queued_bytes(&self, handed: u64) -> u64 {
        (handed - self.handed).saturating_sub(self.acked_bytes - self.before)
    }
}

/// Output handed to libpmix, and the connections that have not taken all of it.
#[derive(Debug, Default)]
pub(crate) struct ClientBacklog {
    /// Bytes handed to libpmix in total.
    handed: u64,
    /// Bytes handed to libpmix at the last inspection of the connections.
    looked: u64,
    /// The connections that had data at the last look.
    marks: BTreeMap<c_int, StalledConnection>,
    full: bool,
    /// A client does not read.
    dropping: bool,
    drop_reported: bool,
    /// Connections to be cut off.
    stuck: Vec<c_int>,
}

impl ClientBacklog {
    /// Judges a piece of output. The end of a stream, which has no bytes, always passes.
    pub(crate) fn judge(
        &mut self,
        bytes: usize,
        now: Instant,
        look: impl FnOnce() -> Vec<ConnectionBacklog>,
    ) -> OutputDecision {
        if self.full || self.handed - self.looked >= BETWEEN {
            self.update_connections(look(), now);
        }
        match (bytes, self.full, self.dropping) {
            (0, ..) => OutputDecision::Pass,
            (_, true, true) if std::mem::replace(&mut self.drop_reported, true) => {
                OutputDecision::Drop
            }
            (_, true, true) => OutputDecision::DropAndTell,
            (_, true, false) => OutputDecision::Wait,
            (bytes, false, _) => {
                self.handed += bytes as u64;
                OutputDecision::Pass
            }
        }
    }

    /// Returns the connections of tools that do not read, each once.
    pub(crate) fn stuck(&mut self) -> Vec<c_int> {
        std::mem::take(&mut self.stuck)
    }

    fn update_connections(&mut self, connections: Vec<ConnectionBacklog>, now: Instant) {
        let before = std::mem::take(&mut self.marks);
        for connection in connections
            .into_iter()
            .filter(|connection| connection.waits)
        {
            // One that waited at no look before may have waited since the last. One that has taken less
            // than before is another.
            let known = before
                .get(&connection.fd)
                .filter(|mark| mark.acked_bytes <= connection.acked_bytes);
            let mark = match known {
                Some(mark) => StalledConnection {
                    acked_bytes: connection.acked_bytes,
                    moved: if mark.acked_bytes < connection.acked_bytes {
                        now
                    } else {
                        mark.moved
                    },
                    ..*mark
                },
                None => StalledConnection {
                    tool: connection.tool,
                    handed: self.looked,
                    before: connection.acked_bytes,
                    acked_bytes: connection.acked_bytes,
                    moved: now,
                    cut: false,
                },
            };
            self.marks.insert(connection.fd, mark);
        }
        self.looked = self.handed;
        let limit = if self.full { MOST / 2 } else { MOST };
        self.full = false;
        self.dropping = false;
        for (fd, mark) in &mut self.marks {
            if mark.cut || mark.queued_bytes(self.handed) <= limit {
                continue;
            }
            let stuck = now.saturating_duration_since(mark.moved) >= PATIENCE;
            if stuck && mark.tool {
                mark.cut = true;
                self.stuck.push(*fd);
            } else {
                self.full = true;
                self.dropping |= stuck;
            }
        }
        self.drop_reported &= self.dropping;
    }
}

/// Returns all connections of clients and tools.
pub(crate) fn connections() -> Vec<ConnectionBacklog> {
    tcp_acks::tracked_connections().filter_map(see).collect()
}

/// Returns the backlog of a connection; `None` for a descriptor that is no connection any more.
fn see(fd: c_int) -> Option<ConnectionBacklog> {
    // SAFETY: plain numbers, for which 0 is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
    let into = (&raw mut info).cast();
    // SAFETY: there is room for `size` bytes. A closed descriptor, or one of another kind, is refused.
    let done =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut size) };
    (done == 0).then_some(ConnectionBacklog {
        fd,
        tool: tcp_acks::is_tool(fd),
        waits: info.tcpi_notsent_bytes > 0,
        acked_bytes: info.tcpi_bytes_acked,
    })
}

/// Ends a connection: libpmix sees that the tool is gone, and keeps no more data for it.
pub(crate) fn cut_off(fd: c_int) {
    // SAFETY: it was a connection a moment ago. The kernel refuses a descriptor that is none.
    let connection = unsafe { BorrowedFd::borrow_raw(fd) };
    let _ = shutdown(connection, Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABYTE: usize = 1 << 20;

    fn connection(fd: c_int, waits: bool, taken: u64) -> ConnectionBacklog {
        ConnectionBacklog {
            fd,
            tool: fd >= 100,
            waits,
            acked_bytes: taken,
        }
    }

    /// Hands over pieces of a megabyte until one does not pass, while connections take what `acked_bytes` says of the
    /// number of megabytes; how many passed.
    fn passed(
        backlog: &mut ClientBacklog,
        now: Instant,
        most: u64,
        taken: impl Fn(u64) -> Vec<ConnectionBacklog>,
    ) -> u64 {
        let fits = |megabytes: &u64| {
            let verdict = backlog.judge(MEGABYTE, now, || taken(*megabytes));
            verdict == OutputDecision::Pass
        };
        (0..most).take_while(fits).count() as u64
    }

    #[test]
    fn output_waits_for_slow_connection_until_it_catches_up() {
        let (mut backlog, mut now) = (ClientBacklog::default(), Instant::now());
        let behind = |_| vec![connection(7, true, 100), connection(8, false, 5)];
        assert_eq!(passed(&mut backlog, now, 1000, behind), 33);
        for megabytes in 0..16 {
            now += PATIENCE / 2;
            let look = || vec![connection(7, true, 100 + (megabytes << 20))];
            assert_eq!(backlog.judge(9, now, look), OutputDecision::Wait);
            assert_eq!(backlog.judge(0, now, look), OutputDecision::Pass);
        }
        let look = || vec![connection(7, true, 100 + (17 << 20))];
        assert_eq!(backlog.judge(9, now, look), OutputDecision::Pass);
        assert_eq!(passed(&mut backlog, now, 1000, |_| look()), 16);
        assert!(backlog.stuck().is_empty());
    }

    #[test]
    fn blocked_tool_is_cut_off_once_and_others_get_all_output() {
        let (mut backlog, now) = (ClientBacklog::default(), Instant::now());
        let stuck = || vec![connection(100, true, 5)];
        assert_eq!(passed(&mut backlog, now, 1000, |_| stuck()), 33);
        let soon = now + PATIENCE - Duration::from_millis(1);
        assert_eq!(backlog.judge(9, soon, stuck), OutputDecision::Wait);
        assert!(backlog.stuck().is_empty());
        assert_eq!(
            backlog.judge(9, now + PATIENCE, stuck),
            OutputDecision::Pass
        );
        assert_eq!(backlog.stuck(), [100]);
        let later = now + PATIENCE * 5;
        assert_eq!(passed(&mut backlog, later, 100, |_| stuck()), 100);
        assert!(backlog.stuck().is_empty());
    }

    #[test]
    fn output_for_blocked_client_is_dropped_and_reported_once() {
        let (mut backlog, now) = (ClientBacklog::default(), Instant::now());
        let stuck = || vec![connection(7, true, 0)];
        assert_eq!(passed(&mut backlog, now, 1000, |_| stuck()), 33);
        assert_eq!(backlog.judge(9, now, stuck), OutputDecision::Wait);
        let later = now + PATIENCE;
        assert_eq!(backlog.judge(9, later, stuck), OutputDecision::DropAndTell);
        assert_eq!(backlog.judge(9, later, stuck), OutputDecision::Drop);
        assert_eq!(backlog.judge(0, later, stuck), OutputDecision::Pass);
        let moves = || vec![connection(7, true, 1 << 20)];
        assert_eq!(backlog.judge(9, later, moves), OutputDecision::Wait);
    }

    #[test]
    fn slow_closed_or_reused_connection_blocks_nothing() {
        let now = Instant::now();
        // It takes all, a little late.
        let slow = |megabytes: u64| vec![connection(7, true, megabytes.saturating_sub(5) << 20)];
        assert_eq!(passed(&mut ClientBacklog::default(), now, 500, slow), 500);
        // Its number is another's before it is too much.
        let other = |megabytes: u64| vec![connection(7, true, 1000 - megabytes / 20)];
        assert_eq!(passed(&mut ClientBacklog::default(), now, 500, other), 500);
        // It goes, and another comes.
        let other = |megabytes: u64| match megabytes % 20 {
            0 => Vec::new(),
            _ => vec![connection(7, true, megabytes)],
        };
        assert_eq!(passed(&mut ClientBacklog::default(), now, 500, other), 500);
    }
}
