//! Finds and signals the jobs on this machine through `/proc`, for `wireup ps` and `wireup kill`.
//!
//! Jobs do not register: this costs nothing at start, and no record can be out of date. A job consists of its launcher (a
//! process of the executable `wireup` with the command `run`) and of the processes whose environment names the job. A
//! job on several hosts is found in part: its launcher, the step daemons of this machine's
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

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use discover::UserScope;

use crate::backend::job_label::LabelPlacement;
use crate::plan::launch_names::{LauncherProcess, own_host};
use wireup_core::job::ids::NodeId;
use wireup_sys::procfs::{self, Process};

/// State of a job between start and end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobLifeState {
    /// Ranks exist that have not been started.
    Starting,
    Running,
    /// The launcher, or every rank, was stopped by a signal.
    Stopped,
    /// No rank is left, or the launcher was killed and the guard cleans up.
    Ending,
    /// The launcher and the guard were killed, or the agent of a step daemon: no process will terminate the job,
    /// unless a step daemon does so by itself.
    Orphaned,
}

impl JobLifeState {
    /// Word for the state in the output of `wireup ps`.
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

/// Running rank with its process and resource usage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rank {
    /// Index of the rank's job: 0 for the initial job.
    pub spawned_job: u32,
    pub rank: u32,
    /// Process of the rank; leads a session.
    pub process: Process,
    /// Number and name of the rank's node.
    pub node: Option<(u32, String)>,
    /// Processor time of the process and all its descendants.
    pub cpu: Duration,
    /// Resident memory of the process and all its descendants, in bytes. Shared pages count once for
    /// each process.
    pub resident: u64,
    pub command: Vec<OsString>,
}

/// Step daemon that serves one node of a job on several hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobStep {
    pub process: Process,
    /// The node; `None` until the step daemon has the plan of the job.
    pub node: Option<NodeId>,
}

/// One job, or the part of one on several hosts that is on this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalJobInfo {
    /// Name of the job; `None` while no process of the job shows it.
    pub name: Option<String>,
    /// The launcher, if it runs on this machine.
    pub launcher: Option<Process>,
    /// On several hosts: step daemons on this machine, by node.
    pub steps: Vec<JobStep>,
    /// On several hosts: nodes and ranks; `None` while no process of the job shows them.
    pub placement: Option<LabelPlacement>,
    pub uid: u32,
    pub state: JobLifeState,
    /// Name of the job to which the launcher process belongs, if it belongs to one.
    pub within: Option<String>,
    /// Running ranks of the initial job on this machine, in rank order, then those of spawned jobs.
    pub ranks: Vec<Rank>,
    /// Number of ranks, exited ones included; `None` while no process of the job shows it.
    pub size: Option<u32>,
    /// Number of nodes; `None` while no process of the job shows it.
    pub node_count: Option<u32>,
    /// Time since the job started.
    pub elapsed: Duration,
    /// Arguments of the launcher, options included; without a launcher here, the argument vector of a rank.
    pub command: Vec<OsString>,
    /// Running processes of the job without launcher, step daemons and guards: ranks, their descendants, and PMIx
    /// servers.
    pub members: Vec<Process>,
}

impl LocalJobInfo {
    /// Process that represents the job for a user: the launcher, else a step daemon, else the first rank.
    pub fn pid(&self) -> Option<i32> {
        let rank = self.ranks.first().map(|rank| &rank.process);
        let process = self.leaders().next().or(rank);
        process
            .or_else(|| self.members.first())
            .map(|process| process.pid)
    }

    /// Running ranks of the initial job on this machine.
    pub fn first_ranks(&self) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().filter(|rank| rank.spawned_job == 0)
    }

    /// The launcher and the step daemons on this machine.
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

    /// Whether the job may have ranks on other machines.
    pub fn is_on_several_hosts(&self) -> bool {
        self.placement.is_some() || !self.steps.is_empty()
    }

    /// Ranks of the job on other machines, by host name, as far as a process of the job shows them.
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

    /// Step daemons on this machine, with the names of their nodes.
    pub fn nodes_here(&self) -> impl Iterator<Item = (&JobStep, Option<&str>)> {
        self.steps.iter().map(|step| {
            let placement = self.placement.as_ref();
            let name = placement.and_then(|placement| placement.host(step.node?));
            (step, name)
        })
    }

    /// Ranks of a step daemon's node, ascending; empty while the node is unknown.
    pub fn ranks_of(&self, step: &JobStep) -> impl Iterator<Item = u32> {
        let placement = self.placement.as_ref().zip(step.node);
        let ranks = placement.map(|(placement, node)| placement.ranks.ranks_on(node));
        ranks.into_iter().flatten().map(|rank| rank.0)
    }

    /// Whether a pid is that of a process of the job on this machine: a process of the job's user that has the job's name
    /// in its environment, or descends from the launcher or from a step daemon.
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

    /// Whether a step daemon on this machine serves a node.
    fn has(&self, node: NodeId) -> bool {
        self.steps.iter().any(|step| step.node == Some(node))
    }

    /// Numbers and names of the nodes with running ranks, ascending, each once.
    pub fn nodes(&self) -> Vec<(u32, String)> {
        let nodes = self.ranks.iter().filter_map(|rank| rank.node.clone());
        nodes.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Finds the jobs on this machine; oldest first.
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
