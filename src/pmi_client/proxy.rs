//! Relays PMI messages between a program and its launcher's server, and records them.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::rank_proxy::socket_relay::{RelayStatus, Sender, SocketRelay};
use wireup_core::failure::about;
use wireup_core::pmi::transcript::TranscriptSide;
use wireup_sys::inherited_fd;
use wireup_sys::poll::wait_for_events;

/// Writes each PMI message with its time, sender and response time.
struct TranscriptWriter<W> {
    to: W,
    start: Instant,
    client: TranscriptSide,
    server: TranscriptSide,
    /// Time of the client's last message, until the server replies.
    requested_at: Option<Instant>,
    /// First error of `to`, because of which messages are missing.
    failed: Option<io::Error>,
}

impl<W: Write> TranscriptWriter<W> {
    /// Writes the complete messages in the bytes. An error is kept for the end: the program continues.
    fn note(&mut self, sender: Sender, bytes: &[u8]) {
        let now = Instant::now();
        let since = now.duration_since(self.start).as_secs_f64();
        let (side, mark) = match sender {
            Sender::Client => (&mut self.client, "C>"),
            Sender::Server => (&mut self.server, "S>"),
        };
        for message in side.read_messages(bytes) {
            let took = match (sender, self.requested_at) {
                (Sender::Server, Some(requested_at)) => {
                    format!(" ({} us)", now.duration_since(requested_at).as_micros())
                }
                _ => String::new(),
            };
            if let Err(error) = writeln!(self.to, "{since:11.6} {mark} {message}{took}") {
                self.failed.get_or_insert(error);
            }
        }
        match sender {
            Sender::Client => self.requested_at = Some(now),
            Sender::Server => self.requested_at = None,
        }
    }
}

/// Runs a program whose PMI socket is relayed to the launcher's. Returns its exit code, or 128 plus its signal.
///
/// # Errors
/// When the launcher serves no PMI socket, or the program cannot be started.
pub fn run(program: &[OsString], to: impl Write) -> io::Result<u8> {
    let number = env::var("PMI_FD")
        .ok()
        .and_then(|number| number.parse().ok());
    let number = number.ok_or_else(|| {
        io::Error::other(
            "no launcher serves PMI here over a socket: PMI_FD must be set to a number",
        )
    })?;
    let server = inherited_fd::socket(number)?;
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let theirs = OwnedFd::from(theirs);
    fcntl_setfd(&theirs, FdFlags::empty())?;
    let [first, rest @ ..] = program else {
        return Err(io::Error::other(
            "no program; write: wireup pmi proxy PROGRAM",
        ));
    };
    let mut child = Command::new(first)
        .args(rest)
        .env("PMI_FD", theirs.as_raw_fd().to_string())
        .spawn()
        .map_err(|error| about(&first.display(), &error))?;
    drop(theirs);
    let mut record = TranscriptWriter {
        to,
        start: Instant::now(),
        client: TranscriptSide::default(),
        server: TranscriptSide::default(),
        requested_at: None,
        failed: None,
    };
    let mut carrier = SocketRelay::new(ours.into(), server);
    while carrier.carry(|sender, bytes| record.note(sender, bytes)) == RelayStatus::On {
        let mut ready = carrier
            .interests()
            .map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
        wait_for_events(&mut ready, None)?;
    }
    if let Some(error) = record.failed.or_else(|| record.to.flush().err()) {
        eprintln!("wireup: warning: wireup pmi proxy: cannot write all messages: {error}");
    }
    let status = child.wait()?;
    let signal = status.signal().map(|signal| 128 + signal);
    Ok(status.code().or(signal).unwrap_or(1) as u8)
}
