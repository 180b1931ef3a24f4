//! The line about a failure of the launch.

use super::launch_context::LaunchContext;
use crate::backend::step_links::StepLinks;
use crate::report::failures;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::{FailureCause, RankEnd};

/// Returns the line about a cause of failure; `None` if the cause needs no line.
pub(super) fn failure_line(cx: &LaunchContext, cause: Option<&FailureCause>) -> Option<String> {
    let cause = cause?;
    let rank = cause.rank().and_then(|rank| cx.jobs.look_up(rank));
    let state = rank.map(|rank| cx.pmi_state(rank));
    let pid_of = |rank| cx.ranks.get(rank).pid;
    let mut line = failures::failure(&cx.jobs, cause, state.as_ref(), &pid_of)?;
    let supervisor = &cx.supervisor;
    let ended = supervisor.cause() == Some(cause);
    let in_vain = ended && supervisor.waited_in_vain();
    if in_vain {
        line.push_str("; other ranks wait for it");
    }
    match cause {
        FailureCause::Interrupted(_) => {
            if let Some(sender) = &cx.failure_facts.signal_sender {
                line.extend([" from ", sender]);
            }
        }
        FailureCause::RankFailed {
            end: RankEnd::Signal(signal),
            ..
        } => {
            if let Some(more) = rank.and_then(|rank| about_death(cx, rank, *signal)) {
                line.extend(["; ", &more]);
            }
        }
        _ => {}
    }
    let others = match cause {
        FailureCause::Timeout(_) => "had not ended",
        FailureCause::NeverJoined { .. } | FailureCause::ExitedEarly { .. } => "waited",
        _ if in_vain => "waited",
        _ => return Some(line),
    };
    line.push_str(&failures::unended(
        &cx.jobs,
        &cx.failure_facts.remaining_ranks,
        others,
        &pid_of,
    ));
    Some(line)
}

/// Describes the OOM kill or the core dump of a rank that was killed by a signal.
fn about_death(cx: &LaunchContext, rank: KnownRank, signal: i32) -> Option<String> {
    if signal == libc::SIGKILL {
        return cx.failure_facts.oom_counter.as_ref()?.describe();
    }
    match cx.failure_facts.dump_of(rank) {
        Some(dump) => dump.map(|dump| failures::dump(&dump.text, &dump.frames)),
        None => dump_in_words(cx, rank),
    }
}

/// Describes where the kernel dumped a rank's memory, if the rank ran on this machine and the place is known without a debugger.
pub(super) fn dump_in_words(cx: &LaunchContext, rank: KnownRank) -> Option<String> {
    match &cx.steps {
        StepLinks::Own(step) => Some(step.dump_of(rank.global())?.text),
        StepLinks::Hosts(_) => None,
    }
}
