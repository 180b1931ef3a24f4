//! The launcher's own outputs: standard output and error, files it writes for ranks, and the line
//! at the end of the terminal (the progress line).

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::stdio::terminal_line::{self, ERASE};
use crate::stdio::writer::OutputWriter;

/// Where something goes.
#[derive(Clone, Debug)]
pub(super) enum OutputDestination {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
    File(Arc<OwnedFd>),
}

/// One of the launcher's standard descriptors.
#[derive(Debug)]
struct Standard {
    fd: Arc<OwnedFd>,
    sink: OutputWriter,
    /// A line ends with a carriage return too, as a terminal in raw mode needs.
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

    /// The same, in the form for the terminal.
    fn write_lines(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        match self.returns {
            true => self.write(with_returns(&bytes)),
            false => self.write(bytes),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct LauncherOutputs {
    out: Standard,
    /// Absent when both are the same pipe, terminal, or other file: one thread writes there then,
    /// since two would tear each other's lines.
    err: Option<Standard>,
    files: OutputWriter,
    /// Standard error is a terminal.
    terminal: bool,
    /// The user's terminal is in raw mode.
    raw: bool,
    /// The last line on the terminal is the progress line.
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

    /// Queues bytes. The progress line makes room for them.
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

    /// Queues bytes for standard output that are to arrive there as they are.
    ///
    /// # Errors
    /// When the writing thread cannot be started.
    pub(super) fn put_raw(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.out.write(bytes)
    }

    /// The user's terminal is in raw mode from now on, or is so no more.
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

    /// Whether what comes next on standard error starts a line there.
    pub(super) fn at_start(&self) -> bool {
        self.err.as_ref().unwrap_or(&self.out).at_start
    }

    /// Whether there is a terminal for the progress line, which only the
    /// foreground may use.
    pub(super) fn can_draw(&self) -> bool {
        let standard = self.err.as_ref().unwrap_or(&self.out);
        self.terminal
            && !self.raw
            && standard.at_start
            && !standard.sink.is_full()
            && rustix::termios::tcgetpgrp(&standard.fd)
                .is_ok_and(|group| group == rustix::process::getpgrp())
    }

    /// Shows that line, cut to the terminal's width, in place of the last one; or takes it away.
    pub(super) fn draw(&mut self, text: Option<&str>) {
        let standard = self.err.as_mut().unwrap_or(&mut self.out);
        let bytes = match text {
            Some(text) => terminal_line::drawn(&standard.fd, text).into_bytes(),
            None if self.drawn => ERASE.into(),
            None => return,
        };
        self.drawn = text.is_some();
        // A thread that cannot be started is reported by the ranks' output.
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

    /// What cannot be written any more, and why.
    pub(super) fn failure(&self) -> Option<(&'static str, Errno)> {
        self.sinks()
            .find_map(|(name, sink)| Some((name, sink.failure()?)))
    }

    /// Nothing more will be put anywhere.
    pub(super) fn close(&self) {
        for (_, sink) in self.sinks() {
            sink.close();
        }
    }

    /// Bytes that were not written yet, and can be.
    pub(super) fn queued(&self) -> usize {
        self.sinks().map(|(_, sink)| sink.queued()).sum()
    }
}

/// Lines for a terminal in raw mode.
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
