//! Jobs that Slurm suspends and resumes.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::eventually;
use crate::slurm_cluster::Slurm;

/// Longer than agents may be silent.
const SUSPENSION: Duration = Duration::from_secs(12);

#[test]
fn suspended_slurm_job_continues_after_resume() {
    let Some(slurm) = Slurm::new(2) else {
        return;
    };
    let wireup = slurm.wireup().display();
    let ranks = "echo up; until [ -e go ]; do sleep 0.1; done; echo done";
    let script = format!("exec {wireup} run sh -c '{ranks}'\n");
    slurm.submit("suspended", "-N 2 -n 2", &script);
    let printed = |word: &str| slurm.lines("suspended", word);
    eventually("both ranks run", || (printed("up") == 2).then_some(()));
    let job = slurm.job("suspended");
    let is_in = |state: &str| {
        let shown = slurm.ask(&["squeue", "--noheader", "--format=%T", "--jobs", &job]);
        (shown.trim() == state).then_some(())
    };
    assert_eq!(slurm.ask(&["scontrol", "suspend", &job]), "");
    eventually("the job is suspended", || is_in("SUSPENDED"));
    let suspended = Instant::now();
    eventually(
        "the agents have been silent for longer than they may be",
        || (suspended.elapsed() > SUSPENSION).then_some(()),
    );
    assert_eq!(slurm.ask(&["scontrol", "resume", &job]), "");
    eventually("the job is resumed", || is_in("RUNNING"));
    fs::write(slurm.dir().join("go"), "").unwrap();
    slurm.expect_end("suspended", 0);
    assert_eq!(printed("done"), 2, "{}", slurm.printed("suspended"));
    slurm.expect_clean();
}
