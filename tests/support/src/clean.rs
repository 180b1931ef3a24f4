//! The surroundings of a run, and the proof that it left them empty.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::{fs, io};

use crate::{not_checked, procfs};

/// Hosts other than this machine.
pub trait Elsewhere: std::fmt::Debug + Send + Sync {
    /// Starts a command on the host of that number, in a directory.
    ///
    /// # Errors
    /// When the host cannot start it.
    fn start(&self, host: usize, command: &mut Command, dir: &Path) -> io::Result<Child>;

    /// Describes leftovers on the hosts.
    fn left(&self) -> Vec<String>;

    /// True for a process that cannot end for now.
    fn excuses(&self, pid: i32) -> bool;
}

/// Directories of its own: `TMPDIR`, one to work in, and one that lies over `/dev/shm`.
#[derive(Debug)]
pub struct Sandbox {
    id: String,
    dir: tempfile::TempDir,
    work: PathBuf,
    /// Seen as `/dev/shm` by the run, when mounting is permitted.
    shm: Option<PathBuf>,
    /// Hosts of the runs, unless these are on this machine.
    elsewhere: Option<Arc<dyn Elsewhere>>,
    runs: AtomicU32,
    /// Runs that have not been checked yet.
    running: AtomicU32,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("wireup-test-").tempdir();
        Self::make(dir.unwrap(), None)
    }

    /// For runs on other hosts, which see this directory and have the rest of their own.
    pub fn of_hosts(dir: tempfile::TempDir, hosts: Arc<dyn Elsewhere>) -> Self {
        Self::make(dir, Some(hosts))
    }

    fn make(dir: tempfile::TempDir, elsewhere: Option<Arc<dyn Elsewhere>>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", std::process::id());
        for path in [dir.path().join("tmp"), dir.path().join("work")] {
            fs::create_dir(&path).unwrap();
            everybodys(&path);
        }
        // Runs of ordinary users must get through.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let shm = (elsewhere.is_none() && may_mount())
            .then(|| PathBuf::from(format!("/dev/shm/wireup-test-{id}")));
        if let Some(shm) = &shm {
            // Tests that were killed leave theirs, and process ids come again.
            let _ = fs::remove_dir_all(shm);
            fs::create_dir(shm).unwrap();
            everybodys(shm);
        }
        Self {
            id,
            work: dir.path().join("work"),
            dir,
            shm,
            elsewhere,
            runs: AtomicU32::new(0),
            running: AtomicU32::new(0),
        }
    }

    pub fn tmp(&self) -> PathBuf {
        self.dir.path().join("tmp")
    }

    /// The name by which its runs meet, and no others.
    pub fn meeting(&self) -> String {
        format!("test-{}", self.id)
    }

    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Starts a command in these surroundings.
    ///
    /// # Errors
    /// When the system cannot start it.
    pub(crate) fn spawn(&self, host: usize, command: &mut Command) -> io::Result<Child> {
        match &self.elsewhere {
            None => {
                command.current_dir(&self.work).env("TMPDIR", self.tmp());
                command.env("WIREUP_MEET", self.meeting());
                command.spawn()
            }
            Some(hosts) => hosts.start(host, command.env_remove("TMPDIR"), &self.work),
        }
    }

    /// The value of the mark for one more run here.
    pub fn new_run_id(&self) -> String {
        self.running.fetch_add(1, Ordering::Relaxed);
        format!("{}.{}", self.id, self.runs.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the words in front of a command by which it finds the directory at `/dev/shm`.
    pub fn mount_prefix(&self) -> Vec<OsString> {
        let Some(shm) = &self.shm else {
            return Vec::new();
        };
        let script = r#"mount --bind "$0" /dev/shm && exec "$@""#;
        let words = ["unshare", "--mount", "--propagation", "private", "--"];
        words
            .into_iter()
            .chain(["sh", "-c", script])
            .map(OsString::from)
            .chain([shm.into()])
            .collect()
    }

    /// Describes the leftovers of run `id`, which has ended; empty if there are none.
    pub fn left_by(&self, id: &str) -> Vec<String> {
        let excused = |pid| self.elsewhere.iter().any(|hosts| hosts.excuses(pid));
        let mut left: Vec<String> = procfs::marked(id)
            .iter()
            .filter(|process| !excused(process.pid))
            .map(|process| format!("process {process}"))
            .collect();
        // What lies about may belong to another run that is still going on here.
        if self.running.load(Ordering::Relaxed) > 1 {
            return left;
        }
        let directories = [Some(self.tmp()), self.shm.clone()];
        for dir in directories.into_iter().flatten() {
            let entries = fs::read_dir(&dir).unwrap().flatten();
            left.extend(entries.map(|entry| format!("file {}", entry.path().display())));
        }
        let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        let tmp = self.tmp().display().to_string();
        let meeting = format!("-{}", self.meeting());
        let ours = sockets
            .lines()
            .filter(|line| line.contains(&tmp) || line.ends_with(&meeting));
        left.extend(ours.map(|line| format!("socket {line}")));
        left.extend(self.elsewhere.iter().flat_map(|hosts| hosts.left()));
        left
    }

    /// A run is over and checked.
    pub fn run_checked(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(shm) = &self.shm {
            let _ = fs::remove_dir_all(shm);
        }
    }
}

fn everybodys(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o1777)).unwrap();
}

/// Whether a run can have a `/dev/shm` of its own; noted when it cannot.
fn may_mount() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let may = Path::new("/dev/shm").is_dir()
            && Command::new("unshare")
                .args(["--mount", "--propagation", "private", "--"])
                .args(["mount", "--bind", "/dev/shm", "/dev/shm"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success());
        if !may {
            not_checked("that /dev/shm stays empty: needs the right to mount");
        }
        may
    })
}
