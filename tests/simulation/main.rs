//! Many state machines under one seeded scheduler that delays, reorders, repeats and kills.
//!
//! Each test runs some hundred seeds. A failing seed is printed; run it alone with
//! `WIREUP_SIM_SEED=<seed> cargo test --test simulation <test>`.

mod fence;
mod fence_cost;
mod first_failure;
mod launch;
mod modex;
mod net;
mod pmi;
mod scale;

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of parts of the seeds; one part runs where `WIREUP_TEST_ROTATION=N` is set, as `scripts/test` does without
/// `--full`. N selects the part.
const PARTS: u64 = 8;

/// Runs a scenario with many seeds, or with those that the environment names, on all processors.
fn for_each_seed(seeds: u64, scenario: impl Fn(u64) + Sync) {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().expect("a number"))
    };
    let part = number("WIREUP_TEST_ROTATION").map(|rotation| {
        let count = seeds.div_ceil(PARTS);
        (rotation % PARTS * count, count)
    });
    let (first, count) = match (number("WIREUP_SIM_SEED"), number("WIREUP_SIM_COUNT"), part) {
        (Some(seed), None, _) => return scenario(seed),
        (None, None, Some(part)) => part,
        (first, count, _) => (first.unwrap_or(0), count.unwrap_or(seeds)),
    };
    let next = AtomicU64::new(first);
    let run = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return;
            }
            if catch_unwind(AssertUnwindSafe(|| scenario(seed))).is_err() {
                next.store(first + count, Ordering::Relaxed);
                panic!("failed with seed {seed}: WIREUP_SIM_SEED={seed} runs it alone");
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(run);
        }
    });
}
