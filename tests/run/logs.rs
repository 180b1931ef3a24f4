//! Texts that ranks have logged through PMIx: on one node and on two.

use crate::common::{Outcome, Pmix, pmix};
use crate::pmix::SERVERS;

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// Every libpmix that is here, as server and as client.
fn versions() -> impl Iterator<Item = Pmix> {
    SERVERS.iter().filter_map(|(name, _)| pmix(name))
}

/// Runs a mode of `pmix_log` with each libpmix, on one node and on two.
fn everywhere(options: &[&str], mode: &str, check: impl Fn(&Outcome)) {
    for client in versions() {
        for nodes in NODES {
            let options = [&["--libpmix", client.path()], options, nodes].concat();
            let outcome = client.run(4, &options, "pmix_log", &[mode]).run();
            check(&outcome.expect(0));
        }
    }
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

const OF_ALL: [&str; 4] = ["rank 0", "rank 1", "rank 2", "rank 3"];

#[test]
fn texts_of_all_ranks_go_to_the_channels_named() {
    everywhere(&[], "plain", |outcome| {
        assert_eq!(sorted(&outcome.out()), OF_ALL);
        assert_eq!(sorted(&outcome.err()), OF_ALL);
    });
}

#[test]
fn a_text_to_be_logged_once_is_shown_once_in_the_first_channel_whoever_logs_it() {
    everywhere(&[], "once", |outcome| {
        assert_eq!(outcome.err(), "the same\n");
        assert_eq!(outcome.out(), "");
    });
}

#[test]
fn equal_texts_are_one_in_each_channel_when_that_is_wanted() {
    everywhere(&[], "agg", |outcome| {
        assert_eq!(outcome.err(), "the same\n");
        assert_eq!(outcome.out(), "the same\n");
    });
}

#[test]
fn the_job_s_record_names_the_rank_of_a_text() {
    everywhere(&["--json", "-"], "record", |outcome| {
        let out = outcome.out();
        let lines = out
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let mut texts: Vec<String> = lines
            .filter(|line| line["event"] == "log")
            .map(|line| format!("{}: {}", line["rank"], line["text"].as_str().unwrap()))
            .collect();
        texts.sort_unstable();
        let expected = [0, 1, 2, 3].map(|rank| format!("{rank}: rank {rank}\n"));
        assert_eq!(texts, expected);
    });
    // Without a reader there is no record, and the texts are shown all the same.
    everywhere(&[], "record", |outcome| {
        assert_eq!(sorted(&outcome.err()), OF_ALL);
    });
}

#[test]
fn a_channel_that_there_is_not_is_refused_and_the_others_are_used() {
    everywhere(&[], "mail", |outcome| {
        assert_eq!(sorted(&outcome.err()), OF_ALL);
    });
}
