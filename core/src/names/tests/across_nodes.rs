//! The engines of several nodes, and the store they share with other launches.

use std::collections::VecDeque;

use super::*;
use crate::name_server::message::{NameServerCommand, NameServerReport};
use crate::name_server::{ClientId, NameServer};
use crate::names::engine::{NameAction, NameContext, NameEngine, NameMessage};
use crate::names::name_server_requests::NameServerReply;

/// A job of nodes with two ranks each; its messages are delivered when the test says so.
struct Job {
    engines: Vec<NameEngine<u32>>,
    messages: VecDeque<(NodeId, NodeId, NameMessage)>,
    shared: NameServer,
    /// Replies of the name server that are not delivered yet.
    replies: VecDeque<NameServerReply>,
    answers: Vec<(u32, NameReply)>,
    now: Moment,
    last: u32,
}

impl Job {
    fn new(nodes: u32) -> Self {
        let engine = |node| NameEngine::new(NodeId(node), NodeId(0), nodes);
        let mut shared = NameServer::new(USER);
        shared.joined(ClientId(0), &mut Vec::new());
        Self {
            shared,
            replies: VecDeque::new(),
            engines: (0..nodes).map(engine).collect(),
            messages: VecDeque::new(),
            answers: Vec::new(),
            now: Moment::default(),
            last: 0,
        }
    }

