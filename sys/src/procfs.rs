//! Reads `/proc`. All results may be outdated: a process may end at any moment,
//! and its number may be given to another, which has a later [`Process::started`].

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, fcntl_get_seals, open};
use rustix::time::{ClockId, clock_gettime};

/// One line of `/proc/PID/stat`, as far as needed. Source: proc_pid_stat(5).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    pub pid: i32,
    /// Command name, up to 15 bytes.
    pub name: String,
    /// State letter; `Z` has ended and waits to be collected.
    pub state: char,
    pub parent: i32,
    /// Id of the process group.
    pub group: i32,
    pub session: i32,
    /// Processor time used by all its threads, in ticks; that of its children not included.
    pub cpu: u64,
    /// Start time, in ticks since the start of the system. Together with the pid it identifies one process.
    pub started: u64,
    /// Resident memory, in pages; pages shared with others included.
    pub resident: u64,
}

impl Process {
    /// Whether it has ended and only waits to be collected.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// Whether a signal or a debugger has stopped it.
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

/// Parses `/proc/PID/stat`. The command may contain blanks and parentheses, so the fields are
/// counted from the last closing one.
fn parse_stat(text: &str) -> Option<Process> {
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let mut rest = text.get(close + 1..)?.split_ascii_whitespace();
    let state = rest.next()?.chars().next()?;
    let parent = rest.next()?.parse().ok()?;
    let group = rest.next()?.parse().ok()?;
    let session = rest.next()?.parse().ok()?;
    // The next is field 7; utime is field 14, starttime 22, rss 24.
    let mut rest = rest.skip(7);
    let (user, system): (u64, u64) = (rest.next()?.parse().ok()?, rest.next()?.parse().ok()?);
    let mut rest = rest.skip(6);
    let started = rest.next()?.parse().ok()?;
    let resident = rest.nth(1)?.parse().ok()?;
    let pid = text[..open].trim().parse().ok()?;
    Some(Process {
        pid,
        name: text[open + 1..close].to_owned(),
        state,
        parent,
        group,
        session,
        cpu: user + system,
        started,
        resident,
    })
}

/// Returns a process, living or not yet collected.
pub fn process(pid: i32) -> Option<Process> {
    // A command name may be any bytes.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&String::from_utf8_lossy(&stat))
}

/// Returns the id of the machine's present boot: a random name. Source: random(4).
///
/// # Errors
/// If the kernel does not provide it.
pub fn boot_id() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

/// Bytes of memory that a process uses, with shared memory divided among its users; if the kernel
/// does not give that, with all of it. Source: proc_pid_smaps(5), proc_pid_statm(5).
pub fn memory(pid: i32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    let share = rollup.ok().and_then(|text| {
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix("Pss:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        kib.checked_mul(1024)
    });
    share.or_else(|| {
        let pages = process(pid)?.resident;
        pages.checked_mul(rustix::param::page_size() as u64)
    })
}

/// Returns all processes of the machine that can be seen.
pub fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(process)
        .collect()
}

/// Returns the time for which the running threads of a process have waited for a processor; zero where the kernel does not
/// count it. Source: the second number of `/proc/PID/task/TID/schedstat`, in nanoseconds (`CONFIG_SCHED_INFO`).
pub fn runqueue_wait(pid: i32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let wait = |thread: fs::DirEntry| {
        let counts = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        counts.split_whitespace().nth(1)?.parse().ok()
    };
    threads.filter_map(wait).map(Duration::from_nanos).sum()
}

/// Bit of the flags in `/proc/PID/stat` of a process on its way out. Source: `PF_EXITING` in the
/// kernel's `include/linux/sched.h`.
const EXITING: u64 = 0x4;

/// Whether a process has begun to end: its connections may be closed before its end is reported.
pub fn is_exiting(pid: i32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| exiting(&String::from_utf8_lossy(&stat)))
}

