//! The attached client of an attach server, and the output that it has.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::detached::attach_messages::{AttachReply, AttachRequest};
use crate::detached::keeper_connection::{AttachConnection, InvalidMessage};
use crate::detached::output_buffer::{OutputBuffer, PIECE};

/// Number of bytes on their way to the client at which no more are added.
const WINDOW: usize = 256 << 10;

/// Time after which a client that shows nothing no longer delays the job: its terminal may be suspended, or on a machine
/// that sleeps.
const PATIENCE: Duration = Duration::from_secs(10);

/// Progress of a launcher, as it has reported it.
#[derive(Debug, Default)]
pub(super) struct LauncherProgress {
    /// Position after the output of the look-ups, once these have ended.
    pub(super) lookup_output_end: Option<u64>,
    /// Source that a look-up waits for.
    pub(super) lookup_wait: Option<String>,
    /// Whether all ranks have been started.
    pub(super) is_started: bool,
    /// Exit code of a launcher that has ended.
    pub(super) code: Option<u8>,
}

/// Client that shows the output of the launcher.
pub(super) struct AttachedClient {
    connection: AttachConnection,
    /// Whether the client waits for the start of the job. Then it is sent the output of the look-ups only, unless the job
    /// ends before.
    awaits_start: bool,
    /// Position of the next byte to send.
    sent: u64,
    /// Position of the next byte that the client shows.
    shown: u64,
    /// Source that the client shows a look-up to wait for.
    lookup_wait: Option<String>,
    /// Whether the client was sent the exit status, or the reply that it waits for.
    is_answered: bool,
    /// Time at which the client last had nothing to show, or showed something.
    progress: Instant,
}

impl AttachedClient {
    pub(super) fn new(connection: AttachConnection, shown: u64, now: Instant) -> Self {
        Self {
            connection,
            awaits_start: false,
            sent: shown,
            shown,
            lookup_wait: None,
            is_answered: false,
            progress: now,
        }
    }

    /// Makes it a client that waits for the start of the job.
    pub(super) fn awaiting_start(self) -> Self {
        Self {
            awaits_start: true,
            ..self
        }
    }

    /// Returns the connection of a client that still waits for the start of the job.
    pub(super) fn into_waiting_connection(self) -> Option<AttachConnection> {
        (self.awaits_start && !self.is_answered).then_some(self.connection)
    }

    /// Returns the time for which the client may still delay the job.
    pub(super) fn patience(&self, now: Instant) -> Duration {
        match self.awaits_start {
            true => Duration::ZERO,
            false => (self.progress + PATIENCE).saturating_duration_since(now),
        }
    }

