//! PMIx itself across hosts, used by programs that have no MPI.

use crate::cluster::Cluster;
use crate::common::{Outcome, Output, Pmix, field, pmix, program};
use crate::lost;

/// Every libpmix that is here, as server and as client.
pub(crate) fn versions() -> impl Iterator<Item = Pmix> {
    ["pmix4", "pmix5"].into_iter().filter_map(pmix)
}

/// Checks all versions at once, for tests that mostly wait.
pub(crate) fn with_versions(check: impl Fn(&Pmix) + Sync) {
    std::thread::scope(|scope| {
        for client in versions() {
            let check = &check;
            scope.spawn(move || check(&client));
        }
    });
}

/// Two ranks of a PMIx program on each of two hosts.
fn run(cluster: &Cluster, client: &Pmix, options: &[&str], program: &str, mode: &str) -> Outcome {
    let start = ["--oversubscribe", "--hosts", "node01:2,node02:2", "-n", "4"];
    let run = cluster
        .run(0, start)
        .more(["--libpmix", client.path()])
        .more(options);
    run.more([client.dir.join(program)])
        .more(mode.split(' '))
        .run()
}

#[test]
fn ranks_of_all_hosts_are_ended_stopped_and_signalled_by_one() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for client in versions() {
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
}

#[test]
fn events_of_every_range_and_deaths_reach_all_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for client in versions() {
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
        let file = format!("file {}", cluster.dir().join("log").display());
        assert_eq!(got(run(&[], &file).expect(0)), alerts);
    }
}

#[test]
fn log_once_text_is_printed_once_for_all_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for client in versions() {
        let outcome = run(&cluster, &client, &[], "pmix_log", "once").expect(0);
        assert_eq!(
            (outcome.err(), outcome.out()),
            ("the same\n".into(), String::new())
        );
    }
}

#[test]
fn process_query_lists_resource_usage_of_all_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for client in versions() {
        let run = |mode| run(&cluster, &client, &[], "pmix_query", mode).expect(0);
        let lines = run("tables").by_rank("pmix_query", 4);
        let value = |line: &str, key| field(line, key).unwrap().to_owned();
        let pids: Vec<String> = lines.iter().map(|line| value(line, "pid")).collect();
        for line in &lines {
            let table = value(line, "all");
            let rows: Vec<Vec<&str>> = table
                .split(',')
                .map(|row| row.split('/').collect())
                .collect();
            for (rank, row) in rows.iter().enumerate() {
                let host = if rank < 2 { "node01" } else { "node02" };
                assert_eq!(row[..2], [&*rank.to_string(), host], "{line}");
                // Connected; and every host has its own process ids.
                assert_eq!(row[2..], ["pmix_query", &*pids[rank], "0", "6"], "{line}");
            }
            assert_eq!(rows.len(), 4, "{line}");
        }
        for line in run("memory").by_rank("pmix_query", 4) {
            assert_eq!(
                (value(&line, "servers"), value(&line, "clients")),
                ("2".into(), "2".into())
            );
        }
    }
}

#[test]
fn ranks_get_host_loss_event_before_launch_ends() {
    with_versions(|client| {
        let Some(cluster) = Cluster::new(3) else {
            return;
        };
        let hosts = "node01:2,node02:2,node03:2";
        let start = [
            "--oversubscribe",
            "--grace",
            "30",
            "--hosts",
            hosts,
            "-n",
            "6",
        ];
        let run = cluster.run(0, start).more(["--libpmix", client.path()]);
        let running = run
            .more([client.dir.join("pmix_events")])
            .more(["lost"])
            .start();
        running.wait_for_many(Output::Stdout, "mode=ready", 6);
        cluster.lab().crash(cluster.host(1)).unwrap();
        let outcome = running.finish();
        assert_ne!(outcome.code, 0, "{outcome:?}");
        let lines = outcome.sorted_lines().into_iter();
        let events: Vec<String> = lines.filter(|line| line.contains("mode=lost")).collect();
        let expected = [0, 1, 4, 5]
            .map(|rank| format!("pmix_events rank={rank} mode=lost got=down:1 lost=2,3"));
        assert_eq!(events, expected, "{outcome:?}");
    });
}

#[test]
fn host_lost_during_lookup_ends_launch() {
    with_versions(|client| {
        lost::everywhere(|cluster, list, ranks| {
            let run = cluster.run(0, ["--hosts", list, "--libpmix", client.path()]);
            let run = run.more(["-n", &ranks.to_string()]);
            let run = run.more([client.dir.join("pmix_store")]).more(["stuck"]);
            let running = run.start();
            running.wait_for_many(Output::Stdout, " waits", ranks as usize);
            running
        });
    });
}

#[test]
fn processes_of_lost_host_are_listed_as_lost() {
    with_versions(|client| {
        let Some(cluster) = Cluster::new(3) else {
            return;
        };
        let hosts = "node01:2,node02:1,node03:1";
        let start = [
            "--oversubscribe",
            "--grace",
            "5",
            "--hosts",
            hosts,
            "-n",
            "4",
        ];
        let run = cluster.run(0, start).more(["--libpmix", client.path()]);
        let run = run.more([client.dir.join("pmix_query")]).more(["wait"]);
        let running = run.start();
        running.wait_for_many(Output::Stdout, "mode=ready", 4);
        cluster.lab().crash(cluster.host(1)).unwrap();
        let output = running.wait_for(Output::Stdout, "mode=wait");
        let mut lines = output.lines();
        let line = lines.find(|line| line.contains("mode=wait")).unwrap();
        let table = field(line, "all").unwrap();
        let ends: Vec<&str> = table.split(',').collect();
        assert!(ends[2].starts_with("2/node02//0/0/56"), "{line}");
        for living in [0, 1, 3] {
            assert!(ends[living].ends_with("/0/6"), "{line}");
        }
        // The others ignore the polite signal, and are killed.
        assert_ne!(running.finish().code, 0);
    });
}

#[test]
fn credential_is_valid_on_all_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for client in versions() {
        let outcome = run(&cluster, &client, &[], "pmix_credential", "own").expect(0);
        for line in outcome.by_rank("pmix_credential", 4) {
            assert_eq!(field(&line, "kind"), Some("wireup"), "{line}");
        }
    }
}

#[test]
fn output_and_input_of_ranks_cross_hosts() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for client in versions() {
        let Some(reader) = program("stdin_sum") else {
            return;
        };
        let hosts = "node01:2,node02:2,node03:3";
        let run = |program: &str, words: &[&str]| {
            let run = cluster.run(0, ["--hosts", hosts, "-n", "4", "--libpmix", client.path()]);
            run.more([client.dir.join(program)]).more(words).run()
        };
        let outcome = run("pmix_iof", &["pull", "2000"]).expect(0);
        let out = outcome.out();
        let got = out.lines().find(|line| line.starts_with("pmix_iof"));
        assert_eq!(field(got.unwrap(), "streams"), Some("6"));
        let reader = reader.to_str().unwrap();
        let outcome = run("pmix_push", &[reader, "3", "all", "3000000"]).expect(0);
        let out = outcome.out();
        let lines = |name: &str| -> Vec<&str> {
            out.lines().filter(|line| line.starts_with(name)).collect()
        };
        let sent = lines("pmix_push ")[0];
        let read = lines("stdin_sum ");
        assert_eq!(read.len(), 3, "{outcome:?}");
        for line in read {
            for what in ["bytes", "fnv1a"] {
                assert_eq!(field(line, what), field(sent, what), "{outcome:?}");
            }
        }
    }
}
