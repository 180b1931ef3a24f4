//! Behaviour of a directory alone: TLS, passwords, and the entries that others see.

use std::num::NonZeroU32;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use wireup_agent::identity::Role;
use wireup_agent::pki;
use wireup_agent::pki::authority::Validity;
use wireup_core::names::request::{NameRefusal, NameReply, Persistence, ValueLimits};

use crate::common::slapd::{BASE, LOGIN};
use crate::common::{eventually, skip};
use crate::contract::{await_gone, is_found, look, publish, publish_as};
use crate::places::{OTHER, Place};

const SEARCH: &str = "/usr/bin/ldapsearch";

#[track_caller]
fn is_refused(answer: NameReply, words: &str) {
    match answer {
        NameReply::Refused(NameRefusal::Unavailable(reason)) => {
            assert!(reason.contains(words), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

/// Settings with the login, this password and this authority.
fn settings(dir: &Path, password: &str, authority: &Path) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let file = dir.join("password");
    std::fs::write(&file, format!("{password}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    format!(
        "bind-dn = '{}'\npassword-file = '{}'\ncacert = '{}'\n",
        LOGIN.0,
        file.display(),
        authority.display()
    )
}

#[test]
fn tls_and_password_are_used_and_invalid_ones_refused() {
    let dir = tempfile::tempdir().unwrap();
    let validity = Validity::days(SystemTime::now(), 30);
    for (name, host) in [("own", "localhost"), ("other", "elsewhere")] {
        let pki = dir.path().join(name);
        pki::init(&pki, name, validity).unwrap();
        pki::issue(&pki, &[host.to_owned()], &[], Role::Node, validity).unwrap();
    }
    let own = dir.path().join("own/localhost");
    let (authority, other) = (own.join("ca.pem"), dir.path().join("other/ca.pem"));
    let right = settings(dir.path(), LOGIN.1, &authority);
    let Some(mut place) = Place::ldap_with(Some(&own), &right) else {
        return;
    };
    // StartTLS, and TLS from the start.
    place.at("ldap", "localhost");
    let mut first = place.launch("one");
    assert_eq!(first.ask(0, publish("a")), NameReply::Done);
    place.at("ldaps", "localhost");
    let mut second = place.launch("two");
    is_found(second.ask(0, look("a")), "a");

    // A server of another name, one of another authority; no user, and another password.
    for (scheme, host, settings, words) in [
        ("ldaps", "127.0.0.1", right.clone(), "certificate"),
        ("ldap", "127.0.0.1", right.clone(), "certificate"),
        (
            "ldaps",
            "localhost",
            settings(dir.path(), LOGIN.1, &other),
            "certificate",
        ),
        (
            "ldap",
            "localhost",
            format!("cacert = '{}'", authority.display()),
            "use TLS, or name a user",
        ),
        (
            "ldap",
            "localhost",
            settings(dir.path(), "another", &authority),
            "correct the name or the password",
        ),
    ] {
        place.at(scheme, host);
        place.set(&settings);
        let mut launch = place.launch("three");
        is_refused(launch.ask(0, publish("b")), words);
    }
}

/// Returns the output of a search in the directory as this user.
fn entries(place: &Place, user: Option<u32>, filter: &str) -> String {
    use std::os::unix::process::CommandExt as _;
    let (url, _) = place.backend().rsplit_once('/').unwrap();
    let mut search = Command::new(SEARCH);
    search.args([
        "-LLL",
        "-Q",
        "-Y",
        "EXTERNAL",
        "-o",
        "ldif_wrap=no",
        "-H",
        url,
    ]);
    search.args(["-b", BASE, filter]);
    if let Some(user) = user {
        search.uid(user).gid(user);
    }
    let found = search.output().unwrap();
    assert!(found.status.success(), "{found:?}");
    String::from_utf8(found.stdout).unwrap()
}

#[track_caller]
fn place_to_search() -> Option<Place> {
    if !Path::new(SEARCH).exists() {
        skip(&format!("no {SEARCH}: run scripts/setup"));
        return None;
    }
    Place::ldap()
}

#[test]
fn entries_show_value_owner_and_expiry_to_their_user() {
    let Some(place) = place_to_search() else {
        return;
    };
    let mut launch = place.launch("one");
    let limits = ValueLimits {
        expires: Some(Duration::from_secs(3600)),
        reads: NonZeroU32::new(7),
    };
    for name in ["A name", "A  name", "a name", "b,c+d=\"e\"; <f>#\\ (*)"] {
        let publication = publish_as(name, Persistence::Indefinite, limits);
        assert_eq!(launch.ask(1, publication), NameReply::Done);
        is_found(launch.ask(0, look(name)), name);
    }
    assert_eq!(launch.ask(2, publish("bound")), NameReply::Done);
    let named = entries(&place, None, "(wireupId=A%20name)");
    for line in [
        "objectClass: wireupName",
        "wireupPort: port of A name",
        "wireupOwner: rank 1 of one",
        "wireupExpires: 20",
    ] {
        assert!(named.contains(line), "{line}: {named}");
    }
    assert!(!named.contains("wireupSession"), "{named}");
    let bound = entries(&place, None, "(wireupId=bound)");
    assert!(bound.contains("wireupSession: "), "{bound}");
    if rustix::process::geteuid().is_root() {
        let visible = entries(&place, Some(OTHER), "(objectClass=*)");
        assert!(!visible.contains("wireup"), "{visible}");
    }
}

#[test]
fn leftovers_of_killed_launch_are_removed_by_next() {
    let Some(place) = place_to_search() else {
        return;
    };
    let (mut first, mut second) = (place.launch("one"), place.launch("two"));
    assert_eq!(first.ask(0, publish("a")), NameReply::Done);
    first.kill();
    await_gone(&mut second, "a");
    assert!(entries(&place, None, "(wireupId=a)").contains("wireupRecord"));
    assert_eq!(second.ask(0, publish("b")), NameReply::Done);
    eventually("it is removed, with its launch", || {
        let launches = entries(&place, None, "(objectClass=wireupLaunch)");
        let is_gone = entries(&place, None, "(wireupId=a)").is_empty();
        (is_gone && launches.matches("dn: ").count() == 1).then_some(())
    });
    is_found(second.ask(0, look("b")), "b");
}
