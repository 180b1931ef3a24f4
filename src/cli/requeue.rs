//! Slurm is asked to run its job again (`--on-failure requeue`), where there is one.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::control::slurm_job::{self, End};
use wireup_sys::pidfd::{wait_for, wait_for_parent};

/// The job of Slurm's in which this process runs.
const JOB: &str = "SLURM_JOB_ID";

/// Ranks have it: a launch of theirs is part of another, which decides.
const RANK: &str = "WIREUP_RANK";

/// How long Slurm may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long Slurm may take to end the script, once it has agreed.
const UNTIL_ENDED: Duration = Duration::from_secs(5);

/// Says that the launch is to be run again, and asks Slurm for that where it is Slurm's. What Slurm has ended itself, at
/// the user's request or at the time limit, is not run again: the steps of such a job are lost to the launch too.
///
/// Slurm ends the job's script, this process included, once it has agreed. That is waited for: the script shall not come to
/// its next command, as it may be the one that handles the results.
pub(super) fn request_requeue() {
    let job = std::env::var_os(JOB).filter(|job| !job.is_empty());
    let Some(job) = job.filter(|_| std::env::var_os(RANK).is_none()) else {
        return eprintln!("wireup: to be run again (--on-failure requeue)");
    };
    let shown = job.to_string_lossy().into_owned();
    match slurm_job::ended(&shown) {
        // Slurm may have noticed the same as the launch.
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

/// Why Slurm was not asked, or did not agree.
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
        // It may have ended at this moment; either way it is collected.
        let _ = child.kill();
        let _ = child.wait();
        return Err(Refused::Late);
    }
    match child.wait().map_err(Refused::NoScontrol)? {
        status if status.success() => Ok(()),
        status => Err(Refused::Failed(status)),
    }
}
