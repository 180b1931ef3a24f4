use std::time::Duration;

use super::request::{
    AcceptedData, LookupWait, NameRange, Persistence, PublishedData, ValueLimits,
};
use super::*;
use crate::job::ids::{NodeId, Rank, UserId};
use crate::job::proc::RankOrWildcard;

mod across_nodes;
mod random;

const USER: UserId = UserId(1000);

/// Rank `rank` of `nspace`, two ranks to a node, all of one application.
fn who_of(nspace: &str, rank: u32) -> NameRequester {
    NameRequester {
        proc: Proc::new(Nspace::new(nspace).unwrap(), Rank(rank)),
        node: NodeId(rank / 2),
        user: USER,
        app: AppNum(0),
        app_size: 4,
    }
}

fn who(rank: u32) -> NameRequester {
    who_of("job", rank)
}

fn key(name: &str) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn text(value: &str) -> PublishedData {
    PublishedData::Text(value.as_bytes().into())
}

fn publish_as(range: NameRange, persistence: Persistence, names: &[&str]) -> NameRequest {
    NameRequest::Publish {
        range,
        persistence,
        limits: ValueLimits::default(),
        values: names.iter().map(|name| (key(name), text(name))).collect(),
    }
}

fn publish(names: &[&str]) -> NameRequest {
    publish_as(NameRange::Session, Persistence::Session, names)
}

fn once(name: &str) -> NameRequest {
    publish_as(NameRange::Session, Persistence::FirstRead, &[name])
}

fn lookup(names: &[&str]) -> NameRequest {
    lookup_in(NameRange::Session, names, None)
}

fn lookup_in(range: NameRange, names: &[&str], wait: Option<LookupWait>) -> NameRequest {
    NameRequest::Lookup(NameLookup {
        range,
        accepts: AcceptedData::Anything,
        keys: names.iter().map(|name| key(name)).collect(),
        wait,
    })
}

fn wait_for(at_least: u64, names: &[&str]) -> NameRequest {
    let wait = LookupWait {
        at_least,
        timeout: None,
    };
    lookup_in(NameRange::Session, names, Some(wait))
}

fn unpublish(range: Option<NameRange>, names: &[&str]) -> NameRequest {
    NameRequest::Unpublish {
        removal: UnpublishScope::Own(range),
        keys: names.iter().map(|name| key(name)).collect(),
    }
}

/// A store whose requests are numbered from 1.
#[derive(Default)]
struct Shop {
    store: NameTable<u32>,
    last: u32,
    now: Moment,
    answers: Vec<(u32, NameReply)>,
}

impl Shop {
    /// Makes a request; its number.
    fn ask(&mut self, who: &NameRequester, request: NameRequest) -> u32 {
        self.last += 1;
        self.store
            .handle(who, request, self.last, self.now, &mut self.answers);
        self.last
    }

    /// Makes a request that is answered at once, and no other is answered with it.
    #[track_caller]
    fn answer(&mut self, who: &NameRequester, request: NameRequest) -> NameReply {
        let number = self.ask(who, request);
        let mut answers = std::mem::take(&mut self.answers);
        assert_eq!(answers.len(), 1, "{answers:?}");
        let (answered, answer) = answers.remove(0);
        assert_eq!(answered, number);
        answer
    }

    fn later(&mut self, seconds: u64) -> Vec<(u32, NameReply)> {
        self.now = self.now + Duration::from_secs(seconds);
        self.store.tick(self.now, &mut self.answers);
        std::mem::take(&mut self.answers)
    }

    /// Whom the last request answered: their numbers, and the keys each got.
    fn served(&mut self) -> Vec<(u32, Vec<String>)> {
        let answers = std::mem::take(&mut self.answers).into_iter();
        answers.map(|(who, answer)| (who, names(answer))).collect()
    }
}

/// The keys of an answer with values; none for any other.
fn names(answer: NameReply) -> Vec<String> {
    let (NameReply::Found(found) | NameReply::Partial(found)) = answer else {
        return Vec::new();
    };
    let name = |found: FoundName| String::from_utf8(found.key).unwrap();
    found.into_iter().map(name).collect()
}

