//! A run that goes on: what it printed so far, signals to it, and its end.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::clean::Sandbox;
use crate::outcome::{Outcome, shortened};
use crate::procfs;
use crate::wait::look_again_soon;

/// Output stream of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    Stdout,
    Stderr,
}

/// Bytes as they arrive from one descriptor.
#[derive(Debug, Default)]
struct Captured {
    bytes: Vec<u8>,
    ended: bool,
}

type Shared = Arc<(Mutex<Captured>, Condvar)>;

fn capture(mut from: impl Read + Send + 'static) -> Shared {
    let shared = Shared::default();
    let thread = Arc::clone(&shared);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 256 * 1024];
        loop {
            // A terminal ends with an error when no process has it open any more.
            let count = from.read(&mut buffer).unwrap_or(0);
            let mut captured = thread.0.lock().unwrap();
            captured.bytes.extend_from_slice(&buffer[..count]);
            captured.ended = count == 0;
            thread.1.notify_all();
            if count == 0 {
                return;
            }
        }
    });
    shared
}

/// A terminal that can be hung up: no thread may sleep in a read of it, since the system would count
/// that as having it open.
struct Interruptible {
    terminal: File,
    hung_up: Arc<AtomicBool>,
}

impl Read for Interruptible {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while !self.hung_up.load(Ordering::Acquire) {
            let moment = Timespec {
                tv_sec: 0,
                tv_nsec: 20_000_000,
            };
            let mut ready = [PollFd::new(&self.terminal, PollFlags::IN)];
            if poll(&mut ready, Some(&moment)).is_ok_and(|count| count > 0) {
                return self.terminal.read(buffer);
            }
        }
        Ok(0)
    }
}

fn nothing() -> Shared {
    capture(std::io::empty())
}

/// Both ends of a terminal.
pub(crate) struct Terminal {
    pub(crate) master: File,
    pub(crate) slave: OwnedFd,
}

pub(crate) fn open_terminal() -> Terminal {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
    let flags = flags | rustix::fs::OFlags::CLOEXEC;
    let slave = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
    Terminal {
        master: master.into(),
        slave,
    }
}

/// State of a run that has just been started.
pub(crate) struct Started {
    pub(crate) child: Child,
    pub(crate) id: String,
    pub(crate) held_stdout: bool,
    pub(crate) terminal: Option<File>,
    pub(crate) started: Instant,
    pub(crate) deadline: Instant,
    pub(crate) clean_within: Duration,
    pub(crate) sandbox: Arc<Sandbox>,
}

/// A run that was started. Everything of it is killed when this is dropped before its end.
pub struct Running {
    child: Child,
    pidfd: OwnedFd,
    id: String,
    stdout: Shared,
    stderr: Shared,
    terminal: Option<File>,
    hung_up: Arc<AtomicBool>,
    started: Instant,
    deadline: Instant,
    clean_within: Duration,
    sandbox: Arc<Sandbox>,
    over: bool,
}

impl Running {
    pub(crate) fn new(parts: Started) -> Self {
        let mut child = parts.child;
        let pidfd = pidfd_open(pid_of(&child), PidfdFlags::empty()).unwrap();
        let hung_up = Arc::new(AtomicBool::new(false));
        let stdout = match (&parts.terminal, parts.held_stdout) {
            (Some(master), _) => capture(Interruptible {
                terminal: master.try_clone().unwrap(),
                hung_up: Arc::clone(&hung_up),
            }),
            (None, true) => nothing(),
            (None, false) => child.stdout.take().map_or_else(nothing, capture),
        };
        let stderr = child.stderr.take().map_or_else(nothing, capture);
        Self {
            child,
            pidfd,
            id: parts.id,
            stdout,
            stderr,
            terminal: parts.terminal,
            hung_up,
            started: parts.started,
            deadline: parts.deadline,
            clean_within: parts.clean_within,
            sandbox: parts.sandbox,
            over: false,
        }
    }

    /// Process id of `wireup`, or of the command in its place.
    pub fn pid(&self) -> i32 {
        pid_of(&self.child).as_raw_nonzero().get()
    }

    /// The directory the run was started in.
    pub fn work(&self) -> &std::path::Path {
        self.sandbox.work()
    }

    /// Words in front of a command of the test's own that find the run's `/dev/shm`; the process of the command stays the same.
    pub fn mount_prefix(&self) -> Vec<OsString> {
        self.sandbox.mount_prefix()
    }

    /// Lets cleaning up take this long after the process has ended, see `Run::clean_within`.
    pub fn clean_within(mut self, time: Duration) -> Self {
        self.clean_within = time;
        self
    }

    /// All living processes of the run.
    pub fn processes(&self) -> Vec<procfs::Process> {
        procfs::marked(&self.id)
    }

    /// Sends a signal to `wireup` alone.
    pub fn signal(&self, signal: Signal) {
        // Not collected yet, so the number is still its own.
        kill_process(pid_of(&self.child), signal).unwrap();
    }

