//! The jobs on this machine, found from outside: `wireup ps` and `wireup kill`.
//!
//! No job registers anywhere, so a start pays nothing for this and nothing can be left behind or
//! be out of date. A job is what `/proc` shows of it: its launcher (an executable called `wireup`
//! that was told to run something), and the processes whose environment names the job.
//! [`snapshot`] looks, [`find`] makes jobs of what was seen, [`name`] lets people name them, and
//! [`end`] signals them.
//!
//! Rule: who may see a process's environment is the system's decision: the same user, and root.
//! Source: `PTRACE_MODE_READ_FSCREDS` in ptrace(2).

pub mod end;
pub mod find;
pub mod name;
pub mod snapshot;

use std::ffi::OsString;
use std::time::Duration;

use crate::agent::procfs::{self, Process};
use find::Scope;

/// Where a job is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Some of its ranks have not been started.
    Starting,
    /// Its ranks run.
    Running,
    /// Its launcher, or every rank, was stopped by a signal.
    Stopped,
    /// No rank is left, or its launcher was killed and its guard cleans up.
    Ending,
    /// Its launcher and its guard were killed: nobody will end it.
    Orphaned,
}

impl State {
    /// As it is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Ending => "ending",
            Self::Orphaned => "orphaned",
        }
    }
}

/// One rank that lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// Its process, the leader of a session.
    pub process: Process,
    /// Number and name of its node.
    pub node: Option<(u32, String)>,
    /// Processor time of its process and all below it.
    pub cpu: Duration,
    /// Resident memory of its process and all below it, in bytes. What they share counts once for
    /// each.
    pub resident: u64,
    /// Its argument vector.
    pub command: Vec<OsString>,
}

/// One job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// Its name; `None` while no process of it shows it.
    pub name: Option<String>,
    /// Its launcher, if that lives.
    pub launcher: Option<Process>,
    /// Whose it is.
    pub uid: u32,
    /// Where it is in its life.
    pub state: State,
    /// The job of which its launcher is a process.
    pub within: Option<String>,
    /// Its living ranks, in rank order.
    pub ranks: Vec<Rank>,
    /// Number of ranks, living or not; `None` while no process of it shows it.
    pub size: Option<u32>,
    /// Number of nodes; `None` while no process of it shows it.
    pub node_count: Option<u32>,
    /// Time since it started.
    pub elapsed: Duration,
    /// What its launcher was told to run, options included; a rank's argument vector when the
    /// launcher is gone.
    pub command: Vec<OsString>,
    /// Directories for temporary files that its processes were given.
    pub tmpdirs: Vec<OsString>,
    /// All its living processes but launcher and guard: ranks, what they started, and PMIx
    /// servers.
    pub members: Vec<Process>,
}

impl Job {
    /// The process a person would take for the job: its launcher, or its first rank.
    pub fn pid(&self) -> Option<i32> {
        let rank = self.ranks.first().map(|rank| &rank.process);
        let process = self.launcher.as_ref().or(rank);
        process
            .or_else(|| self.members.first())
            .map(|process| process.pid)
    }

    /// The numbers and names of the nodes on which ranks live, each once.
    pub fn nodes(&self) -> Vec<(u32, String)> {
        let nodes = self.ranks.iter().filter_map(|rank| rank.node.clone());
        let mut nodes: Vec<_> = nodes.collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }
}

/// The jobs of this machine, by time of start.
pub fn list(scope: Scope) -> Vec<Job> {
    let mut jobs = find::jobs(&snapshot::Snapshot::take(), scope);
    for job in &mut jobs {
        for rank in &mut job.ranks {
            rank.command = procfs::command_line(rank.process.pid);
        }
        if job.launcher.is_none() {
            let first = job.ranks.first().map(|rank| rank.command.clone());
            job.command = first.unwrap_or_default();
        }
    }
    jobs
}
