//! Makes jobs of what was seen; no I/O.
//!
//! - A launcher's ranks are its children that lead a session and carry the name of one job, which
//!   is not that of a job the launcher itself belongs to. A launcher adopts orphans of its ranks, so
//!   the earliest such child tells the job, and the earliest of several with one rank is the rank.
//! - Between fork and exec a child looks like the launcher it comes from: same arguments, same
//!   environment.
//! - Processes of a job whose launcher is not there are a job of their own, if it is certain that the
//!   launcher is gone: not if it is another user's, or outside this PID namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::time::Duration;

use super::snapshot::{Mark, Role, Seen, Snapshot};
use super::{Job, Rank, State};
use crate::agent::procfs::{self, Process};

/// Whose jobs are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// This user's.
    User(u32),
    /// Everybody's whose environment can be read.
    All,
}

/// The jobs, by time of start. The argument vectors of ranks are not filled in.
pub fn jobs(snapshot: &Snapshot, scope: Scope) -> Vec<Job> {
    let look = Look::new(snapshot);
    let mut jobs: Vec<Job> = look.launchers.iter().map(|seen| look.job(seen)).collect();
    let known: BTreeSet<&String> = jobs.iter().filter_map(|job| job.name.as_ref()).collect();
    let orphans = look.orphans(&known);
    jobs.extend(orphans);
    jobs.retain(|job| match scope {
        Scope::User(uid) => job.uid == uid,
        Scope::All => true,
    });
    jobs.sort_by_key(|job| (std::cmp::Reverse(job.elapsed), job.pid()));
    jobs
}

/// A snapshot with its relations.
struct Look<'a> {
    snapshot: &'a Snapshot,
    by_pid: BTreeMap<i32, &'a Seen>,
    children: BTreeMap<i32, Vec<&'a Seen>>,
    launchers: Vec<&'a Seen>,
}

