//! Finds and ends what a job leaves behind: processes it started, and shared-memory files of MPI
//! libraries that were killed before they could unlink.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use rustix::time::{ClockId, clock_gettime};

use crate::pidfd::ProcessHandle;
use crate::poll::pause;
use crate::procfs::{self, Process, ProcessEnvironment, processes};
use wireup_core::name_server;

/// The variable in the environment of every process of a job that names the job.
pub const JOB: &str = "WIREUP_JOB_ID";

/// Whether this process has children, living or not, that raise SIGCHLD.
pub fn has_children() -> bool {
    let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::All, peek), Err(Errno::CHILD))
}

/// This process's children. A launcher that was executed by a shell in place of itself has those
/// the shell had started.
pub fn children() -> BTreeSet<i32> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let all = if has_children() {
        processes()
    } else {
        Vec::new()
    };
    let ours = all.into_iter().filter(|process| process.parent == own);
    ours.map(|process| process.pid).collect()
}

/// Whether one of this process's children is a rendezvous.
pub fn has_rendezvous() -> bool {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut all = processes().into_iter();
    all.any(|process| process.parent == own && is_rendezvous(&process))
}

/// Returns living processes that descend from `parent`, without those in `known` and below them. For a parent that
/// adopts orphans these are all processes of its jobs.
pub fn find_descendants(parent: i32, known: &BTreeSet<i32>) -> Vec<Process> {
    let mut all = processes();
    all.retain(|process| !known.contains(&process.pid));
    let mut found = with_descendants(all, BTreeSet::from([parent]));
    found.retain(|process| process.pid != parent && !is_rendezvous(process));
    found
}

/// Whether a process is the rendezvous of a user's launches. The one that a launch inside a job has
/// started becomes a child of that job's launcher, but is none of its processes.
pub fn is_rendezvous(process: &Process) -> bool {
    let words = || procfs::command_line(process.pid);
    match process.name.as_bytes() {
        name if name == name_server::PROCESS_NAME.to_bytes() => {
            let words = words();
            words.len() == 2 && words[1] == name_server::COMMAND
        }
        // It withdraws names when its launch has ended.
        name if name == name_server::PROCESS_OF_STORE.to_bytes() => words()
            .get(1)
            .is_some_and(|word| word == name_server::STORE_COMMAND),
        _ => false,
    }
}

/// Returns running processes of a job whose launcher is gone, so that orphans have another parent: those with the job's
/// name in their environment, members of sessions for which `is_ours` holds, and all descendants of these.
pub fn find_job_processes(job: &str, is_ours: impl Fn(i32) -> bool) -> Vec<Process> {
    let all = processes();
    let ours = all
        .iter()
        .filter(|process| is_ours(process.session) || has(process, JOB, job.as_bytes()))
        .map(|process| process.pid)
        .collect();
    let mut found = with_descendants(all, ours);
    found.retain(|process| !is_rendezvous(process));
    found
}

/// Whether a process has a variable with this value.
fn has(process: &Process, name: &str, value: &[u8]) -> bool {
    ProcessEnvironment::from_pid(process.pid).is_some_and(|env| env.get(name) == Some(value))
}

/// Kills all processes that have a variable with this value, and those that they start meanwhile, for at most so long.
pub fn end_all_with(name: &str, value: &[u8], most: Duration) {
    let until = Instant::now() + most;
    loop {
        let mut found = processes();
        found.retain(|process| !process.has_ended() && has(process, name, value));
        if found.is_empty() || Instant::now() >= until {
            return;
        }
        signal(&found, Signal::KILL);
        // A timed wait on nothing: they may be no children of this process.
        pause(Duration::from_millis(10));
    }
}

/// Returns the processes of `all` that run and are in `found` or descend from one that is.
fn with_descendants(all: Vec<Process>, mut found: BTreeSet<i32>) -> Vec<Process> {
    loop {
        let grown: Vec<i32> = all
            .iter()
            .filter(|p| found.contains(&p.parent) && !found.contains(&p.pid))
            .map(|p| p.pid)
            .collect();
        if grown.is_empty() {
            break;
        }
        found.extend(grown);
    }
    all.into_iter()
        .filter(|p| found.contains(&p.pid) && !p.has_ended())
        .collect()
}

/// Sends a signal to each of `processes`; those already gone do not matter.
pub fn signal(processes: &[Process], signal: Signal) {
    for process in processes {
        match ProcessHandle::open(process) {
            Ok(Some(held)) => drop(held.signal(signal)),
            Ok(None) => {}
            // Out of descriptors: it was seen a moment ago.
            Err(_) => {
                let pid = Pid::from_raw(process.pid);
                let _ = pid.map(|pid| kill_process(pid, signal));
            }
        }
    }
}

/// Returns the time that a file made now has, in the clock of file systems. That clock may be some ticks of the kernel
/// behind [`SystemTime::now`], and more where a virtual machine does not run: a file made right after would seem older.
pub fn file_time() -> SystemTime {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    SystemTime::UNIX_EPOCH + Duration::try_from(now).unwrap_or_default()
}

