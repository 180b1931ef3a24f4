//! `--on-failure`: the others go on without the dead, or the launch asks to be run again.

use std::os::unix::fs::PermissionsExt;

use crate::common::{Mpi, Outcome, Run, field, mpi, mpi4py, number, pmix};

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// Script that speaks PMI-1. The ranks given as words are killed at the point that the first word names;
/// the others complete a barrier without them, and print the dead ranks that the server reports.
const PMI: &str = r#"
say() { echo "$1" >&"$PMI_FD" && read -r line <&"$PMI_FD"; }
where=$1; shift
dies() { for rank; do [ "$rank" = "$WIREUP_RANK" ] && return 0; done; return 1; }
say "cmd=init pmi_version=1 pmi_subversion=1"
say "cmd=put kvsname=$PMI_JOBID key=k$WIREUP_RANK value=v"
dies "$@" && [ "$where" = before ] && kill -9 $$
dies "$@" && [ "$where" = in ] && echo "cmd=barrier_in" >&"$PMI_FD" && kill -9 $$
say "cmd=barrier_in"
dies "$@" && [ "$where" = finalize ] && echo "cmd=finalize" >&"$PMI_FD" && kill -9 $$
dies "$@" && [ "$where" = after ] && kill -9 $$
say "cmd=barrier_in"
say "cmd=get kvsname=$PMI_JOBID key=PMI_dead_processes"
echo "pmi rank=$WIREUP_RANK dead=\"$line\""
say "cmd=finalize"
"#;

fn continues(nodes: &[&str], words: &[&str]) -> Run {
    let options = ["--on-failure", "continue"].iter().chain(nodes);
    Run::ranks(4, options.chain(words))
}

/// The ranks that came to the end.
fn survivors(outcome: &Outcome, word: &str) -> Vec<u32> {
    let lines = outcome.sorted_lines();
    let lines = lines.iter().filter(|line| line.starts_with(word));
    lines.map(|line| number(line, "rank")).collect()
}

#[test]
fn pmi_barrier_completes_without_dead_ranks() {
    for nodes in NODES {
        for phase in ["before", "in", "after"] {
            // The last two are all of a node where there are two.
            for (dead, rest) in [("1", &[0, 2, 3][..]), ("2 3", &[0, 1])] {
                let mut words = vec!["bash", "-c", PMI, "pmi", phase];
                words.extend(dead.split(' '));
                let outcome = continues(nodes, &words).run().expect(137);
                assert_eq!(survivors(&outcome, "pmi rank"), rest, "{outcome:?}");
                let list = dead.replace(' ', ",");
                for line in outcome.sorted_lines() {
                    let value = field(&line, "dead").unwrap();
                    assert!(
                        value.ends_with(&format!("value={list}")),
                        "{value}; {outcome:?}"
                    );
                }
                let noted = outcome.err().matches("; the others continue").count();
                assert_eq!(noted, dead.split(' ').count(), "{outcome:?}");
            }
        }
    }
}

#[test]
fn rank_killed_during_finalize_blocks_no_other() {
    for nodes in NODES {
        let words = ["bash", "-c", PMI, "pmi", "finalize", "1"];
        let outcome = continues(nodes, &words).run().expect(137);
        assert_eq!(survivors(&outcome, "pmi rank"), [0, 2, 3], "{outcome:?}");
    }
}

#[test]
fn exit_policy_makes_survivors_successful() {
    let words = [
        "--exit-policy",
        "any-zero",
        "bash",
        "-c",
        PMI,
        "pmi",
        "in",
        "1",
    ];
    continues(&[], &words).run().expect(0);
    // No rank waits for programs without MPI.
    let words = ["sh", "-c", "[ $WIREUP_RANK = 1 ] && kill -9 $$; echo here"];
    let outcome = continues(&[], &words).run().expect(137);
    assert_eq!(outcome.out().matches("here").count(), 3, "{outcome:?}");
}

#[test]
fn rank_killed_before_init_ends_ranks_that_need_it() {
    let shell = "[ $WIREUP_RANK = 1 ] && kill -9 $$; exec \"$0\"";
    for name in ["openmpi5", "mpich5"] {
        let Some(mpi) = mpi(name) else { return };
        let program = mpi.program("hello");
        for nodes in NODES {
            let words = ["sh", "-c", shell, program.to_str().unwrap()];
            let outcome = continues(nodes, &words).run().expect(137);
            let waited = "before MPI_Init; other ranks wait for it; ";
            assert!(outcome.err().contains(waited), "{outcome:?}");
        }
    }
}

#[test]
fn pmix_survivors_get_death_event_and_fence_without_dead() {
    for name in ["pmix4", "pmix5"] {
        let Some(client) = pmix(name) else { return };
        for nodes in NODES {
            let options = ["--libpmix", client.path(), "--on-failure", "continue"];
            let options = [&options[..], nodes].concat();
            let outcome = client.run(4, &options, "pmix_events", &["killed"]).run();
            let outcome = outcome.expect(137);
            for line in outcome.by_rank("pmix_events", 3) {
                assert_eq!(field(&line, "got"), Some("aborted:1,left:0"), "{outcome:?}");
            }
        }
    }
}

