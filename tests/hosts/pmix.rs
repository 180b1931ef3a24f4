//! PMIx itself across hosts, used by programs that have no MPI.

use crate::cluster::Cluster;
use crate::common::{Outcome, Pmix, field, pmix};

/// The newest libpmix that is here.
fn newest() -> Option<Pmix> {
    pmix("pmix5").or_else(|| pmix("pmix4"))
}

/// Two ranks of a PMIx program on each of two hosts.
fn run(cluster: &Cluster, client: &Pmix, options: &[&str], program: &str, mode: &str) -> Outcome {
    let start = ["--oversubscribe", "--hosts", "node01:2,node02:2", "-n", "4"];
    let run = cluster
        .run(0, start)
        .more(["--libpmix", client.path()])
        .more(options);
    run.more([client.dir.join(program)]).more([mode]).run()
}

#[test]
fn ranks_of_all_hosts_are_ended_stopped_and_signalled_by_one() {
    let (Some(cluster), Some(client)) = (Cluster::new(2), newest()) else {
        return;
    };
    let run = |options: &[&str], mode| run(&cluster, &client, options, "pmix_control", mode);
    for mode in ["signal", "pause", "refused"] {
        run(&[], mode).expect(0).by_rank("pmix_control", 4);
    }
    for (mode, options, code) in [
        ("abort", &["--no-kill-on-bad-exit"][..], 7),
        ("terminate", &[], 0),
        ("kill", &["--grace", "60"], 0),
        ("stubborn", &["--grace", "0.3"], 0),
    ] {
        let lines = run(options, mode).expect(code).sorted_lines();
        let ranks: Vec<_> = lines.iter().map(|line| field(line, "rank")).collect();
        assert_eq!(ranks, [Some("0"), Some("2")], "{mode}: {lines:?}");
    }
    for (mode, code) in [("all", 143), ("kill_all", 137), ("abort", 7)] {
        let outcome = run(&[], mode).expect(code);
        outcome.expect_one_line(&["rank 0 ", "host node01"]);
    }
}
