//! What ranks publish for each other: MPI's names with every MPI, PMIx's own calls with every
//! server and client, and both in one job.

use std::collections::BTreeSet;

use rustix::process::Signal;

use crate::common::{Outcome, Output, Pmix, Run, field, mpi, pmix};
use crate::pmix::{SERVERS, pairs, upcalls};

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// `names` did what it had to: rank 0's second publication failed, and nobody finds what is not
/// there.
#[track_caller]
fn expect_names(outcome: &Outcome, twice: &str) {
    for (rank, line) in outcome.by_rank("names", 4).iter().enumerate() {
        assert_eq!(field(line, "unknown"), Some("name"), "{line}");
        assert_eq!(field(line, "withdrawn"), Some("name"), "{line}");
        let first = rank == 0;
        let (twice, again) = if first {
            (twice, "service")
        } else {
            ("-", "-")
        };
        assert_eq!(field(line, "twice"), Some(twice), "{line}");
        assert_eq!(field(line, "unpublish"), Some(again), "{line}");
    }
}

/// Every libpmix as a server with the clients of each: the server, and programs.
fn stages() -> Vec<(Pmix, Pmix)> {
    let all = || SERVERS.iter().filter_map(|(name, _)| pmix(name));
    all()
        .flat_map(|server| all().map(move |client| (server.clone(), client)))
        .collect()
}

/// Runs a mode of `pmix_store` with each of them, on one node and on two.
fn everywhere(mode: &str, check: impl Fn(&Outcome, u64)) {
    for (server, client) in stages() {
        for nodes in NODES {
            let options = [&["-v", "--libpmix", server.path()], nodes].concat();
            let outcome = client.run(4, &options, "pmix_store", &[mode]).run();
            check(&outcome.expect(0), 1 + u64::from(!nodes.is_empty()));
        }
    }
}

/// The texts that the ranks looked up last.
fn got(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.by_rank("pmix_store", 4).into_iter();
    lines
        .map(|line| field(&line, "got").unwrap().to_owned())
        .collect()
}

#[test]
fn names_are_published_found_and_withdrawn_over_pmi_1() {
    for mpi in ["mpich4", "mpich5", "impi"].into_iter().filter_map(mpi) {
        // MPICH 4 may hang by itself on several nodes, see `virtual_nodes`.
        let places = if mpi.name == "mpich4" { 1 } else { 2 };
        for nodes in &NODES[..places] {
            let outcome = mpi.run(4, nodes, "names", &[]).run().expect_success();
            expect_names(&outcome, "name");
        }
    }
}

#[test]
fn names_are_published_found_and_withdrawn_with_every_pmix_server_and_client() {
    for (server, _, client, _) in pairs() {
        for nodes in NODES {
            let options = [&["-v", "--libpmix", server.path()], nodes].concat();
            let outcome = client.run(4, &options, "names", &[]).run().expect(0);
            // Open MPI has no class of its own for it.
            expect_names(&outcome, "other");
            for (kind, count) in [("publish", 2), ("lookup", 12), ("unpublish", 2)] {
                let seen: u64 = upcalls(&outcome, kind)
                    .iter()
                    .map(|[count, ..]| count)
                    .sum();
                assert_eq!(seen, count, "{kind}; {outcome:?}");
            }
        }
    }
}

#[test]
fn values_of_any_type_are_found_with_their_publisher_until_it_withdraws_them() {
    everywhere("types", |outcome, _| {
        got(outcome);
    });
}

#[test]
fn a_lookup_waits_for_a_late_publisher_and_no_longer_than_it_was_told() {
    everywhere("wait", |outcome, _| {
        assert_eq!(got(outcome), ["at last"; 4], "{outcome:?}");
        assert!(outcome.elapsed.as_secs_f64() > 1.0, "{outcome:?}");
    });
}

#[test]
fn a_value_for_one_reader_reaches_exactly_one() {
    everywhere("once", |outcome, _| {
        let got: BTreeSet<String> = got(outcome).into_iter().collect();
        let all = ["0", "1", "2", "3"].map(str::to_owned);
        assert_eq!(got, BTreeSet::from(all), "{outcome:?}");
    });
}

#[test]
fn a_value_for_a_node_is_seen_there_and_not_on_the_others() {
    everywhere("ranges", |outcome, nodes| {
        let got = got(outcome);
        if nodes == 2 {
            assert_eq!(got, ["of-0", "of-0", "of-2", "of-2"], "{outcome:?}");
        } else {
            assert!(got == ["of-0"; 4] || got == ["of-2"; 4], "{outcome:?}");
        }
    });
}

#[test]
fn an_incomplete_lookup_says_so_and_takes_nothing_from_others() {
    everywhere("partial", |outcome, _| {
        got(outcome);
    });
}

