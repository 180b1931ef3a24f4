//! PMI-1 text: bytes to lines, a line to fields, fields to a line. Does not interpret commands
//! (see [`message`](super::message)) nor multi-line requests (see [`spawn_v1`](super::spawn_v1)).
//!
//! Rule: a message is `cmd=NAME`, then `key=value` fields between blanks, then a newline; nothing
//! is quoted or escaped. Source: docs/pmi-wire.md#framing.
//! Rule: bad bytes end the connection; there is no place to resynchronise at. Source:
//! docs/pmi-wire.md#malformed-input.

use std::io::Write as _;

use memchr::{memchr, memmem};

use super::limits::{COMMAND_MAX, FRAME_MAX, OPEN_REQUESTS_MAX, REQUEST_LINE_MAX, SPAWN_MAX};

/// Capacity a line buffer keeps between messages, in bytes; real lines are shorter.
const BUFFER_KEPT: usize = 2048;

/// Bytes of a bad message that its error shows.
const EXCERPT: usize = 48;

/// Input after which a connection cannot be understood any more: the job of this client fails.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProtocolError {
    /// A line is longer than any valid request.
    #[error("request line longer than {REQUEST_LINE_MAX} bytes")]
    LineTooLong,
    /// A multi-line spawn request that grows without end.
    #[error("spawn request longer than {SPAWN_MAX} bytes")]
    SpawnTooLong,
    /// Text cannot hold a NUL; every client uses C strings.
    #[error("NUL byte in request `{0}`")]
    Nul(String),
    /// The line starts with neither `cmd=` nor `mcmd=`.
    #[error("request does not start with cmd= or mcmd=: `{0}`")]
    NotACommand(String),
    /// The command's name is empty, too long, or not printable.
    #[error("invalid command name in `{0}`")]
    CommandName(String),
    /// A field is not `key=value`.
    #[error("field without `=` in `{0}`")]
    NoEquals(String),
    /// A multi-line request other than spawn: its end is unknown.
    #[error("unknown multi-line request `{0}`")]
    UnknownMultiLine(String),
    /// The lines of a spawn request do not follow each other as they must.
    #[error("spawn request: {0}")]
    SpawnSequence(&'static str),
    /// A request in several messages has an unexpected part.
    #[error("request in several messages: {0}")]
    Parts(&'static str),
    /// An abort whose exit code is missing or no number.
    #[error("abort without a valid exit code")]
    AbortCode,
    /// The text in front of a frame is not a length.
    #[error("invalid length of a PMI-2 message: `{0}`")]
    FrameLength(String),
    /// A frame longer than any request but a spawn.
    #[error("PMI-2 message of {0} bytes; at most {FRAME_MAX} are allowed")]
    FrameTooLong(usize),
    /// The frame is not `cmd=NAME;` and pairs.
    #[error("PMI-2 message does not start with cmd=NAME: `{0}`")]
    NotAFrame(String),
    /// One thread of a client has one request at a time.
    #[error("request {request} arrived while {open} is still open")]
    Busy {
        /// Request that arrived too early.
        request: String,
        /// The request still open.
        open: String,
    },
    /// The client has more threads with open requests than allowed.
    #[error("more than {OPEN_REQUESTS_MAX} open requests")]
    TooManyOpen,
    /// The client closed its end inside a message.
    #[error("connection closed in the middle of a message ({0} bytes)")]
    ClosedInside(usize),
}

/// Returns the start of a bad message, printable, for its error.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    let mut text = bytes[..bytes.len().min(EXCERPT)].escape_ascii().to_string();
    if bytes.len() > EXCERPT {
        text.push_str("...");
    }
    text
}

/// Cuts a byte stream into lines, in whatever pieces it arrives.
///
/// Holds at most one unfinished line of [`REQUEST_LINE_MAX`] bytes. "Not enough bytes yet" is
/// `Ok(None)`; an error is final.
#[derive(Debug, Default)]
pub struct LineFramer {
    partial: Vec<u8>,
    /// `partial` is a line already returned.
    returned: bool,
}

impl LineFramer {
    /// Takes the next line, without its newline, off the front of `input`; `None` once `input` is used up. A line that
    /// is wholly in `input` is not copied.
    ///
    /// # Errors
    /// [`ProtocolError::LineTooLong`] or [`ProtocolError::Nul`].
    pub fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<&'s [u8]>, ProtocolError> {
        if self.returned {
            self.returned = false;
            self.partial.clear();
            self.partial.shrink_to(BUFFER_KEPT);
        }
        // The newline of a line of allowed length lies within this window.
        let room = REQUEST_LINE_MAX - self.partial.len();
        let window = &input[..input.len().min(room + 1)];
        let Some(at) = memchr(b'\n', window) else {
            if window.len() > room {
                return Err(ProtocolError::LineTooLong);
            }
            self.partial.extend_from_slice(window);
            *input = &[];
            return Ok(None);
        };
        let head = &input[..at];
        *input = &input[at + 1..];
        let line = if self.partial.is_empty() {
            head
        } else {
            self.partial.extend_from_slice(head);
            self.returned = true;
            &self.partial
        };
        if memchr(0, line).is_some() {
            return Err(ProtocolError::Nul(excerpt(line)));
        }
        Ok(Some(line))
    }

    /// Bytes of the unfinished line.
    pub fn unfinished(&self) -> usize {
        if self.returned { 0 } else { self.partial.len() }
    }
}

