//! PMI-2 frames: bytes to frames, a frame to pairs, pairs to a frame. Does not interpret commands
//! (see [`request_v2`](super::request_v2)).
//!
//! Rule: six bytes of decimal length, padded with blanks on either side, then that many bytes of
//! `key=value;` pairs, `cmd` first. Source: docs/pmi2-wire.md#pmi-2-framing.
//! Rule: a doubled `;` in a value is one; MPICH 5 neither doubles nor undoes it. Source:
//! docs/pmi2-wire.md#pmi-2-framing.
//! Rule: MPICH 4.0 counts six bytes of garbage behind the last pair. Source:
//! docs/pmi2-wire.md#pmi-2-framing.

use std::borrow::Cow;

use memchr::{memchr, memchr2, memmem};

use super::limits::{COMMAND_MAX, FRAME_MAX, KEYLEN_MAX};
use super::wire_v1::{self, ProtocolError, excerpt};

/// Bytes of the length in front of a frame.
pub(super) const HEADER: usize = 6;

/// Number of bytes by which MPICH 4.0 overstates a frame's length.
const GARBAGE: usize = 6;

/// Start of the request that shows whether a client does: it has no value that could mislead.
const FULLINIT: &[u8] = b"cmd=fullinit;";

/// Start of the only request that may be longer than [`FRAME_MAX`].
const SPAWN: &[u8] = b"cmd=spawn;";

/// Capacity a buffer keeps between frames, in bytes; real requests are shorter.
const BUFFER_KEPT: usize = 2048;

/// A whole message of a PMI-2 connection.
#[derive(PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// A frame without its length.
    Frame(&'a [u8]),
    /// A PMI-1 line in place of a frame, without its newline: a client starts again.
    Line(&'a [u8]),
}

/// Cuts a byte stream into frames, in whatever pieces it arrives.
///
/// Holds at most one unfinished frame. "Not enough bytes yet" is `Ok(None)`; an error is final.
#[derive(Debug, Default)]
pub struct Pmi2Framer {
    /// Length and start of a frame that has not ended.
    partial: Vec<u8>,
    /// `partial` is a frame already returned.
    returned: bool,
    /// A line in place of a frame.
    line: Option<wire_v1::LineFramer>,
    /// Whether the client counts [`GARBAGE`] behind each request.
    careless: bool,
}

impl Pmi2Framer {
    /// Takes the next message off the front of `input`; `None` once `input` is used up.
    ///
    /// # Errors
    /// A [`ProtocolError`] when the length is invalid, or more than any request has.
    pub fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Message<'s>>, ProtocolError> {
        if self.returned {
            self.returned = false;
            self.partial.clear();
            self.partial.shrink_to(BUFFER_KEPT);
        }
        self.line.take_if(|line| line.unfinished() == 0);
        if self.line.is_none() && self.partial.is_empty() && input.first() == Some(&b'c') {
            self.line = Some(wire_v1::LineFramer::default());
        }
        if let Some(line) = &mut self.line {
            return Ok(line.next(input)?.map(Message::Line));
        }
        if !take_up_to(&mut self.partial, input, HEADER) {
            return Ok(None);
        }
        let length = length(&self.partial[..HEADER])?;
        if length > FRAME_MAX {
            let known = HEADER + SPAWN.len();
            let enough = take_up_to(&mut self.partial, input, known);
            if !SPAWN.starts_with(&self.partial[HEADER..self.partial.len().min(known)]) {
                return Err(ProtocolError::FrameTooLong(length));
            }
            if !enough {
                return Ok(None);
            }
        }
        if !take_up_to(&mut self.partial, input, HEADER + length) {
            return Ok(None);
        }
        self.returned = true;
        let frame = &self.partial[HEADER..];
        if frame.starts_with(FULLINIT) {
            self.careless = has_garbage(frame);
        }
        Ok(Some(Message::Frame(
            match frame.len().checked_sub(GARBAGE) {
                Some(end) if self.careless && frame[..end].ends_with(b";") => &frame[..end],
                _ => frame,
            },
        )))
    }

    /// Bytes of the unfinished message.
    pub fn unfinished(&self) -> usize {
        let line = self.line.as_ref().map_or(0, |line| line.unfinished());
        line + if self.returned { 0 } else { self.partial.len() }
    }
}

