//! Resource limits of ranks, as a user writes them; no I/O.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Resource with a limit (`RLIMIT_*`). Source: getrlimit(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Resource {
    /// Size of the address space, in bytes.
    As,
    /// Size of a core file, in bytes.
    Core,
    /// CPU time, in seconds.
    Cpu,
    /// Size of the data segment, in bytes.
    Data,
    /// Size of a file that is written, in bytes.
    Fsize,
    /// Number of file locks.
    Locks,
    /// Memory that may be locked, in bytes.
    Memlock,
    /// Bytes in POSIX message queues.
    Msgqueue,
    /// Amount by which the nice value may be lowered (20 minus it).
    Nice,
    /// Highest descriptor number plus one.
    Nofile,
    /// Processes of the user.
    Nproc,
    /// Resident memory, in bytes; without effect on Linux.
    Rss,
    /// Highest real-time priority that a rank may set.
    Rtprio,
    /// CPU time without a blocking call under a real-time policy, in microseconds.
    Rttime,
    /// Signals that may be queued.
    Sigpending,
    /// Size of the main stack, in bytes.
    Stack,
}

impl Resource {
    /// All of them, with their names in lower case and the letter of the shells' `ulimit`.
    pub const ALL: [(Self, &'static str, char); 16] = [
        (Self::As, "as", 'v'),
        (Self::Core, "core", 'c'),
        (Self::Cpu, "cpu", 't'),
        (Self::Data, "data", 'd'),
        (Self::Fsize, "fsize", 'f'),
        (Self::Locks, "locks", 'x'),
        (Self::Memlock, "memlock", 'l'),
        (Self::Msgqueue, "msgqueue", 'q'),
        (Self::Nice, "nice", 'e'),
        (Self::Nofile, "nofile", 'n'),
        (Self::Nproc, "nproc", 'u'),
        (Self::Rss, "rss", 'm'),
        (Self::Rtprio, "rtprio", 'r'),
        (Self::Rttime, "rttime", 'R'),
        (Self::Sigpending, "sigpending", 'i'),
        (Self::Stack, "stack", 's'),
    ];

    /// Returns the resource's name, as in `--rlimit`.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// Returns the resource's letter in the shells' `ulimit`.
    pub fn letter(self) -> char {
        self.entry().2
    }

    fn entry(self) -> (Self, &'static str, char) {
        let entry = Self::ALL.into_iter().find(|entry| entry.0 == self);
        entry.expect("the table has every resource")
    }
}

/// A value of a limit. Unlimited is more than any number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum LimitValue {
    /// Number of the resource's units.
    At(u64),
    Unlimited,
}

impl fmt::Display for LimitValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(value) => value.fmt(f),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

/// Limit of one resource: `NAME=SOFT[:HARD]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResourceLimit {
    pub resource: Resource,
    pub soft: LimitValue,
    /// Maximum to which the rank itself may raise the limit; as inherited when absent.
    pub hard: Option<LimitValue>,
}

impl fmt::Display for ResourceLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.resource.name(), self.soft)?;
        match self.hard {
            Some(hard) => write!(f, ":{hard}"),
            None => Ok(()),
        }
    }
}

/// A text that is no [`ResourceLimit`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LimitError {
    /// Text without a `=`.
    #[error("write NAME=SOFT or NAME=SOFT:HARD")]
    Form,
    /// Name that is not in [`Resource::ALL`].
    #[error("unknown resource limit {0:?}: use one of {names}", names = Resource::ALL.map(|entry| entry.1).join(", "))]
    Name(String),
    /// Text that is not a [`LimitValue`].
    #[error("invalid limit {0:?}: use a number with optional suffix K, M or G, or unlimited")]
    Value(String),
    /// Soft limit above the hard limit.
    #[error("the soft limit {soft} is above the hard limit {hard}")]
    Order { soft: LimitValue, hard: LimitValue },
}

impl FromStr for ResourceLimit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let (name, value) = text.split_once('=').ok_or(LimitError::Form)?;
        let short = name.to_ascii_lowercase();
        let short = short.strip_prefix("rlimit_").unwrap_or(&short);
        let resource = Resource::ALL.into_iter().find(|entry| entry.1 == short);
        let (resource, ..) = resource.ok_or_else(|| LimitError::Name(name.into()))?;
        let (soft, hard) = match value.split_once(':') {
            Some((soft, hard)) => (bound(soft)?, Some(bound(hard)?)),
            None => (bound(value)?, None),
        };
        match hard {
            Some(hard) if soft > hard => Err(LimitError::Order { soft, hard }),
            hard => Ok(Self {
                resource,
                soft,
                hard,
            }),
        }
    }
}

fn bound(text: &str) -> Result<LimitValue, LimitError> {
    let wrong = || LimitError::Value(text.into());
    if text.eq_ignore_ascii_case("unlimited") {
        return Ok(LimitValue::Unlimited);
    }
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    // `parse` would take a sign.
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    // The system's "unlimited" is the highest number.
    let value = number.checked_mul(1 << shift).filter(|v| *v < u64::MAX);
    value.map(LimitValue::At).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(
        resource: Resource,
        soft: LimitValue,
        hard: Option<LimitValue>,
    ) -> Result<ResourceLimit, LimitError> {
        Ok(ResourceLimit {
            resource,
            soft,
            hard,
        })
    }

    #[test]
    fn limits_are_read_with_units_and_unlimited() {
        use LimitValue::{At, Unlimited};
        let read = |text: &str| text.parse::<ResourceLimit>();
        assert_eq!(read("nofile=64"), limit(Resource::Nofile, At(64), None));
        assert_eq!(
            read("RLIMIT_STACK=8m:unlimited"),
            limit(Resource::Stack, At(8 << 20), Some(Unlimited))
        );
        assert_eq!(
            read("core=unlimited"),
            limit(Resource::Core, Unlimited, None)
        );
        assert_eq!(
            read("Core=1k:UNLIMITED").unwrap().to_string(),
            "core=1024:unlimited"
        );
        assert_eq!(
            read("Cpu=0:2K"),
            limit(Resource::Cpu, At(0), Some(At(2048)))
        );
    }

    #[test]
    fn invalid_limit_is_named() {
        let error = |text: &str| text.parse::<ResourceLimit>().unwrap_err();
        assert_eq!(error("nofile"), LimitError::Form);
        assert!(error("files=1").to_string().contains("nofile, nproc"));
        for value in [
            "",
            "x",
            "-1",
            "+1",
            "1:",
            ":1",
            "1T",
            "18446744073709551615",
        ] {
            let text = format!("nofile={value}");
            assert!(matches!(error(&text), LimitError::Value(_)), "{text}");
        }
        let order = error("core=unlimited:5").to_string();
        assert_eq!(order, "the soft limit unlimited is above the hard limit 5");
    }
}
