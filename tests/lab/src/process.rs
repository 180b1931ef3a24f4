//! Processes of a host, seen from the machine.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A process on a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Number of the process on the machine.
    pub pid: i32,
    /// Number of the process on its host.
    pub inner_pid: i32,
    /// Number of the parent on the machine.
    pub parent: i32,
    /// Name of the command, up to 15 bytes.
    pub name: String,
    /// R, S, D, T stopped, Z ended and not collected.
    pub state: char,
    /// Command line of the process, separated by blanks.
    pub words: String,
}

impl Process {
    /// Sends it a signal; one that is gone is no mistake.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, signal);
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            inner_pid,
            name,
            state,
            words,
            ..
        } = self;
        write!(f, "{inner_pid} ({name}) state {state}: {words}")
    }
}

/// The name of a process's process namespace.
pub(crate) fn namespace(pid: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// All in that process namespace, without its first process.
pub(crate) fn all_in(target: &Path, init: i32) -> Vec<Process> {
    let us = std::process::id() as i32;
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != init && namespace(*pid).as_deref() == Some(target))
        .filter_map(read)
        .filter(|process| !(process.state == 'X' || process.state == 'Z' && process.parent == us))
        .collect()
}

fn read(pid: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let mut fields = stat[close + 1..].split_ascii_whitespace();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    Some(Process {
        pid,
        inner_pid: numbers?.split_ascii_whitespace().last()?.parse().ok()?,
        name: stat[open + 1..close].to_owned(),
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        words: String::from_utf8_lossy(&words)
            .replace('\0', " ")
            .trim_end()
            .to_owned(),
    })
}

/// Looks often until something that cannot be waited for is so.
///
/// # Panics
/// When it is not within 30 s.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "timed out: {what}"
        );
        let moment = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        let _ = rustix::event::poll(&mut [], Some(&moment));
    }
}
