//! What the ranks print: from their pipes through a [`Merger`] into the launcher's own output, or
//! into files of theirs.

mod outlets;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;

use self::outlets::{Outlet, Outlets};
use super::record::{Record, Stream as Channel};
use super::stdio::{Dress, Merger};
use crate::agent::poll::{Interest, Poll, Source, Token};
use crate::agent::start::OutputPlan;
use crate::job::ids::Rank;
use crate::job::wall::WallClock;

/// Bytes read from one pipe before others get their turn.
const CHUNK: usize = 64 * 1024;

/// How the ranks' output is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Show {
    /// With the rank in front.
    pub label: bool,
    /// With the time in front, as this clock writes it.
    pub times: Option<WallClock>,
    /// All of it as events on standard output, with times of this clock.
    pub events: Option<WallClock>,
}

/// Standard output, or standard error, of all ranks.
#[derive(Debug)]
struct Stream {
    source: Source,
    merger: Merger,
    outlet: Outlet,
    pipes: Vec<Option<OwnedFd>>,
    open: usize,
    paused: bool,
}

/// A file that the launcher writes for a rank. Both of the rank's streams may go there.
#[derive(Debug)]
struct RankFile {
    merger: Merger,
    outlet: Outlet,
}

/// The files of a rank.
#[derive(Debug)]
struct RankFiles {
    out: RankFile,
    /// The same as `out` when absent.
    err: Option<RankFile>,
}

/// Both streams of a job.
#[derive(Debug)]
pub struct Streams {
    streams: [Stream; 2],
    outlets: Outlets,
    show: Show,
    /// By rank, when the launcher writes them.
    files: Vec<RankFiles>,
    /// The rank that has a terminal: what it writes goes to standard output as it is.
    unframed: Option<Rank>,
    buffer: Vec<u8>,
}

impl Streams {
    /// Streams for `size` ranks into the launcher's standard output and error.
    ///
    /// # Errors
    /// When these cannot be duplicated.
    pub fn new(size: u32, show: Show, wake: &Arc<OwnedFd>) -> io::Result<Self> {
        let stream = |source, channel, own| {
            let (dress, outlet) = match show {
                Show {
                    events: Some(clock),
                    ..
                } => (
                    Dress::Event {
                        stream: channel,
                        clock,
                    },
                    Outlet::Out,
                ),
                Show {
                    label: false,
                    times: None,
                    ..
                } => (Dress::Plain, own),
                Show { label, times, .. } => (
                    Dress::Prefix {
                        label,
                        clock: times,
                    },
                    own,
                ),
            };
            Stream {
                source,
                merger: Merger::new(dress),
                outlet,
                pipes: (0..size).map(|_| None).collect(),
                open: 0,
                paused: false,
            }
        };
        Ok(Self {
            streams: [
                stream(Source::Stdout, Channel::Stdout, Outlet::Out),
                stream(Source::Stderr, Channel::Stderr, Outlet::Err),
            ],
            outlets: Outlets::new(wake)?,
            show,
            files: Vec::new(),
            unframed: None,
            // Reserved and not filled: what is never read into costs no page.
            buffer: Vec::with_capacity(CHUNK),
        })
    }

    /// Writes files for the ranks when a rank cannot do that itself, because times are put in front
    /// of its lines; returns what the ranks get then.
    pub fn take_files(&mut self, outputs: Vec<OutputPlan>) -> Vec<OutputPlan> {
        let Some(clock) = self.show.times else {
            return outputs;
        };
        let to_file = |file| RankFile {
            merger: Merger::new(Dress::Prefix {
                label: false,
                clock: Some(clock),
            }),
            outlet: Outlet::File(Arc::new(OwnedFd::from(file))),
        };
        let pipes = |output| {
            if let OutputPlan::Files { out, err } = output {
                self.files.push(RankFiles {
                    out: to_file(out),
                    err: err.map(to_file),
                });
            }
            OutputPlan::Pipes
        };
        outputs.into_iter().map(pipes).collect()
    }

    /// What this rank writes is shown as it is.
    pub fn set_unframed(&mut self, rank: Rank) {
        self.unframed = Some(rank);
    }

    /// The user's terminal is in raw mode from now on, or is so no more.
    pub fn set_raw(&mut self, raw: bool) {
        self.outlets.set_raw(raw);
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
        let stream = &mut self.streams[index_of(source)];
        let token = Token::new(source, rank.0);
        poll.add(&pipe, token)?;
        if stream.paused {
            poll.set(&pipe, token, Interest::Paused)?;
        }
        stream.pipes[rank.index()] = Some(pipe);
        stream.open += 1;
        Ok(())
    }

