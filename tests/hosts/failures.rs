//! Whatever dies, wherever and whenever: the launch ends everywhere within ten seconds, the cause
//! is named, every host is clean, and the agents take the next launch.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use wireup_lab::Process;

use crate::cluster::Cluster;
use crate::common::{Outcome, Output, Running, eventually, pmix, program};

/// All three hosts, two ranks on each.
pub(crate) const ALL: [&str; 5] = [
    "--oversubscribe",
    "--hosts",
    "node01:2,node02:2,node03:2",
    "-n",
    "6",
];

/// Activity of the ranks when the fault happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The launch waits for one host; the others are ready.
    Launching,
    /// All ranks but the last are in a fence.
    Fence,
    /// All ranks have met.
    Running,
}

const PHASES: [Phase; 3] = [Phase::Launching, Phase::Fence, Phase::Running];

/// PMI of the ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Pmi,
    Pmix,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Pmi => "pmi_wireup",
            Self::Pmix => "pmix_wireup",
        }
    }

    /// Path of the program whose ranks print a line after their fence.
    fn program(self) -> Option<PathBuf> {
        match self {
            Self::Pmi => program(self.name()),
            Self::Pmix => Some(pmix("pmix5")?.dir.join(self.name())),
        }
    }
}

impl Phase {
    /// Exit code after the loss of a host: a launch that has not begun is refused.
    fn loss(self) -> i32 {
        match self {
            Self::Launching => 125,
            Self::Fence | Self::Running => 122,
        }
    }
}

/// A launch that has come to its phase.
struct Scene {
    cluster: Cluster,
    program: String,
    running: Running,
}

/// Brings a launch on three hosts to that phase.
fn scene(kind: Kind, phase: Phase) -> Option<Scene> {
    let path = kind.program()?;
    let cluster = Cluster::new(3)?;
    let program = path.to_str().unwrap().to_owned();
    let late = "[ $WIREUP_RANK = 5 ] && { echo late; exec sleep 1000; }; exec \"$@\"";
    let run = match phase {
        Phase::Launching => {
            cluster.host(2).pause().unwrap();
            cluster.run(0, ALL).more([&*program, "-w"])
        }
        Phase::Fence => {
            let wrapped = ["sh", "-c", late, "sh", &*program];
            cluster.run(0, ALL).more(wrapped)
        }
        Phase::Running => cluster.run(0, ALL).more([&*program, "-w"]),
    };
    let running = run.start();
    match phase {
        Phase::Launching => {
            eventually("a step on the second host", || step(&cluster, 1));
        }
        Phase::Fence => {
            running.wait_for(Output::Stdout, "late");
            eventually("five ranks wait", || {
                let hosts = cluster.lab().hosts().iter();
                let all = hosts.flat_map(wireup_lab::Host::processes);
                let waiting = all.filter(|p| p.name == kind.name() && p.state == 'S');
                (waiting.count() == 5).then_some(())
            });
        }
        Phase::Running => {
            running.wait_for_many(Output::Stdout, "_wireup rank=", 6);
        }
    }
    Some(Scene {
        cluster,
        program,
        running,
    })
}

/// The process of wireup's that runs the launch's part of a host.
fn step(cluster: &Cluster, host: usize) -> Option<Process> {
    let mut all = cluster.host(host).processes().into_iter();
    all.find(|process| process.name == "wireup-step")
}

fn named(cluster: &Cluster, host: usize, name: &str) -> Option<Process> {
    let mut all = cluster.host(host).processes().into_iter();
    all.find(|process| process.name == name)
}

impl Scene {
    /// Checks the end after a fault that has just happened: the code, and the first line of wireup's own.
    #[track_caller]
    fn ends(self, code: i32, words: &[&str]) -> Cluster {
        let cluster = self.cluster;
        // It was paused while the others were launching.
        cluster.host(2).resume().unwrap();
        let outcome = self.running.finish();
        assert_eq!(outcome.code, code, "{outcome:?}");
        expect_cause(&outcome, words);
        takes_the_next(&cluster, &self.program);
        cluster
    }
}

/// The first line of wireup's own has these words.
#[track_caller]
pub(crate) fn expect_cause(outcome: &Outcome, words: &[&str]) {
    let err = outcome.err();
    let first = err.lines().find(|line| line.starts_with("wireup: "));
    let first = first.unwrap_or_else(|| panic!("no cause; {outcome:?}"));
    for word in words {
        assert!(
            first.contains(word),
            "no {word:?} in {first:?}; {outcome:?}"
        );
    }
}

/// All hosts serve, as if nothing had been.
#[track_caller]
fn takes_the_next(cluster: &Cluster, program: &str) {
    let outcome = cluster.run(0, ALL).more([program]).run().expect(0);
    assert_eq!(
        outcome.out().matches("_wireup rank=").count(),
        6,
        "{outcome:?}"
    );
}

