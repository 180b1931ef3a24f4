//! Values and products of two sets of values that tests run with: all of them, or few that change with the run.

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

/// Returns the values that a test runs with, in their order.
///
/// With `WIREUP_TEST_ROTATION=N`, at most `count` of them, which the number and the name of the test choose. So each value
/// occurs in some runs.
pub fn sample<T>(mut values: Vec<T>, count: usize) -> Vec<T> {
    if let Some(rotation) = rotation()
        && count < values.len()
    {
        let first = rotation % values.len();
        values.rotate_left(first);
        values.truncate(count);
    }
    values
}

/// Number that chooses the values of this test, unless all are wanted.
fn rotation() -> Option<usize> {
    let number: u64 = std::env::var("WIREUP_TEST_ROTATION").ok()?.parse().ok()?;
    let mut hasher = DefaultHasher::new();
    std::thread::current().name().hash(&mut hasher);
    // Neighbouring runs differ whatever the name is.
    usize::try_from(hasher.finish().wrapping_add(number) % (1 << 30)).ok()
}

/// Makes tests of each MPI: `for_each_mpi!(mpich5 impi: { name => |mpi| check(&mpi), })` makes `mpich5::name` and `impi::name`. The
/// function gets the [`Mpi`](crate::Mpi); the test is ignored where that MPI is not installed.
#[macro_export]
macro_rules! for_each_mpi {
    (@ $mpi:ident { $($test:ident => $check:expr),* $(,)? }) => {
        mod $mpi {
            use super::*;

            $(
                #[$crate::test]
                fn $test() {
                    let check: fn($crate::Mpi) = $check;
                    if let Some(mpi) = $crate::mpi(stringify!($mpi)) {
                        check(mpi);
                    }
                }
            )*
        }
    };
    ($($mpi:ident)*: $tests:tt) => {
        $($crate::for_each_mpi!(@ $mpi $tests);)*
    };
}