/// Moves bytes from the front of `input` until `buffer` has `length` bytes; returns whether it has.
fn take_up_to(buffer: &mut Vec<u8>, input: &mut &[u8], length: usize) -> bool {
    let missing = length.saturating_sub(buffer.len()).min(input.len());
    let (head, rest) = input.split_at(missing);
    buffer.extend_from_slice(head);
    *input = rest;
    buffer.len() >= length
}

/// Parses the number in front of a frame: digits with blanks around them, not 0.
pub(super) fn length(header: &[u8]) -> Result<usize, ProtocolError> {
    let digits = header.trim_ascii();
    let blanks = header.iter().all(|&b| b.is_ascii_digit() || b == b' ');
    let number = blanks.then(|| wire_v1::number(digits)).flatten();
    let number = number.filter(|&length: &usize| length > 0);
    number.ok_or_else(|| ProtocolError::FrameLength(excerpt(header)))
}

/// Whether a frame ends in six bytes that are no pair, behind one that is.
fn has_garbage(frame: &[u8]) -> bool {
    let Some(end) = frame.len().checked_sub(GARBAGE) else {
        return false;
    };
    let (pairs, tail) = frame.split_at(end);
    let a_pair = tail.ends_with(b";") && memchr(b'=', tail).is_some_and(|at| is_key(&tail[..at]));
    pairs.ends_with(b";") && !a_pair
}

/// One request, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pmi2Frame<'a> {
    /// The name behind `cmd=`: 1 to [`COMMAND_MAX`] printable bytes.
    pub name: &'a [u8],
    pairs: Vec<(&'a [u8], Cow<'a, [u8]>)>,
}

impl<'a> Pmi2Frame<'a> {
    /// Parses the text of a frame. Text that is no pair is skipped: a raw `;` of MPICH 5 leaves
    /// such pieces, and so does garbage.
    ///
    /// # Errors
    /// [`ProtocolError::NotAFrame`] or [`ProtocolError::CommandName`].
    pub fn parse(text: &'a [u8]) -> Result<Self, ProtocolError> {
        let not_a_command = || ProtocolError::NotAFrame(excerpt(text));
        let rest = text.strip_prefix(b"cmd=").ok_or_else(not_a_command)?;
        let end = memchr(b';', rest).ok_or_else(not_a_command)?;
        let (name, mut rest) = (&rest[..end], &rest[end + 1..]);
        let printable = name.iter().all(u8::is_ascii_graphic);
        if name.is_empty() || name.len() > COMMAND_MAX || !printable {
            return Err(ProtocolError::CommandName(excerpt(text)));
        }
        let mut pairs = Vec::new();
        while let Some(at) = memchr2(b'=', b';', rest) {
            let key = &rest[..at];
            let is_pair = rest[at] == b'=' && is_key(key);
            rest = &rest[at + 1..];
            if is_pair {
                let Some((value, after)) = split_value(rest) else {
                    break;
                };
                pairs.push((key, value));
                rest = after;
            }
        }
        Ok(Self { name, pairs })
    }

    /// Returns the value of a key. Its first occurrence counts: a later one may be garbage.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        let mut pairs = self.pairs.iter();
        let (_, value) = pairs.find(|(name, _)| *name == key.as_bytes())?;
        Some(value)
    }

    /// Returns the last pair.
    pub fn last(&self) -> Option<(&'a [u8], &[u8])> {
        self.pairs.last().map(|(key, value)| (*key, &**value))
    }

    /// Returns all pairs in the order of the frame.
    pub fn pairs(&self) -> impl Iterator<Item = (&'a [u8], &[u8])> {
        self.pairs.iter().map(|(key, value)| (*key, &**value))
    }
}