    /// Returns the events to poll; with `reads`, also those of its messages.
    pub(super) fn interest(&self, reads: bool) -> PollFlags {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, reads);
        flags.set(PollFlags::OUT, self.connection.queued() > 0);
        flags
    }

    /// Reads once; false when the client has disconnected.
    pub(super) fn read(&mut self) -> bool {
        self.connection.read()
    }

    pub(super) fn next(&mut self) -> Result<Option<AttachRequest>, InvalidMessage> {
        self.connection.next()
    }

    /// Records that the client has shown this number of further bytes. Returns the position of the next byte that it shows.
    pub(super) fn shows(&mut self, bytes: u64, now: Instant) -> u64 {
        self.shown = self.shown.saturating_add(bytes).min(self.sent);
        self.progress = now;
        self.shown
    }

    /// Sends the source that a look-up waits for, the output, and after its end the exit status or the reply that the client waits
    /// for. False when the client has disconnected.
    pub(super) fn send(
        &mut self,
        output: &OutputBuffer,
        launcher: &LauncherProgress,
        now: Instant,
    ) -> bool {
        if self.sent == self.shown {
            self.progress = now;
        }
        if self.lookup_wait != launcher.lookup_wait {
            self.lookup_wait.clone_from(&launcher.lookup_wait);
            let reply = AttachReply::LookupWait(self.lookup_wait.clone());
            self.connection.queue(&reply);
        }
        let is_started = self.awaits_start && launcher.is_started;
        let limit = match self.awaits_start && (is_started || launcher.code.is_none()) {
            true => launcher.lookup_output_end,
            false => None,
        };
        let end = limit.unwrap_or_else(|| output.end());
        while self.connection.queued() < WINDOW
            && self.sent < end
            && let Some(piece) = output.at(self.sent)
        {
            if piece.lost_bytes > 0 {
                self.connection.queue(&AttachReply::Lost(piece.lost_bytes));
            }
            self.sent += piece.lost_bytes;
            let rest = usize::try_from(end.saturating_sub(self.sent)).unwrap_or(usize::MAX);
            let bytes = &piece.bytes[..piece.bytes.len().min(PIECE).min(rest)];
            self.connection
                .queue(&AttachReply::Output(piece.stream, bytes.to_vec()));
            self.sent += bytes.len() as u64;
        }
        let reply = match launcher.code {
            _ if is_started => Some(AttachReply::Started),
            code => code.map(AttachReply::Ended),
        };
        if let Some(reply) = reply
            && self.sent >= end
            && !self.is_answered
        {
            self.is_answered = true;
            self.connection.queue(&reply);
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

    const UNDER_WAY: LauncherProgress = LauncherProgress {
        lookup_output_end: None,
        lookup_wait: None,
        is_started: false,
        code: None,
    };

    #[test]
    fn client_that_stops_reading_no_longer_blocks_job() {
        let (_client, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut viewer = AttachedClient::new(AttachConnection::new(socket.into()), 0, start);
        let mut output = OutputBuffer::new(1000);
        // A client does not delay the job while there is nothing to show.
        let printed = start + 100 * second;
        output.push(LauncherStream::Stdout, b"three");
        assert!(viewer.send(&output, &UNDER_WAY, printed));
        assert_eq!(viewer.patience(printed + second), PATIENCE - second);
        // Progress is counted when the client shows output, not when there is more.
        output.push(LauncherStream::Stdout, b"more");
        assert!(viewer.send(&output, &UNDER_WAY, printed + 2 * second));
        assert_eq!(viewer.patience(printed + PATIENCE), Duration::ZERO);
        assert_eq!(viewer.shows(5, printed + 5 * second), 5);
        assert_eq!(viewer.patience(printed + PATIENCE), 5 * second);
        // A client cannot have shown more than it was sent.
        assert_eq!(viewer.shows(100, printed + 6 * second), 9);
    }

    /// A client, the messages sent to it, and output of a launcher: that of its look-ups, and the output after it.
    fn awaiting_start() -> (AttachedClient, AttachConnection, OutputBuffer) {
        let (client, socket) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        let connection = AttachConnection::new(socket.into());
        let viewer = AttachedClient::new(connection, 0, Instant::now()).awaiting_start();
        let mut output = OutputBuffer::new(1000);
        output.push(LauncherStream::Stderr, b"waits");
        (viewer, AttachConnection::new(client.into()), output)
    }

    fn received(client: &mut AttachConnection) -> Vec<AttachReply> {
        client.read();
        std::iter::from_fn(|| client.next().unwrap()).collect()
    }

    fn text(text: &str) -> AttachReply {
        AttachReply::Output(LauncherStream::Stderr, text.as_bytes().to_vec())
    }

    #[test]
    fn client_is_sent_lookup_wait_when_it_changes() {
        let (mut viewer, mut client, output) = awaiting_start();
        let mut launcher = LauncherProgress {
            lookup_wait: Some("the agent".to_owned()),
            ..UNDER_WAY
        };
        let now = Instant::now();
        let wait = |source: Option<&str>| AttachReply::LookupWait(source.map(str::to_owned));
        for expected in [vec![wait(Some("the agent")), text("waits")], vec![]] {
            assert!(viewer.send(&output, &launcher, now));
            assert_eq!(received(&mut client), expected);
        }
        launcher.lookup_wait = None;
        assert!(viewer.send(&output, &launcher, now));
        assert_eq!(received(&mut client), [wait(None)]);
    }

    #[test]
    fn client_awaiting_start_gets_lookup_messages_only() {
        let (mut viewer, mut client, mut output) = awaiting_start();
        let now = Instant::now();
        assert!(viewer.send(&output, &UNDER_WAY, now));
        assert_eq!(received(&mut client), [text("waits")]);
        output.push(LauncherStream::Stderr, b" longer");
        let mut launcher = LauncherProgress {
            lookup_output_end: Some(output.end()),
            ..UNDER_WAY
        };
        output.push(LauncherStream::Stderr, b", and a rank prints");
        assert!(viewer.send(&output, &launcher, now));
        assert_eq!(received(&mut client), [text(" longer")]);
        assert_eq!(viewer.patience(now), Duration::ZERO);
        launcher.is_started = true;
        launcher.code = Some(3);
        for expected in [vec![AttachReply::Started], vec![]] {
            assert!(viewer.send(&output, &launcher, now));
            assert_eq!(received(&mut client), expected);
        }
    }

    #[test]
    fn client_awaiting_start_gets_all_output_of_failed_start() {
        let (mut viewer, mut client, mut output) = awaiting_start();
        let end = output.end();
        output.push(LauncherStream::Stderr, b", and fails");
        let launcher = LauncherProgress {
            lookup_output_end: Some(end),
            lookup_wait: None,
            is_started: false,
            code: Some(127),
        };
        assert!(viewer.send(&output, &launcher, Instant::now()));
        let expected = [text("waits, and fails"), AttachReply::Ended(127)];
        assert_eq!(received(&mut client), expected);
    }
}
