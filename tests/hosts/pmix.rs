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

#[test]
fn events_of_every_range_and_deaths_are_heard_on_all_hosts() {
    let (Some(cluster), Some(client)) = (Cluster::new(2), newest()) else {
        return;
    };
    let run = |options: &[&str], mode| run(&cluster, &client, options, "pmix_events", mode);
    let got = |outcome: Outcome| -> Vec<String> {
        let lines = outcome.sorted_lines().into_iter();
        lines
            .map(|line| field(&line, "got").unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        got(run(&[], "ranges").expect(0)),
        [
            "rm:1,local:1,custom:0,namespace:1,session:1,global:1,end:1",
            "rm:0,local:1,custom:1,namespace:1,session:1,global:1,end:1",
            "rm:0,local:0,custom:1,namespace:1,session:1,global:1,end:1",
            "rm:0,local:0,custom:0,namespace:1,session:1,global:1,end:1",
        ]
    );
    let tolerant = &["--no-kill-on-bad-exit"];
    let killed = run(tolerant, "killed").expect(137);
    assert_eq!(got(killed), ["aborted:1,left:0"; 3]);
    let alerts = ["alert:1", "alert:1", "alert:1", "alert:0"];
    assert_eq!(got(run(&[], "beat").expect(0)), alerts);
}

#[test]
fn a_text_to_be_logged_once_is_shown_once_for_all_hosts() {
    let (Some(cluster), Some(client)) = (Cluster::new(2), newest()) else {
        return;
    };
    let outcome = run(&cluster, &client, &[], "pmix_log", "once").expect(0);
    assert_eq!(
        (outcome.err(), outcome.out()),
        ("the same\n".into(), String::new())
    );
}

#[test]
fn a_credential_made_on_one_host_is_good_on_the_others() {
    let (Some(cluster), Some(client)) = (Cluster::new(2), newest()) else {
        return;
    };
    let outcome = run(&cluster, &client, &[], "pmix_credential", "own").expect(0);
    for line in outcome.by_rank("pmix_credential", 4) {
        assert_eq!(field(&line, "kind"), Some("wireup"), "{line}");
    }
}
