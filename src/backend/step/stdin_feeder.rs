//! Writes standard input to local ranks: one piece at a time, to all that still read.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, ioctl_fionread};

use wireup_core::job::ids::GlobalRank;
use wireup_sys::poll::{Interest, Poll, PollSource, PollToken};

/// Stdin pipe of one rank.
#[derive(Debug)]
struct RankStdin {
    rank: GlobalRank,
    pipe: OwnedFd,
    /// Number of bytes of the current piece that are in the pipe.
    done: usize,
    /// Number of bytes of all pieces that were written to the pipe.
    written: u64,
}

impl RankStdin {
    /// Whether its rank has read some of the input.
    fn is_read(&self) -> bool {
        ioctl_fionread(&self.pipe).is_ok_and(|unread| unread < self.written)
    }
}

/// Shortest and longest interval between checks for the first read. The kernel does not report reads of a pipe.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(200));

/// Search for the first read of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum FirstRead {
    /// No input was written yet.
    #[default]
    NoInput,
    /// The next check is at this time, and the one after it after this interval.
    Awaited {
        at: Duration,
        interval: Duration,
    },
    /// A rank has read, and that is not reported yet.
    Found,
    Reported,
}

/// Writer of standard input to the local ranks.
#[derive(Debug, Default)]
pub(super) struct StdinFeeder {
    feeds: Vec<RankStdin>,
    piece: Option<Vec<u8>>,
    /// Due report to the launcher: whether a rank still reads.
    pub(super) report: Option<bool>,
    first_read: FirstRead,
}

impl StdinFeeder {
    /// Takes over the writing ends of the pipes of the ranks that read.
    pub(super) fn add(&mut self, pipes: Vec<(GlobalRank, OwnedFd)>, poll: &Poll) {
        for (rank, pipe) in pipes {
            // The kernel reports the loss of the readers even without registration for events.
            let token = PollToken::new(PollSource::Feed, rank.0);
            let watched = fcntl_setfl(&pipe, OFlags::NONBLOCK)
                .and_then(|()| poll.add(&pipe, token))
                .and_then(|()| poll.set(&pipe, token, Interest::Paused));
            if watched.is_ok() {
                self.feeds.push(RankStdin {
                    rank,
                    pipe,
                    done: 0,
                    written: 0,
                });
            }
        }
    }

    /// Takes the next piece; empty at the end of the input.
    pub(super) fn input(&mut self, piece: Vec<u8>, now: Duration, poll: &Poll) {
        if piece.is_empty() {
            for feed in self.feeds.drain(..) {
                let _ = poll.remove(&feed.pipe);
            }
            self.piece = None;
            return;
        }
        if self.first_read == FirstRead::NoInput {
            let (interval, _) = LOOK;
            let at = now + interval;
            self.first_read = FirstRead::Awaited { at, interval };
        }
        self.piece = Some(piece);
        for feed in &mut self.feeds {
            feed.done = 0;
        }
        let ranks: Vec<GlobalRank> = self.feeds.iter().map(|feed| feed.rank).collect();
        for rank in ranks {
            self.write(rank, poll);
        }
        self.update_report();
    }

    /// Handles a pipe that is writable, or has lost its readers.
    pub(super) fn ready(&mut self, rank: GlobalRank, poll: &Poll) {
        self.write(rank, poll);
        self.update_report();
    }

    /// Returns the time at which [`Self::find_first_read`] must be called next.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        match self.first_read {
            FirstRead::Awaited { at, .. } if !self.feeds.is_empty() => Some(at),
            _ => None,
        }
    }

    /// Returns true once, when a rank has read some of the input.
    pub(super) fn find_first_read(&mut self, now: Duration) -> bool {
        match self.first_read {
            FirstRead::Found => {}
            FirstRead::Awaited { at, interval } if at <= now => {
                if !self.feeds.iter().any(RankStdin::is_read) {
                    let (_, longest) = LOOK;
                    let interval = (2 * interval).min(longest);
                    let at = now + interval;
                    self.first_read = FirstRead::Awaited { at, interval };
                    return false;
                }
            }
            _ => return false,
        }
        self.first_read = FirstRead::Reported;
        true
    }

    /// Writes the rest of the current piece to a rank. Without a piece, its pipe is ready only if it has lost its readers.
    fn write(&mut self, rank: GlobalRank, poll: &Poll) {
        let Some(at) = self.feeds.iter().position(|feed| feed.rank == rank) else {
            return;
        };
        let feed = &mut self.feeds[at];
        let token = PollToken::new(PollSource::Feed, rank.0);
        let rest = self.piece.as_ref().map(|piece| &piece[feed.done..]);
        let open = match rest {
            None | Some([]) => false,
            Some(rest) => loop {
                match rustix::io::write(&feed.pipe, rest) {
                    Ok(count) => {
                        feed.done += count;
                        feed.written += count as u64;
                        let interest = match count < rest.len() {
                            true => Interest::Write,
                            false => Interest::Paused,
                        };
                        break poll.set(&feed.pipe, token, interest).is_ok();
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => {
                        break poll.set(&feed.pipe, token, Interest::Write).is_ok();
                    }
                    Err(_) => break false,
                }
            },
        };
        if !open {
            let feed = self.feeds.swap_remove(at);
            if feed.is_read() && matches!(self.first_read, FirstRead::Awaited { .. }) {
                self.first_read = FirstRead::Found;
            }
            let _ = poll.remove(&feed.pipe);
        }
    }

    /// Makes the report due once all ranks have the piece, or none reads any more.
    fn update_report(&mut self) {
        let waiting = match &self.piece {
            Some(piece) => self.feeds.iter().any(|feed| feed.done < piece.len()),
            None => !self.feeds.is_empty(),
        };
        if !waiting {
            self.piece = None;
            self.report = Some(!self.feeds.is_empty());
        }
    }
}