/// One `cmd=` line: the command's name, and its fields not yet taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pmi1Line<'a> {
    /// The name behind `cmd=`: 1 to [`COMMAND_MAX`] printable bytes.
    pub name: &'a [u8],
    fields: &'a [u8],
}

impl<'a> Pmi1Line<'a> {
    /// Splits a line without its newline.
    ///
    /// # Errors
    /// [`ProtocolError::NotACommand`] or [`ProtocolError::CommandName`].
    pub fn parse(line: &'a [u8]) -> Result<Self, ProtocolError> {
        let rest = line
            .strip_prefix(b"cmd=")
            .ok_or_else(|| ProtocolError::NotACommand(excerpt(line)))?;
        let end = memchr(b' ', rest).unwrap_or(rest.len());
        let (name, fields) = rest.split_at(end);
        let printable = name.iter().all(u8::is_ascii_graphic);
        if name.is_empty() || name.len() > COMMAND_MAX || !printable {
            return Err(ProtocolError::CommandName(excerpt(line)));
        }
        Ok(Self { name, fields })
    }

    pub fn fields(&self) -> Fields<'a> {
        Fields { rest: self.fields }
    }

    /// Separates a last field with blanks in its value: the fields before it, and its
    /// value up to the end of the line (`None` without such a field).
    ///
    /// `marker` is the field's name between a blank and `=`, as in ` value=`; its first occurrence
    /// counts.
    pub fn split_tail(&self, marker: &[u8]) -> (Fields<'a>, Option<&'a [u8]>) {
        let Some(at) = memmem::find(self.fields, marker) else {
            return (self.fields(), None);
        };
        let rest = &self.fields[..at];
        (Fields { rest }, Some(&self.fields[at + marker.len()..]))
    }

    /// Splits the value between ` service=` and either `end` or the end of the line from the text behind `end`: for the
    /// name commands, whose service may contain blanks.
    pub fn split_service(&self, end: Option<&[u8]>) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
        let (_, Some(service)) = self.split_tail(b" service=") else {
            return (None, None);
        };
        match end.and_then(|end| Some((memmem::find(service, end)?, end.len()))) {
            Some((at, length)) => (Some(&service[..at]), Some(&service[at + length..])),
            None => (Some(service), None),
        }
    }
}

/// Fields of a line, in order, as key and value; values may be empty. Ends after the first error.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), ProtocolError>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.rest.iter().position(|&byte| byte != b' ')?;
        let text = &self.rest[start..];
        let end = memchr(b' ', text).unwrap_or(text.len());
        let (field, rest) = text.split_at(end);
        match memchr(b'=', field) {
            Some(at) if at > 0 => {
                self.rest = rest;
                Some(Ok((&field[..at], &field[at + 1..])))
            }
            _ => {
                self.rest = &[];
                Some(Err(ProtocolError::NoEquals(excerpt(text))))
            }
        }
    }
}

/// Builds one line for a client.
///
/// Rule: a client never gets an empty value: MPICH from 4.1 on refuses to parse one, so a field
/// without a value is left out. Source: docs/pmi-wire.md#framing.
#[derive(Debug)]
pub struct LineBuilder(Vec<u8>);

impl LineBuilder {
    /// Starts a line with `cmd=NAME`.
    pub fn new(name: &[u8]) -> Self {
        // All fixed-text replies fit; a longer value grows the buffer once.
        let mut bytes = Vec::with_capacity(96);
        bytes.extend_from_slice(b"cmd=");
        bytes.extend_from_slice(name);
        Self(bytes)
    }

    /// Appends a field as it is. Only the last one may hold blanks; none may hold a newline.
    #[must_use]
    pub fn field(mut self, key: &str, value: &[u8]) -> Self {
        if !value.is_empty() {
            self.0.reserve(key.len() + value.len() + 3);
            self.0.push(b' ');
            self.0.extend_from_slice(key.as_bytes());
            self.0.push(b'=');
            self.0.extend_from_slice(value);
        }
        self
    }

    /// Appends a field with a number.
    #[must_use]
    pub fn number(mut self, key: &str, value: i64) -> Self {
        // Writing to a Vec cannot fail.
        let _ = write!(self.0, " {key}={value}");
        self
    }

    /// Appends a text as one word: all bytes except printable ASCII become `_`.
    #[must_use]
    pub fn word(mut self, key: &str, text: &str) -> Self {
        let start = self.0.len();
        self = self.field(key, text.as_bytes());
        let value = start + key.len() + 2;
        for byte in self.0.iter_mut().skip(value) {
            if !byte.is_ascii_graphic() {
                *byte = b'_';
            }
        }
        self
    }

    /// Ends the line and returns it with its newline.
    pub fn end(mut self) -> Vec<u8> {
        self.0.push(b'\n');
        self.0
    }
}

/// Parses a decimal number, whole and in range.
pub(super) fn number<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
