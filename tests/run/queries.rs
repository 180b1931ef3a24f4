//! Queries to a PMIx server about the launch: on one node and on two, with every libpmix.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Outcome, Pmix, field, pmix};
use crate::pmix::SERVERS;

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// Value of `PMIX_PROC_STATE_CONNECTED` as printed.
const CONNECTED: &str = "6";

/// Every libpmix that is here, as server and as client.
fn versions() -> impl Iterator<Item = Pmix> {
    SERVERS.iter().filter_map(|(name, _)| pmix(name))
}

/// Runs a mode of `pmix_query` with each libpmix, on one node and on two; gives the number of nodes.
fn everywhere(options: &[&str], mode: &str, code: i32, check: impl Fn(&Outcome, usize)) {
    for client in versions() {
        for nodes in NODES {
            let options = [&["--libpmix", client.path()], options, nodes].concat();
            let outcome = client.run(4, &options, "pmix_query", &[mode]).run();
            check(&outcome.expect(code), nodes.len().max(1));
        }
    }
}

/// The rows of a table, without their pids, and those.
fn rows(table: &str) -> (Vec<Vec<&str>>, Vec<&str>) {
    let rows = table.split(',').map(|row| row.split('/').collect());
    rows.map(|mut row: Vec<&str>| {
        let pid = row.remove(3);
        (row, pid)
    })
    .unzip()
}

#[test]
fn every_rank_gets_places_of_all_processes() {
    everywhere(&[], "tables", 0, |outcome, nodes| {
        let lines = outcome.by_rank("pmix_query", 4);
        let value = |line: &str, key| field(line, key).unwrap().to_owned();
        let pids: Vec<String> = lines.iter().map(|line| value(line, "pid")).collect();
        for (rank, line) in lines.iter().enumerate() {
            let (all, local, other) = (
                value(line, "all"),
                value(line, "local"),
                value(line, "other"),
            );
            let (listed, listed_pids) = rows(&all);
            assert_eq!(listed_pids, pids, "{line}");
            for (rank, row) in listed.iter().enumerate() {
                let rank = rank.to_string();
                assert_eq!(row[0], rank, "{line}");
                assert_eq!(row[2..], ["pmix_query", "0", CONNECTED], "{line}");
            }
            let hosts: Vec<&str> = listed.iter().map(|row| row[1]).collect();
            assert!(hosts.iter().all(|host| !host.is_empty()), "{line}");
            assert_eq!(hosts[1] == hosts[2], nodes == 1, "{line}");
            let on = |host: &str| -> Vec<String> {
                let all = all.split(',');
                let on = all.filter(|row| row.split('/').nth(1) == Some(host));
                on.map(ToOwned::to_owned).collect()
            };
            assert_eq!(local.split(',').collect::<Vec<_>>(), on(hosts[rank]));
            assert_eq!(other.split(',').collect::<Vec<_>>(), on(hosts[3]));
        }
    });
}

#[test]
fn query_table_has_end_of_processes() {
    everywhere(&["--no-kill-on-bad-exit"], "ended", 137, |outcome, _| {
        for line in outcome.sorted_lines() {
            let all = field(&line, "all").unwrap().to_owned();
            let (rows, pids) = rows(&all);
            let ends: Vec<_> = rows.iter().map(|row| row[3..].join("/")).collect();
            // Connected twice, killed by a signal, left in order. libpmix drops the exit code.
            assert_eq!(ends, ["0/6", "0/6", "0/54", "0/20"], "{line}");
            assert!(pids.iter().all(|pid| *pid != "0"), "{line}");
        }
    });
}

#[test]
fn namespaces_sizes_and_keys_are_queried() {
    everywhere(&[], "general", 0, |outcome, _| {
        outcome.by_rank("pmix_query", 4);
    });
}

#[test]
fn unanswerable_query_gets_status_with_reason() {
    everywhere(&[], "errors", 0, |outcome, _| {
        outcome.by_rank("pmix_query", 4);
    });
}

#[test]
fn memory_of_servers_and_clients_is_reported_for_every_node() {
    everywhere(&[], "memory", 0, |outcome, nodes| {
        for line in outcome.by_rank("pmix_query", 4) {
            let number = |key| field(&line, key).unwrap().parse::<usize>().unwrap();
            assert_eq!((number("servers"), number("clients")), (nodes, nodes));
        }
    });
}

