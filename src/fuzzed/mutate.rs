//! Inputs made from other inputs, without luck: the same seed gives the same input.

/// splitmix64
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn pick<'a, X: ?Sized>(&mut self, from: &[&'a X]) -> &'a X {
        from[self.below(from.len())]
    }

    /// A part of `0..length`, short more often than long.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let most = (length - start).min(1 << self.below(10));
        start..start + self.below(most + 1)
    }
}

/// Bytes that parsers look for, and numbers at which they change their mind.
const WORDS: [&[u8]; 16] = [
    b"\0",
    b"\n",
    b" ",
    b"=",
    b";",
    b"cmd=",
    b"mcmd=",
    b"-1",
    b"4294967295",
    b"99999999999999999999",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\x80",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x01\0\0\0\0\0\0\0",
];

/// An input of the corpus with a few changes.
pub(crate) fn changed(corpus: &[Vec<u8>], longest: usize, random: &mut Random) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(8) {
        change(&mut input, corpus, random);
    }
    input.truncate(longest);
    input
}

fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    if input.is_empty() {
        input.extend_from_slice(random.pick(&WORDS));
    }
    let at = random.below(input.len());
    match random.below(10) {
        0 => input[at] ^= 1 << random.below(8),
        1 => input[at] = random.next() as u8,
        2 => input[at] = input[at].wrapping_add([1, 255][random.below(2)]),
        3 => {
            let word = random.pick(&WORDS);
            let end = (at + word.len()).min(input.len());
            input[at..end].copy_from_slice(&word[..end - at]);
        }
        4 => drop(input.splice(at..at, random.pick(&WORDS).iter().copied())),
        5 => drop(input.drain(random.range(input.len()))),
        6 => {
            // A part twice, next to itself or elsewhere.
            let part = input[random.range(input.len())].to_vec();
            drop(input.splice(at..at, part));
        }
        7 => {
            let other = &corpus[random.below(corpus.len())];
            let part = other[random.range(other.len())].to_vec();
            drop(input.splice(at..at, part));
        }
        8 => {
            // Digits in place of digits.
            let digits = input.iter().skip(at).position(u8::is_ascii_digit);
            if let Some(found) = digits {
                input[at + found] = b'0' + random.below(10) as u8;
            }
        }
        _ => input.truncate(at),
    }
}

#[test]
fn same_seed_gives_same_input_and_other_seeds_differ() {
    let corpus = [b"cmd=init pmi_version=1\n".to_vec(), vec![0; 64]];
    let all: Vec<Vec<u8>> = (0..200)
        .map(|seed| changed(&corpus, 1000, &mut Random::new(seed)))
        .collect();
    let again: Vec<Vec<u8>> = (0..200)
        .map(|seed| changed(&corpus, 1000, &mut Random::new(seed)))
        .collect();
    assert_eq!(all, again);
    let different: std::collections::BTreeSet<_> = all.iter().collect();
    assert!(different.len() > 150, "{}", different.len());
}
