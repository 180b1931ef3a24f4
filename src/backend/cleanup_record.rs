//! Records of the files and processes of a launch, for cleanup after its launcher (or step) and its guard were both
//! killed; and the cleanup of such launches.
//!
//! The guard keeps a record: a file of the user in memory, with the processes that supervise the
//! launch and its leftovers. The guard removes it at its end. A record whose processes have all
//! ended belongs to a launch without supervision: the next launch of the user on this machine
//! cleans it up, and so does the agent when it starts.
//!
//! Rules: pid and start time identify a process within one boot and one pid namespace. A record of another boot or
//! namespace is left alone. A record is processed with the rights of its owner. Its name is a random number, and not
//! the job's name, which other users must not know (see `job_label`).

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::orphaned_job_cleanup::OrphanedJobCleanup;
use crate::plan::packed_files::FileIdentity;
use wireup_core::job::octets;
use wireup_core::link::{decode, encode};
use wireup_sys::leftovers::JOB;
use wireup_sys::privileges::as_user;
use wireup_sys::procfs;

/// Directory of the records: local to the machine, and empty after a boot.
const PLACE: &str = "/dev/shm";

/// Most bytes of a record that are read.
const MOST: u64 = 16 * 1024 * 1024;

/// Version of a record's contents. Records of other versions are kept until they are old.
const VERSION: u32 = 1;

/// Minimum age at which an unreadable record is removed. A younger one may be of another version, and its launch may
/// still run.
const EMPTY_FOR: Duration = Duration::from_secs(60);

/// A process that supervises the launch: launcher, step or guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OwnerProcess {
    pid: i32,
    started: u64,
}

impl fmt::Display for OwnerProcess {
    /// Writes an identifier that is unique since the boot of the machine.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.pid, self.started)
    }
}

impl OwnerProcess {
    /// Returns the identity of a process; `None` if it has been reaped.
    pub fn from_pid(pid: i32) -> Option<Self> {
        let started = procfs::process(pid)?.started;
        Some(Self { pid, started })
    }

    fn lives(&self) -> bool {
        let found = procfs::process(self.pid);
        found.is_some_and(|found| found.started == self.started && !found.has_ended())
    }
}

/// Boot and pid namespace in which the recorded pids are valid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct PidScope {
    /// Boot id of the kernel.
    boot: String,
    /// Inode number of the pid namespace.
    processes: u64,
}

impl PidScope {
    fn read_own() -> io::Result<Self> {
        let processes = fs::metadata("/proc/self/ns/pid")?.ino();
        Ok(Self {
            boot: procfs::boot_id()?,
            processes,
        })
    }
}

/// The first entry of a record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct CleanupHeader {
    version: u32,
    world: PidScope,
    keepers: Vec<OwnerProcess>,
    job: String,
    /// Start of the launch, in seconds since 1970.
    started_at: u64,
    #[serde(with = "octets")]
    tmpdir: OsString,
}

/// Further entry of a record: an object that the launch has created, or is about to create.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum CleanupEntry {
    Directory(#[serde(with = "octets")] PathBuf),
    /// File that is removed only if it still has this identity.
    File(FileIdentity, #[serde(with = "octets")] PathBuf),
    Group(#[serde(with = "octets")] PathBuf),
}

/// The record of a launch, kept by its guard. Dropping it does not remove the file.
#[derive(Debug)]
pub(crate) struct CleanupRecordFile(PathBuf);

/// Returns the path of the record with this number.
fn path(number: u64) -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    Path::new(PLACE).join(format!("{}{number:016x}", prefix(uid)))
}

fn prefix(uid: u32) -> String {
    format!("wireup.{uid}.")
}

impl CleanupRecordFile {
    /// Creates the record file, or opens it if the launcher or the guard has created it already.
    ///
    /// # Errors
    /// If it cannot be created; then leftovers of the launch are not recorded.
    pub(crate) fn make(
        number: u64,
        keepers: Vec<OwnerProcess>,
        job: &str,
        started_at: SystemTime,
    ) -> io::Result<Self> {
        let head = CleanupHeader {
            version: VERSION,
            world: PidScope::read_own()?,
            keepers,
            job: job.to_owned(),
            started_at: started_at
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs(),
            tmpdir: std::env::temp_dir().into(),
        };
        let path = path(number);
        // The file gets its name when it is complete: readers, and a second creator, find the whole header or no file.
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = File::from(openat(CWD, PLACE, flags, Mode::RUSR | Mode::WUSR)?);
        write(&mut file, &head)?;
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        match linkat(CWD, &*unnamed, CWD, &path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) | Err(Errno::EXIST) => Ok(Self(path)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Appends an entry to the record.
    ///
    /// # Errors
    /// When the system has no memory left.
    pub(crate) fn add(&mut self, thing: &CleanupEntry) -> io::Result<()> {
        // The file is opened for each entry: the guard keeps only its socket and the session leaders open.
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        write(
            &mut File::from(openat(CWD, &self.0, flags, Mode::empty())?),
            thing,
        )
    }
}

/// Writes the length of an entry, then the entry.
fn write(file: &mut File, entry: &impl Serialize) -> io::Result<()> {
    let bytes = encode(entry);
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    file.write_all(&[&length.to_le_bytes(), &bytes[..]].concat())
}

/// Removes the record with this number, if there is one.
pub(crate) fn forget(number: u64) {
    let _ = fs::remove_file(path(number));
}

/// The contents of a record.
#[derive(Debug)]
pub struct CleanupRecord {
    path: PathBuf,
    head: CleanupHeader,
    /// Directories that the launch has made.
    pub directories: Vec<PathBuf>,
    /// Control groups that the launch has made.
    pub groups: Vec<PathBuf>,
    files: Vec<(FileIdentity, PathBuf)>,
}

impl CleanupRecord {
    /// Reads the records of all launches of this process's user.
    fn read_all() -> Vec<Self> {
        let uid = rustix::process::geteuid().as_raw();
        named(&prefix(uid))
            .filter_map(|path| Self::read(path, uid))
            .collect()
    }

    fn read(path: PathBuf, uid: u32) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(CWD, &path, flags, Mode::empty()).ok()?);
        let meta = file.metadata().ok()?;
        if !meta.is_file() || meta.uid() != uid || meta.nlink() != 1 {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes).ok()?;
        let mut rest = &bytes[..];
        let head: Option<CleanupHeader> = entry(&mut rest);
        let Some(head) = head.filter(|head| head.version == VERSION) else {
            let age = meta.modified().ok().and_then(|then| then.elapsed().ok());
            if age.is_some_and(|age| age > EMPTY_FOR) {
                let _ = fs::remove_file(&path);
            }
            return None;
        };
        let mut record = Self {
            path,
            head,
            directories: Vec::new(),
            groups: Vec::new(),
            files: Vec::new(),
        };
        // The last entry may be incomplete.
        while let Some(thing) = entry(&mut rest) {
            match thing {
                CleanupEntry::Directory(path) => record.directories.push(path),
                CleanupEntry::File(identity, path) => record.files.push((identity, path)),
                CleanupEntry::Group(path) => record.groups.push(path),
            }
        }
        Some(record)
    }

    /// Whether certainly no process supervises the launch any more, apart from the process with pid `ending`.
    fn is_abandoned(&self, world: &PidScope, ending: Option<i32>) -> bool {
        let supervises = |keeper: &OwnerProcess| ending != Some(keeper.pid) && keeper.lives();
        self.head.world == *world && !self.head.keepers.iter().any(supervises)
    }

    /// Directory in which the MPI libraries of the launch may have made session directories.
    pub fn tmpdir(&self) -> PathBuf {
        self.head.tmpdir.clone().into()
    }

    /// Removes the recorded files of the launch, and the record.
    pub fn remove(self) {
        for (identity, path) in &self.files {
            identity.remove(path);
        }
        let _ = fs::remove_file(&self.path);
    }
}

/// Decodes the next entry and removes it from `bytes`.
fn entry<T: DeserializeOwned>(bytes: &mut &[u8]) -> Option<T> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (entry, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *bytes = rest;
    decode(entry).ok()
}

/// Prefix of record names.
fn named(prefix: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(PLACE).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let name = entry.file_name();
        let ours = name.as_encoded_bytes().starts_with(prefix.as_bytes());
        ours.then(|| entry.path())
    })
}

