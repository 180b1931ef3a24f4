//! Reason why Slurm has ended the job in which a launch runs. Processes of the job see signals only.
//!
//! Rule: while the processes of a job end, scontrol shows `COMPLETING` in place of the state that it will have, and the
//! reason already. A job that is requeued counts one more restart from then on. Seen with Slurm 22.05.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::launch_context::LaunchContext;
use wireup_core::job::outcome::{FailureCause, RankEnd};
use wireup_sys::pidfd::wait_for;

/// Variable with the id of the Slurm job in which this process runs.
const JOB: &str = "SLURM_JOB_ID";

/// Variable with the number of earlier runs of the job; not set in the first one.
const RESTARTS: &str = "SLURM_RESTART_COUNT";

/// Time in which scontrol must answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns Slurm's reason for the end of its job, if that may be why the launch has failed.
pub(super) fn ended_by_slurm(cx: &LaunchContext) -> Option<String> {
    let cause = cx.supervisor.cause()?;
    let end = match cause {
        FailureCause::Interrupted(signal) => *signal != libc::SIGINT,
        FailureCause::RankFailed { end, .. } => matches!(end, RankEnd::Signal(_)),
        FailureCause::NodeFailed { .. }
        | FailureCause::SidecarFailed { .. }
        | FailureCause::LauncherIsolated { .. } => true,
        _ => false,
    };
    let job = cx.plan.inheritance.variable(JOB)?.to_str()?.to_owned();
    if !end || job.is_empty() {
        return None;
    }
    let how = ended(&job)?;
    Some(format!("Slurm ended its job {job}: {how}"))
}

/// Reason why Slurm has ended a job, or is about to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("time limit reached")]
    TimeLimit,
    #[error("node failed")]
    NodeFailed,
    #[error("out of memory")]
    OutOfMemory,
    #[error("preempted by another job")]
    Preempted,
    #[error("cancelled")]
    Cancelled,
    #[error("requeued")]
    Requeued,
    #[error("scontrol show job has the reason")]
    Other,
}

/// Returns why Slurm has ended the job of that id, in which this process runs; `None` while the job runs, and if Slurm
/// does not answer.
pub(crate) fn ended(job: &str) -> Option<End> {
    let restarts = std::env::var(RESTARTS).ok();
    let restarts = restarts.and_then(|count| count.parse().ok()).unwrap_or(0);
    end_of(&shown(job)?, restarts)
}

/// Returns the record of a job, as scontrol shows it.
fn shown(job: &str) -> Option<String> {
    let mut command = Command::new("scontrol");
    command.args(["--oneliner", "show", "job", job]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
    if !wait_for(&child, PATIENCE) {
        // The process may exit at this moment; it is reaped either way.
        let _ = child.kill();
        let _ = child.wait();
        return None;
    }
    let output = child.wait_with_output().ok()?;
    String::from_utf8(output.stdout).ok()
}

/// Returns why a job with this record was ended; it had been restarted `restarts` times when this run of it began.
fn end_of(record: &str, restarts: u64) -> Option<End> {
    let field = |name: &str| {
        let fields = record.split_ascii_whitespace();
        let mut values = fields.filter_map(|field| field.strip_prefix(name));
        values.find_map(|rest| rest.strip_prefix('='))
    };
    let counted = field("Restarts").and_then(|count| count.parse::<u64>().ok());
    if counted.is_some_and(|counted| counted > restarts) {
        return Some(End::Requeued);
    }
    Some(match (field("JobState")?, field("Reason")?) {
        ("TIMEOUT" | "DEADLINE", _) | ("COMPLETING", "TimeLimit") => End::TimeLimit,
        ("NODE_FAIL", _) | ("COMPLETING", "NodeDown") => End::NodeFailed,
        ("OUT_OF_MEMORY", _) | ("COMPLETING", "OutOfMemory") => End::OutOfMemory,
        ("PREEMPTED", _) => End::Preempted,
        ("CANCELLED", _) | ("COMPLETING", "None") => End::Cancelled,
        ("COMPLETING", _) => End::Other,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scontrol_output_is_parsed() {
        let end = |state: &str, reason: &str| {
            let record = format!(
                "JobId=7 JobName=x JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts=1"
            );
            end_of(&record, 1)
        };
        assert_eq!(end("RUNNING", "None"), None);
        assert_eq!(end("COMPLETING", "None"), Some(End::Cancelled));
        assert_eq!(end("COMPLETING", "TimeLimit"), Some(End::TimeLimit));
        assert_eq!(end("TIMEOUT", "TimeLimit"), Some(End::TimeLimit));
        assert_eq!(end_of("", 0), None);
        for state in ["COMPLETING", "PENDING", "RUNNING"] {
            let record = format!("JobState={state} Reason=None Requeue=1 Restarts=2 BatchFlag=1");
            assert_eq!(end_of(&record, 1), Some(End::Requeued), "{state}");
        }
    }
}
