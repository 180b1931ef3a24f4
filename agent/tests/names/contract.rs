//! Contract that every store fulfils.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use wireup_core::names::name_server_requests::NameServerRequest;
use wireup_core::names::request::{
    AcceptedData, LookupWait, NameLookup, NameRange, NameRefusal, NameReply, NameRequest,
    Persistence, PublishedData, UnpublishScope, ValueLimits,
};

use super::places::{Kind, Launch, OTHER, Place};
use crate::common::{eventually, skip};

pub(crate) fn publish_as(name: &str, persistence: Persistence, limits: ValueLimits) -> NameRequest {
    NameRequest::Publish {
        range: NameRange::Session,
        persistence,
        limits,
        values: vec![(
            name.into(),
            PublishedData::Text(format!("port of {name}").into_bytes().into()),
        )],
    }
}

pub(crate) fn publish(name: &str) -> NameRequest {
    publish_as(name, Persistence::Session, ValueLimits::default())
}

fn look_for(name: &str, wait: Option<LookupWait>) -> NameRequest {
    NameRequest::Lookup(NameLookup {
        range: NameRange::Session,
        accepts: AcceptedData::Text(1024),
        keys: vec![name.into()],
        wait,
    })
}

pub(crate) fn look(name: &str) -> NameRequest {
    look_for(name, None)
}

fn wait(seconds: Option<u64>) -> Option<LookupWait> {
    Some(LookupWait {
        at_least: 0,
        timeout: seconds.map(Duration::from_secs),
    })
}

fn unpublish(removal: UnpublishScope, name: &str) -> NameRequest {
    NameRequest::Unpublish {
        removal,
        keys: vec![name.into()],
    }
}

const GONE: NameReply = NameReply::Refused(NameRefusal::NotFound);

fn duplicate(name: &str) -> NameReply {
    NameReply::Refused(NameRefusal::Duplicate(name.into()))
}

#[track_caller]
pub(crate) fn is_found(answer: NameReply, name: &str) {
    let NameReply::Found(found) = &answer else {
        panic!("{name}: {answer:?}");
    };
    assert_eq!(found[0].data.bytes(), format!("port of {name}").as_bytes());
}

pub(crate) fn await_gone(launch: &mut Launch, name: &str) {
    eventually("the name is gone", || {
        (launch.ask(0, look(name)) == GONE).then_some(())
    });
}

pub(crate) fn name_is_unpublished_as_own_by_its_owner_only(place: &Place) {
    let (mut first, mut second) = (place.launch("one"), place.launch("two"));
    assert_eq!(first.ask(1, publish("a name")), NameReply::Done);
    let NameReply::Found(found) = second.ask(0, look("a name")) else {
        panic!("not found");
    };
    assert_eq!(found[0].owner, first.who(1).proc);
    let own = || UnpublishScope::Own(Some(NameRange::Session));
    assert_eq!(second.ask(1, unpublish(own(), "a name")), GONE);
    assert_eq!(first.ask(0, unpublish(own(), "a name")), GONE);
    assert_eq!(first.ask(1, unpublish(own(), "a name")), NameReply::Done);
    assert_eq!(second.ask(0, look("a name")), GONE);
    // As PMI has it, any process of the user withdraws a name.
    assert_eq!(first.ask(1, publish("b")), NameReply::Done);
    assert_eq!(
        second.ask(2, unpublish(UnpublishScope::Anybodys, "b")),
        NameReply::Done
    );
    assert_eq!(
        second.ask(2, unpublish(UnpublishScope::Anybodys, "b")),
        GONE
    );
}

