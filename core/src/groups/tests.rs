use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::fence::Participants;
use crate::job::ids::{Nspace, Rank};
use crate::job::proc::RankOrWildcard;

const SECOND: Duration = Duration::from_secs(1);

fn nspace() -> Nspace {
    Nspace::new("job").unwrap()
}

fn proc(rank: u32) -> Proc {
    Proc::new(nspace(), Rank(rank))
}

/// Nodes in a row with one rank each, so that a rank's number is its node's.
struct Cluster {
    engines: Vec<GroupEngine<(u32, &'static str)>>,
    /// Messages under way, oldest first.
    sent: VecDeque<(NodeId, NodeId, GroupMessage)>,
    answers: Vec<((u32, &'static str), GroupResult)>,
    now: Moment,
}

impl Cluster {
    fn new(nodes: u32) -> Self {
        Self {
            engines: (0..nodes)
                .map(|n| GroupEngine::new(NodeId(n), nodes))
                .collect(),
            sent: VecDeque::new(),
            answers: Vec::new(),
            now: Moment::default(),
        }
    }

    fn at(
        &mut self,
        node: u32,
        what: impl FnOnce(
            &mut GroupEngine<(u32, &'static str)>,
            &mut GroupContext<'_, (u32, &'static str)>,
        ),
    ) {
        let mut out = Vec::new();
        let cx = &mut GroupContext::new(self.now, &mut out);
        what(&mut self.engines[node as usize], cx);
        for output in out {
            match output {
                GroupAction::Send { to, message } => {
                    self.sent.push_back((NodeId(node), to, message))
                }
                GroupAction::SendAll(message) => {
                    let all = (0..self.engines.len() as u32).filter(|to| *to != node);
                    let sent = all.map(|to| (NodeId(node), NodeId(to), message.clone()));
                    self.sent.extend(sent);
                }
                GroupAction::Complete { ticket, result } => self.answers.push((ticket, result)),
            }
        }
    }

    fn construct(&mut self, node: u32, name: &'static str, members: &[u32]) {
        self.arrive(node, GroupOperation::Construct, name, members, None);
    }

    fn arrive(
        &mut self,
        node: u32,
        operation: GroupOperation,
        name: &'static str,
        members: &[u32],
        timeout: Option<Duration>,
    ) {
        let (key, mut offer) = (key(operation, name, members), offer(node));
        let placement = placement(members);
        offer.timeout = timeout;
        self.at(node, |engine, cx| {
            engine.arrive(key, placement, offer, (node, name), cx);
        });
    }

    fn deliver_one(&mut self) -> bool {
        let Some((from, to, message)) = self.sent.pop_front() else {
            return false;
        };
        self.hand_in(from, to, message);
        true
    }

    fn hand_in(&mut self, from: NodeId, to: NodeId, message: GroupMessage) {
        self.at(to.0, |engine, cx| {
            let placement = match &message {
                GroupMessage::Arrive { key, .. } if !engine.is_open(key) => {
                    let members = (0..64).filter(|node| key.members.contains(&proc(*node)));
                    Some(placement(&members.collect::<Vec<_>>()))
                }
                _ => None,
            };
            engine.message(from, message, placement, cx)
        });
    }

    fn deliver(&mut self) {
        while self.deliver_one() {}
    }

    /// The answers so far, by node and name.
    fn answers(&mut self) -> BTreeMap<(u32, &'static str), GroupResult> {
        let answers = std::mem::take(&mut self.answers);
        let count = answers.len();
        let answers: BTreeMap<_, _> = answers.into_iter().collect();
        assert_eq!(answers.len(), count, "one answer each");
        answers
    }

    #[track_caller]
    fn released(&mut self, expected: usize) -> Vec<GroupRelease> {
        let answers = self.answers();
        assert_eq!(answers.len(), expected, "{answers:?}");
        answers.into_values().map(Result::unwrap).collect()
    }

    #[track_caller]
    fn failed(&mut self) -> BTreeMap<u32, GroupFailure> {
        let answers = self.answers().into_iter();
        answers
            .map(|((node, _), result)| (node, result.unwrap_err()))
            .collect()
    }
}

fn key(operation: GroupOperation, name: &str, members: &[u32]) -> GroupKey {
    let procs = members
        .iter()
        .map(|m| (nspace(), RankOrWildcard::One(Rank(*m))));
    GroupKey {
        operation,
        name: name.as_bytes().into(),
        members: Participants::from_procs(procs).unwrap(),
    }
}

/// Each member on the node of its number.
fn placement(members: &[u32]) -> MemberNodes {
    let mut nodes: Vec<NodeId> = members.iter().map(|m| NodeId(*m)).collect();
    nodes.sort_unstable();
    MemberNodes {
        members: members.iter().map(|m| proc(*m)).collect(),
        homes: members.iter().map(|m| NodeId(*m)).collect(),
        nodes: nodes.into(),
    }
}

fn offer(node: u32) -> GroupArrival {
    GroupArrival {
        ended_members: Vec::new(),
        optional: false,
        notify: false,
        wants_context: true,
        status: 0,
        part: Arc::from([node as u8]),
        timeout: None,
    }
}

#[test]
fn every_node_gets_same_members_id_and_data_after_last_arrival() {
    let mut cluster = Cluster::new(4);
    // The lowest node's order counts.
    cluster.construct(2, "g", &[1, 2, 3]);
    cluster.construct(3, "g", &[3, 2, 1]);
    cluster.deliver();
    assert!(cluster.answers.is_empty());
    cluster.construct(1, "g", &[2, 1, 3]);
    cluster.deliver();
    let released = cluster.released(3);
    assert!(released.iter().all(|other| *other == released[0]));
    let order: Vec<u32> = released[0].members.iter().map(|m| m.rank.0).collect();
    assert_eq!(order, [2, 1, 3]);
    let parts: Vec<&[u8]> = released[0].parts.iter().map(|part| &**part).collect();
    assert_eq!(parts, [&[1][..], &[2], &[3]]);
}

#[test]
fn group_of_one_node_is_made_at_once() {
    let mut cluster = Cluster::new(3);
    cluster.construct(2, "g", &[2]);
    assert!(cluster.sent.is_empty());
    assert_eq!(cluster.released(1)[0].context, Some(3));
}

#[test]
fn ids_differ_across_nodes_and_are_assigned_on_request_only() {
    let mut cluster = Cluster::new(3);
    let mut used_ids = BTreeSet::new();
    for round in 0..3 {
        for members in [&[0, 1, 2][..], &[1, 2], &[0, 2], &[2]] {
            for node in members {
                cluster.construct(*node, ["a", "b", "a"][round], members);
            }
            cluster.deliver();
            let id = cluster.released(members.len())[0].context.unwrap();
            assert!(id > 0 && used_ids.insert(id), "{id}");
        }
    }
    cluster.arrive(0, GroupOperation::Destruct, "a", &[0], None);
    assert_eq!(cluster.released(1)[0].context, None);
}

#[test]
fn groups_of_same_members_coexist_under_different_names() {
    let mut cluster = Cluster::new(2);
    cluster.construct(0, "a", &[0, 1]);
    cluster.construct(1, "b", &[0, 1]);
    cluster.arrive(1, GroupOperation::Destruct, "a", &[0, 1], None);
    cluster.deliver();
    assert!(cluster.answers.is_empty());
    cluster.construct(1, "a", &[0, 1]);
    cluster.deliver();
    let answers = cluster.answers();
    let done: Vec<_> = answers.keys().collect();
    assert_eq!(done, [&(0, "a"), &(1, "a")]);
    cluster.construct(0, "b", &[0, 1]);
    cluster.deliver();
    cluster.released(2);
}

#[test]
fn first_failure_in_node_order_reaches_all_nodes() {
    let mut cluster = Cluster::new(3);
    for (node, status) in [(2, -7), (1, -5), (0, 0)] {
        let (key, mut offer) = (key(GroupOperation::Construct, "g", &[0, 1, 2]), offer(node));
        offer.status = status;
        cluster.at(node, |engine, cx| {
            engine.arrive(key, placement(&[0, 1, 2]), offer, (node, "g"), cx)
        });
    }
    cluster.deliver();
    assert!(
        cluster
            .released(3)
            .iter()
            .all(|released| released.status == -5)
    );
}

#[test]
fn late_arrival_gets_timeout_and_next_attempt_is_new() {
    let mut cluster = Cluster::new(3);
    let members = &[0, 1, 2];
    cluster.arrive(0, GroupOperation::Construct, "g", members, Some(9 * SECOND));
    cluster.arrive(1, GroupOperation::Construct, "g", members, Some(2 * SECOND));
    cluster.deliver();
    assert_eq!(cluster.engines[0].next_deadline(), Some(Moment(2 * SECOND)));
    cluster.now = Moment(2 * SECOND);
    cluster.at(0, |engine, cx| engine.tick(cx));
    cluster.deliver();
    let missing = vec![NodeId(2)];
    let failure = GroupFailure::Timeout { missing, nodes: 3 };
    assert_eq!(
        cluster.failed(),
        BTreeMap::from([(0, failure.clone()), (1, failure.clone())])
    );
    // Those two try again before the third has come to the first attempt.
    cluster.construct(0, "g", members);
    cluster.construct(1, "g", members);
    cluster.deliver();
    cluster.construct(2, "g", members);
    assert_eq!(cluster.failed(), BTreeMap::from([(2, failure)]));
    cluster.deliver();
    assert!(
        cluster.answers.is_empty(),
        "its first call was not for the second attempt"
    );
    cluster.construct(2, "g", members);
    cluster.deliver();
    cluster.released(3);
    assert_eq!(cluster.engines[0].next_deadline(), None);
}

#[test]
fn arrival_that_crosses_timeout_belongs_to_failed_operation() {
    let mut cluster = Cluster::new(2);
    cluster.arrive(0, GroupOperation::Construct, "g", &[0, 1], Some(SECOND));
    cluster.construct(1, "g", &[0, 1]);
    cluster.now = Moment(SECOND);
    cluster.at(0, |engine, cx| engine.tick(cx));
    cluster.deliver();
    assert_eq!(cluster.failed().len(), 2);
    cluster.construct(0, "g", &[0, 1]);
    cluster.deliver();
    assert!(cluster.answers.is_empty());
    cluster.construct(1, "g", &[0, 1]);
    cluster.deliver();
    cluster.released(2);
}

#[test]
fn end_of_member_fails_operation_for_all_requesters() {
    for (late, dead) in [(false, 2), (true, 2), (false, 0), (true, 0)] {
        let mut cluster = Cluster::new(3);
        let failure = GroupFailure::MemberEnded { proc: proc(dead) };
        let others: Vec<u32> = (0..3).filter(|node| *node != dead).collect();
        if late {
            cluster.at(dead, |engine, cx| engine.rank_ended(proc(dead), cx));
        }
        for node in &others {
            cluster.construct(*node, "g", &[0, 1, 2]);
        }
        cluster.deliver();
        if !late {
            assert!(cluster.answers.is_empty());
            cluster.at(dead, |engine, cx| engine.rank_ended(proc(dead), cx));
            cluster.deliver();
        }
        let expected = others.iter().map(|node| (*node, failure.clone()));
        assert_eq!(
            cluster.failed(),
            expected.collect(),
            "late {late}, dead {dead}"
        );
        // Others are not concerned.
        for node in &others {
            cluster.construct(*node, "h", &others);
        }
        cluster.deliver();
        cluster.released(2);
    }
}

#[test]
fn end_of_member_after_arrival_of_its_node_fails_operation() {
    let mut cluster = Cluster::new(2);
    cluster.construct(1, "g", &[0, 1]);
    cluster.deliver();
    cluster.at(1, |engine, cx| engine.rank_ended(proc(1), cx));
    cluster.deliver();
    assert_eq!(cluster.failed().len(), 1);
    cluster.construct(0, "g", &[0, 1]);
    let failure = GroupFailure::MemberEnded { proc: proc(1) };
    assert_eq!(cluster.failed(), BTreeMap::from([(0, failure)]));
}

#[test]
fn lost_server_fails_pending_and_later_operations() {
    for dead in [0, 1] {
        let mut cluster = Cluster::new(2);
        let other = 1 - dead;
        cluster.construct(other, "g", &[0, 1]);
        cluster.deliver();
        cluster.at(dead, |engine, cx| engine.server_lost(cx));
        cluster.deliver();
        let failure = GroupFailure::ServerLost { node: NodeId(dead) };
        assert_eq!(cluster.failed(), BTreeMap::from([(other, failure.clone())]));
        cluster.construct(other, "h", &[0, 1]);
        cluster.deliver();
        assert_eq!(cluster.failed(), BTreeMap::from([(other, failure)]));
    }
}

#[test]
fn loss_of_node_fails_its_operations_with_any_hub() {
    for dead in [0, 2] {
        let mut cluster = Cluster::new(3);
        let others: Vec<u32> = (0..3).filter(|node| *node != dead).collect();
        cluster.construct(others[0], "g", &[0, 1, 2]);
        cluster.deliver();
        // The other one's arrival crosses the news.
        cluster.construct(others[1], "g", &[0, 1, 2]);
        for &node in &others {
            cluster.at(node, |engine, cx| engine.node_lost(NodeId(dead), cx));
        }
        cluster.sent.retain(|(_, to, _)| to.0 != dead);
        cluster.deliver();
        let failure = GroupFailure::NodeLost { node: NodeId(dead) };
        let failed = |c: &mut Cluster| c.failed().into_iter().collect::<Vec<_>>();
        let expected: Vec<_> = others.iter().map(|n| (*n, failure.clone())).collect();
        assert_eq!(failed(&mut cluster), expected, "{dead} was lost");
        for &node in &others {
            cluster.construct(node, "g", &[0, 1, 2]);
            assert_eq!(failed(&mut cluster), [(node, failure.clone())]);
            cluster.construct(node, "h", &others);
        }
        cluster.deliver();
        assert_eq!(cluster.released(2).len(), 2);
    }
}

#[test]
fn end_of_job_answers_every_requester_once() {
    let mut cluster = Cluster::new(3);
    cluster.construct(0, "g", &[0, 1, 2]);
    cluster.construct(1, "g", &[0, 1, 2]);
    cluster.construct(2, "h", &[1, 2]);
    cluster.deliver_one();
    for node in [1, 0, 2] {
        cluster.at(node, |engine, cx| engine.tear_down(cx));
    }
    cluster.deliver();
    assert_eq!(cluster.failed().len(), 3);
    cluster.construct(0, "late", &[0]);
    assert_eq!(cluster.failed().len(), 1);
}

#[test]
fn same_operation_twice_on_one_node_is_refused() {
    let mut cluster = Cluster::new(2);
    cluster.construct(1, "g", &[0, 1]);
    let (key, offer) = (key(GroupOperation::Construct, "g", &[0, 1]), offer(1));
    cluster.at(1, |engine, cx| {
        engine.arrive(key, placement(&[0, 1]), offer, (9, "g"), cx)
    });
    assert_eq!(cluster.failed(), BTreeMap::from([(9, GroupFailure::Busy)]));
    cluster.construct(0, "g", &[0, 1]);
    cluster.deliver();
    cluster.released(2);
}

/// Members call in any order, some attempts time out, messages are as late as they like: every
/// call is answered once, and an attempt that succeeds has one result everywhere.
#[test]
fn every_call_has_one_consistent_reply_in_any_order() {
    for seed in 1..=300u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let mut cluster = Cluster::new(4);
        let groups: [(&'static str, &[u32]); 3] =
            [("a", &[0, 1, 2, 3]), ("b", &[1, 3]), ("c", &[3, 1])];
        // Calls still to be made, per node and group; a call waits for the one before.
        let mut left: BTreeMap<(u32, usize), u32> = BTreeMap::new();
        for (group, (_, members)) in groups.iter().enumerate() {
            left.extend(members.iter().map(|node| ((*node, group), 5)));
        }
        let mut waiting = BTreeSet::new();
        let mut contexts: BTreeMap<u64, usize> = BTreeMap::new();
        let mut calls = 0;
        for step in 0.. {
            assert!(step < 100_000, "seed {seed}: {waiting:?} wait for ever");
            let ready: Vec<(u32, usize)> = left
                .iter()
                .filter(|(call, count)| **count > 0 && !waiting.contains(*call))
                .map(|(call, _)| *call)
                .collect();
            if ready.is_empty() && waiting.is_empty() {
                break;
            }
            match random(4) {
                0 if !ready.is_empty() => {
                    let (node, group) = ready[random(ready.len())];
                    let (name, members) = groups[group];
                    *left.get_mut(&(node, group)).unwrap() -= 1;
                    waiting.insert((node, group));
                    calls += 1;
                    let timeout = SECOND * (1 + random(3) as u32);
                    cluster.arrive(
                        node,
                        GroupOperation::Construct,
                        name,
                        members,
                        Some(timeout),
                    );
                }
                1 => {
                    cluster.now = cluster.now + SECOND / 4;
                    for node in 0..4 {
                        cluster.at(node, |engine, cx| engine.tick(cx));
                    }
                }
                _ => {
                    // Any message that is the oldest between its two nodes.
                    if !cluster.sent.is_empty() {
                        let pick = random(cluster.sent.len());
                        let (from, to, _) = &cluster.sent[pick];
                        let first = cluster
                            .sent
                            .iter()
                            .position(|(f, t, _)| (f, t) == (from, to));
                        let (from, to, message) = cluster.sent.remove(first.unwrap()).unwrap();
                        cluster.hand_in(from, to, message);
                    }
                }
            }
            for ((node, name), result) in std::mem::take(&mut cluster.answers) {
                let group = groups.iter().position(|(other, _)| *other == name).unwrap();
                assert!(
                    waiting.remove(&(node, group)),
                    "seed {seed}: a second answer"
                );
                calls -= 1;
                if let Ok(released) = result {
                    *contexts.entry(released.context.unwrap()).or_default() += 1;
                }
            }
        }
        assert_eq!(calls, 0, "seed {seed}");
        assert!(
            contexts.values().all(|count| *count == 2 || *count == 4),
            "seed {seed}: {contexts:?}"
        );
    }
}

#[test]
fn node_that_names_unknown_members_is_refused_alone() {
    let mut cluster = Cluster::new(2);
    for nodes in [vec![0, 1, 2], vec![0, 1, 1], vec![0], vec![]] {
        let placed = MemberNodes {
            nodes: nodes.iter().copied().map(NodeId).collect(),
            ..placement(&[0, 1])
        };
        let message = GroupMessage::Arrive {
            key: key(GroupOperation::Construct, "g", &[0, 1]),
            offer: offer(1),
        };
        let (placed, mut out) = ((!nodes.is_empty()).then_some(placed), Vec::new());
        let cx = &mut GroupContext::new(cluster.now, &mut out);
        cluster.engines[0].message(NodeId(1), message, placed, cx);
        let replies = out.iter().map(|output| match output {
            GroupAction::Send { to, message } => {
                (*to, matches!(message, GroupMessage::Fail { .. }))
            }
            GroupAction::SendAll(_) | GroupAction::Complete { .. } => panic!("nobody has called"),
        });
        assert_eq!(replies.collect::<Vec<_>>(), [(NodeId(1), true)]);
    }
}

#[test]
fn dead_member_is_left_out_where_participation_is_optional() {
    // Before anybody has called, while others wait, and after it has called itself.
    for moment in 0..3 {
        let mut cluster = Cluster::new(4);
        let members = [0, 1, 2, 3];
        let end = |cluster: &mut Cluster| {
            cluster.at(2, |engine, cx| engine.rank_ended(proc(2), cx));
            cluster.deliver();
        };
        let come = |cluster: &mut Cluster, node: u32| {
            let offer = GroupArrival {
                optional: true,
                ..offer(node)
            };
            let key = key(GroupOperation::Construct, "g", &members);
            cluster.at(node, |engine, cx| {
                engine.arrive(key, placement(&members), offer, (node, "g"), cx);
            });
            cluster.deliver();
        };
        if moment == 0 {
            end(&mut cluster);
        }
        come(&mut cluster, 3);
        come(&mut cluster, 0);
        if moment == 2 {
            come(&mut cluster, 2);
        }
        if moment > 0 {
            end(&mut cluster);
        }
        assert!(cluster.answers.is_empty(), "rank 1 is to come");
        come(&mut cluster, 1);
        let released = cluster.released(3 + usize::from(moment == 2));
        for group in released {
            assert!(group.members.iter().eq([proc(0), proc(1), proc(3)]));
        }
        // Nothing is left of it: the rest make the next group of that name.
        let rest = [0, 1, 3];
        for node in rest {
            cluster.construct(node, "g", &rest);
        }
        cluster.deliver();
        assert_eq!(cluster.released(3)[0].members.len(), 3);
    }
}

#[test]
fn last_waiter_completes_operation_that_lacks_only_dead() {
    let mut cluster = Cluster::new(3);
    for node in [0, 1] {
        let offer = GroupArrival {
            optional: node == 0,
            notify: node == 1,
            ..offer(node)
        };
        let key = key(GroupOperation::Construct, "g", &[0, 1, 2]);
        cluster.at(node, |engine, cx| {
            engine.arrive(key, placement(&[0, 1, 2]), offer, (node, "g"), cx);
        });
    }
    cluster.deliver();
    assert!(cluster.answers.is_empty());
    cluster.at(2, |engine, cx| engine.rank_ended(proc(2), cx));
    cluster.deliver();
    for group in cluster.released(2) {
        assert!(group.members.iter().eq([proc(0), proc(1)]));
        assert!(group.notify, "one node requested it");
    }
}

#[test]
fn ended_member_fails_group_when_its_node_arrives_last() {
    let mut cluster = Cluster::new(2);
    cluster.at(1, |engine, cx| engine.rank_ended(proc(1), cx));
    cluster.construct(0, "g", &[0, 1]);
    // The server of a node counts without its dead, so that it calls for those who are left.
    cluster.construct(1, "g", &[0, 1]);
    cluster.deliver();
    let ended = GroupFailure::MemberEnded { proc: proc(1) };
    assert_eq!(
        cluster.failed(),
        BTreeMap::from([(0, ended.clone()), (1, ended)])
    );
}

#[test]
fn departed_member_takes_no_part_in_destruct() {
    const ALL: [u32; 4] = [0, 1, 2, 3];
    // The hub and another; before anybody has called, and while the others wait.
    for (leaver, first) in [(0, true), (0, false), (2, true), (2, false)] {
        let mut cluster = Cluster::new(4);
        let leave = |cluster: &mut Cluster| {
            for node in ALL {
                let name = Arc::from(&b"g"[..]);
                cluster.at(node, |engine, cx| {
                    engine.member_left(&name, proc(leaver), cx);
                });
            }
            cluster.deliver();
        };
        if first {
            leave(&mut cluster);
        }
        let rest = ALL.into_iter().filter(|node| *node != leaver);
        for node in rest.clone() {
            assert!(cluster.answers.is_empty());
            cluster.arrive(node, GroupOperation::Destruct, "g", &ALL, None);
            cluster.deliver();
        }
        if !first {
            assert!(cluster.answers.is_empty());
            leave(&mut cluster);
        }
        let rest: Vec<_> = rest.map(proc).collect();
        for group in cluster.released(3) {
            assert!(group.members.iter().eq(rest.iter().cloned()));
        }
        // Made anew it has all its members again.
        for operation in [GroupOperation::Construct, GroupOperation::Destruct] {
            for node in ALL {
                assert!(cluster.answers.is_empty());
                cluster.arrive(node, operation, "g", &ALL, None);
                cluster.deliver();
            }
            assert_eq!(cluster.released(4)[0].members.len(), 4);
        }
    }
}

#[test]
fn reinvited_member_takes_part_in_destruct() {
    let mut cluster = Cluster::new(2);
    let name = Arc::from(&b"g"[..]);
    cluster.at(0, |engine, cx| {
        engine.member_left(&name, proc(1), cx);
        engine.invited(b"other", &[proc(1)]);
    });
    cluster.arrive(0, GroupOperation::Destruct, "g", &[0, 1], None);
    assert_eq!(cluster.released(1)[0].members.len(), 1);
    cluster.deliver();
    cluster.at(0, |engine, cx| {
        engine.member_left(&name, proc(1), cx);
        engine.invited(b"g", &[proc(1)]);
    });
    for node in [0, 1] {
        assert!(cluster.answers.is_empty());
        cluster.arrive(node, GroupOperation::Destruct, "g", &[0, 1], None);
        cluster.deliver();
    }
    assert_eq!(cluster.released(2)[0].members.len(), 2);
}

#[test]
fn departed_members_may_destruct_group_together() {
    let mut cluster = Cluster::new(2);
    for member in [0, 1] {
        let name = Arc::from(&b"g"[..]);
        cluster.at(0, |engine, cx| engine.member_left(&name, proc(member), cx));
    }
    for node in [1, 0] {
        assert!(cluster.answers.is_empty());
        cluster.arrive(node, GroupOperation::Destruct, "g", &[0, 1], None);
        cluster.deliver();
    }
    assert_eq!(cluster.released(2)[0].members.len(), 2);
}
