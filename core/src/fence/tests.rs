use super::*;
use crate::job::ids::{Nspace, Rank};
use crate::job::missing_ranks::MissingRanks;
use crate::job::proc::RankOrWildcard;

mod trees;

const MINUTE: Duration = Duration::from_secs(60);

fn whole(name: &str) -> FenceSeries {
    FenceSeries {
        kind: FenceOperation::Pmix,
        participants: Participants::whole_job(Nspace::new(name).unwrap()),
    }
}

fn node(number: u32) -> NodeId {
    NodeId(number)
}

fn brought(text: &str) -> FenceContribution {
    FenceContribution {
        data: Arc::from(text.as_bytes()),
        collect: true,
        status: 0,
    }
}

fn nodes(ids: impl IntoIterator<Item = u32>) -> NodeSet {
    NodeSet::new(ids.into_iter().map(NodeId)).unwrap()
}

/// What a program gives as its own limit.
fn within(after: Duration) -> Option<FenceTimeout> {
    let kind = TimeoutSource::Program;
    Some(FenceTimeout { after, kind })
}

fn ok(text: &str) -> FenceResult {
    Ok(FenceRelease {
        data: Arc::from(text.as_bytes()),
        status: 0,
    })
}

/// Engines in a row, with the messages between them held until delivered.
struct Cluster {
    engines: Vec<FenceEngine<&'static str>>,
    sent: Vec<(NodeId, NodeId, FenceMessage)>,
    answers: Vec<(&'static str, FenceResult)>,
    /// What each node says when it is asked who is missing.
    absent: Vec<MissingRanks>,
    /// Fences that go on after their time.
    late: Vec<MissingRanks>,
    now: Moment,
}

impl Cluster {
    fn new(nodes: u32) -> Self {
        Self::limited(nodes, FenceLimits::default())
    }

    fn limited(nodes: u32, limits: FenceLimits) -> Self {
        Self {
            engines: (0..nodes)
                .map(|number| FenceEngine::new(node(number), TreeShape::default(), limits))
                .collect(),
            sent: Vec::new(),
            answers: Vec::new(),
            absent: vec![MissingRanks::default(); nodes as usize],
            late: Vec::new(),
            now: Moment::default(),
        }
    }

    fn input(&mut self, at: u32, input: FenceEvent<&'static str>) {
        let mut out = Vec::new();
        self.engines[at as usize].handle(input, self.now, &mut out);
        for output in out {
            match output {
                FenceAction::Send { to, message } => self.sent.push((node(at), to, message)),
                FenceAction::SendAll(message) => {
                    let all = (0..self.engines.len() as u32).filter(|to| *to != at);
                    let sent = all.map(|to| (node(at), node(to), message.clone()));
                    self.sent.extend(sent);
                }
                FenceAction::Complete { ticket, result } => self.answers.push((ticket, result)),
                FenceAction::Describe { id, .. } => {
                    let absences = self.absent[at as usize].clone();
                    let described = FenceEvent::Described { id, absences };
                    self.input(at, described);
                }
                FenceAction::Waits { absences, .. } => self.late.push(absences),
                FenceAction::Passed { .. } => panic!("nobody observes the fences"),
            }
        }
    }

    fn arrive_with(
        &mut self,
        at: u32,
        ids: &[u32],
        contribution: FenceContribution,
        ticket: &'static str,
    ) {
        let input = FenceEvent::Arrive {
            series: whole("job"),
            nodes: nodes(ids.iter().copied()),
            contribution,
            timeout: within(MINUTE),
            ticket,
        };
        self.input(at, input);
    }

    fn arrive(&mut self, at: u32, nodes: &[u32], data: &str, ticket: &'static str) {
        self.arrive_with(at, nodes, brought(data), ticket);
    }

    fn deliver(&mut self) {
        while !self.sent.is_empty() {
            let (from, to, message) = self.sent.remove(0);
            self.input(to.0, FenceEvent::Message { from, message });
        }
    }