/// The records of unsupervised jobs of this process's user.
pub fn abandoned_records(job: &str) -> Vec<CleanupRecord> {
    let Ok(world) = PidScope::read_own() else {
        return Vec::new();
    };
    let mut found = CleanupRecord::read_all();
    found.retain(|remains| remains.head.job == job && remains.is_abandoned(&world, None));
    found
}

/// The users of this machine that have records, each with the group of one.
fn owners() -> Vec<(u32, u32)> {
    let owner = |path: PathBuf| {
        let meta = path.symlink_metadata().ok()?;
        let named = path.file_name()?.as_encoded_bytes();
        let ours = named.starts_with(prefix(meta.uid()).as_bytes());
        ours.then(|| (meta.uid(), meta.gid()))
    };
    let mut owners: Vec<(u32, u32)> = named("wireup.").filter_map(owner).collect();
    owners.sort_unstable();
    owners.dedup_by_key(|owner| owner.0);
    owners
}

/// Ends and removes leftovers of unsupervised launches of this process's user.
pub fn collect() {
    collect_without(None);
}

/// Works as [`collect`], and includes launches that only the process with pid `ending` supervises.
fn collect_without(ending: Option<i32>) {
    let mut found = CleanupRecord::read_all();
    if found.is_empty() {
        return;
    }
    let Ok(world) = PidScope::read_own() else {
        return;
    };
    // A leftover rank may start this launch, which must not kill itself.
    let within = std::env::var_os(JOB);
    found.retain(|remains| {
        remains.is_abandoned(&world, ending)
            && within
                .as_ref()
                .is_none_or(|job| job != remains.head.job.as_str())
    });
    for remains in found {
        let work = OrphanedJobCleanup {
            job: &remains.head.job,
            is_ours: &|_, _| false,
            directories: &remains.directories,
            groups: &remains.groups,
            ranks: &[],
            tmpdirs: &[remains.tmpdir()],
            uid: rustix::process::geteuid().as_raw(),
            started_at: UNIX_EPOCH + Duration::from_secs(remains.head.started_at),
            // The grace time has passed since their launcher was killed.
            grace: Duration::ZERO,
            look_at_least: Duration::ZERO,
            give_up: Duration::from_secs(1),
        };
        work.carry_out();
        remains.remove();
    }
}

/// Works as [`collect`] for each user, with that user's rights, if this process is root's; the privileged helper calls
/// it. `ending` is the pid of an agent that is about to exit. Must be called in a process with a single thread.
pub fn collect_of_all_users(ending: Option<i32>) {
    if !rustix::process::geteuid().is_root() {
        return collect_without(ending);
    }
    for (uid, gid) in owners() {
        match uid {
            0 => collect_without(ending),
            _ => {
                // The user's next launch retries what fails here.
                let _ = as_user(uid, gid, || {
                    collect_without(ending);
                    0
                });
            }
        }
    }
}

/// Returns a random number for a new record.
///
/// # Errors
/// When the system has no random numbers.
pub(crate) fn number() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