fn refused(refusal: NameRefusal) -> NameReply {
    NameReply::Refused(refusal)
}

#[test]
fn value_is_found_with_publisher_until_unpublished() {
    let mut shop = Shop::default();
    assert_eq!(
        shop.answer(&who(0), lookup(&["a"])),
        refused(NameRefusal::NotFound)
    );
    assert_eq!(shop.answer(&who(1), publish(&["a"])), NameReply::Done);
    let found = vec![FoundName {
        key: key("a"),
        owner: who(1).proc,
        data: text("a"),
        once: false,
    }];
    assert_eq!(
        shop.answer(&who(3), lookup(&["a"])),
        NameReply::Found(found.clone())
    );
    assert_eq!(
        shop.answer(&who(3), lookup(&["a"])),
        NameReply::Found(found)
    );
    assert_eq!(
        shop.answer(&who(1), unpublish(None, &["a"])),
        NameReply::Done
    );
    assert_eq!(
        shop.answer(&who(3), lookup(&["a"])),
        refused(NameRefusal::NotFound)
    );
    assert_eq!(shop.answer(&who(3), publish(&["a"])), NameReply::Done);
}

#[test]
fn key_is_published_once_per_range_and_first_stays() {
    let custom = |rank| {
        let member = (Nspace::new("job").unwrap(), RankOrWildcard::One(Rank(rank)));
        NameRange::Custom([member].into())
    };
    // Who publishes first, and who then collides with it in the same range, and who does not.
    for (range, collide, fit) in [
        (NameRange::Local, vec![who(1)], vec![who(2)]),
        (NameRange::Namespace, vec![who(3)], vec![who_of("other", 0)]),
        (NameRange::Session, vec![who(3), who_of("other", 0)], vec![]),
        (NameRange::Global, vec![who(3), who_of("other", 0)], vec![]),
        (custom(3), vec![who(3)], vec![]),
        (NameRange::ProcLocal, vec![who(0)], vec![who(1)]),
    ] {
        let mut shop = Shop::default();
        let publish = || publish_as(range.clone(), Persistence::Session, &["a"]);
        assert_eq!(shop.answer(&who(0), publish()), NameReply::Done);
        let duplicate = || refused(NameRefusal::Duplicate(key("a")));
        assert_eq!(shop.answer(&who(0), publish()), duplicate(), "{range:?}");
        for other in collide {
            assert_eq!(shop.answer(&other, publish()), duplicate(), "{range:?}");
        }
        for other in fit {
            assert_eq!(shop.answer(&other, publish()), NameReply::Done, "{range:?}");
        }
        let other_range = match range {
            NameRange::Global => NameRange::Session,
            _ => NameRange::Global,
        };
        let elsewhere = publish_as(other_range, Persistence::Session, &["a"]);
        assert_eq!(
            shop.answer(&who(0), elsewhere),
            NameReply::Done,
            "{range:?}"
        );
    }
}

#[test]
fn values_are_published_all_or_none() {
    let mut shop = Shop::default();
    assert_eq!(shop.answer(&who(0), publish(&["b"])), NameReply::Done);
    let duplicate = |name| refused(NameRefusal::Duplicate(key(name)));
    assert_eq!(
        shop.answer(&who(1), publish(&["a", "b", "c"])),
        duplicate("b")
    );
    assert_eq!(shop.answer(&who(1), publish(&["d", "d"])), duplicate("d"));
    assert_eq!(
        shop.answer(&who(0), lookup(&["a", "c", "d"])),
        refused(NameRefusal::NotFound)
    );
}

