//! Groups of PMIx processes, MPI sessions and process sets: on one node and on two.

use std::collections::BTreeSet;

use crate::common::{Outcome, Pmix, field, mpi, pmix};
use crate::pmix::SERVERS;

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// One node, two, and three.
const UP_TO_THREE: [&[&str]; 3] = [&[], &["--virtual-nodes", "2"], &["--virtual-nodes", "3"]];

/// Every libpmix that is here, as server and as client: replies about groups differ between 4.2
/// and 5, so no other pairs work. With its major version.
fn versions() -> impl Iterator<Item = (Pmix, u32)> {
    let major = |name: &str| name.strip_prefix("pmix")?.parse().ok();
    let named = SERVERS.iter().map(|(name, _)| *name);
    named.filter_map(move |name| Some((pmix(name)?, major(name)?)))
}

fn run(client: &Pmix, options: &[&str], mode: &str) -> Outcome {
    let options = [&["--libpmix", client.path()], options].concat();
    client.run(4, &options, "pmix_groups", &[mode]).run()
}

/// The context ids of each rank's groups; 0 for a group it is not in.
fn contexts(outcome: &Outcome) -> Vec<Vec<u64>> {
    let lines = outcome.by_rank("pmix_groups", 4).into_iter();
    lines
        .map(|line| {
            let list = field(&line, "contexts").unwrap();
            list.split(',').map(|id| id.parse().unwrap()).collect()
        })
        .collect()
}

#[test]
fn group_has_same_id_on_all_nodes_and_new_one_each_time() {
    for (client, _) in versions() {
        for nodes in NODES {
            let contexts = contexts(&run(&client, nodes, "all").expect(0));
            assert!(
                contexts.iter().all(|ids| *ids == contexts[0]),
                "{contexts:?}"
            );
            let different: BTreeSet<&u64> = contexts[0].iter().collect();
            assert_eq!(different.len(), 4, "{contexts:?}");
        }
    }
}

#[test]
fn overlapping_and_equal_groups_are_constructed_concurrently() {
    for (client, _) in versions() {
        for nodes in NODES {
            let contexts = contexts(&run(&client, nodes, "subsets").expect(0));
            let of_group = |group: usize| -> BTreeSet<u64> {
                let ids = contexts.iter().map(|ids| ids[group]);
                ids.filter(|id| *id != 0).collect()
            };
            let groups: Vec<BTreeSet<u64>> = (0..6).map(of_group).collect();
            assert!(groups.iter().all(|ids| ids.len() == 1), "{contexts:?}");
            let different: BTreeSet<&u64> = groups.iter().flatten().collect();
            assert_eq!(different.len(), 6, "{contexts:?}");
        }
    }
}

#[test]
fn group_data_of_members_reach_all_members() {
    for (client, _) in versions() {
        for nodes in NODES {
            contexts(&run(&client, nodes, "data").expect(0));
        }
    }
}

#[test]
fn members_without_call_are_added_by_others() {
    for (client, major) in versions() {
        for nodes in NODES {
            let outcome = run(&client, nodes, "added").expect(0);
            let lines = outcome.by_rank("pmix_groups", 4);
            let context = |rank: usize| field(&lines[rank], "contexts").unwrap().to_owned();
            assert_eq!(context(0) != "-", major < 6, "{outcome:?}");
            assert_eq!(context(0), context(2), "{outcome:?}");
        }
    }
}

#[test]
fn member_that_leaves_or_is_killed_fails_group_construct() {
    let nodes = &["--virtual-nodes", "2", "--no-kill-on-bad-exit"];
    for (client, _) in versions() {
        for (mode, code) in [("ended", 0), ("killed", 137)] {
            let outcome = run(&client, nodes, mode).expect(code);
            let lines = outcome.sorted_lines();
            assert_eq!(lines.len(), 3, "{outcome:?}");
            for line in &lines[..2] {
                // PMIX_ERR_PROC_TERM_WO_SYNC
                assert_eq!(field(line, "status"), Some("-200"), "{line}");
            }
        }
        // On one node libpmix never notifies the others: they end with the job.
        for nodes in NODES {
            run(&client, nodes, "killed").expect(137);
        }
    }
}