pub(crate) fn name_is_published_once_and_again_after_unpublish(place: &Place) {
    let (mut first, mut second) = (place.launch("one"), place.launch("two"));
    assert_eq!(first.ask(0, publish("a")), NameReply::Done);
    assert_eq!(second.ask(0, publish("a")), duplicate("a"));
    assert_eq!(first.ask(0, publish("a")), duplicate("a"));
    // All or none.
    let value = |name: &str| (name.into(), PublishedData::Typed([0, 255].into()));
    let both = NameRequest::Publish {
        range: NameRange::Session,
        persistence: Persistence::Session,
        limits: ValueLimits::default(),
        values: vec![value("b"), value("a")],
    };
    assert_eq!(second.ask(0, both), duplicate("a"));
    assert_eq!(second.ask(0, publish("b")), NameReply::Done);
    assert_eq!(
        first.ask(0, unpublish(UnpublishScope::Anybodys, "a")),
        NameReply::Done
    );
    assert_eq!(second.ask(0, publish("a")), NameReply::Done);
    // Of many that publish at once, one does.
    let mut many: Vec<Launch> = (0..4)
        .map(|number| place.launch(&format!("many-{number}")))
        .collect();
    let tickets: Vec<_> = many
        .iter_mut()
        .map(|launch| launch.begin(0, publish("race")))
        .collect();
    let answers: Vec<NameReply> = many
        .iter_mut()
        .zip(tickets)
        .map(|(launch, ticket)| launch.answer(ticket))
        .collect();
    let done = answers
        .iter()
        .filter(|answer| **answer == NameReply::Done)
        .count();
    let late = answers
        .iter()
        .filter(|answer| **answer == duplicate("race"))
        .count();
    assert_eq!((done, late), (1, 3), "{answers:?}");
}

pub(crate) fn expired_name_can_be_published_again(place: &Place) {
    let (mut first, mut second) = (place.launch("one"), place.launch("two"));
    let limits = |seconds| ValueLimits {
        expires: Some(Duration::from_secs(seconds)),
        reads: None,
    };
    for persistence in [Persistence::Session, Persistence::Indefinite] {
        let soon = publish_as("soon", persistence, limits(2));
        assert_eq!(first.ask(0, soon), NameReply::Done);
        assert_eq!(
            first.ask(0, publish_as("late", persistence, limits(3600))),
            NameReply::Done
        );
        assert_eq!(first.ask(0, publish("never")), NameReply::Done);
        await_gone(&mut second, "soon");
        is_found(second.ask(0, look("late")), "late");
        is_found(second.ask(0, look("never")), "never");
        assert_eq!(second.ask(0, publish("soon")), NameReply::Done);
        for name in ["soon", "late", "never"] {
            assert_eq!(
                second.ask(0, unpublish(UnpublishScope::Anybodys, name)),
                NameReply::Done
            );
        }
    }
}

pub(crate) fn name_is_read_as_often_as_its_publisher_allows(place: &Place) {
    let mut first = place.launch("one");
    let limits = ValueLimits {
        expires: None,
        reads: NonZeroU32::new(5),
    };
    let counted = publish_as("counted", Persistence::Session, limits);
    assert_eq!(first.ask(0, counted.clone()), NameReply::Done);
    let mut readers: Vec<Launch> = (0..4)
        .map(|number| place.launch(&format!("reader-{number}")))
        .collect();
    let mut got = 0;
    for _ in 0..2 {
        let tickets: Vec<_> = readers
            .iter_mut()
            .map(|launch| launch.begin(0, look("counted")))
            .collect();
        for (launch, ticket) in readers.iter_mut().zip(tickets) {
            match launch.answer(ticket) {
                NameReply::Found(_) => got += 1,
                other => assert_eq!(other, GONE),
            }
        }
    }
    assert_eq!(got, 5);
    assert_eq!(first.ask(0, look("counted")), GONE);
    assert_eq!(first.ask(0, counted), NameReply::Done);
}

