//! The end of a run: nothing is left behind, everything printed arrives, the cause is told.

use std::time::{Duration, SystemTime};

use rustix::process::Signal;

use super::directory::JobDirectory;
use super::drive::{Drive, Node};
use super::report;
use super::run::RunFailure;
use super::status::{PATIENCE, Status};
use crate::agent::event::Event;
use crate::agent::leftovers;
use crate::agent::procfs::Process;
use crate::job::ids::NodeId;
use crate::job::outcome::Cause;
use crate::job::spec::GRACE;
use crate::pmix::upcall::UpcallKind;

/// How long killed processes may take to go, before the run ends without them: one that the system
/// cannot end, or that became another user's, must not hold the launcher for ever.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// How often the processes left over are looked at while they are given time to end.
const LOOK: Duration = Duration::from_millis(20);

/// Ends a run whose ranks have all ended, or which broke, and returns its exit code.
///
/// # Errors
/// `result` when it was one; what happens here cannot change how the job went.
pub(super) fn finish(
    mut drive: Drive,
    result: Result<(), RunFailure>,
    directory: Option<JobDirectory>,
    since: SystemTime,
) -> Result<u8, RunFailure> {
    drive.end_pty(None);
    if result.is_err() {
        drive.fail(Cause::Interrupted(libc::SIGKILL));
    }
    if result.is_ok() {
        tell_failures(&mut drive);
        drive.tell_singletons();
    }
    stop_sidecars(&mut drive);
    end_leftovers(&mut drive);
    if drive.plan.spec.verbose > 0 {
        tell_upcalls(&mut drive);
    }
    let abnormal = drive.supervisor.cause().is_some() || drive.supervisor.tolerated().is_some();
    let code = drive.supervisor.exit_code();
    if let Some(directory) = directory
        && let Err(error) = directory.remove()
    {
        drive.tell(&format!("cannot remove the job's directory: {error}"));
    }
    if abnormal {
        let uid = rustix::process::getuid().as_raw();
        leftovers::remove_shared_memory(uid, since);
        let tmp = std::env::temp_dir();
        leftovers::remove_session_directories(&tmp, uid, since, &drive.orphans);
    }
    drive.streams.end_lines();
    drive.tell_result(code, result.as_ref().err());
    if let Some(guard) = drive.guard.take() {
        guard.dismiss();
    }
    flush(&mut drive);
    drive.leave_terminal();
    result.map(|()| code)
}

/// Writes what is left. Whoever takes our output may be slow; an interrupt ends the wait.
fn flush(drive: &mut Drive) {
    let before = drive.interrupts;
    drive.streams.close();
    let done = |drive: &Drive| drive.streams.is_written() || drive.interrupts > before;
    // If waiting fails, what the system still takes is lost together with the message about it.
    let _ = drive.run_until(done);
    let Some(status) = &drive.status else {
        return;
    };
    status.close();
    let queued = |drive: &Drive| drive.status.as_ref().map_or(0, Status::queued);
    loop {
        let left = queued(drive);
        if left == 0 || drive.interrupts > before {
            return;
        }
        let until = drive.now() + PATIENCE;
        let _ = drive.run_until_or(|drive| queued(drive) == 0, until);
        if queued(drive) == left {
            // Our own output is closed already.
            eprintln!("wireup: warning: nobody takes the status stream (--json); its end is lost");
            return;
        }
    }
}

