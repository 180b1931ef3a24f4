//! Merges the output of many ranks into one stream, by lines; no I/O. Standard output and standard
//! error of the ranks are merged too where both go to the same place.
//!
//! Every complete line reaches the stream in one piece, dressed as asked for: with time and label
//! in front, or as an event of the status stream. Undressed, no byte is added or removed, so one
//! rank's output arrives as it was written. A line that is not finished is held back until it is
//! finished, the rank closes the stream, it has been idle for [`PARTIAL_DELAY`] (a prompt) while
//! the rank's output was taken, or it exceeds [`LINE_MAX`].
//!
//! Rule: time and label stand only at the start of a line. If a held-back line had to be shown
//! before its end and something else is shown next (another rank, the same rank on its other
//! stream, an MPI library), a newline is put between them when these are on; the rest of the first
//! line then continues on a separate line, with both again. So it does after a line of the
//! launcher's own, which always starts one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::stdio::output_label::Label;
use wireup_core::job::wall_clock::WallClock;
use wireup_core::record::{RankId, StatusRecord, Stream};

/// Longest part of an unfinished line held per rank, in bytes.
pub const LINE_MAX: usize = 64 * 1024;

/// How long an unfinished line may wait for its end before it is shown.
pub const PARTIAL_DELAY: Duration = Duration::from_millis(100);

/// The changes to a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LineFormat {
    /// Nothing.
    #[default]
    Plain,
    /// The time it came, its label, or both, are put in front.
    Prefix {
        label: bool,
        clock: Option<WallClock>,
    },
    /// It becomes an event of the status stream.
    Event {
        /// When it was written.
        clock: WallClock,
    },
}

/// A rank's standard output, or its standard error.
pub type OutputSource = (RankId, Stream);

/// The last output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum LastOutput {
    /// The end of a line, or nothing yet.
    #[default]
    Line,
    /// A line that was not finished.
    Part(OutputSource),
    /// Such a line that is no rank's.
    Text,
}

/// One output of the launcher (standard output, standard error, or both), or a file.
#[derive(Debug, Default)]
pub struct Merger {
    dress: LineFormat,
    /// Unfinished lines, and since when they wait.
    partial: BTreeMap<OutputSource, (Vec<u8>, Duration)>,
    last_output: LastOutput,
    /// Labels of streams that are not closed, where it is not the rank in brackets.
    labels: BTreeMap<OutputSource, Arc<Label>>,
    /// Until when ranks may have written more that was not taken from them.
    held_until: Duration,
}

impl Merger {
    /// A stream whose lines are dressed like this.
    pub fn new(dress: LineFormat) -> Self {
        Self {
            dress,
            ..Self::default()
        }
    }

    /// Whether a stream of a process has a label of its own.
    pub fn has_label(&self, voice: OutputSource) -> bool {
        self.labels.contains_key(&voice)
    }

    /// Sets the label of a stream of a process, until the stream is closed.
    pub fn set_label(&mut self, voice: OutputSource, label: Arc<Label>) {
        self.labels.insert(voice, label);
    }

    /// Takes bytes that a rank wrote and appends to `out` what can be shown now. `now` is the time
    /// since the start of the run.
    pub fn push(&mut self, voice: OutputSource, bytes: &[u8], now: Duration, out: &mut Vec<u8>) {
        let (lines, rest) = match memchr::memrchr(b'\n', bytes) {
            Some(end) => bytes.split_at(end + 1),
            None => (&bytes[..0], bytes),
        };
        if !lines.is_empty() {
            if let Some((mut held, since)) = self.partial.remove(&voice) {
                // The first newline ends the held line.
                let end = memchr::memchr(b'\n', lines).map_or(lines.len(), |at| at + 1);
                held.extend_from_slice(&lines[..end]);
                self.show(voice, &held, since, out);
                self.show(voice, &lines[end..], now, out);
            } else {
                self.show(voice, lines, now, out);
            }
        }
        if rest.is_empty() {
            return;
        }
        let (held, _) = self
            .partial
            .entry(voice)
            .or_insert_with(|| (Vec::new(), now));
        held.extend_from_slice(rest);
        if held.len() > LINE_MAX {
            self.flush(voice, out);
        }
    }

