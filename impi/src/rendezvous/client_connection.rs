//! One connection of the server: plain or TLS, never blocking.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustls::{ServerConfig, ServerConnection};

/// Time for a client to read the last message.
pub(super) const LINGER: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ConnectionProgress {
    Going,
    Ended,
}

#[derive(Debug)]
pub(super) struct ClientLink {
    stream: TcpStream,
    tls: Option<Box<ServerConnection>>,
    out: VecDeque<u8>,
    /// Time by which the rest must have been read; `None` before the end.
    finishing: Option<Instant>,
}

impl ClientLink {
    pub(super) fn new(stream: TcpStream, tls: Option<&Arc<ServerConfig>>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let tls = tls.map(|config| ServerConnection::new(Arc::clone(config)).map(Box::new));
        Ok(Self {
            stream,
            tls: tls.transpose().map_err(io::Error::other)?,
            out: VecDeque::new(),
            finishing: None,
        })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn interest(&self) -> PollFlags {
        let wants_write =
            !self.out.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.wants_write());
        let write = if wants_write {
            PollFlags::OUT
        } else {
            PollFlags::empty()
        };
        write | PollFlags::IN
    }

    pub(super) fn queue(&mut self, bytes: &[u8]) {
        if self.finishing.is_none() {
            self.out.extend(bytes);
        }
    }

    /// Marks the end: no more bytes are queued, and the connection is closed when all are written.
    pub(super) fn finish(&mut self) {
        self.finishing
            .get_or_insert_with(|| Instant::now() + LINGER);
    }

    pub(super) fn is_finishing(&self) -> bool {
        self.finishing.is_some()
    }

    pub(super) fn expired(&self) -> bool {
        self.finishing.is_some_and(|until| until <= Instant::now())
    }

    /// Reads available bytes, a piece at most, so that no client keeps the others waiting.
    pub(super) fn read(&mut self, bytes: &mut Vec<u8>) -> ConnectionProgress {
        let mut piece = [0; 64 * 1024];
        let read = match &mut self.tls {
            None => self.stream.read(&mut piece),
            Some(tls) => match tls.read_tls(&mut self.stream) {
                Ok(0) => Ok(0),
                Ok(_) => match tls.process_new_packets() {
                    Ok(_) => tls.reader().read(&mut piece),
                    Err(error) => Err(io::Error::other(error)),
                },
                Err(error) => Err(error),
            },
        };
        match read {
            Ok(0) => ConnectionProgress::Ended,
            Ok(count) => {
                bytes.extend_from_slice(&piece[..count]);
                ConnectionProgress::Going
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                ConnectionProgress::Going
            }
            Err(_) => ConnectionProgress::Ended,
        }
    }

    /// Writes as much as the socket takes.
    pub(super) fn write(&mut self) -> io::Result<ConnectionProgress> {
        loop {
            let (next, _) = self.out.as_slices();
            let wrote = match &mut self.tls {
                None if next.is_empty() => break,
                None => self.stream.write(next),
                Some(tls) => {
                    if !next.is_empty() {
                        let taken = tls.writer().write(next)?;
                        self.out.drain(..taken);
                    }
                    if !tls.wants_write() {
                        if self.out.is_empty() {
                            break;
                        }
                        continue;
                    }
                    match tls.write_tls(&mut self.stream) {
                        Ok(_) => Ok(0),
                        Err(error) => Err(error),
                    }
                }
            };
            match wrote {
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(ConnectionProgress::Going);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(if self.finishing.is_some() {
            ConnectionProgress::Ended
        } else {
            ConnectionProgress::Going
        })
    }
}
