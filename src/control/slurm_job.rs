//! Why Slurm has ended the job in which a launch runs. Its processes see signals only; Slurm knows more.
//!
//! Rule: while the processes of a job end, scontrol shows `COMPLETING` in place of the state that it will have, and the
//! reason already. Seen with Slurm 22.05.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::Controller;
use crate::sys::pidfd::wait_for;
use wireup_core::job::outcome::{Cause, RankEnd};

/// The job of Slurm's in which this process runs.
const JOB: &str = "SLURM_JOB_ID";

/// How long scontrol may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

impl Controller {
    /// What Slurm says of its job, if that may be why the launch has failed and if Slurm has ended it.
    pub(super) fn ended_by_slurm(&self) -> Option<String> {
        let cause = self.supervisor.cause()?;
        let end = match cause {
            Cause::Interrupted(signal) => *signal != libc::SIGINT,
            Cause::RankFailed { end, .. } => matches!(end, RankEnd::Signal(_)),
            Cause::NodeFailed { .. } | Cause::SidecarFailed { .. } | Cause::CutOff { .. } => true,
            _ => false,
        };
        let job = self.plan.inheritance.variable(JOB)?.to_str()?.to_owned();
        if !end || job.is_empty() {
            return None;
        }
        let how = end_of(&shown(&job)?)?;
        Some(format!("Slurm ended its job {job}: {how}"))
    }
}

/// The record of a job, as scontrol shows it.
fn shown(job: &str) -> Option<String> {
    let mut command = Command::new("scontrol");
    command.args(["--oneliner", "show", "job", job]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().ok()?;
    if !wait_for(&child, PATIENCE) {
        // It may have ended at this moment; either way it is collected.
        let _ = child.kill();
        let _ = child.wait();
        return None;
    }
    let output = child.wait_with_output().ok()?;
    String::from_utf8(output.stdout).ok()
}

/// How a job with that record was ended, in words; `None` while it runs.
fn end_of(record: &str) -> Option<&'static str> {
    let field = |name: &str| {
        let fields = record.split_ascii_whitespace();
        let mut values = fields.filter_map(|field| field.strip_prefix(name));
        values.find_map(|rest| rest.strip_prefix('='))
    };
    Some(match (field("JobState")?, field("Reason")?) {
        ("TIMEOUT" | "DEADLINE", _) | ("COMPLETING", "TimeLimit") => {
            "it has reached its time limit"
        }
        ("NODE_FAIL", _) | ("COMPLETING", "NodeDown") => "a node has failed",
        ("OUT_OF_MEMORY", _) | ("COMPLETING", "OutOfMemory") => "it was out of memory",
        ("PREEMPTED", _) => "another job has taken its place",
        ("CANCELLED", _) | ("COMPLETING", "None") => "it was cancelled",
        ("COMPLETING", _) => "scontrol show job has the reason",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_scontrol_shows_is_put_into_words() {
        let end = |state: &str, reason: &str| {
            end_of(&format!(
                "JobId=7 JobName=x JobState={state} Reason={reason} Dependency=(null)"
            ))
        };
        assert_eq!(end("RUNNING", "None"), None);
        assert_eq!(end("COMPLETING", "None"), Some("it was cancelled"));
        let limit = Some("it has reached its time limit");
        assert_eq!(end("COMPLETING", "TimeLimit"), limit);
        assert_eq!(end("TIMEOUT", "TimeLimit"), limit);
        assert_eq!(end_of(""), None);
    }
}
