//! Each process of a launch is killed at moments that `failures` leaves out: before the ranks join, in a direct modex,
//! in a spawn, at the end of MPI. The launch ends soon, the cause is named, the exit code is that of the policy, and all
//! hosts serve the next. `docs/failure-tests.md` has the table of all moments.

use rustix::process::Signal;
use wireup_lab::Process;

use crate::cluster::Cluster;
use crate::common::{Output, Run, Running, eventually, mpi, pmix};
use crate::failures::expect_cause;

/// Activity of the launch at the kill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    /// The ranks run and have not called MPI_Init.
    BeforeInit,
    /// Three ranks ask for the data of the last, which is late.
    DirectModex,
    /// The ranks spawn all the time.
    Spawn,
    /// All ranks but the first are in MPI_Finalize.
    Finalize,
}

const MOMENTS: [Moment; 4] = [
    Moment::BeforeInit,
    Moment::DirectModex,
    Moment::Spawn,
    Moment::Finalize,
];

/// Process of wireup or of the job that is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Rank,
    Sidecar,
    Step,
    Agent,
    Launcher,
}

const VICTIMS: [Victim; 5] = [
    Victim::Rank,
    Victim::Sidecar,
    Victim::Step,
    Victim::Agent,
    Victim::Launcher,
];

/// Policies under which the launch ends, and the exit code when what was lost may be there at the next try: none
/// is the code of the loss itself.
const POLICIES: [(&str, Option<i32>); 2] = [("abort", None), ("requeue", Some(75))];

const HOSTS: [&str; 5] = ["--oversubscribe", "--hosts", "node01:2,node02:2", "-n", "4"];

impl Moment {
    /// The name of the ranks' processes.
    fn ranks(self) -> &'static str {
        match self {
            Self::BeforeInit => "sleep",
            Self::DirectModex => "pmix_client",
            Self::Spawn => "spawn",
            Self::Finalize => "patient",
        }
    }

    /// Brings a launch to it.
    fn reach(self, cluster: &Cluster, policy: &str) -> Option<Running> {
        let run = cluster.run(0, HOSTS).more(["--on-failure", policy]);
        let of_mpi = |run: Run, name| {
            let mpi = mpi("openmpi5")?;
            let variables = mpi.env.iter();
            let run = variables.fold(run, |run, (name, value)| run.env(name, value));
            Some(run.more([mpi.program(name)]))
        };
        let running = match self {
            Self::BeforeInit => {
                let running = run.more(["--pmi", "pmix", "sh", "-c", "echo up; exec sleep 1000"]);
                let running = running.start();
                running.wait_for_many(Output::Stdout, "up", 4);
                running
            }
            Self::DirectModex => {
                let script =
                    "[ $WIREUP_RANK = 3 ] && { echo late; exec sleep 1000; }; exec \"$@\" late";
                let client = pmix("pmix5")?;
                let program = client.dir.join("pmix_client");
                let run = run.more(["--libpmix", client.path(), "sh", "-c", script, "sh"]);
                let running = run.more([program]).start();
                running.wait_for(Output::Stdout, "late");
                eventually("three ranks wait", || {
                    let hosts = cluster.lab().hosts().iter();
                    let all = hosts.flat_map(wireup_lab::Host::processes);
                    let waiting = all.filter(|one| one.name == self.ranks() && one.state == 'S');
                    (waiting.count() == 3).then_some(())
                });
                running
            }
            Self::Spawn => {
                let running = of_mpi(run, "spawn")?.more(["times=100000"]).start();
                running.wait_for_many(Output::Stdout, "spawned rank=", 4);
                running
            }
            Self::Finalize => {
                let running = of_mpi(run, "patient")?.stdin_held().start();
                running.wait_for_many(Output::Stdout, "patient rank=", 4);
                running
            }
        };
        Some(running)
    }

    /// Kills it on the second host, or the launcher; the words that the cause has.
    fn kill(self, victim: Victim, cluster: &Cluster, running: &Running) -> &'static [&'static str] {
        // Of ranks the first that were started: those of spawned jobs end by themselves.
        let kill = |name: &str| {
            let find = || {
                let all = cluster.host(1).processes().into_iter();
                let named = all.filter(|process| process.name == name);
                named.min_by_key(|process: &Process| process.inner_pid)
            };
            eventually(name, find).signal(Signal::KILL);
        };
        match victim {
            Victim::Rank => kill(self.ranks()),
            Victim::Sidecar => kill("wireup-pmix-hos"),
            Victim::Step => kill("wireup-step"),
            Victim::Agent => cluster.kill_agent(1),
            Victim::Launcher => running.signal(Signal::KILL),
        }
        match victim {
            Victim::Rank => &["rank ", "node02", "signal 9"],
            Victim::Launcher => &[],
            _ => &["node02"],
        }
    }
}

