//! Barriers of groups: who may enter, who is waited for, what becomes visible, what fails.

use proptest::prelude::*;

use super::*;

/// Six ranks: 0, 1 and 4 here, 2, 3 and 5 on another node.
fn two_nodes() -> Job {
    let map = ProcessMap::from_runs([
        (NodeId(0), 2),
        (NodeId(1), 2),
        (NodeId(0), 1),
        (NodeId(1), 1),
    ]);
    let info = PmiJobInfo {
        kvsname: Nspace::new("job.0").unwrap(),
        appnums: vec![AppNum(0); 3],
        universe_size: None,
        attributes: Vec::new(),
        preputs: Vec::new(),
        spawner: None,
    };
    let mut job = Job::with(info, &map, NodeId(0));
    for rank in 0..3 {
        job.feed(rank, INIT.as_bytes());
    }
    job.effects.clear();
    job
}

fn enter(group: &str) -> String {
    format!("cmd=barrier_in group={group}")
}

fn out(rank: u32, tag: u32) -> String {
    format!("{rank} S> cmd=barrier_out rc=0 tag={tag}\\n")
}

#[test]
fn barrier_of_ranks_of_one_node_stays_on_node() {
    let mut job = two_nodes();
    assert_eq!(job.ask(0, &enter("0,4:7")), [""; 0]);
    assert_eq!(job.state(0), "in barrier 0,4:7");
    assert_eq!(job.ask(2, &enter("4,0:7")), [out(0, 7), out(2, 7)]);
    assert_eq!(job.state(0), "initialized, last request barrier_in");
    assert_eq!(job.ask(1, &enter("1:9")), [out(1, 9)]);
    assert_eq!(job.ask(0, &enter("NODE:3")), [""; 0]);
    assert_eq!(job.ask(1, &enter("NODE:3")), [""; 0]);
    assert_eq!(job.ask(2, &enter("NODE:3")), [0, 1, 2].map(|r| out(r, 3)));
}

#[test]
fn start_of_barrier_and_missing_ranks_are_reported() {
    let mut job = two_nodes();
    job.notes = true;
    let absent = |job: &Job, group: &str| -> Vec<u32> {
        let absent = job.server.absent_from(&barrier(group));
        absent.into_iter().map(|local| local.0).collect()
    };
    assert_eq!(absent(&job, "0,2,4:7"), [0, 2]);
    assert_eq!(job.ask(0, &enter("0,1,4:7")), ["E> begun 0,1,4:7"]);
    assert_eq!(job.ask(1, &enter("0,1,4:7")), [""; 0]);
    assert_eq!(absent(&job, "0,1,4:7"), [2]);
    let end = [out(0, 7), out(1, 7), out(2, 7), "E> ended 0,1,4:7".into()];
    assert_eq!(job.ask(2, &enter("0,1,4:7")), end);
    assert_eq!(job.ask(1, &enter("1:9")), [out(1, 9)]);
    assert_eq!(job.ask(0, "cmd=barrier_in"), ["E> begun WORLD:0"]);
    assert_eq!(absent(&job, "WORLD:0"), [1, 2]);
}

#[test]
fn rank_is_overdue_only_in_middle_of_exchange() {
    let mut job = two_nodes();
    let place = |job: &Job, rank: u32| job.server.state(LocalRank(rank)).whereabouts();
    let last = |text: &str, overdue| (text.to_owned(), overdue);
    assert_eq!(place(&job, 1), last("connected, last init", true));
    job.ask(1, &enter("1:9"));
    assert_eq!(place(&job, 1), last("connected, last barrier_in", false));
    job.ask(1, "cmd=put kvsname=job.0 key=k value=v");
    assert_eq!(place(&job, 1), last("connected, last put", true));
    job.ask(1, &enter("1:9"));
    job.ask(1, "cmd=get kvsname=job.0 key=k");
    assert_eq!(place(&job, 1), last("connected, last get", false));
    job.ask(1, &enter("1,3:9"));
    assert_eq!(place(&job, 1), last("in barrier 1,3:9", false));
    job.ask(0, "cmd=finalize");
    assert_eq!(place(&job, 0), last("finalized", false));
    assert_eq!(place(&Job::new(1), 0), last("never contacted PMI", false));
}

