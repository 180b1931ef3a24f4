//! One machine as several nodes: names, node-local memory and the way between the nodes, with
//! every MPI that can do it.
//!
//! MPICH 4.0.2 is left out: its UCX may hang by itself when nodes end.

use std::collections::BTreeSet;

use rustix::process::Signal;
use wireup_sys::interfaces::{self, Address};

use crate::common::{Mpi, Outcome, Output, Run, eventually, field, mpi, node_name, number, skip};
use crate::pmix::{pairs, upcalls};

/// The name of a virtual node; names have 64 bytes, some of which the number needs.
pub(crate) fn node(number: u32) -> String {
    let own = node_name();
    let stem: String = own.split('.').next().unwrap().chars().take(50).collect();
    format!("{stem}-v{number}")
}

/// The MPIs that work across nodes of one machine.
pub(crate) fn able() -> Vec<Mpi> {
    ["openmpi4", "openmpi5", "mpich5", "impi"]
        .into_iter()
        .filter_map(mpi)
        .collect()
}

/// Fails unless rank and node of every rank are as they must be with two ranks per node, and each
/// sees its node's name.
#[track_caller]
pub(crate) fn expect_names(hello: &Outcome, nodes: u32) {
    for (rank, line) in hello.by_rank("hello", nodes * 2).iter().enumerate() {
        let name = node(rank as u32 / 2);
        assert_eq!(field(line, "host"), Some(&*name), "{line}");
        assert_eq!(field(line, "processor"), Some(&*name), "{line}");
    }
}

/// Fails unless exactly the two ranks of each node share memory.
#[track_caller]
pub(crate) fn expect_shared_by_two(split_shared: &Outcome, nodes: u32) {
    for (rank, line) in (0..).zip(split_shared.by_rank("split_shared", nodes * 2)) {
        let values = ["local_rank", "local_size", "leader"].map(|key| number(&line, key));
        assert_eq!(values, [rank % 2, 2, rank - rank % 2], "{line}");
    }
}

/// hello, split_shared and allreduce with two ranks on each of `nodes` nodes.
#[track_caller]
pub(crate) fn expect_nodes(nodes: u32, run: impl Fn(&str) -> Run) {
    expect_names(&run("hello").run().expect(0), nodes);
    expect_shared_by_two(&run("split_shared").run().expect(0), nodes);
    let ranks = nodes * 2;
    for line in run("allreduce").run().expect(0).by_rank("allreduce", ranks) {
        assert_eq!(number(&line, "sum"), ranks * (ranks + 1) / 2, "{line}");
    }
}

/// Checks that ranks communicate, and ring, threads, MPI_Abort and an exit code on the last node.
#[track_caller]
fn expect_all_programs(nodes: u32, run: impl Fn(&str) -> Run) {
    expect_nodes(nodes, &run);
    let ranks = nodes * 2;
    for line in run("ring").run().expect(0).by_rank("ring", ranks) {
        assert_eq!(number(&line, "bytes"), ranks << 20, "{line}");
    }
    run("threads").run().expect(0).by_rank("threads", ranks);
    let last = (ranks - 1).to_string();
    let (who, place) = (
        format!("rank {last} ("),
        format!("host {}", node(nodes - 1)),
    );
    for (program, args, code, words) in [
        (
            "abort",
            &[&*last, "42"][..],
            42,
            "called MPI_Abort with code 42",
        ),
        (
            "exitcode",
            &[&last, "finalized", "3"],
            3,
            "exited with code 3",
        ),
    ] {
        let outcome = run(program).more(args).run().expect(code);
        outcome.expect_one_line(&[&who, &place, words]);
    }
}

/// Every program of Open MPI with every server and client on two and on four nodes that have only a
/// loopback. `run` gets MPI, ranks, options and program.
#[track_caller]
pub(crate) fn expect_loopback_to_do(user: &[&str], run: impl Fn(&Mpi, u32, &[&str], &str) -> Run) {
    if without_network(Run::ranks(1, ["true"])).is_none() {
        return;
    }
    for nodes in [2, 4] {
        let count = nodes.to_string();
        for (server, _, client, _) in pairs() {
            let options = ["--virtual-nodes", &count, "--libpmix", server.path()];
            expect_all_programs(nodes, |program| {
                let run = run(&client, nodes * 2, &options, program);
                without_network(run).expect("seen").under(user)
            });
        }
    }
}

/// Puts a run into a network with nothing but a loopback; `None`, and the test is ignored, where that is not
/// permitted.
#[track_caller]
pub(crate) fn without_network(run: Run) -> Option<Run> {
    let possible = std::process::Command::new("unshare")
        .args(["--net", "ip", "link", "set", "lo", "up"])
        .output();
    if !possible.is_ok_and(|output| output.status.success()) {
        skip("a network with only lo: needs root and ip");
        return None;
    }
    let script = "ip link set lo up && exec \"$@\"";
    Some(run.under(["unshare", "--net", "sh", "-c", script, "sh"]))
}

