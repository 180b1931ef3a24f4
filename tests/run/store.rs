//! Published data of ranks: MPI's names with every MPI, PMIx's own calls with every server and
//! client, and both in one job.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Outcome, Output, Pmix, Run, field, mpi, pmix};
use crate::pmix::{SERVERS, pairs, upcalls};

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// `names` did what it had to: rank 0's second publication failed, and no rank finds what is not
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
        // Clients of version 7 need a status in addition to "not all of it" that earlier servers do
        // not send.
        if mode == "partial" && client.dir.ends_with("pmix7") && !server.dir.ends_with("pmix7") {
            continue;
        }
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
fn names_are_published_found_and_unpublished_with_every_libpmix() {
    for (server, _, client, _) in pairs() {
        for nodes in NODES {
            let options = [&["-v", "--libpmix", server.path()], nodes].concat();
            let outcome = client.run(4, &options, "names", &[]).run().expect(0);
            // Open MPI has no class of its own for it.
            expect_names(&outcome, "other");
            for (kind, count) in [("publish", 2), ("lookup", 12), ("unpublish", 2)] {
                let total: u64 = upcalls(&outcome, kind)
                    .iter()
                    .map(|[count, ..]| count)
                    .sum();
                assert_eq!(total, count, "{kind}; {outcome:?}");
            }
        }
    }
}

#[test]
fn values_of_any_type_are_found_until_unpublished() {
    everywhere("types", |outcome, _| {
        got(outcome);
    });
}

#[test]
fn lookup_waits_for_late_publisher_within_its_timeout() {
    everywhere("wait", |outcome, _| {
        assert_eq!(got(outcome), ["at last"; 4], "{outcome:?}");
        assert!(outcome.elapsed.as_secs_f64() > 1.0, "{outcome:?}");
    });
}

#[test]
fn late_put_is_awaited_by_its_key() {
    everywhere("put", |outcome, _| {
        assert_eq!(got(outcome), ["second"; 4], "{outcome:?}");
    });
}

#[test]
fn value_for_first_reader_reaches_exactly_one() {
    everywhere("once", |outcome, _| {
        let got: BTreeSet<String> = got(outcome).into_iter().collect();
        let all = ["0", "1", "2", "3"].map(str::to_owned);
        assert_eq!(got, BTreeSet::from(all), "{outcome:?}");
    });
}

#[test]
fn value_of_local_range_is_visible_on_its_node_only() {
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
fn partial_lookup_is_reported_and_consumes_nothing() {
    everywhere("partial", |outcome, _| {
        got(outcome);
    });
}

#[test]
fn rank_that_exits_during_lookup_takes_its_values_with_it() {
    everywhere("ended", |outcome, _| {
        assert_eq!(got(outcome)[2], "for rank 2", "{outcome:?}");
    });
}

#[test]
fn value_can_have_lifetime_of_application() {
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
fn rank_killed_during_lookup_ends_job() {
    for (server, client) in stages() {
        for nodes in NODES {
            let options = [nodes, &["--libpmix", server.path()]].concat();
            let run = client.run(4, &options, "pmix_store", &["stuck"]).start();
            run.wait_for_many(Output::Stdout, " waits", 4);
            let mut processes = run.processes().into_iter();
            let victim = processes.rfind(|process| process.name == "pmix_store");
            let victim = Pid::from_raw(victim.unwrap().pid).unwrap();
            kill_process(victim, Signal::KILL).unwrap();
            let outcome = run.finish().expect(137);
            outcome.expect_one_line(&["was killed by signal 9"]);
        }
    }
}

/// `speak pmi1` or `speak pmi2` makes a shell a client of that: `publish NAME PORT` and `unpublish NAME`
/// print the answer, `lookup NAME` keeps it, `await NAME` looks until it is there.
const DIALECTS: &str = r#"
    speak() {
        own=$1
        case $own in
        pmi1)
            finalize='cmd=finalize'
            ask() { printf '%s\n' "$1" >&"$PMI_FD"; IFS= read -r reply <&"$PMI_FD"; }
            publish() { ask "cmd=publish_name service=$1 port=$2"; echo "$own: $reply"; }
            lookup() { ask "cmd=lookup_name service=$1"; }
            unpublish() { ask "cmd=unpublish_name service=$1"; echo "$own: $reply"; }
            ask 'cmd=init pmi_version=1 pmi_subversion=1'
            ;;
        pmi2)
            finalize='cmd=finalize;'
            ask() {
                printf '%6d%s' "${#1}" "$1" >&"$PMI_FD"
                read -r -N 6 length <&"$PMI_FD"
                read -r -N $((length)) reply <&"$PMI_FD"
            }
            publish() { ask "cmd=name-publish;name=$1;port=$2;infokeycount=0;"; echo "$own: $reply"; }
            lookup() { ask "cmd=name-lookup;name=$1;infokeycount=0;"; }
            unpublish() { ask "cmd=name-unpublish;name=$1;infokeycount=0;"; echo "$own: $reply"; }
            printf 'cmd=init pmi_version=2 pmi_subversion=0\n' >&"$PMI_FD"
            IFS= read -r reply <&"$PMI_FD"
            ask "cmd=fullinit;pmijobid=$PMI_JOBID;pmirank=$WIREUP_RANK;threaded=FALSE;"
            ;;
        esac
    }
    await() { until lookup "$1"; [[ $reply == *rc=0* ]]; do sleep 0.01; done; }
