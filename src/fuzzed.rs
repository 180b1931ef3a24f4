//! The fuzz targets on a stable compiler: each runs over its corpus, and over many changes of it made
//! from a fixed seed, so a failure here is a failure everywhere.
//!
//! `WIREUP_FUZZ_ROUNDS` and `WIREUP_FUZZ_SEED` in the environment make other or longer runs of
//! these; `scripts/fuzz` searches guided by coverage.

mod mutate;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use mutate::Random;

/// Rounds for each target: seconds in a debug build.
const ROUNDS: u64 = 10_000;

const SEED: u64 = 0x5eed_0001;

/// An input is rarely longer: long inputs do not find faults sooner.
const LONGEST: usize = 16 * 1024;

type Target = fn(&[u8]);

/// Every decoder of untrusted bytes. The names are those of `fuzz/fuzz_targets`.
const TARGETS: [(&str, Target); 9] = [
    ("carried", crate::fuzzing::carried),
    ("elf", crate::inspect::elf::fuzzing::elf),
    ("files", crate::fuzzing::files),
    ("frame", wireup_core::pmix::fuzzing::frame),
    ("impi", wireup_impi_core::fuzzing::impi),
    ("link", wireup_core::fuzzing::link),
    ("pmi1", wireup_core::pmi::fuzzing::pmi1),
    ("pmi_gate", wireup_core::pmi::fuzzing::gate),
    ("pmi2", wireup_core::pmi::fuzzing::pmi2),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// Streams of random messages between hosts; they change with the messages, so none are stored.
const STREAMS: usize = 400;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    match name {
        "carried" => return crate::fuzzing::carried_seeds(STREAMS),
        "link" => return wireup_core::fuzzing::link_seeds(STREAMS),
        _ => {}
    }
    let entries = std::fs::read_dir(folder().join("corpus").join(name)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{name} has no corpus");
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

fn setting(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| {
        let digits = text.strip_prefix("0x").map(|hex| (hex, 16));
        let (digits, radix) = digits.unwrap_or((&text, 10));
        u64::from_str_radix(digits, radix).unwrap_or_else(|_| panic!("{name}={text}: a number"))
    })
}

/// Runs a target over its corpus and changes of it.
fn run(name: &str) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).unwrap();
    let corpus = corpus(name);
    let (seed, rounds) = (
        setting("WIREUP_FUZZ_SEED", SEED),
        setting("WIREUP_FUZZ_ROUNDS", ROUNDS),
    );
    corpus.iter().for_each(|input| target(input));
    for round in 0..rounds {
        let seed = seed.wrapping_add(round);
        let input = mutate::changed(&corpus, LONGEST, &mut Random::new(seed));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&input))) {
            // Where cargo-fuzz puts its own; not under version control.
            let artifacts = folder().join("artifacts").join(name);
            std::fs::create_dir_all(&artifacts).unwrap();
            let file = artifacts.join(format!("seed-{seed:x}"));
            std::fs::write(&file, &input).unwrap();
            eprintln!(
                "{name} broke with WIREUP_FUZZ_SEED={seed:#x} WIREUP_FUZZ_ROUNDS=1; \
                 the input is in {}: add it to fuzz/corpus/{name}",
                file.display()
            );
            resume_unwind(panic);
        }
    }
}

#[test]
fn every_fuzz_target_runs_as_test() {
    let entries = std::fs::read_dir(folder().join("fuzz_targets")).unwrap();
    let files: BTreeSet<String> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let here: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(files, here);
    let manifest = std::fs::read_to_string(folder().join("Cargo.toml")).unwrap();
    for name in &files {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
}

#[test]
fn any_elf_file_is_safe_for_parser() {
    run("elf");
}

#[test]
fn any_foreign_file_or_line_is_safe_for_parser() {
    run("files");
}

#[test]
fn any_step_message_is_safe_for_launcher() {
    run("carried");
}

#[test]
fn any_bytes_are_safe_for_sidecar_link() {
    run("frame");
}

#[test]
fn any_bytes_of_other_host_are_safe_for_node() {
    run("link");
}

#[test]
fn any_bytes_are_safe_for_impi_protocols() {
    run("impi");
}

#[test]
fn any_bytes_are_safe_for_pmi_server() {
    run("pmi1");
}

#[test]
fn any_bytes_are_safe_for_pmi_server_with_pmi2_ranks() {
    run("pmi2");
}

#[test]
fn connection_to_rank_port_survives_any_bytes() {
    run("pmi_gate");
}
