//! Notices to a client beside its conversation with the server, for those that have asked for them.
//!
//! Rule: a client opens a second connection with `cmd=init_oob signal=NAME`; each message on it is a line, sent before the
//! signal, which `NONE` does without. Source: docs/pmi-wire.md#notices.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::process::{Signal, pidfd_send_signal};

use super::entrance::{Refusal, check_user};
use crate::sys::signals;

/// Those who get notices.
#[derive(Debug, Default)]
pub(super) struct Notices(Vec<(TcpStream, Option<Signal>)>);

impl Notices {
    /// Takes a connection.
    ///
    /// # Errors
    /// [`Refusal`] for a signal that does not exist.
    pub(super) fn add(
        &mut self,
        stream: TcpStream,
        signal: Option<Vec<u8>>,
    ) -> Result<(), Refusal> {
        let unknown = |name: &[u8]| {
            let text = format!("there is no signal {}", name.escape_ascii());
            Refusal::System(std::io::Error::other(text))
        };
        let signal = match signal {
            None => None,
            Some(name) => {
                let text = std::str::from_utf8(&name).ok();
                Some(
                    text.and_then(signals::parse)
                        .ok_or_else(|| unknown(&name))?,
                )
            }
        };
        self.0.push((stream, signal));
        Ok(())
    }

    /// Ends of these are seen by reading.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|(stream, _)| stream.as_fd())
    }

    /// Drops those that have ended.
    pub(super) fn sweep(&mut self) {
        let mut buffer = [0; 256];
        self.0.retain_mut(|(stream, _)| {
            !matches!(stream.read(&mut buffer), Ok(0)) // Nothing is expected from it.
        });
    }

    /// Sends one to all.
    pub(super) fn send(&mut self, line: &str) {
        for (stream, signal) in &mut self.0 {
            let sent = stream.write_all(format!("{line}\n").as_bytes());
            if let (Ok(()), Some(signal)) = (sent, signal)
                && let Ok(end) = check_user(stream)
            {
                // A process that has just ended needs no signal.
                let _ = end.process().map(|it| pidfd_send_signal(it, *signal));
            }
        }
    }
}