    /// Reads one chunk of a rank's pipe.
    ///
    /// # Errors
    /// When the writing thread cannot be started.
    pub fn readable(&mut self, poll: &Poll, token: Token, now: Duration) -> io::Result<()> {
        let rank = Rank(token.index);
        let index = index_of(token.source);
        let Some(pipe) = &self.streams[index].pipes[rank.index()] else {
            return Ok(());
        };
        self.buffer.clear();
        let count = match rustix::io::read(pipe, spare_capacity(&mut self.buffer)) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            // A pipe has no other errors; treat one like its end.
            Err(_) => 0,
        };
        if self.unframed == Some(rank) {
            if count == 0 {
                self.streams[index].drop_pipe(poll, rank)?;
            } else {
                self.outlets.put_raw(self.buffer[..count].to_vec())?;
            }
            return self.regulate(poll);
        }
        let mut out = Vec::new();
        let (merger, outlet, key) = match self.files.get_mut(rank.index()) {
            // One merger for both streams keeps a line of one out of the middle of the other's.
            Some(files) => {
                let file = match (index, &mut files.err) {
                    (1, Some(err)) => err,
                    _ => &mut files.out,
                };
                (&mut file.merger, &file.outlet, Rank(index as u32))
            }
            None => {
                let stream = &mut self.streams[index];
                (&mut stream.merger, &stream.outlet, rank)
            }
        };
        if count == 0 {
            merger.close(key, &mut out);
        } else {
            merger.push(key, &self.buffer[..count], now, &mut out);
        }
        self.outlets.put(outlet, out)?;
        if count == 0 {
            self.streams[index].drop_pipe(poll, rank)?;
        }
        self.regulate(poll)
    }

    /// Puts text of the launcher's own on one of its outputs. A writing thread that cannot be
    /// started loses it; the ranks' output tells so.
    pub fn say(&mut self, source: Source, text: Vec<u8>) {
        let outlet = match source {
            Source::Stdout => Outlet::Out,
            _ => Outlet::Err,
        };
        let _ = self.outlets.put(&outlet, text);
    }

    /// Passes on what an MPI library says through the launcher.
    pub fn pass_on(&mut self, source: Source, text: Vec<u8>, now: Duration) {
        let Some(clock) = self.show.events else {
            return self.say(source, text);
        };
        let channel = match source {
            Source::Stdout => Channel::Stdout,
            _ => Channel::Stderr,
        };
        let mut line = Vec::new();
        Record::output(None, channel, &text).write(clock, now, &mut line);
        self.say(Source::Stdout, line);
    }

    /// Whether people look at standard error.
    pub fn on_terminal(&self) -> bool {
        self.outlets.terminal()
    }

    /// Whether [`Streams::draw`] may be called: there is a terminal, and nothing on it would be
    /// overwritten.
    pub fn can_draw(&self) -> bool {
        let mid_line = self.streams.iter().any(|s| s.merger.is_mid_line());
        !mid_line && self.outlets.can_draw()
    }

    /// Shows a line at the end of the terminal until something else is shown there, or takes it
    /// away.
    pub fn draw(&mut self, text: Option<&str>) {
        self.outlets.draw(text);
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
            self.outlets.put(&stream.outlet, out)?;
        }
        for file in rank_files(&mut self.files) {
            let mut out = Vec::new();
            file.merger.tick(now, &mut out);
            self.outlets.put(&file.outlet, out)?;
        }
        self.regulate(poll)
    }

    /// When [`Streams::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Duration> {
        let files = self.files.iter().flat_map(|files| {
            let err = files.err.iter().map(|file| &file.merger);
            err.chain([&files.out.merger])
        });
        let streams = self.streams.iter().map(|stream| &stream.merger);
        streams.chain(files).filter_map(Merger::next_deadline).min()
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
        self.outlets.failure()
    }

    /// No rank will print anything more: shows the lines that are not finished.
    pub fn end_lines(&mut self) {
        for stream in &mut self.streams {
            let mut out = Vec::new();
            for rank in 0..stream.pipes.len() {
                stream.merger.close(Rank(rank as u32), &mut out);
            }
            // A thread that cannot be started is reported by the stream's failure.
            let _ = self.outlets.put(&stream.outlet, out);
        }
        for file in rank_files(&mut self.files) {
            let mut out = Vec::new();
            for key in [Rank(0), Rank(1)] {
                file.merger.close(key, &mut out);
            }
            let _ = self.outlets.put(&file.outlet, out);
        }
    }

    /// Nothing more will come at all: the writing threads end when everything is written.
    pub fn close(&mut self) {
        self.outlets.draw(None);
        self.outlets.close();
    }

    /// Whether everything handed over was written, or cannot be.
    pub fn is_written(&self) -> bool {
        self.outlets.is_written()
    }

    /// Stops reading what goes where nothing is taken.
    fn regulate(&mut self, poll: &Poll) -> io::Result<()> {
        let to_files = self.files.first().map(|files| files.out.outlet.clone());
        for stream in &mut self.streams {
            let outlet = to_files.as_ref().unwrap_or(&stream.outlet);
            stream.pause(self.outlets.is_full(outlet), poll)?;
        }
        Ok(())
    }
}

fn index_of(source: Source) -> usize {
    usize::from(source == Source::Stderr)
}

fn rank_files(files: &mut [RankFiles]) -> impl Iterator<Item = &mut RankFile> {
    files
        .iter_mut()
        .flat_map(|files| std::iter::once(&mut files.out).chain(&mut files.err))
}

impl Stream {
    fn drop_pipe(&mut self, poll: &Poll, rank: Rank) -> io::Result<()> {
        if let Some(pipe) = self.pipes[rank.index()].take() {
            poll.remove(&pipe)?;
            self.open -= 1;
        }
        Ok(())
    }

    /// Stops reading while the sink is full.
    fn pause(&mut self, full: bool, poll: &Poll) -> io::Result<()> {
        if full == self.paused {
            return Ok(());
        }
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
        Ok(())
    }
}
