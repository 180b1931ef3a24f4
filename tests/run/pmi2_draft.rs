//! The commands that only the drafts of PMI-2 have, by the client library in examples/pmi2-draft, which checks every answer.

use std::ffi::OsString;

use crate::common::{Outcome, Run, program, wireup};
use crate::serve::by_hand;

/// Ranks of the library's program.
fn ranks(count: u32, options: &[&str], build: &str, words: &[&str]) -> Option<Run> {
    let program = program(build)?;
    let own = [
        "--pmi",
        "pmi2",
        "--oversubscribe",
        program.to_str().unwrap(),
    ];
    let words = options.iter().chain(&own).chain(words);
    Some(Run::ranks(count, words))
}

/// Checks the number of lines of each kind of rank.
#[track_caller]
fn expect(outcome: &Outcome, counts: &[(&str, usize)]) {
    let out = outcome.out();
    for (start, count) in counts {
        let start = format!("demo {start} rank=");
        let lines = out.lines().filter(|line| line.starts_with(&start));
        assert_eq!(lines.count(), *count, "{start}: {outcome:?}");
    }
}

#[test]
fn every_pmi2_draft_command_is_served() {
    for (count, nodes) in [(1, "1"), (3, "1"), (3, "2"), (5, "3")] {
        let options = ["--virtual-nodes", nodes];
        let Some(run) = ranks(count, &options, "pmi2_draft", &["all"]) else {
            return;
        };
        expect(
            &run.run().expect(0),
            &[("all", count as usize), ("child", 3)],
        );
    }
}

#[test]
fn pmi2_draft_program_runs_as_its_page_describes() {
    let Some(program) = program("pmi2_draft") else {
        return;
    };
    let dir = program.parent().unwrap().to_str().unwrap();
    let options = ["--pmi", "pmi2", "--virtual-nodes", "2", "--wdir", dir];
    let run = Run::ranks(4, options).more(["./pmi2_draft", "all"]).run();
    expect(&run.expect(0), &[("all", 4), ("child", 3)]);
}

#[test]
fn pmi2_draft_client_is_clean_under_sanitizers_and_valgrind() {
    let two = ["--virtual-nodes", "2"];
    for build in ["pmi2_draft_asan", "pmi2_draft_tsan"] {
        for (words, counts) in [
            ("all", &[("all", 3), ("child", 3)][..]),
            ("threads", &[("threads", 3)]),
        ] {
            let Some(run) = ranks(3, &two, build, &[words]) else {
                return;
            };
            // Without addresses in other places, which some kernels give and TSan does not bear.
            let run = run
                .env("TSAN_OPTIONS", "exitcode=66")
                .env("ASAN_OPTIONS", "exitcode=66");
            expect(&run.run().expect(0), counts);
        }
    }
    let Some(program) = program("pmi2_draft") else {
        return;
    };
    let valgrind = [
        "--pmi",
        "pmi2",
        "--oversubscribe",
        "valgrind",
        "--quiet",
        "--error-exitcode=99",
    ];
    let checks = [
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,indirect,possible",
    ];
    let words = two.iter().chain(&valgrind).chain(&checks);
    let run = Run::ranks(2, words.chain(&[program.to_str().unwrap(), "all"]));
    expect(&run.run().expect(0), &[("all", 2), ("child", 3)]);
}

#[test]
fn threads_send_concurrent_requests_answered_out_of_order() {
    for (count, nodes) in [(1, "1"), (4, "2"), (3, "3")] {
        let options = ["--virtual-nodes", nodes];
        let Some(run) = ranks(count, &options, "pmi2_draft", &["threads"]) else {
            return;
        };
        expect(&run.run().expect(0), &[("threads", count as usize)]);
    }
}

#[test]
fn pmi2_draft_abort_reports_message() {
    let Some(run) = ranks(2, &[], "pmi2_draft", &["abort", "no;more"]) else {
        return;
    };
    run.run().expect(255).expect_one_line(&["no;more"]);
}

#[test]
fn authenticated_client_is_rank_on_any_interface() {
    let Some(program) = program("pmi2_draft") else {
        return;
    };
    let client = [program.into(), "all".into()];
    let outcome = by_hand(2, "--listen 0.0.0.0 --pmi pmi2", &client).run();
    expect(&outcome.expect(0), &[("all", 2), ("child", 3)]);
}

/// A rank that is served waits for a notice, which the launch sends when it gets a signal.
const NOTICES: &str = r#"
"$1" serve -n 1 --env-dir env --pmi pmi2 --no-config & serving=$!
until [ -e env/rank-0.env ]; do kill -0 $serving || exit 99; sleep 0.05; done
env $(cat env/rank-0.env) "$2" notices NONE & client=$!
while kill -0 $client 2>/dev/null; do kill -USR1 $serving 2>/dev/null; sleep 0.2; done
wait $client && wait $serving
"#;

#[test]
fn pmi2_draft_client_gets_notices() {
    let Some(program) = program("pmi2_draft") else {
        return;
    };
    let words = ["bash", "-c", NOTICES, "bash"].map(OsString::from);
    let words = words.into_iter().chain([wireup().into(), program.into()]);
    let outcome = Run::command(words).run().expect(0);
    assert!(
        outcome
            .out()
            .contains("demo rank=0 notice=cmd=checkpoint\n"),
        "{outcome:?}"
    );
}
