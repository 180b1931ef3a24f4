use super::*;

fn nspace(name: &str) -> Nspace {
    Nspace::new(name).unwrap()
}

fn proc(rank: u32) -> Proc {
    Proc::new(nspace("job"), Rank(rank))
}

fn data(text: &str) -> Arc<[u8]> {
    Arc::from(text.as_bytes())
}

/// Node n hosts rank n of "job"; messages are held until delivered.
struct Cluster {
    engines: Vec<ModexEngine<&'static str>>,
    sent: Vec<(NodeId, NodeId, ModexMessage)>,
    host_requests: Vec<(u32, Proc)>,
    answers: Vec<(&'static str, ModexResult)>,
    now: Moment,
}

impl Cluster {
    fn new(nodes: u32) -> Self {
        let mut cluster = Self {
            engines: (0..nodes)
                .map(|n| ModexEngine::new(NodeId(n), None))
                .collect(),
            sent: Vec::new(),
            host_requests: Vec::new(),
            answers: Vec::new(),
            now: Moment::default(),
        };
        for node in 0..nodes {
            let local = vec![Rank(node)];
            let nspace = nspace("job");
            cluster.input(node, ModexEvent::NspaceAdded { nspace, local });
        }
        cluster
    }

    fn input(&mut self, at: u32, input: ModexEvent<&'static str>) {
        let mut out = Vec::new();
        self.engines[at as usize].handle(input, self.now, &mut out);
        for output in out {
            match output {
                ModexAction::Send { to, message } => self.sent.push((NodeId(at), to, message)),
                ModexAction::AskHost { proc } => self.host_requests.push((at, proc)),
                ModexAction::Complete { ticket, result } => self.answers.push((ticket, result)),
            }
        }
    }

    /// `at` wants rank `rank`, which lives on the node of the same number.
    fn ask(&mut self, at: u32, rank: u32, ticket: &'static str) {
        self.ask_within(at, rank, None, ticket);
    }

    fn ask_within(&mut self, at: u32, rank: u32, timeout: Option<u64>, ticket: &'static str) {
        let input = ModexEvent::Ask {
            proc: proc(rank),
            owner: Some(NodeId(rank)),
            timeout: timeout.map(Duration::from_secs),
            key: None,
            ticket,
        };
        self.input(at, input);
    }

    fn ask_for_key(&mut self, at: u32, rank: u32, timeout: Option<u64>, ticket: &'static str) {
        let input = ModexEvent::Ask {
            proc: proc(rank),
            owner: Some(NodeId(rank)),
            timeout: timeout.map(Duration::from_secs),
            key: Some(Box::from(*b"key-2")),
            ticket,
        };
        self.input(at, input);
    }

    fn host_answers(&mut self, rank: u32, result: Result<&str, i32>) {
        let input = ModexEvent::SidecarAnswered {
            proc: proc(rank),
            result: result.map(data),
        };
        self.input(rank, input);
    }

    fn deliver(&mut self) {
        while !self.sent.is_empty() {
            let (from, to, message) = self.sent.remove(0);
            self.input(to.0, ModexEvent::Message { from, message });
        }
    }

    fn advance(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
        for at in 0..self.engines.len() as u32 {
            self.input(at, ModexEvent::Tick);
        }
    }

    fn lose(&mut self, lost: u32, observer: u32) {
        let input = ModexEvent::PeerLost {
            node: NodeId(lost),
            reason: Arc::from("stream closed"),
        };
        self.input(observer, input);
    }

    fn answered(&mut self) -> Vec<(&'static str, ModexResult)> {
        std::mem::take(&mut self.answers)
    }

