//! One host of two is short of something. The launch does without, or ends with a cause that names the host; nothing is
//! left, and with enough of it the next launch succeeds.

use std::fs;
use std::process::Command;

use crate::cluster::{ALICE, Cluster, is_helper};
use crate::common::{MemoryGroup, Outcome, eventually, pmix};
use crate::users::of;

/// Resource that the second host lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shortage {
    Disk,
    Descriptors,
    Processes,
}

const SHORTAGES: [Shortage; 3] = [Shortage::Disk, Shortage::Descriptors, Shortage::Processes];

impl Shortage {
    fn begin(self, cluster: &Cluster) {
        let limit = match self {
            Self::Disk => {
                // What fills it is not of the launch.
                cluster.excuse(1);
                let fill = "mount -n -o remount,size=4k /tmp && head -c 4096 /dev/zero >/tmp/fill";
                return on_second(cluster, fill);
            }
            Self::Descriptors => "--nofile=24",
            Self::Processes => "--nproc=1",
        };
        let pid = parent_of_steps(cluster).to_string();
        let output = Command::new("prlimit")
            .args(["--pid", &pid, limit])
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Whether the launch fails, and words of the first line about it.
    fn expected(self) -> (bool, &'static [&'static str]) {
        match self {
            // PMIx tools need a file, ranks do not.
            Self::Disk => (false, &["warning", "No space left on device"]),
            Self::Descriptors => (true, &["on node02", "descriptors"]),
            Self::Processes => (true, &["on node02", "more processes"]),
        }
    }

    fn end(self, cluster: &Cluster) {
        if self == Self::Disk {
            on_second(cluster, "rm /tmp/fill && mount -n -o remount,size=1g /tmp");
            return cluster.expect_clean(1);
        }
        cluster.kill_agent(1);
        cluster.start_agent(1);
    }
}

/// The process from which the second host's steps are forked: they inherit its limits.
fn parent_of_steps(cluster: &Cluster) -> i32 {
    let helper = eventually("the helper", || {
        let all = cluster.host(1).processes().into_iter();
        all.filter(is_helper)
            .find(|process| process.words.ends_with("wireup steps"))
    });
    helper.pid
}

fn on_second(cluster: &Cluster, script: &str) {
    let mut shell = cluster.host(1).command("sh");
    let output = shell.args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn launch(cluster: &Cluster) -> Option<Outcome> {
    let client = pmix("pmix5")?;
    let words = ["--oversubscribe", "--hosts", "node01:2,node02:2", "-n", "4"];
    let run = cluster.run(0, words).more(["--libpmix", client.path()]);
    let program = cluster.copy(&client.dir.join("pmix_wireup"));
    Some(of(ALICE, run.more([program])).run())
}

#[test]
fn shortage_of_disk_descriptors_or_processes_is_reported() {
    std::thread::scope(|scope| {
        for shortage in SHORTAGES {
            scope.spawn(move || {
                let Some(cluster) = Cluster::new(2) else {
                    return;
                };
                shortage.begin(&cluster);
                let Some(outcome) = launch(&cluster) else {
                    return;
                };
                shortage.end(&cluster);
                let (fails, words) = shortage.expected();
                let err = outcome.err();
                let line = err.lines().find(|line| line.starts_with("wireup: "));
                let line = line.unwrap_or_else(|| panic!("{shortage:?}: {outcome:?}"));
                for word in words {
                    assert!(
                        line.contains(word),
                        "{shortage:?}: no {word:?}; {outcome:?}"
                    );
                }
                assert_eq!(outcome.code != 0, fails, "{shortage:?}: {outcome:?}");
                let next = launch(&cluster).unwrap();
                assert_eq!(
                    (next.code, next.err()),
                    (0, String::new()),
                    "after {shortage:?}"
                );
            });
        }
    });
}

/// The test runs as root, and as a user whose agent is protected from the OOM killer.
#[test]
fn oom_killer_selects_ranks_before_wireup_processes() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let words = ["--hosts", "node01:1,node02:1", "-n", "2", "sh", "-c"];
    let script = "cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj";
    let run = || cluster.run(0, words).more([script]);
    for run in [run(), of(ALICE, run())] {
        let outcome = run.run().expect_quiet_success();
        assert_eq!(outcome.sorted_lines(), ["0", "0", "500", "500"]);
    }
}

#[test]
fn rank_killed_for_memory_is_reported_with_host() {
    let (Some(group), Some(cluster)) = (MemoryGroup::new(128 << 20), Cluster::new(2)) else {
        return;
    };
    // Steps are forked from it, and are in its group.
    let parent = parent_of_steps(&cluster).to_string();
    fs::write(group.procs(), parent).unwrap();
    let words = ["--hosts", "node01:1,node02:1", "-n", "1"];
    let run = cluster.run(0, words).more(["sleep", "60", ":", "-n", "1"]);
    let uses = run.more(["python3", "-c", "b'x' * (512 << 20)"]);
    let outcome = of(ALICE, uses).run();
    let err = outcome.err();
    for word in ["rank 1 ", "host node02", "signal 9"] {
        assert!(err.contains(word), "no {word:?}; {outcome:?}");
    }
    assert_eq!(outcome.code, 137, "{outcome:?}");
    cluster.expect_clean(1);
    let run = cluster.run(0, ["--hosts", "node01:1,node02:1", "-n", "2", "true"]);
    let next = of(ALICE, run).run();
    assert_eq!((next.code, next.err()), (0, String::new()));
    // Nothing may be in the group when it is removed.
    cluster.kill_agent(1);
    cluster.start_agent(1);
}
