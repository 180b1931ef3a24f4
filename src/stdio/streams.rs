//! Output of the ranks: through a [`Merger`] into the launcher's own output, or into files of the ranks.

mod outlets;

use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use self::outlets::{LauncherOutputs, OutputDestination};
use crate::start_ranks::OutputPlan;
use crate::stdio::merger::{LineFormat, Merger};
use crate::stdio::output_label::Label;
use wireup_core::job::wall_clock::WallClock;
use wireup_core::record::{RankId, StatusRecord, Stream as Channel};

/// Streams of each process.
const CHANNELS: [Channel; 2] = [Channel::Stdout, Channel::Stderr];

/// Format in which the ranks' output is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputFormat {
    /// Whether lines have a label.
    pub label: bool,
    /// Clock that formats the time in front of lines; `None` without times.
    pub times: Option<WallClock>,
    /// Clock of the events, if all output becomes events on standard output.
    pub events: Option<WallClock>,
}

/// Destination of ranks' output.
#[derive(Debug)]
struct OutputTarget {
    merger: Merger,
    outlet: OutputDestination,
    /// Whether the destination was blocked at the last check or since then.
    full: bool,
}

/// The outputs of all ranks, or of one rank whose files the launcher writes.
#[derive(Debug)]
struct OutputTargets {
    out: OutputTarget,
    /// Target of standard error; `None` if it is `out`, so that one merger keeps lines of both streams apart.
    err: Option<OutputTarget>,
}

impl OutputTargets {
    fn target_mut(&mut self, stream: Channel) -> &mut OutputTarget {
        match (stream, &mut self.err) {
            (Channel::Stderr, Some(err)) => err,
            _ => &mut self.out,
        }
    }

    fn targets(&self) -> impl Iterator<Item = &OutputTarget> {
        std::iter::once(&self.out).chain(&self.err)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut OutputTarget> {
        std::iter::once(&mut self.out).chain(&mut self.err)
    }
}

/// Both streams of a job.
#[derive(Debug)]
pub struct OutputStreams {
    launcher_targets: OutputTargets,
    outlets: LauncherOutputs,
    show: OutputFormat,
    /// Files by rank, if the launcher writes them.
    files: Vec<OutputTargets>,
    /// Rank with a pseudo-terminal, whose output goes to standard output unchanged.
    unframed: Option<RankId>,
}

impl OutputStreams {
    /// Creates the streams to the launcher's standard output and error.
    ///
    /// # Errors
    /// When these cannot be duplicated.
    pub fn new(show: OutputFormat, wake: &Arc<OwnedFd>) -> io::Result<Self> {
        let outlets = LauncherOutputs::new(wake)?;
        let dress = match show {
            OutputFormat {
                events: Some(clock),
                ..
            } => LineFormat::Event { clock },
            OutputFormat {
                label: false,
                times: None,
                ..
            } => LineFormat::Plain,
            OutputFormat { label, times, .. } => LineFormat::Prefix {
                label,
                clock: times,
            },
        };
        let place = |outlet| OutputTarget {
            merger: Merger::new(dress),
            outlet,
            full: false,
        };
        let one = show.events.is_some() || outlets.is_shared();
        Ok(Self {
            launcher_targets: OutputTargets {
                out: place(OutputDestination::Out),
                err: (!one).then(|| place(OutputDestination::Err)),
            },
            outlets,
            show,
            files: Vec::new(),
            unframed: None,
        })
    }

    /// Takes over the files of ranks that cannot write them themselves, because their lines get times. Returns the ranks'
    /// outputs.
    pub fn take_files(&mut self, outputs: Vec<OutputPlan>) -> Vec<OutputPlan> {
        let Some(clock) = self.show.times else {
            return outputs;
        };
        let to_file = |file| OutputTarget {
            merger: Merger::new(LineFormat::Prefix {
                label: false,
                clock: Some(clock),
            }),
            outlet: OutputDestination::File(Arc::new(OwnedFd::from(file))),
            full: false,
        };
        let pipes = |output| {
            if let OutputPlan::Files { out, err } = output {
                self.files.push(OutputTargets {
                    out: to_file(out),
                    err: err.map(to_file),
                });
            }
            OutputPlan::Pipes
        };
        outputs.into_iter().map(pipes).collect()
    }

    /// Shows the output of this rank unchanged from now on.
    pub fn set_unframed(&mut self, speaker: RankId) {
        self.unframed = Some(speaker);
    }

    /// Whether a process has a label of its own on a stream that it has not closed.
    pub fn has_label(&self, speaker: RankId) -> bool {
        let has_label = |place: &OutputTarget| {
            let mut channels = CHANNELS.into_iter();
            channels.any(|channel| place.merger.has_label((speaker, channel)))
        };
        self.launcher_targets.targets().any(has_label)
    }

    /// Sets the label of a process, in place of its rank in brackets, until it closes its streams.
    pub fn set_label(&mut self, speaker: RankId, label: &Label) {
        let label = Arc::new(label.clone());
        for channel in CHANNELS {
            let merger = &mut self.launcher_targets.target_mut(channel).merger;
            merger.set_label((speaker, channel), Arc::clone(&label));
        }
    }

    /// Sets whether the user's terminal is in raw mode.
    pub fn set_raw(&mut self, raw: bool) {
        self.outlets.set_raw(raw);
    }

