//! Resources that a rank registers for removal at the end of its job.
//!
//! Rule: a resource has a type and a name or number. Source: docs/pmi-operations.md#registered-resources.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::reply::PmiRefusal;
use super::wire_v1::number;

/// Resource of a node, as its rank names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeResource {
    /// File with this absolute path, also one of `/dev/shm`.
    File(PathBuf),
    /// Segment of System V with this number.
    Segment(i32),
    /// Set of semaphores of System V with this number.
    Semaphores(i32),
    /// Message queue of System V with this number.
    Queue(i32),
}

impl NodeResource {
    /// Parses the type and the name of a request.
    ///
    /// # Errors
    /// [`PmiRefusal::BadField`] for an unknown type, a path that is not absolute, and an invalid number.
    pub(super) fn parse(kind: &[u8], name: &[u8]) -> Result<Self, PmiRefusal<'static>> {
        let path = Path::new(OsStr::from_bytes(name));
        let number = || number(name).filter(|number| *number >= 0);
        let resource = match kind {
            b"file" if path.is_absolute() && !name.contains(&0) => {
                Some(Self::File(path.to_owned()))
            }
            b"file" => None,
            b"shm" => number().map(Self::Segment),
            b"sem" => number().map(Self::Semaphores),
            b"msg" => number().map(Self::Queue),
            _ => return Err(PmiRefusal::BadField("type")),
        };
        resource.ok_or(PmiRefusal::BadField("name"))
    }
}
