use super::*;
use crate::job::ids::{AppNum, Nspace, Rank};
use crate::job::proc::Proc;
use crate::names::request::{
    AcceptedData, LookupWait, NameLookup, NameRange, NameRefusal, NameRequest, Persistence,
    PublishedData, UnpublishScope, ValueLimits,
};

/// Launches that are connected, each with one job.
struct Meeting {
    rendezvous: NameServer,
    out: Vec<Reply>,
    now: Moment,
    last: u64,
}

fn client(launch: u64) -> ClientId {
    ClientId(launch)
}

fn who(launch: u64, rank: u32) -> NameRequester {
    NameRequester {
        proc: Proc::new(Nspace::new(&format!("job-{launch}")).unwrap(), Rank(rank)),
        node: NodeId(0),
        // Whatever it says.
        user: UserId(launch as u32),
        app: AppNum(0),
        app_size: 2,
    }
}

fn publish(range: NameRange, persistence: Persistence, name: &str) -> NameRequest {
    let text = PublishedData::Text(name.as_bytes().into());
    NameRequest::Publish {
        range,
        persistence,
        limits: ValueLimits::default(),
        values: vec![(name.into(), text)],
    }
}

fn lookup(name: &str, waits: bool) -> NameRequest {
    let wait = LookupWait {
        at_least: 0,
        timeout: None,
    };
    NameRequest::Lookup(NameLookup {
        range: NameRange::Session,
        accepts: AcceptedData::Anything,
        keys: vec![name.into()],
        wait: waits.then_some(wait),
    })
}

impl Meeting {
    fn of(launches: u64) -> Self {
        let mut meeting = Self {
            rendezvous: NameServer::new(UserId(7)),
            out: Vec::new(),
            now: Moment::default(),
            last: 0,
        };
        for launch in 0..launches {
            meeting.rendezvous.joined(client(launch), &mut meeting.out);
        }
        let welcome = (0..launches).map(|launch| (client(launch), NameServerReport::Welcome));
        assert_eq!(
            std::mem::take(&mut meeting.out),
            welcome.collect::<Vec<_>>()
        );
        meeting
    }

    fn say(&mut self, launch: u64, message: NameServerRequest) {
        let message = NameServerCommand::Store(message);
        self.rendezvous
            .on_command(client(launch), message, self.now, &mut self.out);
    }

    /// Rank 0 of a launch asks.
    fn ask(&mut self, launch: u64, request: NameRequest) -> NameRequestId {
        self.last += 1;
        let ticket = NameRequestId {
            node: NodeId(0),
            serial: self.last.into(),
        };
        let who = who(launch, 0);
        self.say(
            launch,
            NameServerRequest::Ask {
                ticket,
                who,
                request,
            },
        );
        ticket
    }

    /// The same, for the one answer to it.
    #[track_caller]
    fn answer(&mut self, launch: u64, request: NameRequest) -> NameReply {
        let ticket = self.ask(launch, request);
        let mut answered = self.answered();
        assert_eq!(answered.len(), 1, "{answered:?}");
        let (to, of, answer) = answered.remove(0);
        assert_eq!((to, of), (launch, ticket));
        answer
    }

    fn answered(&mut self) -> Vec<(u64, NameRequestId, NameReply)> {
        let out = std::mem::take(&mut self.out).into_iter();
        out.map(|(ClientId(launch), message)| match message {
            NameServerReport::Store(NameServerReply { ticket, answer }) => (launch, ticket, answer),
            other => panic!("{other:?} for {launch}"),
        })
        .collect()
    }

    fn finds(&mut self, launch: u64, name: &str) -> bool {
        matches!(
            self.answer(launch, lookup(name, false)),
            NameReply::Found(_)
        )
    }
}

const NOT_FOUND: NameReply = NameReply::Refused(NameRefusal::NotFound);

