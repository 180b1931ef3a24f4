//! Slurm's accounting of a launch.

use crate::common::eventually;
use crate::slurm_cluster::{Slurm, With};

/// Returns the records of accounting for the job of that name and its steps, by the first field.
fn records(slurm: &Slurm, name: &str, fields: &str) -> Vec<Vec<String>> {
    let shown = slurm.ask(&[
        "sacct",
        "--allusers",
        "--noheader",
        "--parsable2",
        &format!("--format=jobid,{fields}"),
        &format!("--name={name}"),
    ]);
    let fields = |line: &str| line.split('|').map(str::to_owned).collect();
    shown.lines().map(fields).collect()
}

/// Waits until accounting has the job of that name with this end, and the step of its agents as ended.
#[track_caller]
pub(super) fn expect(slurm: &Slurm, name: &str, state: &str) {
    eventually("accounting has the job and its step", || {
        let records = records(slurm, name, "state,jobname");
        let (job, steps) = records.split_first()?;
        let agents = steps.iter().find(|step| step[2] == "wireup-agent")?;
        let ended = agents[1] != "RUNNING" && !agents[1].is_empty();
        (job[1].starts_with(state) && ended).then_some(())
    });
}

#[test]
fn slurm_accounting_has_step_with_usage_of_ranks() {
    let Some(slurm) = Slurm::with(2, With::Accounting) else {
        return;
    };
    let burn = "import time\nwhile time.process_time() < 1: pass";
    let run = slurm.salloc("-N 2 -n 4 -J work");
    run.more(["python3", "-c", burn]).run().expect(0);
    expect(&slurm, "work", "COMPLETED");
    let records = records(
        &slurm,
        "work",
        "jobname,state,exitcode,ntasks,nodelist,totalcpu",
    );
    let step = records.iter().find(|record| record[1] == "wireup-agent");
    let step = step.unwrap_or_else(|| panic!("{records:?}"));
    assert_eq!(
        step[2..6],
        ["COMPLETED", "0:0", "2", "node[01-02]"],
        "{records:?}"
    );
    // Of four ranks, as minutes and seconds.
    let (minutes, seconds) = step[6].split_once(':').unwrap();
    let used = minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap();
    assert!(used >= 4.0, "{records:?}");
    let failed = slurm.salloc("-N 2 -n 2 -J failed");
    failed.more(["sh", "-c", "exit 3"]).run().expect(3);
    expect(&slurm, "failed", "FAILED");
}
