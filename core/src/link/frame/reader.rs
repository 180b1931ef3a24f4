//! Splits a stream of bytes into frames, with few copies.
//!
//! Short frames are read many at a time into one buffer. A long frame that is incomplete gets its own buffer, into
//! which the rest is read.

use super::{Frame, FrameError, HEADER, Header};

/// Least room for a read, in bytes.
const READ: usize = 32 * 1024;

/// Bodies above this many bytes get a buffer of their own.
const LONG: usize = 16 * 1024;

/// Makes frames of a stream of bytes.
#[derive(Debug, Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    /// Start of the next frame in the buffer.
    start: usize,
    /// Incomplete long frame that precedes those in `bytes`.
    long: Option<(Header, Vec<u8>)>,
}

impl FrameReader {
    /// Returns the buffer for the next read: it has room for some bytes, and at most this number should be read.
    pub fn room(&mut self) -> &mut Vec<u8> {
        self.tidy();
        match &mut self.long {
            Some((header, body)) if body.len() < header.body => body,
            _ => {
                self.bytes.reserve(READ);
                &mut self.bytes
            }
        }
    }

    /// Takes bytes that were read elsewhere.
    pub fn push(&mut self, mut bytes: &[u8]) {
        if let Some((header, body)) = &mut self.long {
            let missing = header.body.saturating_sub(body.len());
            let (now, rest) = bytes.split_at(missing.min(bytes.len()));
            body.extend_from_slice(now);
            bytes = rest;
        }
        self.tidy();
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next whole frame, if there is one.
    ///
    /// # Errors
    /// [`FrameError`]; the stream cannot be read any more.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        if let Some((header, mut body)) = self.long.take() {
            if body.len() < header.body {
                self.long = Some((header, body));
                return Ok(None);
            }
            // A buffer may have more room than it was made for.
            if body.len() > header.body {
                self.bytes.splice(..self.start, body.drain(header.body..));
                self.start = 0;
            }
            return Ok(Some(header.with(body)));
        }
        let rest = &self.bytes[self.start..];
        let Some(header) = Header::decode(rest)? else {
            return Ok(None);
        };
        match rest.get(HEADER..HEADER + header.body) {
            Some(body) => {
                let body = body.to_vec();
                self.start += HEADER + header.body;
                Ok(Some(header.with(body)))
            }
            None => {
                if header.body > LONG {
                    let mut body = Vec::with_capacity(header.body);
                    body.extend_from_slice(&rest[HEADER..]);
                    self.bytes.clear();
                    self.start = 0;
                    self.long = Some((header, body));
                }
                Ok(None)
            }
        }
    }

    /// Whether the stream may end here: no frame is incomplete.
    pub fn is_idle(&self) -> bool {
        self.long.is_none() && self.start == self.bytes.len()
    }

    /// Moves the beginning of a frame to the beginning of the buffer; costs nothing unless a frame
    /// was taken since the last time.
    fn tidy(&mut self) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }
}
