//! Reads commands to a launch from a descriptor (`--control fd:N`), one JSON object per line.
//! docs/status.md documents the format for authors of controlling processes.
//!
//! End of file ends the job, since no controlling process is left to receive the result.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memchr::memchr;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::report::status_stream::{DescriptorError, readable};
use wireup_core::failure::CommandError;
use wireup_core::record::{ControlCommand, SignalCommand};
use wireup_core::wording::json_problem;

/// Maximum bytes of a line, enough for a command with many ranks.
const LINE_MAX: usize = 1 << 20;

/// Stream of commands from the controlling process.
#[derive(Debug)]
pub(crate) struct ControlStream {
    fd: OwnedFd,
    bytes: Vec<u8>,
}

/// Result of reading a command.
#[derive(PartialEq, Debug)]
pub(crate) enum ControlInput {
    Order(ControlCommand),
    /// An invalid line, with the problem as text for the user.
    Wrong(String),
    /// No complete line is available yet.
    Nothing,
    /// The stream has ended, or cannot be read.
    Ended,
}

impl ControlStream {
    /// Opens the inherited descriptor with this number.
    ///
    /// # Errors
    /// [`CommandError`] naming it.
    pub(crate) fn open(number: i32) -> Result<Self, CommandError> {
        let wrong = |error: DescriptorError| {
            CommandError::request(format!("--control fd:{number}: {error}"))
        };
        let fd = readable(number).map_err(wrong)?;
        Self::from_fd(fd).map_err(|errno| wrong(io::Error::from(errno).into()))
    }

    fn from_fd(fd: OwnedFd) -> rustix::io::Result<Self> {
        fcntl_setfl(&fd, fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        let bytes = Vec::new();
        Ok(Self { fd, bytes })
    }

    /// Returns the next command, or that none is available.
    pub(crate) fn next(&mut self) -> ControlInput {
        loop {
            if let Some(end) = memchr(b'\n', &self.bytes) {
                let line: Vec<u8> = self.bytes.drain(..=end).collect();
                return parse(&line);
            }
            if self.bytes.len() > LINE_MAX {
                return ControlInput::Ended;
            }
            let mut buffer = [0; 4096];
            match rustix::io::read(&self.fd, &mut buffer) {
                Ok(0) => return ControlInput::Ended,
                Ok(count) => self.bytes.extend_from_slice(&buffer[..count]),
                Err(Errno::AGAIN) => return ControlInput::Nothing,
                Err(Errno::INTR) => {}
                Err(_) => return ControlInput::Ended,
            }
        }
    }
}

impl AsFd for ControlStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Parses a line of the stream.
pub(crate) fn parse(line: &[u8]) -> ControlInput {
    match ControlCommand::parse(line) {
        Ok(ControlCommand::Signal(SignalCommand { signal, .. }))
            if rustix::process::Signal::from_named_raw(signal).is_none() =>
        {
            ControlInput::Wrong(format!("unknown signal {signal}"))
        }
        Ok(order) => ControlInput::Order(order),
        Err(error) => ControlInput::Wrong(json_problem(&error)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use wireup_core::job::ids::Rank;

    #[test]
    fn commands_are_lines_in_any_chunks_and_end_with_descriptor() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let mut orders = ControlStream::from_fd(ours.into()).unwrap();
        assert_eq!(orders.next(), ControlInput::Nothing);
        theirs
            .write_all(b"{\"signal\":10}\n{\"signal\":9,")
            .unwrap();
        let order = |signal, ranks: Option<&[u32]>| {
            let ranks = ranks.map(|ranks| ranks.iter().copied().map(Rank).collect());
            let signal = SignalCommand::new(signal, ranks);
            ControlInput::Order(ControlCommand::Signal(signal))
        };
        assert_eq!(orders.next(), order(10, None));
        assert_eq!(orders.next(), ControlInput::Nothing);
        theirs.write_all(b"\"ranks\":[1,7]}\n").unwrap();
        assert_eq!(orders.next(), order(9, Some(&[1, 7])));
        theirs
            .write_all(b"{\"signal\":0}\nstop\n{\"x\":1}\n{}\n{\"spawn\":{\"request\":1}}\n{\"signal\":15}")
            .unwrap();
        drop(theirs);
        for _ in 0..5 {
            assert!(matches!(orders.next(), ControlInput::Wrong(_)));
        }
        assert_eq!(orders.next(), ControlInput::Ended);
    }

    #[test]
    fn spawn_command_has_apps_with_required_infos() {
        let line = br#"{"spawn":{"request":7,"apps":[{"command":["./a","x"],"n":2,"env":{"A":"1"},"infos":{"wdir":"/"}}]}}"#;
        let ControlInput::Order(ControlCommand::Spawn(spawn)) = parse(line) else {
            panic!("{:?}", parse(line));
        };
        let (number, request) = spawn.into_request();
        let [app] = &request.apps[..] else {
            panic!("{request:?}");
        };
        assert_eq!((number, app.count), (7, 2));
        assert_eq!(
            (&*app.program, &*app.args[0], &*app.env[0]),
            ("./a".as_ref(), "x".as_ref(), "A=1".as_ref())
        );
        assert!(app.infos[0].required && app.infos[0].key == "wdir");
    }

    #[test]
    fn endless_line_is_not_buffered_without_limit() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let mut orders = ControlStream::from_fd(ours.into()).unwrap();
        let writer = std::thread::spawn(move || while theirs.write_all(&[b' '; 4096]).is_ok() {});
        let end = loop {
            match orders.next() {
                ControlInput::Nothing => std::thread::yield_now(),
                other => break other,
            }
        };
        assert_eq!(end, ControlInput::Ended);
        drop(orders);
        writer.join().unwrap();
    }
}
