//! The jobs on this machine, found from outside: `wireup ps` and `wireup kill`.
//!
//! Nothing here needs a job to register, so a start pays nothing for it and nothing can be left
//! behind or be out of date. A job is what `/proc` shows of it: its launcher (an executable called
//! `wireup` that runs something), and the processes whose environment names the job. Of
//! a job on several hosts it is the part that is here: its launcher, the steps of this machine's
//! nodes with their ranks, or both. [`snapshot`] reads `/proc`, [`discover`] derives the jobs, [`name`]
//! resolves their names, and [`termination`] signals them.
//!
//! Rule: the kernel shows a process's environment only to the same user and root.
//! Source: `PTRACE_MODE_READ_FSCREDS` in ptrace(2).

pub mod discover;
pub mod name;
pub(crate) mod query_launcher;
pub mod snapshot;
pub mod termination;

use std::ffi::OsString;
use std::time::Duration;

use discover::UserScope;

use crate::plan::launch_names::{LauncherProcess, own_host};
use wireup_core::job::ids::NodeId;
use wireup_core::job::process_map::ProcessMap;
use wireup_sys::procfs::{self, Process};

/// Where a job is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobLifeState {
    /// Some of its ranks have not been started.
    Starting,
    Running,
    /// Its launcher, or every rank, was stopped by a signal.
    Stopped,
    /// No rank is left, or its launcher was killed and its guard cleans up.
    Ending,
    /// Its launcher and its guard were killed, or the agent of a part: no process will end it,
    /// unless a step does by itself.
    Orphaned,
}

impl JobLifeState {
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

/// One running rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rank {
    /// Number of its job if that was spawned; 0 for the job the user asked for.
    pub spawned_job: u32,
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
    pub command: Vec<OsString>,
}

/// The process that has a node's part of a job on several hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobStep {
    pub process: Process,
    /// The node, once the step has heard which.
    pub node: Option<NodeId>,
}

/// Where the ranks of a job on several hosts are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobPlacement {
    /// The names of all nodes.
    pub hosts: Vec<String>,
    /// Which ranks they have.
    pub ranks: ProcessMap,
    /// The launcher, if that is shown.
    pub launcher: Option<LauncherProcess>,
}

impl JobPlacement {
    /// The name of a node.
    pub fn host(&self, node: NodeId) -> Option<&str> {
        self.hosts.get(node.index()).map(String::as_str)
    }
}

/// One job, or the part of one on several hosts that is on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalJobInfo {
    /// Its name; `None` while no process of it shows it.
    pub name: Option<String>,
    /// Its launcher, if that runs on this machine.
    pub launcher: Option<Process>,
    /// On several hosts: the steps of the nodes that are here, by node.
    pub steps: Vec<JobStep>,
    /// On several hosts: which ranks are where, once that is shown.
    pub placement: Option<JobPlacement>,
    pub uid: u32,
    /// Where it is in its life.
    pub state: JobLifeState,
    /// The job of which its launcher is a process.
    pub within: Option<String>,
    /// Its running ranks on this machine, in rank order, followed by those of spawned jobs.
    pub ranks: Vec<Rank>,
    /// Number of ranks, living or not; `None` while no process of it shows it.
    pub size: Option<u32>,
    /// Number of nodes; `None` while no process of it shows it.
    pub node_count: Option<u32>,
    /// Time since it started.
    pub elapsed: Duration,
    /// The arguments of its launcher, options included; a rank's argument vector when the
    /// launcher is gone.
    pub command: Vec<OsString>,
    /// All its running processes but launcher, steps and guards: ranks, what they started, and PMIx
    /// servers.
    pub members: Vec<Process>,
}

impl LocalJobInfo {
    /// The process a person would take for the job: its launcher, or a step, or its first rank.
    pub fn pid(&self) -> Option<i32> {
        let rank = self.ranks.first().map(|rank| &rank.process);
        let process = self.leaders().next().or(rank);
        process
            .or_else(|| self.members.first())
            .map(|process| process.pid)
    }

    /// Its running ranks on this machine, without those of spawned jobs.
    pub fn first_ranks(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().filter(|rank| rank.spawned_job == 0)
    }

    /// Its launcher and its steps.
    pub fn leaders(&self) -> impl Iterator<Item = &Process> {
        let steps = self.steps.iter().map(|step| &step.process);
        self.launcher.iter().chain(steps)
    }

    /// Launcher of the job, if it is known and runs on another host.
    pub fn launcher_elsewhere(&self) -> Option<&LauncherProcess> {
        let placement = self.placement.as_ref()?;
        let launcher = placement.launcher.as_ref()?;
        (self.launcher.is_none() && launcher.host != own_host()).then_some(launcher)
    }

    /// Whether it may have ranks elsewhere.
    pub fn is_on_several_hosts(&self) -> bool {
        self.placement.is_some() || !self.steps.is_empty()
    }

    /// Its ranks on other machines, by the names of these, as far as it is known.
    pub fn remote_ranks(&self) -> Vec<(String, Vec<u32>)> {
        let Some(placement) = &self.placement else {
            return Vec::new();
        };
        let nodes = placement.ranks.node_ids().filter(|node| !self.has(*node));
        nodes
            .filter_map(|node| {
                let ranks = placement.ranks.ranks_on(node).map(|rank| rank.0);
                let ranks: Vec<u32> = ranks.collect();
                let host = placement.host(node).filter(|_| !ranks.is_empty())?;
                Some((host.to_owned(), ranks))
            })
            .collect()
    }

    /// The steps here, with the names of their nodes.
    pub fn nodes_here(&self) -> impl Iterator<Item = (&JobStep, Option<&str>)> {
        self.steps.iter().map(|step| {
            let placement = self.placement.as_ref();
            let name = placement.and_then(|placement| placement.host(step.node?));
            (step, name)
        })
    }

    /// The ranks a step here was given, ascending, as far as it is known.
    pub fn ranks_of(&self, step: &JobStep) -> impl Iterator<Item = u32> {
        let placement = self.placement.as_ref().zip(step.node);
        let ranks = placement.map(|(placement, node)| placement.ranks.ranks_on(node));
        ranks.into_iter().flatten().map(|rank| rank.0)
    }

    /// Whether a pid is that of a process of the job on this machine: one of its user that has the job's mark, or descends
    /// from its launcher or from a step.
    pub fn has_process(&self, pid: i32) -> bool {
        if procfs::owner(pid).is_none_or(|(uid, _)| uid != self.uid) {
            return false;
        }
        let leads = |pid| self.leaders().any(|leader| leader.pid == pid);
        let ranks = self.ranks.iter().map(|rank| &rank.process);
        let mut known = ranks.chain(&self.members);
        let parent = |pid: &i32| procfs::process(*pid).map(|process| process.parent);
        known.any(|process| process.pid == pid)
            || std::iter::successors(parent(&pid), parent)
                .take_while(|pid| *pid > 1)
                .any(leads)
    }

    /// Whether a node of a job on several hosts is this machine.
    fn has(&self, node: NodeId) -> bool {
        self.steps.iter().any(|step| step.node == Some(node))
    }

    /// The numbers and names of the nodes with running ranks, each once.
    pub fn nodes(&self) -> Vec<(u32, String)> {
        let nodes = self.ranks.iter().filter_map(|rank| rank.node.clone());
        let mut nodes: Vec<_> = nodes.collect();
        nodes.sort();
        nodes.dedup();
        nodes
    }
}

/// The jobs of this machine, by time of start.
pub fn list(scope: UserScope) -> Vec<LocalJobInfo> {
    let mut jobs = discover::jobs(&snapshot::Snapshot::take(), scope);
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
