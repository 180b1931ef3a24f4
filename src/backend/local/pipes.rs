//! The pipes into which the ranks print.

use std::io;
use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use super::{CHUNK, LocalBackend};
use crate::backend::step_messages::StepToLauncher;
use crate::sys::poll::{Poll, PollSource, PollToken};
use wireup_core::job::ids::GlobalRank;
use wireup_core::node::event::NodeEvent;
use wireup_core::pmix::value::Channels;
use wireup_core::record::Stream;

/// One of them.
#[derive(Debug)]
struct Pipe {
    rank: GlobalRank,
    fd: OwnedFd,
    /// Not read for now, whatever is done with the others.
    is_held: bool,
    /// The loop is notified when there is data. For a paused pipe it is notified
    /// nothing at all: an end, which the system reports unasked, would have it read all the same.
    watched: bool,
}

/// Standard output, or standard error, of all ranks.
#[derive(Debug)]
struct StreamPipes {
    source: PollSource,
    pipes: Vec<Option<Pipe>>,
    /// Bytes that were read of each; `None` where there never was a pipe.
    bytes_read: Vec<Option<u64>>,
    open: usize,
    paused: bool,
    /// The seat behind the one that was read last. After a pause it is the first, so that those in
    /// front do not use up what can be taken each time.
    next: usize,
}

/// Both streams of all ranks here.
#[derive(Debug)]
pub(super) struct RankPipes {
    sides: [StreamPipes; 2],
    buffer: Vec<u8>,
}

/// What a read of a pipe brought.
enum PipeRead {
    Nothing,
    Bytes(Vec<u8>),
    End,
}

fn index_of(source: PollSource) -> usize {
    usize::from(source == PollSource::Stderr)
}

fn stream_of(source: PollSource) -> Stream {
    match source {
        PollSource::Stderr => Stream::Stderr,
        _ => Stream::Stdout,
    }
}

impl StreamPipes {
    /// Watches a pipe unless it is paused.
    fn watch(&mut self, seat: usize, poll: &Poll) -> io::Result<()> {
        let Some(pipe) = &mut self.pipes[seat] else {
            return Ok(());
        };
        let wanted = !self.paused && !pipe.is_held;
        if wanted == pipe.watched {
            return Ok(());
        }
        match wanted {
            true => poll.add(&pipe.fd, PollToken::new(self.source, pipe.rank.0))?,
            false => poll.remove(&pipe.fd)?,
        }
        pipe.watched = wanted;
        Ok(())
    }

    fn rank_at(&self, seat: usize) -> Option<GlobalRank> {
        self.pipes[seat].as_ref().map(|pipe| pipe.rank)
    }

    /// All pipes, beginning with the next in turn.
    fn seats(&self) -> impl Iterator<Item = usize> + use<> {
        let next = self.next.min(self.pipes.len());
        (next..self.pipes.len()).chain(0..next)
    }
}

impl RankPipes {
    /// None yet, of `size` ranks.
    pub(super) fn new(size: u32) -> Self {
        let side = |source| StreamPipes {
            source,
            pipes: (0..size).map(|_| None).collect(),
            bytes_read: vec![None; size as usize],
            open: 0,
            paused: false,
            next: 0,
        };
        Self {
            sides: [side(PollSource::Stdout), side(PollSource::Stderr)],
            // Reserved and not filled: unused parts take no memory.
            buffer: Vec::with_capacity(CHUNK),
        }
    }

    /// Takes over the pipe of a rank; `source` selects one of the two.
    pub(super) fn add(
        &mut self,
        poll: &Poll,
        source: PollSource,
        rank: GlobalRank,
        seat: usize,
        pipe: OwnedFd,
    ) -> io::Result<()> {
        let side = &mut self.sides[index_of(source)];
        side.pipes[seat] = Some(Pipe {
            rank,
            fd: pipe,
            is_held: false,
            watched: false,
        });
        side.bytes_read[seat] = Some(0);
        side.open += 1;
        side.watch(seat, poll)
    }

    /// Makes room for this number of additional ranks.
    pub(super) fn grow(&mut self, ranks: usize) {
        for side in &mut self.sides {
            side.pipes.resize_with(side.pipes.len() + ranks, || None);
            side.bytes_read.resize(side.pipes.len(), None);
        }
    }

    /// Bytes that the rank of a seat has printed, as far as they came through a pipe; `None` if it has none.
    pub(super) fn bytes_read(&self, seat: usize) -> Option<u64> {
        let taken = self.sides.iter().filter_map(|side| side.bytes_read[seat]);
        taken.reduce(|sum, side| sum + side)
    }

    /// Number of pipes that still have writers.
    pub(super) fn open(&self) -> usize {
        self.sides.iter().map(|side| side.open).sum()
    }

    /// Whether reading is paused.
    pub(super) fn paused(&self) -> bool {
        self.sides.iter().any(|side| side.paused)
    }

    /// Whether the loop is notified of data in a pipe.
    fn is_watched(&self, source: PollSource, seat: usize) -> bool {
        let pipe = &self.sides[index_of(source)].pipes[seat];
        pipe.as_ref().is_some_and(|pipe| pipe.watched)
    }

