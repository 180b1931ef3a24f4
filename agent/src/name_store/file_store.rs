//! Names as files in a directory that hosts share: one file for each, `DIR/.mpinamepub/NAME`, as in MPICH's file name
//! server (`MPIR_CVAR_NAMEPUB_DIR=DIR`; Source: src/nameserv/file of MPICH).
//!
//! ```text
//! DIR/.mpinamepub/          (DIR/UID/.mpinamepub/ where DIR belongs to another user)
//!   the service             port, pid, and `wireup ` with the record
//!   .wireup/lock            held while a file is replaced or removed
//!   .wireup/SESSION         locked by the process that keeps the names of a launch; touched while it lives
//! ```
//! Rule: a file appears whole, by link(2), which fails if the name is taken.
//! Rule: only files of the own user count, in a directory that no other user may write: a process that can replace a
//! port could make ranks connect to another address.
//! Rule: a session whose file is not locked has ended if this kernel had locked it; that of another host has ended when
//! it is not touched any more, since file systems need not share locks between hosts. All times are the file system's.

mod own;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::OFlags;
use wireup_core::job::ids::{Nspace, Rank};
use wireup_core::job::proc::Proc;
use wireup_sys::procfs::boot_id;

use own::{content, lock, own_directory, time_of, touch, untrusted};

use super::stored_name::StoredName;
use super::{NameStore, SESSION, SessionStatus, StoreError, VersionedName};

/// Directory in which MPICH has its files.
const DIRECTORY: &str = ".mpinamepub";
const OWN: &str = ".wireup";
const LOCK: &str = "lock";
/// Touched to learn the file system's time.
const CLOCK: &str = "clock";

/// Before the record, in the third line.
const MARK: &str = "wireup ";

/// Timeout of the file system.
const LIMIT: Duration = Duration::from_secs(20);

/// Time between two checks of a waiting lookup.
const PAUSE: Duration = Duration::from_millis(50);

/// The publisher of names that another program has written.
const FOREIGN: &str = "mpich";

#[derive(Debug)]
pub(super) struct FileStore(Arc<FileStoreState>);

#[derive(Debug)]
struct FileStoreState {
    base: PathBuf,
    session: String,
    /// The session's file, locked.
    alive: Mutex<Option<File>>,
}

impl FileStore {
    pub(super) fn new(base: PathBuf, session: String) -> Self {
        Self(Arc::new(FileStoreState {
            base,
            session,
            alive: Mutex::default(),
        }))
    }

    /// Runs an operation on files, which may block for as long as the file system's server is away.
    async fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&FileStoreState) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let files = self.0.clone();
        let done = tokio::task::spawn_blocking(move || operation(&files));
        match tokio::time::timeout(LIMIT, done).await {
            Ok(done) => done.expect("no panic in there"),
            Err(_) => Err(StoreError::Slow {
                path: self.0.base.clone(),
                limit: LIMIT,
            }),
        }
    }
}

impl NameStore for FileStore {
    async fn create(&self, id: &str, record: &StoredName) -> Result<bool, StoreError> {
        let (id, record) = (id.to_owned(), record.clone());
        self.run(move |files| files.create(&id, &record)).await
    }

    async fn read(&self, id: &str) -> Result<Option<VersionedName>, StoreError> {
        let id = id.to_owned();
        self.run(move |files| files.read(&id)).await
    }

    async fn change(
        &self,
        id: &str,
        from: &VersionedName,
        to: Option<&StoredName>,
    ) -> Result<bool, StoreError> {
        let (id, version, to) = (id.to_owned(), from.version.clone(), to.cloned());
        self.run(move |files| files.change(&id, &version, to.as_ref()))
            .await
    }

    async fn list(&self) -> Result<Vec<(String, VersionedName)>, StoreError> {
        self.run(FileStoreState::list).await
    }

    async fn changed(&self) {
        tokio::time::sleep(PAUSE).await;
    }

    async fn renew(&self) -> Result<SessionStatus, StoreError> {
        self.run(FileStoreState::renew).await
    }

    fn session(&self) -> Duration {
        SESSION
    }

    async fn end(&self) -> Result<(), StoreError> {
        self.run(FileStoreState::end).await
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> StoreError + '_ {
    |error| StoreError::Io {
        path: path.to_owned(),
        error,
    }
}

impl FileStoreState {
    /// Returns the directory of names; it and its parents are made if they do not exist.
    fn directory(&self) -> Result<PathBuf, StoreError> {
        let user = rustix::process::geteuid().as_raw();
        let base = fs::metadata(&self.base).map_err(failed(&self.base))?;
        if !base.is_dir() {
            return Err(untrusted(&self.base, "is not a directory"));
        }
        let mut above = self.base.clone();
        if base.uid() != user {
            above.push(user.to_string());
            own_directory(&above, user)?;
        }
        let names = above.join(DIRECTORY);
        own_directory(&names, user)?;
        own_directory(&names.join(OWN), user)?;
        Ok(names)
    }

    fn create(&self, id: &str, record: &StoredName) -> Result<bool, StoreError> {
        let names = self.directory()?;
        if record.bound {
            self.begin(&names)?;
        }
        let written = self.write(&names, record)?;
        let path = names.join(id);
        let linked = fs::hard_link(&written, &path);
        // What is left of it does no harm.
        let _ = fs::remove_file(&written);
        match linked {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(failed(&path)(error)),
        }
    }