/// Whether a process is exiting, by its `stat` file: the state is the first field after the command, the flags are the
/// seventh.
fn exiting(stat: &str) -> bool {
    let Some(close) = stat.rfind(')') else {
        return false;
    };
    let mut fields = stat[close + 1..].split_ascii_whitespace();
    let ended = fields.next() == Some("Z");
    let flags: Option<u64> = fields.nth(5).and_then(|flags| flags.parse().ok());
    ended || flags.is_some_and(|flags| flags & EXITING != 0)
}

/// The variables with which a process was started; later changes are not visible.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessEnvironment(Vec<u8>);

impl ProcessEnvironment {
    /// Reads the environment of a process; `None` without permission.
    pub fn from_pid(pid: i32) -> Option<Self> {
        fs::read(format!("/proc/{pid}/environ")).ok().map(Self)
    }

    /// Returns the value of a variable: of the first one, like getenv.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.split(|byte| *byte == 0).find_map(|entry| {
            let value = entry.strip_prefix(name.as_bytes())?;
            value.strip_prefix(b"=")
        })
    }
}

/// Returns the argument vector of a process; empty for one that has ended, or is the system's own.
pub fn command_line(pid: i32) -> Vec<OsString> {
    let mut bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    if bytes.is_empty() {
        return Vec::new();
    }
    let words = bytes.split(|byte| *byte == 0);
    words
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect()
}

/// Returns the file that a process executes; `None` when we may not know. The system appends ` (deleted)` to the name
/// of a file that is gone.
pub fn executable(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Whether some thread of a process works, or waits for a device or file system; false when that cannot be
/// seen. One that waits for its turn on a loaded machine counts, one that is stopped does not, but for a
/// debugger's.
pub fn is_busy(pid: i32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let mut tasks = tasks.into_iter().flatten().flatten();
    tasks.any(|task| {
        let stat = fs::read(task.path().join("stat")).unwrap_or_default();
        let thread = parse_stat(&String::from_utf8_lossy(&stat));
        thread.is_some_and(|thread| matches!(thread.state, 'R' | 'D' | 't'))
    })
}

/// Returns the user and group of a process. Processes that only root may inspect appear as root's.
pub fn owner(pid: i32) -> Option<(u32, u32)> {
    let meta = fs::metadata(format!("/proc/{pid}")).ok()?;
    Some((meta.uid(), meta.gid()))
}

/// Returns the real user id of a process, also of one that only root may inspect. Source: proc_pid_status(5).
pub fn real_user(pid: i32) -> Option<u32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the names of a process's threads.
pub fn threads(pid: i32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let name = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    name.map(|name| name.trim_end().to_owned()).collect()
}

/// Reads at most `most` bytes of a file in memory that a process has as a descriptor, `/proc/PID/fd/N`. The owner of
/// the process could have made another file look like one: the open does not wait, and only files in memory have seals.
pub fn file_in_memory(descriptor: &Path, most: u64) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open(descriptor, flags, Mode::empty()).ok()?;
    fcntl_get_seals(&file).ok()?;
    let mut text = Vec::new();
    File::from(file).take(most).read_to_end(&mut text).ok()?;
    Some(text)
}

/// Returns the processes of which a process has a pidfd; −1 for each that has ended. Source: `Pid` in pidfd_open(2).
pub fn pidfds(pid: i32) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/fdinfo"));
    let texts = entries.into_iter().flatten().flatten();
    let texts = texts.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    texts
        .filter_map(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
            line.trim().parse().ok()
        })
        .collect()
}

/// Whether a process ignores a signal; false when this is not known.
pub fn ignores(pid: i32, signal: i32) -> bool {
    let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = u32::try_from(signal - 1)
        .ok()
        .and_then(|at| 1u64.checked_shl(at));
    mask.zip(bit).is_some_and(|(mask, bit)| mask & bit != 0)
}

/// Converts a number of ticks to a time.
pub fn ticks(count: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_secs(count / per_second)
        + Duration::from_secs(count % per_second) / u32::try_from(per_second).unwrap_or(u32::MAX)
}

