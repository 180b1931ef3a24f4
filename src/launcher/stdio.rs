//! Merges the output of many ranks into one stream, by lines; no I/O.
//!
//! Every complete line reaches the stream in one piece, dressed as asked for: with time and label
//! in front, or as an event of the status stream. Undressed, no byte is added or removed, so one
//! rank's output arrives as it was written. A line that is not finished is held back until it is finished, the rank closes the
//! stream, it has been idle for [`PARTIAL_DELAY`] (a prompt), or it exceeds [`LINE_MAX`].
//!
//! Rule: time and label stand only at the start of a line. If a held-back line had to be shown
//! before its end and another rank speaks next, a newline is put between them when these are on;
//! the rest of the first line then continues on a line of its own, with both again. So it does after
//! a line of the launcher's own, which always starts one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::record::{Record, Speaker, Stream};
use crate::job::wall::WallClock;

/// Longest part of an unfinished line held per rank, in bytes.
pub const LINE_MAX: usize = 64 * 1024;

/// How long an unfinished line may wait for its end before it is shown.
pub const PARTIAL_DELAY: Duration = Duration::from_millis(100);

/// What becomes of a line on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dress {
    /// Nothing.
    #[default]
    Plain,
    /// The time it came, its rank in brackets, or both, are put in front.
    Prefix {
        /// The rank.
        label: bool,
        /// The time.
        clock: Option<WallClock>,
    },
    /// It becomes an event of the status stream.
    Event {
        /// Where it was written.
        stream: Stream,
        /// When.
        clock: WallClock,
    },
}

/// One output stream of the launcher (standard output or standard error), or a file.
#[derive(Debug, Default)]
pub struct Merger {
    dress: Dress,
    /// Unfinished line of each rank that has one, and since when it waits.
    partial: BTreeMap<Speaker, (Vec<u8>, Duration)>,
    /// The rank whose unfinished line is the last thing shown.
    mid_line: Option<Speaker>,
}

impl Merger {
    /// A stream whose lines are dressed like this.
    pub fn new(dress: Dress) -> Self {
        Self {
            dress,
            ..Self::default()
        }
    }

    /// Takes bytes a rank wrote and appends to `out` what can be shown now. `now` is the time
    /// since the start of the run.
    pub fn push(&mut self, speaker: Speaker, bytes: &[u8], now: Duration, out: &mut Vec<u8>) {
        let (lines, rest) = match memchr::memrchr(b'\n', bytes) {
            Some(end) => bytes.split_at(end + 1),
            None => (&bytes[..0], bytes),
        };
        if !lines.is_empty() {
            if let Some((mut held, since)) = self.partial.remove(&speaker) {
                // The first newline ends the held line.
                let end = memchr::memchr(b'\n', lines).map_or(lines.len(), |at| at + 1);
                held.extend_from_slice(&lines[..end]);
                self.show(speaker, &held, since, out);
                self.show(speaker, &lines[end..], now, out);
            } else {
                self.show(speaker, lines, now, out);
            }
        }
        if rest.is_empty() {
            return;
        }
        let (held, _) = self
            .partial
            .entry(speaker)
            .or_insert_with(|| (Vec::new(), now));
        held.extend_from_slice(rest);
        if held.len() > LINE_MAX {
            self.flush(speaker, out);
        }
    }

    /// The rank closed its stream: shows what it left unfinished.
    pub fn close(&mut self, speaker: Speaker, out: &mut Vec<u8>) {
        self.flush(speaker, out);
    }

    /// Nothing more will come: shows what is left unfinished.
    pub fn close_all(&mut self, out: &mut Vec<u8>) {
        let open: Vec<Speaker> = self.partial.keys().copied().collect();
        for speaker in open {
            self.flush(speaker, out);
        }
    }

    /// Shows unfinished lines that have waited long enough.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<u8>) {
        let due: Vec<Speaker> = self
            .partial
            .iter()
            .filter(|(_, (_, since))| now >= *since + PARTIAL_DELAY)
            .map(|(speaker, _)| *speaker)
            .collect();
        for speaker in due {
            self.flush(speaker, out);
        }
    }

    /// When [`Merger::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.partial
            .values()
            .map(|(_, since)| *since + PARTIAL_DELAY)
            .min()
    }

    fn flush(&mut self, speaker: Speaker, out: &mut Vec<u8>) {
        if let Some((held, since)) = self.partial.remove(&speaker) {
            self.show(speaker, &held, since, out);
        }
    }

    /// Something else was shown, on a line of its own: what was not finished continues on another.
    pub fn break_line(&mut self) {
        self.mid_line = None;
    }

    /// Whether the last thing shown is a line that was not finished.
    pub fn is_mid_line(&self) -> bool {
        self.mid_line.is_some()
    }

    /// Appends bytes of one rank, which came at `at`, dressing every line that starts in them.
    fn show(&mut self, speaker: Speaker, bytes: &[u8], at: Duration, out: &mut Vec<u8>) {
        let Some(last) = bytes.last() else {
            return;
        };
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        match self.dress {
            Dress::Plain => out.extend_from_slice(bytes),
            Dress::Event { stream, clock } => {
                for line in lines {
                    Record::output(Some(speaker), stream, line).write(clock, at, out);
                }
                return;
            }
            Dress::Prefix { label, clock } => {
                let continues = self.mid_line == Some(speaker);
                if self.mid_line.is_some() && !continues {
                    out.push(b'\n');
                }
                let mut prefix = String::new();
                if let Some(clock) = clock {
                    prefix = format!("{} ", clock.at(at));
                }
                if label {
                    prefix += &format!("[{speaker}] ");
                }
                for (index, line) in lines.enumerate() {
                    if index > 0 || !continues {
                        out.extend_from_slice(prefix.as_bytes());
                    }
                    out.extend_from_slice(line);
                }
            }
        }
        self.mid_line = (*last != b'\n').then_some(speaker);
    }
}

#[cfg(test)]
mod chunking;
#[cfg(test)]
mod tests;
