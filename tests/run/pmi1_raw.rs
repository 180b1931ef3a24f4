//! Ranks that misuse their PMI socket, and many that use it well: one clear line, the right code,
//! no hang, and no memory for requests that are never answered.

use rustix::process::Signal;

use crate::common::{Outcome, Output, Run, program};

const INIT: &str = r"cmd=init pmi_version=1 pmi_subversion=1\n";

/// Three ranks of `pmi_raw` of which rank 1 does something and the others wait to be killed.
fn raw(args: &[&str]) -> Option<Run> {
    let pmi_raw = program("pmi_raw")?;
    let words = [pmi_raw.to_str().unwrap(), "1"].map(str::to_owned);
    let args = args.iter().map(|arg| (*arg).to_owned());
    Some(Run::ranks(3, words.into_iter().chain(args)))
}

/// Three ranks of which rank 1 runs `script`, where `$RAW` is `pmi_raw 1`, and the others meet
/// their peers as any PMI-1 program does.
fn among_others(script: &str) -> Option<Run> {
    let (pmi_raw, pmi_wireup) = (program("pmi_raw")?, program("pmi_wireup")?);
    let script = format!(
        "[ $WIREUP_RANK = 1 ] || exec {}; {script}",
        pmi_wireup.display()
    );
    let run = Run::ranks(3, ["--pmi", "pmi1", "sh", "-c", &script]);
    Some(run.env("RAW", format!("{} 1", pmi_raw.display())))
}

/// The job failed by rank 1, with one line that has these words.
#[track_caller]
pub(crate) fn blamed(outcome: &Outcome, code: i32, words: &[&str]) {
    assert_eq!(outcome.code, code, "{outcome:?}");
    let line = outcome.expect_one_line(words);
    assert!(line.starts_with("wireup: rank 1 ("), "{outcome:?}");
    assert!(line.len() < 500, "{line}");
}

#[test]
fn garbage_on_socket_is_violation() {
    for bytes in ["1", "100", "65536", "1000000"] {
        let Some(run) = raw(&["garbage", bytes, "--then", "wait"]) else {
            return;
        };
        let running = run.start();
        if bytes == "1" {
            // One byte is no message yet: nothing to complain about.
            running.wait_for(Output::Stdout, "sent=1 end=complete");
            running.signal(Signal::TERM);
            running.finish().expect(143);
            continue;
        }
        blamed(&running.finish(), 1, &["broke its protocol: "]);
    }
    let Some(run) = raw(&["send", r"\0\0\0\n", "--then", "wait"]) else {
        return;
    };
    blamed(&run.run(), 1, &["broke its protocol: NUL byte in request"]);
    let Some(run) = raw(&["send", r"hello\n", "--then", "wait"]) else {
        return;
    };
    blamed(&run.run(), 1, &["broke its protocol: ", "`hello`"]);
}

#[test]
fn garbage_of_all_ranks_at_once_is_one_failure() {
    let Some(pmi_raw) = program("pmi_raw") else {
        return;
    };
    let args = [pmi_raw.to_str().unwrap(), "all", "garbage", "5000"];
    let outcome = Run::ranks(32, args).run().expect(1);
    outcome.expect_one_line(&["rank ", "broke its protocol"]);
}

#[test]
fn message_of_one_gibibyte_ends_job_at_once() {
    let Some(run) = raw(&["flood", "1073741824", "--then", "wait"]) else {
        return;
    };
    blamed(
        &run.run(),
        1,
        &["broke its protocol: request line longer than 65536 bytes"],
    );
    // And just below the limit it is read, and refused as what it is.
    let Some(run) = raw(&[
        "send",
        &format!("cmd={}\\n", "x".repeat(60_000)),
        "--then",
        "wait",
    ]) else {
        return;
    };
    blamed(&run.run(), 1, &["broke its protocol: "]);
}

#[test]
fn rank_that_never_reads_replies_is_held_back() {
    let Some(run) = raw(&["endless", "300000000", "--then", "wait"]) else {
        return;
    };
    run.expect_held_back("pmi_raw");
}

#[test]
fn exit_within_message_is_violation() {
    let Some(run) = raw(&["send", "cmd=ini"]) else {
        return;
    };
    let words = ["broke its protocol: connection closed in the middle of a message (7 bytes)"];
    blamed(&run.run(), 1, &words);
    let half_spawn = r"mcmd=spawn\nnprocs=1\n";
    let Some(run) = raw(&["send", &format!("{INIT}{half_spawn}")]) else {
        return;
    };
    blamed(&run.run(), 1, &["in the middle of a message"]);
    // Its end is reported before the message that it did not finish.
    let Some(run) = raw(&["send", "cmd=ini", "--code", "5"]) else {
        return;
    };
    let outcome = run.run();
    assert!([1, 5].contains(&outcome.code), "{outcome:?}");
    blamed(&outcome, outcome.code, &[]);
}

