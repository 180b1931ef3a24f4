//! Reads from MPICH's shared memory how many processes of a node are between `MPI_Init` and `MPI_Finalize`.
//!
//! Rule: from MPICH 5 on each process of a node maps `/dev/shm/mpich_shm_WORLD_NODE` in `MPI_Init` and counts itself
//! out in `MPI_Finalize`; the last one removes the file. WORLD is the FNV-1a hash of the kvsname, in later versions
//! of the kvsname, a hyphen and the number of the initialization; NODE is the node's number in the process mapping.
//! The file starts with the count, and a mark follows that it is initialized. Source: MPICH,
//! src/mpid/ch4/shm/posix/posix_init.c and posix_types.h.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io;

const DIRECTORY: &str = "/dev/shm";

/// Prefix of the files' names.
const PREFIX: &str = "mpich_shm_";

/// Value of the third number of an initialized segment.
const READY: u32 = 0x1234_5678;

/// Number of initializations of one process whose segments are searched.
const INITIALIZATIONS: u32 = 16;

/// Segments that were created since the start of the watch.
#[derive(Debug)]
pub(crate) struct SegmentWatch {
    directory: PathBuf,
    inotify: OwnedFd,
    created: BTreeSet<OsString>,
}

impl SegmentWatch {
    /// Starts to watch the directory of the segments.
    ///
    /// # Errors
    /// The errors of `inotify_init1` and `inotify_add_watch`.
    pub(crate) fn start() -> io::Result<Self> {
        Self::from_directory(Path::new(DIRECTORY))
    }

    fn from_directory(directory: &Path) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let created = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        inotify::add_watch(&inotify, directory, created)?;
        Ok(Self {
            directory: directory.to_owned(),
            inotify,
            created: BTreeSet::new(),
        })
    }

    /// Number of processes of a job on a node of the process mapping that have called `MPI_Init` and not
    /// `MPI_Finalize`; `None` if their MPI has made no segment or its content is unknown.
    pub(crate) fn sessions(&mut self, kvsname: &str, node: u32) -> Option<u32> {
        self.drain();
        let numbered = (1..=INITIALIZATIONS).map(|number| format!("{kvsname}-{number}"));
        let worlds = std::iter::once(kvsname.to_owned()).chain(numbered);
        let names = worlds.map(|world| segment_name(&world, node));
        let mut created = names
            .filter(|name| self.created.contains(name.as_os_str()))
            .peekable();
        created.peek()?;
        created.try_fold(0, |sum: u32, name| {
            Some(sum.saturating_add(count(&self.directory.join(name))?))
        })
    }

    /// Reads the names of the segments that were created.
    fn drain(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.inotify, &mut buffer);
        while let Ok(event) = events.next() {
            let name = event.file_name().map_or(&[][..], |name| name.to_bytes());
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                self.created.clear();
            } else if name.starts_with(PREFIX.as_bytes()) {
                self.created.insert(OsString::from_vec(name.to_vec()));
            }
        }
    }
}

/// Returns the name of the segment of a world on a node.
fn segment_name(world: &str, node: u32) -> OsString {
    let hash = world.bytes().fold(2_166_136_261_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
    });
    format!("{PREFIX}{hash:x}_{node}").into()
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
    fn sessions_are_counted_in_segments_seen_at_creation() {
        let directory = tempfile::tempdir().unwrap();
        let file = |world: &str, node| directory.path().join(segment_name(world, node));
        std::fs::write(file("old", 0), segment(1, READY)).unwrap();
        let mut watch = SegmentWatch::from_directory(directory.path()).unwrap();
        assert_eq!(watch.sessions("old", 0), None, "made before");
        std::fs::write(file("job", 0), segment(2, READY)).unwrap();
        std::fs::write(file("later-1", 1), segment(3, READY)).unwrap();
        assert_eq!(watch.sessions("job", 0), Some(2));
        assert_eq!(watch.sessions("job", 1), None, "another node");
        assert_eq!(watch.sessions("later", 1), Some(3));
        std::fs::remove_file(file("job", 0)).unwrap();
        assert_eq!(watch.sessions("job", 0), Some(0));
        std::fs::write(file("job", 0), segment(2, 0)).unwrap();
        assert_eq!(watch.sessions("job", 0), None, "not initialized");
    }
}
