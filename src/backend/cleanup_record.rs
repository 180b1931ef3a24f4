//! What a launch would leave behind if its launcher, or step, and its guard were both killed; and
//! the removal of what others have left so.
//!
//! The guard keeps a record: a file of the user in memory, with the processes that supervise the
//! launch and its leftovers. The guard removes it at its end. A record whose processes have all
//! ended belongs to a launch without supervision: the next launch of the user on this machine
//! cleans it up, and so does the agent when it starts.
//!
//! Rules: a process is known by its number and the time when it started, on one boot of one kernel
//! and in one namespace of processes; where any of that is another's, nothing is known and nothing
//! is done. A record is trusted only as far as its owner's rights reach. Its name is a number that
//! cannot be guessed, and not the job's, which other users must not know (see `job_label`).

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

/// Always on this machine, and empty after it has started.
const PLACE: &str = "/dev/shm";

/// Most bytes of a record that are read.
const MOST: u64 = 16 * 1024 * 1024;

/// Version of a record's contents. Records of other versions are kept until they are old.
const VERSION: u32 = 1;

/// How old a record that cannot be read must be before it is removed: it may be of another version,
/// and its launch may still run.
const EMPTY_FOR: Duration = Duration::from_secs(60);

/// A process that looks after the launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OwnerProcess {
    pid: i32,
    started: u64,
}

impl fmt::Display for OwnerProcess {
    /// Unique since the machine was started.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.pid, self.started)
    }
}

impl OwnerProcess {
    /// This process's, or another one's; `None` when it has been collected.
    pub fn from_pid(pid: i32) -> Option<Self> {
        let started = procfs::process(pid)?.started;
        Some(Self { pid, started })
    }

    fn lives(&self) -> bool {
        let found = procfs::process(self.pid);
        found.is_some_and(|found| found.started == self.started && !found.has_ended())
    }
}

/// Which processes the numbers mean.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct PidScope {
    /// The boot of the machine.
    boot: String,
    /// The namespace of processes.
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
    /// When it began, in seconds of the calendar.
    started_at: u64,
    #[serde(with = "octets")]
    tmpdir: OsString,
}

/// The entries after it: something the launch has made, or is about to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum CleanupEntry {
    Directory(#[serde(with = "octets")] PathBuf),
    /// A file, as long as it is this one.
    File(FileIdentity, #[serde(with = "octets")] PathBuf),
    Group(#[serde(with = "octets")] PathBuf),
}

/// The record of a launch, kept by its guard. Dropping it does not remove the file.
#[derive(Debug)]
pub(crate) struct CleanupRecordFile(PathBuf);

/// Where the record is that has this number.
fn path(number: u64) -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    Path::new(PLACE).join(format!("{}{number:016x}", prefix(uid)))
}

fn prefix(uid: u32) -> String {
    format!("wireup.{uid}.")
}

impl CleanupRecordFile {
    /// Makes it, unless the launcher or the guard has made it already: then it is that one.
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
        // It gets its name when it is complete: a reader, and a second maker, find all of the head or nothing.
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = File::from(openat(CWD, PLACE, flags, Mode::RUSR | Mode::WUSR)?);
        write(&mut file, &head)?;
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        match linkat(CWD, &*unnamed, CWD, &path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) | Err(Errno::EXIST) => Ok(Self(path)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Adds something.
    ///
    /// # Errors
    /// When there is no memory left for it.
    pub(crate) fn add(&mut self, thing: &CleanupEntry) -> io::Result<()> {
        // Not kept open: the guard holds only its socket and the session leaders.
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        write(
            &mut File::from(openat(CWD, &self.0, flags, Mode::empty())?),
            thing,
        )
    }
}

/// Writes an entry: its length and itself.
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
    things: Vec<CleanupEntry>,
}

impl CleanupRecord {
    /// Those of all launches of this process's user.
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
        // The last one may have been cut short.
        let things = std::iter::from_fn(|| entry(&mut rest)).collect();
        Some(Self { path, head, things })
    }

    /// Whether it is certain that no process supervises the launch any more, that with the number `ending` left out.
    fn is_abandoned(&self, world: &PidScope, ending: Option<i32>) -> bool {
        let supervises = |keeper: &OwnerProcess| ending != Some(keeper.pid) && keeper.lives();
        self.head.world == *world && !self.head.keepers.iter().any(supervises)
    }

    /// The directories the launch has made.
    pub fn directories(&self) -> impl Iterator<Item = &PathBuf> {
        self.things.iter().filter_map(|thing| match thing {
            CleanupEntry::Directory(path) => Some(path),
            CleanupEntry::File(..) | CleanupEntry::Group(_) => None,
        })
    }

    /// The control groups the launch has made.
    pub fn groups(&self) -> impl Iterator<Item = &PathBuf> {
        self.things.iter().filter_map(|thing| match thing {
            CleanupEntry::Group(path) => Some(path),
            CleanupEntry::File(..) | CleanupEntry::Directory(_) => None,
        })
    }

    /// Where its MPI libraries may have made directories.
    pub fn tmpdir(&self) -> PathBuf {
        self.head.tmpdir.clone().into()
    }

    /// Removes the files the launch has put somewhere, and the record.
    pub fn remove(self) {
        for thing in &self.things {
            if let CleanupEntry::File(identity, path) = thing {
                identity.remove(path);
            }
        }
        let _ = fs::remove_file(&self.path);
    }
}

/// Takes the next entry.
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

/// Does the same, for what the process with the number `ending` supervises too.
fn collect_without(ending: Option<i32>) {
    let mut found = CleanupRecord::read_all();
    if found.is_empty() {
        return;
    }
    let Ok(world) = PidScope::read_own() else {
        return;
    };
    // A rank that was left behind may start a launch: that is not to end itself.
    let within = std::env::var_os(JOB);
    found.retain(|remains| {
        remains.is_abandoned(&world, ending)
            && within
                .as_ref()
                .is_none_or(|job| job != remains.head.job.as_str())
    });
    for remains in found {
        let directories: Vec<PathBuf> = remains.directories().cloned().collect();
        let groups: Vec<PathBuf> = remains.groups().cloned().collect();
        let work = OrphanedJobCleanup {
            job: &remains.head.job,
            is_ours: &|_, _| false,
            directories: &directories,
            groups: &groups,
            ranks: &[],
            tmpdirs: &[remains.tmpdir()],
            uid: rustix::process::geteuid().as_raw(),
            started_at: UNIX_EPOCH + Duration::from_secs(remains.head.started_at),
            // They had theirs since.
            grace: Duration::ZERO,
            look_at_least: Duration::ZERO,
            give_up: Duration::from_secs(1),
        };
        work.carry_out();
        remains.remove();
    }
}

/// For an agent's helper: does the same for each user, with that user's rights, if they are root's. The agent may have the
/// number `ending`. In a process of a single thread.
pub fn collect_of_all_users(ending: Option<i32>) {
    if !rustix::process::geteuid().is_root() {
        return collect_without(ending);
    }
    for (uid, gid) in owners() {
        match uid {
            0 => collect_without(ending),
            _ => {
                // What cannot be had now is left to the user's next launch.
                let _ = as_user(uid, gid, || {
                    collect_without(ending);
                    0
                });
            }
        }
    }
}

/// A number for a record.
///
/// # Errors
/// When the system has no random numbers.
pub(crate) fn number() -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
