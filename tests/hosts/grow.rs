//! Hosts that join a running launch, because a process names them where it starts others.

use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::common::{Mpi, Outcome, Output, Run, allocator, field, mpi, number, pmix};
use crate::spawn::{able, children, hosts, run};

// Source: pmix_common.h of OpenPMIx.
const PMIX_ERR_TIMEOUT: i32 = -24;
const PMIX_ERR_JOB_FAILED_TO_LAUNCH: i32 = -181;
const PMIX_ERR_JOB_INSUFFICIENT_RESOURCES: i32 = -234;

for_each_mpi!(openmpi4 mpich5 openmpi5 impi: {
    children_on_joined_hosts_merge_with_parents => |mpi| merge(&mpi.with_dynamic_processes()),
    lost_joined_host_ends_launch => |mpi| lost(&mpi.with_dynamic_processes()),
});

fn merge(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    // The launcher's own host among them; the first one's agent is another.
    for (list, joining, expected) in [
        (
            "node01:2",
            "node02:2,node03:2",
            ["node02", "node02", "node03"],
        ),
        (
            "node02:2",
            "node03:2,node01:1",
            ["node03", "node03", "node01"],
        ),
    ] {
        let added = format!("info.add-host={joining}");
        let parents = || run(&cluster, mpi, &["--hosts", list], 2, "spawn");
        let outcome = parents().more(["children=3", &added]).run();
        let outcome = outcome.expect_success();
        let lines = children(&outcome, 1, 3);
        assert_eq!(hosts(&lines), expected, "{outcome:?}");
        // They are there the next time.
        let again = parents().more(["children=3", "times=3", &added]).run();
        for line in again.expect_success().by_rank("spawn", 2) {
            assert_eq!(number(&line, "merged"), 5, "{line}");
        }
    }
    // Nodes of a tree learn of joining ones from the launcher alone.
    let list = "node01:1,node02:1,node03:1";
    let tree = ["--hosts", list, "--tree-width", "2"];
    let parents = run(&cluster, mpi, &tree, 3, "spawn");
    let args = ["children=2", "info.add-host=node04:2"];
    let outcome = parents.more(args).run().expect_success();
    assert_eq!(hosts(&children(&outcome, 1, 2)), ["node04"; 2]);
    for line in outcome.by_rank("spawn", 3) {
        assert_eq!(number(&line, "merged"), 5, "{line}");
    }
}

fn lost(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let list = ["--hosts", "node01:1"];
    let args = ["child=hang", "children=1", "info.add-host=node02:1"];
    let running = run(&cluster, mpi, &list, 1, "spawn").more(args).start();
    running.wait_for_many(Output::Stdout, "hangs rank=", 1);
    cluster.lab().crash(cluster.host(1)).unwrap();
    let outcome = running.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.err().contains("node02"), "{outcome:?}");
}

#[test]
fn children_let_hosts_join_for_their_own() {
    for name in ["openmpi4", "openmpi5", "mpich5", "impi"] {
        let (Some(cluster), Some(mpi)) = (Cluster::new(4), able(name)) else {
            return;
        };
        // Each level adds a host, and those above live while it does.
        // Children whose parent has left early may need longer than the grace on a busy machine.
        let list = ["--hosts", "node04:1", "--grace", "60"];
        let args = [
            "levels=3",
            "children=1",
            "info.add-host=node0%:1",
            "info.host=node0%",
        ];
        let outcome = run(&cluster, &mpi, &list, 1, "spawn").more(args).run();
        let outcome = outcome.expect_success();
        for level in 1..=3 {
            let lines = children(&outcome, level, 1);
            assert_eq!(hosts(&lines), [format!("node0{level}")], "{outcome:?}");
        }
    }
}

/// `pmix_spawn hosts` with the libraries of these names, on the first host alone.
fn pmix_run(cluster: &Cluster, server: &str, client: &str, options: &[&str]) -> Option<Run> {
    let (server, client) = (pmix(server)?, pmix(client)?);
    let run = cluster.run(0, ["--hosts", "node01:2", "-n", "2"]);
    let run = run.more(["--libpmix", server.path()]).more(options);
    Some(run.more([client.dir.join("pmix_spawn")]).more(["hosts"]))
}

/// Checks the result for each list of hosts. Clients may learn nothing of jobs that have no rank on
/// their own node: docs/pmix-server.md#job-description.
#[track_caller]
fn expect_jobs(outcome: &Outcome, jobs: &[&str]) {
    for line in outcome.by_rank("pmix_spawn", 2) {
        let value = field(&line, "value").unwrap();
        let found: Vec<&str> = value.split(';').collect();
        assert_eq!(found.len(), jobs.len(), "{outcome:?}");
        for (found, job) in found.into_iter().zip(jobs) {
            let mut hosts = found.split(',').zip(job.split(','));
            let same = hosts.all(|(found, host)| found == host || found == "?");
            assert!(same, "{found}; {outcome:?}");
        }
    }
}

