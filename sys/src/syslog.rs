//! The log of this host's system.
//!
//! Rule: logging never blocks. A text that the log's daemon does not accept at once is lost, as with
//! `syslog(3)` and a descriptor that does not block.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::time_zone::local_clock;
use wireup_core::job::log_text::SyslogText;
use wireup_core::log_once::LoggedOnce;

/// Socket at which the log of every system accepts texts.
const SOCKET: &str = "/dev/log";

/// Connection to the system's log; opened when there is something to log.
#[derive(Debug, Default)]
pub struct Syslog {
    socket: Option<UnixDatagram>,
    /// Texts logged with `PMIX_LOG_ONCE`.
    logged: LoggedOnce<()>,
    /// Whether a failure of the log was reported.
    failure_reported: bool,
}

impl Syslog {
    /// Logs a text. The first one that cannot be is worth a line for the user, which is returned.
    pub fn log(&mut self, text: &SyslogText) -> Option<String> {
        if text.once && !self.logged.is_new((), &text.text) {
            return None;
        }
        let at = text.at.and_then(|at| u64::try_from(at).ok());
        let at = at.and_then(|at| UNIX_EPOCH.checked_add(Duration::from_secs(at)));
        let clock = local_clock(at.unwrap_or_else(SystemTime::now));
        let date = clock.at(Duration::ZERO).log_date();
        let pid = std::process::id();
        let error = text
            .lines(&date, pid)
            .find_map(|line| self.send(&line).err())?;
        if std::mem::replace(&mut self.failure_reported, true) {
            return None;
        }
        let who = &text.source;
        Some(format!(
            "cannot write a text of {who} to the system's log ({SOCKET}): {error}; PMIX_LOG_STDERR reaches the user"
        ))
    }

    fn send(&mut self, line: &[u8]) -> io::Result<()> {
        if let Some(socket) = &self.socket {
            match socket.send(line) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(error),
                // The daemon was restarted.
                Err(_) => self.socket = None,
            }
        }
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect(SOCKET)?;
        socket.send(line)?;
        self.socket = Some(socket);
        Ok(())
    }
}
