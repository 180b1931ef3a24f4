//! The end of a run: cleans up, flushes all output, and reports the cause.

use std::time::Duration;

use crate::backend::step_links::StepLinks;
use crate::backend::step_messages::LauncherToStep;
use crate::control::{Controller, RankStatus};
use crate::failure::CommandError;
use crate::report::failures;
use crate::report::status_stream::{PATIENCE, StatusStream};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::{EXIT_WIREUP, FailureCause, RankEnd};
use wireup_core::wording::counted;

/// Ends a run whose ranks have all ended, or which broke, and returns its exit code.
///
/// # Errors
/// `result` when it was one; what happens here cannot change how the job went.
pub(crate) fn finish(
    mut controller: Controller,
    result: Result<(), CommandError>,
) -> Result<u8, CommandError> {
    controller.end_pty(None);
    if result.is_err() {
        controller.fail(FailureCause::Interrupted(libc::SIGKILL));
    }
    explain(&mut controller);
    if result.is_ok() {
        inspect_core_dump(&mut controller);
        print_failures(&mut controller);
        controller.report_singletons();
    }
    let known = controller.supervisor.cause().is_some();
    // A deliberate kill leaves as much behind as a crash.
    let killed = |life: &RankStatus| matches!(life.end, Some((_, Some(RankEnd::Signal(_)))));
    let abnormal = controller.supervisor.cause().is_some()
        || controller.supervisor.tolerated().is_some()
        || controller.ranks.iter().any(killed);
    let ends = controller.unreported_job_ends();
    let end = controller.launch_end();
    controller.steps.send(LauncherToStep::LaunchEnded(end));
    controller
        .steps
        .send(LauncherToStep::Finish { abnormal, ends });
    if controller.end_signals > 0 {
        // It came when the last rank had just ended, and was meant for what follows.
        controller.steps.send(LauncherToStep::Hurry);
    }
    // If waiting fails, the guard cleans up.
    if controller
        .run_until(|controller| controller.job_ended)
        .is_ok()
    {
        controller.guard.dismiss();
    }
    if !known && result.is_ok() {
        // The ranks had ended; a host was lost before its last report.
        explain(&mut controller);
        let line = failure_line(&controller, controller.supervisor.cause());
        print_end_reason(&mut controller, line);
    }
    let code = controller.supervisor.exit_code();
    controller.streams.end_lines();
    controller.record_result(code, result.as_ref().err());
    // A launch that was refused before its start leaves an older report as it is.
    let refused = result.is_err() && controller.ranks.iter().all(|life| life.pid.is_none());
    let made = refused || controller.write_reports();
    controller.leave_rendezvous();
    flush(&mut controller);
    controller.leave_terminal();
    // As with output that is lost: a script must not take a job for done whose report is missing.
    let code = if code == 0 && !made {
        EXIT_WIREUP
    } else {
        code
    };
    result.map(|()| code)
}

/// Finds out where the rank was that was killed by a signal, if the kernel dumped its memory.
fn inspect_core_dump(controller: &mut Controller) {
    let Some(FailureCause::RankFailed {
        rank,
        end: RankEnd::Signal(signal),
    }) = controller.supervisor.cause()
    else {
        return;
    };
    let signal = *signal;
    let Some(rank) = controller.jobs.look_up(*rank) else {
        return;
    };
    if !DUMPING.contains(&signal) || !may_be_dumped(controller, rank) {
        return;
    }
    let before = controller.end_signals;
    controller.inspect_core_dump(rank);
    let known = |controller: &Controller| {
        controller.query_server.looks.dump_of(rank).is_some() || controller.end_signals > before
    };
    // If waiting fails, the report does without.
    let _ = controller.run_until(known);
}

/// Whether the kernel may have dumped a rank's memory. A step on another host has to look.
fn may_be_dumped(controller: &Controller, rank: KnownRank) -> bool {
    match &controller.steps {
        StepLinks::Own(step) => step.dump_of(rank.global()).is_some(),
        StepLinks::Hosts(_) => true,
    }
}

/// Where the kernel has dumped a rank's memory, if the rank ran on this machine and that is known without a debugger.
fn dump_in_words(controller: &Controller, rank: KnownRank) -> Option<String> {
    match &controller.steps {
        StepLinks::Own(step) => Some(step.dump_of(rank.global())?.text),
        StepLinks::Hosts(_) => None,
    }
}

/// Signals for which the kernel dumps memory. Source: signal(7).
const DUMPING: [i32; 10] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
];

/// Looks whether the cause is known better by now.
fn explain(controller: &mut Controller) {
    // What happens on one machine is seen as it happens.
    if let StepLinks::Hosts(hosts) = &controller.steps
        && let Some(cause) = controller.supervisor.cause()
        && let Some(better) = hosts.explain(cause)
    {
        controller.supervisor.explain(better);
    }
}

