//! Two users whose jobs run during a test: whether it disturbs them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cluster::{ALICE, BOB, Cluster};
use crate::common::{Outcome, Output, Run, Running, number, pmix, program};
use crate::users::of;

/// A rank on each host.
const EVERYWHERE: [&str; 5] = [
    "--oversubscribe",
    "--hosts",
    "node01:1,node02:1,node03:1",
    "-n",
    "3",
];

const RANKS: u32 = 3;

/// New launches each user makes at least, however short the attack.
const LAUNCHES: usize = 2;

/// Rounds in which the ranks of a running job meet before the attack begins.
const FIRST_ROUNDS: usize = 3;

/// The most the whole may take.
const DEADLINE: Duration = Duration::from_secs(300);

/// Observations of bystanders, see [`during`].
#[derive(Debug)]
#[must_use = "call undisturbed()"]
pub(crate) struct BystanderObservations {
    /// Duration of each new launch, or its failure.
    launches: Vec<Result<Duration, Outcome>>,
    /// The running jobs, which were ordered to end: the name that their ranks print, and their end.
    jobs: Vec<(&'static str, Outcome)>,
    /// The most memory that each host's agent ever had, in MiB.
    memory: Vec<u64>,
}

/// Disturbance that bystanders may notice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most a new launch may take.
    pub(crate) launch: Duration,
    /// The most memory an agent may ever have had, in MiB.
    pub(crate) memory: u64,
}

/// Calls `attack` on a cluster of three hosts with root's agents while Alice (PMIx, from the first host)
/// and Bob (PMI-1, from the second) each have a job running everywhere whose ranks keep meeting, and
/// make new launches one after the other. `None`, and the test is ignored, where the programs are missing.
///
/// What the attack starts must have ended when it returns: nothing may be left on the hosts then.
#[track_caller]
pub(crate) fn during(cluster: &Cluster, attack: impl FnOnce()) -> Option<BystanderObservations> {
    let pmix = pmix("pmix4")?;
    let copy = |path: &Path| cluster.copy(path).to_str().unwrap().to_owned();
    let steady = [
        (0, ALICE, copy(&pmix.dir.join("pmix_steady"))),
        (1, BOB, copy(&program("pmi_steady")?)),
    ];
    let short = copy(&program("pmi_wireup")?);
    let launch = |host, user, program: &str| {
        let run = cluster.run(host, EVERYWHERE).more([program]);
        of(user, run).deadline(DEADLINE)
    };
    let jobs: Vec<Running> = steady
        .iter()
        .map(|(host, user, program)| launch(*host, *user, program).stdin_held().start())
        .collect();
    for job in &jobs {
        job.wait_for_many(Output::Stdout, "_steady rank=", FIRST_ROUNDS * 3);
    }
    let over = AtomicBool::new(false);
    let launches = std::thread::scope(|scope| {
        let launches = [(0, ALICE), (1, BOB)].map(|(host, user)| {
            let (launch, short, over) = (&launch, &short, &over);
            let new = move || launch(host, user, short);
            scope.spawn(move || one_after_the_other(new, over))
        });
        // Also when the attack panics: the scope waits for them.
        let end = Ends(&over);
        attack();
        drop(end);
        launches.map(|thread| thread.join().unwrap())
    });
    let memory = (0..3).map(|host| crate::common::memory_peak_kib(cluster.agent(host).pid) / 1024);
    let memory = memory.collect();
    let names = ["pmix_steady", "pmi_steady"];
    let mut ended = Vec::new();
    for (name, mut job) in names.into_iter().zip(jobs) {
        drop(job.stdin());
        ended.push((name, job.finish()));
    }
    Some(BystanderObservations {
        launches: launches.into_iter().flatten().collect(),
        jobs: ended,
        memory,
    })
}

/// Sets the flag when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Launches until it is over, and a few times in any case.
fn one_after_the_other(new: impl Fn() -> Run, over: &AtomicBool) -> Vec<Result<Duration, Outcome>> {
    let mut all = Vec::new();
    while all.len() < LAUNCHES || !over.load(Ordering::Acquire) {
        let start = Instant::now();
        let outcome = new().run();
        let worked = outcome.code == 0 && outcome.out().matches("pmi_wireup rank=").count() == 3;
        all.push(if worked {
            Ok(start.elapsed())
        } else {
            Err(outcome)
        });
    }
    all
}

impl BystanderObservations {
    /// Fails unless the running jobs went on and ended well, every new launch worked within its limit, and
    /// no agent took more memory than that.
    #[track_caller]
    pub(crate) fn undisturbed(&self, limits: Limits) {
        for (name, job) in &self.jobs {
            assert_eq!(job.code, 0, "{name}: {job:?}");
            // A stranger who was shut out has changed nothing.
            let (err, shut_out) = (job.err(), " and was refused");
            let disturbed = err.lines().find(|line| !line.contains(shut_out));
            assert_eq!(disturbed, None, "{name}: {job:?}");
            for rank in 0..RANKS {
                let out = job.out();
                let prefix = format!("{name} rank={rank} ");
                let lines = out.lines().filter(|line| line.starts_with(&prefix));
                let rounds: Vec<u32> = lines.map(|line| number(line, "round")).collect();
                let last = rounds.len() as u32;
                assert!(last > FIRST_ROUNDS as u32, "{name}: {job:?}");
                assert!(
                    rounds.into_iter().eq(1..=last),
                    "{name}, rank {rank}: {job:?}"
                );
            }
        }
        for launch in &self.launches {
            match launch {
                Ok(time) => assert!(*time <= limits.launch, "a launch took {time:?}; {self:?}"),
                Err(outcome) => panic!("a new launch did not work: {outcome:?}"),
            }
        }
        for (host, memory) in self.memory.iter().enumerate() {
            let name = format!("node{:02}", host + 1);
            assert!(
                *memory <= limits.memory,
                "the agent of {name} took {memory} MiB"
            );
        }
    }
}

#[test]
fn competing_users_do_not_disturb_each_other() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let rival = || {
        for _ in 0..3 {
            let run = cluster.run(2, EVERYWHERE).more(["id", "-u"]);
            let outcome = of(crate::cluster::MALLORY, run)
                .run()
                .expect_quiet_success();
            assert_eq!(outcome.out(), "54323\n".repeat(3));
        }
    };
    if let Some(observed) = during(&cluster, rival) {
        observed.undisturbed(Limits {
            launch: Duration::from_secs(60),
            memory: 128,
        });
    }
}
