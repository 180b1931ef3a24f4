//! Reaps the children of this process that no other part waits for: processes of the job that have lost their parent.

use std::collections::BTreeSet;

use rustix::process::Pid;

use super::raw;
use wireup_sys::leftovers;
use wireup_sys::procfs::Process;
use wireup_sys::zombie;

/// Maximum number of orphans that are remembered for the removal of their files.
const ORPHANS: usize = 1024;

/// Collects the children of this process that have no other owner.
#[derive(Debug)]
pub(super) struct ProcessReaper {
    /// Pids of processes that another part reaps.
    owned: BTreeSet<i32>,
    /// Pids of the first orphans of the job that were reaped here.
    pub(super) orphans: BTreeSet<i32>,
    /// Pids of children that this process had before it started any, and of those that serve mounts of containers.
    pub(super) preexisting: BTreeSet<i32>,
    guard: Pid,
}

impl ProcessReaper {
    /// Creates the reaper of a process that had these children, and its guard, before it started any.
    pub(super) fn new(preexisting: BTreeSet<i32>, guard: Pid) -> Self {
        Self {
            owned: BTreeSet::new(),
            orphans: BTreeSet::new(),
            preexisting,
            guard,
        }
    }

    /// Adds a started process that its owner reaps.
    pub(super) fn add_owned(&mut self, pid: Pid) {
        self.owned.insert(raw(pid));
    }

    /// Removes a process that its owner has reaped.
    pub(super) fn remove_owned(&mut self, pid: Pid) {
        self.owned.remove(&raw(pid));
    }

    /// Reaps processes of the job that have lost their parent and became children of this process.
    ///
    /// Only one zombie can be inspected without reaping it. If that one has an owner, the owner calls this again after it
    /// has reaped it.
    pub(super) fn reap_orphans(&mut self) {
        while let Some(pid) = zombie::first() {
            if self.owned.contains(&raw(pid)) || !zombie::collect(pid) {
                return;
            }
            if self.orphans.len() < ORPHANS {
                self.orphans.insert(raw(pid));
            }
        }
    }

    /// Returns the running processes of the job, after its ranks and sidecars were reaped. They all descend from this process,
    /// which adopts orphans.
    pub(super) fn leftovers(&self) -> Vec<Process> {
        let mut others = self.preexisting.clone();
        others.insert(raw(self.guard));
        leftovers::find_descendants(raw(rustix::process::getpid()), &others)
    }

    /// Whether processes of the job are left. The guard does not count.
    pub(super) fn any_leftovers(&self) -> bool {
        if self.preexisting.is_empty() {
            // An orphan of a launch within the job may not belong to the job.
            leftovers::has_children()
                && !(leftovers::has_rendezvous() && self.leftovers().is_empty())
        } else {
            !self.leftovers().is_empty()
        }
    }
}