    /// Lets time pass, from one deadline to the next.
    fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        loop {
            let next = self.engines.iter().filter_map(FenceEngine::next_deadline);
            let next = next.min().map_or(end, |next| next.min(end)).max(self.now);
            self.now = next;
            for at in 0..self.engines.len() as u32 {
                self.input(at, FenceEvent::Tick);
            }
            if next == end {
                return;
            }
        }
    }

    fn lose(&mut self, lost: u32, observers: &[u32]) {
        for &at in observers {
            let input = FenceEvent::PeerLost {
                node: node(lost),
                reason: Arc::from("stream closed"),
            };
            self.input(at, input);
        }
    }

    /// Takes the answers so far, sorted by ticket.
    fn answered(&mut self) -> Vec<(&'static str, FenceResult)> {
        let mut answers = std::mem::take(&mut self.answers);
        answers.sort_by_key(|(ticket, _)| *ticket);
        answers
    }

    fn tickets(&mut self) -> Vec<&'static str> {
        self.answered()
            .into_iter()
            .map(|(ticket, _)| ticket)
            .collect()
    }

    fn assert_idle(&self) {
        assert!(self.engines.iter().all(FenceEngine::is_idle));
        assert!(self.engines.iter().all(|e| e.next_deadline().is_none()));
    }
}

#[test]
fn fence_on_one_node_completes_at_once_without_messages() {
    let mut c = Cluster::new(3);
    c.arrive(2, &[2], "x", "t");
    assert_eq!(c.answered(), [("t", ok("x"))]);
    assert!(c.sent.is_empty());
    c.assert_idle();
}

#[test]
fn fence_releases_after_last_arrival_with_data_in_node_order() {
    let mut c = Cluster::new(3);
    c.arrive(2, &[0, 1, 2], "cc", "t2");
    c.arrive(0, &[0, 1, 2], "a", "t0");
    c.deliver();
    assert_eq!(c.answered(), []);
    c.arrive(1, &[0, 1, 2], "b", "t1");
    c.deliver();
    let all = ok("abcc");
    assert_eq!(
        c.answered(),
        [("t0", all.clone()), ("t1", all.clone()), ("t2", all)]
    );
    c.assert_idle();
}

#[test]
fn all_nodes_share_one_copy_of_result() {
    let mut c = Cluster::new(2);
    c.arrive(0, &[0, 1], "a", "t0");
    c.arrive(1, &[0, 1], "b", "t1");
    c.deliver();
    let data: Vec<_> = c
        .answered()
        .into_iter()
        .map(|(_, r)| r.unwrap().data)
        .collect();
    assert!(Arc::ptr_eq(&data[0], &data[1]));
}

#[test]
fn hub_is_lowest_participant_and_need_not_be_node_zero() {
    let mut c = Cluster::new(4);
    c.arrive(3, &[3, 1, 3], "d", "t3");
    assert!(matches!(
        c.sent[..],
        [(NodeId(3), NodeId(1), FenceMessage::Arrive { .. })]
    ));
    c.arrive(1, &[1, 3], "b", "t1");
    c.deliver();
    assert_eq!(c.answered(), [("t1", ok("bd")), ("t3", ok("bd"))]);
}

#[test]
fn barrier_moves_no_data_and_reports_first_failure_by_node() {
    let mut c = Cluster::new(3);
    for (at, status, ticket) in [(2, -7, "t2"), (1, -3, "t1"), (0, 0, "t0")] {
        let contribution = FenceContribution {
            data: Arc::from(*b"ignored"),
            collect: false,
            status,
        };
        c.arrive_with(at, &[0, 1, 2], contribution, ticket);
        c.deliver();
    }
    for (_, result) in c.answered() {
        let released = result.unwrap();
        assert_eq!((released.data.len(), released.status), (0, -3));
    }
}

#[test]
fn fast_node_may_enter_next_fence_before_slow_one_leaves() {
    let mut c = Cluster::new(2);
    c.arrive(1, &[0, 1], "b0", "slow0");
    c.deliver();
    c.arrive(0, &[0, 1], "a0", "fast0");
    c.arrive(0, &[0, 1], "a1", "fast1");
    assert_eq!(c.answered(), [("fast0", ok("a0b0"))]);
    c.deliver();
    assert_eq!(c.answered(), [("slow0", ok("a0b0"))]);
    c.arrive(1, &[0, 1], "b1", "slow1");
    c.deliver();
    assert_eq!(c.answered(), [("fast1", ok("a1b1")), ("slow1", ok("a1b1"))]);
    c.assert_idle();
}