#[test]
fn exit_between_init_and_finalize_is_failure_even_with_code_0() {
    let Some(run) = raw(&["send", INIT]) else {
        return;
    };
    let words = ["exited with code 0 between MPI_Init and MPI_Finalize"];
    blamed(&run.run(), 1, &words);
    let Some(run) = raw(&["send", INIT, "--code", "3"]) else {
        return;
    };
    blamed(&run.run(), 3, &["exited with code 3 after MPI_Init"]);
    // What it last asked for is for those who ask for details.
    let Some(run) = raw(&["send", INIT, "--code", "3"]) else {
        return;
    };
    let outcome = run.env("WIREUP_SITE_CONFIG", "verbose.toml");
    std::fs::write(outcome.dir().join("verbose.toml"), "[run]\nverbose = 1\n").unwrap();
    let err = outcome.run().expect(3).err();
    assert!(
        err.contains("after MPI_Init; PMI-1: initialized, last request init"),
        "{err}"
    );
}

#[test]
fn rank_killed_in_barrier_is_reported_with_its_state() {
    let Some(pmi_raw) = program("pmi_raw") else {
        return;
    };
    // The others stay outside, so that the barrier is never complete.
    let send = format!("{} 1 send '{INIT}cmd=barrier_in\\n'", pmi_raw.display());
    let script = format!("[ $WIREUP_RANK = 1 ] || exec sleep 1000; {send}; kill -9 $$");
    let run = Run::ranks(3, ["--pmi", "pmi1", "sh", "-c", &script]);
    blamed(
        &run.run(),
        137,
        &["was killed by signal 9 (SIGKILL) waiting for other ranks"],
    );
}

#[test]
fn abort_ends_job_with_its_code() {
    for (request, code, words) in [
        ("cmd=abort exitcode=42", 42, "called MPI_Abort with code 42"),
        ("cmd=abort exitcode=0", 1, "called MPI_Abort with code 0"),
        (
            "cmd=abort exitcode=256",
            1,
            "called MPI_Abort with code 256",
        ),
        (
            "cmd=abort exitcode=-1",
            255,
            "called MPI_Abort with code -1",
        ),
        (
            "cmd=abort exitcode=7 error_msg=so it goes",
            7,
            "called MPI_Abort with code 7: so it goes",
        ),
    ] {
        let request = format!("{INIT}{request}\\n");
        let Some(run) = raw(&["send", &request, "--then", "wait"]) else {
            return;
        };
        blamed(&run.run(), code, &[words]);
    }
    // Whatever its process does then.
    let request = format!("{INIT}cmd=abort exitcode=9\\n");
    let Some(run) = raw(&["send", &request, "--code", "4"]) else {
        return;
    };
    blamed(&run.run(), 9, &["called MPI_Abort with code 9"]);
}

#[test]
fn invalid_requests_are_answered_and_rank_continues() {
    let requests = [
        (INIT, "cmd=response_to_init rc=0"),
        (r"cmd=frobnicate x=1\n", "cmd=frobnicate_result rc=-1"),
        (r"cmd=get kvsname=other key=y\n", "cmd=get_result rc=-1"),
        (
            r"cmd=put kvsname=other key=y value=z\n",
            "cmd=put_result rc=-1",
        ),
        (r"cmd=get_maxes\n", "cmd=maxes rc=0"),
    ];
    let text: String = requests.iter().map(|(request, _)| *request).collect();
    let Some(run) = raw(&["send", &text, "--then", "read"]) else {
        return;
    };
    let running = run.start();
    for (_, reply) in requests {
        running.wait_for(Output::Stdout, &format!("reply={reply}"));
    }
    running.signal(Signal::TERM);
    running.finish().expect(143);
}

#[test]
fn rank_that_never_joins_while_others_wait_ends_job() {
    let Some(run) = among_others("exit 0") else {
        return;
    };
    blamed(
        &run.run(),
        1,
        &["without joining the job while other ranks wait for it"],
    );
    // No rank waits for it here.
    Run::ranks(3, ["--pmi", "pmi1", "true"])
        .run()
        .expect_quiet_success();
}

#[test]
fn rank_that_closes_its_socket_while_others_wait_ends_job() {
    let Some(run) = among_others("exec $RAW close --then wait") else {
        return;
    };
    blamed(
        &run.run(),
        1,
        &["broke its protocol: closed its PMI connection while other ranks wait for it"],
    );
    let Some(run) = among_others("exec $RAW close") else {
        return;
    };
    blamed(
        &run.run(),
        1,
        &["without joining the job while other ranks wait for it"],
    );
}

