//! The children of this process: those whose end has an owner, and processes that lost their parent inside the job.

use std::collections::BTreeSet;

use rustix::process::Pid;

use super::raw;
use wireup_sys::leftovers;
use wireup_sys::procfs::Process;
use wireup_sys::zombie;

/// Orphans that are remembered, because of possible leftovers.
const ORPHANS: usize = 1024;

/// Collects the children of this process that have no other owner.
#[derive(Debug)]
pub(super) struct ProcessReaper {
    /// Processes whose exit has an owner.
    owned: BTreeSet<i32>,
    /// Processes of the job that lost their parent and were collected here; the first ones.
    orphans: BTreeSet<i32>,
    /// Children this process had before it started any, and those that serve mounts of containers.
    preexisting: BTreeSet<i32>,
    guard: Pid,
}

impl ProcessReaper {
    /// A reaper of a process that had these children before it started any, beside its guard.
    pub(super) fn new(preexisting: BTreeSet<i32>, guard: Pid) -> Self {
        Self {
            owned: BTreeSet::new(),
            orphans: BTreeSet::new(),
            preexisting,
            guard,
        }
    }

    /// Adds processes of this launcher or step that are not the job's.
    pub(super) fn add_preexisting(&mut self, processes: Vec<i32>) {
        self.preexisting.extend(processes);
    }

    /// A process was started whose end its owner collects.
    pub(super) fn add_owned(&mut self, pid: Pid) {
        self.owned.insert(raw(pid));
    }

    /// The owner of a process has collected its end.
    pub(super) fn remove_owned(&mut self, pid: Pid) {
        self.owned.remove(&raw(pid));
    }

    /// Collects processes that lost their parent inside the job and came to us.
    ///
    /// Only one zombie can be inspected without reaping it. If that one has an owner, its owner
    /// will come here again after collecting it.
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

    /// The orphans that were collected; the first ones.
    pub(super) fn orphans(&self) -> &BTreeSet<i32> {
        &self.orphans
    }

    /// The running processes of the job, after its ranks and sidecars were reaped: orphans
    /// come to us, so everything descends from this process.
    pub(super) fn leftovers(&self) -> Vec<Process> {
        let mut others = self.preexisting.clone();
        others.insert(raw(self.guard));
        leftovers::find_descendants(raw(rustix::process::getpid()), &others)
    }

    /// Whether processes of the job are left. The guard does not count as a child here.
    pub(super) fn any_leftovers(&self) -> bool {
        if self.preexisting.is_empty() {
            // An orphan from a launch inside the job may not be one of its processes.
            leftovers::has_children()
                && !(leftovers::has_rendezvous() && self.leftovers().is_empty())
        } else {
            !self.leftovers().is_empty()
        }
    }
}
