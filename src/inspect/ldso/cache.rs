//! The system's list of libraries: `ld.so.cache`, or the directories of `ld.so.conf` without one.
//!
//! Rule: the cache is a header of 48 bytes (magic, count, size of the names), entries of 24 bytes
//! (flags, name offset, path offset, …) in native byte order, then NUL-terminated names; offsets
//! count from the header. An older format may precede the header. Source: glibc's dl-cache.h.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use crate::inspect::elf::open_regular;
use crate::inspect::sorted_entries;

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
const HEADER: usize = 48;
const ENTRY: usize = 24;
/// Maximum bytes read of a cache or configuration; a large system's cache has some 100 KiB.
const FILE_MAX: u64 = 32 * 1024 * 1024;
/// Maximum depth of `include` lines.
const INCLUDES_MAX: u8 = 8;

/// Source of candidates for a library's name.
#[derive(Debug)]
pub(crate) enum Index {
    /// Bytes of a cache from its header on.
    Cache(Vec<u8>),
    /// Directories in which a library may be.
    Directories(Vec<PathBuf>),
}

impl Index {
    /// Reads the cache; failing that, the configuration; failing that, neither.
    pub(super) fn load(cache: &Path, config: &Path) -> Self {
        if let Some(index) = read(cache).and_then(Self::parse_cache) {
            return index;
        }
        let mut directories = Vec::new();
        read_config(config, INCLUDES_MAX, &mut directories);
        // musl, which has no such files, searches here too.
        directories.push("/usr/local/lib".into());
        Self::Directories(directories)
    }

    /// Takes the bytes of a cache; `None` if they are not one.
    pub(crate) fn parse_cache(bytes: Vec<u8>) -> Option<Self> {
        from_header(bytes).map(Self::Cache)
    }

    /// Returns the paths at which a library of this name may be.
    pub(crate) fn candidates(&self, name: &OsStr) -> Vec<PathBuf> {
        match self {
            Self::Cache(bytes) => lookup(bytes, name.as_bytes()),
            Self::Directories(directories) => {
                directories.iter().map(|dir| dir.join(name)).collect()
            }
        }
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = open_regular(path).ok()?;
    file.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Removes an older format before the header.
fn from_header(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    if bytes.starts_with(OLD_MAGIC) {
        let start = memchr::memmem::find(&bytes, MAGIC)?;
        bytes.drain(..start);
    }
    bytes.starts_with(MAGIC).then_some(bytes)
}

fn lookup(bytes: &[u8], name: &[u8]) -> Vec<PathBuf> {
    let number = |at: usize| {
        let field = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        usize::try_from(u32::from_ne_bytes(field)).ok()
    };
    let text_is = |at: usize, expected: &[u8]| {
        bytes
            .get(at..)
            .and_then(|rest| rest.strip_prefix(expected))
            .is_some_and(|rest| rest.first() == Some(&0))
    };
    let entries = bytes.get(HEADER..).map_or(0, |rest| rest.len() / ENTRY);
    let count = number(MAGIC.len()).unwrap_or(0).min(entries);
    (0..count)
        .map(|entry| HEADER + entry * ENTRY)
        .filter(|at| number(at + 4).is_some_and(|key| text_is(key, name)))
        .filter_map(|at| {
            let path = bytes.get(number(at + 8)?..)?;
            let end = memchr::memchr(0, path)?;
            Some(OsString::from_vec(path[..end].to_vec()).into())
        })
        .collect()
}

fn read_config(path: &Path, depth: u8, directories: &mut Vec<PathBuf>) {
    let Some(text) = read(path) else { return };
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        let mut words = line
            .split(|byte| byte.is_ascii_whitespace() || matches!(byte, b':' | b','))
            .filter(|word| !word.is_empty())
            .peekable();
        match words.peek() {
            Some(&b"include") if depth > 0 => {
                for pattern in words.skip(1) {
                    let base = path.parent().unwrap_or_else(|| Path::new("/"));
                    for file in glob(&base.join(OsStr::from_bytes(pattern))) {
                        read_config(&file, depth - 1, directories);
                    }
                }
            }
            Some(&(b"include" | b"hwcap")) => {}
            _ => directories.extend(words.map(|word| OsStr::from_bytes(word).into())),
        }
    }
}

/// Returns the files that match a pattern, sorted. Only the last component may contain `*`, since
/// distributions use no other patterns.
fn glob(pattern: &Path) -> Vec<PathBuf> {
    let (Some(directory), Some(last)) = (pattern.parent(), pattern.file_name()) else {
        return Vec::new();
    };
    let Some(star) = memchr::memchr(b'*', last.as_bytes()) else {
        return vec![pattern.to_owned()];
    };
    let (prefix, suffix) = (&last.as_bytes()[..star], &last.as_bytes()[star + 1..]);
    let mut files = sorted_entries(directory);
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().as_bytes();
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.ends_with(suffix))
    });
    files
}
