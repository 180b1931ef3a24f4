//! Passes pushed input to local ranks, and ends their input.

use super::local_job::LocalJob;
use super::push_pipes::{PushPipe, PushResults};
use super::step_context::StepContext;
use crate::plan::planned_jobs::Plans as _;
use wireup_core::job::ids::{GlobalRank, JobIndex};
use wireup_core::node::event::StdinWriteResult;

/// Writes as much as fits into a rank's pipe, and closes a pipe that accepts no more.
fn write(cx: &mut StepContext, rank: GlobalRank) -> PushResults {
    let index = cx.scope.local_index(&cx.jobs, rank);
    let Some(pipe) = &mut cx.ranks.at_mut(index).pushed else {
        return Vec::new();
    };
    let (mut results, is_open) = pipe.write(&cx.poll);
    if !is_open {
        results.extend(close(cx, rank));
    }
    results
}

/// Handles input of a process for a local rank.
pub(super) fn push(
    cx: &mut StepContext,
    rank: GlobalRank,
    number: u64,
    bytes: &[u8],
) -> PushResults {
    match &mut cx.slot_mut(rank).pushed {
        Some(pipe) => match pipe.queue(number, bytes) {
            true => write(cx, rank),
            false => vec![(number, StdinWriteResult::Full)],
        },
        None => vec![(number, error_of(cx, rank))],
    }
}

/// Returns the local ranks to which processes of a job could push input: those of its child jobs.
pub(super) fn readers_of(cx: &StepContext, job: JobIndex) -> Vec<GlobalRank> {
    let Some(feeder) = cx.jobs.get(job).map(LocalJob::nspace) else {
        return Vec::new();
    };
    let jobs = cx.jobs.jobs();
    let children = jobs.filter(|(_, child)| child.parent() == Some(feeder));
    let ranks = children.flat_map(|(child, _)| cx.scope.processes_of(&cx.jobs, child));
    let readers = ranks.filter(|rank| cx.slot(*rank).pushed.is_some());
    readers.collect()
}

/// Ends the input of a rank: it reads the queued input, and then the end of file.
pub(super) fn push_end(cx: &mut StepContext, rank: GlobalRank) -> PushResults {
    if let Some(pipe) = &mut cx.slot_mut(rank).pushed {
        pipe.queue_end();
    }
    write(cx, rank)
}

/// Returns the reason for which input for a rank is refused.
fn error_of(cx: &StepContext, rank: GlobalRank) -> StdinWriteResult {
    let (job, rank) = cx.jobs.plan_of(cx.look_up(rank));
    // Ranks of the initial job read the launcher's input.
    match job.spec.stdio.stdin.reads(rank) && job.origin.is_some() {
        true => StdinWriteResult::Gone,
        false => StdinWriteResult::NoPipe,
    }
}

/// Handles a rank's pipe that is writable, or has lost its readers.
pub(super) fn ready(cx: &mut StepContext, rank: GlobalRank) -> PushResults {
    let pipe = cx.slot(rank).pushed.as_ref();
    match pipe.is_some_and(PushPipe::is_idle) {
        true => close(cx, rank),
        false => write(cx, rank),
    }
}

/// Closes the pipe of a rank that reads no more. Returns the results of the pieces that it did not get.
pub(super) fn close(cx: &mut StepContext, rank: GlobalRank) -> PushResults {
    let pipe = cx.slot_mut(rank).pushed.take();
    pipe.map_or_else(Vec::new, |pipe| pipe.close(&cx.poll))
}