pub(crate) fn first_read_value_reaches_one_reader_or_returns(place: &Place) {
    let mut first = place.launch("one");
    let mut readers: Vec<Launch> = (0..4)
        .map(|number| place.launch(&format!("reader-{number}")))
        .collect();
    let once = || publish_as("once", Persistence::FirstRead, ValueLimits::default());
    let tickets: Vec<_> = readers
        .iter_mut()
        .map(|launch| launch.begin(0, look_for("once", wait(Some(3)))))
        .collect();
    assert_eq!(first.ask(0, once()), NameReply::Done);
    let answers: Vec<NameReply> = readers
        .iter_mut()
        .zip(&tickets)
        .map(|(launch, ticket)| launch.answer(*ticket))
        .collect();
    let found = answers
        .iter()
        .filter(|answer| matches!(answer, NameReply::Found(_)))
        .count();
    let late = NameReply::Refused(NameRefusal::Timeout);
    let timed_out = answers.iter().filter(|answer| **answer == late).count();
    assert_eq!((found, timed_out), (1, 3), "{answers:?}");
    let at = answers.iter().position(NameReply::has_once).unwrap();
    // Nobody has got it.
    readers[at].say(NameServerRequest::Receipt {
        ticket: tickets[at],
        reached: false,
    });
    is_found(first.ask(0, look_for("once", wait(None))), "once");
    assert_eq!(first.ask(0, look("once")), GONE);
}

pub(crate) fn only_persistent_names_outlive_launch(place: &Place) {
    // Without an agent, the rendezvous ends with the last launch.
    let mut last = place.launch("last");
    let mut first = place.launch("one");
    for (name, persistence) in [
        ("indefinite", Persistence::Indefinite),
        ("session", Persistence::Session),
        ("app", Persistence::App),
        ("proc", Persistence::Proc),
        ("first", Persistence::FirstRead),
    ] {
        assert_eq!(
            first.ask(0, publish_as(name, persistence, ValueLimits::default())),
            NameReply::Done
        );
    }
    drop(first);
    for name in ["session", "app", "proc", "first"] {
        await_gone(&mut last, name);
    }
    is_found(last.ask(0, look("indefinite")), "indefinite");
    if place.kind() != Kind::Agents {
        drop(last);
        place.go();
        place.come();
        last = place.launch("another");
        is_found(last.ask(0, look("indefinite")), "indefinite");
    }
    assert_eq!(last.ask(0, publish("indefinite")), duplicate("indefinite"));
    assert_eq!(
        last.ask(0, unpublish(UnpublishScope::Anybodys, "indefinite")),
        NameReply::Done
    );
}

pub(crate) fn names_of_process_end_with_it(place: &Place) {
    let (mut first, mut second) = (place.launch("one"), place.launch("two"));
    for rank in [0, 1] {
        let name = format!("of {rank}");
        assert_eq!(
            first.ask(
                rank,
                publish_as(&name, Persistence::Proc, ValueLimits::default())
            ),
            NameReply::Done
        );
    }
    assert_eq!(first.ask(1, publish("stays")), NameReply::Done);
    let waits = first.begin(1, look_for("never", wait(None)));
    let ended = first.who(1).proc;
    first.say(NameServerRequest::Ended(ended));
    assert_eq!(
        first.answer(waits),
        NameReply::Refused(NameRefusal::RequesterEnded)
    );
    await_gone(&mut second, "of 1");
    is_found(second.ask(0, look("of 0")), "of 0");
    is_found(second.ask(0, look("stays")), "stays");
}

pub(crate) fn names_of_killed_launch_are_pruned(place: &Place) {
    let mut second = place.launch("two");
    let mut first = place.launch("one");
    assert_eq!(first.ask(0, publish("a")), NameReply::Done);
    assert_eq!(
        first.ask(
            0,
            publish_as("stays", Persistence::Indefinite, ValueLimits::default())
        ),
        NameReply::Done
    );
    first.kill();
    await_gone(&mut second, "a");
    is_found(second.ask(0, look("stays")), "stays");
    assert_eq!(second.ask(0, publish("a")), NameReply::Done);
    let NameReply::Listed(listed) = second.ask(0, NameRequest::List) else {
        panic!("not listed");
    };
    let names: Vec<_> = listed.iter().map(|name| &*name.key).collect();
    assert_eq!(names, [&b"a"[..], b"stays"]);
    assert_eq!(listed[0].owner, second.who(0).proc);
}

