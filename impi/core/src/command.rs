//! Commands between a client and the rendezvous server, as bytes.
//!
//! Rule: each unit is `{Int4 cmd, Int4 len}` in big-endian order and `len` bytes. Source: IMPI 2.3.2.

use std::collections::VecDeque;

/// `IMPI_CMD_*`, or a command of a later version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Authentication; always the first.
    Auth,
    /// The client's rank, or the number of clients.
    Impi,
    /// A value under a label, or the values of all clients.
    Coll,
    /// End of the labels.
    Done,
    /// All processes of the client have exited.
    Fini,
    /// A line that a print server prints, or, without one, the question whether the server is one. Not in the specification:
    /// other servers discard it.
    Print,
    /// Command of another version; its payload is skipped.
    Unknown(u32),
}

impl Command {
    /// Returns the command of a number on the wire.
    pub fn from_code(code: u32) -> Self {
        match &code.to_be_bytes() {
            b"AUTH" => Self::Auth,
            b"IMPI" => Self::Impi,
            b"COLL" => Self::Coll,
            b"DONE" => Self::Done,
            b"FINI" => Self::Fini,
            b"PRNT" => Self::Print,
            _ => Self::Unknown(code),
        }
    }

    /// Returns the number on the wire.
    pub fn code(self) -> u32 {
        u32::from_be_bytes(match self {
            Self::Auth => *b"AUTH",
            Self::Impi => *b"IMPI",
            Self::Coll => *b"COLL",
            Self::Done => *b"DONE",
            Self::Fini => *b"FINI",
            Self::Print => *b"PRNT",
            Self::Unknown(code) => return code,
        })
    }

    /// Encodes a whole unit.
    ///
    /// # Panics
    /// When the payload is longer than `Int4` can count.
    pub fn unit(self, payload: &[u8]) -> Vec<u8> {
        let length = i32::try_from(payload.len()).expect("payloads are bounded far below 2 GiB");
        let mut unit = Vec::with_capacity(8 + payload.len());
        unit.extend_from_slice(&self.code().to_be_bytes());
        unit.extend_from_slice(&length.to_be_bytes());
        unit.extend_from_slice(payload);
        unit
    }
}

/// The first eight bytes of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandHeader {
    /// Command of the unit.
    pub command: Command,
    /// Number of bytes that follow. A negative number violates the protocol; the reader decides.
    pub length: i32,
}

/// A stream of bytes that is taken in pieces; arrived bytes are never copied twice.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: VecDeque<u8>,
    skip: usize,
}

impl Inbox {
    /// Adds bytes that have arrived.
    pub fn extend(&mut self, mut bytes: &[u8]) {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        bytes = &bytes[skipped..];
        self.bytes.extend(bytes);
    }

    /// Returns the number of waiting bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no bytes wait.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the next bytes without taking them.
    pub fn peek<const N: usize>(&self) -> Option<[u8; N]> {
        let mut out = [0; N];
        (self.bytes.len() >= N).then(|| {
            out.iter_mut()
                .zip(&self.bytes)
                .for_each(|(out, byte)| *out = *byte);
            out
        })
    }

    /// Takes exactly `count` bytes, if they have arrived.
    pub fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        (self.bytes.len() >= count).then(|| self.bytes.drain(..count).collect())
    }

    /// Drops `count` bytes, including those that have not arrived yet.
    pub fn skip(&mut self, count: usize) {
        let now = count.min(self.bytes.len());
        self.bytes.drain(..now);
        self.skip += count - now;
    }

    /// Returns the header of the next unit, without taking it.
    pub fn header(&self) -> Option<CommandHeader> {
        let [a, b, c, d, e, f, g, h] = self.peek::<8>()?;
        Some(CommandHeader {
            command: Command::from_code(u32::from_be_bytes([a, b, c, d])),
            length: i32::from_be_bytes([e, f, g, h]),
        })
    }
}

/// Reads a big-endian `Int4` at the beginning of a payload.
pub fn int4(payload: &[u8]) -> Option<i32> {
    payload.first_chunk().map(|four| i32::from_be_bytes(*four))
}

/// Reads the whole big-endian words of a payload.
pub fn words(payload: &[u8]) -> Vec<u32> {
    let (words, _) = payload.as_chunks();
    words.iter().map(|word| u32::from_be_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_ascii_letters_of_specification() {
        for (command, code) in [
            (Command::Auth, 0x4155_5448),
            (Command::Impi, 0x494D_5049),
            (Command::Coll, 0x434F_4C4C),
            (Command::Done, 0x444F_4E45),
            (Command::Fini, 0x4649_4E49),
        ] {
            assert_eq!(command.code(), code);
            assert_eq!(Command::from_code(code), command);
        }
        assert_eq!(Command::from_code(7), Command::Unknown(7));
    }

    #[test]
    fn skipped_bytes_may_arrive_later() {
        let mut inbox = Inbox::default();
        inbox.extend(b"abc");
        inbox.skip(5);
        inbox.extend(b"de");
        inbox.extend(b"fg");
        assert_eq!(inbox.take(2).as_deref(), Some(&b"fg"[..]));
        assert!(inbox.is_empty());
    }
}
