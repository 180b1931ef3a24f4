//! Requests to the launcher of a job about its processes on all hosts.
//!
//! Rule: the launcher may be another user's, stopped or hostile: every wait and the size of the reply are limited.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SendFlags, SocketAddrUnix, send};

use super::LocalJobInfo;
use crate::control::query_server::job_query::{
    JobAnswer, JobQuery, JobQueryKind, ProcessRecord, address,
};
use crate::control::resize_request::ResizeReport;
use wireup_core::job::rank_set::RankSet;
use wireup_core::record::ResizeCommand;
use wireup_core::wording::json_problem;
use wireup_sys::procfs;
use wireup_sys::unix_socket::connect_within;

/// Time in which the launcher must accept a request.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a whole reply if a debugger inspects ranks; longer than the launcher waits for its hosts.
const WITH_DEBUGGER: Duration = Duration::from_secs(330);

/// Time for a whole reply if no debugger inspects ranks.
const WITHOUT_DEBUGGER: Duration = Duration::from_secs(20);

/// Time for the reply to a change of the hosts: for an agent that is being started, and for a host that does not answer.
const UNTIL_RESIZED: Duration = Duration::from_secs(330);

/// Maximum size of a reply in bytes.
const REPLY_MAX: usize = 16 * 1024 * 1024;

/// Size of a read in bytes.
const CHUNK: usize = 64 * 1024;

/// Failure of a request to the launcher of a job.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LauncherQueryError {
    #[error(
        "the launcher is not on this machine; run this command on its host, which `wireup ps --hosts LIST` shows"
    )]
    NoLauncher,
    #[error(
        "the launcher is on {0:?}; run this command there, by `wireup rsh` if an agent serves that host, or by ssh"
    )]
    LauncherElsewhere(String),
    #[error("cannot connect to the launcher (pid {pid}): {errno}")]
    Unreachable { pid: i32, errno: Errno },
    #[error("the job's socket belongs to another process than its launcher (pid {0})")]
    Stranger(i32),
    #[error(
        "the launcher (pid {0}) is stopped and cannot reply; continue it with kill -CONT {0}, or inspect the ranks by \
         gdb -p PID with the pids of `wireup ps -l`"
    )]
    Stopped(i32),
    #[error("the launcher (pid {pid}) did not take the request within {} s; it is busy, or of an earlier release of wireup", .limit.as_secs_f64())]
    NotTaken { pid: i32, limit: Duration },
    #[error("the launcher (pid {pid}) did not reply within {} s", .limit.as_secs_f64())]
    Late { pid: i32, limit: Duration },
    #[error(
        "the reply of the launcher (pid {0}) exceeds {max} MiB; select fewer ranks with --ranks",
        max = REPLY_MAX >> 20
    )]
    TooLarge(i32),
    #[error("the connection to the launcher failed: {0}")]
    Broken(Errno),
    #[error("the job has ended")]
    Ended,
    #[error("invalid reply of the launcher, of another version of wireup: {}", json_problem(.0))]
    Unintelligible(#[from] serde_json::Error),
    #[error("the launcher sent the reply to another request")]
    Unexpected,
    #[error("the launcher refused the request: {0}")]
    Refused(String),
}

impl From<Errno> for LauncherQueryError {
    fn from(errno: Errno) -> Self {
        match errno {
            // A launcher that ends leaves requests unread.
            Errno::CONNRESET | Errno::PIPE => Self::Ended,
            errno => Self::Broken(errno),
        }
    }
}

/// Incomplete reply, while the launcher waits for the remaining ranks.
pub(crate) struct Progress<'a> {
    /// Number of ranks that are inspected.
    pub(crate) total: usize,
    /// Results so far, unordered.
    pub(crate) found: &'a [ProcessRecord],
}

/// Display of the [`Progress`] of a request.
pub(crate) trait Watcher {
    /// Time of the next display; `None` for never.
    fn due(&self) -> Option<Instant>;
    fn show(&mut self, progress: &Progress<'_>);
}

/// [`Watcher`] that never shows progress.
pub(crate) struct Quiet;

impl Watcher for Quiet {
    fn due(&self) -> Option<Instant> {
        None
    }