/// Tells what ended the job, or how many ranks failed in one that went on.
fn tell_failures(drive: &mut Drive) {
    let supervisor = &drive.supervisor;
    let (code, failed) = (supervisor.exit_code(), supervisor.failed());
    if let Some(first) = supervisor.tolerated() {
        let size = drive.plan.job.ranks.size();
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
    if let Some(mut line) = failure_line(drive, supervisor.cause()) {
        if supervisor.waited_in_vain() {
            line.push_str("; other ranks wait for it in vain");
        }
        drive.tell(&line);
    }
}

/// The line about a cause of failure, if there is one and it is worth a line.
pub(super) fn failure_line(drive: &Drive, cause: Option<&Cause>) -> Option<String> {
    let cause = cause?;
    let rank = cause.rank();
    let state = rank.map(|rank| {
        let (node, local) = drive.place(rank);
        drive.nodes[node.index()].core.pmi_state(local)
    });
    report::failure(&drive.plan, cause, state.as_ref(), &|rank| {
        drive.pid_of(rank)
    })
}

/// How often libpmix asked for something on each node, for `-v`.
fn tell_upcalls(drive: &mut Drive) {
    for index in 0..drive.nodes.len() {
        let Node { core, sidecar, .. } = &drive.nodes[index];
        if sidecar.is_none() {
            continue;
        }
        let counts: Vec<String> = UpcallKind::ALL
            .into_iter()
            .map(|kind| (kind.name(), core.upcalls(kind)))
            .filter(|(_, count)| count.received > 0)
            .map(|(name, count)| {
                let (received, bytes_in, bytes_out) =
                    (count.received, count.bytes_in, count.bytes_out);
                format!("{name} {received} ({bytes_in} bytes in, {bytes_out} out)")
            })
            .collect();
        let text = format!(
            "upcalls of {}: {}",
            drive.plan.node_names[index],
            if counts.is_empty() {
                "none".to_owned()
            } else {
                counts.join(", ")
            }
        );
        drive.tell(&text);
    }
}

/// Asks every sidecar to stop and waits; its node's core gives up one that does not. An interrupt
/// ends the wait.
fn stop_sidecars(drive: &mut Drive) {
    for index in 0..drive.nodes.len() {
        drive.feed(NodeId(index as u32), Event::JobEnded);
    }
    let running = |node: &Node| node.sidecar.as_ref().is_some_and(|sidecar| !sidecar.ended);
    let any_running = move |drive: &Drive| drive.nodes.iter().any(running);
    let before = drive.interrupts;
    // A wait that fails leaves the killing below.
    let _ = drive.run_until(move |drive| !any_running(drive) || drive.interrupts > before);
    for index in 0..drive.nodes.len() {
        drive.kill_host(NodeId(index as u32));
    }
    let deadline = drive.now() + KILL_GRACE;
    let _ = drive.run_until_or(move |drive| !any_running(drive), deadline);
}

/// Reads what is left in the pipes and ends what still runs: first by itself, then by SIGTERM,
/// then by SIGKILL. An interrupt shortens the wait.
/// Somebody who does not descend from this process is none of its business, even if he holds one
/// of its pipes.
fn end_leftovers(drive: &mut Drive) {
    settle(drive);
    let start = drive.now();
    let before = drive.interrupts;
    let grace = drive.plan.spec.ending.grace;
    let mut told = false;
    while drive.any_leftovers() {
        drive.reap_orphans();
        let left = drive.leftovers();
        // A job that is being ended has had its grace; one that ended well may have children that
        // still write their last lines.
        let ending = drive.supervisor.is_ending();
        let impatience = drive.interrupts - before;
        let patience = match ending || impatience > 0 {
            true => Duration::ZERO,
            false => GRACE,
        };
        let waited = drive.now() - start;
        if waited >= patience + grace + KILL_GRACE {
            drive.tell(&format!("cannot end {}", names_of(&left)));
            break;
        }
        if waited >= patience {
            if !told && (drive.plan.spec.verbose > 0 || !ending) && !left.is_empty() {
                drive.tell(&format!("ending {}", names_of(&left)));
            }
            told = true;
            let signal = match waited >= patience + grace || impatience > 1 {
                true => Signal::KILL,
                false => Signal::TERM,
            };
            leftovers::signal(&left, signal);
        }
        let until = drive.now() + LOOK;
        let _ = drive.run_until_or(|drive| !drive.any_leftovers(), until);
    }
    // Whoever held a pipe is gone; what it wrote is still in it.
    settle(drive);
}

/// The processes left by the ranks, in words.
fn names_of(left: &[Process]) -> String {
    let names: Vec<String> = left
        .iter()
        .take(5)
        .map(|process| format!("{} ({})", process.pid, process.name))
        .collect();
    let more = if left.len() > names.len() {
        ", …"
    } else {
        ""
    };
    format!(
        "{} left by the ranks: {}{more}",
        left.len(),
        names.join(", ")
    )
}

/// Reads what the ranks' pipes hold, without waiting for more.
fn settle(drive: &mut Drive) {
    let before = drive.interrupts;
    while drive.streams.open_pipes() > 0 && drive.interrupts == before {
        // While our own output is not taken, the pipes are not empty and not read either.
        let timeout = (!drive.streams.blocked()).then_some(Duration::ZERO);
        match drive.turn(timeout) {
            Ok(any) if any || drive.streams.blocked() => {}
            _ => return,
        }
    }
}
