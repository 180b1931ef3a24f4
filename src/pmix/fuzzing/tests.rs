//! The fuzz target as a plain test: its corpus, and seeded random changes of it.

use std::path::Path;

use super::*;
use crate::pmix::control::serve::{self, Body};
use crate::pmix::control::{ForkEnv, Hello, HostNotice, Refusal};

const ROUNDS: u64 = 30_000;

/// splitmix64
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/frame");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

/// One input per message of the control socket; those of the upcall socket are golden vectors.
fn control_inputs() -> Vec<(String, Vec<u8>)> {
    let refusal = Refusal {
        status: Status::ERR_NOT_FOUND,
        text: "gone".into(),
    };
    let env = ForkEnv {
        common: vec![("A".into(), "1".into())],
        clients: vec![(Rank(0), vec![("B".into(), "2".into())])],
    };
    let hello = Hello {
        libpmix: "OpenPMIx".into(),
        warnings: vec!["old".into()],
    };
    let mut inputs = [
        ("hello", HostNotice::Hello(hello)),
        ("warning", HostNotice::Warning("beware".into())),
    ]
    .map(|(name, notice)| (name.to_owned(), serve::notice(&notice).unwrap()))
    .to_vec();
    for (control, id) in every_request().into_iter().zip(1..) {
        let kind = control.kind();
        let body = match kind {
            super::super::control::ControlKind::RegisterJob => Body::ForkEnv(&env),
            super::super::control::ControlKind::DirectModex => Body::Data(b"abc"),
            _ => Body::Done,
        };
        let mut both = serve::reply(kind, id, Ok(body)).unwrap();
        both.extend(control.encode(id).unwrap());
        inputs.push((format!("{kind:?}"), both));
        inputs.push((
            format!("{kind:?}-refused"),
            serve::reply(kind, id, Err(&refusal)).unwrap(),
        ));
    }
    inputs
}

#[test]
fn the_corpus_has_every_message_of_both_sockets() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = folder.join("shim/tests/golden/c");
    let mut inputs: Vec<(String, Vec<u8>)> = control_inputs()
        .into_iter()
        .map(|(name, bytes)| (name, [b"\x01\x20", bytes.as_slice()].concat()))
        .collect();
    for entry in std::fs::read_dir(golden).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "bin") {
            let bytes = std::fs::read(&path).unwrap();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            inputs.push((name, [b"\x00\x20", bytes.as_slice()].concat()));
        }
    }
    for (name, bytes) in inputs {
        let stored = folder.join("fuzz/corpus/frame").join(&name);
        if std::env::var_os("WIREUP_WRITE_GOLDEN").is_some() {
            std::fs::write(&stored, &bytes).unwrap();
        }
        assert!(
            std::fs::read(&stored).unwrap() == bytes,
            "{name} is out of date"
        );
    }
}

#[test]
fn corpus_and_seeded_changes_of_it_break_no_promise() {
    let corpus = corpus();
    corpus.iter().for_each(|input| frame(input));
    for round in 0..ROUNDS {
        let mut random = Random(round);
        let mut input = corpus[random.below(corpus.len())].clone();
        if random.below(4) == 0 {
            let other = &corpus[random.below(corpus.len())];
            input.extend_from_slice(&other[random.below(other.len())..]);
        }
        for _ in 0..random.below(5) {
            let at = random.below(input.len());
            input[at] = match random.below(3) {
                0 => random.below(256) as u8,
                1 => random.below(40) as u8,
                _ => input[at] ^ (1 << random.below(8)),
            };
        }
        input.truncate(1 + random.below(input.len() * 2));
        if let Err(panic) = std::panic::catch_unwind(|| frame(&input)) {
            eprintln!("round {round}: {input:?}");
            std::panic::resume_unwind(panic);
        }
    }
}
