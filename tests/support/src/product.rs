//! Products of two sets of values: all combinations, or few in which each value occurs.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Returns the combinations of two sets of values.
///
/// With `WIREUP_TEST_ROTATION=N`, as `scripts/test` sets it without `--full`, only as many as the larger set has: each
/// value occurs, and the number and the name of the test choose which ones meet. So all combinations are met in some runs.
pub fn combinations<A: Clone, B: Clone>(first: &[A], second: &[B]) -> Vec<(A, B)> {
    let pair = |one: usize, other: usize| (first[one].clone(), second[other].clone());
    match rotation() {
        None => (0..first.len())
            .flat_map(|one| (0..second.len()).map(move |other| pair(one, other)))
            .collect(),
        Some(_) if first.is_empty() || second.is_empty() => Vec::new(),
        Some(rotation) => (0..first.len().max(second.len()))
            .map(|at| pair(at % first.len(), (at + rotation) % second.len()))
            .collect(),
    }
}

/// Number that chooses the combinations of this test, unless all are wanted.
fn rotation() -> Option<usize> {
    let number: u64 = std::env::var("WIREUP_TEST_ROTATION").ok()?.parse().ok()?;
    let mut hasher = DefaultHasher::new();
    std::thread::current().name().hash(&mut hasher);
    // Neighbouring runs differ whatever the name is.
    usize::try_from(hasher.finish().wrapping_add(number) % (1 << 30)).ok()
}