    /// Takes output of a rank; empty when it has closed the stream.
    ///
    /// # Errors
    /// When the writing thread cannot be started.
    pub fn take(
        &mut self,
        stream: Channel,
        speaker: RankId,
        bytes: &[u8],
        now: Duration,
    ) -> io::Result<()> {
        if self.unframed == Some(speaker) {
            return match bytes {
                [] => Ok(()),
                bytes => self.outlets.put_raw(bytes.to_vec()),
            };
        }
        let mut out = Vec::new();
        let files = match speaker.job.is_initial() {
            true => self.files.get_mut(speaker.rank.index()),
            false => None,
        };
        let place = files
            .unwrap_or(&mut self.launcher_targets)
            .target_mut(stream);
        let voice = (speaker, stream);
        match bytes {
            [] => place.merger.close(voice, &mut out),
            bytes => place.merger.push(voice, bytes, now, &mut out),
        }
        self.outlets.put(&place.outlet, out)
    }

    /// Whether the destination of a stream is blocked.
    pub fn is_full(&mut self, stream: Channel) -> bool {
        let place = match self.files.first_mut() {
            Some(files) => &mut files.out,
            None => self.launcher_targets.target_mut(stream),
        };
        let full = self.outlets.is_full(&place.outlet);
        place.full |= full;
        full
    }

    /// Prints text of the launcher on one of its outputs. If no writing thread can be started, the text is written directly:
    /// it may be the error message.
    pub fn print_text(&mut self, channel: Channel, text: Vec<u8>) {
        let outlet = match channel {
            Channel::Stdout => OutputDestination::Out,
            Channel::Stderr => OutputDestination::Err,
        };
        if self.outlets.put(&outlet, text.clone()).is_err() {
            // No output is left for an error message.
            let _ = match outlet {
                OutputDestination::Out => io::stdout().write_all(&text),
                _ => io::stderr().write_all(&text),
            };
        }
    }

    /// Prints a line of the launcher on standard error. It always starts a new line, after an unfinished line of a rank too.
    pub fn print_line(&mut self, line: &str) {
        let mut text = format!("{line}\n");
        if !self.outlets.at_start() {
            text.insert(0, '\n');
            self.launcher_targets
                .target_mut(Channel::Stderr)
                .merger
                .break_line();
        }
        self.print_text(Channel::Stderr, text.into_bytes());
    }

    /// Prints a text that an MPI library sends through the launcher.
    pub fn pass_on(&mut self, channel: Channel, text: Vec<u8>, now: Duration) {
        let place = self.launcher_targets.target_mut(channel);
        let mut out = Vec::new();
        match self.show.events {
            Some(clock) => StatusRecord::output(None, channel, &text).write(clock, now, &mut out),
            None => place.merger.insert(&text, &mut out),
        }
        // Failure to start a writing thread is reported with the ranks' output.
        let _ = self.outlets.put(&place.outlet, out);
    }

    /// Whether standard error is a terminal.
    pub fn on_terminal(&self) -> bool {
        self.outlets.terminal()
    }

    /// Whether [`OutputStreams::draw`] may be called: standard error is a terminal, and no output would be overwritten.
    pub fn can_draw(&self) -> bool {
        let mid_line = self
            .launcher_targets
            .targets()
            .any(|place| place.merger.is_mid_line());
        !mid_line && self.outlets.can_draw()
    }

    /// Shows a progress line at the end of the terminal until other output is shown; `None` removes it.
    pub fn draw(&mut self, text: Option<&str>) {
        self.outlets.draw(text);
    }

    /// Shows unfinished lines that are due. Everything that ranks had written at `now` must have been taken, unless a
    /// destination was full.
    ///
    /// # Errors
    /// When the writing thread cannot be started.
    pub fn tick(&mut self, now: Duration) -> io::Result<()> {
        for place in all_targets(&mut self.launcher_targets, &mut self.files) {
            let full = self.outlets.is_full(&place.outlet);
            if std::mem::replace(&mut place.full, full) || full {
                place.merger.hold(now);
            }
            let mut out = Vec::new();
            place.merger.tick(now, &mut out);
            self.outlets.put(&place.outlet, out)?;
        }
        Ok(())
    }

    /// Returns the time at which [`OutputStreams::tick`] must be called next.
    pub fn next_deadline(&self) -> Option<Duration> {
        let places = self
            .launcher_targets
            .targets()
            .chain(self.files.iter().flat_map(OutputTargets::targets));
        // A full destination wakes the loop when it has room again.
        let places = places.filter(|place| !place.full);
        let deadlines = places.filter_map(|place| place.merger.next_deadline());
        deadlines.min()
    }

    /// Returns the output that cannot be written any more, and the error.
    pub fn failure(&self) -> Option<(&'static str, Errno)> {
        self.outlets.failure()
    }

    /// Handles the end of all ranks' output: shows unfinished lines.
    pub fn end_lines(&mut self) {
        for place in all_targets(&mut self.launcher_targets, &mut self.files) {
            let mut out = Vec::new();
            place.merger.close_all(&mut out);
            // Failure to start a thread is reported by the stream's failure.
            let _ = self.outlets.put(&place.outlet, out);
        }
    }

    /// Ends the output: the writing threads end when everything is written.
    pub fn close(&mut self) {
        self.outlets.draw(None);
        self.outlets.close();
    }

    /// Returns the number of bytes that are still to be written, without those of failed outputs.
    pub fn queued(&self) -> usize {
        self.outlets.queued()
    }
}

fn all_targets<'a>(
    targets: &'a mut OutputTargets,
    files: &'a mut [OutputTargets],
) -> impl Iterator<Item = &'a mut OutputTarget> {
    targets
        .all_mut()
        .chain(files.iter_mut().flat_map(OutputTargets::all_mut))
}