#[test]
fn fences_of_overlapping_participants_do_not_mix() {
    let mut c = Cluster::new(2);
    let some = Participants::from_procs([0, 2].map(|rank| {
        let rank = RankOrWildcard::One(Rank(rank));
        (Nspace::new("job").unwrap(), rank)
    }));
    let some = FenceSeries {
        kind: FenceOperation::Pmix,
        participants: some.unwrap(),
    };
    for (at, ticket) in [(0, "s0"), (1, "s1")] {
        let input = FenceEvent::Arrive {
            series: some.clone(),
            nodes: nodes([0, 1]),
            contribution: brought("s"),
            timeout: None,
            ticket,
        };
        c.input(at, input);
    }
    c.arrive(0, &[0, 1], "w", "w0");
    c.deliver();
    assert_eq!(c.answered(), [("s0", ok("ss")), ("s1", ok("ss"))]);
    c.arrive(1, &[0, 1], "w", "w1");
    c.deliver();
    assert_eq!(c.answered(), [("w0", ok("ww")), ("w1", ok("ww"))]);
}

#[test]
fn repeated_arrivals_and_releases_have_no_effect() {
    let mut c = Cluster::new(3);
    c.arrive(1, &[0, 1, 2], "b", "t1");
    let (from, to, arrive) = c.sent[0].clone();
    c.sent.push((from, to, arrive.clone()));
    c.arrive(0, &[0, 1, 2], "a", "t0");
    c.deliver();
    assert_eq!(c.answered(), [], "node 1 counts once");
    c.arrive(2, &[0, 1, 2], "c", "t2");
    c.deliver();
    assert_eq!(c.tickets(), ["t0", "t1", "t2"]);
    c.sent.push((from, to, arrive));
    c.deliver();
    assert_eq!(c.answered(), []);
    c.assert_idle();
}

#[test]
fn timeout_releases_all_nodes_and_names_missing_nodes() {
    let mut c = Cluster::new(4);
    c.arrive(0, &[0, 1, 2, 3], "a", "t0");
    c.arrive(2, &[0, 1, 2, 3], "c", "t2");
    c.deliver();
    c.advance(MINUTE - Duration::from_millis(1));
    assert_eq!(c.answered(), []);
    c.advance(Duration::from_millis(1));
    c.deliver();
    let mut absences = MissingRanks::default();
    absences.nodes.add(node(1), 0);
    absences.nodes.add(node(3), 0);
    let failure = FenceFailure::Timeout {
        waited: MINUTE,
        kind: TimeoutSource::Program,
        absences: Box::new(absences),
    };
    assert_eq!(failure.to_string(), "fence timed out after 60 s");
    let late = Err(failure);
    assert_eq!(c.answered(), [("t0", late.clone()), ("t2", late.clone())]);

    // The late ones are answered at once, and the next generation works again.
    c.arrive(1, &[0, 1, 2, 3], "b", "t1");
    c.arrive(3, &[0, 1, 2, 3], "d", "t3");
    assert_eq!(c.answered(), [("t1", late.clone()), ("t3", late)]);
    for (at, ticket) in [(0, "u0"), (1, "u1"), (2, "u2"), (3, "u3")] {
        c.arrive(at, &[0, 1, 2, 3], "x", ticket);
    }
    c.deliver();
    assert_eq!(c.answered().last(), Some(&("u3", ok("xxxx"))));
    c.assert_idle();
}

