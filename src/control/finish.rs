//! The end of a run: cleans up, flushes all output, and reports the cause.

use std::time::Duration;

use crate::backend::step_links::StepLinks;
use crate::backend::step_messages::LauncherToStep;
use crate::control::failure_line::failure_line;
use crate::control::launch_stage::LaunchStage;
use crate::control::slurm_job::ended_by_slurm;
use crate::control::{Controller, LaunchContext, RankStatus, launch_spawns, status_records};
use crate::report::status_stream::PATIENCE;
use wireup_core::failure::CommandError;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::{EXIT_WIREUP, FailureCause, RankEnd};
use wireup_core::wording::counted;

/// Ends a launch whose ranks have all exited or whose loop failed, and returns the exit code.
///
/// # Errors
/// The error of `result`. A failure of the cleanup is not an error of the job.
pub(super) fn finish(
    mut controller: Controller,
    result: Result<(), CommandError>,
) -> Result<u8, CommandError> {
    controller.services.terminal.end(&mut controller.cx, None);
    if result.is_err() {
        // Reports that cannot be read now are no longer needed.
        let _ = controller.fail(FailureCause::Interrupted(libc::SIGKILL));
    }
    explain(&mut controller.cx);
    if result.is_ok() {
        inspect_core_dump(&mut controller);
        print_failures(&mut controller);
        controller.services.singletons.report(&mut controller.cx);
    }
    let Controller { services, cx, .. } = &mut controller;
    let known = cx.supervisor.cause().is_some();
    // A deliberate kill leaves as much behind as a crash.
    let killed = |life: &RankStatus| matches!(life.end, Some((_, Some(RankEnd::Signal(_)))));
    let abnormal = known || cx.supervisor.tolerated().is_some() || cx.ranks.iter().any(killed);
    let ends = launch_spawns::unreported_job_ends(cx);
    let end = services.counters.summary(cx);
    cx.steps.send(LauncherToStep::LaunchEnded(end));
    cx.steps.send(LauncherToStep::Finish { abnormal, ends });
    if cx.end_signals > 0 {
        // The signal came after the exit of the last rank, and asks to shorten the cleanup.
        cx.steps.send(LauncherToStep::Hurry);
    }
    // If waiting fails, the guard cleans up.
    if controller
        .run_until(|controller| controller.cx.stage == LaunchStage::Ended)
        .is_ok()
    {
        controller.cx.guard.dismiss();
    }
    if !known && result.is_ok() {
        // The ranks had ended; a host was lost before its last report.
        explain(&mut controller.cx);
        let line = failure_line(&controller.cx, controller.cx.supervisor.cause());
        print_end_reason(&mut controller.cx, line);
    }
    let Controller { services, cx, .. } = &mut controller;
    let code = cx.supervisor.exit_code();
    cx.streams.end_lines();
    status_records::record_result(cx, code, result.as_ref().err());
    // A launch that was refused before its start leaves an older report as it is.
    let refused = result.is_err() && cx.ranks.iter().all(|life| life.pid.is_none());
    let is_reported = refused || status_records::write_reports(cx);
    services.names.leave(cx);
    flush(&mut controller);
    controller.services.terminal.leave(&mut controller.cx);
    // A missing report fails the job as lost output does: a script must not take the job for complete.
    let code = if code == 0 && !is_reported {
        EXIT_WIREUP
    } else {
        code
    };
    result.map(|()| code)
}

/// Inspects the core dump of the rank that was killed by a signal, if the kernel wrote one.
fn inspect_core_dump(controller: &mut Controller) {
    let Controller { services, cx, .. } = &mut *controller;
    let Some(FailureCause::RankFailed {
        rank,
        end: RankEnd::Signal(signal),
    }) = cx.supervisor.cause()
    else {
        return;
    };
    let signal = *signal;
    let Some(rank) = cx.jobs.look_up(*rank) else {
        return;
    };
    if !DUMPING.contains(&signal) || !may_be_dumped(cx, rank) {
        return;
    }
    let before = cx.end_signals;
    services.queries.inspect_core_dump(cx, rank);
    let known = |controller: &Controller| {
        controller.cx.failure_facts.dump_of(rank).is_some() || controller.cx.end_signals > before
    };
    // If waiting fails, the report does not include the dump.
    let _ = controller.run_until(known);
}

