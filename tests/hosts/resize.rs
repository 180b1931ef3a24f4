//! Hosts that join and leave a running launch on request.

use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::common::{Outcome, Output, Running, eventually, field, mpi, program};
use crate::pmix::with_versions;
use wireup_core::pmix::value::Status;

/// A program that waits until a file with its rank exists.
const WAIT: &str =
    "echo waits on $WIREUP_HOST; while [ ! -e go-$WIREUP_RANK ]; do sleep 0.05; done";

fn resize(cluster: &Cluster, host: usize, words: &[&str]) -> Outcome {
    let wireup = cluster.wireup().to_str().unwrap();
    let command = [wireup, "resize"].into_iter().chain(words.iter().copied());
    cluster.command(host, command).run()
}

#[track_caller]
fn changed(cluster: &Cluster, words: &[&str], expected: &str) {
    let outcome = resize(cluster, 0, words).expect(0);
    assert_eq!(outcome.out(), expected, "{outcome:?}");
}

#[track_caller]
fn refused(cluster: &Cluster, words: &[&str], reason: &str) {
    let outcome = resize(cluster, 0, words).expect(1);
    assert!(outcome.err().contains(reason), "{outcome:?}");
}

/// Starts a program that waits, with a rank on each of these hosts.
fn start(cluster: &Cluster, hosts: &str, ranks: usize) -> Running {
    let size = ranks.to_string();
    let options = ["-v", "--hosts", hosts, "-n", &size, "sh", "-c", WAIT];
    let running = cluster.run(0, options).start();
    running.wait_for_many(Output::Stdout, "waits on", ranks);
    running
}

fn release(cluster: &Cluster, ranks: &[u32]) {
    for rank in ranks {
        std::fs::write(cluster.dir().join(format!("go-{rank}")), "").unwrap();
    }
}

/// Waits until a host has nothing of a launch: neither files and processes nor connections of its agent.
#[track_caller]
fn expect_gone(cluster: &Cluster, host: usize) {
    cluster.expect_clean(host);
    // Agents keep an unused connection for some seconds.
    eventually("the agent has no connection", || {
        let mut command = cluster.host(host).command("cat");
        let output = command.args(["/proc/net/tcp", "/proc/net/tcp6"]).output();
        let table = String::from_utf8(output.unwrap().stdout).unwrap();
        // Source: proc_net_tcp(5); 01 is TCP_ESTABLISHED.
        let is_open = |line: &str| line.split_whitespace().nth(3) == Some("01");
        (!table.lines().any(is_open)).then_some(())
    });
}

#[test]
fn host_without_ranks_leaves_and_launch_continues() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let running = start(&cluster, "node01:1,node02:1,node03:1", 2);
    changed(&cluster, &["--remove", "node03"], "node03 left\n");
    expect_gone(&cluster, 2);
    let ps = [cluster.wireup().to_str().unwrap(), "ps"];
    let shown = cluster.command(0, ps).run().expect_success().out();
    assert!(shown.contains("node[01-02]"), "{shown}");
    refused(
        &cluster,
        &["--remove", "node03"],
        "host node03 is not in the launch (node[01-02])",
    );
    // A host that has left may end.
    cluster.kill_agent(2);
    release(&cluster, &[0, 1]);
    running.finish().expect(0);
    cluster.start_agent(2);
}

#[test]
fn host_with_ranks_leaves_when_they_have_ended() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let running = start(&cluster, "node01:1,node02:2,node03:1", 4);
    let waits = "node02 leaves when 2 ranks there have ended\n";
    changed(&cluster, &["--remove", "node02"], waits);
    release(&cluster, &[1]);
    refused(
        &cluster,
        &["--add", "node02"],
        "host node02 is leaving the launch",
    );
    release(&cluster, &[2]);
    running.wait_for(Output::Stderr, "node02 has left the launch");
    cluster.expect_clean(1);
    // Its ranks are terminated, and the launch does not fail by that.
    let words = ["--remove", "node03", "--end-ranks"];
    changed(&cluster, &words, "node03 left\n");
    cluster.expect_clean(2);
    release(&cluster, &[0]);
    let outcome = running.finish();
    assert!(!outcome.err().contains("fail"), "{outcome:?}");
}

#[test]
fn hosts_are_added_removed_and_added_again() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let running = start(&cluster, "node01:1", 1);
    for _ in 0..3 {
        changed(
            &cluster,
            &["--add", "node[02-03]:2"],
            "node[02-03] joined\n",
        );
        refused(
            &cluster,
            &["--add", "node02"],
            "host node02 is in the launch already",
        );
        changed(&cluster, &["--remove", "node[02-03]"], "node[02-03] left\n");
        for host in [1, 2] {
            cluster.expect_clean(host);
        }
    }
    changed(&cluster, &["--add", "node02"], "node02 joined\n");
    let both = ["--add", "node03", "--remove", "node02"];
    changed(&cluster, &both, "node03 joined\nnode02 left\n");
    release(&cluster, &[0]);
    running.finish().expect(0);
}

