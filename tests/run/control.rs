//! Ranks that end, stop and signal others of their job through PMIx: on one node and on two.

use crate::common::{Outcome, Pmix, field, pmix};
use crate::pmix::SERVERS;

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// Every libpmix that is here, as server and as client.
fn versions() -> impl Iterator<Item = Pmix> {
    SERVERS.iter().filter_map(|(name, _)| pmix(name))
}

/// Runs a mode of `pmix_control` with each libpmix, on one node and on two.
fn everywhere(options: &[&str], mode: &str, code: i32, check: impl Fn(&Outcome)) {
    for client in versions() {
        for nodes in NODES {
            let options = [&["--libpmix", client.path()], options, nodes].concat();
            let outcome = client.run(4, &options, "pmix_control", &[mode]).run();
            check(&outcome.expect(code));
        }
    }
}

/// Ranks 0 and 2 came to the end, and no others.
#[track_caller]
fn expect_the_even_ones(outcome: &Outcome) {
    let lines = outcome.sorted_lines();
    let ranks: Vec<_> = lines.iter().map(|line| field(line, "rank")).collect();
    assert_eq!(ranks, [Some("0"), Some("2")], "{outcome:?}");
}

#[test]
fn abort_of_some_ranks_spares_others_if_failures_are_tolerated() {
    everywhere(&["--no-kill-on-bad-exit"], "abort", 7, |outcome| {
        expect_the_even_ones(outcome);
        let err = outcome.err();
        assert!(
            err.contains("rank 0 aborted ranks 1,3 with code 7; the others continue"),
            "{err}"
        );
        assert!(err.contains("2 of 4 ranks failed; exit code 7"), "{err}");
    });
}

#[test]
fn abort_of_some_ranks_ends_job_by_default() {
    everywhere(&[], "abort", 7, |outcome| {
        outcome.expect_one_line(&["rank 0 ", "called MPI_Abort with code 7: two of us"]);
    });
}

#[test]
fn ranks_ended_on_purpose_are_not_failure() {
    // Killed at once: the time to be polite is longer than the test.
    for (mode, grace) in [("terminate", "60"), ("kill", "60"), ("stubborn", "0.3")] {
        everywhere(&["--grace", grace], mode, 0, |outcome| {
            expect_the_even_ones(outcome);
            assert_eq!(outcome.err(), "", "{mode}");
        });
    }
}

#[test]
fn shared_memory_of_ranks_ended_on_purpose_is_removed() {
    // That nothing is left is checked after every run.
    let own = r#"sh -c 'touch /dev/shm/mpich_of_rank_%r; exec "$@"' own"#;
    everywhere(&["--wrap", own], "kill", 0, expect_the_even_ones);
}

#[test]
fn rank_can_end_its_whole_job() {
    for (mode, signal, code) in [("all", 15, 143), ("kill_all", 9, 137)] {
        everywhere(&[], mode, code, |outcome| {
            let what = format!("had the job ended by signal {signal}");
            outcome.expect_one_line(&["rank 0 ", &what]);
        });
    }
}

#[test]
fn signal_reaches_only_named_ranks() {
    everywhere(&[], "signal", 0, |outcome| {
        outcome.by_rank("pmix_control", 4);
    });
}

#[test]
fn job_control_without_targets_means_own_job_not_parents() {
    for client in versions() {
        for nodes in NODES {
            for (how, code) in [("signal", 0), ("terminate", 0), ("kill", 0), ("abort", 5)] {
                let libpmix = ["--libpmix", client.path()];
                let options = ["--no-kill-on-bad-exit", "--oversubscribe"];
                let options = [&libpmix[..], &options, nodes].concat();
                let run = client.run(4, &options, "pmix_control", &["family", how]);
                run.run().expect(code).by_rank("pmix_control", 4);
            }
        }
    }
}

#[test]
fn rank_is_stopped_and_continued() {
    everywhere(&[], "pause", 0, |outcome| {
        outcome.by_rank("pmix_control", 4);
    });
}

#[test]
fn impossible_job_control_is_refused_at_once() {
    everywhere(&[], "refused", 0, |outcome| {
        outcome.by_rank("pmix_control", 4);
    });
}

#[test]
fn registered_cleanup_at_rank_end_does_not_follow_links() {
    for client in versions() {
        for nodes in NODES {
            for (how, code) in [
                ("finalize", 0),
                ("kill", 137),
                ("file", 0),
                ("named", 0),
                ("empty", 0),
                ("top", 0),
            ] {
                // From version 7 on what is empty and what is below contradict each other.
                if how == "empty" && client.dir.ends_with("pmix7") {
                    continue;
                }
                let dir = tempfile::tempdir().unwrap();
                let options = ["--libpmix", client.path(), "--no-kill-on-bad-exit"];
                let options = [&options, nodes].concat();
                let args = [how, dir.path().to_str().unwrap()];
                let run = client.run(2, &options, "pmix_cleanup", &args).run();
                run.expect(code).by_rank("pmix_cleanup", 2);
                for rank in 0..2 {
                    let file = |name: &str| dir.path().join(format!("{rank}.{name}"));
                    assert!(file("out/precious").exists(), "{how}");
                    let one = ["file", "named"].contains(&how);
                    assert_eq!(file("d/file").exists(), how == "empty", "{how}");
                    assert_eq!(
                        file("d/below/file").exists(),
                        one || how == "empty",
                        "{how}"
                    );
                    assert_eq!(file("d/empty").exists(), one, "{how}");
                    // libpmix 4.2.2 leaves links to directories behind, and so what holds them.
                    if one || ["empty", "top"].contains(&how) {
                        assert!(file("d").exists(), "{how}");
                    }
                }
            }
        }
    }
}

#[test]
fn fabrics_and_sessions_are_refused_at_once() {
    for client in versions() {
        for nodes in NODES {
            let options = [&["--libpmix", client.path()], nodes].concat();
            let outcome = client.run(4, &options, "pmix_refused", &[]).run().expect(0);
            for line in outcome.by_rank("pmix_refused", 4) {
                let status = |name| field(&line, name).unwrap().parse::<i32>().unwrap();
                // PMIX_ERR_NOT_SUPPORTED.
                assert_eq!(status("fabric"), -47, "{line}");
                // PMIX_ERR_NOT_FOUND.
                let missing = client.dir.ends_with("pmix4");
                let session = if missing { -46 } else { -47 };
                assert_eq!(status("session"), session, "{line}");
            }
            assert_eq!(outcome.err(), "");
        }
    }
}

/// Before version 6 libpmix refuses by itself what is about sessions.
#[test]
fn rank_ends_its_session_and_child_signals_all_its_jobs() {
    let Some(client) = pmix("pmix7") else { return };
    for nodes in NODES {
        let options = [&["-v", "--libpmix", client.path()], nodes].concat();
        let outcome = client.run(4, &options, "pmix_control", &["session"]).run();
        let err = outcome.expect(143).err();
        let words = "had the job ended by signal 15 through PMIx";
        assert!(
            err.contains(words) && err.contains(", session_control "),
            "{err}"
        );

        let run = client.run(4, &options, "pmix_control", &["family", "session"]);
        let outcome = run.run().expect(0);
        outcome.by_rank("pmix_control", 4);
        let err = outcome.err();
        assert!(err.contains(", session_control 1 "), "{err}");
    }
}
