//! Stands between a program and the PMI server of its launcher, and writes down what they say.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::Instant;

use rustix::event::{PollFd, poll};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::rank_proxy::socket_relay::{RelayStatus, Sender, SocketRelay};
use wireup_core::failure::about;
use wireup_core::pmi::transcript::TranscriptSide;
use wireup_sys::inherited_fd;

/// Writes messages with their times.
struct TranscriptWriter<W> {
    to: W,
    start: Instant,
    client: TranscriptSide,
    server: TranscriptSide,
    /// When the client's last message came.
    requested_at: Option<Instant>,
    /// Why messages are missing.
    failed: Option<io::Error>,
}

impl<W: Write> TranscriptWriter<W> {
    /// What cannot be written does not disturb the program.
    fn note(&mut self, sender: Sender, bytes: &[u8]) {
        let now = Instant::now();
        let since = now.duration_since(self.start).as_secs_f64();
        let (side, mark) = match sender {
            Sender::Client => (&mut self.client, "C>"),
            Sender::Server => (&mut self.server, "S>"),
        };
        for message in side.read_messages(bytes) {
            let took = match (sender, self.requested_at) {
                (Sender::Server, Some(asked)) => {
                    format!(" ({} us)", now.duration_since(asked).as_micros())
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

/// Runs a program with a PMI socket that leads to the launcher's; its exit code, or 128 and its signal.
///
/// # Errors
/// When there is no such socket, or the program cannot be started.
pub fn run(program: &[OsString], to: impl Write) -> io::Result<u8> {
    let number = env::var("PMI_FD")
        .ok()
        .and_then(|number| number.parse().ok());
    let number = number.ok_or_else(|| {
        io::Error::other("PMI_FD is not set: no launcher serves PMI here by a socket")
    })?;
    let server = inherited_fd::socket(number)?;
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let theirs = OwnedFd::from(theirs);
    fcntl_setfd(&theirs, FdFlags::empty())?;
    let [first, rest @ ..] = program else {
        return Err(io::Error::other("no program is given"));
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
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) | Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(error) = record.failed.or_else(|| record.to.flush().err()) {
        eprintln!(
            "wireup: warning: wireup pmi proxy: what was said is not written down completely: {error}"
        );
    }
    let status = child.wait()?;
    let signal = status.signal().map(|signal| 128 + signal);
    Ok(status.code().or(signal).unwrap_or(1) as u8)
}