/// Directory in which MPI libraries keep shared memory.
const SHM: &str = "/dev/shm";

/// Beginnings of the names MPI libraries and their transports give to shared-memory files.
/// Measured with MPICH 4.0 and 5.0 (`mpich_`), Intel MPI (`Intel_MPI_`), Open MPI 4.1 (`vader_`)
/// and 5.0 (`sm_segment`), UCX and libfabric; the windows' and collectives' (`osc_`, `xhc_`), which
/// are there for a moment only, from Open MPI's sources.
const SHM_NAMES: [&str; 12] = [
    "mpich_",
    "Intel_MPI_",
    "vader_segment.",
    "sm_segment.",
    "ucx_shm_",
    "fi_shm_",
    "ofi_",
    "psm2_shm",
    "osc_rdma.",
    "osc_sm.",
    "xhc_shmem_seg.",
    "open_mpi.",
];

/// Removes shared-memory files left by processes that were killed: [`unused_shared_memory`] made since `since`.
/// Returns what was removed.
pub fn remove_shared_memory(uid: u32, since: SystemTime) -> Vec<PathBuf> {
    let unused = unused_shared_memory(uid, since).into_iter();
    unused
        .filter(|path| fs::remove_file(path).is_ok())
        .collect()
}

/// Returns shared-memory files that an MPI library named, owned by `uid`, made since `since`, and not open or mapped in
/// any process that can be seen.
pub fn unused_shared_memory(uid: u32, since: SystemTime) -> Vec<PathBuf> {
    let candidates: BTreeSet<PathBuf> = fs::read_dir(SHM)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let named = |start: &&str| name.as_encoded_bytes().starts_with(start.as_bytes());
            SHM_NAMES.iter().any(named)
        })
        .filter(|entry| {
            entry.metadata().is_ok_and(|meta| {
                meta.is_file()
                    && meta.uid() == uid
                    && meta.modified().is_ok_and(|modified| modified >= since)
            })
        })
        .map(|entry| entry.path())
        .collect();
    if candidates.is_empty() {
        return Vec::new();
    }
    let used = in_use(&candidates);
    let unused = candidates.into_iter();
    unused.filter(|path| !used.contains(path)).collect()
}

/// Returns those of `paths` that some process has mapped or opened.
fn in_use(paths: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let mut used = BTreeSet::new();
    for process in processes() {
        let base = Path::new("/proc").join(process.pid.to_string());
        if let Ok(maps) = fs::read_to_string(base.join("maps")) {
            let mapped = maps
                .lines()
                .filter_map(|line| line.find(SHM).map(|at| &line[at..]));
            used.extend(mapped.filter_map(|path| paths.get(Path::new(path)).cloned()));
        }
        let open = fs::read_dir(base.join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        used.extend(
            open.filter_map(|entry| paths.get(&fs::read_link(entry.path()).ok()?).cloned()),
        );
    }
    used
}

/// Removes the session directories that Open MPI leaves in `tmp` when it is killed.
///
/// In directories `ompi.HOST.UID`:
/// - `jf.0/JOB/RANK` of Open MPI 5, when it could not ask for the session directory it was given,
///   because its PMIx server has died. Those of other jobs cannot be distinguished from this one's,
///   so only directories go that are empty, owned by `uid` and made since `since`.
/// - `pid.N` of the daemon that Open MPI 4 starts for a process that runs alone, if `N` is one of
///   the job's processes, `ended`.
///
/// In `tmp` itself: `prted.N` of PRRTE, whose daemons end without removing it when they lose the one that started them.
pub fn remove_session_directories(tmp: &Path, uid: u32, since: SystemTime, ended: &BTreeSet<i32>) {
    let end = format!(".{uid}");
    let entries = fs::read_dir(tmp).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        if has_pid_suffix(&name, DAEMON, ended) {
            remove_of_daemon(&entry, uid, since);
            continue;
        }
        let name = name.as_encoded_bytes();
        if !name.starts_with(b"ompi.") || !name.ends_with(end.as_bytes()) {
            continue;
        }
        let dir = entry.path();
        let inside = fs::read_dir(&dir).into_iter().flatten().flatten();
        for daemon in inside.filter(|entry| has_pid_suffix(&entry.file_name(), "pid.", ended)) {
            remove_of_daemon(&daemon, uid, since);
        }
        remove_empty(&dir, 3, uid, since);
    }
}

/// Beginning of the names of directories of PRRTE's daemons.
const DAEMON: &str = "prted.";

/// Removes a directory that a daemon of this user has made since that time.
fn remove_of_daemon(entry: &fs::DirEntry, uid: u32, since: SystemTime) {
    let is_ours = entry
        .metadata()
        .is_ok_and(|meta| meta.is_dir() && meta.uid() == uid && is_created_since(&meta, since));
    if is_ours {
        // What cannot be removed stays.
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// Whether a name is that prefix with the number of one of these processes.
fn has_pid_suffix(name: &OsStr, prefix: &str, pids: &BTreeSet<i32>) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix(prefix));
    let number = number.and_then(|number| number.parse().ok());
    number.is_some_and(|pid: i32| pids.contains(&pid))
}