#[test]
fn killed_rank_ends_launch() {
    for kind in [Kind::Pmi, Kind::Pmix] {
        for phase in [Phase::Fence, Phase::Running] {
            let Some(scene) = scene(kind, phase) else {
                return;
            };
            let rank = named(&scene.cluster, 1, kind.name());
            rank.unwrap().signal(Signal::KILL);
            scene.ends(137, &["rank ", "node02", "signal 9"]);
        }
    }
}

#[test]
fn killed_step_ends_launch_but_not_agents() {
    for kind in [Kind::Pmi, Kind::Pmix] {
        for phase in PHASES {
            let Some(scene) = scene(kind, phase) else {
                return;
            };
            step(&scene.cluster, 1).unwrap().signal(Signal::KILL);
            scene.ends(phase.loss(), &["node02"]);
        }
    }
}

#[test]
fn stopped_step_does_not_block_end_of_killed_job() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let words = ["--hosts", "node01:1,node02:1", "--grace", "0"];
    let run = cluster.run(0, words).more(["sleep", "1000"]);
    let running = run.clean_within(Duration::from_secs(60)).start();
    let second = || named(&cluster, 1, "sleep");
    eventually("the second host's rank runs", second);
    step(&cluster, 1).unwrap().signal(Signal::STOP);
    running.signal(Signal::TERM);
    running.finish().expect(143);
    let killed = "killed its step, which is silent";
    assert!(cluster.log(1).contains(killed), "{}", cluster.log(1));
}

#[test]
fn killed_sidecar_ends_launch() {
    for phase in PHASES {
        let Some(scene) = scene(Kind::Pmix, phase) else {
            return;
        };
        let find = || named(&scene.cluster, 1, "wireup-pmix-hos");
        eventually("the sidecar", find).signal(Signal::KILL);
        scene.ends(125, &["node02"]);
    }
}

#[test]
fn killed_agent_ends_launch() {
    // The launcher's own, which is the root's too, and another.
    for host in [0, 1] {
        for phase in PHASES {
            let Some(scene) = scene(Kind::Pmix, phase) else {
                return;
            };
            scene.cluster.kill_agent(host);
            let name = scene.cluster.host(host).name().to_owned();
            let Scene {
                cluster,
                program,
                running,
            } = scene;
            cluster.host(2).resume().unwrap();
            let outcome = running.finish();
            assert_eq!(outcome.code, phase.loss(), "{outcome:?}");
            expect_cause(&outcome, &[if host == 0 { "agent" } else { &name }]);
            cluster.start_agent(host);
            takes_the_next(&cluster, &program);
        }
    }
}

#[test]
fn killed_launcher_is_cleaned_up_on_all_hosts() {
    for kind in [Kind::Pmi, Kind::Pmix] {
        for phase in PHASES {
            let Some(scene) = scene(kind, phase) else {
                return;
            };
            scene.running.signal(Signal::KILL);
            scene.cluster.host(2).resume().unwrap();
            scene.running.finish().expect(137);
            takes_the_next(&scene.cluster, &scene.program);
        }
    }
}

/// Activities of a launch when a host is lost.
const MOMENTS: [(Kind, Phase); 4] = [
    (Kind::Pmix, Phase::Launching),
    (Kind::Pmix, Phase::Fence),
    (Kind::Pmi, Phase::Fence),
    (Kind::Pmix, Phase::Running),
];

/// Loses a host at all these moments; the cause has its name. Then comes what is to come after the launch
/// has ended.
fn lose(
    moments: &[(Kind, Phase)],
    name: &str,
    fault: impl Fn(&Cluster) + Sync,
    after: impl Fn(&Cluster, &str) + Sync,
) {
    let one = |&(kind, phase)| {
        let Some(scene) = scene(kind, phase) else {
            return;
        };
        let Scene {
            cluster,
            running,
            program,
        } = scene;
        fault(&cluster);
        if phase == Phase::Launching {
            cluster.host(2).resume().unwrap();
        }
        let outcome = running.finish();
        assert_ne!(outcome.code, 0, "{kind:?}, {phase:?}: {outcome:?}");
        expect_cause(&outcome, &[name]);
        after(&cluster, &program);
    };
    // Most of the time is spent waiting, so two do at once.
    for pair in moments.chunks(2) {
        std::thread::scope(|scope| {
            for moment in pair {
                scope.spawn(|| one(moment));
            }
        });
    }
}

#[test]
fn crashed_host_ends_launch() {
    let crash = |cluster: &Cluster| cluster.lab().crash(cluster.host(1)).unwrap();
    lose(&MOMENTS, "node02", crash, |cluster, _| {
        let rest = ["--hosts", "node01:1,node03:1", "-n", "2", "true"];
        cluster.run(0, rest).run().expect_quiet_success();
    });
}

