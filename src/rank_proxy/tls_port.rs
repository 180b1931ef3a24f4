//! Process that serves TLS in front of the port of a rank (`--pmi-port-auth tls`). Only the agent's executable has TLS.
//!
//! The process has the TCP listener. It connects for each client that has shown the rank's certificate, and carries bytes.

use std::io::{self, Read as _};
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::Pid;

use wireup_core::executables::PMI_TLS_PORT;
use wireup_core::failure::AnyError;
use wireup_core::job::ids::Rank;
use wireup_sys::pidfd::open_pidfd;

/// Time in which the process must send the certificate.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Maximum length of the certificate and the key.
const PEM_MAX: u64 = 64 * 1024;

/// The process, which ends with this value.
#[derive(Debug)]
pub(super) struct TlsPort {
    process: Child,
    pidfd: OwnedFd,
    /// Socket whose end shows the process that the rank proxy has ended.
    _control: UnixStream,
}

impl TlsPort {
    /// Starts the program, which connects with the abstract socket of that name for each client. Returns also the rank's
    /// certificate and key, in PEM.
    ///
    /// # Errors
    /// If the process cannot be started or makes no certificate.
    pub(super) fn start(
        program: &Path,
        listener: TcpListener,
        socket: &str,
        rank: Rank,
    ) -> Result<(Self, String), AnyError> {
        let (control, other) = UnixStream::pair()?;
        let process = Command::new(program)
            .args([PMI_TLS_PORT, socket, &rank.to_string()])
            .stdin(OwnedFd::from(listener))
            .stdout(OwnedFd::from(other))
            .spawn()?;
        let pid = Pid::from_child(&process);
        let port = Self {
            pidfd: open_pidfd(pid)?,
            process,
            _control: control.try_clone()?,
        };
        control.set_read_timeout(Some(START_LIMIT))?;
        let mut pem = String::new();
        control.take(PEM_MAX).read_to_string(&mut pem)?;
        match pem.is_empty() {
            true => Err(io::Error::other("the process for TLS has ended").into()),
            false => Ok((port, pem)),
        }
    }

    /// Returns the descriptor that is readable when the process has ended.
    pub(super) fn interest(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether the process has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for TlsPort {
    fn drop(&mut self) {
        // Errors show that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