/// Whether a file was created since that time. The time of change is not used, since the removal of an entry updates it.
fn is_created_since(meta: &fs::Metadata, since: SystemTime) -> bool {
    let created = meta.created().or_else(|_| meta.modified());
    created.is_ok_and(|created| created >= since)
}

/// Removes a directory and those below it, up to `depth` levels, as far as they are empty.
fn remove_empty(dir: &Path, depth: u32, uid: u32, since: SystemTime) {
    let Ok(meta) = fs::symlink_metadata(dir) else {
        return;
    };
    if !meta.is_dir() || meta.uid() != uid {
        return;
    }
    if depth > 0 {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.for_each(|entry| remove_empty(&entry.path(), depth - 1, uid, since));
    }
    if is_created_since(&meta, since) {
        // Fails unless it is empty.
        let _ = fs::remove_dir(dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_at_least_as_new_as_earlier_time() {
        for _ in 0..1_000 {
            let before = file_time();
            let file = tempfile::tempfile().unwrap();
            assert!(file.metadata().unwrap().modified().unwrap() >= before);
        }
    }

    #[test]
    fn processes_are_found_by_descent_and_job_variable() {
        let job = format!("test-{}", std::process::id());
        let mut child = std::process::Command::new("sh")
            .args(["-c", "env -i cat; true"])
            .env(JOB, &job)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        // The shell bears the mark, and its child, which has no environment, descends from it.
        let names = |mut found: Vec<Process>| {
            found.sort_by_key(|process| process.pid != pid);
            found
                .into_iter()
                .map(|process| process.name)
                .collect::<Vec<_>>()
        };
        while names(find_job_processes(&job, |_| false)) != ["sh", "cat"] {
            assert!(child.try_wait().unwrap().is_none(), "it ended early");
        }
        let own = std::process::id() as i32;
        let below_us = find_descendants(own, &BTreeSet::new());
        assert!(below_us.iter().any(|process| process.pid == pid));
        assert!(below_us.iter().all(|process| process.pid != own));
        assert!(
            find_descendants(own, &BTreeSet::from([pid]))
                .iter()
                .all(|p| p.parent != pid)
        );
        assert_eq!(names(find_descendants(pid, &BTreeSet::new())), ["cat"]);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn only_empty_or_own_session_directories_are_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let since = SystemTime::now() - Duration::from_secs(5);
        let uid = rustix::process::getuid().as_raw();
        let path = |rest: &str| tmp.path().join(rest.replace("UID", &uid.to_string()));
        for dir in [
            "ompi.a.UID/jf.0/1/0",
            "ompi.a.UID/jf.0/1/1",
            "ompi.b.UID/jf.0/2/0",
            "ompi.a.UID/pid.77/0",
            "ompi.c.1UID/jf.0/3",
            "ompi.c.1UID/pid.77",
            "ompi.d.UID/pid.7",
            "prted.77/0/1",
            "prted.7/0",
            "other.a.UID",
        ] {
            fs::create_dir_all(path(dir)).unwrap();
        }
        fs::write(path("ompi.b.UID/jf.0/2/0/file"), b"x").unwrap();
        fs::write(path("ompi.a.UID/pid.77/contact.txt"), b"x").unwrap();
        fs::write(path("ompi.d.UID/pid.7/contact.txt"), b"x").unwrap();
        let ours = BTreeSet::from([77]);
        let later = SystemTime::now() + Duration::from_secs(60);
        remove_session_directories(tmp.path(), uid, later, &ours);
        assert!(path("ompi.a.UID/jf.0/1/0").exists(), "made before");
        assert!(path("ompi.a.UID/pid.77/0").exists(), "made before");
        assert!(path("prted.77/0/1").exists(), "made before");
        remove_session_directories(tmp.path(), uid, since, &ours);
        assert!(!path("ompi.a.UID").exists());
        assert!(path("ompi.b.UID/jf.0/2/0/file").exists());
        assert!(path("ompi.c.1UID/jf.0/3").exists());
        assert!(path("ompi.c.1UID/pid.77").exists());
        assert!(path("ompi.d.UID/pid.7/contact.txt").exists());
        assert!(!path("prted.77").exists());
        assert!(path("prted.7/0").exists());
        assert!(path("other.a.UID").exists());
    }

    #[test]
    fn only_unused_files_of_mpi_libraries_are_removed() {
        let since = SystemTime::now() - Duration::from_secs(5);
        let uid = rustix::process::getuid().as_raw();
        let name = |kind: &str| PathBuf::from(format!("{SHM}/{kind}{}", std::process::id()));
        let (left, open, other) = (name("mpich_shm_t"), name("mpich_shm_u"), name("unrelated-"));
        for path in [&left, &open, &other] {
            fs::write(path, b"x").unwrap();
        }
        let held = fs::File::open(&open).unwrap();
        let removed = remove_shared_memory(uid, since);
        let result = (removed.contains(&left), open.exists(), other.exists());
        drop(held);
        let _ = (fs::remove_file(&open), fs::remove_file(&other));
        assert_eq!(result, (true, true, true));
    }
}