    /// Writes a new file with a record, under a name of its own.
    fn write(&self, names: &Path, record: &StoredName) -> Result<PathBuf, StoreError> {
        let name = format!("new-{}-{}", self.session, record.number);
        let path = names.join(OWN).join(name);
        let mut options = OpenOptions::new();
        let flags = OFlags::NOFOLLOW.bits() as i32;
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options
            .custom_flags(flags)
            .open(&path)
            .and_then(|mut file| {
                file.write_all(&text(record))?;
                // A name that outlives its launch also outlives its host.
                if record.bound {
                    Ok(())
                } else {
                    file.sync_all()
                }
            });
        written.map_err(failed(&path))?;
        Ok(path)
    }

    fn read(&self, id: &str) -> Result<Option<VersionedName>, StoreError> {
        let names = self.directory()?;
        let Some(version) = content(&names.join(id))? else {
            return Ok(None);
        };
        let Some(record) = record(id, &version) else {
            return Ok(None);
        };
        let dead = record.bound && self.is_over(&names, &record.session)?;
        Ok(Some(VersionedName {
            record,
            version,
            dead,
        }))
    }

    fn change(
        &self,
        id: &str,
        version: &[u8],
        to: Option<&StoredName>,
    ) -> Result<bool, StoreError> {
        let names = self.directory()?;
        let path = names.join(id);
        let _lock = lock(&names.join(OWN).join(LOCK))?;
        if content(&path)?.as_deref() != Some(version) {
            return Ok(false);
        }
        let done = match to {
            Some(record) => fs::rename(self.write(&names, record)?, &path),
            None => fs::remove_file(&path),
        };
        match done {
            // Its publisher is MPICH, which knows nothing of the lock.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            done => done.map(|()| true).map_err(failed(&path)),
        }
    }

    fn list(&self) -> Result<Vec<(String, VersionedName)>, StoreError> {
        let names = self.directory()?;
        self.sweep(&names)?;
        let mut all = Vec::new();
        for entry in fs::read_dir(&names).map_err(failed(&names))? {
            let entry = entry.map_err(failed(&names))?;
            let Ok(id) = entry.file_name().into_string() else {
                continue;
            };
            if !id.starts_with('.')
                && let Some(name) = self.read(&id)?
            {
                all.push((id, name));
            }
        }
        Ok(all)
    }

    /// Begins the session, if it has not begun.
    fn begin(&self, names: &Path) -> Result<(), StoreError> {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        let path = names.join(OWN).join(&self.session);
        if alive.is_some() && path.exists() {
            return Ok(());
        }
        // Locked before it has its name: no other process finds it without a lock.
        let new = path.with_extension("new");
        let session_file = (|| {
            let mut file = File::create(&new)?;
            file.try_lock()?;
            file.write_all(boot_id()?.as_bytes())?;
            fs::rename(&new, &path)?;
            Ok(file)
        })();
        *alive = Some(session_file.map_err(failed(&path))?);
        Ok(())
    }

    fn renew(&self) -> Result<SessionStatus, StoreError> {
        let names = self.directory()?;
        let path = names.join(OWN).join(&self.session);
        {
            let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(file) = &*alive
                && path.exists()
            {
                touch(file).map_err(failed(&path))?;
                return Ok(SessionStatus::Lives);
            }
        }
        self.begin(&names)?;
        Ok(SessionStatus::Anew)
    }

    fn end(&self) -> Result<(), StoreError> {
        let alive = self
            .alive
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(file) = alive else {
            return Ok(());
        };
        let path = self.directory()?.join(OWN).join(&self.session);
        fs::remove_file(&path).map_err(failed(&path))?;
        drop(file);
        Ok(())
    }

    /// Whether the session of a process has ended.
    fn is_over(&self, names: &Path, session: &str) -> Result<bool, StoreError> {
        if session == self.session {
            return Ok(false);
        }
        let path = names.join(OWN).join(session);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(failed(&path)(error)),
        };
        let free = file.try_lock_shared().is_ok();
        let kernel = io::read_to_string(&file).map_err(failed(&path))?;
        if kernel == boot_id().map_err(failed(&path))? {
            return Ok(free);
        }
        let touched = file.metadata().and_then(|meta| meta.modified());
        let touched = touched.map_err(failed(&path))?;
        let age = time_of(&names.join(OWN).join(CLOCK))?.duration_since(touched);
        Ok(age.unwrap_or_default() > SESSION)
    }

    /// Removes the files of sessions that are over.
    fn sweep(&self, names: &Path) -> Result<(), StoreError> {
        let own = names.join(OWN);
        for entry in fs::read_dir(&own).map_err(failed(&own))? {
            let entry = entry.map_err(failed(&own))?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let is_session = name.bytes().all(|byte| byte.is_ascii_hexdigit());
            if is_session && self.is_over(names, &name)? {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// Returns the text that MPICH reads, followed by the record.
fn text(record: &StoredName) -> Vec<u8> {
    let port = record.port().unwrap_or_default();
    let json = serde_json::to_string(record).expect("a record can be written");
    format!("{port}\n{}\n{MARK}{json}\n", std::process::id()).into_bytes()
}

/// Returns the record of a file; `None` if it is not complete yet.
fn record(id: &str, content: &[u8]) -> Option<StoredName> {
    let text = std::str::from_utf8(content).ok()?;
    let mut lines = text.split_inclusive('\n');
    let port = lines.next()?.strip_suffix('\n')?;
    let _pid = lines.next()?.strip_suffix('\n')?;
    match lines.next().and_then(|line| line.strip_prefix(MARK)) {
        Some(json) => serde_json::from_str(json).ok(),
        None => {
            let nspace = Nspace::new(FOREIGN).ok()?;
            let user = rustix::process::geteuid().as_raw();
            Some(StoredName::foreign(
                id,
                port,
                Proc::new(nspace, Rank(0)),
                user,
            ))
        }
    }
}
