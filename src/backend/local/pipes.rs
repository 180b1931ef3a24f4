//! Output pipes of the ranks.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use super::CHUNK;
use wireup_core::job::ids::GlobalRank;
use wireup_core::pmix::value::Channels;
use wireup_core::record::Stream;
use wireup_sys::poll::{Poll, PollSource, PollToken};

/// The open pipe of a stream.
#[derive(Debug)]
struct OutputPipe {
    rank: GlobalRank,
    fd: OwnedFd,
    /// Whether this pipe alone is not read for now.
    is_held: bool,
    /// Whether the pipe is in the poll set. A paused pipe is removed from it: the system always reports the end of a pipe,
    /// and the pipe would be read then.
    watched: bool,
}

/// A stream of one rank, as far as it is a pipe.
#[derive(Debug, Default)]
struct StreamPipe {
    /// Pipe, until its writers have closed it.
    pipe: Option<OutputPipe>,
    /// Number of bytes read; `None` if the stream never was a pipe.
    bytes_read: Option<u64>,
}

/// Standard output and standard error of one rank.
#[derive(Debug, Default)]
pub(super) struct OutputPipes([StreamPipe; 2]);

impl OutputPipes {
    /// Returns the number of bytes that the rank has printed through its pipes; `None` if it has none.
    pub(super) fn bytes_read(&self) -> Option<u64> {
        let read = self.0.iter().filter_map(|stream| stream.bytes_read);
        read.reduce(|sum, stream| sum + stream)
    }
}

/// Standard output, or standard error, of all ranks here.
#[derive(Debug)]
struct StreamReader {
    source: PollSource,
    /// Number of pipes that still have writers.
    open: usize,
    paused: bool,
    /// Local index after that of the rank that was read last. Reading resumes there after a pause, so that the first ranks
    /// do not use all the credit each time.
    next: usize,
}

/// Reads both streams of all ranks here.
#[derive(Debug)]
pub(super) struct RankOutputReader {
    streams: [StreamReader; 2],
    buffer: Vec<u8>,
    /// Error of a stream that could not be paused; the loop fails with it.
    pub(super) error: Option<io::Error>,
}

/// Output that was read from a pipe, or its end.
pub(super) struct ReadOutput {
    pub(super) rank: GlobalRank,
    pub(super) source: PollSource,
    /// Bytes that were read; empty at the end of the stream.
    pub(super) bytes: Vec<u8>,
}

impl ReadOutput {
    pub(super) fn stream(&self) -> Stream {
        match self.source {
            PollSource::Stderr => Stream::Stderr,
            _ => Stream::Stdout,
        }
    }

    /// Returns the stream as a PMIx IOF channel.
    pub(super) fn channel(&self) -> Channels {
        match self.stream() {
            Stream::Stdout => Channels::STDOUT,
            Stream::Stderr => Channels::STDERR,
        }
    }
}

fn index_of(source: PollSource) -> usize {
    usize::from(source == PollSource::Stderr)
}

fn source_of(stream: Stream) -> PollSource {
    match stream {
        Stream::Stdout => PollSource::Stdout,
        Stream::Stderr => PollSource::Stderr,
    }
}

impl StreamReader {
    /// Watches a rank's pipe unless it is paused.
    fn watch(&self, stream: &mut StreamPipe, poll: &Poll) -> io::Result<()> {
        let Some(pipe) = &mut stream.pipe else {
            return Ok(());
        };
        let must_watch = !self.paused && !pipe.is_held;
        if must_watch == pipe.watched {
            return Ok(());
        }
        match must_watch {
            true => poll.add(&pipe.fd, PollToken::new(self.source, pipe.rank.0))?,
            false => poll.remove(&pipe.fd)?,
        }
        pipe.watched = must_watch;
        Ok(())
    }

    /// Returns the local indices of all ranks, beginning with the next in turn.
    fn turns(&self, ranks: usize) -> impl Iterator<Item = usize> + use<> {
        let next = self.next.min(ranks);
        (next..ranks).chain(0..next)
    }
}

impl Default for RankOutputReader {
    fn default() -> Self {
        let stream = |source| StreamReader {
            source,
            open: 0,
            paused: false,
            next: 0,
        };
        Self {
            streams: [stream(PollSource::Stdout), stream(PollSource::Stderr)],
            // The buffer is reserved and not filled: unused parts take no memory.
            buffer: Vec::with_capacity(CHUNK),
            error: None,
        }
    }
}

impl RankOutputReader {
    /// Takes over an output pipe of a rank; `source` selects the stream.
    pub(super) fn add(
        &mut self,
        poll: &Poll,
        source: PollSource,
        rank: GlobalRank,
        output: &mut OutputPipes,
        pipe: OwnedFd,
    ) -> io::Result<()> {
        let stream = &mut self.streams[index_of(source)];
        let at = &mut output.0[index_of(source)];
        at.pipe = Some(OutputPipe {
            rank,
            fd: pipe,
            is_held: false,
            watched: false,
        });
        at.bytes_read = Some(0);
        stream.open += 1;
        stream.watch(at, poll)
    }

    /// Returns the number of pipes that still have writers.
    pub(super) fn open(&self) -> usize {
        self.streams.iter().map(|stream| stream.open).sum()
    }

    /// Whether reading is paused.
    pub(super) fn paused(&self) -> bool {
        self.streams.iter().any(|stream| stream.paused)
    }

    /// Whether reading of one of the streams is paused.
    pub(super) fn is_paused(&self, stream: Stream) -> bool {
        self.streams[index_of(source_of(stream))].paused
    }