#[test]
fn group_construct_that_times_out_can_be_retried() {
    // The timer of libpmix 4.2 breaks its server; from 6 on groups of one node have none.
    for (client, major) in versions().filter(|(_, major)| *major >= 5) {
        for nodes in &NODES[usize::from(major > 5)..] {
            run(&client, nodes, "timeout").expect(0);
        }
    }
}

#[test]
fn group_invitation_and_replies_cross_nodes() {
    for (client, _) in versions() {
        for nodes in NODES {
            let outcome = run(&client, nodes, "invite").expect(0);
            outcome.by_rank("pmix_groups", 4);
        }
    }
}

/// Returns the events that the ranks had received at their end, by rank.
fn members(client: &Pmix, nodes: &[&str], mode: &str, code: i32) -> Vec<(u32, String)> {
    let options = [
        &["--libpmix", client.path()],
        nodes,
        &["--no-kill-on-bad-exit"],
    ]
    .concat();
    let run = client.run(4, &options, "pmix_members", &[mode]);
    let outcome = run.run().expect(code);
    let lines = outcome.sorted_lines().into_iter();
    lines
        .map(|line| {
            let rank = field(&line, "rank").unwrap().parse().unwrap();
            (rank, field(&line, "heard").unwrap().to_owned())
        })
        .collect()
}

fn rank_events(rank: u32, text: &str) -> (u32, String) {
    (rank, text.to_owned())
}

#[test]
fn groups_are_made_and_ended_at_once_by_one_thread() {
    for (client, _) in versions() {
        for nodes in UP_TO_THREE {
            let all = members(&client, nodes, "nonblocking", 0);
            assert_eq!(all, [0, 1, 2, 3].map(|rank| rank_events(rank, "-")));
        }
    }
}

#[test]
fn group_name_is_free_for_others_after_destruct() {
    for (client, _) in versions() {
        for nodes in UP_TO_THREE {
            members(&client, nodes, "again", 0);
        }
    }
}

/// On one node libpmix does not tell its host that all have called who are left, or decides by itself.
#[test]
fn dead_optional_member_is_left_out() {
    for (client, _) in versions() {
        for nodes in &UP_TO_THREE[1..] {
            for mode in ["optional", "tolerant"] {
                let rest = members(&client, nodes, mode, 137);
                assert_eq!(rest, [0, 1, 2].map(|rank| rank_events(rank, "-")));
            }
        }
    }
}

#[test]
fn member_that_dies_after_its_call_is_left_out_by_later_calls() {
    for (client, _) in versions() {
        for nodes in UP_TO_THREE {
            let rest = members(&client, nodes, "gone", 137);
            assert_eq!(rest, [0, 1, 2].map(|rank| rank_events(rank, "other@3")));
        }
    }
}

/// Before version 7 libpmix has those on the node of the dead wait until the job ends.
#[test]
fn member_that_dies_before_its_call_fails_group_on_its_node() {
    for (client, _) in versions().filter(|(_, major)| *major >= 7) {
        for nodes in UP_TO_THREE {
            let rest = members(&client, nodes, "missing", 137);
            let expected = [0, 1, 2].map(|rank| rank_events(rank, &format!("failed@{rank}")));
            assert_eq!(rest, expected);
        }
    }
}

#[test]
fn members_get_death_event_and_destruct_group_without_dead() {
    for (client, _) in versions() {
        for nodes in UP_TO_THREE {
            let rest = members(&client, nodes, "notify", 137);
            let expected = [(0, "member@3"), (1, "member@3"), (2, "-")];
            assert_eq!(rest, expected.map(|(rank, text)| rank_events(rank, text)));
        }
    }
}

/// libpmix 4.2 reports no groups of one node without context id.
#[test]
fn members_of_destructed_group_get_no_death_events() {
    for (client, major) in versions() {
        for nodes in &UP_TO_THREE[usize::from(major < 5)..] {
            let rest = members(&client, nodes, "ended", 137);
            assert_eq!(rest, [0, 1, 2].map(|rank| rank_events(rank, "member@3")));
        }
    }
}

