//! The pipes into which the ranks print.

use std::io;
use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use super::{CHUNK, Crew};
use crate::agent::event::Event;
use crate::agent::poll::{Interest, Poll, Source, Token};
use crate::job::ids::GlobalRank;
use crate::launcher::message::FromCrew;
use crate::launcher::record::Stream;
use crate::pmix::value::Channels;

/// One of them.
#[derive(Debug)]
struct Pipe {
    rank: GlobalRank,
    fd: OwnedFd,
    /// Not read for now, whatever is done with the others.
    held: bool,
}

/// Standard output, or standard error, of all ranks.
#[derive(Debug)]
struct Side {
    source: Source,
    /// By seat.
    pipes: Vec<Option<Pipe>>,
    open: usize,
    paused: bool,
}

/// Both streams of all ranks here.
#[derive(Debug)]
pub(super) struct Pipes {
    sides: [Side; 2],
    buffer: Vec<u8>,
}

/// What a read of a pipe brought.
enum Piece {
    Nothing,
    Bytes(Vec<u8>),
    End,
}

fn index_of(source: Source) -> usize {
    usize::from(source == Source::Stderr)
}

fn stream_of(source: Source) -> Stream {
    match source {
        Source::Stderr => Stream::Stderr,
        _ => Stream::Stdout,
    }
}

impl Side {
    fn watch(&self, pipe: &Pipe, poll: &Poll) -> io::Result<()> {
        let interest = match self.paused || pipe.held {
            true => Interest::Paused,
            false => Interest::Read,
        };
        Ok(poll.set(&pipe.fd, Token::new(self.source, pipe.rank.0), interest)?)
    }
}

impl Pipes {
    /// None yet, of `size` ranks.
    pub(super) fn new(size: u32) -> Self {
        let side = |source| Side {
            source,
            pipes: (0..size).map(|_| None).collect(),
            open: 0,
            paused: false,
        };
        Self {
            sides: [side(Source::Stdout), side(Source::Stderr)],
            // Reserved and not filled: what is never read into costs no page.
            buffer: Vec::with_capacity(CHUNK),
        }
    }

    /// Takes over the pipe of a rank; `source` says which of the two.
    pub(super) fn add(
        &mut self,
        poll: &Poll,
        source: Source,
        (rank, seat): (GlobalRank, usize),
        pipe: OwnedFd,
    ) -> io::Result<()> {
        let side = &mut self.sides[index_of(source)];
        let token = Token::new(source, rank.0);
        poll.add(&pipe, token)?;
        if side.paused {
            poll.set(&pipe, token, Interest::Paused)?;
        }
        side.pipes[seat] = Some(Pipe {
            rank,
            fd: pipe,
            held: false,
        });
        side.open += 1;
        Ok(())
    }

    /// Makes room for so many ranks more.
    pub(super) fn grow(&mut self, ranks: usize) {
        for side in &mut self.sides {
            side.pipes.resize_with(side.pipes.len() + ranks, || None);
        }
    }

    /// Number of pipes that somebody still holds open.
    pub(super) fn open(&self) -> usize {
        self.sides.iter().map(|side| side.open).sum()
    }

    /// Whether reading is paused.
    pub(super) fn paused(&self) -> bool {
        self.sides.iter().any(|side| side.paused)
    }