pub(crate) fn lookup_waits_for_name_or_its_timeout(place: &Place) {
    let (mut first, mut second) = (place.launch("one"), place.launch("two"));
    let waits = second.begin(0, look_for("late", wait(None)));
    let timeout = second.ask(1, look_for("never", wait(Some(1))));
    assert_eq!(timeout, NameReply::Refused(NameRefusal::Timeout));
    assert_eq!(first.ask(0, publish("late")), NameReply::Done);
    is_found(second.answer(waits), "late");
}

pub(crate) fn ten_thousand_names_are_listed_found_and_unpublished(place: &Place) {
    let (mut first, mut second) = (place.launch("one"), place.launch("two"));
    for batch in 0..100 {
        let tickets: Vec<_> = (0..100)
            .map(|number| first.begin(0, publish(&format!("name {}", batch * 100 + number))))
            .collect();
        for ticket in tickets {
            assert_eq!(first.answer(ticket), NameReply::Done);
        }
    }
    let NameReply::Listed(listed) = second.ask(0, NameRequest::List) else {
        panic!("not listed");
    };
    let names: BTreeSet<_> = listed.iter().map(|name| &name.key).collect();
    assert_eq!((listed.len(), names.len()), (10_000, 10_000));
    for number in (0..10_000).step_by(997) {
        let name = format!("name {number}");
        is_found(second.ask(0, look(&name)), &name);
    }
    drop(first);
    eventually("all are withdrawn", || {
        (second.ask(0, NameRequest::List) == NameReply::Listed(Vec::new())).then_some(())
    });
}

