//! Random faults at random moments of random jobs: the launcher always ends, reports what happened and
//! where, claims no success that it has not seen, and leaves nothing.
//!
//! A seed stands for all of it, up to the machine's timing. `scripts/faults SEED COUNT` runs many,
//! `scripts/soak MINUTES` as many as the time allows; the test here a few.

mod scenario;
mod trial;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use scenario::{HOSTS, Scenario};
use trial::{Programs, Trial};

use crate::cluster::Cluster;
use crate::common::{descriptors, eventually, memory_peak_kib};

/// Number of clusters in use at once: most of the time is spent waiting.
const AT_ONCE: usize = 3;

/// Between agents, in seconds: what cannot answer is found out within twice this.
const HEARTBEAT: &str = "3";

/// Seeds of the test by default, and one that kills a step and its guard before the guard listens.
const SEEDS: std::ops::Range<u64> = 1..16;
const FIRST_MOMENTS: u64 = 488;

/// Number of seeds that exceeds any time limit.
const ENDLESS: u64 = 1 << 20;

/// Resources that an agent may hold after the launches: descriptors, and the peak of its memory, in MiB.
const IDLE: usize = 64;
const MEMORY: u64 = 128;

/// The agents of a cluster have kept nothing of what they have served.
#[track_caller]
fn expect_idle(cluster: &Cluster) {
    for host in 0..HOSTS {
        let agent = cluster.agent(host).pid;
        // Connections are kept for a while.
        eventually("an agent gives back its descriptors", || {
            (descriptors(agent) <= IDLE).then_some(())
        });
        let memory = memory_peak_kib(agent) / 1024;
        assert!(memory <= MEMORY, "agent of host {host}: {memory} MiB");
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

#[test]
fn random_fault_ends_launch_with_cause_and_without_leftovers() {
    let seed = setting("WIREUP_FAULTS_SEED");
    let minutes = setting("WIREUP_FAULTS_MINUTES");
    let until = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let seeds: Vec<u64> = match (seed, setting("WIREUP_FAULTS_COUNT"), until) {
        (Some(first), Some(count), _) => (first..first + count).collect(),
        (Some(first), None, Some(_)) => (first..first + ENDLESS).collect(),
        (Some(first), None, None) => vec![first],
        (None, ..) => SEEDS.chain([FIRST_MOMENTS]).collect(),
    };
    let verbose = seed.is_some();
    let Some(programs) = Programs::find() else {
        return;
    };
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let work = || {
        let mut idle_cluster = None;
        while until.is_none_or(|until| Instant::now() < until) {
            let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            let new = || Cluster::builder(HOSTS).heartbeat(HEARTBEAT).start();
            let Some(cluster) = idle_cluster.take().or_else(new) else {
                return;
            };
            let scenario = Scenario::of(seed);
            let trial = Trial::run(&cluster, &programs, scenario);
            let words = format!("seed {seed}: {scenario:?}\n{trial}");
            if verbose {
                eprintln!("{words}");
            }
            if trial.is_good() {
                idle_cluster = Some(cluster);
            } else {
                failures.lock().unwrap().push(words);
                cluster.discard();
            }
        }
        if let Some(cluster) = &idle_cluster {
            expect_idle(cluster);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().unwrap();
    let count = failures.len();
    let tried = next.into_inner().min(seeds.len());
    eprintln!("{tried} seeds");
    assert_eq!(
        count,
        0,
        "{count} of {tried} seeds failed:\n{}",
        failures.join("\n")
    );
}
