//! Ranks on several nodes in other ways than in even blocks, with real MPIs.

use crate::common::{Run, field, mpi, number};
use crate::virtual_nodes::{able, node};

/// Checks the node of each rank, by its host name and by the ranks with which it shares memory.
#[track_caller]
fn expect_layout(options: &[&str], nodes: &[u32]) {
    let ranks = nodes.len() as u32;
    for mpi in able() {
        let run = |program| mpi.run(ranks, options, program, &[]).run().expect(0);
        for (line, expected) in run("hello").by_rank("hello", ranks).iter().zip(nodes) {
            assert_eq!(field(line, "host"), Some(&*node(*expected)), "{line}");
        }
        let outcome = run("split_shared");
        for (rank, line) in (0..).zip(outcome.by_rank("split_shared", ranks)) {
            let own = nodes[rank];
            let on_node = || (0..nodes.len()).filter(|other| nodes[*other] == own);
            let expected = [
                on_node().position(|other| other == rank).unwrap(),
                on_node().count(),
                on_node().next().unwrap(),
            ];
            let values = ["local_rank", "local_size", "leader"].map(|key| number(&line, key));
            assert_eq!(values.map(|n| n as usize), expected, "{}: {line}", mpi.name);
        }
        for line in run("allreduce").by_rank("allreduce", ranks) {
            assert_eq!(number(&line, "sum"), ranks * (ranks + 1) / 2, "{line}");
        }
    }
}

#[test]
fn ranks_are_given_to_nodes_in_turn() {
    let options = ["--virtual-nodes", "2", "--map-by", "node"];
    expect_layout(&options, &[0, 1, 0, 1]);
}

#[test]
fn ranks_run_on_listed_nodes() {
    let options = ["--virtual-nodes", "2", "--layout", "1*1,0*2,1*1"];
    expect_layout(&options, &[1, 0, 0, 1]);
}

#[test]
fn layout_that_does_not_fit_is_refused() {
    let refused = |options: &[&str], words: &[&str]| {
        Run::new(options)
            .more(["true"])
            .run()
            .expect_one_line(words);
    };
    let nodes = ["--virtual-nodes", "2", "--oversubscribe"];
    let with = |more: &[&'static str]| [&nodes[..], more].concat();
    refused(
        &with(&["-n", "3", "--layout", "0*1,1*1"]),
        &["--layout has 2 ranks", "have 3"],
    );
    refused(
        &with(&["--layout", "0*1,2*1"]),
        &["gives ranks to node 2", "there are only 2 nodes"],
    );
    refused(&with(&["--layout", "0*2"]), &["no rank to virtual node 1"]);
    refused(&with(&["--layout", "0:2"]), &["give NODE*RANKS"]);
}

#[test]
fn nodes_are_filled_up_to_number_of_ranks() {
    let options = ["--virtual-nodes", "2", "--ppn", "3"];
    expect_layout(&options, &[0, 0, 0, 1]);
}

#[test]
fn full_nodes_are_skipped_in_turn() {
    let options = ["--virtual-nodes", "3", "--ppn", "2", "--map-by", "node"];
    expect_layout(&options, &[0, 1, 2, 0, 1]);
}

#[test]
fn number_of_ranks_follows_from_ranks_per_node() {
    let Some(mpi) = mpi("mpich5") else { return };
    let words = ["run", "--oversubscribe", "--virtual-nodes", "2", "--ppn"];
    let hello = mpi.program("hello");
    let words = words.into_iter().chain(["3", hello.to_str().unwrap()]);
    let run = Run::command(std::iter::once(env!("CARGO_BIN_EXE_wireup")).chain(words));
    run.run().expect(0).by_rank("hello", 6);
}

#[test]
fn mismatched_layouts_are_refused() {
    for (ranks, options, words) in [
        (
            4,
            &["--ppn", "2"][..],
            "4 ranks with at most 2 per node (--ppn, ppr) need 2 nodes, but there is 1; allow more per node, or use more nodes",
        ),
        (
            5,
            &["--virtual-nodes", "2", "--ppn", "2"],
            "5 ranks with at most 2 per node (--ppn, ppr) need 3 nodes, but there are 2; allow more per node, or use more nodes",
        ),
        (
            4,
            &["--virtual-nodes", "3", "--ppn", "2"],
            "4 ranks with --ppn 2 leave nodes empty; 2 virtual nodes are enough",
        ),
    ] {
        let outcome = Run::ranks(ranks, options.iter().chain(&["true"])).run();
        outcome.expect(125).expect_one_line(&[words]);
    }
}
