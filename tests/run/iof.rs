//! Output of ranks for ranks that ask for it, through PMIx: on one node and on two.

use crate::common::{Pmix, field, pmix};

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
    let printed = |text: &str| text.lines().filter(|line| line.contains(" line ")).count();
    let lines: usize = arguments[1].parse().unwrap();
    assert_eq!(printed(&out), 3 * lines);
    assert_eq!(printed(&outcome.err()), 3 * lines);
    let line = out.lines().find(|line| line.starts_with("pmix_iof"));
    line.expect("rank 0 says what it got").to_owned()
}

#[test]
fn a_rank_that_asks_gets_all_output_of_the_others_in_order() {
    for (server, client) in versions() {
        for nodes in NODES {
            let line = run(&server, &client, nodes, &["pull", "200"]);
            assert_eq!(field(&line, "streams"), Some("6"));
        }
    }
}

#[test]
fn more_than_may_be_on_its_way_at_once_comes_all_the_same() {
    for (server, client) in versions() {
        let line = run(&server, &client, NODES[1], &["pull", "30000"]);
        let bytes: u64 = field(&line, "bytes").unwrap().parse().unwrap();
        assert!(bytes > 6 << 20, "{line}");
    }
}

#[test]
fn a_rank_that_asks_no_more_gets_no_more() {
    for (server, client) in versions() {
        for nodes in NODES {
            let line = run(&server, &client, nodes, &["stop", "20"]);
            assert_eq!(field(&line, "streams"), Some("0"));
        }
    }
}