#[test]
fn hosts_that_launch_needs_and_unknown_ones_are_refused() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let elsewhere = start(&cluster, "node02:1,node01:1", 2);
    let remove = |host| ["--remove", host];
    refused(
        &cluster,
        &remove("node01"),
        "host node01 cannot leave the launch: the launcher runs on it",
    );
    refused(
        &cluster,
        &remove("node02"),
        "host node02 cannot leave the launch: it is the first host",
    );
    refused(
        &cluster,
        &remove("node09"),
        "host node09 is not in the launch (node[02,01])",
    );
    refused(
        &cluster,
        &["no-such-job", "--remove", "node02"],
        "no-such-job",
    );
    let unknown = resize(&cluster, 0, &["--add", "node09"]).expect(1);
    assert!(unknown.err().contains("node09"), "{unknown:?}");
    // On another host the command is passed on to that of the launcher.
    let passed = resize(&cluster, 1, &["--add", "node03"]).expect(0);
    assert!(passed.out().contains("node03 joined"), "{passed:?}");
    release(&cluster, &[0, 1]);
    elsewhere.finish().expect(0);
}

#[test]
fn silent_host_that_was_added_does_not_delay_end() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let running = start(&cluster, "node01:1,node02:1", 2);
    cluster.lab().isolate(cluster.host(2)).unwrap();
    let wireup = cluster.wireup().to_str().unwrap();
    let adding = cluster
        .command(0, [wireup, "resize", "--add", "node03"])
        .start();
    running.wait_for(Output::Stderr, "node03 asked to join");
    release(&cluster, &[0, 1]);
    let start = Instant::now();
    running.finish().expect(0);
    // The agent gives a silent host up after 15 s at the earliest.
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    let outcome = adding.finish().expect(1);
    let err = outcome.err();
    assert!(
        err.contains("being ended") || err.contains("has ended"),
        "{err}"
    );
    cluster.lab().heal_all().unwrap();
}

fn rounds_so_far(running: &Running) -> usize {
    let out = String::from_utf8(running.so_far(Output::Stdout)).unwrap();
    out.matches("round=").count()
}

#[test]
fn fences_continue_while_hosts_join_and_leave() {
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    let Some(steady) = program("pmi_steady") else {
        return;
    };
    for options in [&["--tree-width", "2"][..], &[]] {
        let hosts = "node01:1,node02:1,node03:1,node04:1";
        let layout = ["--layout", "0*1,2*1"];
        let run = cluster
            .run(0, ["--hosts", hosts, "-n", "2", "--stdin", "0"])
            .more(layout);
        let mut running = run.more(options).more([&steady]).stdin_held().start();
        running.wait_for_many(Output::Stdout, "round=2\n", 2);
        // With the tree, node02 connects node04.
        changed(&cluster, &["--remove", "node02"], "node02 left\n");
        let rounds = rounds_so_far(&running);
        running.wait_for_many(Output::Stdout, "round=", rounds + 8);
        changed(&cluster, &["--remove", "node04"], "node04 left\n");
        for host in [1, 3] {
            cluster.expect_clean(host);
        }
        let rounds = rounds_so_far(&running);
        running.wait_for_many(Output::Stdout, "round=", rounds + 8);
        drop(running.stdin());
        running.finish().expect(0);
    }
}

#[test]
fn ranks_extend_launch_and_release_hosts_by_pmix() {
    with_versions(|client| {
        let Some(cluster) = Cluster::new(3) else {
            return;
        };
        let run = cluster.run(0, ["--hosts", "node01:1,node02:1", "-n", "1"]);
        let run = run.more(["--libpmix", client.path()]);
        let run = run.more([client.dir.join("pmix_alloc")]).more([
            "extend:list=node03:2;req=more",
            "spawn:3",
            "release:list=node03",
            "spawn:2",
            "release:list=node03",
            "extend:list=node03:2",
            "release:list=node01",
            "extend:list=node09",
        ]);
        let outcome = run.run().expect(0);
        let out = outcome.out();
        let lines = out.lines().filter(|line| field(line, "status").is_some());
        let answers: Vec<(Status, Option<&str>)> = lines
            .map(|line| {
                let status = field(line, "status").unwrap().parse().unwrap();
                (Status(status), field(line, "list"))
            })
            .collect();
        let success = |list| (Status::SUCCESS, Some(list));
        assert_eq!(answers[0], success("node03"), "{outcome:?}");
        assert_eq!(answers[1], (Status::SUCCESS, None), "{outcome:?}");
        // Whether the children have left node03 by then is open.
        let statuses: Vec<Status> = answers.iter().map(|(status, _)| *status).collect();
        assert!(
            [Status::SUCCESS, Status::ERR_OUT_OF_RESOURCE].contains(&statuses[2]),
            "{outcome:?}"
        );
        if statuses[2] == Status::SUCCESS {
            let full = Status::ERR_JOB_INSUFFICIENT_RESOURCES;
            let unknown = Status::ERR_OUT_OF_RESOURCE;
            assert_eq!(statuses[3..5], [full, unknown], "{outcome:?}");
            assert_eq!(answers[5], success("node03"), "{outcome:?}");
        }
        let (own, unknown) = (statuses[6], statuses[7]);
        assert_eq!(own, Status::ERR_OUT_OF_RESOURCE, "{outcome:?}");
        assert_eq!(unknown, Status::ERR_OUT_OF_RESOURCE, "{outcome:?}");
    });
}