#[test]
fn paused_host_cleans_up_its_node_after_resume() {
    let pause = |cluster: &Cluster| {
        cluster.excuse(1);
        cluster.host(1).pause().unwrap();
    };
    lose(&MOMENTS, "node02", pause, |cluster, program| {
        cluster.host(1).resume().unwrap();
        cluster.expect_clean(1);
        takes_the_next(cluster, program);
    });
}

#[test]
fn partition_ends_launch_on_both_sides() {
    // That all hosts are clean, also those that were cut off, is included: it may take as long again.
    let heal = |cluster: &Cluster, program: &str| {
        cluster.lab().heal_all().unwrap();
        takes_the_next(cluster, program);
    };
    let isolate =
        |host| move |cluster: &Cluster| cluster.lab().isolate(cluster.host(host)).unwrap();
    lose(&MOMENTS, "node02", isolate(1), heal);
    // The launcher's own, which loses both others, either first.
    lose(&MOMENTS[3..], "node0", isolate(0), heal);
}

/// Two hosts lose what one of them sends to the other, or both, while ranks of both are in a fence.
#[test]
fn broken_connection_in_fence_ends_launch_unless_healed_soon() {
    let script = "[ $WIREUP_RANK = 5 ] && { echo late; read line; }; exec \"$@\"";
    // From the second host, to it, both; and whether it lasts.
    let cases = [
        (true, false, true),
        (false, true, true),
        (true, false, false),
        (false, true, false),
        (true, true, false),
    ];
    let one = |(from, to, lasts): (bool, bool, bool)| {
        // Bytes sent again after 3 s may be lost too, and those after 6 s come after the usual heartbeat of 5 s.
        let heartbeat = if lasts { "5" } else { "20" };
        let cluster = Cluster::builder(3).heartbeat(heartbeat).start();
        let (Some(cluster), Some(program)) = (cluster, Kind::Pmix.program()) else {
            return;
        };
        let run = cluster
            .run(0, ALL)
            .more(["--stdin", "5", "sh", "-c", script, "sh"]);
        let mut running = run.more([&program]).stdin_held().start();
        running.wait_for(Output::Stdout, "late");
        let (first, second) = (cluster.host(0), cluster.host(1));
        if from {
            cluster.lab().cut(second, first).unwrap();
        }
        if to {
            cluster.lab().cut(first, second).unwrap();
        }
        if lasts {
            let outcome = running.finish();
            assert_ne!(outcome.code, 0, "{outcome:?}");
            expect_cause(&outcome, &["node02"]);
            cluster.lab().heal(first, second).unwrap();
        } else {
            running.stdin().write_all(b"on\n").unwrap();
            // Less than the heartbeat. What is sent meanwhile arrives later.
            let cut = Instant::now();
            let over = || (cut.elapsed() > Duration::from_secs(2)).then_some(());
            eventually("it has lasted long enough to matter", over);
            cluster.lab().heal(first, second).unwrap();
            running.finish().expect(0).by_rank("pmix_wireup", 6);
        }
        takes_the_next(&cluster, program.to_str().unwrap());
    };
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || one(case));
        }
    });
}

#[test]
fn crash_of_inner_tree_host_is_cleaned_up_on_hosts_below() {
    let (Some(cluster), Some(path)) = (Cluster::new(5), program("pmi_wireup")) else {
        return;
    };
    // The second leads to the fourth and the fifth.
    let tree = ["--tree-width", "2", "--ppn", "1"];
    let run = |hosts: &[&str]| {
        let ranks = hosts.len().to_string();
        let run = cluster.run(0, tree).more(["--hosts", &hosts.join(",")]);
        run.more(["-n", &ranks]).more([&path])
    };
    let all = run(&["node01", "node02", "node03", "node04", "node05"]);
    let running = all.more(["-w"]).start();
    running.wait_for_many(Output::Stdout, "_wireup rank=", 5);
    cluster.lab().crash(cluster.host(1)).unwrap();
    let outcome = running.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    expect_cause(&outcome, &["node02"]);
    let rest = run(&["node01", "node03", "node04", "node05"]).run();
    rest.expect_quiet_success().by_rank("pmi_wireup", 4);
}

#[test]
fn rank_killed_right_after_start_ends_launch() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let script = "[ $WIREUP_RANK = 5 ] && kill -9 $$; exec \"$@\"";
    for kind in [Kind::Pmi, Kind::Pmix] {
        let Some(path) = kind.program() else { return };
        let run = cluster.run(0, ALL).more(["sh", "-c", script, "sh"]);
        let outcome = run.more([&path]).more(["-w"]).run().expect(137);
        expect_cause(&outcome, &["rank 5 ", "node03", "signal 9"]);
        takes_the_next(&cluster, path.to_str().unwrap());
    }
}