#[test]
fn jobs_on_hosts_joined_in_turn_connect_and_read_keys() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for server in ["pmix4", "pmix5"] {
        for client in ["pmix4", "pmix5"] {
            let Some(run) = pmix_run(&cluster, server, client, &[]) else {
                return;
            };
            let lists = ["node02:3", "node03:1,node02:3", "node03:3"];
            let outcome = run.more(lists).run().expect(0);
            let spawned = outcome.out().matches("pmix_spawned rank=").count();
            assert_eq!(spawned, 6, "{outcome:?}");
            let third = PMIX_ERR_JOB_INSUFFICIENT_RESOURCES.to_string();
            let (first, second) = ("node02,node02,node02", "node03,node02,node02");
            expect_jobs(&outcome, &[first, second, &third]);
            let err = outcome.err();
            assert!(err.contains("in 1 slot (1 on node03)"), "{outcome:?}");
        }
    }
}

#[test]
fn failed_host_join_fails_only_its_spawn_and_can_be_repeated() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for server in ["pmix4", "pmix5"] {
        cluster.kill_agent(2);
        let go = cluster.dir().join(format!("go-{server}"));
        let Some(run) = pmix_run(&cluster, server, server, &[]) else {
            return;
        };
        let go_on = go.to_str().unwrap().to_owned();
        let lists = [
            "node02:3,node03:3",
            "node09",
            &go_on,
            "node03:3",
            "node02:3",
        ];
        let running = run.more(lists).start();
        running.wait_for_many(Output::Stderr, "cannot spawn", 2);
        cluster.start_agent(2);
        std::fs::write(&go, "").unwrap();
        let outcome = running.finish().expect(0);
        let refused = PMIX_ERR_JOB_FAILED_TO_LAUNCH.to_string();
        let (third, second) = ("node03,node03,node03", "node02,node02,node02");
        expect_jobs(&outcome, &[&refused, &refused, third, second]);
        let err = outcome.err();
        for host in ["node03", "node09"] {
            let named = |line: &str| line.contains("cannot spawn") && line.contains(host);
            assert!(err.lines().any(named), "{host}; {outcome:?}");
        }
    }
}

#[test]
fn missing_or_broken_pmix_server_on_new_host_fails_only_spawn() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let Some(pmix) = pmix("pmix4") else {
        return;
    };
    // Below /tmp every host has files of its own.
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let path = format!("{dir}/libpmix.so.2");
    let on = |host: usize, script: String| {
        cluster
            .command(host, ["sh", "-c", &script])
            .run()
            .expect_quiet_success();
    };
    cluster.excuse(0);
    cluster.excuse(2);
    on(0, format!("mkdir -p {dir} && ln -s {} {path}", pmix.path()));
    on(
        2,
        format!("mkdir -p {dir} && ln -s /lib/x86_64-linux-gnu/libm.so.6 {path}"),
    );
    let run = cluster.run(0, ["--hosts", "node01:5", "-n", "2", "--libpmix", &path]);
    let run = run.more([pmix.dir.join("pmix_spawn")]);
    let lists = ["hosts", "node02:3", "node03:3", "node01:3"];
    let outcome = run.more(lists).run().expect(0);
    let own = "node01,node01,node01";
    for line in outcome.by_rank("pmix_spawn", 2) {
        let value = field(&line, "value").unwrap();
        let found: Vec<&str> = value.split(';').collect();
        assert_eq!(found[2], own, "{outcome:?}");
        assert!(
            found[..2].iter().all(|status| status.starts_with('-')),
            "{outcome:?}"
        );
    }
    let err = outcome.err();
    let warned: Vec<&str> = err
        .lines()
        .filter(|line| line.contains("cannot spawn"))
        .collect();
    assert!(
        warned[0].contains("on node02") && warned[0].contains(&path),
        "{outcome:?}"
    );
    assert!(
        warned[1].contains("on node03") && warned[1].contains("PMIx server"),
        "{outcome:?}"
    );
    for host in [0, 2] {
        on(host, format!("rm -r {dir}"));
        cluster.expect_clean(host);
    }
}

#[test]
fn spawn_on_silent_host_times_out() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let Some(run) = pmix_run(
        &cluster,
        "pmix5",
        "pmix5",
        &["--spawn-timeout", "5", "--oversubscribe"],
    ) else {
        return;
    };
    cluster.lab().isolate(cluster.host(2)).unwrap();
    let outcome = run.more(["node03:3", "node01:3"]).run().expect(0);
    let late = PMIX_ERR_TIMEOUT.to_string();
    expect_jobs(&outcome, &[&late, "node01,node01,node01"]);
    cluster.lab().heal_all().unwrap();
}