    fn show(&mut self, _: &Progress<'_>) {}
}

/// Requests the records of a job's processes from its launcher. Returns them by job and rank.
///
/// # Errors
/// [`LauncherQueryError`] with the reason.
pub(crate) fn query_launcher(
    job: &LocalJobInfo,
    wish: JobQueryKind,
    ranks: Option<RankSet>,
    watcher: &mut dyn Watcher,
) -> Result<Vec<ProcessRecord>, LauncherQueryError> {
    let limit = match wish {
        JobQueryKind::Stacks { .. } | JobQueryKind::Core { .. } => WITH_DEBUGGER,
        JobQueryKind::Table | JobQueryKind::Usage | JobQueryKind::Resize(_) => WITHOUT_DEBUGGER,
    };
    send_query(job, wish, ranks, limit)?.records(watcher)
}

/// Requests a change of a job's hosts from its launcher.
///
/// # Errors
/// [`LauncherQueryError`] with the reason.
pub(crate) fn resize_job(
    job: &LocalJobInfo,
    command: ResizeCommand,
) -> Result<ResizeReport, LauncherQueryError> {
    send_query(job, JobQueryKind::Resize(command), None, UNTIL_RESIZED)?.resize_report()
}

/// Sends a request to the launcher of a job; the whole reply must come in the time `limit`.
fn send_query(
    job: &LocalJobInfo,
    wish: JobQueryKind,
    ranks: Option<RankSet>,
    limit: Duration,
) -> Result<ReplyReader, LauncherQueryError> {
    let (Some(launcher), Some(name)) = (&job.launcher, &job.name) else {
        let launcher = job.launcher_elsewhere();
        let host = launcher.map(|launcher| launcher.host.clone());
        return Err(host.map_or(
            LauncherQueryError::NoLauncher,
            LauncherQueryError::LauncherElsewhere,
        ));
    };
    let pid = launcher.pid;
    if procfs::process(pid).is_some_and(|process| process.is_stopped()) {
        return Err(LauncherQueryError::Stopped(pid));
    }
    let progress = true;
    let query = JobQuery {
        wish,
        ranks,
        progress,
    };
    let mut line = serde_json::to_vec(&query)?;
    line.push(b'\n');
    let started = Instant::now();
    let unreachable = |errno| LauncherQueryError::Unreachable { pid, errno };
    let address = SocketAddrUnix::new_abstract_name(&address(name)).map_err(unreachable)?;
    let socket = connect_within(&address, ACCEPT_TIMEOUT).map_err(unreachable)?;
    let peer = socket_peercred(&socket).map_err(unreachable)?;
    if peer.pid.as_raw_nonzero().get() != pid {
        return Err(LauncherQueryError::Stranger(pid));
    }
    let answer = ReplyReader {
        socket,
        pid,
        started,
        take: ACCEPT_TIMEOUT,
        limit,
        is_taken: false,
        bytes: Vec::new(),
        size: 0,
    };
    answer.send(&line)?;
    Ok(answer)
}

/// Reads the lines of the reply to one request.
struct ReplyReader {
    /// Connection to the launcher; non-blocking.
    socket: OwnedFd,
    /// Pid of the launcher.
    pid: i32,
    started: Instant,
    /// Timeout of the first line, from the start.
    take: Duration,
    /// Timeout of the last line, from the start.
    limit: Duration,
    /// Whether the first line was read.
    is_taken: bool,
    /// Bytes of an incomplete line.
    bytes: Vec<u8>,
    /// Number of bytes of all lines.
    size: usize,
}

impl ReplyReader {
    fn deadline(&self) -> Instant {
        self.started
            + match self.is_taken {
                true => self.limit,
                false => self.take,
            }
    }

    fn late(&self) -> LauncherQueryError {
        let pid = self.pid;
        match self.is_taken {
            true => LauncherQueryError::Late {
                pid,
                limit: self.limit,
            },
            false => LauncherQueryError::NotTaken {
                pid,
                limit: self.take,
            },
        }
    }

