//! Captured client bytes against the exact answers of this server.
#![allow(clippy::disallowed_methods, reason = "tests read files")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;

/// All transcripts, as name and text.
pub(super) fn all() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/transcripts");
    let mut found: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .map(|(name, path)| (name, fs::read_to_string(path).unwrap()))
        .collect();
    found.sort();
    assert!(found.len() >= 34, "transcripts are missing: {folder:?}");
    found
}

/// Splits a line at its first word.
fn word(line: &str) -> (&str, &str) {
    line.split_once(' ').unwrap_or((line, ""))
}

/// The job a transcript's header describes.
fn job(text: &str) -> Job {
    let header = |key: &str| -> Vec<&str> {
        text.lines()
            .map(word)
            .filter(|(name, _)| *name == key)
            .map(|(_, rest)| rest)
            .collect()
    };
    let blocks = header("map")[0].split(' ').map(|block| {
        let (node, count) = block.split_once(':').unwrap();
        (NodeId(node.parse().unwrap()), count.parse().unwrap())
    });
    let map = ProcessMap::from_runs(blocks);
    let node = NodeId(header("node")[0].parse().unwrap());
    let appnum = AppNum(header("appnum")[0].parse().unwrap());
    let info = PmiJobInfo {
        kvsname: Nspace::new(header("kvsname")[0]).unwrap(),
        appnums: vec![appnum; map.local_size(node) as usize],
        universe_size: header("universe")[0].parse().ok(),
        attributes: header("attribute")
            .into_iter()
            .map(|line| (word(line).0.to_owned(), word(line).1.into()))
            .collect(),
        preputs: header("preput")
            .into_iter()
            .map(|line| (word(line).0.into(), word(line).1.into()))
            .collect(),
        spawner: header("spawner")
            .first()
            .map(|name| Nspace::new(name).unwrap()),
    };
    let local_size = map.local_size(node);
    let mut job = Job::with(info, &map, node);
    if header("groups") == ["no"] {
        for rank in (0..local_size).map(LocalRank) {
            job.server.note_client(rank, false);
        }
    }
    job
}

/// `key=value` pairs between blanks as nodes contribute them.
fn entries(text: &str) -> Vec<u8> {
    let mut all = Vec::new();
    for pair in text.split(' ').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap();
        kvs::encode_entry(key.as_bytes(), &unescape(value), &mut all);
    }
    all
}

/// Plays a transcript; `pieces` says how many bytes of what is left to send go into one read.
fn play(name: &str, text: &str, mut pieces: impl FnMut(usize) -> usize) {
    let mut job = job(text);
    for line in text.lines() {
        let context = || format!("{name}: {line}");
        let (first, rest) = word(line);
        let mut effects = Vec::new();
        match first {
            "#" | "kvsname" | "map" | "node" | "universe" | "appnum" | "attribute" | "preput"
            | "spawner" | "groups" => {}
            "release" => {
                assert!(job.effects.is_empty(), "{}: {:?}", context(), job.effects);
                effects.extend(job.release(Ok(&entries(rest))));
            }
            "end" => {
                let (group, pairs) = word(rest);
                assert!(job.effects.is_empty(), "{}: {:?}", context(), job.effects);
                effects.extend(job.end(&barrier(group), Ok(&entries(pairs))));
            }
            "ring" => {
                let mut all = Vec::new();
                for entry in rest.split(' ') {
                    let [rank, left, right] = entry.split(':').collect::<Vec<_>>()[..] else {
                        panic!("{}", context());
                    };
                    let rank = rank.parse::<u32>().unwrap().to_le_bytes();
                    let key = [&rank[..], &rank, left.as_bytes()].concat();
                    kvs::encode_entry(&key, right.as_bytes(), &mut all);
                }
                assert!(job.effects.is_empty(), "{}: {:?}", context(), job.effects);
                effects.extend(job.end(&PmiCollective::Ring, Ok(&all)));
            }
            "spawned" => {
                let (rank, outcome) = word(rest);
                let result = match word(outcome) {
                    ("refused", why) => Err(SpawnFailure {
                        kind: SpawnFailureKind::Failed,
                        text: why.to_owned(),
                    }),
                    (name, _) => Ok(Nspace::new(name).unwrap()),
                };
                assert!(job.effects.is_empty(), "{}: {:?}", context(), job.effects);
                effects.extend(job.spawned(rank.parse().unwrap(), &result));
            }
            "answer" => {
                let (rank, answer) = word(rest);
                let answer = match word(answer) {
                    ("done", _) => NameAnswer::Done,
                    ("port", port) => NameAnswer::Port(port.as_bytes()),
                    ("refused", why) => NameAnswer::Refused(why),
                    other => panic!("{}: {other:?}", context()),
                };
                assert!(job.effects.is_empty(), "{}: {:?}", context(), job.effects);
                effects.extend(job.answer(rank.parse().unwrap(), answer));
            }
            _ if rest.starts_with("C> ") => {
                assert!(job.effects.is_empty(), "{}: {:?}", context(), job.effects);
                let bytes = unescape(&rest[3..]);
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (piece, after) = rest.split_at(pieces(rest.len()).clamp(1, rest.len()));
                    job.feed(first.parse().unwrap(), piece);
                    rest = after;
                }
            }
            _ => assert_eq!(job.effects.pop_front().as_deref(), Some(line), "{name}"),
        }
        job.effects.extend(effects);
    }
    assert!(job.effects.is_empty(), "{name}: {:?}", job.effects);
}

#[test]
fn every_captured_client_gets_exact_bytes() {
    for (name, text) in all() {
        play(&name, &text, |all| all);
    }
}

#[test]
fn every_captured_client_may_write_byte_by_byte() {
    for (name, text) in all() {
        play(&name, &text, |_| 1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_chunking_gives_same_replies(sizes in prop::collection::vec(1_usize..96, 1..32)) {
        for (name, text) in all() {
            let mut next = sizes.iter().cycle();
            play(&name, &text, |_| *next.next().unwrap());
        }
    }
}
