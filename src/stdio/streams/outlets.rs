//! Outputs of the launcher: standard output and error, files that it writes for ranks, and the progress line at the end of
//! the terminal.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::stdio::terminal_line::{self, ERASE};
use crate::stdio::writer::OutputWriter;

/// Destination of the launcher's output.
#[derive(Clone, Debug)]
pub(super) enum OutputDestination {
    /// Standard output of the launcher.
    Out,
    /// Standard error of the launcher.
    Err,
    File(Arc<OwnedFd>),
}

/// One of the launcher's standard descriptors.
#[derive(Debug)]
struct Standard {
    fd: Arc<OwnedFd>,
    sink: OutputWriter,
    /// Whether lines end with a carriage return too, as a terminal in raw mode requires.
    returns: bool,
    /// Whether the last output was the end of a line, or there was none.
    at_start: bool,
}

impl Standard {
    fn new(fd: BorrowedFd<'_>, wake: &Arc<OwnedFd>) -> io::Result<Self> {
        Ok(Self {
            fd: Arc::new(fd.try_clone_to_owned()?),
            sink: OutputWriter::new(Arc::clone(wake)),
            returns: false,
            at_start: true,
        })
    }

    fn write(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.at_start = bytes.last() == Some(&b'\n');
        self.sink.write(&self.fd, bytes)
    }

    /// Writes lines, with carriage returns if the terminal is in raw mode.
    fn write_lines(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        match self.returns {
            true => self.write(with_returns(&bytes)),
            false => self.write(bytes),
        }
    }
}

/// Outputs of the launcher.
#[derive(Debug)]
pub(super) struct LauncherOutputs {
    out: Standard,
    /// Standard error; `None` if it is the same pipe, terminal or file as standard output. One thread writes to both then,
    /// since two would break each other's lines.
    err: Option<Standard>,
    files: OutputWriter,
    /// Whether standard error is a terminal.
    terminal: bool,
    /// Whether the user's terminal is in raw mode.
    raw: bool,
    /// Whether the last line on the terminal is the progress line.
    drawn: bool,
}

impl LauncherOutputs {
    /// Duplicates standard output and error.
    pub(super) fn new(wake: &Arc<OwnedFd>) -> io::Result<Self> {
        let (out, err) = (io::stdout(), io::stderr());
        let terminal = err.is_terminal();
        let shared = same_file(out.as_fd(), err.as_fd());
        Ok(Self {
            out: Standard::new(out.as_fd(), wake)?,
            err: (!shared)
                .then(|| Standard::new(err.as_fd(), wake))
                .transpose()?,
            files: OutputWriter::new(Arc::clone(wake)),
            terminal,
            raw: false,
            drawn: false,
        })
    }

    /// Queues bytes, and erases the progress line before them.
    ///
    /// # Errors
    /// When the writing thread cannot be started.
    pub(super) fn put(&mut self, outlet: &OutputDestination, bytes: Vec<u8>) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let standard = match (outlet, &mut self.err) {
            (OutputDestination::File(fd), _) => return self.files.write(fd, bytes),
            (OutputDestination::Out, Some(_)) => return self.out.write_lines(bytes),
            (OutputDestination::Err, Some(err)) => err,
            (OutputDestination::Out | OutputDestination::Err, None) => &mut self.out,
        };
        let bytes = match std::mem::take(&mut self.drawn) {
            true => [ERASE.as_bytes(), &bytes].concat(),
            false => bytes,
        };
        standard.write_lines(bytes)
    }

    /// Queues bytes for standard output, unchanged.
    ///
    /// # Errors
    /// When the writing thread cannot be started.
    pub(super) fn put_raw(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.out.write(bytes)
    }

    /// Sets whether the user's terminal is in raw mode.
    pub(super) fn set_raw(&mut self, raw: bool) {
        self.raw = raw;
        for standard in std::iter::once(&mut self.out).chain(&mut self.err) {
            standard.returns = raw && standard.fd.is_terminal();
        }
    }

    /// Whether standard error is a terminal.
    pub(super) fn terminal(&self) -> bool {
        self.terminal
    }

    /// Whether standard output and error are the same file.
    pub(super) fn is_shared(&self) -> bool {
        self.err.is_none()
    }

    /// Whether the next output on standard error starts a line.
    pub(super) fn at_start(&self) -> bool {
        self.err.as_ref().unwrap_or(&self.out).at_start
    }

    /// Whether the progress line can be shown: on a terminal, with this process in its foreground.
    pub(super) fn can_draw(&self) -> bool {
        let standard = self.err.as_ref().unwrap_or(&self.out);
        self.terminal
            && !self.raw
            && standard.at_start
            && !standard.sink.is_full()
            && rustix::termios::tcgetpgrp(&standard.fd)
                .is_ok_and(|group| group == rustix::process::getpgrp())
    }

    /// Replaces the progress line, cut to the terminal's width; `None` removes it.
    pub(super) fn draw(&mut self, text: Option<&str>) {
        let standard = self.err.as_mut().unwrap_or(&mut self.out);
        let bytes = match text {
            Some(text) => terminal_line::drawn(&standard.fd, text).into_bytes(),
            None if self.drawn => ERASE.into(),
            None => return,
        };
        self.drawn = text.is_some();
        // Failure to start a thread is reported with the ranks' output.
        let _ = standard.sink.write(&standard.fd, bytes);
    }

    pub(super) fn is_full(&self, outlet: &OutputDestination) -> bool {
        self.sink(outlet).is_full()
    }

    fn sink(&self, outlet: &OutputDestination) -> &OutputWriter {
        match (outlet, &self.err) {
            (OutputDestination::File(_), _) => &self.files,
            (OutputDestination::Err, Some(err)) => &err.sink,
            _ => &self.out.sink,
        }
    }

    fn sinks(&self) -> impl Iterator<Item = (&'static str, &OutputWriter)> {
        let err = self.err.iter().map(|err| ("standard error", &err.sink));
        let files = ("a file of --output", &self.files);
        std::iter::once(("standard output", &self.out.sink))
            .chain(err)
            .chain([files])
    }

    /// Returns the output that cannot be written any more, and the error.
    pub(super) fn failure(&self) -> Option<(&'static str, Errno)> {
        self.sinks()
            .find_map(|(name, sink)| Some((name, sink.failure()?)))
    }

    /// Ends all outputs: no more bytes are queued.
    pub(super) fn close(&self) {
        for (_, sink) in self.sinks() {
            sink.close();
        }
    }

    /// Returns the number of bytes that are still to be written, without those of failed outputs.
    pub(super) fn queued(&self) -> usize {
        self.sinks().map(|(_, sink)| sink.queued()).sum()
    }
}

/// Adds carriage returns to lines for a terminal in raw mode.
fn with_returns(bytes: &[u8]) -> Vec<u8> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let with_return = |line: &[u8]| match line.strip_suffix(b"\n") {
        Some(text) => [text, b"\r\n"].concat(),
        None => line.to_vec(),
    };
    lines.flat_map(with_return).collect()
}

fn same_file(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let file = |fd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    file(one).is_ok_and(|one| file(other) == Ok(one))
}