#[test]
fn spawn_does_not_use_host_that_leaves() {
    with_versions(|client| {
        let Some(cluster) = Cluster::new(3) else {
            return;
        };
        let run = cluster.run(0, ["--hosts", "node01:1,node03:4", "-n", "2"]);
        let run = run.more(["--libpmix", client.path()]);
        let go = cluster.dir().join("go");
        let run = run
            .more([client.dir.join("pmix_spawn")])
            .more(["hosts", "node02:3"]);
        let running = run.more([go.to_str().unwrap(), "node03:3"]).start();
        running.wait_for_many(Output::Stdout, "pmix_spawned rank=", 3);
        let waits = "node03 leaves when 1 rank there has ended\n";
        changed(&cluster, &["--remove", "node03"], waits);
        std::fs::write(&go, "").unwrap();
        let outcome = running.finish().expect(0);
        let spawned = outcome.out().matches("pmix_spawned rank=").count();
        assert_eq!(spawned, 3, "{outcome:?}");
        assert!(outcome.err().contains("cannot spawn"), "{outcome:?}");
    });
}

#[test]
fn ranks_get_event_for_host_that_left() {
    with_versions(|client| {
        let Some(cluster) = Cluster::new(3) else {
            return;
        };
        let hosts = "node01:2,node02:2,node03:1";
        let run = cluster.run(0, ["--hosts", hosts, "-n", "4"]);
        let run = run.more(["--libpmix", client.path()]);
        let run = run.more([client.dir.join("pmix_events")]).more(["offline"]);
        let running = run.start();
        running.wait_for_many(Output::Stdout, "mode=ready", 4);
        changed(&cluster, &["--remove", "node03"], "node03 left\n");
        let outcome = running.finish().expect(0);
        let lines = outcome.sorted_lines().into_iter();
        let offline: Vec<String> = lines.filter(|line| line.contains("mode=offline")).collect();
        let expected =
            [0, 1, 2, 3].map(|rank| format!("pmix_events rank={rank} mode=offline got=offline:1"));
        assert_eq!(offline, expected, "{outcome:?}");
    });
}

#[test]
fn sessions_list_no_set_of_host_that_left() {
    let (Some(cluster), Some(mpi)) = (Cluster::new(2), mpi("openmpi5")) else {
        return;
    };
    let sessions = mpi.program("sessions");
    let sessions = sessions.to_str().unwrap();
    let options = ["-v", "--hosts", "node01:1,node02:1", "--stdin", "0"];
    let run = cluster
        .run(0, options)
        .more(["-n", "1", sessions, "watch", ":"]);
    let run = run.more(["-n", "1", sessions, "watch"]);
    let env = mpi.env.iter();
    let run = env.fold(run, |run, (name, value)| run.env(name, value));
    let mut running = run.stdin_held().start();
    // The second rank has no input, and ends.
    running.wait_for_many(Output::Stdout, "app1", 3);
    let outcome = resize(&cluster, 0, &["--remove", "node02"]).expect(0);
    assert!(outcome.out().contains("node02"), "{outcome:?}");
    running.wait_for(Output::Stderr, "node02 has left the launch");
    drop(running.stdin());
    let outcome = running.finish().expect(0);
    let out = outcome.out();
    let last = out.lines().last().unwrap();
    assert!(
        last.contains("app0") && !last.contains("app1"),
        "{outcome:?}"
    );
}

#[test]
fn launch_on_one_machine_refuses_resize() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    let running = cluster.run(0, ["-n", "1", "sh", "-c", WAIT]).start();
    running.wait_for(Output::Stdout, "waits on");
    refused(
        &cluster,
        &["--add", "node02"],
        "the launch runs on this machine alone",
    );
    release(&cluster, &[0]);
    running.finish().expect(0);
}