/// The survivors of an Open MPI program that shrinks.
#[track_caller]
fn expect_shrunk(outcome: &Outcome, word: &str, rest: &[u32]) {
    assert_eq!(survivors(outcome, word), rest, "{outcome:?}");
    let lines = outcome.sorted_lines();
    for line in lines.iter().filter(|line| line.starts_with(word)) {
        assert_eq!(number(line, "new_size"), rest.len() as u32, "{outcome:?}");
        assert_eq!(number(line, "sum"), rest.iter().sum::<u32>(), "{outcome:?}");
    }
}

fn ulfm(mpi: &Mpi, nodes: &[&str], dead: &str) -> Run {
    let options = [&["--on-failure", "continue"], nodes].concat();
    let run = mpi.run(4, &options, "ulfm", &[dead]);
    run.env("OMPI_MCA_mpi_ft_enable", "1")
}

#[test]
fn open_mpi_shrinks_after_death_of_rank_and_of_node_ranks() {
    let Some(mpi) = mpi("openmpi5") else { return };
    for nodes in NODES {
        let outcome = ulfm(&mpi, nodes, "1").run().expect(137);
        expect_shrunk(&outcome, "ulfm rank", &[0, 2, 3]);
        let outcome = ulfm(&mpi, nodes, "2,3").run().expect(137);
        expect_shrunk(&outcome, "ulfm rank", &[0, 1]);
    }
}

#[test]
fn python_example_shrinks_and_continues() {
    let Some(mpi) = mpi("openmpi5") else { return };
    let Some(with) = mpi4py(&mpi) else { return };
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/survive.py");
    for nodes in NODES {
        let python = with.python.to_str().unwrap();
        let words = [python, source, "2"];
        let run = with
            .env
            .iter()
            .fold(continues(nodes, &words), |run, (name, value)| {
                run.env(name, value)
            });
        let outcome = run.env("OMPI_MCA_mpi_ft_enable", "1").run().expect(137);
        expect_shrunk(&outcome, "survive rank", &[0, 1, 3]);
    }
}

#[test]
fn loss_requeues_job_only_in_slurm() {
    let died = "[ $WIREUP_RANK = 1 ] && kill -9 $$; exec sleep 1000";
    let words = [
        "--on-failure",
        "requeue",
        "--json",
        "status",
        "sh",
        "-c",
        died,
    ];
    let outcome = Run::ranks(2, words).run().expect(75);
    assert!(outcome.err().contains("to be run again"), "{outcome:?}");
    let status = std::fs::read_to_string(outcome.dir().join("status")).unwrap();
    let result = status.lines().last().unwrap();
    for part in [
        r#""exit_code":75"#,
        r#""on_failure":"requeue""#,
        r#""requeue":true"#,
    ] {
        assert!(result.contains(part), "no {part} in {result}");
    }
    // The script replaces Slurm's own command, and prints its arguments.
    let place = tempfile::tempdir().unwrap();
    let scontrol = place.path().join("scontrol");
    for (code, message) in [
        (0, "Slurm runs its job 17 again"),
        (1, "is not run again: scontrol requeue"),
    ] {
        let script = format!("#!/bin/sh\necho \"asked: $*\"\nexit {code}\n");
        std::fs::write(&scontrol, script).unwrap();
        std::fs::set_permissions(&scontrol, PermissionsExt::from_mode(0o755)).unwrap();
        let path = format!(
            "{}:{}",
            place.path().display(),
            std::env::var("PATH").unwrap()
        );
        let run = Run::ranks(2, ["--on-failure", "requeue", "sh", "-c", died]);
        let outcome = run
            .env("PATH", path)
            .env("SLURM_JOB_ID", "17")
            .run()
            .expect(75);
        assert_eq!(outcome.out(), "asked: requeue 17\n", "{outcome:?}");
        assert!(outcome.err().contains(message), "{outcome:?}");
    }
}

#[test]
fn program_exit_and_user_signal_are_not_requeued() {
    let words = ["--on-failure", "requeue", "sh", "-c", "exit 3"];
    Run::ranks(1, words).run().expect(3);
    let words = [
        "--on-failure",
        "requeue",
        "--timeout",
        "0.2",
        "sleep",
        "1000",
    ];
    Run::ranks(1, words).run().expect(124);
}

#[test]
fn policies_contradicting_options_are_refused() {
    for (policy, option) in [
        ("continue", "--kill-on-bad-exit"),
        ("requeue", "--no-kill-on-bad-exit"),
    ] {
        let outcome = Run::ranks(1, ["--on-failure", policy, option, "true"]).run();
        let words = [
            &*format!("--on-failure {policy} and {option}"),
            "contradict",
        ];
        outcome.expect(125).expect_one_line(&words);
    }
}
