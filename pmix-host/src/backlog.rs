//! Bounds the output that libpmix keeps for clients and tools that do not read.
//!
//! libpmix queues without limit what a client does not take, and does not say what it has queued. But the kernel
//! knows of each connection whether it holds data that the other end does not take, and how many bytes that has
//! taken. So the bytes that were handed to libpmix since a connection was last seen without such data, less those
//! that it has taken since, are what libpmix may keep for it. Beyond [`MOST`] further output is dropped for all
//! subscribers of this server, since libpmix does not name them, until the connection has caught up.

use std::collections::BTreeMap;
use std::ffi::c_int;

use crate::acks;

/// Bytes of output that libpmix may keep for one connection.
const MOST: u64 = 32 << 20;

/// Bytes that are handed over between two looks at the connections.
const BETWEEN: u64 = 1 << 20;

/// A connection as the kernel sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) fd: c_int,
    /// It has data that could not be sent yet.
    pub(crate) waits: bool,
    /// Bytes that the other end has taken.
    pub(crate) taken: u64,
}

/// What is to be done with a piece of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Pass,
    Drop,
    /// The first that is dropped.
    DropAndTell,
}

/// A moment in the life of a connection.
#[derive(Clone, Copy, Debug)]
struct Mark {
    handed: u64,
    taken: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Bytes handed to libpmix.
    handed: u64,
    /// The same at the last look.
    looked: u64,
    /// The connections that had data at the last look, and when they last had none.
    behind: BTreeMap<c_int, Mark>,
    full: bool,
}

impl Backlog {
    /// Judges a piece of output. The end of a stream, which has no bytes, always passes.
    pub(crate) fn judge(&mut self, bytes: usize, look: impl FnOnce() -> Vec<Seen>) -> Verdict {
        let was_full = self.full;
        if self.full || self.handed - self.looked >= BETWEEN {
            self.look(look());
        }
        match (bytes, self.full) {
            (0, _) => Verdict::Pass,
            (_, true) if was_full => Verdict::Drop,
            (_, true) => Verdict::DropAndTell,
            (bytes, false) => {
                self.handed += bytes as u64;
                Verdict::Pass
            }
        }
    }

    fn look(&mut self, connections: Vec<Seen>) {
        let before = std::mem::take(&mut self.behind);
        let now = self.handed;
        let mut most = 0;
        for seen in connections.into_iter().filter(|seen| seen.waits) {
            let Seen { fd, taken, .. } = seen;
            // One that waited at no look before may have waited since the last. One that has taken less
            // than before is another.
            let known = before.get(&fd).filter(|mark| mark.taken <= taken);
            let mark = known.copied().unwrap_or(Mark {
                handed: self.looked,
                taken,
            });
            most = most.max((now - mark.handed).saturating_sub(taken - mark.taken));
            self.behind.insert(fd, mark);
        }
        self.looked = now;
        self.full = match self.full {
            true => most > MOST / 2,
            false => most > MOST,
        };
    }
}

/// All connections of clients and tools.
pub(crate) fn connections() -> Vec<Seen> {
    acks::looked_after().filter_map(see).collect()
}

/// `None` for what is no connection any more.
fn see(fd: c_int) -> Option<Seen> {
    // SAFETY: plain numbers, for which 0 is a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
    let into = (&raw mut info).cast();
    // SAFETY: there is room for `size` bytes. A closed descriptor, or one of another kind, is refused.
    let done =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut size) };
    (done == 0).then_some(Seen {
        fd,
        waits: info.tcpi_notsent_bytes > 0,
        taken: info.tcpi_bytes_acked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(fd: c_int, waits: bool, taken: u64) -> Seen {
        Seen { fd, waits, taken }
    }

    /// Hands over pieces of a megabyte until one is dropped, while connections take what `taken` says of the
    /// number of megabytes; how many passed.
    fn passed(backlog: &mut Backlog, most: u64, taken: impl Fn(u64) -> Vec<Seen>) -> u64 {
        let fits = |megabytes: &u64| {
            let verdict = backlog.judge(1 << 20, || taken(*megabytes));
            verdict == Verdict::Pass
        };
        (0..most).take_while(fits).count() as u64
    }

    #[test]
    fn output_is_dropped_when_a_connection_takes_nothing_and_passes_again_when_it_does() {
        let mut backlog = Backlog::default();
        let stuck = |_| vec![seen(7, true, 100), seen(8, false, 5)];
        assert_eq!(passed(&mut backlog, 1000, stuck), 33);
        let look = || vec![seen(7, true, 100)];
        assert_eq!(backlog.judge(9, look), Verdict::Drop);
        assert_eq!(backlog.judge(0, look), Verdict::Pass);
        // It has caught up by half.
        let look = || vec![seen(7, true, 100 + (17 << 20))];
        assert_eq!(backlog.judge(9, look), Verdict::Pass);
        let look = || vec![seen(7, true, 100 + (17 << 20))];
        assert_eq!(passed(&mut backlog, 1000, |_| look()), 16);
    }

    #[test]
    fn the_first_that_is_dropped_is_told() {
        let mut backlog = Backlog::default();
        let verdicts: Vec<Verdict> = (0..40)
            .map(|_| backlog.judge(1 << 20, || vec![seen(7, true, 0)]))
            .collect();
        let told = verdicts.iter().filter(|v| **v == Verdict::DropAndTell);
        assert_eq!((told.count(), verdicts[33]), (1, Verdict::DropAndTell));
    }

    #[test]
    fn a_connection_that_is_slow_or_gone_or_another_holds_nothing_up() {
        // It takes all, a little late.
        let slow = |megabytes: u64| vec![seen(7, true, megabytes.saturating_sub(5) << 20)];
        assert_eq!(passed(&mut Backlog::default(), 500, slow), 500);
        // Its number is another's before it is too much.
        let other = |megabytes: u64| vec![seen(7, true, 1000 - megabytes / 20)];
        assert_eq!(passed(&mut Backlog::default(), 500, other), 500);
        // It goes, and another comes.
        let other = |megabytes: u64| match megabytes % 20 {
            0 => Vec::new(),
            _ => vec![seen(7, true, megabytes)],
        };
        assert_eq!(passed(&mut Backlog::default(), 500, other), 500);
    }
}
