//! Log texts of ranks.

use serde::{Deserialize, Serialize};

use super::ids::GlobalRank;
use super::octets;

/// Destination of a log text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum LogChannel {
    /// The launcher's standard output.
    Stdout,
    /// The launcher's standard error.
    Stderr,
    /// The job's record: the status stream, if there is one.
    Record,
}

/// Log text of a rank, for the launcher's output or the job's record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogText<R = GlobalRank> {
    /// Rank that has logged the text, if known.
    pub rank: Option<R>,
    pub channel: LogChannel,
    /// Only if no rank of the job has had the same text logged once before.
    pub once: bool,
    /// The text: any bytes.
    #[serde(with = "octets")]
    pub text: Vec<u8>,
}

impl<R> LogText<R> {
    /// Identifies its rank another way, if that is possible.
    pub fn try_map<S>(self, identify: impl FnOnce(R) -> Option<S>) -> Option<LogText<S>> {
        Some(LogText {
            rank: match self.rank {
                Some(rank) => Some(identify(rank)?),
                None => None,
            },
            channel: self.channel,
            once: self.once,
            text: self.text,
        })
    }
}

/// The priority of a text without one: an error (3) of a user's program (facility 1).
pub const PRIORITY_DEFAULT: u8 = FACILITY_USER | 3;
/// Facility `user`, as part of a priority.
const FACILITY_USER: u8 = 1 << 3;
/// The highest priority: severity 7 of facility 23 (RFC 3164, 4.1.1).
const PRIORITY_MAX: i32 = 23 << 3 | 7;
/// The longest line for a system's log, in bytes; RFC 3164 promises 1024, today's daemons take 8 KiB.
const LINE_MAX: usize = 8 * 1024 - 256;

/// The host whose syslog gets a text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum SyslogTarget {
    /// Syslog of the rank's host.
    Node,
    /// Syslog of the launcher's host.
    Launcher,
}

/// A text for a system's log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SyslogText {
    /// Host whose syslog gets the text.
    pub place: SyslogTarget,
    /// Severity and facility, at most 191.
    pub priority: u8,
    /// Time of the text, in seconds since 1970-01-01T00:00:00Z; the time of logging when absent.
    pub at: Option<i64>,
    /// The sender, as text.
    pub source: String,
    /// Only if the same text was not logged once before.
    pub once: bool,
    /// The text: any bytes.
    #[serde(with = "octets")]
    pub text: Vec<u8>,
}

impl SyslogText {
    /// Converts a priority of `syslog(3)`: a severity without a facility gets that of user programs. `None` for an
    /// invalid priority.
    pub fn priority(value: i32) -> Option<u8> {
        let value = (0..=PRIORITY_MAX).contains(&value).then_some(value as u8)?;
        Some(match value >> 3 {
            0 => value | FACILITY_USER,
            _ => value,
        })
    }

    /// Returns the datagrams for the log, one a line. `date` is the time in the log's format, `pid` that of the process
    /// that writes.
    ///
    /// Rule: `<priority>date tag: text`, without the host's name. Source: RFC 3164, and the datagrams that `syslog(3)`
    /// sends to `/dev/log`. Characters that end a line or move a cursor are replaced.
    pub fn lines(&self, date: &str, pid: u32) -> impl Iterator<Item = Vec<u8>> {
        let head = format!("<{}>{date} wireup[{pid}]: {}: ", self.priority, self.source);
        let lines = self.text.split(|byte| *byte == b'\n');
        lines.filter(|line| !line.is_empty()).map(move |line| {
            let plain = |byte: &u8| if byte.is_ascii_control() { b' ' } else { *byte };
            let line = line.iter().take(LINE_MAX).map(plain);
            head.bytes().chain(line).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &[u8]) -> SyslogText {
        SyslogText {
            place: SyslogTarget::Node,
            priority: PRIORITY_DEFAULT,
            at: None,
            source: "job.3".into(),
            once: false,
            text: text.to_vec(),
        }
    }

    #[test]
    fn each_line_is_own_datagram_and_cannot_imitate_another() {
        let datagrams = |bytes: &[u8]| -> Vec<String> {
            let text = text(bytes);
            let lines = text.lines("Nov  1 09:05:03", 7);
            lines
                .map(|line| String::from_utf8_lossy(&line).into_owned())
                .collect()
        };
        let head = "<11>Nov  1 09:05:03 wireup[7]: job.3: ";
        assert_eq!(
            datagrams(b"one\n\ntwo\x1b[2J\r\n"),
            [format!("{head}one"), format!("{head}two [2J ")]
        );
        assert_eq!(datagrams(b"\n"), [""; 0]);
        assert_eq!(datagrams(&[b'x'; 10_000])[0].len(), head.len() + LINE_MAX);
    }

    #[test]
    fn severity_alone_gets_user_facility() {
        for (value, priority) in [
            (0, Some(8)),
            (3, Some(PRIORITY_DEFAULT)),
            (7, Some(15)),
            (8, Some(8)),
            (131, Some(131)),
            (191, Some(191)),
            (192, None),
            (-1, None),
        ] {
            assert_eq!(SyslogText::priority(value), priority, "{value}");
        }
    }
}