#[test]
fn rank_queries_location_and_end_of_spawned_processes() {
    let options = ["--exit-policy", "any-zero", "--oversubscribe"];
    everywhere(&options, "family", 0, |outcome, nodes| {
        let all = outcome.out();
        let value = |line: &str, key| field(line, key).unwrap().to_owned();
        let line = all.lines().find(|line| line.starts_with("pmix_query "));
        let line = line.unwrap();
        assert_eq!(value(line, "spaces"), "2", "{line}");
        let (before, after) = (value(line, "all"), value(line, "ended"));
        let ((before, pids), (after, later)) = (rows(&before), rows(&after));
        assert_eq!(pids, later, "{line}");
        for rank in 0..3 {
            let own = format!("pmix_query_child rank={rank} ");
            let child = all.lines().find(|line| line.starts_with(&own)).unwrap();
            assert_eq!(pids[rank], value(child, "pid"), "{all}");
            let host = value(child, "host");
            for row in [&before[rank], &after[rank]] {
                let place = [
                    rank.to_string(),
                    host.clone(),
                    "pmix_query".to_owned(),
                    "0".to_owned(),
                ];
                assert_eq!(row[..4], place, "{line}");
            }
            // Running or connected; then in order, with a code, killed.
            assert!(["5", "6"].contains(&before[rank][4]), "{line}");
            assert_eq!(after[rank][4], ["20", "62", "54"][rank], "{line}");
        }
        assert_eq!(before[0][1] == before[2][1], nodes == 1, "{line}");
        // PMIX_ERR_JOB_ABORTED_BY_SIG
        assert_eq!(value(line, "status"), "-184", "{line}");
    });
}

#[test]
fn every_rank_gets_addresses_of_all_pmix_servers() {
    everywhere(&[], "uri", 0, |outcome, nodes| {
        let lines = outcome.by_rank("pmix_query", 4);
        let value = |rank: usize, key| field(&lines[rank], key).unwrap().to_owned();
        for rank in 0..4 {
            assert_eq!(value(rank, "own"), value(rank, "env"), "{outcome:?}");
            assert_eq!(value(rank, "last"), value(3, "env"), "{outcome:?}");
        }
        assert_eq!(
            value(0, "env") == value(3, "env"),
            nodes == 1,
            "{outcome:?}"
        );
    });
}

/// Processes in the text of `pmix_resolve`: a letter for the job before each rank.
fn procs(text: &str) -> BTreeSet<String> {
    let starts = text.match_indices(['p', 'c']).map(|(at, _)| at);
    let ends = starts.clone().skip(1).chain([text.len()]);
    starts
        .zip(ends)
        .map(|(from, to)| text[from..to].to_owned())
        .collect()
}

/// Processes by node, as `pmix_resolve` prints them.
fn map(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let nodes = text.split(',').map(|node| node.split_once(':').unwrap());
    nodes
        .map(|(node, text)| (node.to_owned(), procs(text)))
        .collect()
}

#[test]
fn clients_resolve_nodes_and_processes_of_related_jobs() {
    let same = versions().map(|version| (version.clone(), version));
    // A client of version 5 gets from its server values of other jobs, and one of 4.2 gets none.
    let older = pmix("pmix5").zip(pmix("pmix4"));
    for (server, client) in same.chain(older) {
        for nodes in NODES {
            let options = [&["--oversubscribe", "--libpmix", server.path()], nodes].concat();
            let outcome = client.run(4, &options, "pmix_resolve", &[]).run().expect(0);
            let lines = outcome.sorted_lines();
            assert_eq!(lines.len(), 4 + 3, "{outcome:?}");
            let value = |line: &str, key| field(line, key).unwrap().to_owned();
            let letter = |line: &str| value(line, "job")[..1].to_owned();
            // Hosts as the processes print them.
            let homes = |job: &str| {
                let mut homes = BTreeMap::<String, BTreeSet<String>>::new();
                for line in lines.iter().filter(|line| letter(line).contains(job)) {
                    let home = homes.entry(value(line, "host")).or_default();
                    home.insert(letter(line) + &value(line, "rank"));
                }
                homes
            };
            let (parents, children, all) = (homes("p"), homes("c"), homes(""));
            assert_eq!(all.len(), nodes.len().max(1), "{outcome:?}");
            for line in &lines {
                let nodes_of = |key| map(&value(line, key));
                let host = value(line, "host");
                let (own, other, local) = match &*letter(line) {
                    "p" => (&parents, &children, &parents[&host]),
                    _ => (&children, &parents, &all[&host]),
                };
                assert_eq!(&nodes_of("own"), own, "{line}");
                assert_eq!(&nodes_of("other"), other, "{line}");
                assert_eq!(nodes_of("all"), all, "{line}");
                assert_eq!(&procs(&value(line, "local")), local, "{line}");
            }
        }
    }
}
