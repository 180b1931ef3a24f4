//! Waits for look-ups before a launch: each has a line that names it once it takes long, and ends with this process.

use std::io::{self, IsTerminal as _, PipeReader, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::detached::{self, attach_client};
use crate::report::progress_line::{PATIENCE_ACROSS, ProgressLine, ProgressUpdate, StartupWait};
use crate::stdio::terminal_line;
use wireup_sys::pidfd::{ended_within, open_pidfd};
use wireup_sys::signals::HeldSignals;

/// Shows waits; by default nowhere.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LookupProgress {
    terminal: Option<ProgressTerminal>,
    logged: bool,
}

/// The terminal at whose end a line shows a wait.
#[derive(Clone, Copy, Debug)]
enum ProgressTerminal {
    /// The terminal of this process.
    Own,
    /// The terminals of clients of the keeper that has started this process, if they have one.
    Clients,
}

impl LookupProgress {
    /// Shows waits on a terminal, unless they are `hidden`; elsewhere only if they are to be `logged`.
    pub(super) fn new(hidden: bool, logged: bool) -> Self {
        let terminal = match detached::job_name_from_env() {
            _ if hidden => None,
            _ if io::stderr().is_terminal() => Some(ProgressTerminal::Own),
            // Lines of a log reach its clients too.
            Some(_) if !logged => Some(ProgressTerminal::Clients),
            _ => None,
        };
        Self { terminal, logged }
    }

    /// Shows waits on a terminal alone.
    pub(super) fn on_terminal() -> Self {
        Self::new(false, false)
    }

    /// Waits until something can be read from one of these, at most so long; whether that is so.
    ///
    /// # Errors
    /// When the system cannot wait.
    pub(super) fn wait(
        self,
        source: &str,
        descriptors: &[BorrowedFd<'_>],
        limit: Option<Duration>,
    ) -> io::Result<bool> {
        let mut fds: Vec<_> = descriptors
            .iter()
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        let started = Instant::now();
        let mut line = ProgressLine::new(self.terminal.is_some(), self.logged, PATIENCE_ACROSS);
        let result = loop {
            let now = started.elapsed();
            if line.next_deadline().is_some_and(|at| at <= now) {
                let wait = StartupWait::Lookup(source.to_owned());
                self.show(source, line.update_line(now, Some(wait)));
            }
            let ends = [line.next_deadline(), limit].into_iter().flatten();
            let rest = ends.min().map(|at| at.saturating_sub(now));
            let next = rest.and_then(|rest| Timespec::try_from(rest).ok());
            match poll(&mut fds, next.as_ref()) {
                Ok(0) if limit.is_some_and(|limit| started.elapsed() >= limit) => break Ok(false),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break Ok(true),
                Err(errno) => break Err(errno.into()),
            }
        };
        self.show(source, line.update_line(started.elapsed(), None));
        result
    }

    fn show(self, source: &str, update: ProgressUpdate) {
        match (update, self.terminal) {
            (ProgressUpdate::Keep, _) => {}
            (ProgressUpdate::Draw(_), Some(ProgressTerminal::Clients)) => {
                attach_client::report_lookup_wait(Some(source));
            }
            (ProgressUpdate::Erase, Some(ProgressTerminal::Clients)) => {
                attach_client::report_lookup_wait(None);
            }
            (ProgressUpdate::Draw(text), _) => {
                let line = terminal_line::drawn(io::stderr(), &format!("wireup: {text}"));
                eprint!("{line}");
            }
            (ProgressUpdate::Erase, _) => eprint!("{}", terminal_line::ERASE),
            (ProgressUpdate::Log(text), _) => eprintln!("wireup: {text}"),
        }
    }

    /// The output of a command, and its exit status. It and its children are ended after the limit, and with this process when
    /// a signal ends that.
    ///
    /// # Errors
    /// When it cannot be executed, or does not end within the limit.
    pub(super) fn command_output(
        self,
        command: &mut Command,
        source: &str,
        limit: Option<Duration>,
    ) -> io::Result<(ExitStatus, Vec<u8>)> {
        // Signals that arrive take effect when the command has been ended.
        let held = HeldSignals::hold()?;
        let (mut printed, theirs) = io::pipe()?;
        let flags = fcntl_getfl(&printed)?;
        fcntl_setfl(&printed, flags | OFlags::NONBLOCK)?;
        command.stdin(Stdio::null()).stdout(theirs).process_group(0);
        let mut child = command.spawn()?;
        // The value has the other end of the pipe.
        command.stdout(Stdio::null());
        let result = self.collect(&child, &mut printed, &held, source, limit);
        if result.is_err() {
            // It and its children may have ended at this moment; the command is collected in any case.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        }
        let status = child.wait()?;
        result.map(|output| (status, output))
    }

    fn collect(
        self,
        child: &Child,
        printed: &mut PipeReader,
        signals: &HeldSignals,
        source: &str,
        limit: Option<Duration>,
    ) -> io::Result<Vec<u8>> {
        let started = Instant::now();
        let pidfd = open_pidfd(Pid::from_child(child))?;
        let (mut output, mut is_open) = (Vec::new(), true);
        loop {
            let mut descriptors = vec![signals.as_fd(), pidfd.as_fd()];
            if is_open {
                descriptors.push(printed.as_fd());
            }
            let rest = limit.map(|limit| limit.saturating_sub(started.elapsed()));
            if !self.wait(source, &descriptors, rest)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if signals.are_pending() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            // What a command has printed is in the pipe when it has ended; its children may keep that open.
            let has_ended = ended_within(&pidfd, Duration::ZERO);
            match printed.read_to_end(&mut output) {
                Ok(_) => is_open = false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if has_ended {
                return Ok(output);
            }
        }
    }
}
