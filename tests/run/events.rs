//! PMIx events between the ranks of a job: on one node and on two.

use crate::common::{Outcome, Pmix, field, pmix};
use crate::pmix::SERVERS;

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// Every libpmix that is here, as server and as client.
fn versions() -> impl Iterator<Item = Pmix> {
    SERVERS.iter().filter_map(|(name, _)| pmix(name))
}

/// Runs a mode of `pmix_events` with each libpmix, on one node and on two; gives the number of nodes.
fn everywhere(options: &[&str], mode: &[&str], code: i32, check: impl Fn(&Outcome, usize)) {
    for client in versions() {
        for nodes in NODES {
            let options = [&["--libpmix", client.path()], options, nodes].concat();
            let outcome = client.run(4, &options, "pmix_events", mode).run();
            check(&outcome.expect(code), nodes.len().max(1));
        }
    }
}

/// Returns the events that each rank had received at its end, by rank.
fn received_events(outcome: &Outcome) -> Vec<(String, String)> {
    let text = |line: &str, key| field(line, key).unwrap().to_owned();
    let lines = outcome.sorted_lines();
    lines
        .iter()
        .map(|line| (text(line, "rank"), text(line, "got")))
        .collect()
}

#[track_caller]
fn expect_events(outcome: &Outcome, expected: &[&str]) {
    let expected: Vec<_> = (0..)
        .zip(expected)
        .map(|(rank, got): (u32, _)| (rank.to_string(), (*got).to_owned()))
        .collect();
    assert_eq!(received_events(outcome), expected, "{outcome:?}");
}

#[test]
fn event_is_delivered_once_within_its_range() {
    everywhere(&[], &["ranges"], 0, |outcome, nodes| {
        // libpmix itself delivers an event to the process that raises it, whatever its range.
        let first = "rm:1,local:1,custom:0,namespace:1,session:1,global:1,end:1";
        let second = "rm:0,local:1,custom:1,namespace:1,session:1,global:1,end:1";
        let (third, fourth) = match nodes {
            1 => (
                second,
                "rm:0,local:1,custom:0,namespace:1,session:1,global:1,end:1",
            ),
            _ => (
                "rm:0,local:0,custom:1,namespace:1,session:1,global:1,end:1",
                "rm:0,local:0,custom:0,namespace:1,session:1,global:1,end:1",
            ),
        };
        expect_events(outcome, &[first, second, third, fourth]);
    });
}

#[test]
fn ranks_get_event_of_death_that_does_not_end_job() {
    for (mode, code, got) in [
        ("killed", 137, "aborted:1,left:0"),
        ("left", 1, "aborted:0,left:1"),
    ] {
        everywhere(&["--no-kill-on-bad-exit"], &[mode], code, |outcome, _| {
            expect_events(outcome, &[got; 3]);
        });
    }
}

#[test]
fn ranks_get_event_of_missed_heartbeats() {
    everywhere(&[], &["beat"], 0, |outcome, _| {
        expect_events(outcome, &["alert:1", "alert:1", "alert:1", "alert:0"]);
    });
}

#[test]
fn ranks_get_event_of_file_without_growth() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log");
    everywhere(&[], &["file", file.to_str().unwrap()], 0, |outcome, _| {
        expect_events(outcome, &["alert:1", "alert:1", "alert:1", "alert:0"]);
    });
}

#[test]
fn job_that_outlives_initial_job_gets_event_of_its_end() {
    everywhere(&["--oversubscribe"], &["outlive"], 0, |outcome, _| {
        let out = outcome.out();
        let heirs: Vec<_> = out
            .lines()
            .filter(|line| field(line, "mode") == Some("heir"))
            .collect();
        assert_eq!(heirs.len(), 2, "{outcome:?}");
        for heir in heirs {
            assert_eq!(field(heir, "got"), Some("ended:1"), "{outcome:?}");
            assert_eq!(field(heir, "status"), Some("0"), "{outcome:?}");
        }
    });
}

#[test]
fn ranks_get_event_of_end_of_spawned_job() {
    // `PMIX_ERR_JOB_NON_ZERO_TERM`.
    for (program, code, status) in [("/bin/true", 0, 0), ("/bin/false", 1, -187)] {
        let options = &["--no-kill-on-bad-exit", "--oversubscribe"];
        everywhere(options, &["spawned", program], code, |outcome, _| {
            expect_events(outcome, &["started:1,ended:1"; 4]);
            for line in outcome.by_rank("pmix_events", 4) {
                for key in ["status", "asked"] {
                    let value = field(&line, key).unwrap().to_owned();
                    assert_eq!(value, status.to_string(), "{key}: {line}");
                }
                assert_eq!(field(&line, "own"), Some("0"), "{line}");
            }
        });
    }
}