#[test]
fn two_nodes_have_names_memory_and_network_with_every_libpmix() {
    for (server, _, client, _) in pairs() {
        let options = ["--virtual-nodes", "2", "--libpmix", server.path()];
        expect_nodes(2, |program| client.run(4, &options, program, &[]));
    }
}

#[test]
fn two_nodes_have_names_memory_and_network_over_pmi1() {
    for mpi in ["mpich5", "impi"].into_iter().filter_map(mpi) {
        expect_nodes(2, |program| {
            mpi.run(4, &["--virtual-nodes", "2"], program, &[])
        });
    }
}

#[test]
fn four_nodes_have_names_memory_and_network_over_pmi1() {
    for mpi in ["mpich5", "impi"].into_iter().filter_map(mpi) {
        expect_nodes(4, |program| {
            mpi.run(8, &["--virtual-nodes", "4"], program, &[])
        });
    }
}

#[test]
fn two_nodes_connect_over_loopback_alone_over_pmi1() {
    for mpi in ["mpich5", "impi"].into_iter().filter_map(mpi) {
        let run = mpi.run(4, &["--virtual-nodes", "2"], "allreduce", &[]);
        let Some(run) = without_network(run) else {
            return;
        };
        run.run().expect_success().by_rank("allreduce", 4);
    }
}

#[test]
fn loopback_suffices_for_two_and_four_nodes_with_every_libpmix() {
    expect_loopback_to_do(&[], |client, ranks, options, program| {
        client.run(ranks, options, program, &[])
    });
}

#[test]
fn open_mpi_uses_loopback_only_without_other_network() {
    let words = ["--virtual-nodes", "2", "--pmi", "pmix", "printenv"];
    let run = || Run::ranks(2, words.iter().chain(&["OMPI_MCA_btl_tcp_if_include"]));
    let Some(alone) = without_network(run()) else {
        return;
    };
    assert_eq!(alone.run().expect_quiet_success().out(), "lo\nlo\n");
    // The user's choice stays.
    let Some(alone) = without_network(run()) else {
        return;
    };
    let chosen = alone
        .env("OMPI_MCA_btl_tcp_if_include", "127.0.0.0/8")
        .run();
    assert_eq!(
        chosen.expect_quiet_success().out(),
        "127.0.0.0/8\n127.0.0.0/8\n"
    );
    // The machine that runs the tests may itself have no network.
    let addresses = interfaces::addresses().unwrap();
    let outside = |address: &Address| !address.loopback && address.ip.is_ipv4();
    if addresses.iter().any(outside) {
        assert_eq!(run().run().expect(1).out(), "");
    }
}

#[test]
fn windows_reach_from_node_to_node() {
    for mpi in able() {
        // docs/mpis.md: Debian leaves out what Open MPI 4.1 has for it.
        let options = ["--virtual-nodes", "2", "-x", "OMPI_MCA_osc=^ucx"];
        let outcome = mpi.run(4, &options, "window", &[]).run().expect(0);
        for line in outcome.by_rank("window", 4) {
            assert_eq!(number(&line, "sum"), 80, "{line}");
        }
    }
}

#[test]
fn ranks_map_memory_of_their_node_only() {
    for (name, segment) in [
        ("openmpi4", "/vader_segment."),
        ("openmpi5", "/sm_segment."),
    ] {
        let Some(mpi) = mpi(name) else { continue };
        // No rank 9 is there to end the job: all wait.
        let args = ["9", "without-finalize", "0"];
        let run = mpi
            .run(4, &["--virtual-nodes", "2"], "exitcode", &args)
            .start();
        run.wait_for_many(Output::Stdout, "exitcode rank=", 4);
        // The nodes whose segments a process has mapped, with the number of segments.
        let mapped = |pid: i32| -> BTreeSet<(String, String)> {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            maps.lines()
                .filter_map(|line| Some(line.split_once(segment)?.1))
                .map(|rest| {
                    let (node, rest) = rest.split_once('.').unwrap();
                    (node.to_owned(), rest.to_owned())
                })
                .collect()
        };
        eventually("two segments of one node in each rank", || {
            let ranks: Vec<_> = run
                .processes()
                .into_iter()
                .filter(|process| process.name == "exitcode")
                .map(|process| mapped(process.pid))
                .collect();
            let nodes = |segments: &BTreeSet<(String, String)>| {
                segments
                    .iter()
                    .map(|(node, _)| node.clone())
                    .collect::<BTreeSet<_>>()
            };
            let complete = ranks.len() == 4
                && ranks
                    .iter()
                    .all(|segments| segments.len() == 2 && nodes(segments).len() == 1);
            let all: BTreeSet<String> = ranks.iter().flat_map(nodes).collect();
            (complete && all == BTreeSet::from([node(0), node(1)])).then_some(())
        });
        run.signal(Signal::TERM);
        run.finish().expect(143);
    }
}

