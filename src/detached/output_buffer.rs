//! Last output of a launcher. No I/O.
//!
//! Positions count the bytes of both streams together, in the order in which they were read.

use std::collections::VecDeque;

use crate::detached::attach_messages::LauncherStream;

/// Maximum number of bytes in the buffer.
pub(super) const KEPT: usize = 8 << 20;

/// Maximum bytes of a piece, which one read returns.
pub(super) const PIECE: usize = 32 << 10;

/// Memory of a piece in addition to its bytes. It counts too, since two streams that alternate byte by byte make many
/// pieces.
const OVERHEAD: usize = 64;

/// Output that was not shown yet. The oldest is dropped if there is no room.
#[derive(Debug)]
pub(super) struct OutputBuffer {
    max: usize,
    pieces: VecDeque<(LauncherStream, Vec<u8>)>,
    /// Position of the first byte in the buffer.
    start: u64,
    /// Position after the last byte.
    end: u64,
    /// Position before which everything was shown.
    shown: u64,
}

/// Bytes at a position.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct OutputChunk<'a> {
    /// Number of bytes before it that were dropped.
    pub(super) lost_bytes: u64,
    pub(super) stream: LauncherStream,
    pub(super) bytes: &'a [u8],
}

impl OutputBuffer {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            pieces: VecDeque::new(),
            start: 0,
            end: 0,
            shown: 0,
        }
    }

    /// Position after the last byte.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Position at which the next client starts.
    pub(super) fn shown(&self) -> u64 {
        self.shown
    }

    /// Drops the bytes before this position, which were shown.
    pub(super) fn show(&mut self, position: u64) {
        self.shown = self.shown.max(position.min(self.end));
        while let Some((_, bytes)) = self.pieces.front()
            && self.start + bytes.len() as u64 <= self.shown
        {
            self.drop_first();
        }
    }

    fn size(&self) -> usize {
        (self.end - self.start) as usize + self.pieces.len() * OVERHEAD
    }

    /// Whether the buffer is less than half full.
    pub(super) fn has_room(&self) -> bool {
        self.size() < self.max / 2
    }

    /// Adds output of the launcher, at most [`PIECE`] bytes. Drops the oldest pieces if there is no room.
    pub(super) fn push(&mut self, stream: LauncherStream, bytes: &[u8]) {
        match self.pieces.back_mut() {
            Some((last, piece)) if *last == stream && piece.len() + bytes.len() <= PIECE => {
                piece.extend_from_slice(bytes);
            }
            _ => self.pieces.push_back((stream, bytes.to_vec())),
        }
        self.end += bytes.len() as u64;
        while self.size() > self.max {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some((_, bytes)) = self.pieces.pop_front() {
            self.start += bytes.len() as u64;
        }
    }

    /// Returns the bytes from a position to the end of a piece.
    pub(super) fn at(&self, position: u64) -> Option<OutputChunk<'_>> {
        let lost = self.start.saturating_sub(position);
        let mut at = self.start;
        for (stream, bytes) in &self.pieces {
            let from = position.max(self.start) - at;
            if from < bytes.len() as u64 {
                return Some(OutputChunk {
                    lost_bytes: lost,
                    stream: *stream,
                    bytes: &bytes[from as usize..],
                });
            }
            at += bytes.len() as u64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(output: &OutputBuffer, mut position: u64) -> (u64, Vec<u8>) {
        let (mut lost, mut bytes) = (0, Vec::new());
        while let Some(piece) = output.at(position) {
            lost += piece.lost_bytes;
            bytes.extend_from_slice(piece.bytes);
            position += piece.lost_bytes + piece.bytes.len() as u64;
        }
        (lost, bytes)
    }

    #[test]
    fn next_client_gets_output_not_yet_shown() {
        let mut output = OutputBuffer::new(1000);
        output.push(LauncherStream::Stdout, b"one");
        output.push(LauncherStream::Stderr, b"two");
        assert_eq!(all(&output, 0), (0, b"onetwo".to_vec()));
        output.show(4);
        output.push(LauncherStream::Stdout, b"three");
        assert_eq!(all(&output, output.shown()), (0, b"wothree".to_vec()));
        output.show(output.end());
        assert_eq!(output.at(output.shown()), None);
    }

    #[test]
    fn oldest_output_is_dropped_and_counted() {
        let mut output = OutputBuffer::new(10 + 2 * OVERHEAD);
        for (stream, piece) in [
            (LauncherStream::Stdout, &b"aaaa"[..]),
            (LauncherStream::Stderr, b"bb"),
            (LauncherStream::Stderr, b"bb"),
            (LauncherStream::Stdout, b"cccc"),
        ] {
            output.push(stream, piece);
        }
        assert_eq!(all(&output, output.shown()), (4, b"bbbbcccc".to_vec()));
        assert!(!output.has_room());
        // A client that was sent half of the dropped bytes, and one that was sent more.
        assert_eq!(all(&output, 2), (2, b"bbbbcccc".to_vec()));
        assert_eq!(all(&output, 6), (0, b"bbcccc".to_vec()));
    }

    #[test]
    fn small_pieces_take_no_more_memory_than_large_ones() {
        let mut output = OutputBuffer::new(100 * OVERHEAD);
        for _ in 0..10_000 {
            output.push(LauncherStream::Stdout, b"o");
            output.push(LauncherStream::Stderr, b"e");
        }
        assert!(output.pieces.len() < 100, "{}", output.pieces.len());
        assert_eq!(output.end(), 20_000);
    }
}
