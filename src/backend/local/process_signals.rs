//! The ranks' processes from outside: signals to them, inspection of their loaded libraries, and
//! processes that lost their parent inside the job.

use rustix::process::{Signal, kill_process_group};

use crate::backend::local::{LocalBackend, RankProcess, raw};
use crate::backend::step_messages::StepToLauncher;
use crate::plan::planned_jobs::Plans as _;
use crate::report::running_ranks::find_mpi;
use crate::report::singleton_detection::MpiProcess;
use crate::start_ranks::THREAD;
use crate::sys::leftovers;
use crate::sys::procfs::{self, Process};
use crate::sys::zombie;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::GlobalRank;

/// Orphans that are remembered, because of possible leftovers.
const ORPHANS: usize = 1024;

impl LocalBackend {
    /// Sends a signal to the process groups of all ranks here.
    pub(super) fn signal_ranks(&mut self, signal: i32) {
        if let Some(signal) = Signal::from_named_raw(signal) {
            let ranks = self.scope.processes(&self.jobs);
            self.signal_some(&ranks, signal);
        }
    }

    /// Sends a signal to the process group of one rank, if it runs.
    pub(super) fn signal_rank(&self, rank: GlobalRank, signal: Signal) {
        if let RankProcess::Running { child, .. } = self.slot(rank) {
            // A group that is gone needs no signal.
            let _ = kill_process_group(child.pid, signal);
        }
    }

    /// Sends a signal to the process groups of these ranks, as far as they have not ended here. To one
    /// that is being started it goes when the thread that starts it has reported: until then it may
    /// have come far, and others may know it. (What starts while everything ends is ended then.)
    pub(super) fn signal_some(&mut self, ranks: &[GlobalRank], signal: Signal) {
        for &rank in ranks {
            let node = self.jobs.node_of(rank);
            if !node.is_some_and(|node| self.scope.holds(node)) {
                continue;
            }
            match self.slot(rank) {
                RankProcess::Planned if self.ending => {}
                RankProcess::Planned => self.deferred_signals.entry(rank).or_default().push(signal),
                _ => self.signal_rank(rank, signal),
            }
        }
    }

    /// Ranks here that wait for a debugger go on, or it is reported that there are some.
    pub(super) fn let_go(&mut self, report: bool) {
        let stopped: Vec<GlobalRank> = self.scope.processes(&self.jobs);
        let stopped = stopped.into_iter().filter(|rank| self.is_stopped(*rank));
        let stopped: Vec<GlobalRank> = stopped.collect();
        if report {
            if !stopped.is_empty() || self.nodes.iter().any(|node| node.core.has_stopped_ranks()) {
                self.report(StepToLauncher::Held);
            }
            return;
        }
        self.signal_some(&stopped, Signal::CONT);
        for index in 0..self.nodes.len() {
            let (now, mut actions) = (Moment(self.now()), Vec::new());
            self.nodes[index]
                .core
                .with_actions(now, &mut actions, |core| core.release_stopped_ranks());
            self.execute_actions(self.scope.node_at(index), actions);
        }
    }

    /// Whether a rank is stopped that was to be before it began.
    fn is_stopped(&self, rank: GlobalRank) -> bool {
        let (plan, number) = self.jobs.plan_of(self.look_up(rank));
        let RankProcess::Running { child, .. } = self.slot(rank) else {
            return false;
        };
        let wanted = plan.job.debug.on_exec.as_ref();
        wanted.is_some_and(|stops| stops.holds(number))
            && procfs::process(raw(child.pid)).is_some_and(|process| process.is_stopped())
    }

    /// Sends what a rank was owed before it was known to run.
    pub(super) fn send_deferred_signals(&mut self, rank: GlobalRank) {
        for signal in self.deferred_signals.remove(&rank).into_iter().flatten() {
            self.signal_rank(rank, signal);
        }
    }

    /// Ends processes that were stopped between clone and exec, whose starting threads wait for them, when everything
    /// else has been killed. Until then it is the user's choice whether they go on.
    pub(super) fn kill_stopped_starts(&self) {
        let own = raw(rustix::process::getpid());
        let mut stopped = procfs::processes();
        stopped.retain(|process| {
            // Until it executes its program, it has the name of the thread that made it.
            let starts = THREAD.to_str() == Ok(&process.name);
            process.parent == own && starts && process.is_stopped()
        });
        leftovers::signal(&stopped, Signal::KILL);
    }

    /// Looks at the processes of these ranks until one is found that has loaded an MPI.
    pub(super) fn find_local_mpi(&self, ranks: &[GlobalRank]) -> Option<MpiProcess> {
        let mut ranks = ranks.iter();
        ranks.find_map(|rank| match self.slot(*rank) {
            RankProcess::Running { child, .. } => find_mpi(raw(child.pid)),
            RankProcess::Planned | RankProcess::Over => None,
        })
    }

    /// Collects processes that lost their parent inside the job and came to us.
    ///
    /// Only one zombie can be inspected without reaping it. If that one has an owner, its owner
    /// will come here again after collecting it.
    pub(crate) fn reap_orphans(&mut self) {
        if self.jobs.jobs().any(|(_, job)| job.unreported > 0) {
            // A rank may have ended before its starting thread reported it.
            return;
        }
        while let Some(pid) = zombie::first() {
            if self.owned_pids.contains(&raw(pid)) || !zombie::collect(pid) {
                return;
            }
            if self.orphans.len() < ORPHANS {
                self.orphans.insert(raw(pid));
            }
        }
    }

    /// The running processes of the job, after its ranks and sidecars were reaped: orphans
    /// come to us, so everything descends from this process.
    pub(super) fn leftovers(&self) -> Vec<Process> {
        let mut others = self.preexisting_children.clone();
        others.insert(raw(self.guard.pid()));
        leftovers::find_descendants(raw(rustix::process::getpid()), &others)
    }

    /// Whether there are any. The guard does not count as a child here.
    pub(super) fn any_leftovers(&self) -> bool {
        if self.preexisting_children.is_empty() {
            // An orphan from a launch inside the job may not be one of its processes.
            leftovers::has_children()
                && !(leftovers::has_rendezvous() && self.leftovers().is_empty())
        } else {
            !self.leftovers().is_empty()
        }
    }
}