/// Writes the remaining output. Its reader may be slow; an interrupt ends the wait. So does an
/// earlier interrupt, after the end of the ranks or after another one, unless there is a reader.
fn flush(controller: &mut Controller) {
    let output = |controller: &Controller| controller.streams.queued();
    let status =
        |controller: &Controller| controller.status.as_ref().map_or(0, StatusStream::queued);
    let before = controller.end_signals;
    let patience = (before > 0).then_some(PATIENCE);
    let kept = wait_for_reader(controller, before, output, 0, patience);
    if let Some(status) = &controller.status {
        status.close();
    }
    let lost = wait_for_reader(controller, before, status, 0, Some(PATIENCE));
    // Nothing is queued either when its reader has just gone.
    controller.check_status();
    if lost > 0 && controller.end_signals == before {
        controller.print_line("warning: the status stream (--json) has no reader; its end is lost");
    }
    controller.streams.close();
    wait_for_reader(controller, before, output, kept, patience);
}

/// Waits until no more than `rest` bytes are queued, another interrupt comes, or nothing is taken for
/// as long as one has patience; returns how many are queued then.
fn wait_for_reader(
    controller: &mut Controller,
    before: u32,
    queued: impl Fn(&Controller) -> usize,
    rest: usize,
    patience: Option<Duration>,
) -> usize {
    let done =
        |controller: &Controller| queued(controller) <= rest || controller.end_signals > before;
    loop {
        let left = queued(controller);
        // If waiting fails, what the system still takes is lost together with the message about it.
        let _ = match patience {
            None => controller.run_until(done),
            Some(patience) => controller.run_until_or(done, controller.now() + patience),
        };
        if done(controller) || queued(controller) == left {
            return queued(controller);
        }
    }
}

/// Tells what ended the job, or how many ranks failed in one that went on.
fn print_failures(controller: &mut Controller) {
    let supervisor = &controller.supervisor;
    let (code, failed) = (supervisor.exit_code(), supervisor.failed());
    if let Some(first) = supervisor.tolerated() {
        let size = controller.jobs.size();
        let policy = controller.plan.spec.ending.exit;
        if supervisor.cause().is_none() && (failed > 1 || code != first.exit_code()) {
            let text = format!(
                "{failed} of {} failed; exit code {code} (--exit-policy {policy})",
                counted(size, "rank")
            );
            controller.print_line(&text);
        } else if failed > 1 {
            controller.print_line(&format!("{failed} of {size} ranks failed"));
        }
    }
    let line = failure_line(controller, controller.supervisor.cause());
    let is_failed = line.is_some();
    print_end_reason(controller, line);
    if is_failed {
        controller.name_shared_address();
    }
}

/// Tells what has ended the job: in an allocation, what Slurm says comes first.
fn print_end_reason(controller: &mut Controller, line: Option<String>) {
    let slurm = line.as_ref().and_then(|_| controller.ended_by_slurm());
    let lines: Vec<String> = slurm.into_iter().chain(line).collect();
    if !lines.is_empty() {
        controller.print_line(&lines.join("; "));
    }
}

/// The line about a cause of failure, if there is one and it is worth a line.
pub(crate) fn failure_line(
    controller: &Controller,
    cause: Option<&FailureCause>,
) -> Option<String> {
    let cause = cause?;
    let rank = cause.rank().and_then(|rank| controller.jobs.look_up(rank));
    let state = rank.map(|rank| controller.pmi_state(rank));
    let pid_of = |rank| controller.ranks.get(rank).pid;
    let mut line = failures::failure(&controller.jobs, cause, state.as_ref(), &pid_of)?;
    let supervisor = &controller.supervisor;
    let ended = supervisor.cause() == Some(cause);
    let in_vain = ended && supervisor.waited_in_vain();
    if in_vain {
        line.push_str("; other ranks wait for it");
    }
    match cause {
        FailureCause::Interrupted(_) => {
            if let Some(sender) = &controller.terminated_by {
                line.push_str(" from ");
                line.push_str(sender);
            }
        }
        FailureCause::RankFailed {
            end: RankEnd::Signal(signal),
            ..
        } => {
            if let Some(more) = rank.and_then(|rank| about_death(controller, rank, *signal)) {
                line.push_str("; ");
                line.push_str(&more);
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
        &controller.jobs,
        &controller.remaining_ranks,
        others,
        &pid_of,
    ));
    Some(line)
}

/// What the kernel did with a rank that was killed by a signal.
fn about_death(controller: &Controller, rank: KnownRank, signal: i32) -> Option<String> {
    if signal == libc::SIGKILL {
        return controller.oom_counter.as_ref()?.describe();
    }
    match controller.query_server.looks.dump_of(rank) {
        Some(dump) => dump.map(|dump| failures::dump(&dump.text, &dump.frames)),
        None => dump_in_words(controller, rank),
    }
}
