//! Fences in which ranks are missing: these are named, in time, with every interface.

use crate::common::{Outcome, Output, Run, mpi, program};

const INIT: &str = r"cmd=init pmi_version=1 pmi_subversion=1\n";

/// Ranks that put something. The `count` stuck ones, by a pattern of the shell, stop there; the others enter a barrier
/// after that. All wait then.
fn raw(ranks: u32, options: &[&str], stuck: &str, count: usize) -> Option<Run> {
    let raw = program("pmi_raw")?;
    let put = r"cmd=put kvsname='$PMI_JOBID' key=k value=v\n";
    let send = |text: &str| {
        let raw = raw.display();
        format!("exec {raw} $WIREUP_RANK send '{INIT}{put}{text}' --then wait")
    };
    let script = format!(
        "case $WIREUP_RANK in {stuck}) {} >put.$WIREUP_RANK;; esac
         until [ $(cat put.* 2>/dev/null | wc -l) = {count} ]; do sleep 0.05; done; {}",
        send(""),
        send(r"cmd=barrier_in\n")
    );
    let args = options.iter().copied();
    Some(Run::ranks(ranks, args.chain(["sh", "-c", &script])))
}

#[track_caller]
fn late(outcome: &Outcome, words: &[&str]) -> String {
    assert_eq!(outcome.code, 1, "{outcome:?}");
    outcome.expect_one_line(words)
}

#[test]
fn barrier_timeout_names_missing_rank() {
    for (options, host) in [(&[][..], ""), (&["--virtual-nodes", "2"], "-v1")] {
        let options = [options, &["--pmi", "pmi1", "--fence-timeout", "3"]].concat();
        let Some(run) = raw(4, &options, "3", 1) else {
            return;
        };
        let line = late(
            &run.run(),
            &["PMI fence timeout: 1 of 4 ranks missing: rank 3 ("],
        );
        assert!(line.contains(&format!("{host}, pid ")), "{line}");
        assert!(line.contains(", connected, last put "), "{line}");
    }
}

#[test]
fn many_missing_ranks_are_counted_and_ten_of_them_named() {
    let options = ["--virtual-nodes", "3", "--fence-timeout", "3"];
    let Some(run) = raw(18, &options, "?|1[0-4]", 15) else {
        return;
    };
    let line = late(&run.run(), &["15 of 18 ranks missing: rank 0 ("]);
    assert_eq!(line.matches(", pid ").count(), 10, "{line}");
    assert!(line.contains(", 5 more;"), "{line}");
}

#[test]
fn missing_pmi2_ranks_are_named() {
    let Some(raw) = program("pmi2_raw") else {
        return;
    };
    let raw = raw.to_str().unwrap();
    let steps = ["init", "put", "k%r", "v", "for", "0", "fence", "for", "all"];
    let args = ["--virtual-nodes", "2", "--fence-timeout", "4", raw];
    let run = Run::ranks(2, args.into_iter().chain(steps).chain(["wait"]));
    late(
        &run.run(),
        &[
            "PMI fence timeout: 1 of 2 ranks missing: rank 1 (",
            ", connected, last kvs-put ",
        ],
    );
}

#[test]
fn rank_that_is_late_in_fence_is_awaited_by_default() {
    let Some(wireup) = program("pmi_wireup") else {
        return;
    };
    let script = format!("[ $WIREUP_RANK = 1 ] && sleep 3; exec {}", wireup.display());
    let run = |time: &str| Run::ranks(2, ["--fence-timeout", time, "sh", "-c", &script]).run();
    run("0").expect(0);
    run("20").expect(0);
    late(
        &run("1"),
        &["1 of 2 ranks missing: rank 1 (", ", never contacted PMI)"],
    );
}

#[test]
fn late_finalize_fails_job_when_user_sets_fence_timeout() {
    for name in ["mpich4", "openmpi4", "openmpi5"] {
        let Some(mpi) = mpi(name) else { continue };
        // Rank 0 has standard input, which does not end.
        let options = ["--virtual-nodes", "2", "--fence-timeout", "8"];
        let run = mpi.run(2, &options, "patient", &[]).stdin_held().start();
        run.wait_for(Output::Stderr, "timeout: ");
        let words = match name {
            "mpich4" => "PMI fence timeout: 1 of 2 ranks missing: rank 0 (",
            _ => "PMIx fence timeout: the rank on ",
        };
        late(&run.finish(), &[words]);
    }
}

#[test]
fn rank_that_never_inits_pmix_is_named_with_its_node() {
    let Some(mpi) = mpi("openmpi5") else { return };
    let stop = "[ $WIREUP_RANK = 3 ] && exec sleep 1000; exec \"$@\"";
    let wrap = format!("sh -c '{stop}' sh");
    let options = [
        "--virtual-nodes",
        "2",
        "--fence-timeout",
        "8",
        "--wrap",
        &wrap,
    ];
    let outcome = mpi.run(4, &options, "hello", &[]).run();
    let line = late(
        &outcome,
        &["PMIx fence timeout: 1 of 4 ranks missing: rank 3 ("],
    );
    assert!(line.contains("-v1, pid "), "{line}");
    assert!(line.contains(", never contacted PMIx)"), "{line}");
}

#[test]
fn status_stream_lists_missing_ranks() {
    let options = [
        "--json",
        "-",
        "--virtual-nodes",
        "2",
        "--fence-timeout",
        "3",
    ];
    let Some(run) = raw(4, &options, "3", 1) else {
        return;
    };
    let outcome = run.run();
    let text = outcome.out();
    let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let cause = &last["cause"];
    assert_eq!(cause["kind"], "fence_timeout", "{outcome:?}");
    let missing = &cause["missing"];
    assert_eq!(missing["count"], 1);
    let rank = &missing["ranks"][0];
    assert_eq!((&rank["rank"], &rank["node"]), (&3.into(), &1.into()));
    assert_eq!(rank["last"], "connected, last put");
    assert!(rank["idle_ms"].as_u64().unwrap() >= 2500, "{rank}");
}
