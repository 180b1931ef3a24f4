//! Output of ranks for ranks that ask for it, and input from ranks, through PMIx: on one node and on several.

use crate::common::{Pmix, field, pmix, program};

/// One node, and two, and one for each rank.
const NODES: [&[&str]; 3] = [
    &["--oversubscribe"],
    &["--virtual-nodes", "2"],
    &["--virtual-nodes", "4"],
];

/// Every libpmix that is here as server, with the programs of every one.
fn versions() -> Vec<(Pmix, Pmix)> {
    let clients = ["pmix4", "pmix5"].into_iter().filter_map(pmix);
    let clients: Vec<Pmix> = clients.collect();
    let servers = clients.clone().into_iter();
    servers
        .flat_map(|server| {
            clients
                .iter()
                .map(move |client| (server.clone(), client.clone()))
        })
        .collect()
}

fn run(server: &Pmix, client: &Pmix, nodes: &[&str], arguments: &[&str]) -> String {
    let options = [&["--libpmix", server.path()], nodes].concat();
    let run = client.run(4, &options, "pmix_iof", arguments).run();
    let outcome = run.expect(0);
    let out = outcome.out();
    // The user sees everything all the same.
    // Without labels lines of different ranks may be mixed, but no end of a line is lost.
    let own = |line: &&str| line.starts_with("pmix_iof") || line.ends_with("says goodbye");
    let printed = |text: &str| text.matches('\n').count() - text.lines().filter(own).count();
    let lines: usize = arguments[1].parse().unwrap();
    assert_eq!(printed(&out), 3 * lines);
    assert_eq!(printed(&outcome.err()), 3 * lines);
    let line = out.lines().find(|line| line.starts_with("pmix_iof"));
    line.expect("rank 0 says what it got").to_owned()
}

#[test]
fn rank_with_iof_pull_gets_all_output_in_order() {
    for (server, client) in versions() {
        for nodes in NODES {
            let line = run(&server, &client, nodes, &["pull", "200"]);
            assert_eq!(field(&line, "streams"), Some("6"));
        }
    }
}

#[test]
fn output_beyond_window_arrives_completely() {
    for (server, client) in versions() {
        let line = run(&server, &client, NODES[1], &["pull", "30000"]);
        let bytes: u64 = field(&line, "bytes").unwrap().parse().unwrap();
        assert!(bytes > 6 << 20, "{line}");
    }
}

#[test]
fn rank_gets_no_output_after_iof_deregister() {
    for (server, client) in versions() {
        for nodes in NODES {
            let line = run(&server, &client, nodes, &["stop", "20"]);
            assert_eq!(field(&line, "streams"), Some("0"));
        }
    }
}

#[test]
fn rank_writes_stdin_of_spawned_processes() {
    let Some(reader) = program("stdin_sum") else {
        return;
    };
    let path = reader.to_str().unwrap();
    for (server, client) in versions() {
        for nodes in NODES {
            for (readers, at) in [("all", 0..3), ("1", 1..2)] {
                // More than any pipe holds.
                let words = [path, "3", readers, "1500000"];
                let options = [&["--libpmix", server.path()], nodes].concat();
                let run = client.run(4, &options, "pmix_push", &words).run();
                let outcome = run.expect_success();
                let out = outcome.out();
                let lines = |name: &str| -> Vec<String> {
                    let named = out.lines().filter(|line| line.starts_with(name));
                    named.map(str::to_owned).collect()
                };
                let [sent] = &lines("pmix_push ")[..] else {
                    panic!("{outcome:?}")
                };
                let [status_line] = &lines("pmix_pushed ")[..] else {
                    panic!("{outcome:?}")
                };
                // Not to itself, not to processes that are no readers, not after the end, and with a target.
                for (what, status) in [
                    ("own", "-47"),
                    ("other", "-47"),
                    ("after", "-25"),
                    ("nobody", "-27"),
                ] {
                    assert_eq!(
                        field(status_line, what),
                        Some(status),
                        "{what}; {outcome:?}"
                    );
                }
                let read = lines("stdin_sum ");
                assert_eq!(read.len(), 3, "{outcome:?}");
                for line in read {
                    let rank: u32 = field(&line, "rank").unwrap().parse().unwrap();
                    let expected = match at.contains(&rank) {
                        true => (field(sent, "bytes"), field(sent, "fnv1a")),
                        false => (Some("0"), Some("cbf29ce484222325")),
                    };
                    let got = (field(&line, "bytes"), field(&line, "fnv1a"));
                    assert_eq!(got, expected, "{line}; {outcome:?}");
                }
            }
        }
    }
}

#[test]
fn readers_get_end_after_exit_of_writers() {
    let Some(reader) = program("stdin_sum") else {
        return;
    };
    let path = reader.to_str().unwrap();
    for (server, client) in versions() {
        for nodes in NODES {
            let words = [path, "2", "all", "500000", "leave"];
            let fixed = ["--children", "independent", "--libpmix", server.path()];
            let options = [&fixed[..], nodes].concat();
            let run = client.run(4, &options, "pmix_push", &words).run();
            let outcome = run.expect_success();
            let out = outcome.out();
            let sent = out.lines().find(|line| line.starts_with("pmix_push "));
            let sum = |line| (field(line, "bytes"), field(line, "fnv1a"));
            let sent = sum(sent.unwrap());
            let read = out.lines().filter(|line| line.starts_with("stdin_sum "));
            let read: Vec<_> = read.map(sum).collect();
            assert_eq!(read, [sent, sent], "{outcome:?}");
        }
    }
}
