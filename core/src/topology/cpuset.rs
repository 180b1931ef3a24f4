//! Sets of CPUs, as the system numbers them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The highest number of a CPU plus one: eight times the most CPUs that Linux supports.
pub const CPUS_MAX: u32 = 1 << 16;

const BITS: u32 = u64::BITS;

/// A set of CPUs. Sets with the same CPUs are equal.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct CpuSet {
    /// 64 CPUs each, without zeros at the end.
    words: Vec<u64>,
}

/// A text that is no set of CPUs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid CPU set `{0}`: use numbers below {CPUS_MAX}")]
pub struct CpuSetError(String);

impl CpuSet {
    /// Adds a CPU; one that no machine has is left out.
    pub fn insert(&mut self, cpu: u32) {
        if cpu >= CPUS_MAX {
            return;
        }
        let (word, bit) = ((cpu / BITS) as usize, cpu % BITS);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << bit;
    }

    pub fn contains(&self, cpu: u32) -> bool {
        let word = self.words.get((cpu / BITS) as usize);
        word.is_some_and(|word| word & 1 << (cpu % BITS) != 0)
    }

    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the number of CPUs.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let all = (0_u32..).zip(&self.words);
        all.flat_map(|(at, word)| {
            let set = (0..BITS).filter(move |bit| word & 1 << bit != 0);
            set.map(move |bit| at * BITS + bit)
        })
    }

    /// Returns the CPUs that are in both sets.
    pub fn and(&self, other: &Self) -> Self {
        let both = self.words.iter().zip(&other.words);
        Self::trimmed(both.map(|(one, other)| one & other).collect())
    }

    /// Returns the CPUs that are in at least one set.
    pub fn or(&self, other: &Self) -> Self {
        let (short, long) = match self.words.len() < other.words.len() {
            true => (self, other),
            false => (other, self),
        };
        let mut words = long.words.clone();
        let both = words.iter_mut().zip(&short.words);
        both.for_each(|(word, more)| *word |= more);
        Self { words }
    }

    /// Returns the CPUs that the other set lacks.
    pub fn without(&self, other: &Self) -> Self {
        let others = other.words.iter().chain(std::iter::repeat(&0));
        let both = self.words.iter().zip(others);
        Self::trimmed(both.map(|(one, other)| one & !other).collect())
    }

    /// Whether a CPU is in both.
    pub fn meets(&self, other: &Self) -> bool {
        let mut both = self.words.iter().zip(&other.words);
        both.any(|(one, other)| one & other != 0)
    }

    /// Whether the other has all of these.
    pub fn is_within(&self, other: &Self) -> bool {
        self.without(other).is_empty()
    }

    /// Returns the set as 64-bit words, lowest CPUs first.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    fn trimmed(mut words: Vec<u64>) -> Self {
        let last = words.iter().rposition(|word| *word != 0);
        words.truncate(last.map_or(0, |last| last + 1));
        Self { words }
    }

    /// Parses hwloc's form: words of 32 bits in hexadecimal with commas between them, the highest first. A leading
    /// `0xf...f` means all higher CPUs, which a set cannot hold, and so is an error. Source: hwloc_bitmap_snprintf.
    ///
    /// # Errors
    /// [`CpuSetError`] for any other text.
    pub fn from_hwloc(text: &str) -> Result<Self, CpuSetError> {
        let error = || CpuSetError(text.to_owned());
        let mut set = Self::default();
        for (at, word) in (0_u32..).zip(text.trim().rsplit(',')) {
            let digits = word.trim_start_matches("0x");
            let bits = match digits.is_empty() {
                // An empty word has no CPUs.
                true => 0,
                false => u32::from_str_radix(digits, 16).map_err(|_| error())?,
            };
            if bits != 0 && at >= CPUS_MAX / u32::BITS {
                return Err(error());
            }
            let set_bits = (0..u32::BITS).filter(|bit| bits & 1 << bit != 0);
            set_bits.for_each(|bit| set.insert(at * u32::BITS + bit));
        }
        Ok(set)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<T: IntoIterator<Item = u32>>(cpus: T) -> Self {
        let mut set = Self::default();
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

/// `0-3,8`, as the kernel writes it.
impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last && last < CPUS_MAX).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = match text.trim() {
            "" => Some(Vec::new()),
            text => text.split(',').map(range).collect(),
        };
        let ranges = ranges.ok_or_else(|| CpuSetError(text.to_owned()))?;
        Ok(ranges.into_iter().flatten().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ranges(self.iter()))
    }
}

/// Formats ascending numbers as `0-3,6`.
pub fn ranges(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_sets_parse_as_written_by_hwloc_and_kernel() {
        let list = |text: &str| text.parse::<CpuSet>().unwrap();
        assert_eq!(CpuSet::from_hwloc("0x00000003"), Ok(list("0-1")));
        assert_eq!(CpuSet::from_hwloc("0xff,,0x1"), Ok(list("0,64-71")));
        assert_eq!(
            CpuSet::from_hwloc("0x0000ff00,0x00000000"),
            Ok(list("40-47"))
        );
        assert_eq!(CpuSet::from_hwloc("0x0"), Ok(CpuSet::default()));
        assert!(CpuSet::from_hwloc("0xf...f").is_err());
        for bad in ["a", "1-", "3-1", "0-65536", "1,,2"] {
            assert!(bad.parse::<CpuSet>().is_err(), "{bad}");
        }
        assert_eq!(list("8,0-2,1,64").to_string(), "0-2,8,64");
    }

    #[test]
    fn sets_are_combined_and_compared_by_their_cpus() {
        let list = |text: &str| text.parse::<CpuSet>().unwrap();
        let (low, high) = (list("0-3"), list("3,70"));
        assert_eq!(low.and(&high), list("3"));
        assert_eq!(low.or(&high), list("0-3,70"));
        assert_eq!(high.without(&list("70")), list("3"));
        assert_eq!(high.without(&low), list("70"));
        assert!(low.meets(&high) && !low.is_within(&high) && list("3").is_within(&high));
        assert_eq!((high.len(), list("").is_empty()), (2, true));
    }
}