#[test]
fn group_leader_gets_events_of_dead_or_declining_members() {
    for (client, major) in versions() {
        for nodes in UP_TO_THREE {
            let rest = members(&client, nodes, "invited", 137);
            let expected = match major {
                ..7 => [(0, "invite@3"), (1, "joined@1"), (2, "-")],
                _ => [(0, "invite@3,failed@0"), (1, "failed@1"), (2, "-")],
            };
            assert_eq!(rest, expected.map(|(rank, text)| rank_events(rank, text)));
            let all = members(&client, nodes, "declined", 0);
            let expected = ["declined@2", "declined@2,failed@0"];
            assert_eq!(all[0], rank_events(0, expected[usize::from(major >= 7)]));
        }
    }
}

#[test]
fn members_get_events_of_leader_death_and_new_leader() {
    for (client, _) in versions() {
        for nodes in UP_TO_THREE {
            let rest = members(&client, nodes, "leader", 137);
            let expected = |rank| format!("joined@{rank},complete@0,leader@0,selected@1,leader@1");
            assert_eq!(rest, [2, 3].map(|rank| (rank, expected(rank))));
        }
    }
}

#[test]
fn local_group_has_members_of_each_node() {
    for (client, major) in versions() {
        for (nodes, counts) in [(NODES[0], [4; 4]), (NODES[1], [2; 4])] {
            let all = members(&client, nodes, "local", 0);
            // Clients of libpmix 4.2 do not get the list of members.
            let count = |rank: usize| if major >= 5 { counts[rank] } else { 0 };
            let expected = |rank: u32| format!("{}@{rank}", count(rank as usize));
            assert_eq!(all, [0, 1, 2, 3].map(|rank| (rank, expected(rank))));
        }
    }
}

/// Before version 7 `PMIx_Group_leave` is not carried out by libpmix's servers, whatever the group.
#[test]
fn leave_of_missing_or_fixed_group_is_refused() {
    for (client, major) in versions() {
        let all = members(&client, NODES[1], "leave", 0);
        let refusal = if major < 7 { -47 } else { -46 };
        let expected = |rank| (rank, format!("{refusal}@{rank}"));
        assert_eq!(all, [0, 1, 2, 3].map(expected));
    }
}

/// Before version 7 libpmix waits for all who are there on the node of the one that leaves.
#[test]
fn member_that_left_is_not_awaited_in_group_destruct() {
    for (client, major) in versions() {
        for nodes in &UP_TO_THREE[usize::from(major < 7)..] {
            let all = members(&client, nodes, "left", 0);
            let expected = [(0, "left@3"), (1, "left@3"), (2, "-"), (3, "-")];
            assert_eq!(all, expected.map(|(rank, text)| rank_events(rank, text)));
        }
    }
}

/// Returns the values that parents, then children printed under that name.
fn families(outcome: &Outcome, key: &str) -> Vec<String> {
    let text = outcome.out();
    let value_of = |who: &str, rank: &str| {
        let mut lines = text.lines();
        let line = lines.find(|l| field(l, "who") == Some(who) && field(l, "rank") == Some(rank));
        line.map(|line| field(line, key).unwrap().to_owned())
    };
    let family = [
        ("parent", "0"),
        ("parent", "1"),
        ("child", "0"),
        ("child", "1"),
    ];
    let values = family.map(|(who, rank)| value_of(who, rank));
    values.into_iter().flatten().collect()
}

#[test]
fn parents_and_children_make_groups_and_get_death_events() {
    for (client, _) in versions() {
        for nodes in NODES {
            let options = [&["--libpmix", client.path()], nodes].concat();
            let outcome = client.run(2, &options, "pmix_families", &["make"]).run();
            let ids = families(&outcome.expect(0), "contexts");
            assert_eq!((&ids[0], &ids[1]), (&ids[2], &ids[3]), "{ids:?}");
            let split = |ids: &str| {
                ids.rsplit_once(',')
                    .map(|(all, pair)| (all.to_owned(), pair.to_owned()))
            };
            let (first, second) = (split(&ids[0]).unwrap(), split(&ids[1]).unwrap());
            assert_eq!(first.0, second.0, "the groups of all");
            assert_ne!(first.1, second.1, "those of pairs");

            let options = [&options[..], &["--no-kill-on-bad-exit"]].concat();
            let outcome = client.run(2, &options, "pmix_families", &["notify"]).run();
            assert_ne!(outcome.code, 0, "{outcome:?}");
            assert_eq!(families(&outcome, "heard"), ["child1"; 3], "{outcome:?}");
        }
    }
}