#[test]
fn fences_of_pmi1_and_pmix_are_reported_by_their_nodes() {
    for (server, _, client, _) in pairs() {
        let options = ["-v", "--virtual-nodes", "2", "--libpmix", server.path()];
        let outcome = client.run(4, &options, "allreduce", &[]).run().expect(0);
        for number in 0..2 {
            let report = format!("wireup: upcalls of {}: client_connected 2 (", node(number));
            assert!(outcome.err().contains(&report), "{outcome:?}");
        }
        for [count, bytes_in, bytes_out] in upcalls(&outcome, "fence") {
            assert!(
                count > 0 && bytes_in > 100 && bytes_out > 100,
                "{outcome:?}"
            );
        }
    }
}

#[test]
fn code_of_mpi_abort_crosses_nodes() {
    for mpi in able() {
        let outcome = mpi
            .run(4, &["--virtual-nodes", "2"], "abort", &["3", "42"])
            .run();
        let place = format!("host {}", node(1));
        outcome
            .expect(42)
            .expect_one_line(&["rank 3 (", &place, "called MPI_Abort with code 42"]);
    }
}

#[test]
fn rank_killed_on_one_node_ends_all_nodes() {
    let never = "without joining the job while other ranks wait for it in MPI_Init";
    let deaths = [
        ("before-init", "5", 5, "exited with code 5"),
        ("before-init", "0", 1, never),
        ("signal", "9", 137, "was killed by signal 9"),
        ("exit-in-finalize", "9", 9, "exited with code 9"),
    ];
    for mpi in able() {
        for (how, code, exit, words) in deaths {
            let args = ["2", how, code];
            let outcome = mpi
                .run(4, &["--virtual-nodes", "2"], "exitcode", &args)
                .run();
            outcome.expect(exit).expect_one_line(&["rank 2 (", words]);
        }
    }
}

#[test]
fn more_nodes_than_ranks_are_refused() {
    let outcome = Run::ranks(2, ["--virtual-nodes", "3", "true"])
        .run()
        .expect(125);
    outcome.expect_one_line(&[
        "--virtual-nodes 3 needs at least one rank per node, but there are 2 ranks",
    ]);
}

#[test]
fn node_names_belong_to_ranks_and_not_to_machine() {
    let words = ["--virtual-nodes", "2", "--pmi", "none", "uname", "-n"];
    let outcome = Run::ranks(4, words).run().expect_quiet_success();
    let expected = [node(0), node(0), node(1), node(1)];
    assert_eq!(outcome.sorted_lines(), expected);
    assert_ne!(node_name(), node(0));
}

#[test]
fn virtual_nodes_resolve_names_of_all_nodes() {
    if !rustix::process::getuid().is_root() {
        return skip("names of virtual nodes in /etc/hosts: needs root");
    }
    let machine = std::fs::read_to_string("/etc/hosts").unwrap();
    let script = "getent ahostsv4 \"$0\" \"$1\" $(uname -n) | grep STREAM; pwd";
    let names = [node(0), node(1)];
    let words = ["--virtual-nodes", "2", "--pmi", "none", "sh", "-c", script];
    let outcome = Run::ranks(2, words).more(&names).run();
    let outcome = outcome.expect_quiet_success();
    let own = |name: &String| format!("127.0.0.1       STREAM {name}");
    let here = outcome.dir().canonicalize().unwrap();
    let mut expected: Vec<String> = names.iter().map(own).collect();
    expected.extend(expected.clone());
    expected.extend(names.iter().map(own));
    expected.extend([here.display().to_string(), here.display().to_string()]);
    expected.sort();
    assert_eq!(outcome.sorted_lines(), expected);
    assert_eq!(std::fs::read_to_string("/etc/hosts").unwrap(), machine);
}

#[test]
fn virtual_nodes_resolve_names_where_file_names_are_taken() {
    if !rustix::process::getuid().is_root() {
        return skip("names of virtual nodes in /etc/hosts: needs root");
    }
    let place = tempfile::tempdir().unwrap();
    let pid = std::process::id();
    for number in pid..pid + 20_000 {
        std::fs::write(place.path().join(format!("wireup-hosts-{number}")), "").unwrap();
    }
    let script = "getent ahostsv4 $(uname -n) | grep -c STREAM";
    let words = ["--virtual-nodes", "2", "--pmi", "none", "sh", "-c", script];
    let own = format!("TMPDIR={}", place.path().display());
    let run = Run::ranks(2, words).under(["env", &own]);
    assert_eq!(run.run().expect_quiet_success().out(), "1\n1\n");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 20_000);
}
