//! Many state machines under one seeded scheduler that delays, reorders, repeats and kills.
//!
//! Each test runs some hundred seeds. A failing seed is printed; run it alone with
//! `WIREUP_SIM_SEED=<seed> cargo test --test simulation <test>`.

mod fence;
mod fence_cost;
mod first_failure;
mod modex;
mod net;
mod pmi;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a scenario with many seeds, or with the one given in the environment.
fn for_each_seed(seeds: u64, scenario: impl Fn(u64)) {
    if let Ok(seed) = std::env::var("WIREUP_SIM_SEED") {
        return scenario(seed.parse().expect("WIREUP_SIM_SEED is a number"));
    }
    for seed in 0..seeds {
        if catch_unwind(AssertUnwindSafe(|| scenario(seed))).is_err() {
            panic!("failed with seed {seed}: WIREUP_SIM_SEED={seed} runs it alone");
        }
    }
}
