//! The end of a run: nothing is left behind, everything printed arrives, the cause is told.

use std::time::Duration;

use crate::backend::message::ToCrew;
use crate::control::{Drive, Life};
use crate::failure::RunFailure;
use crate::plan::jobs::Plans;
use crate::report::failures;
use crate::report::status::{PATIENCE, Status};
use crate::sys::core_dump::{self, Dumped};
use wireup_core::job::ids::GlobalRank;
use wireup_core::job::outcome::{Cause, RankEnd};

/// Ends a run whose ranks have all ended, or which broke, and returns its exit code.
///
/// # Errors
/// `result` when it was one; what happens here cannot change how the job went.
pub(crate) fn finish(mut drive: Drive, result: Result<(), RunFailure>) -> Result<u8, RunFailure> {
    drive.end_pty(None);
    if result.is_err() {
        drive.fail(Cause::Interrupted(libc::SIGKILL));
    }
    explain(&mut drive);
    if result.is_ok() {
        tell_failures(&mut drive);
        drive.tell_singletons();
    }
    let known = drive.supervisor.cause().is_some();
    // Who is killed on purpose leaves as much behind as who dies.
    let killed = |life: &Life| matches!(life.end, Some((_, Some(RankEnd::Signal(_)))));
    let abnormal = drive.supervisor.cause().is_some()
        || drive.supervisor.tolerated().is_some()
        || drive.lives.iter().any(killed);
    drive.hands.order(ToCrew::Finish { abnormal });
    if drive.interrupts > 0 {
        // It came when the last rank had just ended, and was meant for what follows.
        drive.hands.order(ToCrew::Hurry);
    }
    // If waiting fails, the guard does what is left.
    if drive.run_until(|drive| drive.over).is_ok() {
        drive.hands.dismiss_guard();
    }
    if !known && result.is_ok() {
        // The ranks had ended; a host was lost before it was known to have told everything.
        explain(&mut drive);
        if let Some(line) = failure_line(&drive, drive.supervisor.cause()) {
            drive.tell(&line);
        }
    }
    let code = drive.supervisor.exit_code();
    drive.streams.end_lines();
    drive.tell_result(code, result.as_ref().err());
    drive.leave_rendezvous();
    flush(&mut drive);
    drive.leave_terminal();
    result.map(|()| code)
}

/// Looks whether the cause is known better by now.
fn explain(drive: &mut Drive) {
    let cause = drive.supervisor.cause();
    if let Some(better) = cause.and_then(|cause| drive.hands.explain(cause)) {
        drive.supervisor.explain(better);
    }
}

/// Writes what is left. Whoever takes our output may be slow; an interrupt ends the wait. One that came
/// before, when the ranks had ended or after another one, meant the same, unless there is somebody
/// who reads.
fn flush(drive: &mut Drive) {
    let output = |drive: &Drive| drive.streams.queued();
    let status = |drive: &Drive| drive.status.as_ref().map_or(0, Status::queued);
    let before = drive.interrupts;
    let patience = (before > 0).then_some(PATIENCE);
    let kept = wait_for_reader(drive, before, output, 0, patience);
    if let Some(status) = &drive.status {
        status.close();
    }
    let lost = wait_for_reader(drive, before, status, 0, Some(PATIENCE));
    // Nothing is queued either when its reader has just gone.
    drive.check_status();
    if lost > 0 && drive.interrupts == before {
        drive.tell("warning: nobody takes the status stream (--json); its end is lost");
    }
    drive.streams.close();
    wait_for_reader(drive, before, output, kept, patience);
}

/// Waits until no more than `rest` bytes are queued, another interrupt comes, or nothing is taken for
/// as long as one has patience; returns how many are queued then.
fn wait_for_reader(
    drive: &mut Drive,
    before: u32,
    queued: impl Fn(&Drive) -> usize,
    rest: usize,
    patience: Option<Duration>,
) -> usize {
    let done = |drive: &Drive| queued(drive) <= rest || drive.interrupts > before;
    loop {
        let left = queued(drive);
        // If waiting fails, what the system still takes is lost together with the message about it.
        let _ = match patience {
            None => drive.run_until(done),
            Some(patience) => drive.run_until_or(done, drive.now() + patience),
        };
        if done(drive) || queued(drive) == left {
            return queued(drive);
        }
    }
}

/// Tells what ended the job, or how many ranks failed in one that went on.
fn tell_failures(drive: &mut Drive) {
    let supervisor = &drive.supervisor;
    let (code, failed) = (supervisor.exit_code(), supervisor.failed());
    if let Some(first) = supervisor.tolerated() {
        let size = drive.jobs.size();
        let policy = drive.plan.spec.ending.exit;
        if supervisor.cause().is_none() && (failed > 1 || code != first.exit_code()) {
            let text = format!(
                "{failed} of {size} ranks failed; exit code {code} (--exit-policy {policy})"
            );
            drive.tell(&text);
        } else if failed > 1 {
            drive.tell(&format!("{failed} of {size} ranks failed"));
        }
    }
    let supervisor = &drive.supervisor;
    if let Some(line) = failure_line(drive, supervisor.cause()) {
        drive.tell(&line);
    }
}

/// The line about a cause of failure, if there is one and it is worth a line.
pub(crate) fn failure_line(drive: &Drive, cause: Option<&Cause>) -> Option<String> {
    let cause = cause?;
    let rank = cause.rank();
    let state = rank.map(|rank| drive.pmi_state(rank));
    let pid_of = |rank| drive.pid_of(rank);
    let mut line = failures::failure(&drive.jobs, cause, state.as_ref(), &pid_of)?;
    let supervisor = &drive.supervisor;
    let ended = supervisor.cause() == Some(cause);
    let in_vain = ended && supervisor.waited_in_vain();
    if in_vain {
        line.push_str("; other ranks wait for it in vain");
    }
    match cause {
        Cause::Interrupted(_) => {
            if let Some(sender) = &drive.ended_by {
                line.push_str(" from ");
                line.push_str(sender);
            }
        }
        Cause::RankFailed {
            rank,
            end: RankEnd::Signal(signal),
        } => {
            if let Some(more) = about_death(drive, *rank, *signal) {
                line.push_str("; ");
                line.push_str(&more);
            }
        }
        _ => {}
    }
    let others = match cause {
        Cause::Timeout(_) => "had not ended",
        Cause::NeverJoined { .. } | Cause::LeftOthers { .. } => "waited",
        _ if in_vain => "waited",
        _ => return Some(line),
    };
    line.push_str(&failures::unended(
        &drive.jobs,
        &drive.unended,
        others,
        &pid_of,
    ));
    Some(line)
}

/// What the kernel did with a rank that was killed by a signal.
fn about_death(drive: &Drive, rank: GlobalRank, signal: i32) -> Option<String> {
    if signal == libc::SIGKILL {
        return drive.memory.as_ref()?.describe();
    }
    if !drive.hands.dumped(rank) {
        return None;
    }
    let (plan, local) = drive.jobs.plan_of(rank);
    let app = &plan.apps[plan.app_of(local)];
    Some(core_dump::describe(&Dumped {
        pid: drive.pid_of(rank)?,
        signal,
        program: app.program.path(),
        directory: app.cwd.as_deref().unwrap_or(&plan.inheritance.cwd),
        host: drive.jobs.host_of(rank),
    }))
}