#[test]
fn barrier_with_remote_ranks_waits_for_other_nodes() {
    let mut job = two_nodes();
    assert_eq!(job.ask(1, &enter("1,3,4:5")), [""; 0]);
    assert_eq!(job.ask(2, &enter("1,3,4:5")), ["E> enter 1,3,4:5"]);
    assert_eq!(
        job.end(&barrier("1,3,4:5"), Ok(b"")),
        [out(1, 5), out(2, 5)]
    );
    for rank in 0..2 {
        assert_eq!(job.ask(rank, &enter("WORLD:8")), [""; 0]);
    }
    assert_eq!(job.ask(2, &enter("WORLD:8")), ["E> enter WORLD:8"]);
    assert_eq!(
        job.end(&barrier("WORLD:8"), Ok(b"")),
        [0, 1, 2].map(|rank| out(rank, 8))
    );
}

#[test]
fn barriers_with_different_ranks_or_tag_are_concurrent() {
    let mut job = two_nodes();
    for group in ["0,4:1", "0,4:2", "0,1:1", "WORLD:1", "NODE:1", "WORLD:0"] {
        assert_eq!(job.ask(0, &enter(group)), [""; 0], "{group}");
    }
    assert_eq!(job.state(0), "in barrier 0,4:1 (one of 6 open requests)");
    assert_eq!(
        job.reply(0, "cmd=barrier_in"),
        "cmd=barrier_out rc=-1 msg=already_in_barrier tag=0"
    );
    assert_eq!(
        job.reply(0, &enter("4,0:2")),
        "cmd=barrier_out rc=-1 msg=already_in_barrier tag=2"
    );
    assert_eq!(job.ask(2, &enter("0,4:2")), [out(0, 2), out(2, 2)]);
    assert_eq!(job.ask(1, &enter("0,1:1")), [out(0, 1), out(1, 1)]);
    assert_eq!(job.reply(0, "cmd=get_appnum"), "cmd=appnum rc=0 appnum=0");
    assert_eq!(
        job.ask(0, "cmd=finalize"),
        ["E> misbehaved 0: request finalize arrived while a barrier is still open"]
    );
    // It is counted where it was, and not answered.
    assert_eq!(job.ask(2, &enter("0,4:1")), [out(2, 1)]);
}

#[test]
fn group_without_possible_completion_is_refused_with_tag() {
    let table = [
        ("0,6:5", "unknown_rank_in_group tag=5"),
        ("0,4294967295:5", "unknown_rank_in_group tag=5"),
        ("1,2:5", "not_a_member_of_group tag=5"),
        ("0,1,0:5", "rank_twice_in_group tag=5"),
        ("0,x:5", "invalid_group tag=5"),
        ("", "invalid_group tag=0"),
        ("0,1:x", "invalid_group tag=0"),
        ("SELF:1", "invalid_group tag=1"),
    ];
    let mut job = two_nodes();
    for (group, why) in table {
        let expected = format!("cmd=barrier_out rc=-1 msg={why}");
        assert_eq!(job.reply(0, &enter(group)), expected, "{group}");
    }
    let long = format!("{}0:5", "0,".repeat(30_000));
    assert_eq!(
        job.reply(0, &enter(&long)),
        "cmd=barrier_out rc=-1 msg=group_too_long tag=5"
    );
}

#[test]
fn group_barrier_exchanges_puts_and_leaves_them_for_world() {
    let mut job = two_nodes();
    let put = |key: &str| format!("cmd=put kvsname=job.0 key={key} value=v");
    job.ask(0, &put("a"));
    assert_eq!(job.ask(0, &enter("0,2:5")), ["E> enter 0,2:5 a=v"]);
    let mut all = Vec::new();
    kvs::encode_entry(b"a", b"v", &mut all);
    kvs::encode_entry(b"far", b"w", &mut all);
    job.end(&barrier("0,2:5"), Ok(&all));
    assert_eq!(
        job.reply(1, "cmd=get kvsname=job.0 key=far"),
        "cmd=get_result rc=0 msg=success value=w"
    );
    // The same members know all that, others do not.
    job.ask(1, &put("b"));
    assert_eq!(job.ask(0, &enter("0,2:5")), ["E> enter 0,2:5 b=v"]);
    job.end(&barrier("0,2:5"), Ok(b""));
    assert_eq!(
        job.ask(0, &enter("0,3:5")),
        ["E> enter 0,3:5 a=v far=w b=v"]
    );
    job.end(&barrier("0,3:5"), Ok(b""));
    for rank in 0..2 {
        job.ask(rank, "cmd=barrier_in");
    }
    assert_eq!(job.ask(2, "cmd=barrier_in"), ["E> barrier a=v b=v"]);
    // On its way, and not known elsewhere yet.
    assert_eq!(
        job.ask(0, &enter("0,5:6")),
        ["E> enter 0,5:6 a=v far=w b=v"]
    );
    job.end(&barrier("0,5:6"), Ok(b""));
    job.release(Ok(&all));
    assert_eq!(job.ask(0, &enter("0,5:6")), ["E> enter 0,5:6"]);
}

