//! The fuzz target as a plain test: its corpus, and seeded random input.

use std::fs;
use std::path::Path;

use crate::pmi::fuzzing::{KVSNAME, pmi1};

/// Fixed: a failure here is a failure everywhere.
const SEED: u64 = 0x5eed_0001;

const ITERATIONS: u64 = 20_000;

/// Pieces that random input is made of, so that it gets past the first comparison.
const WORDS: &[&str] = &[
    "cmd=init pmi_version=1 pmi_subversion=1\n",
    "cmd=init pmi_version=2 pmi_subversion=0\n",
    "cmd=get_maxes\n",
    "cmd=get_my_kvsname\n",
    "cmd=barrier_in\n",
    "cmd=barrier_in\n",
    "cmd=barrier_in group=NODE:1\n",
    "cmd=put kvsname=job.0 key=k value=v\n",
    "cmd=put kvsname=job.0 key=k value=\n",
    "cmd=get kvsname=job.0 key=k\n",
    "cmd=get kvsname=job.0 key=PMI_process_mapping\n",
    "cmd=publish_name service=a b port=p q\n",
    "cmd=lookup_name service=a\n",
    "cmd=unpublish_name service=a\n",
    "cmd=abort exitcode=3 message=no more\n",
    "cmd=finalize\n",
    "mcmd=spawn\n",
    "nprocs=1\n",
    "execname=a\n",
    "totspawns=1\n",
    "spawnssofar=1\n",
    "argcnt=4294967295\n",
    "arg1=\n",
    "endcmd\n",
    "cmd=",
    "mcmd=",
    " kvsname=",
    " key=",
    " value=",
    " service=",
    " port=",
    " message=",
    "=",
    " ",
    "\n",
    "\0",
];

struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Says which iteration failed; `iteration` with that seed repeats it.
struct Failing(u64);

impl Drop for Failing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failing seed: {:#x}", self.0);
        }
    }
}

fn iteration(seed: u64, corpus: &[Vec<u8>]) {
    let _failing = Failing(seed);
    // Xorshift needs a state other than 0, and seeds that differ by 1 must not look alike.
    let mut random = XorShift(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut input = Vec::new();
    if random.below(4) == 0 {
        input.extend_from_slice(&corpus[random.below(corpus.len())]);
        for _ in 0..random.below(8) {
            let at = random.below(input.len());
            input[at] = random.next() as u8;
        }
        input.truncate(random.below(2 * input.len()).max(2));
    } else {
        // Every rank starts properly more often than not.
        for rank in 0..random.below(4) {
            step(&mut input, rank as u8, WORDS[0].as_bytes());
        }
        for _ in 0..random.below(24) {
            let mut text = Vec::new();
            for _ in 0..=random.below(3) {
                match random.below(8) {
                    0 => text.push(random.next() as u8),
                    _ => text.extend_from_slice(WORDS[random.below(WORDS.len())].as_bytes()),
                }
            }
            let kind = match random.below(8) {
                0 => 60 + random.below(4) as u8,
                _ => 0,
            };
            step(&mut input, kind << 2 | random.below(3) as u8, &text);
        }
    }
    pmi1(&input);
}

fn step(input: &mut Vec<u8>, head: u8, bytes: &[u8]) {
    for piece in bytes.chunks(255) {
        input.push(head);
        input.push(piece.len() as u8);
        input.extend_from_slice(piece);
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/pmi1");
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn no_input_breaks_a_promise_of_the_server() {
    assert_eq!(KVSNAME, "job.0", "the words above use it");
    let corpus = corpus();
    for input in &corpus {
        pmi1(input);
    }
    for index in 0..ITERATIONS {
        iteration(SEED + index, &corpus);
    }
}