#[test]
fn shortest_timeout_of_any_node_sets_deadline() {
    for order in [[0, 1, 2], [2, 1, 0]] {
        let mut c = Cluster::new(4);
        for at in order {
            let (timeout, ticket) = [
                (None, "t0"),
                (within(Duration::from_secs(1)), "t1"),
                (within(MINUTE), "t2"),
            ][at as usize];
            let input = FenceEvent::Arrive {
                series: whole("job"),
                nodes: nodes(0..4),
                contribution: brought(""),
                timeout,
                ticket,
            };
            c.input(at, input);
            c.deliver();
        }
        c.advance(Duration::from_secs(1));
        c.deliver();
        assert_eq!(c.tickets(), ["t0", "t1", "t2"], "order {order:?}");
    }
}

#[test]
fn any_number_of_fences_may_follow_each_other() {
    let mut c = Cluster::new(2);
    for _ in 0..3 * fence_messages::AHEAD {
        c.arrive(1, &[0, 1], "b", "t1");
        c.arrive(0, &[0, 1], "a", "t0");
        c.deliver();
        assert_eq!(c.answered(), [("t0", ok("ab")), ("t1", ok("ab"))]);
    }
    c.assert_idle();
}

#[test]
fn silent_hub_is_given_up_after_grace_time() {
    let mut c = Cluster::new(2);
    c.arrive(1, &[0, 1], "b", "t1");
    c.sent.clear();
    c.advance(MINUTE);
    assert_eq!(c.answered(), []);
    c.advance(instance::ROOT_GRACE);
    let mut absences = MissingRanks {
        overdue: true,
        ..MissingRanks::default()
    };
    absences.silent.add(node(0), 0);
    let failure = FenceFailure::Timeout {
        waited: MINUTE + instance::ROOT_GRACE,
        kind: TimeoutSource::Program,
        absences: Box::new(absences),
    };
    assert_eq!(c.answered(), [("t1", Err(failure))]);
    c.assert_idle();
}

#[test]
fn loss_of_peer_fails_only_its_fences_on_all_nodes() {
    let mut c = Cluster::new(3);
    c.arrive(0, &[0, 1, 2], "a", "t0");
    c.arrive(1, &[0, 1, 2], "b", "t1");
    let other = FenceEvent::Arrive {
        series: whole("other"),
        nodes: nodes([0, 1]),
        contribution: brought("o"),
        timeout: None,
        ticket: "o0",
    };
    c.input(0, other);
    c.deliver();
    c.lose(2, &[1, 0]);
    c.deliver();
    let lost = Err(FenceFailure::PeerLost {
        node: node(2),
        reason: Arc::from("stream closed"),
    });
    assert_eq!(c.answered(), [("t0", lost.clone()), ("t1", lost.clone())]);
    // Later fences with the lost node fail without waiting.
    c.arrive(1, &[0, 1, 2], "b", "u1");
    c.deliver();
    c.arrive(0, &[0, 1, 2], "a", "u0");
    assert_eq!(c.answered(), [("u0", lost.clone()), ("u1", lost)]);
    assert!(!c.engines[0].is_idle(), "the other fence is still open");
}

#[test]
fn loss_of_hub_fails_fence_on_every_node() {
    let mut c = Cluster::new(3);
    c.arrive(1, &[0, 1, 2], "b", "t1");
    c.lose(0, &[1, 2]);
    c.arrive(2, &[0, 1, 2], "c", "t2");
    for (_, result) in c.answered() {
        assert!(matches!(
            result,
            Err(FenceFailure::PeerLost {
                node: NodeId(0),
                ..
            })
        ));
    }
    assert!(c.engines[1].is_idle() && c.engines[2].is_idle());
}

#[test]
fn sent_release_counts_despite_loss_of_participant() {
    let mut c = Cluster::new(3);
    for (at, ticket) in [(2, "t2"), (1, "t1")] {
        c.arrive(at, &[0, 1, 2], "x", ticket);
        c.deliver();
    }
    c.arrive(0, &[0, 1, 2], "x", "t0");
    c.lose(2, &[1]);
    c.deliver();
    assert_eq!(c.answered()[1], ("t1", ok("xxx")));
}

