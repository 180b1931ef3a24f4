//! Releases of OpenPMIx.

use std::fmt;

/// The oldest release that can host our jobs.
pub const MINIMUM: PmixRelease = PmixRelease::new(4, 2, 2);

/// A release of OpenPMIx. What follows the three numbers (`rc2`, `a1`) does not count, because a
/// distribution's `4.2.2rc2` is its 4.2.2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PmixRelease {
    pub major: u16,
    pub minor: u16,
    pub release: u16,
}

impl PmixRelease {
    /// Creates a release from its numbers.
    pub const fn new(major: u16, minor: u16, release: u16) -> Self {
        Self {
            major,
            minor,
            release,
        }
    }

    /// Reads `major.minor.release` at the start of a text and ignores the rest.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut rest = text;
        let mut number = |last: bool| {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (head, tail) = rest.split_at(digits);
            rest = if last { tail } else { tail.strip_prefix(b".")? };
            std::str::from_utf8(head).ok()?.parse().ok()
        };
        Some(Self::new(number(false)?, number(false)?, number(true)?))
    }

    /// Reads the release at the first digit of libpmix's own name (`OpenPMIx 5.0.3, repo rev: ...`).
    pub fn from_library_name(name: &[u8]) -> Option<Self> {
        let start = name.iter().position(u8::is_ascii_digit)?;
        Self::parse(&name[start..])
    }
}

impl fmt::Display for PmixRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.release)
    }
}
