//! What the ranks print: through a [`Merger`] into the launcher's own output, or into files of
//! theirs.

mod outlets;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use self::outlets::{Outlet, Outlets};
use super::record::{Record, Speaker, Stream as Channel};
use super::stdio::{Dress, Merger};
use crate::agent::poll::Source;
use crate::agent::start::OutputPlan;
use crate::job::ids::{JobNumber, Rank};
use crate::job::wall::WallClock;

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
    merger: Merger,
    outlet: Outlet,
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
    unframed: Option<Speaker>,
}

impl Streams {
    /// Streams into the launcher's standard output and error.
    ///
    /// # Errors
    /// When these cannot be duplicated.
    pub fn new(show: Show, wake: &Arc<OwnedFd>) -> io::Result<Self> {
        let stream = |channel, own| {
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
                merger: Merger::new(dress),
                outlet,
            }
        };
        Ok(Self {
            streams: [
                stream(Channel::Stdout, Outlet::Out),
                stream(Channel::Stderr, Outlet::Err),
            ],
            outlets: Outlets::new(wake)?,
            show,
            files: Vec::new(),
            unframed: None,
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
    pub fn set_unframed(&mut self, speaker: Speaker) {
        self.unframed = Some(speaker);
    }

    /// The user's terminal is in raw mode from now on, or is so no more.
    pub fn set_raw(&mut self, raw: bool) {
        self.outlets.set_raw(raw);
    }

    /// Takes what a rank printed; nothing when it has closed the stream.
    ///
    /// # Errors
    /// When the writing thread cannot be started.
    pub fn take(
        &mut self,
        stream: Channel,
        speaker: Speaker,
        bytes: &[u8],
        now: Duration,
    ) -> io::Result<()> {
        let index = index_of(stream);
        if self.unframed == Some(speaker) {
            return match bytes {
                [] => Ok(()),
                bytes => self.outlets.put_raw(bytes.to_vec()),
            };
        }
        let mut out = Vec::new();
        let files = match speaker.job {
            JobNumber(0) => self.files.get_mut(speaker.rank.index()),
            _ => None,
        };
        let (merger, outlet, key) = match files {
            // One merger for both streams keeps a line of one out of the middle of the other's.
            Some(files) => {
                let file = match (index, &mut files.err) {
                    (1, Some(err)) => err,
                    _ => &mut files.out,
                };
                (&mut file.merger, &file.outlet, key_of(index))
            }
            None => {
                let stream = &mut self.streams[index];
                (&mut stream.merger, &stream.outlet, speaker)
            }
        };
        match bytes {
            [] => merger.close(key, &mut out),
            bytes => merger.push(key, bytes, now, &mut out),
        }
        self.outlets.put(outlet, out)
    }

    /// Whether what a stream brings is not taken where it goes.
    pub fn is_full(&self, stream: Channel) -> bool {
        let to_files = self.files.first().map(|files| &files.out.outlet);
        let own = &self.streams[index_of(stream)].outlet;
        self.outlets.is_full(to_files.unwrap_or(own))
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

    /// Puts a line of the launcher's own on standard error, where it starts a line: one that a rank
    /// has not finished is broken there.
    pub fn tell(&mut self, line: &str) {
        let mut text = format!("{line}\n");
        if !self.outlets.at_start() {
            text.insert(0, '\n');
            let shared = self.outlets.is_shared();
            for stream in &mut self.streams {
                if shared || matches!(stream.outlet, Outlet::Err) {
                    stream.merger.break_line();
                }
            }
        }
        self.say(Source::Stderr, text.into_bytes());
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

    /// Shows unfinished lines that waited long enough.
    ///
    /// # Errors
    /// When the writing thread cannot be started.
    pub fn tick(&mut self, now: Duration) -> io::Result<()> {
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
        Ok(())
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

    /// Why one of the launcher's outputs cannot be written, once that happened.
    pub fn failure(&self) -> Option<(&'static str, Errno)> {
        self.outlets.failure()
    }

    /// No rank will print anything more: shows the lines that are not finished.
    pub fn end_lines(&mut self) {
        for stream in &mut self.streams {
            let mut out = Vec::new();
            stream.merger.close_all(&mut out);
            // A thread that cannot be started is reported by the stream's failure.
            let _ = self.outlets.put(&stream.outlet, out);
        }
        for file in rank_files(&mut self.files) {
            let mut out = Vec::new();
            file.merger.close_all(&mut out);
            let _ = self.outlets.put(&file.outlet, out);
        }
    }

    /// Nothing more will come at all: the writing threads end when everything is written.
    pub fn close(&mut self) {
        self.outlets.draw(None);
        self.outlets.close();
    }

    /// Bytes handed over that were not written yet, and can be.
    pub fn queued(&self) -> usize {
        self.outlets.queued()
    }
}

/// What stands for one of a rank's two streams in its file.
fn key_of(index: usize) -> Speaker {
    (JobNumber(0), Rank(index as u32)).into()
}

fn index_of(stream: Channel) -> usize {
    usize::from(stream == Channel::Stderr)
}

fn rank_files(files: &mut [RankFiles]) -> impl Iterator<Item = &mut RankFile> {
    files
        .iter_mut()
        .flat_map(|files| std::iter::once(&mut files.out).chain(&mut files.err))
}
