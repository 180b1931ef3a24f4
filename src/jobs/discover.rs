//! Derives jobs from a snapshot. No I/O.
//!
//! - A launcher's ranks are its children that lead a session and have the name of one job in their environment, not
//!   that of a job to which the launcher itself belongs. A launcher adopts orphaned descendants of its ranks,
//!   so the earliest such child gives the job, and the earliest of several with one rank is the
//!   rank.
//! - On several hosts, ranks are children of step daemons, which are children of the hosts' agents. The labels of
//!   launcher and step daemons name the job. All of them on this machine with one user and one name form one job: several
//!   agents may serve one machine.
//! - Between fork and exec a child looks like its launcher: same arguments, same environment.
//! - Processes without a launcher form a job of their own if the launcher has certainly exited: not if it may belong to
//!   another user, or be outside this PID namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

use super::snapshot::{JobTag, ProcessRole, ProcessSnapshot, Snapshot};
use super::{JobLifeState, JobStep, LocalJobInfo, Rank};
use crate::backend::job_label::{self, JobStage};
use wireup_sys::procfs::{self, Process};

/// Process name of an agent.
const AGENT: &str = "wireup-agent";

/// Users whose jobs are requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserScope {
    User(u32),
    /// All users; the environment of others' processes is readable for root alone.
    All,
}

/// Derives the jobs, oldest first. [`Rank::command`] stays empty.
pub fn jobs(snapshot: &Snapshot, scope: UserScope) -> Vec<LocalJobInfo> {
    let look = ProcessTree::new(snapshot);
    let mut jobs: Vec<LocalJobInfo> = look.led().iter().map(|led| look.job(led)).collect();
    let known: BTreeSet<&String> = jobs.iter().filter_map(|job| job.name.as_ref()).collect();
    let orphans = look.orphans(&known);
    jobs.extend(orphans);
    jobs.retain(|job| match scope {
        UserScope::User(uid) => job.uid == uid,
        UserScope::All => true,
    });
    jobs.sort_by_key(|job| (std::cmp::Reverse(job.elapsed), job.pid()));
    jobs
}

/// Snapshot with the relations of its processes.
struct ProcessTree<'a> {
    snapshot: &'a Snapshot,
    by_pid: BTreeMap<i32, &'a ProcessSnapshot>,
    children: BTreeMap<i32, Vec<&'a ProcessSnapshot>>,
    launchers: Vec<&'a ProcessSnapshot>,
    steps: Vec<&'a ProcessSnapshot>,
}

/// Launcher and step daemons of a job on this machine; at least one of them.
struct JobLeader<'a> {
    name: Option<String>,
    /// The launcher, else a step daemon.
    first: &'a ProcessSnapshot,
    launcher: Option<&'a ProcessSnapshot>,
    steps: Vec<&'a ProcessSnapshot>,
}

