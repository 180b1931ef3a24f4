//! Merges the output of many ranks into one stream, by lines; no I/O.
//!
//! Every complete line reaches the stream in one piece, with its label in front when labels are
//! on. Without labels no byte is added or removed, so one rank's output arrives as it was
//! written. A line that is not finished is held back until it is finished, the rank closes the
//! stream, it has been idle for [`PARTIAL_DELAY`] (a prompt), or it exceeds [`LINE_MAX`].
//!
//! Rule: a label stands only at the start of a line. If a held-back line had to be shown before
//! its end and another rank speaks next, a newline is put between them when labels are on; the
//! rest of the first line then continues on a line of its own, labelled again.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::job::ids::Rank;

/// Longest part of an unfinished line held per rank, in bytes.
pub const LINE_MAX: usize = 64 * 1024;

/// How long an unfinished line may wait for its end before it is shown.
pub const PARTIAL_DELAY: Duration = Duration::from_millis(100);

/// One output stream of the launcher (standard output or standard error).
#[derive(Debug, Default)]
pub struct Merger {
    label: bool,
    /// Unfinished line of each rank that has one, and since when it waits.
    partial: BTreeMap<Rank, (Vec<u8>, Duration)>,
    /// The rank whose unfinished line is the last thing shown.
    mid_line: Option<Rank>,
}

impl Merger {
    /// A stream; with `label`, every line starts with `[rank] `.
    pub fn new(label: bool) -> Self {
        Self {
            label,
            ..Self::default()
        }
    }

    /// Takes bytes a rank wrote and appends to `out` what can be shown now. `now` is the time
    /// since the start of the run.
    pub fn push(&mut self, rank: Rank, bytes: &[u8], now: Duration, out: &mut Vec<u8>) {
        let (lines, rest) = match memchr::memrchr(b'\n', bytes) {
            Some(end) => bytes.split_at(end + 1),
            None => (&bytes[..0], bytes),
        };
        if !lines.is_empty() {
            if let Some((mut held, _)) = self.partial.remove(&rank) {
                // The first newline ends the held line.
                let end = memchr::memchr(b'\n', lines).map_or(lines.len(), |at| at + 1);
                held.extend_from_slice(&lines[..end]);
                self.show(rank, &held, out);
                self.show(rank, &lines[end..], out);
            } else {
                self.show(rank, lines, out);
            }
        }
        if rest.is_empty() {
            return;
        }
        let (held, _) = self
            .partial
            .entry(rank)
            .or_insert_with(|| (Vec::new(), now));
        held.extend_from_slice(rest);
        if held.len() > LINE_MAX {
            self.flush(rank, out);
        }
    }

    /// The rank closed its stream: shows what it left unfinished.
    pub fn close(&mut self, rank: Rank, out: &mut Vec<u8>) {
        self.flush(rank, out);
    }

    /// Shows unfinished lines that have waited long enough.
    pub fn tick(&mut self, now: Duration, out: &mut Vec<u8>) {
        let due: Vec<Rank> = self
            .partial
            .iter()
            .filter(|(_, (_, since))| now >= *since + PARTIAL_DELAY)
            .map(|(rank, _)| *rank)
            .collect();
        for rank in due {
            self.flush(rank, out);
        }
    }