"#;

/// Rank 0 speaks PMI-1 and rank 2 PMI-2; rank 1 is `pmix_store meet`.
const PROTOCOLS: &str = r#"
    case $WIREUP_RANK in
    0) speak pmi1; other=pmi2 ;;
    1) exec "$1" meet ;;
    2) speak pmi2; other=pmi1 ;;
    esac
    publish $own "port-of-$own"
    for name in $other pmix; do await $name; echo "$own: $reply"; done
    publish pmix again
    publish $own.done yes
    await end
    [ $own = pmi2 ] || unpublish pmix
    ask $finalize
"#;

#[test]
fn name_published_over_one_protocol_is_found_over_others() {
    for (server, client) in stages() {
        for nodes in NODES {
            let store = client.dir.join("pmix_store");
            let script = [DIALECTS, PROTOCOLS].concat();
            let shell = ["bash", "-c", &script, "bash", store.to_str().unwrap()];
            let options = ["--pmi", "all", "--libpmix", server.path()];
            let run = Run::ranks(3, nodes.iter().chain(&options).chain(&shell));
            let outcome = run.run().expect_quiet_success();
            let lines = [
                "pmi1: cmd=lookup_result rc=0 info=ok port=port#3",
                "pmi1: cmd=lookup_result rc=0 info=ok port=port-of-pmi2",
                "pmi1: cmd=publish_result rc=0 info=ok msg=success",
                "pmi1: cmd=publish_result rc=0 info=ok msg=success",
                "pmi1: cmd=publish_result rc=1 info=fail msg=already_published",
                "pmi1: cmd=unpublish_result rc=0 info=ok",
                "pmi2: cmd=name-lookup-response;rc=0;found=TRUE;value=port#3;port=port#3;",
                "pmi2: cmd=name-lookup-response;rc=0;found=TRUE;value=port-of-pmi1;port=port-of-pmi1;",
                "pmi2: cmd=name-publish-response;rc=0;",
                "pmi2: cmd=name-publish-response;rc=0;",
                "pmi2: cmd=name-publish-response;rc=1;errmsg=already published;",
                "pmix_store rank=1 size=3 mode=meet got=\"port-of-pmi1 port-of-pmi2\"",
            ];
            assert_eq!(outcome.sorted_lines(), lines, "{outcome:?}");
        }
    }
}