#[test]
fn rank_that_closes_its_socket_before_finalize_is_violation() {
    let script = format!("$RAW send '{INIT}'; exec 3>&-; exec sleep 1000");
    let Some(run) = among_others(&script) else {
        return;
    };
    blamed(
        &run.run(),
        1,
        &["broke its protocol: closed its PMI connection before finalize"],
    );
}

#[test]
fn rank_that_finalized_and_exited_cannot_be_awaited() {
    let script = format!("exec $RAW send '{INIT}cmd=finalize\\n'");
    let Some(run) = among_others(&script) else {
        return;
    };
    blamed(
        &run.run(),
        1,
        &["left the job while other ranks wait for it"],
    );
}

/// Runs four ranks on two nodes, each of which runs the commands of `case` between init and
/// finalize, with `ask LINE` for a request and its reply.
fn four_on_two_nodes(case: &str) -> Outcome {
    let script = format!(
        r#"ask() {{ printf "$1\n" >&3; read -r reply <&3; echo "rank $PMI_RANK: $reply"; }}
        ask '{}'
        case $PMI_RANK in {case} esac
        ask cmd=finalize"#,
        INIT.trim_end_matches(r"\n")
    );
    let nodes = ["--virtual-nodes", "2"];
    let args = ["--pmi", "pmi1", "sh", "-c", &script];
    Run::ranks(4, nodes.into_iter().chain(args)).run()
}

#[test]
fn group_barrier_waits_only_for_its_members() {
    // Rank 3 comes when ranks 0 and 2 have been gone for longer than a member may be.
    let enter = "ask 'cmd=barrier_in group=1,3:9'";
    let outcome = four_on_two_nodes(&format!("1) {enter};; 3) sleep 7; {enter};;")).expect(0);
    for rank in [1, 3] {
        let line = format!("rank {rank}: cmd=barrier_out rc=0 tag=9");
        assert!(outcome.out().contains(&line), "{outcome:?}");
    }
}

#[test]
fn group_barrier_with_departed_member_fails_job_and_names_it() {
    let outcome = four_on_two_nodes("1) ask 'cmd=barrier_in group=1,3:9';;");
    assert_eq!(outcome.code, 1, "{outcome:?}");
    let words = ["left the job while other ranks wait for it"];
    let line = outcome.expect_one_line(&words);
    assert!(line.starts_with("wireup: rank 3 ("), "{line}");
}

#[test]
fn socket_closed_by_all_ranks_is_tolerated() {
    let Some(pmi_raw) = program("pmi_raw") else {
        return;
    };
    let args = [pmi_raw.to_str().unwrap(), "all", "close"];
    Run::ranks(4, args).run().expect_quiet_success();
}

#[test]
fn barrier_of_128_ranks_completes() {
    let Some(pmi_wireup) = program("pmi_wireup") else {
        return;
    };
    for _ in 0..3 {
        let outcome = Run::ranks(128, [&pmi_wireup]).run().expect_quiet_success();
        assert_eq!(
            outcome.out().matches("size=128 gets=32").count(),
            128,
            "{outcome:?}"
        );
    }
    // And on nodes that know of each other's ranks only what the barrier brings.
    let args = ["--virtual-nodes", "4", pmi_wireup.to_str().unwrap()];
    let outcome = Run::ranks(64, args).run().expect(0);
    assert_eq!(
        outcome.out().matches("size=64 gets=32").count(),
        64,
        "{outcome:?}"
    );
}

#[test]
fn ranks_get_process_mapping_of_hosts() {
    let Some(program) = program("pmi_hosts") else {
        return;
    };
    for (nodes, by, hosts, together) in [
        ("1", "slot", 1, &[&[0, 1, 2, 3, 4][..]][..]),
        ("2", "slot", 2, &[&[0, 1, 2], &[3, 4]]),
        ("2", "node", 2, &[&[0, 2, 4], &[1, 3]]),
    ] {
        let options = ["--pmi", "pmi1", "--virtual-nodes", nodes, "--map-by", by];
        let options =
            options
                .iter()
                .chain(&["--oversubscribe", "--memory-alloc-kinds", "mpi,system"]);
        let words = [program.to_str().unwrap(), "PMI_mpi_memory_alloc_kinds"];
        let outcome = Run::ranks(5, options.chain(&words)).run().expect(0);
        let lines = outcome.by_rank("pmi_hosts", 5);
        for ranks in together {
            let list: String = ranks.iter().map(|rank| format!("{rank},")).collect();
            for rank in *ranks {
                let line = &lines[*rank as usize];
                assert!(line.contains(&format!(" hosts={hosts} ")), "{line}");
                assert!(
                    line.contains(&format!(":{list} value=\"mpi,system\"")),
                    "{line}"
                );
            }
        }
    }
}