#[test]
fn range_limits_readers_of_value() {
    let stranger = who_of("other", 1);
    let both = [
        (Nspace::new("job").unwrap(), RankOrWildcard::One(Rank(2))),
        (Nspace::new("other").unwrap(), RankOrWildcard::Wildcard),
    ];
    // Visible to: itself, its neighbour on the node, a rank of another node, one of another job that
    // is on its node.
    for (range, expected) in [
        (NameRange::Rm, [false; 4]),
        (NameRange::ProcLocal, [true, false, false, false]),
        (NameRange::Local, [true, true, false, true]),
        (NameRange::Namespace, [true, true, true, false]),
        (NameRange::Custom(both.into()), [false, false, true, true]),
        (NameRange::Session, [true; 4]),
        (NameRange::Global, [true; 4]),
    ] {
        let mut shop = Shop::default();
        let publish = publish_as(range.clone(), Persistence::Session, &["a"]);
        assert_eq!(shop.answer(&who(0), publish), NameReply::Done);
        let found = [who(0), who(1), who(2), stranger.clone()]
            .map(|other| matches!(shop.answer(&other, lookup(&["a"])), NameReply::Found(_)));
        assert_eq!(found, expected, "{range:?}");
    }
}

#[test]
fn range_of_lookup_limits_publishers() {
    for (range, expected) in [
        (NameRange::Rm, [false; 4]),
        (NameRange::ProcLocal, [true, false, false, false]),
        (NameRange::Local, [true, true, false, true]),
        (NameRange::Namespace, [true, true, true, false]),
        (NameRange::Global, [true; 4]),
    ] {
        let publishers = [who(0), who(1), who(2), who_of("other", 1)];
        let found = publishers.map(|publisher| {
            let mut shop = Shop::default();
            let publish = publish_as(NameRange::Global, Persistence::Session, &["a"]);
            assert_eq!(shop.answer(&publisher, publish), NameReply::Done);
            let lookup = lookup_in(range.clone(), &["a"], None);
            matches!(shop.answer(&who(0), lookup), NameReply::Found(_))
        });
        assert_eq!(found, expected, "{range:?}");
    }
}

#[test]
fn narrowest_range_of_several_values_is_found() {
    let mut shop = Shop::default();
    for range in [
        NameRange::Global,
        NameRange::ProcLocal,
        NameRange::Session,
        NameRange::Local,
        NameRange::Namespace,
    ] {
        let name = format!("{range:?}");
        let request = NameRequest::Publish {
            range,
            persistence: Persistence::FirstRead,
            limits: ValueLimits::default(),
            values: vec![(key("a"), text(&name))],
        };
        assert_eq!(shop.answer(&who(0), request), NameReply::Done);
    }
    for expected in ["ProcLocal", "Local", "Namespace", "Session", "Global"] {
        let NameReply::Found(found) = shop.answer(&who(0), lookup(&["a"])) else {
            panic!("not found: {expected}");
        };
        assert_eq!(found[0].data, text(expected));
    }
}

#[test]
fn values_of_other_users_are_invisible_and_no_duplicates() {
    let mut shop = Shop::default();
    let other = NameRequester {
        user: UserId(1001),
        ..who(1)
    };
    let global = || publish_as(NameRange::Global, Persistence::Session, &["a"]);
    assert_eq!(shop.answer(&who(0), global()), NameReply::Done);
    assert_eq!(
        shop.answer(&other, lookup(&["a"])),
        refused(NameRefusal::NotFound)
    );
    let waiting = shop.ask(&other, wait_for(0, &["a"]));
    assert_eq!(shop.ask(&other, global()), waiting + 1);
    let answers = std::mem::take(&mut shop.answers);
    assert_eq!(answers[0], (waiting + 1, NameReply::Done));
    assert!(matches!(&answers[1], (at, NameReply::Found(found))
        if *at == waiting && found[0].owner == other.proc));
}