impl<'a> Look<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let living = || {
            let all = snapshot.processes.iter();
            all.filter(|seen| !seen.process.has_ended())
        };
        let by_pid: BTreeMap<i32, &Seen> = living().map(|seen| (seen.process.pid, seen)).collect();
        let mut children: BTreeMap<i32, Vec<&Seen>> = BTreeMap::new();
        for seen in living() {
            children.entry(seen.process.parent).or_default().push(seen);
        }
        let copied = |seen: &Seen| {
            let parent = by_pid.get(&seen.process.parent);
            parent.is_some_and(|parent| {
                command(parent).is_some_and(|words| command(seen) == Some(words))
                    && parent.mark == seen.mark
            })
        };
        let launchers = living().filter(|seen| command(seen).is_some());
        let launchers = launchers.filter(|seen| !copied(seen)).collect();
        Self {
            snapshot,
            by_pid,
            children,
            launchers,
        }
    }

    fn children(&self, pid: i32) -> &[&'a Seen] {
        self.children.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// The job of a launcher.
    fn job(&self, launcher: &Seen) -> Job {
        let children = self.children(launcher.process.pid);
        let within = launcher.mark.as_ref().map(|mark| &mark.job);
        let named = children.iter().filter(|child| {
            let own = child.mark.as_ref().map(|mark| &mark.job);
            own.is_some() && own != within && leads(&child.process)
        });
        let first = named.min_by_key(|child| child.process.started);
        let name = first.and_then(|child| child.mark.as_ref().map(|mark| mark.job.clone()));
        let ranks = name
            .as_ref()
            .map_or_else(Vec::new, |name| self.ranks(children.iter().copied(), name));
        let members = name
            .as_ref()
            .map_or_else(Vec::new, |name| self.members(name));
        let (command, starting) = match &launcher.role {
            Some(Role::Launcher { command, starting }) => (command.clone(), *starting),
            _ => (Vec::new(), false),
        };
        let size = members.iter().find_map(|member| member.1.size);
        let node_count = members.iter().find_map(|member| member.1.nodes);
        let charge = children.iter().find_map(|child| match &child.role {
            Some(Role::Guard { charge }) => Some(charge),
            _ => None,
        });
        // Before the first rank its guard knows of none that has ended.
        let had_ranks = charge.is_some_and(|charge| charge.contains(&-1));
        let stopped = |process: &Process| process.is_stopped();
        let state = match () {
            () if stopped(&launcher.process) => State::Stopped,
            () if ranks.is_empty() && had_ranks => State::Ending,
            () if ranks.is_empty() || starting => State::Starting,
            () if ranks.iter().all(|rank| stopped(&rank.process)) => State::Stopped,
            () => State::Running,
        };
        Job {
            name,
            uid: launcher.uid,
            state,
            within: within.cloned(),
            ranks,
            size,
            node_count,
            elapsed: self.age(&launcher.process),
            command,
            tmpdirs: tmpdirs(members.iter().map(|member| member.1)),
            members: members.into_iter().map(|member| member.0).collect(),
            launcher: Some(launcher.process.clone()),
        }
    }

    /// Jobs none of whose launchers is there.
    fn orphans(&self, known: &BTreeSet<&String>) -> Vec<Job> {
        let mut names: BTreeSet<&String> = BTreeSet::new();
        for seen in self.by_pid.values() {
            names.extend(seen.mark.as_ref().map(|mark| &mark.job));
        }
        let mut found = Vec::new();
        for name in names.difference(known) {
            let marked = self.by_pid.values().copied();
            let marked: Vec<&Seen> = marked
                .filter(|seen| seen.mark.as_ref().is_some_and(|mark| mark.job == **name))
                .collect();
            let leaders = marked.iter().copied().filter(|seen| leads(&seen.process));
            let Some(first) = leaders.min_by_key(|seen| seen.process.started) else {
                continue;
            };
            if !self.has_lost_its_launcher(first) {
                continue;
            }
            let ranks = self.ranks(marked.iter().copied(), name);
            let guarded = self.by_pid.values().any(|seen| match &seen.role {
                Some(Role::Guard { charge }) => marked
                    .iter()
                    .any(|member| charge.contains(&member.process.pid)),
                _ => false,
            });
            let marks = || marked.iter().filter_map(|seen| seen.mark.as_ref());
            found.push(Job {
                name: Some((*name).clone()),
                launcher: None,
                uid: first.uid,
                state: match guarded {
                    true => State::Ending,
                    false => State::Orphaned,
                },
                within: None,
                size: marks().find_map(|mark| mark.size),
                node_count: marks().find_map(|mark| mark.nodes),
                elapsed: self.age(&first.process),
                command: Vec::new(),
                tmpdirs: tmpdirs(marks()),
                members: marked.iter().map(|seen| seen.process.clone()).collect(),
                ranks,
            });
        }
        found
    }

    /// Whether the launcher of a process has ended, rather than being out of sight.
    fn has_lost_its_launcher(&self, seen: &Seen) -> bool {
        let parent = seen.process.parent;
        let Some(parent) = self.by_pid.get(&parent) else {
            // Nobody but init is known by its number alone.
            return parent == 1;
        };
        // Somebody else's launcher cannot be looked into. One that can be is another job's, which
        // adopted this one's processes.
        let looks_like_one = parent.process.name == "wireup" && parent.role.is_none();
        !looks_like_one
    }

    /// The ranks of a job among these processes.
    fn ranks<'s>(&self, among: impl Iterator<Item = &'s Seen>, job: &str) -> Vec<Rank> {
        let mut leaders: BTreeMap<u32, (&Seen, &Mark)> = BTreeMap::new();
        for seen in among.filter(|seen| leads(&seen.process)) {
            let Some(mark) = seen.mark.as_ref().filter(|mark| mark.job == job) else {
                continue;
            };
            let Some(rank) = mark.rank else { continue };
            let known = leaders.entry(rank).or_insert((seen, mark));
            if seen.process.started < known.0.process.started {
                *known = (seen, mark);
            }
        }
        let page = rustix::param::page_size() as u64;
        leaders
            .into_iter()
            .map(|(rank, (seen, mark))| {
                let below = self.below(&seen.process);
                Rank {
                    rank,
                    process: seen.process.clone(),
                    node: mark.node.clone(),
                    cpu: procfs::ticks(below.iter().map(|process| process.cpu).sum()),
                    resident: below.iter().map(|process| process.resident * page).sum(),
                    command: Vec::new(),
                }
            })
            .collect()
    }

    /// A process and all that descend from it.
    fn below(&self, process: &Process) -> Vec<&'a Process> {
        let mut all: Vec<&Process> = Vec::new();
        all.extend(self.by_pid.get(&process.pid).map(|seen| &seen.process));
        let mut at = 0;
        while let Some(process) = all.get(at) {
            all.extend(self.children(process.pid).iter().map(|seen| &seen.process));
            at += 1;
        }
        all
    }

    /// The processes that carry a job's name.
    fn members(&self, job: &str) -> Vec<(Process, &'a Mark)> {
        let marked = self.by_pid.values().filter_map(|seen| {
            let mark = seen.mark.as_ref().filter(|mark| mark.job == job)?;
            Some((seen.process.clone(), mark))
        });
        marked.collect()
    }

    fn age(&self, process: &Process) -> Duration {
        let started = procfs::ticks(process.started);
        self.snapshot.now.saturating_sub(started)
    }
}

fn tmpdirs<'m>(marks: impl Iterator<Item = &'m Mark>) -> Vec<OsString> {
    let given: BTreeSet<&OsString> = marks.filter_map(|mark| mark.tmpdir.as_ref()).collect();
    given.into_iter().cloned().collect()
}

/// What a launcher was told to run.
fn command(seen: &Seen) -> Option<&[OsString]> {
    match &seen.role {
        Some(Role::Launcher { command, .. }) => Some(command),
        _ => None,
    }
}

/// Ranks and PMIx servers lead sessions of their own.
fn leads(process: &Process) -> bool {
    process.pid == process.session
}

#[cfg(test)]
pub(super) mod tests;
