//! Records of credentials that are not revoked yet: a file for each, in a directory of the user that a restart of the
//! machine does not empty.
//!
//! Rule: the process that works on one has its lock; a record that can be locked has been left behind.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use wireup_core::fabric::grant_record::{GrantRecord, RecordError};
use wireup_core::failure::AnyError;

/// Names another directory for them.
pub const VARIABLE: &str = "WIREUP_FABRIC_RECORDS";

/// Directory of the records of a process of root's.
const OF_ROOT: &str = "/var/lib/wireup/fabric";

/// Most bytes of one: a command of the site may have as many as the system takes for an argument.
const MOST: u64 = 1024 * 1024;

/// Attempts to lock a new record, and the pause between them.
const LOCK_ATTEMPTS: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// One that this process works on.
#[derive(Debug)]
pub(super) struct LockedGrantRecord {
    /// Nothing if it is on no disk: another process has the record.
    file: Option<(File, PathBuf)>,
}

/// Returns the directory of the records, if this user can have one.
fn directory() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    if rustix::process::geteuid().is_root() {
        return Some(OF_ROOT.into());
    }
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = of("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(Path::new(&of("HOME")?).join(".local/state")));
    Some(state?.join("wireup/fabric"))
}

impl LockedGrantRecord {
    /// Makes a new record for a launch of this name.
    ///
    /// # Errors
    /// The system's error: a credential without a record is none.
    pub(super) fn new(name: &str) -> io::Result<Self> {
        let directory = directory().ok_or_else(|| io::Error::other("HOME is not set"))?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)?;
        let path = directory.join(format!("{name}.json"));
        let mut attempts = 0..LOCK_ATTEMPTS;
        loop {
            let file = open(&path, true)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // A process that looks for records removes an empty record.
                Err(Errno::WOULDBLOCK) if attempts.next().is_some() => {
                    thread::park_timeout(LOCK_PAUSE);
                    continue;
                }
                locked => locked?,
            }
            // Another process may have taken the empty file for one that was left behind.
            if is_at(&file, &path) {
                let file = Some((file, path));
                return Ok(Self { file });
            }
        }
    }

    /// Creates a record without a file on disk.
    pub(super) fn without_file() -> Self {
        Self { file: None }
    }

    pub(super) fn write(&mut self, record: &GrantRecord) -> io::Result<()> {
        let Some((file, _)) = &mut self.file else {
            return Ok(());
        };
        let text = serde_json::to_vec(record)?;
        file.rewind()?;
        file.write_all(&text)?;
        file.set_len(text.len() as u64)?;
        file.sync_data()
    }

    /// Reads the record of another process; `None` if that process was killed before its request for a grant, or if the
    /// record cannot be read, which is reported.
    pub(super) fn read(&mut self) -> Option<GrantRecord> {
        let (file, path) = self.file.as_mut()?;
        let mut text = Vec::new();
        let read = file
            .rewind()
            .and_then(|()| file.take(MOST).read_to_end(&mut text));
        let record = match read {
            Ok(0) => {
                self.remove();
                return None;
            }
            Ok(_) => GrantRecord::read(&text).map_err(RecordError::into),
            Err(error) => Err(AnyError::from(error)),
        };
        let unread = |error: &AnyError| {
            eprintln!(
                "wireup: cannot read the record of a fabric grant, which may remain: {}: {error}; revoke the grant at \
                 the fabric manager, then remove the file",
                path.display()
            );
        };
        record.inspect_err(unread).ok()
    }

    /// Removes the record, since no work is left.
    pub(super) fn remove(&mut self) {
        if let Some((_, path)) = self.file.take() {
            let _ = fs::remove_file(path);
        }
    }
}

fn open(path: &Path, new: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(new).mode(0o600);
    let flags = rustix::fs::OFlags::NOFOLLOW.bits() | rustix::fs::OFlags::CLOEXEC.bits();
    options.custom_flags(flags.cast_signed()).open(path)
}

/// Locks and returns the records on which no process works.
pub(super) fn lock_leftovers() -> Vec<LockedGrantRecord> {
    let entries = directory().and_then(|directory| fs::read_dir(directory).ok());
    let entries = entries.into_iter().flatten().flatten();
    entries.filter_map(|entry| take(&entry.path())).collect()
}

fn take(path: &Path) -> Option<LockedGrantRecord> {
    let own = rustix::process::geteuid().as_raw();
    if path.extension()? != "json" {
        return None;
    }
    let file = open(path, false).ok()?;
    if file.metadata().ok()?.uid() != own {
        return None;
    }
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    // It may have been removed by the process that had the lock.
    if !is_at(&file, path) {
        return None;
    }
    if file.metadata().ok()?.len() == 0 {
        let _ = fs::remove_file(path);
        return None;
    }
    Some(LockedGrantRecord {
        file: Some((file, path.to_owned())),
    })
}

fn is_at(file: &File, path: &Path) -> bool {
    let found = fs::symlink_metadata(path).ok().zip(file.metadata().ok());
    found.is_some_and(|(there, here)| there.ino() == here.ino() && there.dev() == here.dev())
}
