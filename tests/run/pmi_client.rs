//! `wireup pmi`, under wireup and under the launchers of MPICH and Intel MPI.

use std::ffi::OsString;
use std::fs;

use crate::common::{Outcome, Run, mpi, mpis, wireup};

/// Launchers of this machine that serve PMI-1: a name, and the words in front of those of `wireup pmi`.
fn launchers(ranks: u32) -> Vec<(String, Vec<OsString>)> {
    let count = ranks.to_string();
    let own = [
        "run",
        "--no-config",
        "--pmi",
        "pmi1",
        "--oversubscribe",
        "-n",
        &count,
    ];
    let own = std::iter::once(wireup().into()).chain(own.map(OsString::from));
    let mut all = vec![("wireup".to_owned(), own.collect())];
    for mpi in mpis() {
        if ["mpich4", "mpich5", "impi"].contains(&mpi.name.as_str()) {
            let words = [mpi.launcher.into(), "-n".into(), OsString::from(&count)];
            all.push((mpi.name, words.into()));
        }
    }
    all
}

fn run_pmi(launcher: Vec<OsString>, words: &[&str]) -> Outcome {
    let own = [wireup().into(), OsString::from("pmi")];
    let words = words.iter().map(OsString::from);
    Run::command(launcher.into_iter().chain(own).chain(words)).run()
}

#[test]
fn services_of_any_launcher_are_queried() {
    for (name, launcher) in launchers(3) {
        let ask = |words: &[&str]| run_pmi(launcher.clone(), words).expect(0);
        let exchanged = ask(&["exchange", "300"]).sorted_lines();
        for (rank, line) in exchanged.iter().enumerate() {
            let start = format!("exchange rank={rank} size=3 bytes=300 barrier_us=");
            assert!(line.starts_with(&start), "{name}: {line}");
        }
        let barriers = ask(&["barrier", "7"]).sorted_lines();
        assert_eq!((exchanged.len(), barriers.len()), (3, 3), "{name}");
        assert!(
            barriers[2].starts_with("barrier rank=2 size=3 count=7 min_us="),
            "{name}"
        );
        let put = ask(&["put", "key-%r", "of-%r"]).sorted_lines();
        assert_eq!(put[1], "put rank=1 key-0=of-0", "{name}");
        let text = ask(&["attr", "nothing-has-put-this"]).out();
        assert_eq!(text.matches("size=3 kvsname=").count(), 3, "{name}: {text}");
        assert!(
            text.contains("PMI_process_mapping=(vector,"),
            "{name}: {text}"
        );
        let got = ask(&["get", "PMI_process_mapping"]).out();
        assert_eq!(
            got.matches("PMI_process_mapping=(vector,").count(),
            3,
            "{name}: {got}"
        );
    }
}

#[test]
fn missing_key_or_missing_launcher_is_error() {
    let (_, launcher) = launchers(1).swap_remove(0);
    let outcome = run_pmi(launcher, &["get", "nothing"]).expect(1);
    assert!(
        outcome.err().starts_with("wireup: unknown key nothing\n"),
        "{outcome:?}"
    );
    for words in [&["attr"][..], &["proxy", "true"]] {
        let outcome = run_pmi(Vec::new(), words).expect(125);
        outcome.expect_one_line(&["no launcher serves PMI here"]);
    }
}

#[test]
fn proxy_records_program_and_its_server() {
    let Some(mpich) = mpi("mpich5") else {
        return;
    };
    let program = mpich.dir.join("allreduce");
    for (name, launcher) in launchers(2) {
        let own = [
            wireup().into(),
            OsString::from("pmi"),
            "proxy".into(),
            "-o".into(),
            "said.%r".into(),
        ];
        let words = launcher
            .into_iter()
            .chain(own)
            .chain([program.clone().into()]);
        let outcome = Run::command(words).run().expect(0);
        assert_eq!(
            outcome.sorted_lines()[1],
            "allreduce rank=1 size=2 sum=3",
            "{name} {outcome:?}"
        );
        for rank in 0..2 {
            let transcript =
                fs::read_to_string(outcome.dir().join(format!("said.{rank}"))).unwrap();
            let lines: Vec<&str> = transcript.lines().collect();
            assert!(
                lines[0].ends_with(" C> cmd=init pmi_version=1 pmi_subversion=1"),
                "{name}: {transcript}"
            );
            assert!(
                lines[1].contains(" S> cmd=response_to_init ") && lines[1].ends_with(" us)"),
                "{name}: {transcript}"
            );
            assert!(
                transcript.contains(" C> cmd=finalize\n"),
                "{name}: {transcript}"
            );
        }
    }
}

#[test]
fn proxy_returns_exit_code_of_program() {
    let (_, launcher) = launchers(1).swap_remove(0);
    run_pmi(launcher, &["proxy", "sh", "-c", "exit 7"]).expect(7);
}

#[test]
fn proxy_reports_incomplete_record_and_failed_start() {
    let (_, launcher) = launchers(1).swap_remove(0);
    let own = wireup().to_str().unwrap().to_owned();
    let words = ["proxy", "-o", "/dev/full", &own, "pmi", "barrier"];
    let outcome = run_pmi(launcher.clone(), &words).expect(0);
    outcome.expect_one_line(&["cannot write all messages: No space left on device"]);
    let outcome = run_pmi(launcher, &["proxy", "/no/program"]).expect(125);
    assert!(
        outcome
            .err()
            .contains("wireup pmi proxy: /no/program: No such file"),
        "{outcome:?}"
    );
}

#[test]
fn invalid_key_or_value_is_not_sent() {
    for (_, launcher) in launchers(1) {
        for (words, message) in [
            (["put", "a b", "c"], "cannot send name \"a b\""),
            (["put", "a=b", "c"], "cannot send name \"a=b\""),
            (
                ["put", "a", "c\ncmd=abort"],
                "cannot send value \"c\\ncmd=abort\"",
            ),
            (["get", "--kvs=a b", "c"], "cannot send name \"a b\""),
        ] {
            let outcome = run_pmi(launcher.clone(), &words);
            assert!(outcome.err().contains(message), "{outcome:?}");
            assert_ne!(outcome.code, 0, "{outcome:?}");
        }
    }
}