#[test]
fn reader_of_texts_finds_only_fitting_texts() {
    let mut shop = Shop::default();
    let publish = NameRequest::Publish {
        range: NameRange::Session,
        persistence: Persistence::FirstRead,
        limits: ValueLimits::default(),
        values: vec![
            (key("typed"), PublishedData::Typed((*b"1").into())),
            (key("long"), text("12345")),
            (key("fits"), text("1234")),
        ],
    };
    assert_eq!(shop.answer(&who(0), publish), NameReply::Done);
    let text_lookup = |name| {
        NameRequest::Lookup(NameLookup {
            range: NameRange::Session,
            accepts: AcceptedData::Text(4),
            keys: vec![key(name)],
            wait: None,
        })
    };
    assert_eq!(
        shop.answer(&who(1), text_lookup("typed")),
        refused(NameRefusal::NotFound)
    );
    assert_eq!(
        shop.answer(&who(1), text_lookup("long")),
        refused(NameRefusal::NotFound)
    );
    assert!(matches!(
        shop.answer(&who(1), text_lookup("fits")),
        NameReply::Found(_)
    ));
    // And what was not accepted is still there for others.
    let rest = shop.answer(&who(1), lookup(&["typed", "long"]));
    assert_eq!(names(rest), ["typed", "long"]);
}

#[test]
fn first_read_value_goes_to_oldest_waiter_alone() {
    let mut shop = Shop::default();
    let waiters: Vec<u32> = (1..4)
        .map(|rank| shop.ask(&who(rank), wait_for(0, &["a"])))
        .collect();
    for waiter in waiters {
        assert_eq!(shop.answers, []);
        shop.ask(&who(0), once("a"));
        let served = shop.served();
        assert_eq!(served[1..], [(waiter, vec!["a".to_owned()])]);
    }
    assert_eq!(shop.answer(&who(0), once("a")), NameReply::Done);
    assert_eq!(names(shop.answer(&who(1), lookup(&["a"]))), ["a"]);
    assert_eq!(
        shop.answer(&who(2), lookup(&["a"])),
        refused(NameRefusal::NotFound)
    );
}

#[test]
fn lookup_of_several_keys_takes_nothing_before_all_exist() {
    let mut shop = Shop::default();
    let both = shop.ask(&who(1), wait_for(0, &["a", "b"]));
    let swapped = shop.ask(&who(2), wait_for(0, &["b", "a"]));
    let one = shop.ask(&who(3), wait_for(0, &["a"]));
    shop.ask(&who(0), once("a"));
    assert_eq!(shop.served()[1..], [(one, vec!["a".to_owned()])]);
    assert_eq!(shop.answer(&who(0), once("b")), NameReply::Done);
    shop.ask(&who(0), once("a"));
    assert_eq!(
        shop.served()[1..],
        [(both, vec!["a".to_owned(), "b".to_owned()])]
    );
    shop.ask(&who(0), publish(&["a", "b"]));
    assert_eq!(
        shop.served()[1..],
        [(swapped, vec!["b".to_owned(), "a".to_owned()])]
    );
}

#[test]
fn lasting_value_serves_all_waiters() {
    let mut shop = Shop::default();
    let waiters: Vec<u32> = (1..4)
        .map(|rank| shop.ask(&who(rank), wait_for(0, &["a"])))
        .collect();
    let own = shop.ask(&who(0), publish(&["a"]));
    let served: Vec<u32> = shop.served().into_iter().map(|(who, _)| who).collect();
    assert_eq!(served, [vec![own], waiters].concat());
}

#[test]
fn lookup_waits_for_number_of_keys_or_all() {
    let mut shop = Shop::default();
    assert_eq!(shop.answer(&who(0), publish(&["a", "b"])), NameReply::Done);
    let two_of_three = shop.answer(&who(1), wait_for(2, &["a", "missing", "b"]));
    assert!(matches!(two_of_three, NameReply::Found(_)));
    assert_eq!(names(two_of_three), ["a", "b"]);
    // A key that is repeated counts once, and more than all is all.
    for request in [wait_for(3, &["a", "a", "b", "c"]), wait_for(9, &["c", "a"])] {
        let waiting = shop.ask(&who(1), request);
        assert_eq!(shop.answers, []);
        shop.ask(&who(0), publish(&["c"]));
        assert_eq!(shop.served()[1].0, waiting);
        assert_eq!(
            shop.answer(&who(0), unpublish(None, &["c"])),
            NameReply::Done
        );
    }
}

