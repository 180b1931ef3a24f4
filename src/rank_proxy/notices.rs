//! Notices to clients that have subscribed to them, on a connection of their own.
//!
//! Rule: a client opens a second connection with `cmd=init_oob signal=NAME`; each message on it is a line, sent before the
//! signal, which `NONE` does without. Source: docs/pmi-wire.md#notices.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::process::{Signal, pidfd_send_signal};

use super::rank_port::{Refusal, check_user};
use wireup_sys::signals;

/// Maximum number of connections for notices. A client has one, and its tools may have some.
const MOST: usize = 16;

/// Connections that get notices, each with the signal that follows a notice.
#[derive(Debug, Default)]
pub(super) struct NoticeSubscribers(Vec<(TcpStream, Option<Signal>)>);

impl NoticeSubscribers {
    /// Adds a connection for notices.
    ///
    /// # Errors
    /// [`Refusal`] for an unknown signal, and if there are [`MOST`] connections.
    pub(super) fn add(
        &mut self,
        stream: TcpStream,
        signal: Option<Vec<u8>>,
    ) -> Result<(), Refusal> {
        let refused = |text: String| Refusal::System(std::io::Error::other(text));
        if self.0.len() >= MOST {
            return Err(refused(format!("{MOST} connections get notices already")));
        }
        let unknown = |name: &[u8]| refused(format!("unknown signal {}", name.escape_ascii()));
        let parse = |name: Vec<u8>| {
            let text = std::str::from_utf8(&name).ok();
            text.and_then(signals::parse).ok_or_else(|| unknown(&name))
        };
        self.0.push((stream, signal.map(parse).transpose()?));
        Ok(())
    }

    /// Returns the connections to poll; reading shows their end.
    pub(super) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(|(stream, _)| stream.as_fd())
    }

    /// Removes the connections that have ended.
    pub(super) fn sweep(&mut self) {
        let mut buffer = [0; 256];
        self.0.retain_mut(|(stream, _)| {
            !matches!(stream.read(&mut buffer), Ok(0)) // Clients send nothing here.
        });
    }

    /// Sends a notice to all connections.
    pub(super) fn send(&mut self, line: &str) {
        for (stream, signal) in &mut self.0 {
            let sent = stream.write_all(format!("{line}\n").as_bytes());
            if let (Ok(()), Some(signal)) = (sent, signal)
                && let Ok(end) = check_user(stream)
            {
                // A process that has just exited needs no signal.
                let _ = end.process().map(|it| pidfd_send_signal(it, *signal));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn surplus_connections_are_refused_until_one_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pair = || {
            let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (ours, _) = listener.accept().unwrap();
            ours.set_nonblocking(true).unwrap();
            (ours, theirs)
        };
        let mut notices = NoticeSubscribers::default();
        let mut others = Vec::new();
        for _ in 0..MOST {
            let (ours, theirs) = pair();
            notices.add(ours, None).unwrap();
            others.push(theirs);
        }
        let (ours, theirs) = pair();
        let refusal = notices.add(ours, None).unwrap_err().to_string();
        assert!(
            refusal.contains("16 connections get notices already"),
            "{refusal}"
        );
        drop(theirs);
        others.pop();
        while notices.0.len() == MOST {
            notices.sweep();
        }
        notices.add(pair().0, None).unwrap();
    }
}
