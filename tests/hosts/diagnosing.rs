//! Output of `--log` for a launch on several hosts, and its destination.

use crate::cluster::Cluster;
use crate::common::eventually;
use crate::pmix::versions;

#[test]
fn steps_log_to_agents_and_sidecars_log_to_launcher() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let Some(client) = versions().next() else {
        return;
    };
    let options = ["--hosts", "node01:1,node02:1", "-n", "2", "--log", "debug"];
    let run = cluster.run(0, options);
    let run = run.more(["--libpmix", client.path()]);
    let outcome = run.more([client.dir.join("pmix_wireup")]).run().expect(0);
    let log = outcome.err();
    let has = |log: &str, parts: &[&str]| {
        let has = |line: &str| parts.iter().all(|part| line.contains(part));
        log.lines().any(has)
    };
    assert!(
        has(&log, &["launch{id=", "job{number=0 size=2}: ", ": close "]),
        "{log}"
    );
    let sidecar = "wireup: PMIx server of node02: ";
    assert!(
        has(&log, &[sidecar, "request{id=", " kind=RegisterJob}"]),
        "{log}"
    );
    assert!(!log.contains("}:rank{"), "{log}");
    let of_rank = [
        "output of ",
        "launch{id=",
        ":node{number=1 ",
        ":rank{job=0 rank=1 ",
        ": close ",
    ];
    eventually("the rank's line in the agent's log", || {
        has(&cluster.log(1), &of_rank).then_some(())
    });
    assert!(has(&cluster.log(1), &[":fence{kind=Pmix ", ": released"]));
}