#[test]
fn launches_find_and_unpublish_names_of_others() {
    let mut meeting = Meeting::of(2);
    let name = || publish(NameRange::Session, Persistence::Proc, "a");
    assert_eq!(meeting.answer(0, name()), NameReply::Done);
    let NameReply::Found(found) = meeting.answer(1, lookup("a", false)) else {
        panic!("not found");
    };
    assert_eq!(found[0].owner, who(0, 0).proc);
    let duplicate = NameReply::Refused(NameRefusal::Duplicate("a".into()));
    assert_eq!(meeting.answer(1, name()), duplicate);
    let withdraw = NameRequest::Unpublish {
        removal: UnpublishScope::Anybodys,
        keys: vec!["a".into()],
    };
    assert_eq!(meeting.answer(1, withdraw), NameReply::Done);
    assert_eq!(meeting.answer(0, lookup("a", false)), NOT_FOUND);
}

#[test]
fn oldest_waiter_of_all_launches_gets_first_read_value() {
    let mut meeting = Meeting::of(3);
    let waiting = [2, 0, 1].map(|launch| (launch, meeting.ask(launch, lookup("a", true))));
    for (launch, ticket) in waiting {
        meeting.ask(1, publish(NameRange::Global, Persistence::FirstRead, "a"));
        let served = meeting.answered().into_iter();
        let served = served.filter(|(_, _, answer)| answer.has_once());
        let served: Vec<_> = served.map(|(to, of, _)| (to, of)).collect();
        assert_eq!(served, [(launch, ticket)]);
        let reached = true;
        meeting.say(launch, NameServerRequest::Receipt { ticket, reached });
    }
    assert!(!meeting.finds(0, "a"));
}

#[test]
fn undelivered_first_read_value_goes_to_next_waiter() {
    // Its launch says so, or ends.
    for ends in [false, true] {
        let mut meeting = Meeting::of(3);
        let ticket = meeting.ask(0, lookup("a", true));
        let next = meeting.ask(1, lookup("a", true));
        meeting.ask(2, publish(NameRange::Session, Persistence::FirstRead, "a"));
        meeting.answered();
        match ends {
            true => meeting
                .rendezvous
                .on_launch_left(client(0), &mut meeting.out),
            false => meeting.say(
                0,
                NameServerRequest::Receipt {
                    ticket,
                    reached: false,
                },
            ),
        }
        let served = meeting.answered();
        assert_eq!(served.len(), 1);
        assert_eq!((served[0].0, served[0].1), (1, next));
    }
}

#[test]
fn end_of_launch_removes_its_names_except_indefinite_ones() {
    let mut meeting = Meeting::of(2);
    let lives = [
        ("indef", Persistence::Indefinite),
        ("once", Persistence::FirstRead),
        ("proc", Persistence::Proc),
        ("app", Persistence::App),
        ("session", Persistence::Session),
    ];
    for (name, persistence) in lives {
        let request = publish(NameRange::Session, persistence, name);
        assert_eq!(meeting.answer(0, request), NameReply::Done);
    }
    meeting.ask(0, lookup("never", true));
    meeting
        .rendezvous
        .on_launch_left(client(0), &mut meeting.out);
    assert!(meeting.out.is_empty());
    for (name, persistence) in lives {
        let stays = persistence == Persistence::Indefinite;
        assert_eq!(meeting.finds(1, name), stays, "{name}");
    }
    assert_eq!(meeting.rendezvous.launches(), 1);
    meeting
        .rendezvous
        .on_launch_left(client(1), &mut meeting.out);
    assert!(!meeting.rendezvous.is_empty());
}

#[test]
fn end_of_process_or_app_removes_names_by_persistence() {
    let mut meeting = Meeting::of(2);
    for (name, persistence) in [("proc", Persistence::Proc), ("app", Persistence::App)] {
        let request = publish(NameRange::Session, persistence, name);
        assert_eq!(meeting.answer(0, request), NameReply::Done);
    }
    // Another launch's process of that rank is another one.
    meeting.say(1, NameServerRequest::Ended(who(1, 0).proc));
    assert!(meeting.finds(1, "proc"));
    let proc = who(0, 0).proc;
    let nspace = proc.nspace.clone();
    meeting.say(0, NameServerRequest::Ended(proc));
    assert!(!meeting.finds(1, "proc") && meeting.finds(1, "app"));
    let app = AppNum(0);
    meeting.say(0, NameServerRequest::AppEnded { nspace, app });
    assert!(!meeting.finds(1, "app"));
}