/// Kills them one after another in launches that are at that moment.
fn kill_each(moment: Moment) {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let all = POLICIES
        .into_iter()
        .flat_map(|policy| VICTIMS.map(|victim| (policy, victim)));
    for ((policy, code), victim) in all {
        let Some(running) = moment.reach(&cluster, policy) else {
            return;
        };
        let words = moment.kill(victim, &cluster, &running);
        let outcome = running.finish();
        let when = format!("{victim:?} killed at {moment:?}, {policy}: {outcome:?}");
        let expected = match victim {
            Victim::Launcher => 137,
            Victim::Rank => code.unwrap_or(137),
            Victim::Sidecar => code.unwrap_or(125),
            _ => code.unwrap_or(122),
        };
        assert_eq!(outcome.code, expected, "{when}");
        if !words.is_empty() {
            expect_cause(&outcome, words);
        }
        serves_the_next(&cluster, victim, &when);
    }
}

/// All hosts serve, as if nothing had been.
fn serves_the_next(cluster: &Cluster, killed: Victim, when: &str) {
    if killed == Victim::Agent {
        // As the service manager does.
        cluster.start_agent(1);
    }
    let next = cluster.run(0, HOSTS).more(["--pmi", "pmix", "true"]);
    let next = next.run();
    assert_eq!((next.code, next.err()), (0, String::new()), "after {when}");
}

/// Kills each process under `continue`: the loss is reported at once, the others continue where they need nothing of
/// the dead, and end by an interrupt.
fn kill_each_and_go_on(moment: Moment) {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for victim in VICTIMS {
        let Some(running) = moment.reach(&cluster, "continue") else {
            return;
        };
        let words = moment.kill(victim, &cluster, &running);
        for word in words {
            running.wait_for(Output::Stderr, word);
        }
        // A sidecar is needed by all ranks of its host, and the others before they have joined.
        let goes_on = moment == Moment::BeforeInit
            && matches!(victim, Victim::Rank | Victim::Step | Victim::Agent);
        if goes_on {
            running.wait_for(Output::Stderr, "; the others ");
            let all = cluster.host(0).processes().into_iter();
            let ranks = all.filter(|process| process.name == moment.ranks());
            assert_eq!(ranks.count(), 2, "{victim:?}");
        }
        running.signal(Signal::INT);
        let outcome = running.finish();
        let when = format!("{victim:?} killed at {moment:?}, continue: {outcome:?}");
        assert_ne!(outcome.code, 0, "{when}");
        assert!(victim != Victim::Launcher || outcome.code == 137, "{when}");
        serves_the_next(&cluster, victim, &when);
    }
}

#[test]
fn kill_of_each_process_ends_launch_in_every_phase() {
    std::thread::scope(|scope| {
        for moment in MOMENTS {
            scope.spawn(move || kill_each(moment));
        }
    });
}

#[test]
fn kill_of_each_process_is_survived_with_on_failure_continue() {
    std::thread::scope(|scope| {
        for moment in MOMENTS {
            scope.spawn(move || kill_each_and_go_on(moment));
        }
    });
}
