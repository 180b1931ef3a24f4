//! Queues of input that processes push to local ranks (`PMIx_IOF_push`), and the stdin pipes that they fill.
//!
//! Senders that wait until their input is read are limited by the reader. Input of other senders is bounded: more than
//! `WAITING_MAX` queued bytes are refused.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use wireup_core::job::ids::GlobalRank;
use wireup_core::node::event::StdinWriteResult;
use wireup_sys::poll::{Interest, Poll, PollSource, PollToken};

/// Maximum number of bytes that are queued for a rank.
const WAITING_MAX: usize = 16 << 20;

/// Number of a piece without a waiting sender.
const NOBODY: u64 = 0;

/// Queued piece of input.
#[derive(Debug)]
struct PushedChunk {
    number: u64,
    bytes: Vec<u8>,
    /// Number of bytes that are in the pipe.
    done: usize,
}

/// Results of pieces of input, with their numbers.
pub(super) type PushResults = Vec<(u64, StdinWriteResult)>;

/// Pipe to the standard input of a rank that other processes fill.
#[derive(Debug)]
pub(super) struct PushPipe {
    pipe: OwnedFd,
    token: PollToken,
    pieces: VecDeque<PushedChunk>,
}

impl PushPipe {
    /// Takes over the writing end of a rank's pipe.
    pub(super) fn new(poll: &Poll, rank: GlobalRank, pipe: OwnedFd) -> std::io::Result<Self> {
        let token = PollToken::new(PollSource::Pushed, rank.0);
        fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        poll.add(&pipe, token)?;
        // The kernel reports the loss of the readers even without registration for events.
        poll.set(&pipe, token, Interest::Paused)?;
        Ok(Self {
            pipe,
            token,
            pieces: VecDeque::new(),
        })
    }

    /// Whether no input is queued.
    pub(super) fn is_idle(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns the number of queued bytes that are not in the pipe yet.
    fn waiting(&self) -> usize {
        let left = |piece: &PushedChunk| piece.bytes.len() - piece.done;
        self.pieces.iter().map(left).sum()
    }

    /// Queues input of a process. Returns false if too much is queued.
    pub(super) fn queue(&mut self, number: u64, bytes: &[u8]) -> bool {
        if self.waiting() + bytes.len() > WAITING_MAX {
            return false;
        }
        self.pieces.push_back(PushedChunk {
            number,
            bytes: bytes.to_vec(),
            done: 0,
        });
        true
    }

    /// Queues the end of file.
    pub(super) fn queue_end(&mut self) {
        self.pieces.push_back(PushedChunk {
            number: NOBODY,
            bytes: Vec::new(),
            done: 0,
        });
    }

    /// Closes the pipe. Returns the results of the pieces that the rank did not get.
    pub(super) fn close(self, poll: &Poll) -> PushResults {
        let _ = poll.remove(&self.pipe);
        let lost = self.pieces.iter();
        lost.map(|piece| (piece.number, StdinWriteResult::Gone))
            .collect()
    }

    /// Writes as much as fits. Returns the results of pieces, and whether more can be written later.
    pub(super) fn write(&mut self, poll: &Poll) -> (PushResults, bool) {
        let mut results = Vec::new();
        let mut gone = false;
        while let Some(piece) = self.pieces.front_mut() {
            if piece.bytes.is_empty() {
                results.push((piece.number, StdinWriteResult::Done));
                self.pieces.pop_front();
                gone = true;
                break;
            }
            match rustix::io::write(&self.pipe, &piece.bytes[piece.done..]) {
                Ok(count) => piece.done += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    gone = true;
                    break;
                }
            }
            if piece.done == piece.bytes.len() {
                results.push((piece.number, StdinWriteResult::Done));
                self.pieces.pop_front();
            }
        }
        let interest = match self.pieces.is_empty() {
            true => Interest::Paused,
            false => Interest::Write,
        };
        let is_open = !gone && poll.set(&self.pipe, self.token, interest).is_ok();
        (results, is_open)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "for tests")]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    #[test]
    fn pushed_input_is_bounded_and_ends_in_order() {
        let poll = Poll::new().unwrap();
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        let mut pipe = PushPipe::new(&poll, GlobalRank(0), writer).unwrap();
        let half = vec![b'x'; WAITING_MAX / 2 + 1];
        assert!(pipe.queue(1, &half));
        assert!(!pipe.queue(2, &half));
        pipe.queue_end();
        let (mut results, mut read) = (Vec::new(), 0);
        let mut buffer = vec![0; 1 << 20];
        loop {
            let (written, is_open) = pipe.write(&poll);
            results.extend(written);
            if !is_open {
                break;
            }
            read += rustix::io::read(&reader, &mut buffer[..]).unwrap();
        }
        assert_eq!(pipe.close(&poll), []);
        while let Ok(count @ 1..) = rustix::io::read(&reader, &mut buffer[..]) {
            read += count;
        }
        let done = StdinWriteResult::Done;
        assert_eq!(results, [(1, done), (NOBODY, done)]);
        assert_eq!(read, half.len());
    }
}
