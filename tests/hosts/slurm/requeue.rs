//! `--on-failure requeue` with a real Slurm: its job runs again when something was lost, and not otherwise.

use crate::common::eventually;
use crate::slurm_cluster::Slurm;

/// Submits a job that launches this as every rank.
fn submit(slurm: &Slurm, name: &str, options: &str, ranks: &str) {
    let wireup = slurm.wireup().display();
    let script = format!(
        "echo start ${{SLURM_RESTART_COUNT:-0}}
{wireup} run --on-failure requeue sh -c '{ranks}'
code=$?
echo code $code
exit $code
"
    );
    slurm.submit(name, options, &script);
}

/// A rank that does not survive its job's first run.
const DIES_ONCE: &str = r#"echo up; [ $WIREUP_RANK = 1 ] && [ -z "$SLURM_RESTART_COUNT" ] && kill -9 $$; [ -n "$SLURM_RESTART_COUNT" ] || exec sleep 1000; echo done $(hostname)"#;

#[test]
fn loss_requeues_slurm_job_but_program_failure_does_not() {
    let Some(slurm) = Slurm::new(4) else {
        return;
    };
    // One after the other: each has the nodes that it names.
    submit(
        &slurm,
        "lost",
        "-w node01,node02 -N 2 -n 2 --requeue",
        DIES_ONCE,
    );
    submit(
        &slurm,
        "decided",
        "-w node03,node04 -N 2 -n 2 --requeue",
        "exit 3",
    );
    slurm.expect_end("decided", 3);
    let text = slurm.printed("decided");
    assert_eq!(text.matches("start").count(), 1, "{text}");
    assert!(text.contains("code 3") && !text.contains("again"), "{text}");

    submit(
        &slurm,
        "forbidden",
        "-w node03,node04 -N 2 -n 2 --no-requeue",
        DIES_ONCE,
    );
    slurm.expect_end("forbidden", 75);
    let text = slurm.printed("forbidden");
    for part in ["is not run again: scontrol requeue", "code 75"] {
        assert!(text.contains(part), "no {part} in {text}");
    }

    slurm.expect_end("lost", 0);
    let text = slurm.printed("lost");
    for part in [
        "start 0",
        "Slurm runs its job",
        "start 1",
        "done node01",
        "done node02",
        "code 0",
    ] {
        assert_eq!(text.matches(part).count(), 1, "{part} in {text}");
    }
    assert!(!text.contains("code 75"), "its next command ran: {text}");

    // A node that is lost: on the others.
    let ranks =
        r#"echo up; [ -n "$SLURM_RESTART_COUNT" ] || exec sleep 1000; echo done $(hostname)"#;
    submit(&slurm, "crashed", "-N 2 -n 2 --requeue", ranks);
    eventually("its ranks run", || {
        let printed = slurm.printed("crashed");
        let up = printed.lines().filter(|line| *line == "up");
        (up.count() == 2).then_some(())
    });
    let nodes = slurm.ask(&["squeue", "--noheader", "--format=%N", "--name=crashed"]);
    assert_eq!(nodes.trim(), "node[01-02]");
    slurm.lab().crash(slurm.host(1)).unwrap();
    slurm.expect_end("crashed", 0);
    let text = slurm.printed("crashed");
    for part in ["host node02", "Slurm runs its job", "start 1"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let done = text.lines().filter_map(|line| line.strip_prefix("done "));
    let done: Vec<&str> = done.collect();
    assert!(done.len() == 2 && !done.contains(&"node02"), "{text}");
    slurm.expect_clean();
    slurm_decides_on_what_it_has_ended(&slurm);
}

/// The steps of a job that ends are lost to its launch as well.
fn slurm_decides_on_what_it_has_ended(slurm: &Slurm) {
    let ranks = r#"echo up; [ -n "$SLURM_RESTART_COUNT" ] || exec sleep 1000; echo done"#;
    for (name, command) in [("cancelled", "scancel"), ("requeued", "scontrol requeue")] {
        submit(slurm, name, "-w node03,node04 -N 2 -n 2 --requeue", ranks);
        eventually("its ranks run", || {
            (slurm.printed(name).matches("up\n").count() == 2).then_some(())
        });
        let job = slurm.job(name);
        let words: Vec<&str> = command.split(' ').chain([&*job]).collect();
        slurm.ask(&words);
    }
    slurm.expect_end("requeued", 0);
    let text = slurm.printed("requeued");
    assert!(text.contains(": requeued"), "{text}");
    assert_eq!(text.matches("start 1").count(), 1, "{text}");
    // As long as another job took to run again.
    let text = slurm.printed("cancelled");
    let states = [
        "squeue",
        "--noheader",
        "--states=all",
        "--format=%T",
        "--name=cancelled",
    ];
    assert_eq!(slurm.ask(&states).trim(), "CANCELLED", "{text}");
    assert!(
        text.contains(": cancelled") && !text.contains("start 1"),
        "{text}"
    );
    slurm.expect_clean();
}