    /// Waits for the socket, at most until `until` or the deadline. Returns whether it is ready.
    fn wait(&self, flags: PollFlags, until: Option<Instant>) -> Result<bool, LauncherQueryError> {
        let deadline = self.deadline();
        let now = Instant::now();
        if now >= deadline {
            return Err(self.late());
        }
        let until = until.map_or(deadline, |until| until.min(deadline));
        // One millisecond more, because the rounded wait must not end before `until`.
        let rest = until.saturating_duration_since(now) + Duration::from_millis(1);
        let rest = Timespec::try_from(rest).unwrap_or_default();
        match poll(&mut [PollFd::new(&self.socket, flags)], Some(&rest)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    fn send(&self, mut line: &[u8]) -> Result<(), LauncherQueryError> {
        while !line.is_empty() {
            match send(&self.socket, line, SendFlags::NOSIGNAL) {
                Ok(count) => line = &line[count..],
                Err(Errno::AGAIN) => {
                    self.wait(PollFlags::OUT, None)?;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Reads the next line; `None` if `until` comes first.
    fn line(&mut self, until: Option<Instant>) -> Result<Option<Vec<u8>>, LauncherQueryError> {
        let mut searched = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.bytes[searched..]) {
                let rest = self.bytes.split_off(searched + end + 1);
                return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
            }
            searched = self.bytes.len();
            let ready = self.wait(PollFlags::IN, until)?;
            if !ready {
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Ok(None);
                }
                continue;
            }
            self.bytes.reserve(CHUNK);
            let spare = rustix::buffer::spare_capacity(&mut self.bytes);
            match rustix::io::read(&self.socket, spare) {
                Ok(0) => return Err(LauncherQueryError::Ended),
                Ok(count) => self.size += count,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
            if self.size > REPLY_MAX {
                return Err(LauncherQueryError::TooLarge(self.pid));
            }
        }
    }

    fn records(
        mut self,
        watcher: &mut dyn Watcher,
    ) -> Result<Vec<ProcessRecord>, LauncherQueryError> {
        let mut total = 0;
        let mut found = Vec::new();
        loop {
            // Progress is shown only after the launcher has accepted the request.
            let due = watcher.due().filter(|_| self.is_taken);
            let line = self.line(due)?;
            if due.is_some_and(|due| Instant::now() >= due) {
                let found = &found;
                watcher.show(&Progress { total, found });
            }
            let Some(line) = line else {
                continue;
            };
            self.is_taken = true;
            match serde_json::from_slice(&line)? {
                JobAnswer::Taken(ranks) => total = ranks,
                JobAnswer::Found(records) => found.extend(records),
                JobAnswer::Processes(records) => {
                    found.extend(records);
                    found.sort_by_key(|record| (record.job, record.rank));
                    return Ok(found);
                }
                JobAnswer::Refused(why) => return Err(LauncherQueryError::Refused(why)),
                JobAnswer::Resized(_) => return Err(LauncherQueryError::Unexpected),
            }
        }
    }

    fn resize_report(mut self) -> Result<ResizeReport, LauncherQueryError> {
        loop {
            let Some(line) = self.line(None)? else {
                continue;
            };
            self.is_taken = true;
            match serde_json::from_slice(&line)? {
                JobAnswer::Taken(_) => {}
                JobAnswer::Resized(report) => return Ok(report),
                JobAnswer::Refused(why) => return Err(LauncherQueryError::Refused(why)),
                JobAnswer::Found(_) | JobAnswer::Processes(_) => {
                    return Err(LauncherQueryError::Unexpected);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(300);

    /// Longer than any pause of a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    /// Reader with short timeouts, and the launcher's end of its connection.
    fn answer() -> (ReplyReader, UnixStream) {
        let (socket, launcher) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let answer = ReplyReader {
            socket: socket.into(),
            pid: 7,
            started: Instant::now(),
            take: LIMIT / 3,
            limit: LIMIT,
            is_taken: false,
            bytes: Vec::new(),
            size: 0,
        };
        (answer, launcher)
    }

    const RECORD: &str =
        r#"{"job":0,"rank":1,"host":"n1","pid":7,"executable":"/a","state":"running"}"#;

    #[test]
    fn query_merges_partial_replies_by_rank() {
        let (mut answer, mut launcher) = answer();
        (answer.take, answer.limit) = (LONG, LONG);
        let first = RECORD.replace("\"rank\":1", "\"rank\":0");
        let text =
            format!("{{\"taken\":2}}\n{{\"found\":[{RECORD}]}}\n{{\"processes\":[{first}]}}\n");
        launcher.write_all(text.as_bytes()).unwrap();
        let records = answer.records(&mut Quiet).unwrap();
        let ranks: Vec<u32> = records.iter().map(|record| record.rank).collect();
        assert_eq!(ranks, [0, 1]);
    }

    #[test]
    fn query_is_ended_by_launcher_that_ends_without_reading_it() {
        for is_sent in [true, false] {
            let (answer, launcher) = answer();
            if is_sent {
                answer.send(b"{}\n").unwrap();
                drop(launcher);
            } else {
                drop(launcher);
                let error = answer.send(b"{}\n").unwrap_err();
                assert!(matches!(error, LauncherQueryError::Ended), "{error}");
            }
            let error = answer.records(&mut Quiet).unwrap_err();
            assert!(matches!(error, LauncherQueryError::Ended), "{error}");
        }
    }

    #[test]
    fn query_times_out_if_request_is_not_read() {
        let (mut answer, _launcher) = answer();
        answer.limit = LONG;
        let started = answer.started;
        let error = answer.records(&mut Quiet).unwrap_err();
        assert!(
            matches!(error, LauncherQueryError::NotTaken { pid: 7, .. }),
            "{error}"
        );
        assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
    }

    #[test]
    fn query_times_out_if_bytes_trickle() {
        let (mut answer, mut launcher) = answer();
        answer.take = LONG;
        let trickle = std::thread::spawn(move || {
            let _ = launcher.write_all(b"{\"taken\":1}\n");
            while launcher.write_all(b" ").is_ok() {
                std::thread::park_timeout(LIMIT / 10);
            }
        });
        let error = answer.records(&mut Quiet).unwrap_err();
        assert!(
            matches!(error, LauncherQueryError::Late { pid: 7, .. }),
            "{error}"
        );
        trickle.join().unwrap();
    }

    #[test]
    fn query_refuses_oversized_reply() {
        let (mut answer, mut launcher) = answer();
        answer.take = LONG;
        let flood = std::thread::spawn(move || {
            let chunk = vec![b' '; CHUNK];
            let mut sent = 0;
            while launcher.write_all(&chunk).is_ok() {
                sent += chunk.len();
            }
            sent
        });
        let error = answer.records(&mut Quiet).unwrap_err();
        assert!(matches!(error, LauncherQueryError::TooLarge(7)), "{error}");
        assert!(flood.join().unwrap() < 2 * REPLY_MAX);
    }
}
