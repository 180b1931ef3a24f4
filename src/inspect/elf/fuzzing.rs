//! Entry point of the fuzzer, and of the plain test that runs it over a corpus and random input.

use std::os::fd::AsRawFd as _;

use rustix::fs::{MemfdFlags, memfd_create};

use super::{NEEDED_MAX, find_in_constants, read};

/// Bytes that a search finds in the corpus.
const PATTERN: &[u8] = b"Open MPI";

/// Most bytes asked for behind it.
const AFTER: usize = 64;

/// Runs one input: a whole file.
///
/// # Panics
/// When a bound that the module promises is broken, or the system has no memory for the file.
pub fn elf(data: &[u8]) {
    let file = memfd_create("elf", MemfdFlags::CLOEXEC).expect("a file in memory");
    rustix::io::write(&file, data).expect("room in memory");
    let path = std::path::PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if let Ok(found) = read(&path) {
        assert!(found.needed.len() <= NEEDED_MAX);
        let texts = found
            .needed
            .iter()
            .chain(&found.rpath)
            .chain(&found.runpath);
        // Nothing is made up: each name is in the file.
        assert!(texts.into_iter().all(|text| text.len() < data.len()));
    }
    let mut texts = 0;
    let searched = find_in_constants(&path, PATTERN, AFTER, |text| {
        assert!(text.len() <= AFTER);
        texts += 1;
        None::<()>
    });
    if searched.is_ok() {
        assert!(texts <= data.len() * usize::from(super::PROGRAM_HEADERS_MAX));
    }
}