    /// Reads one chunk of a rank's pipe.
    fn read(&mut self, poll: &Poll, source: Source, seat: usize) -> io::Result<Piece> {
        let side = &mut self.sides[index_of(source)];
        let Some(Pipe { fd: pipe, .. }) = &side.pipes[seat] else {
            return Ok(Piece::Nothing);
        };
        self.buffer.clear();
        let count = match rustix::io::read(pipe, spare_capacity(&mut self.buffer)) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Piece::Nothing),
            // A pipe has no other errors; treat one like its end.
            Err(_) => 0,
        };
        if count > 0 {
            return Ok(Piece::Bytes(self.buffer[..count].to_vec()));
        }
        poll.remove(pipe)?;
        side.pipes[seat] = None;
        side.open -= 1;
        Ok(Piece::End)
    }

    /// Stops reading one of the streams, or goes on with it.
    fn pause(&mut self, source: Source, paused: bool, poll: &Poll) -> io::Result<()> {
        let side = &mut self.sides[index_of(source)];
        if paused == side.paused {
            return Ok(());
        }
        side.paused = paused;
        for pipe in side.pipes.iter().flatten() {
            side.watch(pipe, poll)?;
        }
        Ok(())
    }

    /// Stops reading one pipe, or goes on with it.
    fn hold(&mut self, source: Source, seat: usize, held: bool, poll: &Poll) -> io::Result<()> {
        let side = &mut self.sides[index_of(source)];
        let Some(pipe) = &mut side.pipes[seat] else {
            return Ok(());
        };
        pipe.held = held;
        match &side.pipes[seat] {
            Some(pipe) => side.watch(pipe, poll),
            None => Ok(()),
        }
    }
}

impl Crew {
    /// Reads one chunk of a rank's pipe.
    ///
    /// # Errors
    /// When the pipe cannot be unwatched.
    pub(super) fn read_pipe(&mut self, source: Source, rank: GlobalRank) -> io::Result<()> {
        let seat = self.part.seat(&self.jobs, rank);
        self.read_seat(source, rank, seat).map(|_| ())
    }

    /// Whether there was anything.
    fn read_seat(&mut self, source: Source, rank: GlobalRank, seat: usize) -> io::Result<bool> {
        let bytes = match self.pipes.read(&self.poll, source, seat)? {
            Piece::Nothing => return Ok(false),
            Piece::Bytes(bytes) => bytes,
            Piece::End => Vec::new(),
        };
        self.pass_on(source, rank, &bytes);
        self.tell(FromCrew::Output {
            rank,
            stream: stream_of(source),
            bytes,
        });
        Ok(true)
    }

    /// Passes on what a rank printed to those who asked for it.
    fn pass_on(&mut self, source: Source, rank: GlobalRank, bytes: &[u8]) {
        let channel = match stream_of(source) {
            Stream::Stdout => Channels::STDOUT,
            Stream::Stderr => Channels::STDERR,
        };
        let (node, at) = self.place(rank);
        if self.node(node).core.wants_output(at, channel) {
            let printed = Event::Printed {
                rank: at,
                channel,
                bytes,
            };
            self.feed(node, printed);
        }
    }

    /// Stops reading one stream of a rank, or goes on with it.
    pub(super) fn hold_output(&mut self, rank: GlobalRank, channel: Channels, held: bool) {
        let source = match channel {
            Channels::STDERR => Source::Stderr,
            _ => Source::Stdout,
        };
        let seat = self.part.seat(&self.jobs, rank);
        // A pipe that cannot be watched is not one that is read: its rank waits.
        let _ = self.pipes.hold(source, seat, held, &self.poll);
    }

    /// Reads what the pipes that are not paused hold, one chunk of each, without waiting for more;
    /// whether there was anything.
    ///
    /// # Errors
    /// As [`Crew::read_pipe`].
    pub(super) fn read_pipes(&mut self) -> io::Result<bool> {
        let mut any = false;
        for index in 0..self.pipes.sides.len() {
            if self.pipes.sides[index].paused {
                continue;
            }
            for seat in 0..self.pipes.sides[index].pipes.len() {
                let side = &self.pipes.sides[index];
                if let Some(Pipe { rank, .. }) = side.pipes[seat] {
                    any |= self.read_seat(side.source, rank, seat)?;
                }
            }
        }
        Ok(any)
    }

    /// Stops reading one of the streams, or goes on with it.
    ///
    /// # Errors
    /// When a pipe cannot be watched any more.
    pub(in crate::launcher) fn pause(&mut self, stream: Stream, paused: bool) -> io::Result<()> {
        let source = match stream {
            Stream::Stdout => Source::Stdout,
            Stream::Stderr => Source::Stderr,
        };
        if self.pipes.sides[index_of(source)].paused && !paused {
            self.look_at_end();
        }
        self.pipes.pause(source, paused, &self.poll)
    }
}