/// Returns the time since the system started, in the clock of [`Process::started`].
pub fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Instant;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    const EXPECTED_WAIT: Duration = Duration::from_millis(200);

    fn own_pid() -> i32 {
        std::process::id() as i32
    }

    #[test]
    fn stat_lines_with_strange_command_names_are_read() {
        let line = "42 (a) b (c)) S 1 43 41 0 -1 4194304 1 2 3 4 50 7 9 9 20 0 1 0 8801 4096 12 0";
        let process = parse_stat(line).unwrap();
        assert_eq!(
            (
                process.pid,
                process.parent,
                process.group,
                process.session,
                process.cpu
            ),
            (42, 1, 43, 41, 57)
        );
        assert_eq!((process.started, process.resident), (8801, 12));
        assert_eq!((process.name.as_str(), process.state), ("a) b (c)", 'S'));
        for cut in 0..line.len() - 3 {
            assert_eq!(parse_stat(&line[..cut]), None, "{cut}");
        }
    }

    /// Two threads that compute on one processor wait for each other's turns.
    #[test]
    fn time_on_runqueue_is_that_of_threads_on_one_processor() {
        let is_over = AtomicBool::new(false);
        let before = runqueue_wait(own_pid());
        let waited = thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut one = CpuSet::new();
                    let all = sched_getaffinity(None).unwrap();
                    one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap());
                    sched_setaffinity(None, &one).unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut waited = Duration::ZERO;
            while waited < EXPECTED_WAIT && Instant::now() < deadline {
                waited = runqueue_wait(own_pid()).saturating_sub(before);
            }
            is_over.store(true, Ordering::Relaxed);
            waited
        });
        assert!(waited >= EXPECTED_WAIT, "{waited:?}");
        assert_eq!(runqueue_wait(-1), Duration::ZERO);
    }

    #[test]
    fn exiting_process_is_distinguished_from_running_one() {
        assert!(exiting("42 (a b) R 1 42 41 0 -1 4194308 0"));
        assert!(exiting("42 (a) Z 1 42 41 0 -1 4194304 0"));
        assert!(!exiting("42 (a) R 1 42 41 0 -1 4194304 0"));
        assert!(!exiting("42 (a"));
        assert!(!is_exiting(own_pid()));
    }

    #[test]
    fn own_process_is_described_correctly() {
        let pid = own_pid();
        let process = processes().into_iter().find(|p| p.pid == pid).unwrap();
        assert_eq!(process.started, super::process(pid).unwrap().started);
        assert!(process.resident > 0 && !process.has_ended());
        let age = now() - ticks(process.started);
        assert!(age < Duration::from_secs(3600), "{age:?}");
        assert_eq!(command_line(pid), std::env::args_os().collect::<Vec<_>>());
        assert_eq!(executable(pid), std::env::current_exe().ok());
        let own = (rustix::process::geteuid(), rustix::process::getegid());
        assert_eq!(owner(pid), Some((own.0.as_raw(), own.1.as_raw())));
        assert!(!threads(pid).is_empty());
        let path = ProcessEnvironment::from_pid(pid).unwrap();
        let expected = std::env::var_os("PATH").map(|path| path.into_encoded_bytes());
        assert_eq!(path.get("PATH"), expected.as_deref());
    }

    #[test]
    fn variable_is_found_by_whole_name_and_first_counts() {
        let env = ProcessEnvironment(b"AB=1\0A=2=3\0A=4\0C\0D=\0".to_vec());
        assert_eq!(env.get("A"), Some(&b"2=3"[..]));
        assert_eq!(env.get("D"), Some(&b""[..]));
        assert_eq!((env.get("B"), env.get("C")), (None, None));
    }

    #[test]
    fn pidfd_shows_whether_its_process_lives() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
        let own = own_pid();
        assert!(pidfds(own).contains(&(child.id() as i32)));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!pidfds(own).contains(&(child.id() as i32)));
        drop(pidfd);
    }

    #[test]
    fn ignored_signal_is_seen() {
        // The runtime ignores SIGPIPE and nothing else.
        let pid = own_pid();
        assert!(ignores(pid, libc::SIGPIPE));
        assert!(!ignores(pid, libc::SIGTERM) && !ignores(pid, 0) && !ignores(pid, 200));
    }
}