    /// Reads one chunk of a rank's pipe, unless earlier output has paused it.
    ///
    /// # Errors
    /// When the pipe cannot be unwatched.
    pub(super) fn read_watched(
        &mut self,
        poll: &Poll,
        source: PollSource,
        output: &mut OutputPipes,
        index: usize,
    ) -> io::Result<Option<ReadOutput>> {
        let pipe = output.0[index_of(source)].pipe.as_ref();
        match pipe.is_some_and(|pipe| pipe.watched) {
            true => self.read(poll, source, output, index),
            false => Ok(None),
        }
    }

    /// Reads one chunk of the pipe of the rank with this local index; `None` if it has neither data nor its end.
    ///
    /// # Errors
    /// When the pipe cannot be unwatched.
    pub(super) fn read(
        &mut self,
        poll: &Poll,
        source: PollSource,
        output: &mut OutputPipes,
        index: usize,
    ) -> io::Result<Option<ReadOutput>> {
        let stream = &mut self.streams[index_of(source)];
        let at = &mut output.0[index_of(source)];
        let Some(pipe) = &at.pipe else {
            return Ok(None);
        };
        let rank = pipe.rank;
        self.buffer.clear();
        let count = match rustix::io::read(&pipe.fd, spare_capacity(&mut self.buffer)) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            // Other errors are impossible for a pipe and are treated as its end.
            Err(_) => 0,
        };
        stream.next = index + 1;
        let bytes = self.buffer[..count].to_vec();
        if count > 0 {
            if let Some(read) = &mut at.bytes_read {
                *read += count as u64;
            }
        } else {
            if pipe.watched {
                poll.remove(&pipe.fd)?;
            }
            at.pipe = None;
            stream.open -= 1;
        }
        Ok(Some(ReadOutput {
            rank,
            source,
            bytes,
        }))
    }

    /// Returns the streams that are not paused, each with the local indices of its ranks in turn.
    pub(super) fn rounds(
        &self,
        ranks: usize,
    ) -> Vec<(PollSource, impl Iterator<Item = usize> + use<>)> {
        let streams = self.streams.iter().filter(|stream| !stream.paused);
        let rounds = streams.map(|stream| (stream.source, stream.turns(ranks)));
        rounds.collect()
    }

    /// Pauses or resumes one of the streams of all ranks here.
    ///
    /// # Errors
    /// When a pipe cannot be watched any more.
    pub(super) fn pause<'a>(
        &mut self,
        poll: &Poll,
        stream: Stream,
        paused: bool,
        outputs: impl Iterator<Item = &'a mut OutputPipes>,
    ) -> io::Result<()> {
        let source = source_of(stream);
        let stream = &mut self.streams[index_of(source)];
        if paused == stream.paused {
            return Ok(());
        }
        stream.paused = paused;
        let mut outputs: Vec<_> = outputs.collect();
        for index in stream.turns(outputs.len()) {
            stream.watch(&mut outputs[index].0[index_of(source)], poll)?;
        }
        Ok(())
    }

    /// Pauses or resumes one stream of a rank.
    pub(super) fn hold(
        &mut self,
        poll: &Poll,
        channel: Channels,
        output: &mut OutputPipes,
        is_held: bool,
    ) {
        let source = match channel {
            Channels::STDERR => PollSource::Stderr,
            _ => PollSource::Stdout,
        };
        let at = &mut output.0[index_of(source)];
        if let Some(pipe) = &mut at.pipe {
            pipe.is_held = is_held;
        }
        // A pipe that cannot be watched is not read, and its rank waits.
        let _ = self.streams[index_of(source)].watch(at, poll);
    }

    /// Returns the time at which the error is due.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.error.as_ref().map(|_| Duration::ZERO)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "for tests")]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    #[test]
    fn output_is_read_in_turns_and_not_while_paused() {
        let poll = Poll::new().unwrap();
        let mut reader = RankOutputReader::default();
        let mut outputs = [OutputPipes::default(), OutputPipes::default()];
        let stdout = PollSource::Stdout;
        let mut writers = Vec::new();
        for (index, output) in outputs.iter_mut().enumerate() {
            let (pipe, writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
            let rank = GlobalRank(index as u32);
            reader.add(&poll, stdout, rank, output, pipe).unwrap();
            rustix::io::write(&writer, b"text").unwrap();
            writers.push(writer);
        }
        let first = reader.read(&poll, stdout, &mut outputs[0], 0);
        assert_eq!(first.unwrap().unwrap().bytes, b"text");
        assert_eq!(outputs[0].bytes_read(), Some(4));
        let turns = |reader: &RankOutputReader| -> Vec<Vec<usize>> {
            let rounds = reader.rounds(2).into_iter();
            rounds.map(|(_, indices)| indices.collect()).collect()
        };
        assert_eq!(turns(&reader), [[1, 0], [0, 1]]);
        let paused = reader.pause(&poll, Stream::Stdout, true, outputs.iter_mut());
        paused.unwrap();
        assert_eq!(turns(&reader), [[0, 1]]);
        let second = reader.read_watched(&poll, stdout, &mut outputs[1], 1);
        assert!(second.unwrap().is_none());
        let resumed = reader.pause(&poll, Stream::Stdout, false, outputs.iter_mut());
        resumed.unwrap();
        drop(writers);
        let mut ends = 0;
        while reader.open() > 0 {
            for (index, output) in outputs.iter_mut().enumerate() {
                let read = reader.read_watched(&poll, stdout, output, index).unwrap();
                ends += usize::from(read.is_some_and(|read| read.bytes.is_empty()));
            }
        }
        assert_eq!((ends, outputs[1].bytes_read()), (2, Some(4)));
    }
}