#[test]
fn disagreement_about_participants_fails_on_all_nodes() {
    let mut c = Cluster::new(3);
    c.arrive(1, &[0, 1], "b", "t1");
    c.arrive(2, &[0, 1, 2], "c", "t2");
    c.deliver();
    let failure = FenceFailure::NodesDisagree {
        first: node(0),
        second: node(2),
    };
    let disagree = Err(failure);
    assert_eq!(
        c.answered(),
        [("t1", disagree.clone()), ("t2", disagree.clone())]
    );
    c.arrive(0, &[0, 1, 2], "a", "t0");
    assert_eq!(c.answered(), [("t0", disagree)]);
    c.assert_idle();
}

#[test]
fn disagreement_about_hub_fails_on_all_nodes_in_either_order() {
    for order in [[1, 2], [2, 1]] {
        let mut c = Cluster::new(3);
        c.arrive(0, &[0, 1, 2], "a", "t0");
        for at in order {
            let (nodes, ticket): (&[u32], _) = match at {
                1 => (&[0, 1, 2], "t1"),
                _ => (&[1, 2], "t2"),
            };
            c.arrive(at, nodes, "x", ticket);
            c.deliver();
        }
        let answers = c.answered();
        assert_eq!(answers.len(), 3, "order {order:?}");
        for (_, result) in answers {
            assert!(matches!(result, Err(FenceFailure::NodesDisagree { .. })));
        }
        c.assert_idle();
    }
}

#[test]
fn node_outside_its_own_list_is_refused() {
    let mut c = Cluster::new(2);
    c.arrive(1, &[0], "x", "t");
    let refused = Err(FenceFailure::NotParticipant { node: node(1) });
    assert_eq!(c.answered(), [("t", refused)]);
    assert!(c.sent.is_empty());
}

#[test]
fn arrival_at_node_outside_fence_has_no_effect() {
    let mut c = Cluster::new(3);
    c.arrive(2, &[0, 2], "x", "t2");
    let (from, _, message) = c.sent.remove(0);
    c.sent.push((from, node(1), message));
    c.deliver();
    assert!(c.engines[1].is_idle());
    // Node 1 is no participant, so its word does not end the fence; the deadline will.
    assert_eq!(c.answered(), []);
}

#[test]
fn oversized_data_fail_fence_for_all_from_any_node() {
    let limits = FenceLimits {
        contribution_bytes: 4,
        result_bytes: 6,
        ..FenceLimits::default()
    };
    for big in [0, 1] {
        let mut c = Cluster::limited(2, limits);
        c.arrive(big, &[0, 1], "12345", "big");
        c.deliver();
        c.arrive(1 - big, &[0, 1], "1", "small");
        c.deliver();
        let failure = FenceFailure::ContributionTooLarge {
            node: node(big),
            bytes: 5,
            limit: 4,
        };
        let expected = Err(failure);
        assert_eq!(
            c.answered(),
            [("big", expected.clone()), ("small", expected)]
        );
        c.assert_idle();
    }
    let mut c = Cluster::limited(2, limits);
    c.arrive(0, &[0, 1], "1234", "t0");
    c.arrive(1, &[0, 1], "567", "t1");
    c.deliver();
    let failure = FenceFailure::ResultTooLarge { bytes: 7, limit: 6 };
    assert_eq!(c.answered()[1], ("t1", Err(failure)));
}

#[test]
fn hub_with_too_many_open_fences_refuses_more_and_stays_in_step() {
    let limits = FenceLimits {
        open_fences: 1,
        ..FenceLimits::default()
    };
    let mut c = Cluster::limited(2, limits);
    let other = |ticket| FenceEvent::Arrive {
        series: whole("other"),
        nodes: nodes([0, 1]),
        contribution: brought("o"),
        timeout: None,
        ticket,
    };
    c.arrive(1, &[0, 1], "b", "t1");
    c.input(1, other("o1"));
    c.deliver();
    c.input(0, other("o0"));
    let refused = Err(FenceFailure::TooMany { node: node(0) });
    assert_eq!(c.answered(), [("o0", refused.clone()), ("o1", refused)]);
    c.arrive(0, &[0, 1], "a", "t0");
    c.deliver();
    assert_eq!(c.tickets(), ["t0", "t1"]);
    c.input(0, other("o2"));
    c.input(1, other("o3"));
    c.deliver();
    assert_eq!(c.answered(), [("o2", ok("oo")), ("o3", ok("oo"))]);
    c.assert_idle();
}

