//! Merges the output of many ranks into one stream, by lines; no I/O. Standard output and standard
//! error of the ranks are merged too where both go to the same place.
//!
//! Every complete line reaches the stream in one piece, in the requested format: with time and label in front, or as an
//! event of the status stream. The plain format adds and removes no bytes, so one rank's output arrives as it was
//! written. An unfinished line is withheld until it is finished, the rank closes the stream, it has been idle for
//! [`PARTIAL_DELAY`] (a prompt) while the rank's output was being read, or it exceeds [`LINE_MAX`].
//!
//! Rule: time and label are only at the start of a line. If an unfinished line was shown and other output is shown next
//! (of another rank, of the same rank on its other stream, or of an MPI library), a newline is inserted if time or label
//! is on; the rest of the first line then continues on a separate line, with both again. The same happens after a line
//! of the launcher, which always starts a new line.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use memchr::memchr_iter;

use crate::stdio::output_label::Label;
use wireup_core::job::wall_clock::WallClock;
use wireup_core::record::{RankId, StatusRecord, Stream};

/// Longest part of an unfinished line held per rank, in bytes.
pub const LINE_MAX: usize = 64 * 1024;

/// Time after which an unfinished line is shown.
pub const PARTIAL_DELAY: Duration = Duration::from_millis(100);

/// Format of an output line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LineFormat {
    /// Lines remain as the rank wrote them.
    #[default]
    Plain,
    /// Lines get the time of arrival, the label, or both as a prefix.
    Prefix {
        label: bool,
        clock: Option<WallClock>,
    },
    /// Lines become events of the status stream.
    Event {
        /// Clock of the events' times.
        clock: WallClock,
    },
}

/// A rank's standard output, or its standard error.
pub type OutputSource = (RankId, Stream);

/// End of the most recent output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum LastOutput {
    /// End of a line, or no output yet.
    #[default]
    Line,
    /// Unfinished line of a rank.
    Part(OutputSource),
    /// Unfinished line of the launcher or an MPI library.
    Text,
}

/// One output of the launcher (standard output, standard error, or both), or a file.
#[derive(Debug, Default)]
pub struct Merger {
    dress: LineFormat,
    /// Unfinished lines, and the time since which each is withheld.
    partial: BTreeMap<OutputSource, (Vec<u8>, Duration)>,
    last_output: LastOutput,
    /// Labels of open streams, if they differ from the rank in brackets.
    labels: BTreeMap<OutputSource, Arc<Label>>,
    /// Time until which ranks may have written output that was not read yet.
    held_until: Duration,
}

impl Merger {
    /// Creates a stream with this line format.
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

    /// Takes bytes of a rank and appends to `out` the output that can be shown now. `now` is the time since the start of the
    /// launch.
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

    /// Handles the end of a rank's stream: shows its unfinished line, and drops its label.
    pub fn close(&mut self, voice: OutputSource, out: &mut Vec<u8>) {
        self.flush(voice, out);
        self.labels.remove(&voice);
    }

    /// Handles the end of all output: shows unfinished lines.
    pub fn close_all(&mut self, out: &mut Vec<u8>) {
        let open: Vec<OutputSource> = self.partial.keys().copied().collect();
        for voice in open {
            self.flush(voice, out);
        }
    }

    /// Notes that output of ranks was not read until now, so that the ends of unfinished lines may already be written.
    pub fn hold(&mut self, now: Duration) {
        self.held_until = now;
    }

    /// Shows unfinished lines that are due. Everything that ranks had written at `now` must have been pushed.
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

    /// Returns the time at which [`Merger::tick`] must be called next.
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

    /// Shows a text of the launcher or an MPI library unchanged. If lines have a format, it starts a new line.
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

    /// Notes that other output was shown on a separate line: an unfinished line continues on a new one.
    pub fn break_line(&mut self) {
        self.last_output = LastOutput::Line;
    }

    /// Whether the last output was an unfinished line.
    pub fn is_mid_line(&self) -> bool {
        self.last_output != LastOutput::Line
    }

    /// Appends bytes of a stream that arrived at `at`, and formats every line that starts in them.
    fn show(&mut self, voice: OutputSource, bytes: &[u8], at: Duration, out: &mut Vec<u8>) {
        let Some(last) = bytes.last() else {
            return;
        };
        let lines = lines(bytes);
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

/// Splits bytes into lines, each with its newline; the last one may have none.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = memchr_iter(b'\n', bytes).map(|newline| newline + 1);
    let mut start = 0;
    ends.chain([bytes.len()]).filter_map(move |end| {
        let line = &bytes[std::mem::replace(&mut start, end)..end];
        (!line.is_empty()).then_some(line)
    })
}

#[cfg(test)]
mod chunking;
#[cfg(test)]
mod tests;
