//! Random faults at random moments of random jobs: the launcher always ends, says what happened and where,
//! claims no success that it has not seen, and nothing stays.
//!
//! A seed stands for all of it, up to the machine's timing. `scripts/faults SEED COUNT` runs many; the
//! test here a few.

mod scenario;
mod trial;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use scenario::{HOSTS, Scenario};
use trial::{Programs, Trial};

use crate::cluster::Cluster;

/// How many clusters are in use at once: most of the time is spent waiting.
const AT_ONCE: usize = 3;

/// Between agents, in seconds: what cannot answer is found out within twice this.
const HEARTBEAT: &str = "3";

/// What the test runs when nothing else is asked for, and one that kills a step and its guard before the guard listens.
const SEEDS: std::ops::Range<u64> = 1..16;
const FIRST_MOMENTS: u64 = 488;

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

#[test]
fn whatever_fails_the_launch_ends_says_why_and_leaves_nothing() {
    let asked = setting("WIREUP_FAULTS_SEED");
    let seeds: Vec<u64> = match asked {
        Some(first) => (first..first + setting("WIREUP_FAULTS_COUNT").unwrap_or(1)).collect(),
        None => SEEDS.chain([FIRST_MOMENTS]).collect(),
    };
    let verbose = asked.is_some();
    let Some(programs) = Programs::find() else {
        return;
    };
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let work = || {
        let mut kept = None;
        loop {
            let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            let new = || Cluster::builder(HOSTS).heartbeat(HEARTBEAT).start();
            let Some(cluster) = kept.take().or_else(new) else {
                return;
            };
            let scenario = Scenario::of(seed);
            let trial = Trial::run(&cluster, &programs, scenario);
            let words = format!("seed {seed}: {scenario:?}\n{trial}");
            if verbose {
                eprintln!("{words}");
            }
            if trial.is_good() {
                kept = Some(cluster);
            } else {
                failures.lock().unwrap().push(words);
                cluster.discard();
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().unwrap();
    let count = failures.len();
    assert_eq!(
        count,
        0,
        "{count} of {} seeds failed:\n{}",
        seeds.len(),
        failures.join("\n")
    );
}
