//! Requeues the job of Slurm in which the launch runs (`--on-failure requeue`).

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::control::slurm_job::{self, End};
use wireup_sys::pidfd::{wait_for, wait_for_parent};

/// Variable with the job of Slurm in which this process runs.
const JOB: &str = "SLURM_JOB_ID";

/// Variable of ranks: a launch within a launch does not requeue, the outer one decides.
const RANK: &str = "WIREUP_RANK";

/// Time limit of Slurm's reply.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time limit of Slurm to end the script after its positive reply.
const UNTIL_ENDED: Duration = Duration::from_secs(5);

/// Reports that the launch must be run again, and requests that of Slurm if it runs in a job of Slurm. A job that Slurm has
/// ended itself, at the user's request or at the time limit, is not requeued: the launch loses the steps of such a job too.
///
/// Slurm then ends the job's script, this process included. This function waits for that, so that the script does not
/// execute its next command, which may process the results.
pub(super) fn request_requeue() {
    let job = std::env::var_os(JOB).filter(|job| !job.is_empty());
    let Some(job) = job.filter(|_| std::env::var_os(RANK).is_none()) else {
        return eprintln!("wireup: to be run again (--on-failure requeue)");
    };
    let shown = job.to_string_lossy().into_owned();
    match slurm_job::ended(&shown) {
        // Slurm may have detected the same failure as the launch.
        None | Some(End::NodeFailed) => {}
        Some(how) => return eprintln!("wireup: Slurm's job {shown} is left to Slurm: {how}"),
    }
    match scontrol(&job) {
        Ok(()) => {
            eprintln!("wireup: Slurm runs its job {shown} again (--on-failure requeue)");
            wait_for_parent(UNTIL_ENDED);
        }
        Err(why) => eprintln!("wireup: Slurm's job {shown} is not run again: {why}"),
    }
}

/// Error: Slurm was not asked to requeue the job, or refused.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("scontrol cannot be executed: {0}")]
    NoScontrol(std::io::Error),
    #[error("scontrol requeue {0}")]
    Failed(std::process::ExitStatus),
    #[error("scontrol requeue did not end within {} s", PATIENCE.as_secs())]
    Late,
}

fn scontrol(job: &OsStr) -> Result<(), Refused> {
    let mut command = Command::new("scontrol");
    command.arg("requeue").arg(job).stdin(Stdio::null());
    let mut child = command.spawn().map_err(Refused::NoScontrol)?;
    if !wait_for(&child, PATIENCE) {
        // The command may have ended at this moment; it is reaped in any case.
        let _ = child.kill();
        let _ = child.wait();
        return Err(Refused::Late);
    }
    match child.wait().map_err(Refused::NoScontrol)? {
        status if status.success() => Ok(()),
        status => Err(Refused::Failed(status)),
    }
}
