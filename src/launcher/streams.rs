//! What the ranks print: from their pipes through a [`Merger`] into the launcher's own output.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::output::Sink;
use super::stdio::Merger;
use crate::agent::poll::{Interest, Poll, Source, Token};
use crate::job::ids::Rank;

/// Bytes read from one pipe before others get their turn.
const CHUNK: usize = 64 * 1024;

/// Standard output, or standard error, of all ranks.
#[derive(Debug)]
struct Stream {
    source: Source,
    merger: Merger,
    sink: Sink,
    pipes: Vec<Option<OwnedFd>>,
    open: usize,
    paused: bool,
}

/// Both streams of a job.
#[derive(Debug)]
pub struct Streams {
    streams: [Stream; 2],
    buffer: Vec<u8>,
}

impl Streams {
    /// Streams for `size` ranks into the launcher's standard output and error.
    ///
    /// # Errors
    /// When these cannot be duplicated.
    pub fn new(size: u32, label: bool, wake: &Arc<OwnedFd>) -> io::Result<Self> {
        let stream = |source, fd: BorrowedFd<'_>| -> io::Result<Stream> {
            Ok(Stream {
                source,
                merger: Merger::new(label),
                sink: Sink::new(fd, Arc::clone(wake))?,
                pipes: (0..size).map(|_| None).collect(),
                open: 0,
                paused: false,
            })
        };
        Ok(Self {
            streams: [
                stream(Source::Stdout, io::stdout().as_fd())?,
                stream(Source::Stderr, io::stderr().as_fd())?,
            ],
            buffer: vec![0; CHUNK],
        })
    }

    /// Takes over the pipe of a rank; `source` says which of the two.
    ///
    /// # Errors
    /// When it cannot be watched.
    pub fn add(
        &mut self,
        poll: &Poll,
        source: Source,
        rank: Rank,
        pipe: OwnedFd,
    ) -> io::Result<()> {
        let stream = self.of(source);
        let token = Token::new(source, rank.0);
        poll.add(&pipe, token)?;
        if stream.paused {
            poll.set(&pipe, token, Interest::Paused)?;
        }
        stream.pipes[rank.index()] = Some(pipe);
        stream.open += 1;
        Ok(())
    }

    fn of(&mut self, source: Source) -> &mut Stream {
        &mut self.streams[usize::from(source == Source::Stderr)]
    }

    /// Reads one chunk of a rank's pipe.
    ///
    /// # Errors
    /// When the writing thread cannot be started.
    pub fn readable(&mut self, poll: &Poll, token: Token, now: Duration) -> io::Result<()> {
        let rank = Rank(token.index);
        let mut buffer = std::mem::take(&mut self.buffer);
        let stream = self.of(token.source);
        let result = stream.read(poll, rank, now, &mut buffer);
        self.buffer = buffer;
        result
    }

    /// Puts text of the launcher's own, or of an MPI library speaking through it, on one of the
    /// streams. A writing thread that cannot be started loses it; the ranks' output tells so.
    pub fn say(&mut self, source: Source, text: Vec<u8>) {
        let _ = self.of(source).sink.write(text);
    }

    /// Shows unfinished lines that waited long enough, and pauses or resumes reading as the sinks
    /// fill and drain.
    ///
    /// # Errors
    /// When the writing thread cannot be started, or a pipe cannot be watched any more.
    pub fn tick(&mut self, poll: &Poll, now: Duration) -> io::Result<()> {
        for stream in &mut self.streams {
            let mut out = Vec::new();
            stream.merger.tick(now, &mut out);
            stream.sink.write(out)?;
            stream.regulate(poll)?;
        }
        Ok(())
    }

    /// When [`Streams::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.streams
            .iter()
            .filter_map(|stream| stream.merger.next_deadline())
            .min()
    }

    /// Number of pipes that somebody still holds open.
    pub fn open_pipes(&self) -> usize {
        self.streams.iter().map(|stream| stream.open).sum()
    }

    /// Whether reading is paused because the output is not taken.
    pub fn blocked(&self) -> bool {
        self.streams.iter().any(|stream| stream.paused)
    }

    /// Why one of the launcher's outputs cannot be written, once that happened.
    pub fn failure(&self) -> Option<(&'static str, Errno)> {
        let name = |source| {
            if source == Source::Stdout {
                "standard output"
            } else {
                "standard error"
            }
        };
        self.streams
            .iter()
            .find_map(|s| s.sink.failure().map(|errno| (name(s.source), errno)))
    }

    /// Nothing more will come: hands what is left, unfinished lines included, to the writing
    /// threads, which end when it is written.
    pub fn close(&mut self) {
        for stream in &mut self.streams {
            let mut out = Vec::new();
            for rank in 0..stream.pipes.len() {
                stream.merger.close(Rank(rank as u32), &mut out);
            }
            // A thread that cannot be started is reported by the stream's failure.
            let _ = stream.sink.write(out);
            stream.sink.close();
        }
    }

    /// Whether everything handed over was written, or cannot be.
    pub fn is_written(&self) -> bool {
        self.streams.iter().all(|stream| stream.sink.is_written())
    }
}

impl Stream {
    fn read(
        &mut self,
        poll: &Poll,
        rank: Rank,
        now: Duration,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        let Some(pipe) = &self.pipes[rank.index()] else {
            return Ok(());
        };
        let count = match rustix::io::read(pipe, &mut *buffer) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            // A pipe has no other errors; treat one like its end.
            Err(_) => 0,
        };
        let mut out = Vec::new();
        if count == 0 {
            self.merger.close(rank, &mut out);
            poll.remove(pipe)?;
            self.pipes[rank.index()] = None;
            self.open -= 1;
        } else {
            self.merger.push(rank, &buffer[..count], now, &mut out);
        }
        self.sink.write(out)?;
        self.regulate(poll)
    }

    /// Stops reading while the sink is full.
    fn regulate(&mut self, poll: &Poll) -> io::Result<()> {
        let full = self.sink.is_full();
        if full != self.paused {
            self.paused = full;
            let interest = if full {
                Interest::Paused
            } else {
                Interest::Read
            };
            for (rank, pipe) in self.pipes.iter().enumerate() {
                if let Some(pipe) = pipe {
                    poll.set(pipe, Token::new(self.source, rank as u32), interest)?;
                }
            }
        }
        Ok(())
    }
}
