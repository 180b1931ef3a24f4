//! Unread output of a launch's ranks; no I/O.

use std::collections::VecDeque;

use crate::proto::v1::StdioOutput;

/// Most bytes that wait. One piece more may be there.
pub const LIMIT: usize = 256 * 1024;

/// BufferedOutput on its way.
#[derive(Debug, Default)]
pub struct BufferedOutput {
    pieces: VecDeque<StdioOutput>,
    bytes: usize,
    lost_bytes: u64,
    attached: bool,
    /// Whether ranks wait for a reader where there is none.
    hold: bool,
    /// Hold nothing up any more.
    released: bool,
    is_ended: bool,
}

impl BufferedOutput {
    /// Makes an empty buffer; with `hold` ranks wait while there is no reader.
    pub fn new(hold: bool) -> Self {
        Self {
            hold,
            ..Self::default()
        }
    }

    /// Whether more may be pushed now.
    pub fn has_room(&self) -> bool {
        let is_retained = (self.attached || self.hold) && !self.released;
        !is_retained || self.bytes < LIMIT
    }

    /// Adds a piece. Without a reader, older ones are dropped.
    pub fn push(&mut self, piece: StdioOutput) {
        self.bytes += piece.data.len();
        self.pieces.push_back(piece);
        let is_retained = (self.attached || self.hold) && !self.released;
        while !is_retained && self.bytes > LIMIT && self.pieces.len() > 1 {
            let oldest = self.pieces.pop_front().expect("there is more than one");
            self.bytes -= oldest.data.len();
            self.lost_bytes += oldest.data.len() as u64;
        }
    }

    /// Takes the oldest piece of output.
    pub fn pop(&mut self) -> Option<StdioOutput> {
        let mut piece = self.pieces.pop_front()?;
        self.bytes -= piece.data.len();
        piece.lost = std::mem::take(&mut self.lost_bytes);
        Some(piece)
    }

    /// Attaches a reader; returns false if there is one.
    pub fn attach(&mut self) -> bool {
        !std::mem::replace(&mut self.attached, true)
    }

    /// Detaches the present reader of the output.
    pub fn detach(&mut self) {
        self.attached = false;
    }

    /// Ends the wait for a reader: ranks do not wait from now on.
    pub fn release(&mut self) {
        self.released = true;
    }

    /// Marks the end: no output will be pushed any more.
    pub fn end(&mut self) {
        self.is_ended = true;
    }

    /// Whether no output is left, and none will come.
    pub fn is_over(&self) -> bool {
        self.is_ended && self.pieces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(byte: u8, length: usize) -> StdioOutput {
        StdioOutput {
            data: vec![byte; length].into(),
            ..Default::default()
        }
    }

    fn drain(output: &mut BufferedOutput) -> Vec<(u8, u64)> {
        std::iter::from_fn(|| output.pop())
            .map(|piece| (piece.data[0], piece.lost))
            .collect()
    }

    #[test]
    fn unread_output_keeps_newest_and_reports_loss_once() {
        let mut output = BufferedOutput::new(false);
        for byte in 0..5 {
            assert!(output.has_room());
            output.push(piece(byte, LIMIT / 2));
        }
        assert_eq!(drain(&mut output), [(3, 3 * LIMIT as u64 / 2), (4, 0)]);
        output.push(piece(9, 2 * LIMIT));
        assert_eq!(drain(&mut output), [(9, 0)]);
    }

    #[test]
    fn slow_or_awaited_reader_blocks_ranks_until_release() {
        for (hold, attach) in [(true, false), (false, true)] {
            let mut output = BufferedOutput::new(hold);
            assert!(!attach || output.attach());
            output.push(piece(1, LIMIT));
            assert!(!output.has_room());
            output.push(piece(2, 1));
            output.release();
            assert!(output.has_room());
            output.push(piece(3, LIMIT));
            output.end();
            assert!(!output.is_over());
            assert_eq!(drain(&mut output), [(3, LIMIT as u64 + 1)]);
            assert!(output.is_over());
        }
    }

    #[test]
    fn single_reader_is_admitted_and_next_gets_rest() {
        let mut output = BufferedOutput::new(false);
        output.push(piece(1, 1));
        output.push(piece(2, 1));
        assert!(output.attach() && !output.attach());
        assert_eq!(output.pop().unwrap().data[0], 1);
        output.detach();
        assert!(output.attach());
        assert_eq!(drain(&mut output), [(2, 0)]);
    }
}