    /// Reads one chunk of a rank's pipe.
    fn read(&mut self, poll: &Poll, source: PollSource, seat: usize) -> io::Result<PipeRead> {
        let side = &mut self.sides[index_of(source)];
        let Some(pipe) = &side.pipes[seat] else {
            return Ok(PipeRead::Nothing);
        };
        self.buffer.clear();
        let count = match rustix::io::read(&pipe.fd, spare_capacity(&mut self.buffer)) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(PipeRead::Nothing),
            // A pipe has no other errors; treat one like its end.
            Err(_) => 0,
        };
        side.next = seat + 1;
        if count > 0 {
            if let Some(taken) = &mut side.bytes_read[seat] {
                *taken += count as u64;
            }
            return Ok(PipeRead::Bytes(self.buffer[..count].to_vec()));
        }
        if pipe.watched {
            poll.remove(&pipe.fd)?;
        }
        side.pipes[seat] = None;
        side.open -= 1;
        Ok(PipeRead::End)
    }

    /// Pauses or resumes one of the streams.
    fn pause(&mut self, source: PollSource, paused: bool, poll: &Poll) -> io::Result<()> {
        let side = &mut self.sides[index_of(source)];
        if paused == side.paused {
            return Ok(());
        }
        side.paused = paused;
        for seat in side.seats() {
            side.watch(seat, poll)?;
        }
        Ok(())
    }

    /// Pauses or resumes one pipe.
    fn hold(&mut self, source: PollSource, seat: usize, held: bool, poll: &Poll) -> io::Result<()> {
        let side = &mut self.sides[index_of(source)];
        if let Some(pipe) = &mut side.pipes[seat] {
            pipe.is_held = held;
        }
        side.watch(seat, poll)
    }
}

impl LocalBackend {
    /// Reads one chunk of a rank's pipe, unless the previous data has paused it.
    ///
    /// # Errors
    /// When the pipe cannot be unwatched.
    pub(super) fn read_pipe(&mut self, source: PollSource, rank: GlobalRank) -> io::Result<()> {
        let seat = self.scope.local_index(&self.jobs, rank);
        if self.pipes.is_watched(source, seat) {
            self.read_seat(source, rank, seat)?;
        }
        Ok(())
    }

    /// How many bytes there were; `None` when there was nothing, not even an end.
    fn read_seat(
        &mut self,
        source: PollSource,
        rank: GlobalRank,
        seat: usize,
    ) -> io::Result<Option<usize>> {
        let bytes = match self.pipes.read(&self.poll, source, seat)? {
            PipeRead::Nothing => return Ok(None),
            PipeRead::Bytes(bytes) => bytes,
            PipeRead::End => Vec::new(),
        };
        let count = bytes.len();
        let claimed = self.pass_on(source, rank, &bytes);
        if !claimed || bytes.is_empty() {
            self.report(StepToLauncher::Output {
                rank,
                stream: stream_of(source),
                bytes,
            });
        }
        Ok(Some(count))
    }

    /// Gives a rank's output to its node, which passes it on to subscribers; whether it is for them alone.
    fn pass_on(&mut self, source: PollSource, rank: GlobalRank, bytes: &[u8]) -> bool {
        let channel = match stream_of(source) {
            Stream::Stdout => Channels::STDOUT,
            Stream::Stderr => Channels::STDERR,
        };
        let (node, at) = self.place(rank);
        let claimed = self.node(node).core.claims_output(at, channel);
        let printed = NodeEvent::OutputRead {
            rank: at,
            channel,
            bytes,
        };
        self.handle_event(node, printed);
        claimed
    }

    /// Pauses or resumes one stream of a rank.
    pub(super) fn hold_output(&mut self, rank: GlobalRank, channel: Channels, held: bool) {
        let source = match channel {
            Channels::STDERR => PollSource::Stderr,
            _ => PollSource::Stdout,
        };
        let seat = self.scope.local_index(&self.jobs, rank);
        // A pipe that cannot be watched is not one that is read: its rank waits.
        let _ = self.pipes.hold(source, seat, held, &self.poll);
    }

    /// Reads what the pipes that are not paused hold, one chunk of each, without waiting for more;
    /// whether there was anything. It stops after an amount for which the launcher must first give
    /// new credit, and continues there the next time.
    ///
    /// # Errors
    /// As [`LocalBackend::read_pipe`].
    pub(super) fn read_pipes(&mut self) -> io::Result<bool> {
        let mut any = false;
        for index in 0..self.pipes.sides.len() {
            let side = &self.pipes.sides[index];
            if side.paused {
                continue;
            }
            let (source, seats) = (side.source, side.seats());
            let mut total = 0;
            for seat in seats {
                let Some(rank) = self.pipes.sides[index].rank_at(seat) else {
                    continue;
                };
                if let Some(count) = self.read_seat(source, rank, seat)? {
                    any = true;
                    total += count;
                }
                if total >= CHUNK {
                    break;
                }
            }
        }
        Ok(any)
    }

    /// Pauses or resumes one of the streams.
    ///
    /// # Errors
    /// When a pipe cannot be watched any more.
    pub(crate) fn pause(&mut self, stream: Stream, paused: bool) -> io::Result<()> {
        let source = match stream {
            Stream::Stdout => PollSource::Stdout,
            Stream::Stderr => PollSource::Stderr,
        };
        if self.pipes.sides[index_of(source)].paused && !paused {
            self.advance_shutdown();
        }
        self.pipes.pause(source, paused, &self.poll)
    }
}
