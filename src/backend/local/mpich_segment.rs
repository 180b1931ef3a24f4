//! Reads from MPICH's shared memory how many processes of a node are between `MPI_Init` and `MPI_Finalize`.
//!
//! Rule: from MPICH 5 on each process of a node maps `/dev/shm/mpich_shm_WORLD_NODE` in `MPI_Init` and counts itself
//! out in `MPI_Finalize`; the last one removes the file. WORLD is the FNV-1a hash of the kvsname, in later versions
//! of the kvsname, a hyphen and the number of the initialization; NODE is the node's number in the process mapping.
//! The file starts with the count, and a mark follows that it is initialized. Source: MPICH,
//! src/mpid/ch4/shm/posix/posix_init.c and posix_types.h.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "/dev/shm";

/// Prefix of the files' names.
const PREFIX: &str = "mpich_shm_";

/// Value of the third number of an initialized segment.
const READY: u32 = 0x1234_5678;

/// Number of initializations of one process whose segments are searched.
const INITIALIZATIONS: u32 = 16;

/// Segments that existed while all their processes waited in a barrier of PMI, as in every `MPI_Init`. One that is missing
/// later was removed by the last process that left `MPI_Finalize`.
#[derive(Debug)]
pub(super) struct MpichSegments {
    directory: PathBuf,
    existed: BTreeSet<PathBuf>,
}

impl Default for MpichSegments {
    fn default() -> Self {
        Self {
            directory: DIRECTORY.into(),
            existed: BTreeSet::new(),
        }
    }
}

impl MpichSegments {
    /// Records the segments that a job has on a node of the process mapping, unless its MPI has made none.
    pub(super) fn record(&mut self, kvsname: &str, node: u32) {
        let segments = possible_segments(&self.directory, kvsname, node);
        self.existed.extend(segments.filter(|path| path.exists()));
    }

    /// Number of processes of a job on a node of the process mapping that have called `MPI_Init` and not
    /// `MPI_Finalize`; `None` if their MPI has made no segment or its content is unknown.
    pub(super) fn sessions(&self, kvsname: &str, node: u32) -> Option<u32> {
        let segments = possible_segments(&self.directory, kvsname, node);
        let mut existed = segments
            .filter(|path| self.existed.contains(path))
            .peekable();
        existed.peek()?;
        existed.try_fold(0, |sum: u32, path| Some(sum.saturating_add(count(&path)?)))
    }
}

/// Returns the paths of the segments that a job can have on a node.
fn possible_segments(directory: &Path, kvsname: &str, node: u32) -> impl Iterator<Item = PathBuf> {
    let numbered = (1..=INITIALIZATIONS).map(move |number| format!("{kvsname}-{number}"));
    let worlds = std::iter::once(kvsname.to_owned()).chain(numbered);
    worlds.map(move |world| directory.join(segment_name(&world, node)))
}

/// Returns the name of the segment of a world on a node.
fn segment_name(world: &str, node: u32) -> String {
    let hash = world.bytes().fold(2_166_136_261_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    });
    format!("{PREFIX}{hash:x}_{node}")
}

/// Number of processes that use a segment, 0 if it has been removed; `None` if it has no known form.
fn count(path: &Path) -> Option<u32> {
    let mut head = [0; 12];
    match File::open(path) {
        Ok(mut file) => file.read_exact(&mut head).ok()?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(0),
        Err(_) => return None,
    }
    let number = |at: usize| head[at..at + 4].try_into().map(u32::from_ne_bytes);
    match (number(0), number(8)) {
        (Ok(count), Ok(READY)) => Some(count),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(count: u32, mark: u32) -> Vec<u8> {
        [count, 0, mark, 0].map(u32::to_ne_bytes).concat()
    }

    #[test]
    fn segment_name_matches_mpich() {
        // As seen with MPICH 5.0.2.
        let name = segment_name("wireup-aa05068f32551c8f", 0);
        assert_eq!(name, "mpich_shm_fad94c30_0");
    }

    #[test]
    fn sessions_are_counted_in_segments_that_existed() {
        let directory = tempfile::tempdir().unwrap();
        let file = |world: &str, node| directory.path().join(segment_name(world, node));
        let mut segments = MpichSegments {
            directory: directory.path().to_owned(),
            ..MpichSegments::default()
        };
        std::fs::write(file("job", 0), segment(2, READY)).unwrap();
        assert_eq!(segments.sessions("job", 0), None, "no barrier yet");
        segments.record("job", 0);
        segments.record("none", 0);
        assert_eq!(segments.sessions("job", 0), Some(2));
        assert_eq!(segments.sessions("job", 1), None, "another node");
        assert_eq!(segments.sessions("none", 0), None);
        for (number, count) in [(1, 3), (2, 1)] {
            let world = format!("later-{number}");
            std::fs::write(file(&world, 1), segment(count, READY)).unwrap();
            segments.record("later", 1);
        }
        assert_eq!(segments.sessions("later", 1), Some(4));
        std::fs::remove_file(file("job", 0)).unwrap();
        segments.record("job", 0);
        assert_eq!(segments.sessions("job", 0), Some(0));
        std::fs::write(file("job", 0), segment(2, 0)).unwrap();
        assert_eq!(segments.sessions("job", 0), None, "not initialized");
    }
}