    fn assert_idle(&self) {
        assert!(self.engines.iter().all(ModexEngine::is_idle));
        assert!(self.engines.iter().all(|e| e.next_deadline().is_none()));
    }
}

#[test]
fn rank_is_requested_once_and_every_requester_answered_once() {
    let mut c = Cluster::new(3);
    c.ask(0, 2, "a");
    c.ask(0, 2, "b");
    c.ask(1, 2, "c");
    assert_eq!(c.sent.len(), 2, "one request per asking node");
    c.deliver();
    assert_eq!(c.host_requests, [(2, proc(2))]);
    assert_eq!(c.answered(), []);
    c.host_answers(2, Ok("card"));
    c.deliver();
    let card = Ok(data("card"));
    assert_eq!(
        c.answered(),
        [("a", card.clone()), ("b", card.clone()), ("c", card)]
    );
    c.host_answers(2, Ok("again"));
    c.deliver();
    assert_eq!(c.answered(), []);
    c.assert_idle();
}

#[test]
fn later_request_queries_host_again() {
    let mut c = Cluster::new(2);
    for (round, ticket) in [(1, "a"), (2, "b")] {
        c.ask(0, 1, ticket);
        c.deliver();
        assert_eq!(c.host_requests.len(), round);
        c.host_answers(1, Ok("x"));
        c.deliver();
        assert_eq!(c.answered(), [(ticket, Ok(data("x")))]);
    }
}

#[test]
fn local_rank_is_served_without_messages() {
    let mut c = Cluster::new(1);
    c.ask(0, 0, "a");
    assert!(c.sent.is_empty());
    c.host_answers(0, Ok("x"));
    assert_eq!(c.answered(), [("a", Ok(data("x")))]);
    c.assert_idle();
}

#[test]
fn unknown_ranks_and_jobs_are_not_found_without_asking_host() {
    let mut c = Cluster::new(2);
    let requests = [
        (proc(7), Some(NodeId(1)), "rank"),
        (Proc::new(nspace("none"), Rank(0)), Some(NodeId(1)), "job"),
        (proc(9), None, "owner"),
    ];
    for (proc, owner, ticket) in requests {
        let input = ModexEvent::Ask {
            proc,
            owner,
            timeout: None,
            key: None,
            ticket,
        };
        c.input(0, input);
        c.deliver();
        assert_eq!(c.answered(), [(ticket, Err(ModexFailure::NotFound))]);
    }
    assert!(c.host_requests.is_empty());
    c.assert_idle();
}

#[test]
fn each_requester_has_own_deadline() {
    let mut c = Cluster::new(2);
    c.ask_within(0, 1, Some(10), "long");
    c.advance(1);
    c.ask_within(0, 1, Some(2), "short");
    c.deliver();
    assert_eq!(
        c.engines[0].next_deadline(),
        Some(Moment(Duration::from_secs(3)))
    );
    c.advance(2);
    let failure = ModexFailure::Timeout {
        owner: NodeId(1),
        waited: Duration::from_secs(2),
    };
    assert_eq!(c.answered(), [("short", Err(failure))]);
    c.host_answers(1, Ok("x"));
    c.deliver();
    assert_eq!(c.answered(), [("long", Ok(data("x")))]);
    c.assert_idle();
}

#[test]
fn reply_to_abandoned_request_does_not_answer_later_one() {
    let mut c = Cluster::new(2);
    c.ask_within(0, 1, Some(1), "old");
    c.deliver();
    c.host_answers(1, Ok("old data"));
    let late = std::mem::take(&mut c.sent);
    c.advance(1);
    c.ask(0, 1, "new");
    c.answered();
    c.sent.splice(..0, late);
    c.deliver();
    assert_eq!(c.answered(), []);
    c.host_answers(1, Ok("new data"));
    c.deliver();
    assert_eq!(c.answered(), [("new", Ok(data("new data")))]);
}

#[test]
fn repeated_request_joins_pending_request_of_host() {
    let mut c = Cluster::new(2);
    c.ask_within(0, 1, Some(1), "old");
    c.deliver();
    c.advance(1);
    c.ask(0, 1, "new");
    c.deliver();
    c.answered();
    assert_eq!(c.host_requests.len(), 1);
    c.host_answers(1, Ok("x"));
    c.deliver();
    assert_eq!(c.answered(), [("new", Ok(data("x")))]);
    c.assert_idle();
}

#[test]
fn end_of_rank_answers_pending_and_later_requests() {
    let mut c = Cluster::new(2);
    c.ask(0, 1, "waits");
    c.deliver();
    c.input(1, ModexEvent::RankGone { proc: proc(1) });
    c.ask(1, 1, "local");
    c.deliver();
    c.ask(0, 1, "later");
    c.deliver();
    c.host_answers(1, Ok("too late"));
    let tickets: Vec<_> = c.answered();
    let gone = Err(ModexFailure::RankGone);
    assert_eq!(
        tickets,
        [
            ("local", gone.clone()),
            ("waits", gone.clone()),
            ("later", gone)
        ]
    );
    assert_eq!(c.host_requests.len(), 1);
    c.assert_idle();
}

#[test]
fn removal_of_job_answers_requests_for_its_ranks() {
    let mut c = Cluster::new(2);
    c.ask(0, 1, "a");
    c.deliver();
    let nspace = nspace("job");
    c.input(1, ModexEvent::NspaceRemoved { nspace });
    c.deliver();
    assert_eq!(c.answered(), [("a", Err(ModexFailure::NotFound))]);
    c.assert_idle();
}

#[test]
fn loss_of_owner_fails_its_pending_and_later_requests_only() {
    let mut c = Cluster::new(3);
    c.ask(0, 1, "one");
    c.ask(0, 2, "two");
    c.lose(1, 0);
    c.ask(0, 1, "later");
    let lost = Err(ModexFailure::PeerLost {
        node: NodeId(1),
        reason: Arc::from("stream closed"),
    });
    assert_eq!(c.answered(), [("one", lost.clone()), ("later", lost)]);
    assert!(!c.engines[0].is_idle());
}

#[test]
fn loss_of_requesting_node_drops_only_its_request() {
    let mut c = Cluster::new(3);
    c.ask(0, 2, "lost");
    c.ask(1, 2, "stays");
    c.deliver();
    c.lose(0, 2);
    c.host_answers(2, Ok("x"));
    assert!(c.sent.iter().all(|(_, to, _)| *to == NodeId(1)));
    c.deliver();
    assert_eq!(c.answered(), [("stays", Ok(data("x")))]);
}

#[test]
fn host_error_and_oversized_data_fail_request() {
    let mut c = Cluster::new(2);
    c.ask(0, 1, "error");
    c.deliver();
    c.host_answers(1, Err(-46));
    c.deliver();
    assert_eq!(c.answered(), [("error", Err(ModexFailure::Host(-46)))]);
    c.ask(0, 1, "big");
    c.deliver();
    let input = ModexEvent::SidecarAnswered {
        proc: proc(1),
        result: Ok(Arc::from(vec![0; MODEX_DATA_MAX + 1])),
    };
    c.input(1, input);
    c.deliver();
    let too_large = ModexFailure::TooLarge(MODEX_DATA_MAX + 1);
    assert_eq!(c.answered(), [("big", Err(too_large))]);
}

#[test]
fn replies_of_wrong_node_are_ignored() {
    let mut c = Cluster::new(3);
    c.ask(0, 1, "a");
    let message = ModexMessage::Reply {
        serial: 0,
        proc: proc(1),
        result: Ok(data("forged")),
    };
    let from = NodeId(2);
    c.input(0, ModexEvent::Message { from, message });
    assert_eq!(c.answered(), []);
}

#[test]
fn teardown_answers_local_remote_and_later_requests() {
    let mut c = Cluster::new(3);
    c.ask(0, 1, "remote");
    c.ask(1, 2, "here");
    c.deliver();
    c.input(1, ModexEvent::Teardown);
    c.ask(1, 2, "later");
    c.deliver();
    let mut answers = c.answered();
    answers.sort_by_key(|(ticket, _)| *ticket);
    let down = Err(ModexFailure::TornDown { node: NodeId(1) });
    assert_eq!(
        answers,
        [
            ("here", down.clone()),
            ("later", down.clone()),
            ("remote", down)
        ]
    );
    c.ask(0, 1, "late");
    c.deliver();
    assert_eq!(
        c.answered(),
        [("late", Err(ModexFailure::TornDown { node: NodeId(1) }))]
    );
    c.host_answers(2, Ok("x"));
    c.deliver();
    c.assert_idle();
}

#[test]
fn request_that_outlives_its_node_is_dropped() {
    let mut c = Cluster::new(2);
    c.ask(0, 1, "lost");
    c.lose(0, 1);
    c.deliver();
    assert!(c.host_requests.is_empty());
    assert!(c.engines[1].is_idle());
}

#[test]
fn connected_rank_without_commit_is_given_up_by_its_node() {
    let limit = Duration::from_secs(60);
    let mut c = Cluster::new(3);
    c.engines[1] = ModexEngine::new(NodeId(1), Some(limit));
    let (local, nspace) = (vec![Rank(1)], nspace("job"));
    c.input(1, ModexEvent::NspaceAdded { nspace, local });
    c.ask(0, 1, "a");
    c.deliver();
    // It may do what it likes before it connects.
    assert_eq!(c.engines[1].next_deadline(), None);
    c.now = Moment(10 * limit);
    c.input(1, ModexEvent::RankConnected { proc: proc(1) });
    c.ask(2, 1, "b");
    c.deliver();
    let pass_a_minute = |c: &mut Cluster| {
        let end = c.now + limit;
        while let Some(next) = c.engines[1].next_deadline().filter(|next| *next <= end) {
            c.now = next;
            c.input(1, ModexEvent::Tick);
        }
        c.deliver();
    };
    pass_a_minute(&mut c);
    let late = Err(ModexFailure::Timeout {
        owner: NodeId(1),
        waited: limit,
    });
    c.answers.sort_by_key(|(ticket, _)| *ticket);
    assert_eq!(c.answers, [("a", late.clone()), ("b", late.clone())]);
    c.answers.clear();
    // The host still has its question: who asks again waits for the same answer.
    c.ask(0, 1, "c");
    c.deliver();
    c.host_answers(1, Ok("at last"));
    c.deliver();
    assert_eq!(c.answers, [("c", Ok(data("at last")))]);
    assert_eq!(c.host_requests.len(), 1);
    assert_eq!(c.engines[1].next_deadline(), None);
    assert!(c.engines[1].is_idle());
}

#[test]
fn data_without_required_key_is_requested_again() {
    let mut c = Cluster::new(2);
    c.ask_for_key(0, 1, None, "a");
    c.deliver();
    c.ask(0, 1, "any");
    c.host_answers(1, Ok("key-1\0x key-22\0y"));
    c.deliver();
    assert_eq!(c.answered(), [("any", Ok(data("key-1\0x key-22\0y")))]);
    assert!(c.engines[0].next_deadline().is_some());
    c.advance(1);
    c.deliver();
    assert_eq!(c.host_requests, [(1, proc(1)), (1, proc(1))]);
    c.host_answers(1, Ok("key-1\0x key-2\0y"));
    c.deliver();
    assert_eq!(c.answered(), [("a", Ok(data("key-1\0x key-2\0y")))]);
    c.assert_idle();
}

#[test]
fn missing_key_is_awaited_two_seconds_or_until_timeout() {
    let mut c = Cluster::new(2);
    c.ask_for_key(0, 1, None, "default");
    c.ask_for_key(0, 1, Some(5), "limited");
    c.deliver();
    c.host_answers(1, Ok("x"));
    c.deliver();
    for second in 1..=5 {
        assert_eq!(c.answered(), [], "second {second}");
        c.advance(1);
        c.deliver();
        c.host_answers(1, Ok("x"));
        c.deliver();
        if second == 2 {
            assert_eq!(c.answered(), [("default", Ok(data("x")))]);
        }
    }
    let (owner, waited) = (NodeId(1), Duration::from_secs(5));
    let timeout = ModexFailure::Timeout { owner, waited };
    assert_eq!(c.answered(), [("limited", Err(timeout))]);
    c.deliver();
    c.assert_idle();
}

#[test]
fn request_during_pause_is_sent_at_once() {
    let mut c = Cluster::new(2);
    c.ask_for_key(0, 1, None, "a");
    c.deliver();
    c.host_answers(1, Ok("x"));
    c.deliver();
    c.ask(0, 1, "b");
    c.deliver();
    c.host_answers(1, Ok("key-2\0"));
    c.deliver();
    let found = Ok(data("key-2\0"));
    assert_eq!(c.answered(), [("a", found.clone()), ("b", found)]);
    c.assert_idle();
}