#[test]
fn joining_hosts_are_cleaned_up_at_any_end_of_launch() {
    let (Some(cluster), Some(mpi)) = (Cluster::new(3), mpi("openmpi5")) else {
        return;
    };
    let list = ["-v", "--hosts", "node01:1"];
    let args = [
        "times=1000",
        "children=2",
        "info.add-host=node02:1,node03:1",
    ];
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        for wait in [0, 50, 150, 400] {
            let running = run(&cluster, &mpi, &list, 1, "spawn").more(args).start();
            running.wait_for(Output::Stderr, "asked to join");
            #[allow(clippy::disallowed_methods)] // any moment will do
            std::thread::sleep(Duration::from_millis(wait));
            running.signal(signal);
            // All hosts are clean then.
            let outcome = running.finish();
            assert_ne!(outcome.code, 0, "{signal:?} after {wait} ms; {outcome:?}");
        }
    }
    let rest = ["--hosts", "node01,node02,node03", "-n", "3", "true"];
    cluster.run(0, rest).run().expect_quiet_success();
}

#[test]
fn joined_hosts_are_listed_and_can_end_job() {
    let (Some(cluster), Some(mpi)) = (Cluster::new(2), mpi("openmpi5")) else {
        return;
    };
    let args = ["child=hang", "children=1", "info.add-host=node02:1"];
    let running = run(&cluster, &mpi, &["--hosts", "node01:1"], 1, "spawn");
    let running = running.more(args).start();
    running.wait_for_many(Output::Stdout, "hangs rank=", 1);
    for host in [0, 1] {
        let ps = cluster.command(host, [cluster.wireup().to_str().unwrap(), "ps"]);
        let shown = ps.run().expect_success().out();
        assert!(shown.contains("node[01-02]"), "{shown}");
    }
    let kill = [cluster.wireup().to_str().unwrap(), "kill", "--all"];
    cluster.command(1, kill).run().expect(0);
    let outcome = running.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
}

#[test]
fn concurrent_spawns_share_added_hosts() {
    let (Some(cluster), Some(mpi)) = (Cluster::new(3), mpi("openmpi5")) else {
        return;
    };
    let args = ["from=self", "children=1", "info.add-host=node02:4,node03:4"];
    let outcome = run(&cluster, &mpi, &["--hosts", "node01:4"], 4, "spawn");
    let outcome = outcome.more(args).run().expect_success();
    let text = outcome.out();
    let spawned: Vec<&str> = text.lines().filter(|l| l.starts_with("spawned ")).collect();
    assert_eq!(spawned.len(), 4, "{outcome:?}");
    let there = spawned
        .iter()
        .filter(|l| field(l, "host") == Some("node02"));
    assert_eq!(there.count(), 4, "{outcome:?}");
}

#[test]
fn hosts_granted_by_allocator_join_only_for_their_spawns() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for server in ["pmix4", "pmix5"] {
        let Some(client) = pmix(server) else {
            return;
        };
        let socket = cluster.dir().join(format!("allocator-{server}"));
        let socket = socket.to_str().unwrap();
        let run = cluster.run(0, ["--hosts", "node01:2", "-n", "2"]);
        let run = run.more(["--allocator", socket, "--libpmix", client.path()]);
        let run = run.more([client.dir.join("pmix_alloc")]).more([
            "new:slots=3",
            "spawn:3;id=pool-1",
            "spawn:1;id=pool-1",
            "spawn:1",
            "release:id=pool-1",
            "spawn:1",
        ]);
        let pool = allocator::pool("node02:2,node03:1");
        let outcome = allocator::beside(run, &pool, socket).run().expect(0);
        let out = outcome.out();
        let status = |line: &str| field(line, "status").and_then(|code| code.parse::<i32>().ok());
        let statuses: Vec<i32> = out.lines().filter_map(status).collect();
        let full = PMIX_ERR_JOB_INSUFFICIENT_RESOURCES;
        // Whether the first children have left their slots for the next is open.
        assert_eq!(statuses[..2], [0, 0], "{outcome:?}");
        assert_eq!(statuses[3..], [full, 0, full], "{outcome:?}");
        let homes: Vec<&str> = out.lines().filter_map(|line| field(line, "host")).collect();
        let there = |host| homes.iter().filter(|home| **home == host).count();
        assert!(there("node02") >= 2 && there("node03") >= 1, "{outcome:?}");
        assert_eq!(there("node01"), 0, "{outcome:?}");
    }
}

#[test]
fn launch_on_one_machine_refuses_joining_hosts() {
    let Some(client) = pmix("pmix5") else {
        return;
    };
    let outcome = client.run(1, &[], "pmix_spawn", &["hosts", "elsewhere:3"]);
    let outcome = outcome.run().expect(0);
    let err = outcome.err();
    assert!(err.contains("host elsewhere cannot join"), "{outcome:?}");
    assert!(err.contains("start it with --hosts"), "{outcome:?}");
}
