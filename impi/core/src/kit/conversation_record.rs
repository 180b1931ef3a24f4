//! A recorded conversation, as lines of text.
//!
//! ```text
//! wireup-impi-record 1
//! 0.000120 0 open server                a client (0) has connected to the server
//! 0.000200 0 > 415554480000000400000001 bytes from the client
//! 0.000310 0 < 0000000000000000         bytes from the server
//! 1.200000 7 open host 0                a host has connected to host 0
//! 2.000000 0 end >                      the client has closed its direction
//! ```
//!
//! Bytes of one end are recorded before the other end receives them, so an answer never precedes its cause.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::hexadecimal::unhex;

/// First line of a record.
pub const TITLE: &str = "wireup-impi-record 1";

/// Acceptor of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Server,
    /// A host, by its rank.
    Host(usize),
}

/// Sending end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ConversationSide {
    /// The end that has connected.
    Forth,
    /// The end that has accepted.
    Back,
}

/// Recorded action on a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordedAction {
    /// A connection was made.
    Open(Kind),
    Bytes(ConversationSide, Vec<u8>),
    /// An end closed its direction.
    End(ConversationSide),
}

/// One line of the record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedEvent {
    /// Since the beginning of the record.
    pub time: Duration,
    /// Number of the connection.
    pub connection: u32,
    pub action: RecordedAction,
}

/// A line that is none.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("invalid line of a record: {0:?}")]
pub struct RecordError(String);

impl fmt::Display for ConversationSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forth => ">",
            Self::Back => "<",
        })
    }
}

impl fmt::Display for RecordedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:06} {} ",
            self.time.as_secs(),
            self.time.subsec_micros(),
            self.connection
        )?;
        match &self.action {
            RecordedAction::Open(Kind::Server) => f.write_str("open server"),
            RecordedAction::Open(Kind::Host(rank)) => write!(f, "open host {rank}"),
            RecordedAction::End(direction) => write!(f, "end {direction}"),
            RecordedAction::Bytes(direction, bytes) => {
                write!(f, "{direction} ")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl FromStr for RecordedEvent {
    type Err = RecordError;

    fn from_str(line: &str) -> Result<Self, RecordError> {
        parse(line).ok_or_else(|| RecordError(line.chars().take(80).collect()))
    }
}

fn parse(line: &str) -> Option<RecordedEvent> {
    let words: Vec<&str> = line.split(' ').collect();
    let [time, connection, words @ ..] = &words[..] else {
        return None;
    };
    let (seconds, micros) = time.split_once('.')?;
    let micros: u32 = micros
        .parse()
        .ok()
        .filter(|micros| *micros < 1_000_000 && time.len() - seconds.len() == 7)?;
    let direction = |word: &str| match word {
        ">" => Some(ConversationSide::Forth),
        "<" => Some(ConversationSide::Back),
        _ => None,
    };
    let what = match words {
        ["open", "server"] => RecordedAction::Open(Kind::Server),
        ["open", "host", rank] => RecordedAction::Open(Kind::Host(rank.parse().ok()?)),
        ["end", end] => RecordedAction::End(direction(end)?),
        [from, bytes] => RecordedAction::Bytes(direction(from)?, unhex(bytes)?),
        _ => return None,
    };
    Some(RecordedEvent {
        time: Duration::new(seconds.parse().ok()?, micros * 1000),
        connection: connection.parse().ok()?,
        action: what,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed_as_written() {
        for line in [
            "0.000120 0 open server",
            "0.000200 0 > 4155544800",
            "0.000310 0 < 00",
            "1.200000 7 open host 31",
            "2.000000 0 end >",
            "2.000000 0 end <",
        ] {
            assert_eq!(line.parse::<RecordedEvent>().unwrap().to_string(), line);
        }
        for line in [
            "",
            "0.000120 0",
            "0.1 0 open server",
            "0.000001 x end >",
            "0.000001 0 > 123",
            "0.000001 0 > zz",
            "0.000001 0 open host",
        ] {
            assert!(line.parse::<RecordedEvent>().is_err(), "{line}");
        }
    }
}
