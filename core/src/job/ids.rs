//! Identifiers. A bare integer never crosses a function boundary as one of these.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Longest nspace in bytes, without a terminator. Source: `PMIX_MAX_NSLEN` of the PMIx standard.
pub const NSPACE_MAX: usize = 255;

/// Name of one job for its process-management interfaces: PMIx nspace and PMI kvsname at once.
///
/// Holds 1 to [`NSPACE_MAX`] bytes of printable ASCII without blank, `;`, `=` or `/`, so that it
/// can be written into every protocol and used as a file name. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Nspace(Arc<str>);

/// A text that cannot be an [`Nspace`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NspaceError {
    /// Empty, or longer than [`NSPACE_MAX`] bytes.
    #[error("invalid nspace of {0} bytes: 1 to {NSPACE_MAX} are allowed")]
    Length(usize),
    /// Contains a byte some protocol would misread.
    #[error("invalid nspace: it contains the byte {0:#04x}")]
    Byte(u8),
}

impl Nspace {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`NspaceError`] when the text is empty, too long, or has a byte outside the allowed set.
    pub fn new(name: &str) -> Result<Self, NspaceError> {
        if name.is_empty() || name.len() > NSPACE_MAX {
            return Err(NspaceError::Length(name.len()));
        }
        match name
            .bytes()
            .find(|b| !b.is_ascii_graphic() || matches!(b, b';' | b'=' | b'/'))
        {
            Some(byte) => Err(NspaceError::Byte(byte)),
            None => Ok(Self(Arc::from(name))),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Nspace> for String {
    fn from(name: Nspace) -> Self {
        name.as_str().to_owned()
    }
}

impl TryFrom<String> for Nspace {
    type Error = NspaceError;

    fn try_from(name: String) -> Result<Self, NspaceError> {
        Self::new(&name)
    }
}

impl fmt::Display for Nspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nspace({})", self.0)
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
        )]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the number as an index into a per-job or per-node list.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number! {
    /// A process of a job, 0 to size − 1.
    Rank
}
number! {
    /// Position of a rank among the ranks of its job on its node, from 0, in rank order.
    LocalRank
}
number! {
    /// Position of a job in its launch: 0 is the initial job, the others were spawned.
    JobIndex
}

impl JobIndex {
    /// Index of the initial job.
    pub const INITIAL: Self = Self(0);

    /// Whether the job is the initial one, and not a spawned one.
    pub fn is_initial(&self) -> bool {
        *self == Self::INITIAL
    }
}

number! {
    /// A process of a launch, in the order of jobs and ranks (`PMIX_GLOBAL_RANK`). In the first job
    /// it is the rank.
    GlobalRank
}
number! {
    /// Position of a process among those of its launch on its node, from 0, in the order of
    /// [`GlobalRank`] (`PMIX_NODE_RANK`).
    NodeRank
}
number! {
    /// A node of a launch: dense, from 0. Node 0 is the head node.
    NodeId
}
number! {
    /// Position of an application context in the command line, from 0 (MPI's appnum).
    AppNum
}
number! {
    /// A user of the system.
    UserId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nspace_rejects_characters_misread_by_protocols() {
        assert!(Nspace::new("wireup-1f00.1").is_ok());
        assert_eq!(Nspace::new(""), Err(NspaceError::Length(0)));
        assert_eq!(Nspace::new(&"x".repeat(256)), Err(NspaceError::Length(256)));
        for bad in ["a b", "a;b", "a=b", "a/b", "a\nb"] {
            assert!(
                matches!(Nspace::new(bad), Err(NspaceError::Byte(_))),
                "{bad:?}"
            );
        }
    }
}