impl<'a> ProcessTree<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let living = || {
            let all = snapshot.processes.iter();
            all.filter(|entry| !entry.process.has_ended())
        };
        let by_pid: BTreeMap<i32, &ProcessSnapshot> =
            living().map(|entry| (entry.process.pid, entry)).collect();
        let mut children: BTreeMap<i32, Vec<&ProcessSnapshot>> = BTreeMap::new();
        for entry in living() {
            children
                .entry(entry.process.parent)
                .or_default()
                .push(entry);
        }
        let copied = |entry: &ProcessSnapshot| {
            let parent = by_pid.get(&entry.process.parent);
            parent.is_some_and(|parent| {
                let same = match is_step(entry) {
                    true => is_step(parent),
                    false => command(parent).is_some() && command(parent) == command(entry),
                };
                same && parent.mark == entry.mark
            })
        };
        let originals = || living().filter(|entry| !copied(entry));
        Self {
            snapshot,
            launchers: originals()
                .filter(|entry| command(entry).is_some())
                .collect(),
            steps: originals().filter(|entry| is_step(entry)).collect(),
            by_pid,
            children,
        }
    }

    fn children(&self, pid: i32) -> &[&'a ProcessSnapshot] {
        self.children.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// Launcher and step daemons of each job that has any.
    fn led(&self) -> Vec<JobLeader<'a>> {
        let launchers = self.launchers.iter().map(|entry| JobLeader {
            name: self.name(entry),
            first: entry,
            launcher: Some(*entry),
            steps: Vec::new(),
        });
        let mut all: Vec<JobLeader<'a>> = launchers.collect();
        for step in &self.steps {
            let name = self.name(step);
            let same = |led: &&mut JobLeader<'a>| {
                name.is_some() && led.name == name && led.first.uid == step.uid
            };
            match all.iter_mut().find(same) {
                Some(led) => led.steps.push(*step),
                None => all.push(JobLeader {
                    name,
                    first: step,
                    launcher: None,
                    steps: vec![*step],
                }),
            }
        }
        all
    }

    /// Name of the job of a launcher or step daemon: from its label, else from its ranks.
    fn name(&self, leader: &ProcessSnapshot) -> Option<String> {
        if let Some(label) = label(leader) {
            return Some(label.job.clone());
        }
        let within = leader.mark.as_ref().map(|mark| &mark.job);
        let children = self.children(leader.process.pid);
        let named = children.iter().filter(|child| {
            let own = child.mark.as_ref().map(|mark| &mark.job);
            own.is_some() && own != within && leads(&child.process)
        });
        let first = named.min_by_key(|child| child.process.started);
        first.and_then(|child| child.mark.as_ref().map(|mark| mark.job.clone()))
    }

    /// Description of the job with this launcher and these step daemons.
    fn job(&self, led: &JobLeader<'a>) -> LocalJobInfo {
        let name = led.name.as_ref();
        let leaders = led.launcher.iter().chain(&led.steps);
        let children: Vec<&ProcessSnapshot> = leaders
            .flat_map(|leader| self.children(leader.process.pid))
            .copied()
            .collect();
        let ranks = name.map_or_else(Vec::new, |name| self.ranks(children.iter().copied(), name));
        let members = name.map_or_else(Vec::new, |name| self.members(name));
        let command = command(led.first).unwrap_or_default().to_vec();
        let placement = label(led.first).map(|label| label.placement.clone());
        let of_members = |number: fn(&JobTag) -> Option<u32>| {
            let marks = members.iter().map(|member| member.1);
            let mut own = marks.filter(|mark| mark.spawned_job == 0);
            own.find_map(number)
        };
        let size = match &placement {
            Some(placement) => Some(placement.ranks.size()),
            None => of_members(|mark| mark.size),
        };
        let node_count = match &placement {
            Some(placement) => u32::try_from(placement.present_hosts().count()).ok(),
            None => of_members(|mark| mark.nodes),
        };
        let mut steps: Vec<JobStep> = led.steps.iter().map(|entry| step(entry)).collect();
        steps.sort_by_key(|step| (step.node, step.process.pid));
        LocalJobInfo {
            name: led.name.clone(),
            uid: led.first.uid,
            state: self.state(led, &ranks, &children),
            within: led.first.mark.as_ref().map(|mark| mark.job.clone()),
            ranks,
            size,
            node_count,
            elapsed: self.age(&led.first.process),
            command,
            members: members.into_iter().map(|member| member.0).collect(),
            launcher: led.launcher.map(|entry| entry.process.clone()),
            steps,
            placement,
        }
    }

    /// State of the job with this launcher and these step daemons.
    fn state(
        &self,
        leader: &JobLeader<'_>,
        ranks: &[Rank],
        children: &[&ProcessSnapshot],
    ) -> JobLifeState {
        let stopped = |process: &Process| process.is_stopped();
        let ranks_stopped = !ranks.is_empty() && ranks.iter().all(|rank| stopped(&rank.process));
        let first = ranks.iter().filter(|rank| rank.spawned_job == 0).count();
        let starting = matches!(
            leader.first.role,
            Some(ProcessRole::Launcher { starting: true, .. })
        );
        let charge = children.iter().find_map(|child| match &child.role {
            Some(ProcessRole::Guard { charge }) => Some(charge),
            _ => None,
        });
        // A pidfd of an exited process in the guard shows that the job had ranks.
        let had_ranks = charge.is_some_and(|charge| charge.contains(&-1));
        let mut steps = leader.steps.iter();
        let is_orphaned =
            leader.launcher.is_none() && steps.any(|step| self.has_lost_its_agent(step));
        let shown = label(leader.first).map(|label| (label.stage, label.placement.ranks.size()));
        match shown {
            _ if stopped(&leader.first.process) && leader.launcher.is_some() => {
                JobLifeState::Stopped
            }
            _ if is_orphaned => JobLifeState::Orphaned,
            _ if stopped(&leader.first.process) => JobLifeState::Stopped,
            Some((JobStage::Starting, _)) => JobLifeState::Starting,
            Some((JobStage::Ending, _)) => JobLifeState::Ending,
            // The snapshot does not contain ranks on other machines.
            Some((JobStage::Running, size)) => {
                let all = leader.launcher.is_none() || first == size as usize;
                match ranks_stopped && all {
                    true => JobLifeState::Stopped,
                    false => JobLifeState::Running,
                }
            }
            None if ranks.is_empty() && had_ranks => JobLifeState::Ending,
            None if ranks.is_empty() || starting => JobLifeState::Starting,
            None if ranks_stopped => JobLifeState::Stopped,
            None => JobLifeState::Running,
        }
    }

    /// Whether the agent of a step daemon has exited; false if it may be outside this PID namespace.
    fn has_lost_its_agent(&self, step: &ProcessSnapshot) -> bool {
        let parent = step.process.parent;
        match self.by_pid.get(&parent) {
            Some(parent) => parent.process.name != AGENT,
            // Only init is identified by its pid alone.
            None => parent == 1,
        }
    }

    /// Finds the jobs without a launcher.
    fn orphans(&self, known: &BTreeSet<&String>) -> Vec<LocalJobInfo> {
        let mut names: BTreeSet<&String> = BTreeSet::new();
        for entry in self.by_pid.values() {
            names.extend(entry.mark.as_ref().map(|mark| &mark.job));
        }
        let mut found = Vec::new();
        for name in names.difference(known) {
            let marked = self.by_pid.values().copied();
            let marked: Vec<&ProcessSnapshot> = marked
                .filter(|entry| entry.mark.as_ref().is_some_and(|mark| mark.job == **name))
                .collect();
            let leaders = marked.iter().copied().filter(|entry| leads(&entry.process));
            let Some(first) = leaders.min_by_key(|entry| entry.process.started) else {
                continue;
            };
            if !self.has_lost_its_launcher(first) {
                continue;
            }
            let ranks = self.ranks(marked.iter().copied(), name);
            let guarded = self.by_pid.values().any(|entry| match &entry.role {
                Some(ProcessRole::Guard { charge }) => marked
                    .iter()
                    .any(|member| charge.contains(&member.process.pid)),
                _ => false,
            });
            let marks = || marked.iter().filter_map(|entry| entry.mark.as_ref());
            let own = || marks().filter(|mark| mark.spawned_job == 0);
            found.push(LocalJobInfo {
                name: Some((*name).clone()),
                launcher: None,
                steps: Vec::new(),
                placement: None,
                uid: first.uid,
                state: match guarded {
                    true => JobLifeState::Ending,
                    false => JobLifeState::Orphaned,
                },
                within: None,
                size: own().find_map(|mark| mark.size),
                node_count: own().find_map(|mark| mark.nodes),
                elapsed: self.age(&first.process),
                command: Vec::new(),
                members: marked.iter().map(|entry| entry.process.clone()).collect(),
                ranks,
            });
        }
        found
    }

    /// Whether the launcher of a process has exited; false if it may be outside this PID namespace.
    fn has_lost_its_launcher(&self, entry: &ProcessSnapshot) -> bool {
        let parent = entry.process.parent;
        let Some(parent) = self.by_pid.get(&parent) else {
            // Only init is identified by its pid alone.
            return parent == 1;
        };
        // Another user's launcher has no known role. A launcher with a role belongs to another job and has
        // adopted processes of this one.
        let looks_like_one = parent.process.name == "wireup" && parent.role.is_none();
        !looks_like_one
    }

    /// Finds the ranks of a job among these processes.
    fn ranks<'s>(&self, among: impl Iterator<Item = &'s ProcessSnapshot>, job: &str) -> Vec<Rank> {
        let mut leaders: BTreeMap<(u32, u32), (&ProcessSnapshot, &JobTag)> = BTreeMap::new();
        for entry in among.filter(|entry| leads(&entry.process)) {
            let Some(mark) = entry.mark.as_ref().filter(|mark| mark.job == job) else {
                continue;
            };
            let Some(rank) = mark.rank else { continue };
            let place = (mark.spawned_job, rank);
            let known = leaders.entry(place).or_insert((entry, mark));
            if entry.process.started < known.0.process.started {
                *known = (entry, mark);
            }
        }
        let page = rustix::param::page_size() as u64;
        leaders
            .into_iter()
            .map(|((spawned_job, rank), (entry, mark))| {
                let below = self.process_subtree(&entry.process);
                Rank {
                    spawned_job,
                    rank,
                    process: entry.process.clone(),
                    node: mark.node.clone(),
                    cpu: procfs::ticks(below.iter().map(|process| process.cpu).sum()),
                    resident: below.iter().map(|process| process.resident * page).sum(),
                    command: Vec::new(),
                }
            })
            .collect()
    }

    /// Process and all its descendants.
    fn process_subtree(&self, process: &Process) -> Vec<&'a Process> {
        let mut all: Vec<&Process> = Vec::new();
        all.extend(self.by_pid.get(&process.pid).map(|entry| &entry.process));
        let mut at = 0;
        while let Some(process) = all.get(at) {
            let children = self.children(process.pid).iter();
            all.extend(children.map(|entry| &entry.process));
            at += 1;
        }
        all
    }

    /// Processes with a job's name in their environment.
    fn members(&self, job: &str) -> Vec<(Process, &'a JobTag)> {
        let marked = self.by_pid.values().filter_map(|entry| {
            let mark = entry.mark.as_ref().filter(|mark| mark.job == job)?;
            Some((entry.process.clone(), mark))
        });
        marked.collect()
    }

    fn age(&self, process: &Process) -> Duration {
        let started = procfs::ticks(process.started);
        self.snapshot.now.saturating_sub(started)
    }
}

/// Arguments of a process, if it is a launcher.
fn command(entry: &ProcessSnapshot) -> Option<&[OsString]> {
    match &entry.role {
        Some(ProcessRole::Launcher { command, .. }) => Some(command),
        _ => None,
    }
}

fn is_step(entry: &ProcessSnapshot) -> bool {
    matches!(entry.role, Some(ProcessRole::Step { .. }))
}

fn step(entry: &ProcessSnapshot) -> JobStep {
    JobStep {
        process: entry.process.clone(),
        node: label(entry).and_then(|label| label.placement.node),
    }
}

/// Label with which a launcher or step daemon shows its job on several hosts.
fn label(entry: &ProcessSnapshot) -> Option<&job_label::LabelContents> {
    match &entry.role {
        Some(ProcessRole::Launcher { label, .. } | ProcessRole::Step { label }) => label.as_deref(),
        _ => None,
    }
}

/// Whether a process leads a session, as ranks and PMIx servers do.
fn leads(process: &Process) -> bool {
    process.pid == process.session
}

#[cfg(test)]
pub(crate) mod tests;