    /// The rank closed its stream: shows its unfinished line, and drops its label.
    pub fn close(&mut self, voice: OutputSource, out: &mut Vec<u8>) {
        self.flush(voice, out);
        self.labels.remove(&voice);
    }

    /// No more output will come: shows unfinished lines.
    pub fn close_all(&mut self, out: &mut Vec<u8>) {
        let open: Vec<OutputSource> = self.partial.keys().copied().collect();
        for voice in open {
            self.flush(voice, out);
        }
    }

    /// What ranks have written was not taken until now: their unfinished lines may have an end.
    pub fn hold(&mut self, now: Duration) {
        self.held_until = now;
    }

    /// Shows unfinished lines that have waited long enough. What ranks had written at `now` has been
    /// pushed.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<u8>) {
        let due: Vec<OutputSource> = self
            .partial
            .iter()
            .filter(|(_, (_, since))| now >= self.due(*since))
            .map(|(voice, _)| *voice)
            .collect();
        for voice in due {
            self.flush(voice, out);
        }
    }

    /// When [`Merger::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.partial
            .values()
            .map(|(_, since)| self.due(*since))
            .min()
    }

    fn due(&self, since: Duration) -> Duration {
        since.max(self.held_until) + PARTIAL_DELAY
    }

    fn flush(&mut self, voice: OutputSource, out: &mut Vec<u8>) {
        if let Some((held, since)) = self.partial.remove(&voice) {
            self.show(voice, &held, since, out);
        }
    }

    /// Shows a text that is no rank's as it is. Among dressed lines it starts one, as theirs do.
    pub fn insert(&mut self, text: &[u8], out: &mut Vec<u8>) {
        let Some(last) = text.last() else {
            return;
        };
        if matches!(self.dress, LineFormat::Prefix { .. }) && self.is_mid_line() {
            out.push(b'\n');
        }
        out.extend_from_slice(text);
        self.last_output = match last {
            b'\n' => LastOutput::Line,
            _ => LastOutput::Text,
        };
    }

    /// Other output was shown on a separate line: an unfinished line continues on another.
    pub fn break_line(&mut self) {
        self.last_output = LastOutput::Line;
    }

    /// Whether the last thing shown is a line that was not finished.
    pub fn is_mid_line(&self) -> bool {
        self.last_output != LastOutput::Line
    }

    /// Appends bytes of one voice, which came at `at`, dressing every line that starts in them.
    fn show(&mut self, voice: OutputSource, bytes: &[u8], at: Duration, out: &mut Vec<u8>) {
        let Some(last) = bytes.last() else {
            return;
        };
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        match self.dress {
            LineFormat::Plain => out.extend_from_slice(bytes),
            LineFormat::Event { clock } => {
                let (speaker, stream) = voice;
                for line in lines {
                    StatusRecord::output(Some(speaker), stream, line).write(clock, at, out);
                }
                return;
            }
            LineFormat::Prefix { label, clock } => {
                let continues = self.last_output == LastOutput::Part(voice);
                if self.is_mid_line() && !continues {
                    out.push(b'\n');
                }
                let mut prefix = Vec::new();
                if let Some(clock) = clock {
                    prefix.extend_from_slice(format!("{} ", clock.at(at)).as_bytes());
                }
                let (speaker, stream) = voice;
                match self.labels.get(&voice) {
                    _ if !label => {}
                    Some(label) => label.write(stream, at, &mut prefix),
                    None => prefix.extend_from_slice(format!("[{speaker}] ").as_bytes()),
                }
                for (index, line) in lines.enumerate() {
                    if index > 0 || !continues {
                        out.extend_from_slice(&prefix);
                    }
                    out.extend_from_slice(line);
                }
            }
        }
        self.last_output = match last {
            b'\n' => LastOutput::Line,
            _ => LastOutput::Part(voice),
        };
    }
}

#[cfg(test)]
mod chunking;
#[cfg(test)]
mod tests;
