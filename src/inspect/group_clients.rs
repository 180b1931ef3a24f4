//! Recognizes running clients of PMI-1 that know PMI 1.2, by the constants of the file that has the client: MPICH's MPI
//! library from 5.0 on, its libpmi, or a static program.
//!
//! Rule: those clients request PMI 1.1 like all others, and use group barriers if the server answers 1.2; the client of
//! Flux accepts no answer but 1.1. Source: docs/pmi-wire.md#versions.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::Pid;

use super::elf;
use wireup_core::job::ids::{AppNum, JobIndex};

/// Format of the name of the group of all ranks, which every client contains that names groups.
const MARK: &[u8] = b"WORLD:%d";

/// Beginnings of the names of libraries that may have a client of PMI-1.
const LIBRARIES: [&[u8]; 3] = [b"libmpi", b"libpmpi", b"libpmi.so"];

/// Maximum number of files whose result is kept.
const KNOWN_MAX: usize = 256;

/// Identity of a file in `/proc/PID/maps`: device and inode.
type FileId<'a> = (&'a [u8], u64);

/// A job and one of its application contexts.
pub(crate) type JobApp = (JobIndex, AppNum);

/// Results of earlier processes.
#[derive(Debug, Default)]
pub(crate) struct GroupClients {
    /// Results by app, device and inode of the executable: ranks of an app that execute the same file load the same libraries.
    results_by_program: BTreeMap<(JobApp, u64, u64), bool>,
    results_by_file: BTreeMap<(Vec<u8>, u64), bool>,
}

impl GroupClients {
    /// Whether a process of an app is a client that accepts PMI 1.2. A process that cannot be read counts as one, since it may
    /// be such a client.
    pub(crate) fn contain(&mut self, pid: Pid, app: JobApp) -> bool {
        self.find(pid, app).unwrap_or(true)
    }

    fn find(&mut self, pid: Pid, app: JobApp) -> io::Result<bool> {
        let proc = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
        let program = fs::metadata(proc.join("exe"))?;
        let key = (app, program.dev(), program.ino());
        if let Some(known) = self.results_by_program.get(&key) {
            return Ok(*known);
        }
        // A rank proxy, which relays a client on TCP: only MPICH and its relatives use TCP.
        let own = fs::metadata("/proc/self/exe")?;
        let is_proxy = (own.dev(), own.ino()) == (program.dev(), program.ino());
        let result = is_proxy || self.examine(&proc)?;
        if self.results_by_program.len() >= KNOWN_MAX {
            self.results_by_program.clear();
        }
        self.results_by_program.insert(key, result);
        Ok(result)
    }

    /// Searches the files that a process has mapped.
    fn examine(&mut self, proc: &Path) -> io::Result<bool> {
        let exe = fs::read_link(proc.join("exe"))?;
        let maps = fs::read(proc.join("maps"))?;
        let files: BTreeMap<FileId<'_>, &Path> = maps
            .split(|byte| *byte == b'\n')
            .filter_map(mapped_file)
            .collect();
        let libraries = files.iter().filter(|(_, path)| is_library(path));
        let mut candidates: Vec<_> = libraries.collect();
        if candidates.is_empty() {
            candidates = files.iter().filter(|(_, path)| **path == exe).collect();
        }
        let root = proc.join("root");
        let mut result = false;
        for (id, path) in candidates {
            let inside = path.strip_prefix("/").unwrap_or(path);
            result |= self.has_mark(*id, &root.join(inside))?;
        }
        Ok(result)
    }

    fn has_mark(&mut self, (device, inode): FileId<'_>, path: &Path) -> io::Result<bool> {
        let id = (device.to_vec(), inode);
        if let Some(known) = self.results_by_file.get(&id) {
            return Ok(*known);
        }
        let found = elf::find_in_constants(path, MARK, 1, |rest| (rest == b"\0").then_some(()));
        let found = match found {
            // A file that cannot be searched within bounds has the result of one that cannot be read, once for all ranks.
            Err(elf::ElfError::TooLarge) => true,
            found => found.map_err(io::Error::other)?.is_some(),
        };
        if self.results_by_file.len() >= KNOWN_MAX {
            self.results_by_file.clear();
        }
        self.results_by_file.insert(id, found);
        Ok(found)
    }
}

fn is_library(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    LIBRARIES.iter().any(|start| name.starts_with(start))
}

/// Parses the file of a line of `/proc/PID/maps`: addresses, access, offset, device, inode, path.
fn mapped_file(line: &[u8]) -> Option<(FileId<'_>, &Path)> {
    let path = &line[memchr::memchr(b'/', line)?..];
    let mut words = line.split(|byte| *byte == b' ').skip(3);
    let device = words.next()?;
    let inode = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    Some(((device, inode), Path::new(OsStr::from_bytes(path))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: JobApp = (JobIndex(0), AppNum(0));

    #[test]
    fn mapped_file_has_device_inode_and_path() {
        let line = b"7f6a0e000000-7f6a0e100000 r--p 00000000 fe:01 1234                       /opt/a b/libmpi.so.12";
        let path = Path::new("/opt/a b/libmpi.so.12");
        assert_eq!(mapped_file(line), Some(((&b"fe:01"[..], 1234), path)));
        assert!(is_library(path));
        assert!(!is_library(Path::new("/usr/lib/libpmix.so.2")));
        assert_eq!(
            mapped_file(b"7ffc1000-7ffc2000 rw-p 00000000 00:00 0 [stack]"),
            None
        );
    }

    #[test]
    fn own_process_takes_groups_like_unreadable_one() {
        let mut clients = GroupClients::default();
        assert!(clients.contain(rustix::process::getpid(), APP));
        // No process has this pid.
        assert!(clients.contain(Pid::from_raw(i32::MAX).unwrap(), APP));
    }

    #[test]
    fn process_without_client_takes_no_groups() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        // The child runs this program until it has executed the other one.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let mut clients = GroupClients::default();
        while clients.contain(pid, APP) && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        let takes = clients.contain(pid, APP);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!takes);
    }
}