    /// Types at the terminal of a run started with `Run::terminal`.
    #[track_caller]
    pub fn type_text(&mut self, text: &str) {
        let terminal = self.terminal.as_mut().expect("a run on a terminal");
        terminal.write_all(text.as_bytes()).unwrap();
    }

    /// Returns the terminal of the run.
    pub fn terminal(&self) -> &File {
        self.terminal.as_ref().expect("a run on a terminal")
    }

    /// Hangs the terminal up, as closing a terminal's window does.
    pub fn close_terminal(&mut self) {
        self.hung_up.store(true, Ordering::Release);
        drop(self.terminal.take());
    }

    /// The writing end of standard input of a run started with `Run::stdin_held`; dropping it is
    /// the end of the input.
    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("held, and taken once")
    }

    /// The reading end of standard output of a run started with `Run::stdout_held`.
    pub fn take_stdout(&mut self) -> File {
        let pipe = self.child.stdout.take().expect("held, and taken once");
        OwnedFd::from(pipe).into()
    }

    /// Returns the bytes of an output received so far.
    pub fn so_far(&self, output: Output) -> Vec<u8> {
        self.captured(output).0.lock().unwrap().bytes.clone()
    }

    /// Waits until the output has `count` times the text.
    ///
    /// # Panics
    /// When the output ends, or the deadline comes, before it has; with everything printed.
    #[track_caller]
    pub fn wait_for_many(&self, output: Output, text: &str, count: usize) -> String {
        let (mutex, changed) = &**self.captured(output);
        let mut captured = mutex.lock().unwrap();
        loop {
            let got = String::from_utf8_lossy(&captured.bytes);
            if got.matches(text).count() >= count {
                return got.into_owned();
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if captured.ended || left.is_zero() {
                let ended = captured.ended;
                drop(got);
                drop(captured);
                let when = if ended { "before the end" } else { "in time" };
                self.fail(&format!("{text:?} did not come {count} times {when}"));
            }
            drop(got);
            captured = changed.wait_timeout(captured, left).unwrap().0;
        }
    }

    /// Waits until the output has the text; returns all of it.
    ///
    /// # Panics
    /// As [`Running::wait_for_many`].
    #[track_caller]
    pub fn wait_for(&self, output: Output, text: &str) -> String {
        self.wait_for_many(output, text, 1)
    }

    /// Waits for the end and checks that nothing is left.
    #[track_caller]
    pub fn finish(mut self) -> Outcome {
        drop(self.child.stdin.take());
        if !wait_readable(&self.pidfd, self.deadline) {
            self.fail("it did not end in time");
        }
        let elapsed = self.started.elapsed();
        let status = self.child.wait().unwrap();
        for output in [Output::Stdout, Output::Stderr] {
            self.wait_for_end_of(output);
        }
        let over = Instant::now();
        loop {
            let left = self.sandbox.left_by(&self.id);
            if left.is_empty() {
                break;
            }
            if over.elapsed() >= self.clean_within {
                self.fail(&format!("it left behind:\n{}", left.join("\n")));
            }
            look_again_soon();
        }
        self.over = true;
        self.sandbox.run_checked();
        Outcome {
            code: status
                .code()
                .or_else(|| status.signal().map(|signal| 128 + signal))
                .unwrap(),
            stdout: self.so_far(Output::Stdout),
            stderr: self.so_far(Output::Stderr),
            elapsed,
            sandbox: Arc::clone(&self.sandbox),
        }
    }

    /// A process may hold the other end longer than the run lives: a leak of its own kind.
    #[track_caller]
    fn wait_for_end_of(&self, output: Output) {
        let (mutex, changed) = &**self.captured(output);
        let left = self.deadline.saturating_duration_since(Instant::now());
        let captured = mutex.lock().unwrap();
        let (captured, _) = changed
            .wait_timeout_while(captured, left, |captured| !captured.ended)
            .unwrap();
        let ended = captured.ended;
        drop(captured);
        if !ended {
            self.fail(&format!(
                "it ended, and a process still holds its {output:?}"
            ));
        }
    }

    fn captured(&self, output: Output) -> &Shared {
        match output {
            Output::Stdout => &self.stdout,
            Output::Stderr => &self.stderr,
        }
    }

    #[track_caller]
    fn fail(&self, why: &str) -> ! {
        let processes: Vec<String> = self.processes().iter().map(ToString::to_string).collect();
        panic!(
            "{why}, after {:?}\n--- processes\n{}\n--- stdout\n{}\n--- stderr\n{}",
            self.started.elapsed(),
            processes.join("\n"),
            shortened(&self.so_far(Output::Stdout)),
            shortened(&self.so_far(Output::Stderr)),
        );
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        // Until none is left: a process may have forked since it was seen.
        for _ in 0..100 {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            for process in left {
                if let Some(pid) = Pid::from_raw(process.pid) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            look_again_soon();
        }
        let _ = self.child.wait();
        self.sandbox.run_checked();
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).unwrap()
}

/// False when the time is over before the descriptor becomes readable.
fn wait_readable(fd: impl AsFd, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(_) => {}
        }
    }
}
