//! PMIx groups and MPI sessions across hosts, and faults while a group is made.

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::common::{Outcome, Output, Pmix, Running, field, mpi, number, pmix};
use crate::pmix::versions;

/// Four ranks on two hosts, or on three.
fn run(cluster: &Cluster, client: &Pmix, hosts: &str, program: &str, mode: &str) -> Outcome {
    let start = ["--oversubscribe", "--hosts", hosts, "-n", "4"];
    let run = cluster
        .run(0, start)
        .more(["--libpmix", client.path(), "--no-kill-on-bad-exit"]);
    run.more([client.dir.join(program)]).more([mode]).run()
}

const HOSTS: [&str; 2] = ["node01:2,node02:2", "node03:2,node02:1,node01:1"];

#[test]
fn groups_are_made_and_ended_on_several_hosts() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for client in versions() {
        for hosts in HOSTS {
            for mode in ["all", "subsets", "data", "invite"] {
                let outcome = run(&cluster, &client, hosts, "pmix_groups", mode);
                let lines = outcome.expect(0).by_rank("pmix_groups", 4);
                if mode == "all" {
                    let contexts = field(&lines[0], "contexts");
                    assert!(lines.iter().all(|l| field(l, "contexts") == contexts));
                }
            }
            for mode in ["nonblocking", "again", "left"] {
                let outcome = run(&cluster, &client, hosts, "pmix_members", mode);
                outcome.expect(0).by_rank("pmix_members", 4);
            }
        }
    }
}

#[test]
fn death_events_reach_members_on_all_hosts() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for client in versions() {
        for hosts in HOSTS {
            for (mode, expected) in [
                ("optional", &["-", "-", "-"][..]),
                ("tolerant", &["-", "-", "-"]),
                ("gone", &["other@3", "other@3", "other@3"]),
                ("notify", &["member@3", "member@3", "-"]),
                ("invited", &["invite@3", "joined@1", "-"]),
                (
                    "leader",
                    &[
                        "joined@2,complete@0,leader@0,selected@1,leader@1",
                        "joined@3,complete@0,leader@0,selected@1,leader@1",
                    ],
                ),
            ] {
                let outcome = run(&cluster, &client, hosts, "pmix_members", mode);
                let lines = outcome.expect(137).sorted_lines();
                let events: Vec<&str> = lines.iter().map(|line| received_events(line)).collect();
                assert_eq!(events, expected, "{mode}");
            }
        }
    }
}

/// Returns the events that a rank had received at its end.
fn received_events(line: &str) -> &str {
    field(line, "heard").unwrap()
}

/// Members leave groups as libpmix implements it from version 7 on.
#[test]
fn members_leave_and_die_on_several_hosts() {
    let (Some(cluster), Some(client)) = (Cluster::new(3), pmix("pmix7")) else {
        return;
    };
    cluster.serve_with(&client);
    for hosts in HOSTS {
        for (mode, code, expected) in [
            ("left", 0, &["left@3", "left@3", "-", "-"][..]),
            ("missing", 137, &["failed@0", "failed@1", "failed@2"]),
            ("gone", 137, &["other@3"; 3]),
            ("tolerant", 137, &["-"; 3]),
            ("invited", 137, &["invite@3,failed@0", "failed@1", "-"]),
        ] {
            let outcome = run(&cluster, &client, hosts, "pmix_members", mode);
            let lines = outcome.expect(code).sorted_lines();
            let events: Vec<&str> = lines.iter().map(|line| received_events(line)).collect();
            assert_eq!(events, expected, "{mode}");
        }
    }
}

#[test]
fn parents_and_their_children_make_groups_on_several_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for client in versions() {
        let start = ["--oversubscribe", "--hosts", "node01:1,node02:1", "-n", "2"];
        let run = |mode: &str| {
            let run = cluster.run(0, start);
            run.more(["--libpmix", client.path(), "--no-kill-on-bad-exit"])
                .more([client.dir.join("pmix_families")])
                .more([mode])
                .run()
        };
        assert_eq!(run("make").expect(0).sorted_lines().len(), 4);
        let outcome = run("notify");
        let lines = outcome.sorted_lines();
        let events: Vec<_> = lines.iter().map(|line| field(line, "heard")).collect();
        assert_eq!(events, [Some("child1"); 3], "{outcome:?}");
    }
}