    /// When [`Merger::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.partial
            .values()
            .map(|(_, since)| *since + PARTIAL_DELAY)
            .min()
    }

    fn flush(&mut self, rank: Rank, out: &mut Vec<u8>) {
        if let Some((held, _)) = self.partial.remove(&rank) {
            self.show(rank, &held, out);
        }
    }

    /// Appends bytes of one rank, labelling every line that starts in them.
    fn show(&mut self, rank: Rank, mut bytes: &[u8], out: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let ends_line = bytes.last() == Some(&b'\n');
        if !self.label {
            out.extend_from_slice(bytes);
        } else {
            let continues = self.mid_line == Some(rank);
            if self.mid_line.is_some() && !continues {
                out.push(b'\n');
            }
            let label = format!("[{rank}] ");
            let mut at_start = !continues;
            while !bytes.is_empty() {
                let end = memchr::memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
                if at_start {
                    out.extend_from_slice(label.as_bytes());
                }
                out.extend_from_slice(&bytes[..end]);
                bytes = &bytes[end..];
                at_start = true;
            }
        }
        self.mid_line = (!ends_line).then_some(rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: Rank = Rank(0);
    const B: Rank = Rank(1);
    const T0: Duration = Duration::ZERO;

    fn text(out: &[u8]) -> &str {
        std::str::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_written_in_pieces_come_out_whole() {
        let mut merger = Merger::new(true);
        let mut out = Vec::new();
        merger.push(A, b"hel", T0, &mut out);
        merger.push(B, b"one\ntwo\nthr", T0, &mut out);
        merger.push(A, b"lo\n", T0, &mut out);
        merger.close(B, &mut out);
        assert_eq!(text(&out), "[1] one\n[1] two\n[0] hello\n[1] thr");
    }

    #[test]
    fn a_prompt_is_shown_after_a_while_and_never_gets_a_label_in_mid_line() {
        let mut merger = Merger::new(true);
        let mut out = Vec::new();
        merger.push(A, b"name? ", T0, &mut out);
        assert!(out.is_empty());
        assert_eq!(merger.next_deadline(), Some(PARTIAL_DELAY));
        merger.tick(PARTIAL_DELAY, &mut out);
        merger.push(A, b"yes\n", PARTIAL_DELAY, &mut out);
        assert_eq!(text(&out), "[0] name? yes\n");
        out.clear();
        merger.push(A, b"name? ", T0, &mut out);
        merger.tick(PARTIAL_DELAY, &mut out);
        merger.push(B, b"x\n", PARTIAL_DELAY, &mut out);
        merger.push(A, b"yes\n", PARTIAL_DELAY, &mut out);
        assert_eq!(text(&out), "[0] name? \n[1] x\n[0] yes\n");
        assert_eq!(merger.next_deadline(), None);
    }

    #[test]
    fn an_endless_line_is_held_only_up_to_the_limit() {
        let mut merger = Merger::new(false);
        let mut out = Vec::new();
        let chunk = [b'x'; 4096];
        for pushed in 1..=1000usize {
            merger.push(A, &chunk, T0, &mut out);
            assert!(pushed * chunk.len() - out.len() <= LINE_MAX);
        }
    }

    proptest! {
        #[test]
        fn without_labels_each_ranks_bytes_arrive_exactly(
            pieces in prop::collection::vec((0u32..3, "[ab\n]{0,12}", prop::bool::ANY), 0..60)
        ) {
            // One merger per rank shows that nothing is added, lost or reordered.
            for rank in 0..3 {
                let mut merger = Merger::new(false);
                let (mut out, mut expected) = (Vec::new(), Vec::new());
                let mut now = T0;
                for (_, piece, pause) in pieces.iter().filter(|p| p.0 == rank) {
                    expected.extend_from_slice(piece.as_bytes());
                    merger.push(Rank(rank), piece.as_bytes(), now, &mut out);
                    if *pause { now += PARTIAL_DELAY; merger.tick(now, &mut out); }
                }
                merger.close(Rank(rank), &mut out);
                prop_assert_eq!(out, expected);
            }
        }

        #[test]
        fn every_labelled_line_belongs_to_one_rank_and_keeps_its_order(
            pieces in prop::collection::vec((0u32..3, "[ab\n]{0,12}"), 0..60)
        ) {
            let mut merger = Merger::new(true);
            let mut out = Vec::new();
            let mut expected: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
            for (rank, piece) in &pieces {
                merger.push(Rank(*rank), piece.as_bytes(), T0, &mut out);
                expected.entry(*rank).or_default().extend_from_slice(piece.as_bytes());
            }
            for rank in 0..3 { merger.close(Rank(rank), &mut out); }
            let mut found: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
            for line in out.split_inclusive(|b| *b == b'\n') {
                let rank = u32::from(line[1] - b'0');
                prop_assert!(line[0] == b'[' && &line[2..4] == b"] ");
                found.entry(rank).or_default().extend_from_slice(&line[4..]);
            }
            for (rank, bytes) in &mut expected {
                // A newline may have been added after the unfinished last line of a rank.
                let mut got = found.remove(rank).unwrap_or_default();
                if got.len() == bytes.len() + 1 { got.pop(); }
                prop_assert_eq!(&got, bytes);
            }
        }
    }
}
