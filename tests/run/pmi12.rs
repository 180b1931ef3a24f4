//! PMI 1.2: group barriers, several at once on one connection, and the MPI that knows of them.

use crate::common::{Outcome, Run, mpi, number, program};
use crate::pmi1_raw::blamed;

/// Ranks that enter all kinds of barriers from several threads at once.
fn groups(ranks: u32, options: &[&str], threads: &str, rounds: &str) -> Option<Run> {
    let program = program("pmi12_groups")?;
    let program = [program.to_str().unwrap(), "entered", threads, rounds];
    Some(Run::ranks(ranks, options.iter().chain(&program)))
}

/// The nodes that the ranks found themselves on.
#[track_caller]
fn nodes(outcome: &Outcome, ranks: u32) -> Vec<u32> {
    let lines = outcome.by_rank("pmi12_groups", ranks);
    lines.iter().map(|line| number(line, "node")).collect()
}

#[test]
fn group_barriers_are_separate_on_one_connection() {
    for (ranks, threads, rounds) in [(1, "1", "5"), (2, "4", "50"), (7, "8", "10")] {
        let Some(run) = groups(ranks, &[], threads, rounds) else {
            return;
        };
        let outcome = run.run().expect_quiet_success();
        assert_eq!(nodes(&outcome, ranks), vec![0; ranks as usize]);
    }
}

#[test]
fn group_barriers_are_separate_across_nodes() {
    for (ranks, nodes, expected) in [
        (4, "2", vec![0, 0, 1, 1]),
        (5, "2", vec![0, 0, 0, 1, 1]),
        (4, "4", vec![0, 1, 2, 3]),
    ] {
        let Some(run) = groups(ranks, &["--virtual-nodes", nodes], "4", "20") else {
            return;
        };
        assert_eq!(self::nodes(&run.run().expect(0), ranks), expected);
    }
}

#[test]
fn group_barrier_with_departed_member_ends_job_and_names_it() {
    let Some(raw) = program("pmi_raw") else {
        return;
    };
    let init = r"cmd=init pmi_version=1 pmi_subversion=1\n";
    let send =
        |rank: u32, request: &str| format!("{} {rank} send '{init}{request}'", raw.display());
    for group in ["0,1:7", "WORLD:9", "NODE:3"] {
        let leave = send(1, r"cmd=finalize\n");
        let enter = send(0, &format!("cmd=barrier_in group={group}\\n"));
        let script = format!(
            "[ $WIREUP_RANK = 0 ] && exec {enter} --then wait; [ $WIREUP_RANK = 1 ] && exec {leave}"
        );
        let script = format!("{script}; exec {} --then wait", send(2, ""));
        let run = Run::ranks(3, ["--pmi", "pmi1", "sh", "-c", &script]);
        let words = ["left the job while other ranks wait for it"];
        blamed(&run.run(), 1, &words);
    }
}

#[test]
fn wrong_groups_are_refused_with_their_tag() {
    let Some(raw) = program("pmi_raw") else {
        return;
    };
    let init = r"cmd=init pmi_version=1 pmi_subversion=1\n";
    let wrong = [
        ("9:11", "11"),
        ("0,0:12", "12"),
        ("1:13", "13"),
        ("world:14", "14"),
        ("0,x:15", "15"),
    ];
    let requests: String = wrong
        .iter()
        .map(|(group, _)| format!("cmd=barrier_in group={group}\\n"))
        .collect();
    let text = format!("{init}{requests}cmd=barrier_in group=0:16\\ncmd=finalize\\n");
    let args = [raw.to_str().unwrap(), "0", "send", &text, "--then", "read"];
    let running = Run::ranks(2, args).start();
    let output = crate::common::Output::Stdout;
    for (group, tag) in wrong {
        let tag = format!(" tag={tag}");
        let text = running.wait_for(output, &tag);
        let line = text.lines().find(|line| line.contains(&tag)).unwrap();
        assert!(line.contains("barrier_out rc=-1"), "{group}: {line}");
    }
    running.wait_for(output, "barrier_out rc=0 tag=16");
    running.wait_for(output, "finalize_ack rc=0");
    running.signal(rustix::process::Signal::TERM);
    running.finish().expect(143);
}

#[test]
fn pmi_init_returns_version_that_client_accepts() {
    let answer =
        |subversion| format!("cmd=response_to_init rc=0 pmi_version=1 pmi_subversion={subversion}");
    // As the client of Flux, which takes nothing else.
    let other = r#"ask() { printf '%s\n' "$1" >&$PMI_FD; IFS= read -r reply <&$PMI_FD; }
        ask 'cmd=init pmi_version=1 pmi_subversion=1'; echo "$reply"; ask cmd=finalize"#;
    let run = Run::ranks(1, ["--pmi", "pmi1", "sh", "-c", other]);
    assert_eq!(run.run().expect_quiet_success().sorted_lines(), [answer(1)]);
    let Some(mpi) = mpi("mpich5") else { return };
    let hello = mpi.dir.join("hello");
    // The client is not the process that wireup has started.
    let shell = ["--pmi", "pmi1", "sh", "-c", "\"$0\"; exit $?"];
    let words = shell.into_iter().chain(hello.to_str());
    let run = Run::ranks(1, words).env("PMI_DEBUG", "1");
    let outcome = run.run().expect(0);
    assert!(outcome.err().contains(&answer(2)), "{outcome:?}");
}

#[test]
fn mpich_5_makes_communicators_of_groups_in_several_threads() {
    let Some(mpi) = mpi("mpich5") else { return };
    for options in [&[][..], &["--virtual-nodes", "2"]] {
        let outcome = mpi.run(4, options, "sessions", &[]).run().expect(0);
        outcome.by_rank("sessions", 4);
    }
}