#[test]
fn sessions_make_communicators_over_several_hosts() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for name in ["openmpi5", "mpich5", "impi"] {
        let Some(mpi) = mpi(name) else { continue };
        let ours = name == "openmpi5";
        for (hosts, ranks) in [("node01:2,node02:2", 4), ("node01:2,node02:2,node03:2", 6)] {
            let start = [
                "--oversubscribe",
                "--hosts",
                hosts,
                "--pset",
                "io=3,0",
                "-n",
            ];
            let run = cluster.run(0, start).more([ranks.to_string()]);
            let run = run.more([mpi.program("sessions")]).more(["1", "3"]);
            let run = mpi.env.iter().fold(run, |run, (k, v)| run.env(k, v));
            for line in run.run().expect(0).by_rank("sessions", ranks) {
                assert_eq!(number(&line, "communicators"), 6, "{line}");
                let sets: Vec<&str> = field(&line, "sets").unwrap().split(' ').collect();
                assert!(sets.contains(&"mpi://WORLD"), "{line}");
                assert_eq!(sets.contains(&"io"), ours, "{line}");
            }
        }
    }
}

#[test]
fn mpi_session_with_old_libpmix_is_refused_with_remedy_on_hosts() {
    let (Some(cluster), Some(mpi), Some(old)) = (Cluster::new(2), mpi("openmpi5"), pmix("pmix4"))
    else {
        return;
    };
    let start = ["--oversubscribe", "--hosts", "node01:2,node02:2", "-n", "4"];
    let run = cluster.run(0, start).more(["--libpmix", old.path()]);
    let run = run.more([mpi.program("sessions")]).more(["1", "1"]);
    let run = mpi.env.iter().fold(run, |run, (k, v)| run.env(k, v));
    let outcome = run.run().expect(1);
    let message = "the program uses MPI sessions, which libpmix 4.";
    assert!(outcome.err().contains(message), "{outcome:?}");
}

/// Six ranks on three hosts, of which five wait in a construct.
fn constructing(cluster: &Cluster, client: &Pmix) -> Running {
    let hosts = "node01:2,node02:2,node03:2";
    let start = ["--oversubscribe", "--hosts", hosts, "-n", "6"];
    let run = cluster.run(0, start).more(["--libpmix", client.path()]);
    let running = run
        .more([client.dir.join("pmix_members")])
        .more(["wait"])
        .start();
    running.wait_for_many(Output::Stdout, "pmix_members waits", 5);
    running
}

#[track_caller]
fn ends(cluster: &Cluster, client: &Pmix, running: Running) {
    let outcome = running.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    let err = outcome.err();
    let first = err.lines().find(|line| line.starts_with("wireup: "));
    assert!(
        first.is_some_and(|line| line.contains("node02")),
        "{outcome:?}"
    );
    cluster.lab().heal_all().unwrap();
    let outcome = run(cluster, client, "node03:2,node01:2", "pmix_groups", "all");
    outcome.expect(0).by_rank("pmix_groups", 4);
}

#[test]
fn rank_killed_during_group_construct_ends_launch() {
    for client in versions() {
        let Some(cluster) = Cluster::new(3) else {
            return;
        };
        let running = constructing(&cluster, &client);
        let mut all = cluster.host(1).processes().into_iter();
        let rank = all.find(|process| process.name == "pmix_members");
        rank.unwrap().signal(Signal::KILL);
        ends(&cluster, &client, running);
    }
}

#[test]
fn host_cut_off_during_group_construct_ends_launch() {
    for client in versions() {
        let Some(cluster) = Cluster::new(3) else {
            return;
        };
        let running = constructing(&cluster, &client);
        cluster.lab().isolate(cluster.host(1)).unwrap();
        ends(&cluster, &client, running);
    }
}

#[test]
fn host_crash_during_group_construct_ends_launch() {
    for client in versions() {
        let Some(cluster) = Cluster::new(3) else {
            return;
        };
        let running = constructing(&cluster, &client);
        cluster.lab().crash(cluster.host(1)).unwrap();
        ends(&cluster, &client, running);
    }
}
