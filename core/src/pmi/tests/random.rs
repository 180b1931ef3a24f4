//! The fuzz targets as plain tests: their corpora, and seeded random input.
#![allow(clippy::disallowed_methods, reason = "tests read files")]

use std::fs;
use std::path::Path;

use crate::pmi::fuzzing::{KVSNAME, pmi1, pmi2};

/// Fixed: a failure here is a failure everywhere.
const SEED: u64 = 0x5eed_0001;

const ITERATIONS: u64 = 20_000;

/// Pieces that random input is made of, so that it gets past the first comparison.
const LINES: &[&str] = &[
    "cmd=init pmi_version=1 pmi_subversion=1\n",
    "cmd=init pmi_version=2 pmi_subversion=0\n",
    "cmd=get_maxes\n",
    "cmd=get_my_kvsname\n",
    "cmd=get_ranks2hosts\n",
    "cmd=barrier_in\n",
    "cmd=barrier_in\n",
    "cmd=barrier_in group=NODE:1\n",
    "cmd=barrier_in group=0,1:2\n",
    "cmd=barrier_in group=0,3:2\n",
    "cmd=barrier_in group=1,0:2\n",
    "cmd=barrier_in group=2:3\n",
    "cmd=barrier_in group=WORLD:4\n",
    "cmd=barrier_in group=WORLD:0\n",
    "cmd=barrier_in group=1,1,x:9\n",
    "cmd=put kvsname=job.0 key=k value=v\n",
    "cmd=put kvsname=job.0 key=k value=\n",
    "cmd=get kvsname=job.0 key=k\n",
    "cmd=get kvsname=job.0 key=PMI_process_mapping\n",
    "cmd=publish_name service=a b port=p q\n",
    "cmd=lookup_name service=a\n",
    "cmd=unpublish_name service=a\n",
    "cmd=abort exitcode=3 message=no more\n",
    "cmd=finalize\n",
    "cmd=restart\n",
    "cmd=restart\n",
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

/// The same for PMI-2. Those that start with `cmd=` and end in `;` get a length in front.
const FRAMES: &[&str] = &[
    "cmd=fullinit;pmirank=0;threaded=TRUE;",
    "cmd=fullinit;srcid=1;",
    "cmd=job-getid;",
    "cmd=job-getid;thrid=0x7f;",
    "cmd=kvs-put;key=k;value=v;",
    "cmd=kvs-put;thrid=3;key=k2;value=a;;b;c;",
    "cmd=kvs-put;key=lines;value=a\nb;",
    "cmd=kvs-get;jobid=job.0;srcid=-1;key=k;",
    "cmd=kvs-get;thrid=4;key=lines;",
    "cmd=kvs-fence;",
    "cmd=kvs-fence;",
    "cmd=kvs-fence;thrid=1;",
    "cmd=info-getjobattr;key=universeSize;",
    "cmd=info-getjobattr;key=PMI_process_mapping;",
    "cmd=info-putnodeattr;key=n;value=v;",
    "cmd=info-getnodeattr;key=n;wait=TRUE;thrid=5;",
    "cmd=info-getnodeattr;key=localRanks;",
    "cmd=name-publish;name=a b;port=p q;infokeycount=0;",
    "cmd=name-lookup;name=a;thrid=6;",
    "cmd=name-unpublish;name=a;thrid=7;",
    "cmd=spawn;ncmds=1;subcmd=a;maxprocs=1;argc=1;argv0=;",
    "cmd=job-connect;jobid=job.0;",
    "cmd=job-connect;jobid=other.1;thrid=2;",
    "cmd=job-disconnect;jobid=other.1;",
    "cmd=kvs-getall;",
    "cmd=kvs-getall;jobid=other.1;thrid=1;",
    "cmd=kvs-get;jobid=other.1;key=k;",
    "cmd=kvs-putall;jobid=other.1;npair=1;",
    "cmd=kvs-putall;thrid=1;jobid=other.1;npair=2;",
    "cmd=kvs-putall-pair;key=k;val=v;",
    "cmd=kvs-putall-pair;thrid=1;key=k;val=v;",
    "cmd=spawn;ncmds=1;preputcount=0;",
    "cmd=spawn-cmd;maxprocs=1;argc=1;argv0=a;",
    "cmd=kvs-put;key=k;concat=1;",
    "cmd=concat;concatid=1;value=v;",
    "cmd=concat;concatid=1;value=v;concat=1;",
    "cmd=ring;ring-count=1;ring-left=a;ring-right=b;",
    "cmd=ring;ring-count=1;ring-left=;ring-right=;thrid=8;",
    "cmd=abort;isworld=TRUE;msg=MPI_Abort(x, 3);",
    "cmd=finalize;",
    "cmd=nonsense;thrid=9;",
    "cmd=init pmi_version=2 pmi_subversion=0\n",
    "cmd=init pmi_version=1 pmi_subversion=1\n",
    "cmd=barrier_in\n",
    "cmd=restart\n",
    "cmd=barrier_in group=0,3:2\n",
    "    14",
    "20    ",
    "999999",
    "cmd=",
    ";;",
    ";",
    "=",
    "\0",
];

/// What one fuzz target is fed with.
struct Target {
    name: &'static str,
    run: fn(&[u8]),
    words: &'static [&'static str],
}

const PMI_1: Target = Target {
    name: "pmi1",
    run: pmi1,
    words: LINES,
};

const PMI_2: Target = Target {
    name: "pmi2",
    run: pmi2,
    words: FRAMES,
};

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

fn iteration(target: &Target, seed: u64, corpus: &[Vec<u8>]) {
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
            step(&mut input, rank as u8, &word(target.words[0]));
        }
        for _ in 0..random.below(24) {
            let mut text = Vec::new();
            for _ in 0..=random.below(3) {
                match random.below(8) {
                    0 => text.push(random.next() as u8),
                    _ => text.extend(word(target.words[random.below(target.words.len())])),
                }
            }
            let kind = match random.below(8) {
                0 => 60 + random.below(4) as u8,
                _ => 0,
            };
            step(&mut input, kind << 2 | random.below(3) as u8, &text);
        }
    }
    (target.run)(&input);
}

/// The bytes of a word: a whole frame's with its length.
fn word(text: &str) -> Vec<u8> {
    let is_frame = text.starts_with("cmd=") && text.ends_with(';');
    match is_frame {
        true => format!("{:<6}{text}", text.len()).into_bytes(),
        false => text.as_bytes().to_vec(),
    }
}

fn step(input: &mut Vec<u8>, head: u8, bytes: &[u8]) {
    for piece in bytes.chunks(255) {
        input.push(head);
        input.push(piece.len() as u8);
        input.extend_from_slice(piece);
    }
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let mut paths: Vec<_> = fs::read_dir(folder.join(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn no_input_breaks_a_promise(target: &Target) {
    assert_eq!(KVSNAME, "job.0", "the words above use it");
    let corpus = corpus(target.name);
    for input in &corpus {
        (target.run)(input);
    }
    for index in 0..ITERATIONS {
        iteration(target, SEED + index, &corpus);
    }
}

#[test]
fn server_keeps_its_invariants_for_any_pmi1_input() {
    no_input_breaks_a_promise(&PMI_1);
}

#[test]
fn server_keeps_its_invariants_for_any_pmi2_input() {
    no_input_breaks_a_promise(&PMI_2);
}