    fn on(
        &mut self,
        node: NodeId,
        what: impl FnOnce(&mut NameEngine<u32>, &mut NameContext<'_, u32>),
    ) {
        self.on_at(node, self.now, what);
    }

    fn on_at(
        &mut self,
        node: NodeId,
        now: Moment,
        what: impl FnOnce(&mut NameEngine<u32>, &mut NameContext<'_, u32>),
    ) {
        let mut out = Vec::new();
        let cx = &mut NameContext::new(now, &mut out);
        what(&mut self.engines[node.index()], cx);
        for output in out {
            match output {
                NameAction::Send { to, message } => {
                    assert_ne!(to, node, "{message:?}");
                    self.messages.push_back((node, to, message));
                }
                NameAction::Shared(message) => {
                    assert_eq!(node, NodeId(0));
                    let message = NameServerCommand::Store(message);
                    let now = self.now;
                    self.at_shared(|shared, out| shared.on_command(ClientId(0), message, now, out));
                }
                NameAction::Complete { ticket, answer } => self.answers.push((ticket, answer)),
            }
        }
    }

    fn at_shared(
        &mut self,
        what: impl FnOnce(&mut NameServer, &mut Vec<(ClientId, NameServerReport)>),
    ) {
        let mut out = Vec::new();
        what(&mut self.shared, &mut out);
        for (_, message) in out {
            let NameServerReport::Store(message) = message else {
                panic!("{message:?}");
            };
            self.replies.push_back(message);
        }
    }

    fn ask(&mut self, rank: u32, request: NameRequest) -> u32 {
        self.last += 1;
        let (who, ticket) = (who(rank), self.last);
        self.on(who.node, |engine, cx| {
            engine.start_request(who, request, ticket, cx);
        });
        ticket
    }

    fn end(&mut self, rank: u32) {
        let who = who(rank);
        self.on(who.node, |engine, cx| {
            engine.rank_ended(who.proc, who.app, cx);
        });
    }

    fn deliver(&mut self) {
        loop {
            if let Some((from, to, message)) = self.messages.pop_front() {
                self.on(to, |engine, cx| engine.message(from, message, cx));
            } else if let Some(message) = self.replies.pop_front() {
                self.on(NodeId(0), |engine, cx| {
                    engine.on_name_server_reply(message, cx);
                });
            } else {
                return;
            }
        }
    }

    /// Makes a request and waits for the one answer to it.
    #[track_caller]
    fn answer(&mut self, rank: u32, request: NameRequest) -> NameReply {
        let ticket = self.ask(rank, request);
        self.deliver();
        let answers = std::mem::take(&mut self.answers);
        let [(answered, answer)] = <[_; 1]>::try_from(answers).unwrap();
        assert_eq!(answered, ticket);
        answer
    }
}

#[test]
fn ranks_of_all_nodes_share_one_store() {
    let mut job = Job::new(3);
    for (publisher, reader) in [(0, 5), (5, 0), (2, 3), (4, 2)] {
        let waiting = job.ask(reader, wait_for(0, &["a"]));
        job.deliver();
        let publishing = job.ask(publisher, once("a"));
        job.deliver();
        let mut answers = std::mem::take(&mut job.answers);
        answers.sort_by_key(|(ticket, _)| *ticket);
        assert!(
            matches!(&answers[..], [(first, NameReply::Found(_)), (second, NameReply::Done)]
            if (*first, *second) == (waiting, publishing))
        );
    }
}

#[test]
fn loss_of_head_node_answers_pending_and_later_requests() {
    let mut job = Job::new(3);
    let waiting = job.ask(3, wait_for(0, &["a"]));
    job.deliver();
    job.on(NodeId(1), |engine, cx| engine.node_lost(NodeId(0), [], cx));
    let lost = NameReply::Refused(NameRefusal::HeadLost);
    assert_eq!(job.answers, [(waiting, lost.clone())]);
    job.answers.clear();
    assert_eq!(job.answer(2, lookup(&["a"])), lost);
    assert!(job.messages.is_empty());
}

#[test]
fn loss_of_node_removes_values_of_its_ranks() {
    let mut job = Job::new(3);
    let publish = |persistence, key| publish_as(NameRange::Session, persistence, &[key]);
    for (persistence, key) in [(Persistence::Proc, "a"), (Persistence::Session, "b")] {
        assert_eq!(job.answer(4, publish(persistence, key)), NameReply::Done);
    }
    job.ask(5, wait_for(0, &["never"]));
    job.deliver();
    // What it said last is still on its way.
    job.ask(5, publish(Persistence::Proc, "c"));
    let ranks = [4, 5].map(|rank| (who(rank).proc, who(rank).app));
    job.on(NodeId(0), |engine, cx| {
        engine.node_lost(NodeId(2), ranks, cx)
    });
    job.deliver();
    assert_eq!(job.answers, []);
    for (key, stays) in [("a", false), ("b", true), ("c", false)] {
        let found = matches!(job.answer(0, lookup(&[key])), NameReply::Found(_));
        assert_eq!(found, stays, "{key}");
    }
}

#[test]
fn node_of_requester_is_origin_of_its_message() {
    let mut job = Job::new(2);
    let local = publish_as(NameRange::Local, Persistence::Session, &["a"]);
    assert_eq!(job.answer(2, local), NameReply::Done);
    let forged = NameRequester {
        node: NodeId(0),
        ..who(3)
    };
    job.on(NodeId(1), |engine, cx| {
        engine.start_request(forged, lookup(&["a"]), 77, cx);
    });
    job.deliver();
    assert!(matches!(&job.answers[..], [(77, NameReply::Found(_))]));
    job.answers.clear();
    assert_eq!(
        job.answer(0, lookup(&["a"])),
        refused(NameRefusal::NotFound)
    );
}

#[test]
fn ended_rank_is_answered_once_and_not_served() {
    for rank in [1, 3] {
        let mut job = Job::new(2);
        let lives = publish_as(NameRange::Session, Persistence::Proc, &["mine"]);
        assert_eq!(job.answer(rank, lives), NameReply::Done);
        let waiting = job.ask(rank, wait_for(0, &["a"]));
        job.deliver();
        // One that is on its way when the rank ends.
        let underway = job.ask(rank, wait_for(0, &["a"]));
        job.end(rank);
        let gone = || refused(NameRefusal::RequesterEnded);
        assert_eq!(
            std::mem::take(&mut job.answers),
            [(waiting, gone()), (underway, gone())]
        );
        job.deliver();
        assert_eq!(job.answers, []);
        assert_eq!(job.answer(0, once("a")), NameReply::Done);
        assert_eq!(names(job.answer(0, lookup(&["a"]))), ["a"]);
        assert_eq!(
            job.answer(0, lookup(&["mine"])),
            refused(NameRefusal::NotFound)
        );
        // What it had written before its end, and comes late.
        assert_eq!(job.answer(rank, publish(&["late"])), gone());
    }
}

#[test]
fn application_lifetime_ends_with_last_rank_on_any_node() {
    // Four ranks; that of node 1 with the value is neither the first nor the last to end, and a
    // node that never asked for anything has some that ended before and after it was published.
    for order in [[0, 2, 1, 3], [3, 2, 0, 1], [1, 0, 3, 2]] {
        let mut job = Job::new(2);
        let [first, publisher, rest @ ..] = order;
        job.end(first);
        let lives = publish_as(NameRange::Session, Persistence::App, &["a"]);
        assert_eq!(job.answer(publisher, lives), NameReply::Done);
        // A process of another application looks it up.
        let see = |job: &mut Job| {
            let mut other = who_of("job", 9);
            other.node = NodeId(0);
            job.on(NodeId(0), |engine, cx| {
                engine.start_request(other, lookup(&["a"]), 99, cx);
            });
            job.deliver();
            let answers = std::mem::take(&mut job.answers);
            matches!(&answers[..], [(99, NameReply::Found(_))])
        };
        for rank in [&[publisher], &rest[..]].concat() {
            assert!(see(&mut job), "{order:?}");
            job.end(rank);
            job.deliver();
        }
        assert!(!see(&mut job), "{order:?}");
    }
}

#[test]
fn job_without_publish_sends_no_messages() {
    let mut job = Job::new(2);
    (0..4).for_each(|rank| job.end(rank));
    for node in [0, 1] {
        job.on(NodeId(node), |engine, cx| {
            engine.tear_down(cx);
        });
    }
    assert!(job.messages.is_empty() && job.answers.is_empty());
    assert_eq!(job.engines[0].next_deadline(), None);
}

#[test]
fn end_of_job_answers_every_requester_once() {
    for head_first in [true, false] {
        let mut job = Job::new(2);
        let waiting = [0, 3].map(|rank| job.ask(rank, wait_for(0, &["a"])));
        job.deliver();
        let underway = job.ask(2, lookup(&["b"]));
        let order = if head_first { [0, 1] } else { [1, 0] };
        for node in order {
            job.on(NodeId(node), |engine, cx| {
                engine.tear_down(cx);
            });
            job.deliver();
        }
        let late = job.ask(1, publish(&["b"]));
        job.deliver();
        let mut tickets: Vec<u32> = job.answers.iter().map(|(ticket, _)| *ticket).collect();
        tickets.sort_unstable();
        assert_eq!(tickets, [waiting[0], waiting[1], underway, late]);
        let torn_down = |(_, answer): &(u32, NameReply)| *answer == refused(NameRefusal::TornDown);
        assert!(job.answers.iter().all(torn_down), "{:?}", job.answers);
    }
}

#[test]
fn timeout_is_kept_at_node_with_values() {
    let mut job = Job::new(2);
    let wait = LookupWait {
        at_least: 0,
        timeout: Some(Duration::from_secs(5)),
    };
    let near = job.ask(2, lookup_in(NameRange::Namespace, &["a"], Some(wait)));
    job.deliver();
    let due = Moment(Duration::from_secs(5));
    assert_eq!(job.engines[0].next_deadline(), Some(due));
    assert_eq!(job.engines[1].next_deadline(), None);
    job.on_at(NodeId(0), due, |engine, cx| engine.tick(cx));
    job.deliver();
    assert_eq!(job.answers, [(near, refused(NameRefusal::Timeout))]);
    job.answers.clear();
    let waiting = job.ask(3, lookup_in(NameRange::Session, &["a"], Some(wait)));
    job.deliver();
    let due = Moment(Duration::from_secs(5));
    assert_eq!(job.shared.next_deadline(), Some(due));
    assert_eq!(job.engines[0].next_deadline(), None);
    job.at_shared(|shared, out| shared.tick(due, out));
    job.deliver();
    assert_eq!(job.answers, [(waiting, refused(NameRefusal::Timeout))]);
}

#[test]
fn messages_to_or_from_wrong_node_are_refused() {
    let mut job = Job::new(3);
    let waiting = job.ask(2, wait_for(0, &["a"]));
    let (_, _, request) = job.messages[0].clone();
    let NameMessage::Ask { serial, .. } = request else {
        panic!("{request:?}");
    };
    let answer = || NameMessage::Answer {
        serial,
        answer: NameReply::Done,
    };
    // Not from the head node, and not the head node.
    for (from, to, message) in [(2, 1, answer()), (0, 1, request), (1, 0, answer())] {
        job.on(NodeId(to), |engine, cx| {
            engine.message(NodeId(from), message, cx);
        });
    }
    assert_eq!(job.answers, []);
    job.deliver();
    job.ask(0, publish(&["a"]));
    job.deliver();
    let answered: Vec<u32> = job.answers.iter().map(|(ticket, _)| *ticket).collect();
    assert!(answered.contains(&waiting) && answered.len() == 2);
}

#[test]
fn names_stay_in_launch_until_other_launches_may_connect() {
    let mut job = Job::new(2);
    let near = |name| publish_as(NameRange::Namespace, Persistence::Session, &[name]);
    assert_eq!(job.answer(0, near("a")), NameReply::Done);
    let once = publish_as(NameRange::Namespace, Persistence::FirstRead, &["b"]);
    assert_eq!(job.answer(3, once), NameReply::Done);
    let wait = LookupWait {
        at_least: 0,
        timeout: Some(Duration::from_secs(5)),
    };
    job.now = Moment(Duration::from_secs(1));
    let waiting = job.ask(
        2,
        lookup_in(NameRange::Namespace, &["a", "late"], Some(wait)),
    );
    job.deliver();
    assert!(job.shared.is_empty() || job.shared.next_deadline().is_none());
    job.now = Moment(Duration::from_secs(3));
    // From here on everything is asked there, and what was here is there too.
    let unknown = job.answer(1, lookup(&["c"]));
    assert_eq!(unknown, refused(NameRefusal::NotFound));
    assert_eq!(
        job.shared.next_deadline(),
        Some(Moment(Duration::from_secs(6)))
    );
    assert_eq!(names(job.answer(1, lookup(&["b"]))), ["b"]);
    assert_eq!(
        job.answer(1, lookup(&["b"])),
        refused(NameRefusal::NotFound)
    );
    job.ask(0, near("late"));
    job.deliver();
    let served = job.answers.iter().find(|(ticket, _)| *ticket == waiting);
    assert_eq!(names(served.unwrap().1.clone()), ["a", "late"]);
}

#[test]
fn first_read_value_of_departed_reader_goes_to_another() {
    for range in [NameRange::Namespace, NameRange::Session] {
        for (reader, other) in [(1, 3), (3, 1)] {
            let mut job = Job::new(2);
            let lookup = || {
                let wait = LookupWait {
                    at_least: 0,
                    timeout: None,
                };
                lookup_in(range.clone(), &["a"], Some(wait))
            };
            job.ask(reader, lookup());
            job.deliver();
            let waiting = job.ask(other, lookup());
            job.deliver();
            let node = who(reader).node;
            // It is on its way when its reader ends, or is served and then never heard of again.
            job.ask(0, publish_as(range.clone(), Persistence::FirstRead, &["a"]));
            if node == NodeId(1) {
                job.end(reader);
            }
            job.deliver();
            if node == NodeId(0) {
                // What the head node's own rank got is there: it was answered before it ended.
                continue;
            }
            let served = job.answers.iter().find(|(ticket, _)| *ticket == waiting);
            let served = served.map(|(_, answer)| names(answer.clone()));
            assert_eq!(served, Some(vec!["a".to_owned()]), "{range:?}");
        }
    }
}

#[test]
fn loss_of_node_gives_its_undelivered_values_to_others() {
    for range in [NameRange::Namespace, NameRange::Session] {
        let mut job = Job::new(2);
        let publication = publish_as(range.clone(), Persistence::FirstRead, &["a"]);
        assert_eq!(job.answer(0, publication), NameReply::Done);
        let find = || lookup_in(range.clone(), &["a"], None);
        job.ask(3, find());
        // The answer leaves the head node, and its receipt never comes.
        while let Some(at) = job.messages.iter().position(|(_, to, _)| *to == NodeId(0)) {
            let (from, to, message) = job.messages.remove(at).unwrap();
            job.on(to, |engine, cx| engine.message(from, message, cx));
            while let Some(message) = job.replies.pop_front() {
                job.on(to, |engine, cx| engine.on_name_server_reply(message, cx));
            }
        }
        job.messages.clear();
        assert_eq!(job.answer(0, find()), refused(NameRefusal::NotFound));
        let ranks = [2, 3].map(|rank| (who(rank).proc, who(rank).app));
        job.on(NodeId(0), |engine, cx| {
            engine.node_lost(NodeId(1), ranks, cx);
        });
        assert_eq!(names(job.answer(0, find())), ["a"], "{range:?}");
    }
}

#[test]
fn loss_of_name_server_answers_waiters_and_next_request_retries() {
    let mut job = Job::new(2);
    assert_eq!(job.answer(0, publish(&["a"])), NameReply::Done);
    let waiting = [0, 3].map(|rank| job.ask(rank, wait_for(0, &["b"])));
    job.deliver();
    job.shared = NameServer::new(USER);
    job.shared.joined(ClientId(0), &mut Vec::new());
    job.on(NodeId(0), |engine, cx| {
        engine.shared_lost(cx);
    });
    job.deliver();
    let lost = refused(NameRefusal::SharedLost);
    assert_eq!(
        std::mem::take(&mut job.answers),
        waiting.map(|ticket| (ticket, lost.clone()))
    );
    assert_eq!(
        job.answer(2, lookup(&["a"])),
        refused(NameRefusal::NotFound)
    );
    assert_eq!(job.answer(2, publish(&["a"])), NameReply::Done);
    assert_eq!(names(job.answer(0, lookup(&["a"]))), ["a"]);
}

#[test]
fn equal_appnum_of_other_job_does_not_end_app_lifetime() {
    let mut job = Job::new(1);
    let lives = publish_as(NameRange::Session, Persistence::App, &["a"]);
    assert_eq!(job.answer(0, lives), NameReply::Done);
    for rank in 0..4 {
        let spawned = who_of("spawned", rank);
        job.on(NodeId(0), |engine, cx| {
            engine.rank_ended(spawned.proc, spawned.app, cx);
        });
    }
    assert_eq!(names(job.answer(1, lookup(&["a"]))), ["a"]);
}