#[test]
fn generations_far_ahead_and_lists_without_number_are_refused() {
    let limits = FenceLimits {
        participant_lists: 1,
        ..FenceLimits::default()
    };
    let mut c = Cluster::limited(2, limits);
    let arrive = |name: &str, generation| FenceMessage::Arrive {
        lost_nodes: Vec::new(),
        epoch: 0,
        id: FenceId {
            series: whole(name),
            generation,
        },
        nodes: nodes([0, 1]),
        contribution: brought("x"),
        timeout: None,
        waited: Duration::ZERO,
    };
    for message in [
        arrive("job", u64::MAX),
        arrive("job", 0),
        arrive("other", 0),
    ] {
        let from = node(1);
        c.input(0, FenceEvent::Message { from, message });
    }
    let refused: Vec<_> = c.sent.iter().map(|(_, _, message)| message).collect();
    assert!(matches!(
        refused[..],
        [
            FenceMessage::Fail {
                failure: FenceFailure::TooMany { .. },
                ..
            },
            FenceMessage::Fail {
                failure: FenceFailure::TooMany { .. },
                ..
            }
        ]
    ));
    let fail = FenceMessage::Fail {
        id: FenceId {
            series: whole("job"),
            generation: u64::MAX,
        },
        nodes: nodes([0, 1]),
        failure: FenceFailure::TornDown { node: node(0) },
    };
    let from = node(0);
    c.input(
        1,
        FenceEvent::Message {
            from,
            message: fail,
        },
    );
    assert!(
        c.engines[1].is_idle(),
        "not kept for an arrival that cannot come"
    );
}

#[test]
fn unexpected_or_foreign_release_is_ignored() {
    let mut c = Cluster::new(3);
    c.arrive(1, &[0, 1], "b", "t1");
    let release = FenceMessage::Release {
        id: FenceId {
            series: whole("job"),
            generation: 0,
        },
        released: FenceRelease {
            data: Arc::from(*b"forged"),
            status: 0,
        },
        all: false,
    };
    c.sent.clear();
    c.sent.push((node(2), node(1), release.clone()));
    c.sent.push((node(0), node(2), release));
    c.deliver();
    assert_eq!(c.answered(), []);
}

#[test]
fn teardown_answers_all_local_requesters_and_notifies_peers() {
    let mut c = Cluster::new(3);
    c.arrive(0, &[0, 1, 2], "a", "t0");
    c.arrive(1, &[0, 1, 2], "b", "t1");
    c.deliver();
    c.input(1, FenceEvent::Teardown);
    c.deliver();
    let down = Err(FenceFailure::TornDown { node: node(1) });
    assert_eq!(c.answered(), [("t0", down.clone()), ("t1", down.clone())]);
    c.arrive(1, &[0, 1, 2], "b", "u1");
    assert_eq!(c.answered(), [("u1", down.clone())]);
    c.deliver();
    for (at, first, second) in [(2, "t2", "u2"), (0, "t0", "u0")] {
        if at != 0 {
            c.arrive(at, &[0, 1, 2], "x", first);
            assert_eq!(c.answered(), [(first, down.clone())]);
        }
        c.arrive(at, &[0, 1, 2], "x", second);
        assert_eq!(c.answered(), [(second, down.clone())]);
    }
    c.assert_idle();
}

#[test]
fn teardown_of_hub_releases_waiting_nodes() {
    let mut c = Cluster::new(2);
    c.arrive(1, &[0, 1], "b", "t1");
    c.deliver();
    c.input(0, FenceEvent::Teardown);
    c.deliver();
    let down = Err(FenceFailure::TornDown { node: node(0) });
    assert_eq!(c.answered(), [("t1", down.clone())]);
    c.arrive(1, &[0, 1], "b", "u1");
    c.deliver();
    assert_eq!(c.answered(), [("u1", down)], "also who comes later");
    c.assert_idle();
}
