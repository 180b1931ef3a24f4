//! Signals to the ranks' processes.

use rustix::process::Signal;

use super::raw;
use super::step_context::StepContext;
use crate::plan::planned_jobs::Plans as _;
use crate::start_ranks::THREAD;
use wireup_core::job::ids::GlobalRank;
use wireup_sys::leftovers;
use wireup_sys::procfs;

/// Sends a signal to the process groups of those of these ranks that run on this host. A rank that is being started gets
/// it when its starting thread has reported: before that its process may already run, and others may already know it.
/// (Ranks that start during the termination of the launch are killed then.)
pub(super) fn signal_ranks(cx: &mut StepContext, ranks: &[GlobalRank], signal: Signal) {
    for &rank in ranks {
        let node = cx.jobs.node_of(rank);
        if !node.is_some_and(|node| cx.scope.holds(node)) {
            continue;
        }
        let ending = cx.ending;
        let process = cx.slot_mut(rank);
        match process.is_planned() {
            true if ending => {}
            true => process.deferred_signals.push(signal),
            false => process.signal(signal),
        }
    }
}

/// Sends a signal to the process groups of all ranks here.
pub(super) fn signal_all(cx: &mut StepContext, signal: i32) {
    cx.killed |= signal == libc::SIGKILL;
    if let Some(signal) = Signal::from_named_raw(signal) {
        let ranks = cx.local_ranks();
        signal_ranks(cx, &ranks, signal);
    }
}

/// Returns the local ranks that are stopped at exec, as requested.
pub(super) fn stopped_ranks(cx: &StepContext) -> Vec<GlobalRank> {
    let mut ranks = cx.local_ranks();
    ranks.retain(|rank| is_stopped(cx, *rank));
    ranks
}

fn is_stopped(cx: &StepContext, rank: GlobalRank) -> bool {
    let (plan, number) = cx.jobs.plan_of(cx.look_up(rank));
    let Some(pid) = cx.slot(rank).running_pid() else {
        return false;
    };
    let stops = plan.job.debug.on_exec.as_ref();
    stops.is_some_and(|stops| stops.holds(number))
        && procfs::process(raw(pid)).is_some_and(|process| process.is_stopped())
}

/// Kills processes that were stopped between clone and exec and for which starting threads wait. Called when everything
/// else has been killed; until then the user may continue them.
pub(super) fn kill_stopped_starts() {
    let own = raw(rustix::process::getpid());
    let mut stopped = procfs::processes();
    stopped.retain(|process| {
        // Before it executes its program, a process has the name of its starting thread.
        let starts = THREAD.to_str() == Ok(&process.name);
        process.parent == own && starts && process.is_stopped()
    });
    leftovers::signal(&stopped, Signal::KILL);
}
