//! Storage of published data in libpmix: the ranks of small jobs request data, those of large ones
//! share memory with the server. Most other tests have small jobs.

use std::collections::BTreeSet;

use crate::common::{Run, number, pmix};
use crate::pmix::pairs;

/// By the server's library: its stores in shared memory, and how many ranks do without.
const SHARED: [(&str, &str, u32); 2] = [
    ("pmix4", "ds21,ds12,hash", 16),
    ("pmix5", "shmem2,hash", 128),
];

#[test]
fn small_jobs_use_direct_modex_and_large_ones_share_data() {
    for (name, shared, small) in SHARED {
        let Some(server) = pmix(name) else { continue };
        let run = |ranks| {
            let options = ["--pmi", "pmix", "--libpmix", server.path()];
            Run::ranks(
                ranks,
                options.into_iter().chain(["printenv", "PMIX_GDS_MODULE"]),
            )
        };
        let gds_modules = |run: Run| {
            let lines = run.run().expect_quiet_success().sorted_lines();
            lines.into_iter().collect::<BTreeSet<_>>()
        };
        assert_eq!(
            gds_modules(run(small)),
            ["hash".to_owned()].into(),
            "{name}"
        );
        assert_eq!(
            gds_modules(run(small + 1)),
            [shared.to_owned()].into(),
            "{name}"
        );
        let chosen = run(1).env("PMIX_MCA_gds", shared);
        assert_eq!(gds_modules(chosen), [shared.to_owned()].into(), "{name}");
    }
}

#[test]
fn shared_data_are_right_across_nodes_and_jobs() {
    for (server, version, mpi, _) in pairs() {
        let shared = match version.starts_with("OpenPMIx 4.") {
            true => SHARED[0].1,
            false => SHARED[1].1,
        };
        for nodes in ["1", "2"] {
            let options = ["--virtual-nodes", nodes, "--libpmix", server.path()];
            let run = |ranks, program, args: &[&str]| {
                let run = mpi.run(ranks, &options, program, args);
                run.env("PMIX_MCA_gds", shared).run().expect_success()
            };
            for line in run(4, "modex", &[]).by_rank("modex", 4) {
                assert_eq!(number(&line, "peers"), 3, "{line}");
            }
            let outcome = run(2, "spawn", &["children=2"]);
            for line in outcome.by_rank("spawn", 2) {
                assert_eq!(number(&line, "merged"), 4, "{line}");
            }
        }
    }
    for client in ["pmix4", "pmix5"] {
        for (server, shared, _) in SHARED {
            let (Some(server), Some(client)) = (pmix(server), pmix(client)) else {
                continue;
            };
            let options = ["--virtual-nodes", "2", "--libpmix", server.path()];
            // With a fence that carries the data, and by direct modex.
            for args in [&["3"][..], &["-d", "3"]] {
                let run = client.run(4, &options, "pmix_wireup", args);
                let outcome = run.env("PMIX_MCA_gds", shared).run().expect(0);
                outcome.by_rank("pmix_wireup", 4);
            }
        }
    }
}