#[test]
fn equal_node_ids_of_two_launches_are_distinct() {
    let mut meeting = Meeting::of(2);
    for launch in [0, 1] {
        let keep = NameServerRequest::Keep {
            who: who(launch, 1),
            request: publish(NameRange::Local, Persistence::Session, "a"),
        };
        meeting.say(launch, keep);
        assert!(meeting.out.is_empty(), "nobody waits for an answer");
    }
    for launch in [0, 1] {
        let NameReply::Found(found) = meeting.answer(launch, lookup("a", false)) else {
            panic!("not found");
        };
        assert_eq!(found[0].owner, who(launch, 1).proc);
    }
}

#[test]
fn wait_ends_at_timeout() {
    let mut meeting = Meeting::of(1);
    let timeout = std::time::Duration::from_secs(3);
    let NameRequest::Lookup(mut request) = lookup("a", true) else {
        panic!("no lookup");
    };
    request.wait.as_mut().unwrap().timeout = Some(timeout);
    meeting.ask(0, NameRequest::Lookup(request));
    let due = meeting.now + timeout;
    assert_eq!(meeting.rendezvous.next_deadline(), Some(due));
    meeting.rendezvous.tick(due, &mut meeting.out);
    let answers = meeting.answered();
    assert_eq!(answers[0].2, NameReply::Refused(NameRefusal::Timeout));
    assert_eq!(meeting.rendezvous.next_deadline(), None);
}

fn job(launch: u64) -> Nspace {
    who(launch, 0).proc.nspace
}

impl Meeting {
    fn relay(&mut self, launch: u64, to: u64, body: &[u8]) {
        let message = NameServerCommand::Relay {
            sender_jobs: vec![job(launch)],
            to: job(to),
            body: body.to_vec(),
        };
        self.rendezvous
            .on_command(client(launch), message, self.now, &mut self.out);
    }
}

fn relayed(from: u64, body: &[u8]) -> NameServerReport {
    NameServerReport::Relayed {
        from: job(from),
        body: body.to_vec(),
    }
}

#[test]
fn messages_to_unknown_job_are_held_until_its_launch_registers() {
    let mut meeting = Meeting::of(2);
    meeting.relay(0, 1, b"a");
    meeting.relay(0, 1, b"b");
    assert!(meeting.out.is_empty());
    meeting.relay(1, 0, b"c");
    let out = std::mem::take(&mut meeting.out);
    let expected = [
        (client(1), relayed(0, b"a")),
        (client(1), relayed(0, b"b")),
        (client(0), relayed(1, b"c")),
    ];
    assert_eq!(out, expected);
    // A launch that has published is known by that.
    let mut meeting = Meeting::of(2);
    assert!(!meeting.finds(1, "a"));
    meeting.relay(0, 1, b"a");
    assert_eq!(meeting.out, [(client(1), relayed(0, b"a"))]);
}

#[test]
fn end_of_launch_is_reported_to_earlier_and_later_peers() {
    let mut meeting = Meeting::of(3);
    assert!(!meeting.finds(1, "a"));
    meeting.relay(0, 1, b"a");
    meeting.out.clear();
    meeting
        .rendezvous
        .on_launch_left(client(1), &mut meeting.out);
    let gone = || NameServerReport::Gone(vec![job(1)]);
    assert_eq!(std::mem::take(&mut meeting.out), [(client(0), gone())]);
    meeting.relay(2, 1, b"b");
    assert_eq!(meeting.out, [(client(2), gone())]);
}