#[test]
fn psets_have_named_ranks_in_order() {
    for (client, _) in versions() {
        for nodes in NODES {
            let options = [nodes, &["--pset", "io=3,0-1", "--pset", "one=2"]].concat();
            let outcome = run(&client, &options, "psets").expect(0);
            let sets = "sets=\"io:3,0,1 one:2\"";
            assert_eq!(outcome.out().matches(sets).count(), 4, "{outcome:?}");
            // The ranks of each of several programs.
            let program = client.dir.join("pmix_groups");
            let program = program.to_str().expect("a path of our scripts");
            let more = ["psets", ":", "-n", "1", program, "psets"];
            let options = [&["--libpmix", client.path()], nodes].concat();
            let outcome = client.run(3, &options, "pmix_groups", &more).run();
            let outcome = outcome.expect(0);
            let sets = "sets=\"app0:0,1,2 app1:3\"";
            assert_eq!(outcome.out().matches(sets).count(), 4, "{outcome:?}");
        }
    }
}

#[test]
fn pset_of_missing_ranks_is_refused() {
    for (set, message) in [
        ("io=0-4", "no rank 4; the job has ranks 0 to 3"),
        ("app0=1", "another process set has this name"),
        ("io", "give NAME=RANKS, as in io=0,2-4"),
        ("mpi://io=0", "are reserved for MPI"),
    ] {
        let outcome = crate::common::Run::ranks(4, ["--pset", set, "true"]).run();
        assert_ne!(outcome.code, 0, "{outcome:?}");
        assert!(outcome.err().contains(message), "{outcome:?}");
    }
}

/// Open MPI 5 makes communicators of groups in one thread at a time only, under any launcher.
#[test]
fn mpi_sessions_make_communicators_and_list_psets() {
    let standard = ["mpi://WORLD", "mpi://SELF"];
    for (name, ours) in [("openmpi5", true), ("mpich5", false), ("impi", false)] {
        let Some(mpi) = mpi(name) else { continue };
        for nodes in NODES {
            let options = [&["--pset", "io=3,0"], nodes].concat();
            let outcome = mpi
                .run(4, &options, "sessions", &["1", "3"])
                .run()
                .expect(0);
            for line in outcome.by_rank("sessions", 4) {
                let sets: Vec<&str> = field(&line, "sets").unwrap().split(' ').collect();
                assert!(standard.iter().all(|set| sets.contains(set)), "{line}");
                // PMI has no words for them.
                assert_eq!(sets.contains(&"io"), ours, "{line}");
                assert!(!sets.contains(&"app0"), "{line}");
            }
        }
    }
}

/// Open MPI 5.0 looks for a set's members where there is room for one set per process, and writes
/// beyond its memory when it finds something there. It must find nothing.
#[test]
fn group_of_pset_is_refused_by_open_mpi_5_without_damage() {
    let Some(mpi) = mpi("openmpi5") else { return };
    let options = ["--pset", "io=3,0"];
    let outcome = mpi
        .run(4, &options, "sessions", &["1", "1", "io"])
        .run()
        .expect(0);
    for line in outcome.by_rank("sessions", 4) {
        assert_eq!(field(&line, "set"), Some("refused"), "{line}");
    }
}

#[test]
fn mpi_session_with_old_libpmix_fails_with_version_and_remedy() {
    let (Some(mpi), Some(old)) = (mpi("openmpi5"), pmix("pmix4")) else {
        return;
    };
    for nodes in NODES {
        let options = [&["--libpmix", old.path()], nodes].concat();
        let outcome = mpi
            .run(4, &options, "sessions", &["1", "1"])
            .run()
            .expect(1);
        let message = "the program uses MPI sessions, which libpmix 4.";
        assert!(outcome.err().contains(message), "{outcome:?}");
        assert!(
            outcome.err().contains("version 5 or later (--libpmix)"),
            "{outcome:?}"
        );
    }
}