/// Splits `VALUE;rest`; `None` if the value does not end.
fn split_value(text: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let mut at = 0;
    let mut doubled = false;
    loop {
        at += memchr(b';', &text[at..])?;
        match text.get(at + 1) {
            Some(b';') => doubled = true,
            _ => break,
        }
        at += 2;
        if at == text.len() {
            // A value with a raw `;` at its end, and nothing behind its terminator.
            return Some((undouble(text), &[]));
        }
    }
    let value = &text[..at];
    let value = if doubled {
        undouble(value)
    } else {
        Cow::Borrowed(value)
    };
    Some((value, &text[at + 1..]))
}

fn undouble(text: &[u8]) -> Cow<'_, [u8]> {
    let mut value = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memmem::find(rest, b";;") {
        value.extend_from_slice(&rest[..=at]);
        rest = &rest[at + 2..];
    }
    value.extend_from_slice(rest);
    Cow::Owned(value)
}

fn is_key(key: &[u8]) -> bool {
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=KEYLEN_MAX).contains(&key.len()) && key.iter().all(legal)
}

/// Builds one frame for a client.
///
/// Rule: a client never gets an empty value: MPICH 5 refuses to parse one, so a pair without a
/// value is left out. Source: docs/pmi2-wire.md#pmi-2-framing.
#[derive(Debug)]
pub struct FrameBuilder(Vec<u8>);

impl FrameBuilder {
    /// Starts a frame with `cmd=NAME-response`.
    pub fn response(name: &[u8]) -> Self {
        const END: &[u8] = b"-response";
        // An unknown name may have the full length; its reply is a command too.
        let length = name.len().min(COMMAND_MAX - END.len());
        Self([b"      cmd=", &name[..length], END, b";"].concat())
    }

    /// Starts `cmd=NAME`, of at most [`COMMAND_MAX`] bytes.
    pub fn command(name: &[u8]) -> Self {
        Self([b"      cmd=", name, b";"].concat())
    }

    /// Appends a pair; each `;` of the value is doubled.
    #[must_use]
    pub fn field(self, key: &str, value: &[u8]) -> Self {
        match value {
            [] => self,
            value => self.maybe_empty(key, value),
        }
    }

    /// Appends a pair even without a value, for replies that MPICH never requests.
    #[must_use]
    pub fn maybe_empty(mut self, key: impl AsRef<[u8]>, value: &[u8]) -> Self {
        let key = key.as_ref();
        self.0.reserve(key.len() + value.len() + 2);
        self.0.extend_from_slice(key);
        self.0.push(b'=');
        let mut rest = value;
        while let Some(at) = memchr(b';', rest) {
            self.0.extend_from_slice(&rest[..=at]);
            self.0.push(b';');
            rest = &rest[at + 1..];
        }
        self.0.extend_from_slice(rest);
        self.0.push(b';');
        self
    }

    /// Appends a field with a number.
    #[must_use]
    pub fn number(self, key: &str, value: i64) -> Self {
        self.field(key, value.to_string().as_bytes())
    }

    /// Appends a truth value, in the upper case that Slurm's client insists on.
    #[must_use]
    pub fn flag(self, key: &str, value: bool) -> Self {
        self.field(key, if value { b"TRUE" } else { b"FALSE" })
    }

    /// Appends a text for people, in UTF-8: control characters become `_`, and `; ` between its parts becomes `, `, because
    /// MPICH 5 takes a doubled `;` for the end of the value and then reports a protocol error in place of the text.
    #[must_use]
    pub fn text(self, key: &str, text: &str) -> Self {
        let text = text.replace("; ", ", ").replace(char::is_control, "_");
        self.field(key, text.as_bytes())
    }

    /// Returns the text without the length, for [`Pmi2Frame::parse`].
    pub fn unframed(&self) -> &[u8] {
        &self.0[HEADER..]
    }

    /// Returns the frame with its length, which is aligned right, as MPICH 5 and Hydra write it.
    pub fn end(mut self) -> Vec<u8> {
        let length = format!("{:>HEADER$}", self.0.len() - HEADER);
        // Replies are a few kilobytes at most.
        self.0[..HEADER].copy_from_slice(&length.as_bytes()[..HEADER]);
        self.0
    }
}