/// A client of PMI-2 that claims another job, and publishes with limits.
const LIMITS: &str = r#"
    speak pmi2
    ask "cmd=fullinit;pmijobid=other;pmirank=0;threaded=FALSE;"; echo "$reply"
    limited() { ask "cmd=name-publish;name=$1;port=p;infokeycount=1;infokey0=NAMEPUB_$2;infoval0=$3;"; echo "$reply"; }
    limited few REFCOUNT 1
    for time in first second; do lookup few; echo "$time: $reply"; done
    limited brief EXPIRE 3
    lookup brief; echo "brief: $reply"
    while lookup brief; [[ $reply == *rc=0* ]]; do sleep 0.05; done
    limited never EXPIRE soon
    ask $finalize
"#;

#[test]
fn pmi2_name_expires_by_limits_of_its_infos() {
    let script = [DIALECTS, LIMITS].concat();
    let run = Run::ranks(1, ["--pmi", "pmi2", "bash", "-c", &script]);
    let found = "cmd=name-lookup-response;rc=0;found=TRUE;value=p;port=p;";
    let [brief, first] = ["brief", "first"].map(|time| format!("{time}: {found}"));
    let lines = [
        &*brief,
        "cmd=fullinit-response;rc=3;errmsg=not the job of this connection;",
        "cmd=name-publish-response;rc=0;",
        "cmd=name-publish-response;rc=0;",
        "cmd=name-publish-response;rc=3;errmsg=invalid NAMEPUB_EXPIRE;",
        &*first,
        "second: cmd=name-lookup-response;rc=1;found=FALSE;errmsg=service not found;",
    ];
    assert_eq!(run.run().expect_quiet_success().sorted_lines(), lines);
}

/// Ranks 0 and 1 publish, wait until 2 and 3 have read that, finalize and exit; those go on until
/// neither is found any more.
const OWNERS: &str = r#"
    case $WIREUP_RANK in 0 | 2) speak pmi1 ;; 1 | 3) speak pmi2 ;; esac
    if [ "$WIREUP_RANK" -lt 2 ]; then
        publish of-$own port-of-$own >/dev/null
        await seen-by-2
        await seen-by-3
    else
        for name in of-pmi1 of-pmi2; do await $name; echo "$own: $reply"; done
        publish seen-by-$WIREUP_RANK yes
        for name in of-pmi1 of-pmi2; do
            while lookup $name; [[ $reply == *rc=0* ]]; do sleep 0.01; done
            echo "$own: $reply"
        done
    fi
    ask $finalize
"#;

#[test]
fn pmi_names_end_with_publishing_rank() {
    for nodes in NODES {
        let script = [DIALECTS, OWNERS].concat();
        let shell = ["--pmi", "all", "bash", "-c", &script];
        let outcome = Run::ranks(4, nodes.iter().chain(&shell)).run();
        let outcome = outcome.expect_quiet_success();
        let lines = [
            "pmi1: cmd=lookup_result rc=0 info=ok port=port-of-pmi1",
            "pmi1: cmd=lookup_result rc=0 info=ok port=port-of-pmi2",
            "pmi1: cmd=lookup_result rc=1 info=fail msg=service_not_found",
            "pmi1: cmd=lookup_result rc=1 info=fail msg=service_not_found",
            "pmi1: cmd=publish_result rc=0 info=ok msg=success",
            "pmi2: cmd=name-lookup-response;rc=0;found=TRUE;value=port-of-pmi1;port=port-of-pmi1;",
            "pmi2: cmd=name-lookup-response;rc=0;found=TRUE;value=port-of-pmi2;port=port-of-pmi2;",
            "pmi2: cmd=name-lookup-response;rc=1;found=FALSE;errmsg=service not found;",
            "pmi2: cmd=name-lookup-response;rc=1;found=FALSE;errmsg=service not found;",
            "pmi2: cmd=name-publish-response;rc=0;",
        ];
        assert_eq!(outcome.sorted_lines(), lines, "{outcome:?}");
    }
}
