//! The attached client of a keeper: how far it has the output.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::detached::attach_messages::{AttachReply, AttachRequest};
use crate::detached::keeper_connection::{AttachConnection, InvalidMessage};
use crate::detached::output_buffer::{OutputBuffer, PIECE};

/// Bytes on their way to the client, beyond which nothing is added.
const WINDOW: usize = 256 << 10;

/// A client that shows nothing for this time no longer holds the job up: its terminal may be suspended, or on a machine
/// that sleeps.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct AttachedClient {
    connection: AttachConnection,
    /// Position of what is sent next.
    sent: u64,
    /// Position of what it shows next.
    shown: u64,
    /// It has been sent the exit status.
    exit_sent: bool,
    /// When it last had nothing to show, or showed something.
    progress: Instant,
}

impl AttachedClient {
    pub(super) fn new(connection: AttachConnection, shown: u64, now: Instant) -> Self {
        Self {
            connection,
            sent: shown,
            shown,
            exit_sent: false,
            progress: now,
        }
    }

    /// How long it may still hold the job up.
    pub(super) fn patience(&self, now: Instant) -> Duration {
        (self.progress + PATIENCE).saturating_duration_since(now)
    }

    /// What it is polled for; with `reads`, its messages too.
    pub(super) fn interest(&self, reads: bool) -> PollFlags {
        let read = if reads {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        match self.connection.queued() {
            0 => read,
            _ => read | PollFlags::OUT,
        }
    }

    /// Reads once; false when it is gone.
    pub(super) fn read(&mut self) -> bool {
        self.connection.read()
    }

    pub(super) fn next(&mut self) -> Result<Option<AttachRequest>, InvalidMessage> {
        self.connection.next()
    }

    /// It has shown this number of further bytes; the position that is shown next.
    pub(super) fn shows(&mut self, bytes: u64, now: Instant) -> u64 {
        self.shown = self.shown.saturating_add(bytes).min(self.sent);
        self.progress = now;
        self.shown
    }

    /// Sends the output that there is, and the exit status after the last; false when the client is gone.
    pub(super) fn send(&mut self, output: &OutputBuffer, code: Option<u8>, now: Instant) -> bool {
        if self.sent == self.shown {
            self.progress = now;
        }
        while self.connection.queued() < WINDOW
            && let Some(piece) = output.at(self.sent)
        {
            if piece.lost_bytes > 0 {
                self.connection.queue(&AttachReply::Lost(piece.lost_bytes));
            }
            let bytes = &piece.bytes[..piece.bytes.len().min(PIECE)];
            self.connection
                .queue(&AttachReply::Output(piece.stream, bytes.to_vec()));
            self.sent += piece.lost_bytes + bytes.len() as u64;
        }
        if let Some(code) = code
            && self.sent >= output.end()
            && !self.exit_sent
        {
            self.exit_sent = true;
            self.connection.queue(&AttachReply::Ended(code));
        }
        self.connection.flush()
    }
}

impl AsFd for AttachedClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::detached::attach_messages::LauncherStream;

    #[test]
    fn a_client_that_shows_nothing_for_a_while_no_longer_holds_the_job_up() {
        let (_client, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut viewer = AttachedClient::new(AttachConnection::new(socket.into()), 0, start);
        let mut output = OutputBuffer::new(1000);
        // That nothing was printed for long is not its fault.
        let printed = start + 100 * second;
        output.push(LauncherStream::Stdout, b"three");
        assert!(viewer.send(&output, None, printed));
        assert_eq!(viewer.patience(printed + second), PATIENCE - second);
        // More to show is no progress, to have shown some is.
        output.push(LauncherStream::Stdout, b"more");
        assert!(viewer.send(&output, None, printed + 2 * second));
        assert_eq!(viewer.patience(printed + PATIENCE), Duration::ZERO);
        assert_eq!(viewer.shows(5, printed + 5 * second), 5);
        assert_eq!(viewer.patience(printed + PATIENCE), 5 * second);
        // It cannot have shown what it was not sent.
        assert_eq!(viewer.shows(100, printed + 6 * second), 9);
    }
}