#[test]
fn a_rank_that_ends_while_it_waits_gets_nothing_and_takes_its_values_with_it() {
    everywhere("ended", |outcome, _| {
        assert_eq!(got(outcome)[2], "for rank 2", "{outcome:?}");
    });
}

#[test]
fn a_value_can_live_as_long_as_one_of_several_programs() {
    for (server, client) in stages() {
        // The second program's ranks are on both nodes then: 0 to 2, and 3 to 5.
        for nodes in NODES {
            let store = client.dir.join("pmix_store");
            let store = store.to_str().unwrap();
            let second = [store, "app", ":", "-n", "4", store, "app"];
            let options = [nodes, &["--libpmix", server.path()], &second].concat();
            let outcome = Run::ranks(2, options).run().expect_quiet_success();
            outcome.by_rank("pmix_store", 6);
        }
    }
}

#[test]
fn a_rank_that_is_killed_while_it_waits_ends_the_job() {
    for (server, client) in stages() {
        for nodes in NODES {
            let options = [nodes, &["--libpmix", server.path()]].concat();
            let run = client.run(4, &options, "pmix_store", &["stuck"]).start();
            run.wait_for_many(Output::Stdout, " waits", 4);
            let mut ranks = run.processes().into_iter();
            let victim = ranks.rfind(|process| process.name == "pmix_store");
            rustix::process::kill_process(
                rustix::process::Pid::from_raw(victim.unwrap().pid).unwrap(),
                Signal::KILL,
            )
            .unwrap();
            let outcome = run.finish().expect(137);
            outcome.expect_one_line(&["was killed by signal 9"]);
        }
    }
}

/// Two ranks: the first speaks PMI-1 from a shell, where `ask` makes a request, the second PMIx.
fn two_protocols(server: &Pmix, client: &Pmix, nodes: &[&str], pmi: &str, pmix: &[&str]) -> Run {
    let script = format!(
        r#"
        [ "$WIREUP_RANK" = 0 ] || exec "$@"
        ask() {{
            printf '%s\n' "$1" >&"$PMI_FD"
            IFS= read -r reply <&"$PMI_FD"
        }}
        wait_for() {{
            until ask "cmd=lookup_name service=$1"; [[ $reply == *rc=0* ]]; do sleep 0.01; done
        }}
        ask 'cmd=init pmi_version=1 pmi_subversion=1'
        {pmi}
        ask 'cmd=finalize'"#
    );
    let store = client.dir.join("pmix_store");
    let options = [nodes, &["--pmi", "all", "--libpmix", server.path()]].concat();
    let shell = ["bash", "-c", &script, "bash", store.to_str().unwrap()];
    Run::ranks(2, options.iter().chain(&shell).chain(pmix))
}

#[test]
fn what_one_protocol_publishes_the_other_finds() {
    for (server, client) in stages() {
        for nodes in NODES {
            let pmi = r#"
                ask 'cmd=publish_name service=a name port=from-pmi'
                echo "$reply"
                wait_for 'a name.seen'
                echo "$reply""#;
            let run = two_protocols(&server, &client, nodes, pmi, &["get", "a name"]);
            let outcome = run.run().expect_quiet_success();
            let lines = [
                "cmd=lookup_result rc=0 info=ok port=yes",
                "cmd=publish_result rc=0 info=ok msg=success",
                "pmix_store rank=1 size=2 mode=get got=\"from-pmi\"",
            ];
            assert_eq!(outcome.sorted_lines(), lines, "{outcome:?}");

            // And the other way round; over PMI any rank may withdraw it.
            let pmi = r#"
                wait_for 'a name'
                echo "$reply"
                ask 'cmd=publish_name service=a name port=again'
                echo "$reply"
                ask 'cmd=unpublish_name service=a name'
                echo "$reply"
                ask 'cmd=lookup_name service=a name'
                echo "$reply"
                ask 'cmd=publish_name service=a name.seen port=yes'
                wait_for 'a name.done'"#;
            let pmix = ["put", "a name", "from-pmix"];
            let run = two_protocols(&server, &client, nodes, pmi, &pmix);
            let outcome = run.run().expect_quiet_success();
            let lines = [
                "cmd=lookup_result rc=0 info=ok port=from-pmix",
                "cmd=lookup_result rc=1 info=fail msg=service_not_found",
                "cmd=publish_result rc=1 info=fail msg=already_published",
                "cmd=unpublish_result rc=0 info=ok",
                "pmix_store rank=1 size=2 mode=put got=\"yes\"",
            ];
            assert_eq!(outcome.sorted_lines(), lines, "{outcome:?}");
        }
    }
}