#[test]
fn lookup_timeout_leaves_values() {
    let mut shop = Shop::default();
    let wait = |seconds| {
        let wait = LookupWait {
            at_least: 0,
            timeout: Some(Duration::from_secs(seconds)),
        };
        lookup_in(NameRange::Session, &["a", "b"], Some(wait))
    };
    assert_eq!(shop.answer(&who(0), once("a")), NameReply::Done);
    let (long, short) = (shop.ask(&who(1), wait(20)), shop.ask(&who(2), wait(10)));
    assert_eq!(
        shop.store.next_deadline(),
        Some(Moment(Duration::from_secs(10)))
    );
    assert_eq!(shop.later(9), []);
    assert_eq!(shop.later(1), [(short, refused(NameRefusal::Timeout))]);
    assert_eq!(
        shop.store.next_deadline(),
        Some(Moment(Duration::from_secs(20)))
    );
    assert_eq!(shop.later(10), [(long, refused(NameRefusal::Timeout))]);
    assert_eq!(shop.store.next_deadline(), None);
    assert_eq!(names(shop.answer(&who(3), lookup(&["a"]))), ["a"]);
}

#[test]
fn partial_reply_has_present_values_and_consumes_nothing() {
    let mut shop = Shop::default();
    assert_eq!(shop.answer(&who(0), publish(&["a"])), NameReply::Done);
    assert_eq!(shop.answer(&who(0), once("b")), NameReply::Done);
    let partial = shop.answer(&who(1), lookup(&["missing", "b", "a"]));
    assert!(matches!(partial, NameReply::Partial(_)));
    assert_eq!(names(partial), ["a"]);
    assert_eq!(names(shop.answer(&who(1), lookup(&["a", "b"]))), ["a", "b"]);
}

#[test]
fn process_unpublishes_own_values_by_key_range_or_all() {
    let mut shop = Shop::default();
    let publish = |shop: &mut Shop, rank, range, names: &[&str]| {
        let request = publish_as(range, Persistence::Session, names);
        assert_eq!(shop.answer(&who(rank), request), NameReply::Done);
    };
    publish(&mut shop, 0, NameRange::Session, &["a", "b"]);
    publish(&mut shop, 0, NameRange::Namespace, &["a", "c"]);
    publish(&mut shop, 1, NameRange::Session, &["d"]);
    let session = || Some(NameRange::Session);
    let not_found = || refused(NameRefusal::NotFound);
    assert_eq!(
        shop.answer(&who(0), unpublish(session(), &["d"])),
        not_found()
    );
    assert_eq!(
        shop.answer(&who(0), unpublish(session(), &["c"])),
        not_found()
    );
    assert_eq!(
        shop.answer(&who(0), unpublish(session(), &["a", "c"])),
        NameReply::Partial(Vec::new())
    );
    assert_eq!(
        names(shop.answer(&who(2), lookup(&["a", "b", "c", "d"]))).len(),
        4
    );
    let namespace = Some(NameRange::Namespace);
    assert_eq!(
        shop.answer(&who(0), unpublish(namespace, &[])),
        NameReply::Done
    );
    assert_eq!(
        names(shop.answer(&who(2), lookup(&["a", "b", "c", "d"]))),
        ["b", "d"]
    );
    assert_eq!(shop.answer(&who(0), unpublish(None, &[])), NameReply::Done);
    assert_eq!(shop.answer(&who(0), unpublish(None, &[])), NameReply::Done);
    assert_eq!(names(shop.answer(&who(2), lookup(&["b", "d"]))), ["d"]);
}

#[test]
fn any_rank_unpublishes_pmi_name() {
    let mut shop = Shop::default();
    let withdraw = || NameRequest::Unpublish {
        removal: UnpublishScope::Anybodys,
        keys: vec![key("a")],
    };
    assert_eq!(shop.answer(&who(0), publish(&["a"])), NameReply::Done);
    let namespace = publish_as(NameRange::Namespace, Persistence::Session, &["a"]);
    assert_eq!(shop.answer(&who(0), namespace), NameReply::Done);
    assert_eq!(shop.answer(&who(3), withdraw()), NameReply::Done);
    // What is not a name stays.
    assert_eq!(
        shop.answer(&who(3), withdraw()),
        refused(NameRefusal::NotFound)
    );
    assert_eq!(names(shop.answer(&who(3), lookup(&["a"]))), ["a"]);
}

