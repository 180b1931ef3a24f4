//! `wireup names` in each store.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use crate::common::{eventually, wireup};
use crate::contract::{publish, publish_as};
use crate::places::Place;
use wireup_core::names::request::{NameReply, Persistence, ValueLimits};

fn command(place: &Place, words: &[&str]) -> Command {
    let mut command = Command::new(wireup());
    command
        .args(["names", words[0], "--names", place.backend()])
        .args(&words[1..]);
    command.env_remove("WIREUP_MEET").envs(place.variables());
    command
}

fn run(place: &Place, words: &[&str]) -> Output {
    command(place, words).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Child process that watches names, and its output.
struct Watch(Child, BufReader<ChildStdout>);

impl Watch {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn names_are_shown_watched_and_withdrawn(place: &Place) {
    let mut watch = command(place, &["watch"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(watch.stdout.take().unwrap());
    let mut watch = Watch(watch, out);
    let mut launch = place.launch("one");
    let limits = ValueLimits {
        expires: None,
        reads: std::num::NonZeroU32::new(3),
    };
    let publication = publish_as("a name", Persistence::Indefinite, limits);
    assert_eq!(launch.ask(1, publication), NameReply::Done);
    assert_eq!(watch.line(), "+ 'a name' 'port of a name'\n");
    assert_eq!(launch.ask(2, publish("b")), NameReply::Done);
    assert_eq!(watch.line(), "+ b 'port of b'\n");

    let table = text(&run(place, &["ls"]));
    let lines: Vec<String> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        lines,
        [
            "NAME RANK UNTIL EXPIRES LOOKUPS VALUE",
            "'a name' 1 of one until withdrawn - 3 'port of a name'",
            "b 2 of one launch - - 'port of b'",
        ]
    );
    let json = text(&run(place, &["ls", "--json"]));
    for part in [
        "\"name\":\"a name\"",
        "\"lookups\":3",
        "\"rank\":2",
        "\"value\":\"port of b\"",
    ] {
        assert!(json.contains(part), "{part}: {json}");
    }
    assert_eq!(text(&run(place, &["rm", "a name"])), "");
    assert_eq!(watch.line(), "- 'a name' 'port of a name'\n");
    let again = run(place, &["rm", "a name"]);
    assert_eq!(again.status.code(), Some(125));
    assert_eq!(
        String::from_utf8_lossy(&again.stderr),
        "wireup: \"a name\" is not published\n"
    );
    drop(launch);
    assert_eq!(watch.line(), "- b 'port of b'\n");
    eventually("nothing is listed", || {
        (text(&run(place, &["ls", "--json"])) == "[]\n").then_some(())
    });
}

#[test]
fn names_in_files_are_shown_watched_and_withdrawn() {
    if let Some(place) = Place::file() {
        names_are_shown_watched_and_withdrawn(&place);
    }
}

#[test]
fn names_in_etcd_are_shown_watched_and_withdrawn() {
    if let Some(place) = Place::etcd() {
        names_are_shown_watched_and_withdrawn(&place);
    }
}

#[test]
fn names_in_directory_are_shown_watched_and_unpublished() {
    if let Some(place) = Place::ldap() {
        names_are_shown_watched_and_withdrawn(&place);
    }
}

#[test]
fn unreachable_store_is_named_with_reason() {
    if let Some(place) = Place::file() {
        place.go();
        let refused = run(&place, &["ls"]);
        assert_eq!(refused.status.code(), Some(125));
        let err = String::from_utf8_lossy(&refused.stderr);
        let words = format!("wireup: --names {}: ", place.backend());
        assert!(
            err.starts_with(&words) && err.contains("No such file or directory"),
            "{err}"
        );
    }
}

#[test]
fn machine_without_published_names_lists_none() {
    // Each ends the rendezvous that it has started, on which the next one may come.
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..10 {
        let mut command = Command::new(wireup());
        command.args([
            "names",
            "ls",
            "--json",
            "--meet",
            dir.path().file_name().unwrap().to_str().unwrap(),
        ]);
        command
            .env_remove("WIREUP_NAMES")
            .env("XDG_RUNTIME_DIR", dir.path());
        assert_eq!(text(&command.output().unwrap()), "[]\n");
    }
}