pub(crate) fn launches_of_one_name_scope_see_only_their_names(place: &Place) {
    if place.kind() == Kind::Agents {
        // Each name has a rendezvous of its own, which has a test: run::rendezvous.
        return;
    }
    let (mut plain, mut met) = (place.launch("one"), place.launch_as("two", "a/b %", None));
    assert_eq!(plain.ask(0, publish("a")), NameReply::Done);
    assert_eq!(met.ask(0, look("a")), GONE);
    assert_eq!(met.ask(0, publish("a")), NameReply::Done);
    let owner = |launch: &mut Launch| match launch.ask(0, look("a")) {
        NameReply::Found(found) => found[0].owner.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(owner(&mut plain), plain.who(0).proc);
    let mut same = place.launch_as("three", "a/b %", None);
    assert_eq!(owner(&mut same), met.who(0).proc);
}

pub(crate) fn two_users_may_publish_same_name(place: &Place) {
    if place.kind() == Kind::Agents {
        // A rendezvous is of one user, whom the kernel names: core's names::tests, and hosts::users.
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip("only root has processes of two users");
    }
    let (mut own, mut other) = (place.launch("one"), place.launch_as("two", "", Some(OTHER)));
    assert_eq!(own.ask(0, publish("a")), NameReply::Done);
    assert_eq!(other.ask(0, look("a")), GONE);
    assert_eq!(other.ask(0, unpublish(UnpublishScope::Anybodys, "a")), GONE);
    assert_eq!(other.ask(0, publish("a")), NameReply::Done);
    let NameReply::Found(found) = own.ask(0, look("a")) else {
        panic!("not found");
    };
    assert_eq!(found[0].owner, own.who(0).proc);
    let NameReply::Listed(listed) = other.ask(0, NameRequest::List) else {
        panic!("not listed");
    };
    assert_eq!(listed.len(), 1);
}

pub(crate) fn unreachable_store_refuses_with_reason_until_it_returns(place: &Place) {
    if place.kind() == Kind::Agents {
        // Its loss is that of the connection: run::rendezvous.
        return;
    }
    let (mut first, mut second) = (place.launch("one"), place.launch("two"));
    assert_eq!(
        first.ask(
            0,
            publish_as("before", Persistence::Indefinite, ValueLimits::default())
        ),
        NameReply::Done
    );
    let waits = second.begin(1, look_for("after", wait(None)));
    place.go();
    let refused = |answer: NameReply| match answer {
        NameReply::Refused(NameRefusal::Unavailable(reason)) => assert!(!reason.is_empty()),
        other => panic!("{other:?}"),
    };
    refused(first.ask(0, publish("during")));
    refused(second.ask(0, look("before")));
    refused(second.ask(0, unpublish(UnpublishScope::Anybodys, "before")));
    refused(second.ask(0, NameRequest::List));
    place.come();
    // What was refused may still have been done, as with every store elsewhere, but never twice.
    eventually("it is published", || {
        let answer = first.ask(0, publish("after"));
        match answer {
            NameReply::Done => Some(()),
            NameReply::Refused(NameRefusal::Unavailable(_)) => None,
            other => panic!("{other:?}"),
        }
    });
    is_found(second.answer(waits), "after");
    eventually("it is found", || match second.ask(0, look("before")) {
        NameReply::Refused(NameRefusal::Unavailable(_)) => None,
        found => {
            is_found(found, "before");
            Some(())
        }
    });
    // The end of a launch while the store is away: its session ends by itself.
    place.go();
    first.kill();
    place.come();
    await_gone(&mut second, "after");
    is_found(second.ask(0, look("before")), "before");
}

/// Checks names against those that `src/nameserv/file/file_nameserv.c` of MPICH writes and reads.
pub(crate) fn files_are_compatible_with_mpich_in_both_directions(place: &Place) {
    let mut launch = place.launch("one");
    assert_eq!(launch.ask(0, publish("a name")), NameReply::Done);
    let directory = place.shared().join(".mpinamepub");
    let written = std::fs::read_to_string(directory.join("a name")).unwrap();
    let mut lines = written.lines();
    assert_eq!(lines.next(), Some("port of a name"));
    assert!(lines.next().unwrap().parse::<u32>().is_ok());

    std::fs::write(directory.join("other"), "port of other\n4711\n").unwrap();
    is_found(launch.ask(0, look("other")), "other");
    assert_eq!(launch.ask(0, publish("other")), duplicate("other"));
    // MPICH writes in place: what is not complete is not there.
    std::fs::write(directory.join("half"), "port of ha").unwrap();
    assert_eq!(launch.ask(0, look("half")), GONE);
    assert_eq!(
        launch.ask(0, unpublish(UnpublishScope::Anybodys, "other")),
        NameReply::Done
    );
    assert!(!directory.join("other").exists());
}

pub(crate) fn directory_writable_by_others_is_refused(place: &Place) {
    use std::os::unix::fs::PermissionsExt as _;
    let mut launch = place.launch("one");
    assert_eq!(launch.ask(0, publish("a")), NameReply::Done);
    let directory = place.shared().join(".mpinamepub");
    let refused = |answer: NameReply, words: &str| match answer {
        NameReply::Refused(NameRefusal::Unavailable(reason)) => {
            assert!(reason.contains(words), "{reason}")
        }
        other => panic!("{other:?}"),
    };
    let mode =
        |mode| std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o777);
    refused(
        launch.ask(0, look("a")),
        ".mpinamepub may be written by other users",
    );
    mode(0o700);
    is_found(launch.ask(0, look("a")), "a");
    if rustix::process::geteuid().is_root() {
        let theirs = directory.join("a");
        std::os::unix::fs::chown(&theirs, Some(OTHER), Some(OTHER)).unwrap();
        refused(launch.ask(0, look("a")), "belongs to another user");
        std::os::unix::fs::chown(&theirs, Some(0), Some(0)).unwrap();
    }
    std::fs::remove_file(directory.join("a")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", directory.join("a")).unwrap();
    refused(launch.ask(0, look("a")), "a: ");
    std::fs::remove_file(directory.join("a")).unwrap();
}
