//! Fences of more nodes than a star may have, and what happens when they take too long.

use super::*;
use crate::job::ids::GlobalRank;
use crate::job::missing_ranks::MissingRankInfo;

const BINARY: TreeShape = TreeShape {
    star_limit: 1,
    width: 2,
};

/// Seven nodes: 0 above 1 and 2, 1 above 3 and 4, 2 above 5 and 6.
fn seven() -> Cluster {
    let mut c = Cluster::new(7);
    for (at, engine) in (0..).zip(&mut c.engines) {
        *engine = FenceEngine::new(node(at), BINARY, FenceLimits::default());
    }
    c
}

const ALL: [u32; 7] = [0, 1, 2, 3, 4, 5, 6];
const TICKETS: [&str; 7] = ["t0", "t1", "t2", "t3", "t4", "t5", "t6"];

fn arrive(c: &mut Cluster, at: u32, kind: TimeoutSource) {
    let after = MINUTE;
    let input = FenceEvent::Arrive {
        series: whole("job"),
        nodes: nodes(ALL),
        contribution: brought(&at.to_string()),
        timeout: Some(FenceTimeout { after, kind }),
        ticket: TICKETS[at as usize],
    };
    c.input(at, input);
    c.deliver();
}

fn missing(rank: u32, overdue: bool) -> MissingRanks {
    let mut absences = MissingRanks::default();
    let absent = MissingRankInfo {
        rank: GlobalRank(rank),
        last_request: "connected, last put".into(),
        idle: Some(MINUTE),
    };
    absences.add(absent, overdue);
    absences
}

#[test]
fn fence_of_all_nodes_is_released_by_root_to_all() {
    for (launch, at_once) in [(7, true), (8, false)] {
        let mut c = seven();
        c.engines
            .iter_mut()
            .for_each(|engine| engine.set_launch_nodes(launch));
        for (at, ticket) in (0..).zip(TICKETS) {
            c.arrive(at, &ALL, &at.to_string(), ticket);
        }
        let mut released = Vec::new();
        while !c.sent.is_empty() {
            let (from, to, message) = c.sent.remove(0);
            if let FenceMessage::Release { all, .. } = message {
                assert_eq!(all, at_once);
                released.push((from.0, to.0));
            }
            c.input(to.0, FenceEvent::Message { from, message });
        }
        assert_eq!(released.iter().all(|(from, _)| *from == 0), at_once);
        assert_eq!((released.len(), c.answered().len()), (6, 7));
    }
}

#[test]
fn each_node_receives_from_its_subtree_and_all_get_same_result() {
    let mut c = seven();
    for at in [3, 0, 6, 1, 5, 2] {
        c.arrive(at, &ALL, &at.to_string(), TICKETS[at as usize]);
        c.deliver();
    }
    assert_eq!(c.answered(), []);
    c.arrive(4, &ALL, "4", TICKETS[4]);
    let mut hops = Vec::new();
    while !c.sent.is_empty() {
        let (from, to, message) = c.sent.remove(0);
        hops.push((from.0, to.0));
        c.input(to.0, FenceEvent::Message { from, message });
    }
    let expected = [
        (4, 1),
        (1, 0),
        (0, 1),
        (0, 2),
        (1, 3),
        (1, 4),
        (2, 5),
        (2, 6),
    ];
    assert_eq!(hops, expected);
    let all = TICKETS.map(|ticket| (ticket, ok("0134256")));
    assert_eq!(c.answered(), all);
    c.assert_idle();
}

#[test]
fn failure_of_leaf_reaches_each_node_once_even_before_arrival() {
    let mut c = seven();
    let limits = FenceLimits {
        contribution_bytes: 1,
        ..FenceLimits::default()
    };
    c.engines[6] = FenceEngine::new(node(6), BINARY, limits);
    for at in [0, 1, 3, 5] {
        c.arrive(at, &ALL, "x", TICKETS[at as usize]);
        c.deliver();
    }
    c.arrive(6, &ALL, "too much", TICKETS[6]);
    let mut fails = 0;
    while !c.sent.is_empty() {
        let (from, to, message) = c.sent.remove(0);
        fails += usize::from(matches!(message, FenceMessage::Fail { .. }));
        c.input(to.0, FenceEvent::Message { from, message });
    }
    assert_eq!(fails, 2 + 6, "two hops up, and down each edge");
    for at in [2, 4] {
        c.arrive(at, &ALL, "x", TICKETS[at as usize]);
    }
    let answers = c.answered();
    assert_eq!(answers.len(), 7);
    let expected = FenceFailure::ContributionTooLarge {
        node: node(6),
        bytes: 8,
        limit: 1,
    };
    assert!(answers.iter().all(|(_, r)| *r == Err(expected.clone())));
    c.assert_idle();
}

#[test]
fn loss_of_node_unknown_to_parents_ends_fence() {
    let mut c = seven();
    // Only a cousin waits; the lost node's parent and the root have not come.
    c.arrive(3, &ALL, "x", TICKETS[3]);
    c.deliver();
    c.lose(6, &[0, 1, 2, 3, 4, 5]);
    c.deliver();
    for at in [0, 1, 2, 4, 5] {
        c.arrive(at, &ALL, "x", TICKETS[at as usize]);
        c.deliver();
    }
    for (ticket, result) in c.answered() {
        let lost = matches!(result, Err(FenceFailure::PeerLost { node, .. }) if node.0 == 6);
        assert!(lost, "{ticket}");
    }
    assert!(c.engines[..6].iter().all(FenceEngine::is_idle));
}