/// Whether the kernel may have dumped a rank's memory. For a rank on another host only its step knows.
fn may_be_dumped(cx: &LaunchContext, rank: KnownRank) -> bool {
    match &cx.steps {
        StepLinks::Own(step) => step.dump_of(rank.global()).is_some(),
        StepLinks::Hosts(_) => true,
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

/// Replaces the failure cause with a more precise one, if the hosts have reported it since.
fn explain(cx: &mut LaunchContext) {
    // On one machine the launcher sees the cause itself.
    if let StepLinks::Hosts(hosts) = &cx.steps
        && let Some(cause) = cx.supervisor.cause()
        && let Some(better) = hosts.explain(cause)
    {
        cx.supervisor.explain(better);
    }
}

/// Writes the remaining output. A slow reader is waited for; after an interrupt, only while it takes
/// output. Another interrupt ends the wait.
fn flush(controller: &mut Controller) {
    let output = |controller: &Controller| controller.cx.streams.queued();
    let status = |controller: &Controller| controller.cx.status.queued();
    let before = controller.cx.end_signals;
    let patience = (before > 0).then_some(PATIENCE);
    let queued = wait_for_reader(controller, before, output, 0, patience);
    controller.cx.status.close();
    let lost = wait_for_reader(controller, before, status, 0, Some(PATIENCE));
    let cx = &mut controller.cx;
    // The queue is also empty if the reader has just closed the stream.
    status_records::check_status(cx);
    if lost > 0 && cx.end_signals == before {
        cx.print_line("warning: the status stream (--json) has no reader; its end is lost");
    }
    cx.streams.close();
    wait_for_reader(controller, before, output, queued, patience);
}

/// Waits until at most `rest` bytes are queued, another interrupt comes, or the reader takes nothing for
/// the time `patience`; returns the number of bytes still queued.
fn wait_for_reader(
    controller: &mut Controller,
    before: u32,
    queued: impl Fn(&Controller) -> usize,
    rest: usize,
    patience: Option<Duration>,
) -> usize {
    let done =
        |controller: &Controller| queued(controller) <= rest || controller.cx.end_signals > before;
    loop {
        let left = queued(controller);
        // If waiting fails, the rest of the output is lost together with the message about it.
        let _ = match patience {
            None => controller.run_until(done),
            Some(patience) => controller.run_until_or(done, controller.cx.now() + patience),
        };
        if done(controller) || queued(controller) == left {
            return queued(controller);
        }
    }
}

/// Prints the reason for the end of the job, or the number of failed ranks if the job continued.
fn print_failures(controller: &mut Controller) {
    let Controller { services, cx, .. } = controller;
    let supervisor = &cx.supervisor;
    let (code, failed) = (supervisor.exit_code(), supervisor.failed());
    if let Some(first) = supervisor.tolerated() {
        let size = cx.jobs.size();
        let policy = cx.plan.spec.ending.exit;
        if supervisor.cause().is_none() && (failed > 1 || code != first.exit_code()) {
            let text = format!(
                "{failed} of {} failed; exit code {code} (--exit-policy {policy})",
                counted(size, "rank")
            );
            cx.print_line(&text);
        } else if failed > 1 {
            cx.print_line(&format!("{failed} of {size} ranks failed"));
        }
    }
    let line = failure_line(cx, cx.supervisor.cause());
    let is_failed = line.is_some();
    print_end_reason(cx, line);
    if is_failed {
        services.hosts.name_shared_address(cx);
    }
}

/// Prints the reason for the end of the job; in an allocation, Slurm's reason comes first.
fn print_end_reason(cx: &mut LaunchContext, line: Option<String>) {
    let slurm = line.as_ref().and_then(|_| ended_by_slurm(cx));
    let lines: Vec<String> = slurm.into_iter().chain(line).collect();
    if !lines.is_empty() {
        cx.print_line(&lines.join("; "));
    }
}