#[test]
fn failed_group_barrier_answers_only_its_ranks() {
    let mut job = two_nodes();
    job.ask(0, &enter("0,1,3:5"));
    let failed = "cmd=barrier_out rc=-1 msg=node_1_is_gone tag=5";
    assert_eq!(
        job.end(&barrier("0,1,3:5"), Err("node 1 is gone")),
        [format!("0 S> {failed}\\n")]
    );
    assert_eq!(job.reply(1, &enter("0,1,3:5")), failed);
    assert_eq!(job.ask(1, &enter("0,1,3:6")), [""; 0]);
}

#[test]
fn release_before_all_local_members_has_no_effect() {
    let mut job = two_nodes();
    job.ask(0, &enter("0,1,3:5"));
    for (group, arrived, expected) in [("0,1,3:5", 1, 2), ("0,3:5", 0, 3)] {
        let error = job.server.released(&barrier(group), Ok(b"")).unwrap_err();
        let text = format!("{group} released with {arrived} of {expected} local ranks in it");
        assert_eq!(error.to_string(), format!("barrier {text}"));
    }
    assert_eq!(job.server.take_actions(), []);
    assert_eq!(job.ask(1, &enter("0,1,3:5")), ["E> enter 0,1,3:5"]);
}

#[test]
fn only_needed_ranks_are_awaited() {
    let mut job = two_nodes();
    let waited = |job: &Job| -> Vec<u32> {
        let ranks = (0..6).filter(|rank| job.server.waits_for(Rank(*rank)));
        ranks.collect()
    };
    assert_eq!(waited(&job), [0; 0]);
    job.ask(0, &enter("0,1,3:5"));
    assert_eq!(waited(&job), [0, 1, 3]);
    job.ask(2, &enter("NODE:5"));
    assert_eq!(waited(&job), [0, 1, 3, 4]);
    job.ask(1, "cmd=barrier_in");
    assert_eq!(waited(&job), [0, 1, 2, 3, 4, 5]);
}

proptest! {
    /// Random barriers of one node, entered in any order that each thread's own order allows.
    #[test]
    fn barriers_of_one_node_complete_with_last_member(
        groups in prop::collection::vec(prop::collection::btree_set(0_u32..5, 1..5), 1..8),
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..64),
    ) {
        let mut job = Job::initialized(5);
        let names: Vec<String> = groups.iter().enumerate().map(|(tag, ranks)| {
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            format!("{}:{tag}", ranks.join(","))
        }).collect();
        // Each member enters each of its groups once, all of them at the same time if need be.
        let mut to_come: Vec<(usize, u32)> = groups.iter().enumerate()
            .flat_map(|(at, ranks)| ranks.iter().map(move |rank| (at, *rank)))
            .collect();
        let mut missing: Vec<usize> = groups.iter().map(|ranks| ranks.len()).collect();
        let mut order = order.iter().cycle();
        while !to_come.is_empty() {
            let next = order.next().unwrap().index(to_come.len());
            let (at, rank) = to_come.swap_remove(next);
            missing[at] -= 1;
            let effects = job.ask(rank, &enter(&names[at]));
            let expected: Vec<String> = match missing[at] {
                0 => groups[at].iter().map(|rank| out(*rank, at as u32)).collect(),
                _ => Vec::new(),
            };
            prop_assert_eq!(effects, expected);
        }
    }
}