#[test]
fn end_of_process_removes_its_values_and_waits() {
    let mut shop = Shop::default();
    for (name, persistence) in [
        ("proc", Persistence::Proc),
        ("app", Persistence::App),
        ("session", Persistence::Session),
        ("indefinite", Persistence::Indefinite),
    ] {
        let request = publish_as(NameRange::Session, persistence, &[name]);
        assert_eq!(shop.answer(&who(1), request), NameReply::Done);
    }
    let all = || lookup(&["proc", "app", "session", "indefinite"]);
    let waiting = shop.ask(&who(1), wait_for(0, &["late"]));
    shop.store.proc_ended(&who(1).proc, &mut shop.answers);
    let answers = std::mem::take(&mut shop.answers);
    assert_eq!(answers, [(waiting, refused(NameRefusal::RequesterEnded))]);
    assert_eq!(shop.answer(&who(0), once("late")), NameReply::Done);
    let stays = ["app", "session", "indefinite"];
    assert_eq!(names(shop.answer(&who(0), all())), stays);
    shop.store
        .app_ended(&Nspace::new("other").unwrap(), AppNum(0));
    shop.store.app_ended(&who(1).proc.nspace, AppNum(1));
    assert_eq!(names(shop.answer(&who(0), all())), stays);
    shop.store.app_ended(&who(1).proc.nspace, AppNum(0));
    assert_eq!(names(shop.answer(&who(0), all())), stays[1..]);
}

#[test]
fn requests_over_limit_are_refused_without_effect() {
    let mut shop = Shop::default();
    let long = "x".repeat(KEY_MAX + 1);
    let many = vec!["x"; KEYS_MAX + 1];
    for bad in [&[""][..], &[&*long], &[], &many] {
        assert_eq!(
            shop.answer(&who(0), publish(bad)),
            refused(NameRefusal::Keys)
        );
    }
    for bad in [&[""][..], &[&*long], &[]] {
        assert_eq!(
            shop.answer(&who(0), lookup(bad)),
            refused(NameRefusal::Keys)
        );
    }
    assert_eq!(
        shop.answer(&who(0), unpublish(None, &many)),
        refused(NameRefusal::Keys)
    );
    let longest = &long[1..];
    assert_eq!(shop.answer(&who(0), publish(&[longest])), NameReply::Done);

    let big = |name: &str, size| NameRequest::Publish {
        range: NameRange::Session,
        persistence: Persistence::Session,
        limits: ValueLimits::default(),
        values: vec![(key(name), PublishedData::Typed(vec![0; size].into()))],
    };
    let rest = BYTES_MAX - 2 * KEY_MAX - 1;
    assert_eq!(
        shop.answer(&who(0), big("big", rest)),
        refused(NameRefusal::Full)
    );
    assert_eq!(shop.answer(&who(0), big("b", rest)), NameReply::Done);
    assert_eq!(
        shop.answer(&who(0), big("c", 0)),
        refused(NameRefusal::Full)
    );
    assert_eq!(
        shop.answer(&who(0), unpublish(None, &["b"])),
        NameReply::Done
    );

    for number in 1..VALUES_MAX {
        assert_eq!(
            shop.answer(&who(0), once(&number.to_string())),
            NameReply::Done
        );
    }
    assert_eq!(
        shop.answer(&who(0), once("one more")),
        refused(NameRefusal::Full)
    );
    for _ in 0..WAITING_MAX {
        shop.ask(&who(1), wait_for(0, &["late"]));
    }
    assert_eq!(
        shop.answer(&who(1), wait_for(0, &["late"])),
        refused(NameRefusal::Full)
    );
    assert_eq!(names(shop.answer(&who(1), wait_for(0, &["1"]))), ["1"]);
    shop.store.tear_down(&mut shop.answers);
    assert_eq!(shop.answers.len(), WAITING_MAX);
}