#[test]
fn nodes_below_lost_node_are_released_with_or_without_arrival() {
    let mut c = seven();
    c.arrive(3, &ALL, "x", TICKETS[3]);
    c.deliver();
    c.lose(1, &[3, 4]);
    c.arrive(4, &ALL, "x", TICKETS[4]);
    assert_eq!(c.tickets(), ["t3", "t4"]);
}

#[test]
fn user_timeout_ends_fence_and_reports_missing_on_all_nodes() {
    let mut c = seven();
    for at in [0, 1, 2, 3, 5, 6] {
        arrive(&mut c, at, TimeoutSource::User);
    }
    c.absent[4] = missing(17, false);
    c.advance(MINUTE);
    c.deliver();
    let answers = c.answered();
    assert_eq!(answers.len(), 6);
    for (_, result) in answers {
        let Err(FenceFailure::Timeout {
            absences, waited, ..
        }) = result
        else {
            panic!("{result:?}");
        };
        assert_eq!((*absences, waited), (missing(17, false), MINUTE));
    }
    arrive(&mut c, 4, TimeoutSource::User);
    assert_eq!(c.tickets(), ["t4"]);
    c.assert_idle();
}

#[test]
fn lone_leaf_gets_report_without_arrivals_above() {
    let mut c = seven();
    arrive(&mut c, 3, TimeoutSource::User);
    for at in [0, 1, 2, 4, 5, 6] {
        c.absent[at as usize] = missing(at, false);
    }
    c.advance(MINUTE);
    c.deliver();
    let [("t3", Err(FenceFailure::Timeout { absences, .. }))] = &c.answered()[..] else {
        panic!("nobody else came");
    };
    let named: Vec<u32> = absences.named.iter().map(|a| a.rank.0).collect();
    assert_eq!(named, [0, 1, 2, 4, 5, 6]);
}

#[test]
fn busy_ranks_are_awaited_and_idle_ones_are_not() {
    let mut c = seven();
    for at in [0, 1, 2, 3, 5, 6] {
        arrive(&mut c, at, TimeoutSource::Default);
    }
    c.absent[4] = missing(17, false);
    for minutes in 1..=3 {
        c.advance(MINUTE);
        c.deliver();
        assert_eq!((c.answered(), c.late.len()), (Vec::new(), minutes));
    }
    arrive(&mut c, 4, TimeoutSource::Default);
    assert_eq!(c.tickets(), TICKETS);
    c.assert_idle();
    for at in [0, 1, 2, 3, 5, 6] {
        arrive(&mut c, at, TimeoutSource::Default);
    }
    c.absent[4] = missing(17, true);
    c.advance(MINUTE);
    c.deliver();
    assert_eq!(c.answered().len(), 6);
}

#[test]
fn silent_node_is_named_with_its_subtree() {
    let mut c = seven();
    for at in [0, 2, 3, 4, 5, 6] {
        arrive(&mut c, at, TimeoutSource::User);
    }
    c.advance(MINUTE);
    c.sent.retain(|(_, to, _)| to.0 != 1);
    c.deliver();
    assert_eq!(c.answered(), []);
    c.advance(Duration::from_secs(2));
    c.sent.retain(|(_, to, _)| to.0 != 1);
    c.deliver();
    let answers = c.answered();
    let (_, Err(FenceFailure::Timeout { absences, .. })) = &answers[0] else {
        panic!("{answers:?}");
    };
    assert_eq!(
        (&absences.silent.named[..], absences.silent.count),
        (&[node(1)][..], 3)
    );
    // Its children give up by themselves.
    assert_eq!(answers.len(), 4);
    c.advance(2 * MINUTE);
    assert_eq!(c.tickets(), ["t3", "t4"]);
}

#[test]
fn time_of_stopped_launcher_does_not_count() {
    let mut c = seven();
    for at in [0, 1, 2, 3, 5, 6] {
        arrive(&mut c, at, TimeoutSource::User);
    }
    c.now = c.now + 100 * MINUTE;
    for at in ALL {
        c.input(at, FenceEvent::Tick);
    }
    c.deliver();
    assert_eq!(c.answered(), []);
    arrive(&mut c, 4, TimeoutSource::User);
    assert_eq!(c.tickets(), TICKETS);
}

#[test]
fn entered_ranks_get_failure_before_arrival_of_their_node() {
    let mut c = seven();
    let begin = FenceEvent::Begin {
        series: whole("job"),
        nodes: nodes(ALL),
        timeout: None,
        ticket: "began",
    };
    c.input(4, begin);
    c.lose(6, &[0, 1, 2, 3, 4, 5]);
    c.deliver();
    assert_eq!(c.tickets(), ["began"]);
}

#[test]
fn fence_timeout_starts_at_first_arrival_on_any_node() {
    let mut c = seven();
    let kind = TimeoutSource::User;
    let begin = FenceEvent::Begin {
        series: whole("job"),
        nodes: nodes(ALL),
        timeout: Some(FenceTimeout {
            after: MINUTE,
            kind,
        }),
        ticket: "began",
    };
    c.input(4, begin);
    c.advance(MINUTE / 2);
    for at in [0, 1, 2, 3, 5, 6] {
        arrive(&mut c, at, kind);
    }
    c.absent[4] = missing(17, false);
    c.advance(MINUTE / 2);
    c.deliver();
    assert_eq!(c.tickets(), ["began", "t0", "t1", "t2", "t3", "t5", "t6"]);
}
