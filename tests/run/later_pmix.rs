//! What libpmix 6.1 does otherwise than those that are here, by a library in front of these.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::common::{Outcome, Pmix, field, pmix, shared_library};
use crate::pmix::SERVERS;

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// Puts it in front of a libpmix.
fn later(dir: &TempDir, pmix: &Pmix) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run/later_pmix/later.c");
    shared_library(dir.path(), "later.so", &source, &[&pmix.library])
}

/// Runs a program with 4 ranks over each libpmix, on one node and on two.
fn everywhere(program: &str, words: &[&str], code: i32, check: impl Fn(&Outcome)) {
    for client in SERVERS.iter().filter_map(|(name, _)| pmix(name)) {
        let dir = tempfile::tempdir().unwrap();
        let Some(server) = later(&dir, &client) else {
            return;
        };
        for nodes in NODES {
            let options = [&["-v", "--libpmix", server.to_str().unwrap()], nodes].concat();
            let outcome = client.run(4, &options, program, words).run().expect(code);
            assert!(outcome.err().contains("OpenPMIx 6.1.0"), "{outcome:?}");
            check(&outcome);
        }
    }
}

#[test]
fn a_rank_ends_its_session() {
    everywhere("pmix_control", &["session"], 143, |outcome| {
        let err = outcome.err();
        let words = "had the job ended by signal 15 through PMIx";
        assert!(
            err.contains(words) && err.contains(", session_control "),
            "{err}"
        );
    });
}

#[test]
fn a_spawned_process_signals_all_jobs_of_its_session() {
    everywhere("pmix_control", &["family", "session"], 0, |outcome| {
        outcome.by_rank("pmix_control", 4);
        let err = outcome.err();
        assert!(err.contains(", session_control 1 "), "{err}");
    });
}

#[test]
fn events_of_other_nodes_have_their_source() {
    everywhere("pmix_events", &["ranges"], 0, |outcome| {
        let lines = outcome.by_rank("pmix_events", 4);
        let got = field(&lines[3], "got").unwrap();
        assert!(
            got.ends_with("namespace:1,session:1,global:1,end:1"),
            "{got}"
        );
    });
}
