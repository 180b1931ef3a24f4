//! Looking at processes through `/proc`, independently of wireup's own way.

use std::time::Duration;
use std::{fmt, fs};

use crate::MARK;

/// A process that exists, or waits to be collected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    pub pid: i32,
    /// Command name, up to 15 bytes.
    pub name: String,
    /// State letter: R, S, T stopped, Z ended and not collected.
    pub state: char,
    pub parent: i32,
    pub session: i32,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        let Process {
            pid,
            name,
            state,
            parent,
            session,
        } = self;
        write!(
            f,
            "{pid} ({name}) state {state} parent {parent} session {session}: {words}"
        )
    }
}

/// One process, if it exists.
pub fn process(pid: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let fields: Vec<&str> = stat[close + 1..].split_ascii_whitespace().collect();
    Some(Process {
        pid,
        name: stat[open + 1..close].to_owned(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
    })
}

/// Lists all processes of the machine.
pub fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").unwrap();
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(process)
        .collect()
}

/// The living processes of a run, wireup included.
pub(crate) fn marked(id: &str) -> Vec<Process> {
    let mark = format!("{MARK}={id}");
    let mut all = processes();
    all.retain(|process| {
        fs::read(format!("/proc/{}/environ", process.pid))
            .is_ok_and(|environ| environ.split(|b| *b == 0).any(|v| v == mark.as_bytes()))
    });
    all
}

/// The most memory a living process ever had resident, in KiB.
pub fn memory_peak_kib(pid: i32) -> u64 {
    memory_kib(pid, "VmHWM")
}

/// Returns the peak of a process's memory without pages of files, of which an executable with debug information has
/// many. It is too high if the system has reclaimed some of these.
pub fn own_memory_peak_kib(pid: i32) -> u64 {
    let of_files = memory_kib(pid, "RssFile") + memory_kib(pid, "RssShmem");
    memory_peak_kib(pid).saturating_sub(of_files)
}

/// Resident memory of a living process that is not of files, in KiB.
pub fn anonymous_memory_kib(pid: i32) -> u64 {
    memory_kib(pid, "RssAnon")
}

fn memory_kib(pid: i32, what: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let line = lines.find(|(name, _)| *name == what);
    let number = line.and_then(|(_, rest)| rest.split_ascii_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap()
}

/// Number of descriptors a living process has open.
pub fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Time that processors have spent on this process and on its descendants that have ended and been waited for.
pub(crate) fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields = &stat[stat.rfind(')').unwrap() + 1..];
    // Fields 14 to 17 of proc(5); the first one here is the third.
    let fields = fields.split_ascii_whitespace().skip(11).take(4);
    let ticks: u64 = fields.map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(1000 * ticks / rustix::param::clock_ticks_per_second())
}
