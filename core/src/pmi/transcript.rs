//! A conversation of a PMI client and its server, cut into messages for people to read, without judging it.
//!
//! Rule: a connection starts with lines; from the `init` of PMI-2 and its answer on, each side sends frames, until a line in
//! place of a length. Source: docs/pmi2-wire.md#pmi-2-framing.

use super::limits::SPAWN_MAX;
use super::wire_v2::{HEADER, length};

/// Most bytes kept of a message that has not ended.
const KEPT_MAX: usize = SPAWN_MAX + HEADER;

/// One direction of a conversation, cut into messages.
#[derive(Debug, Default)]
pub struct TranscriptSide {
    partial: Vec<u8>,
    frames: bool,
    /// Whether the bytes cannot be parsed any more.
    is_malformed: bool,
}

impl TranscriptSide {
    /// Takes bytes in any pieces; the messages that have ended with them, printable and without their length.
    pub fn read_messages(&mut self, bytes: &[u8]) -> Vec<String> {
        self.partial.extend_from_slice(bytes);
        let mut messages = Vec::new();
        while !self.is_malformed
            && let Some((from, end)) = self.next()
        {
            let text = self.partial[from..end].trim_ascii_end();
            if is_start(text) {
                self.frames = text.windows(13).any(|part| part == b"pmi_version=2");
            }
            messages.push(printable(text));
            self.partial.drain(..end);
        }
        if self.is_malformed && !self.partial.is_empty() {
            messages.push(format!("(not PMI) {}", printable(&self.partial)));
            self.partial.clear();
        }
        messages
    }

    /// Bytes of the message that has not ended.
    pub fn unfinished(&self) -> usize {
        self.partial.len()
    }

    /// Returns start and end of the next message, if it is complete.
    fn next(&mut self) -> Option<(usize, usize)> {
        let first = *self.partial.first()?;
        if !self.frames || matches!(first, b'c' | b'm') {
            let end = memchr::memchr(b'\n', &self.partial);
            self.is_malformed = end.is_none() && self.partial.len() > KEPT_MAX;
            return end.map(|end| (0, end + 1));
        }
        let header = self.partial.get(..HEADER)?;
        match length(header) {
            Ok(length) => {
                let end = HEADER + length;
                (self.partial.len() >= end).then_some((HEADER, end))
            }
            Err(_) => {
                self.is_malformed = true;
                None
            }
        }
    }
}

fn is_start(text: &[u8]) -> bool {
    [&b"cmd=init "[..], b"cmd=response_to_init "]
        .iter()
        .any(|start| text.starts_with(start))
}

fn printable(text: &[u8]) -> String {
    text.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINES: &str =
        "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\nmcmd=spawn\nendcmd\n";
    const FRAMES: &str = "cmd=init pmi_version=2 pmi_subversion=0\n14    cmd=job-getid;    23cmd=fullinit;pmirank=1;\
        cmd=init pmi_version=1 pmi_subversion=1\ncmd=finalize\n";

    fn read_in_pieces(side: &mut TranscriptSide, text: &[u8], size: usize) -> Vec<String> {
        text.chunks(size)
            .flat_map(|piece| side.read_messages(piece))
            .collect()
    }

    #[test]
    fn lines_and_frames_are_split_at_their_ends() {
        let lines: Vec<&str> = LINES.lines().collect();
        assert_eq!(
            read_in_pieces(&mut TranscriptSide::default(), LINES.as_bytes(), 1000),
            lines
        );
        let expected = [
            "cmd=init pmi_version=2 pmi_subversion=0",
            "cmd=job-getid;",
            "cmd=fullinit;pmirank=1;",
            "cmd=init pmi_version=1 pmi_subversion=1",
            "cmd=finalize",
        ];
        assert_eq!(
            read_in_pieces(&mut TranscriptSide::default(), FRAMES.as_bytes(), 1000),
            expected
        );
    }

    #[test]
    fn non_pmi_input_is_shown_raw() {
        let mut side = TranscriptSide::default();
        side.read_messages(b"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n");
        assert_eq!(
            side.read_messages(b"nonsense\0"),
            [r"(not PMI) nonsense\x00"]
        );
        assert_eq!(side.read_messages(b"more"), ["(not PMI) more"]);
        let mut endless = TranscriptSide::default();
        read_in_pieces(&mut endless, &vec![b'x'; 2 * KEPT_MAX], 65536);
        assert!(endless.partial.len() <= KEPT_MAX);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(size in 1_usize..50, frames in any::<bool>()) {
            let text = if frames { FRAMES } else { LINES }.as_bytes();
            let whole = read_in_pieces(&mut TranscriptSide::default(), text, 1000);
            prop_assert_eq!(read_in_pieces(&mut TranscriptSide::default(), text, size), whole);
        }
    }
}
