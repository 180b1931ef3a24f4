//! Hosts on a network on which everything takes 200 ms and one frame of twenty is lost: launches, fences and spawns
//! complete, and what fails is reported as on a fast one.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::common::{Outcome, Output, Running, eventually, number, pmix, program};
use crate::failures::{ALL, expect_cause};
use crate::spawn::{able, run};

/// From one host to another.
const DELAY: Duration = Duration::from_millis(200);
const PERCENT_LOST: u8 = 5;

/// The agents' heartbeat, in seconds. With half of the usual one for an answer, which takes two such ways and must come in
/// its turn, a second loss in a row would be the end of a connection.
const HEARTBEAT: &str = "20";

/// Longer than it takes to notice silence and to clean up.
const DEADLINE: Duration = Duration::from_secs(120);

fn slow(hosts: usize) -> Option<Cluster> {
    let cluster = Cluster::builder(hosts).heartbeat(HEARTBEAT).start()?;
    cluster.lab().slow_down(DELAY, PERCENT_LOST).unwrap();
    Some(cluster)
}

#[test]
fn pmi_and_pmix_fences_complete_on_slow_network() {
    let programs = [
        program("pmi_wireup"),
        pmix("pmix5").map(|pmix| pmix.dir.join("pmix_wireup")),
    ];
    let (Some(cluster), [Some(pmi), Some(pmix)]) = (slow(3), programs) else {
        return;
    };
    for (program, name) in [(pmi, "pmi_wireup"), (pmix, "pmix_wireup")] {
        let run = cluster.run(0, ALL).more([program]).deadline(DEADLINE);
        run.run().expect(0).by_rank(name, 6);
    }
}

#[test]
fn launch_starts_with_20_percent_packet_loss() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let lossy = cluster.lab().slow_down(Duration::from_millis(30), 20);
    lossy.unwrap();
    // A search for a link address, a connection and the certificates need two packets each. In one of some 30 launches
    // so many of one step are lost in a row that its limit of 6 s or 10 s passes. Silence of 5 s ends a connection.
    let has_timed_out = |outcome: &Outcome| {
        let texts = [
            "no reply within 10 s",
            ": timed out",
            "no sign of life",
            "killed or crashed",
        ];
        texts.iter().any(|text| outcome.err().contains(text))
    };
    let mut outcome = None;
    for _ in 0..3 {
        let run = cluster.run(0, ALL).more(["uname", "-n"]);
        let ended = run.deadline(DEADLINE).run();
        let is_over = !has_timed_out(&ended);
        outcome = Some(ended);
        if is_over {
            break;
        }
    }
    let outcome = outcome.unwrap().expect_quiet_success();
    assert_eq!(outcome.out().lines().count(), 6);
}

#[test]
fn host_with_late_link_address_is_reached() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let host = cluster.lab().host(1);
    cluster.lab().link_down(host).unwrap();
    let hosts = ["--hosts", "node01,node02"];
    let run = cluster
        .run(0, hosts)
        .more(["uname", "-n"])
        .deadline(DEADLINE);
    let launch = run.start();
    // By then the kernel has given up its first search.
    let begun = Instant::now();
    eventually("the kernel gives up", || {
        (begun.elapsed() > Duration::from_millis(3500)).then_some(())
    });
    cluster.lab().link_up(host).unwrap();
    let outcome = launch.finish().expect_quiet_success();
    assert_eq!(outcome.sorted_lines(), ["node01", "node02"]);
}

#[test]
fn ranks_spawn_others_and_merge() {
    std::thread::scope(|scope| {
        for name in ["openmpi5", "mpich5"] {
            scope.spawn(move || {
                let (Some(cluster), Some(mpi)) = (slow(2), able(name)) else {
                    return;
                };
                let hosts = ["--hosts", "node01:2,node02:2"];
                let run = run(&cluster, &mpi, &hosts, 2, "spawn");
                let outcome = run.more(["times=2"]).run().expect(0);
                for line in outcome.by_rank("spawn", 2) {
                    assert_eq!(number(&line, "merged"), 4, "{name}: {outcome:?}");
                }
            });
        }
    });
}

/// Fault of the second host, while all ranks but the last are in a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Rank,
    Sidecar,
    Step,
    Agent,
    Launcher,
    Host,
}

/// A launch of two ranks on each of three hosts whose last rank is late.
fn in_a_fence(cluster: &Cluster) -> Option<Running> {
    let late = "[ $WIREUP_RANK = 5 ] && { echo late; exec sleep 1000; }; exec \"$@\"";
    let program = pmix("pmix5")?.dir.join("pmix_wireup");
    let run = cluster.run(0, ALL).more(["sh", "-c", late, "sh"]);
    let running = run.more([program]).deadline(DEADLINE).start();
    running.wait_for(Output::Stdout, "late");
    eventually("five ranks wait", || {
        let hosts = cluster.lab().hosts().iter();
        let all = hosts.flat_map(wireup_lab::Host::processes);
        let waiting = all.filter(|one| one.name == "pmix_wireup" && one.state == 'S');
        (waiting.count() == 5).then_some(())
    });
    Some(running)
}

fn fail(fault: Fault) {
    let Some(cluster) = slow(3) else { return };
    let Some(running) = in_a_fence(&cluster) else {
        return;
    };
    let kill = |name: &str| {
        let mut all = cluster.host(1).processes().into_iter();
        let found = all.find(|process| process.name == name);
        found.unwrap().signal(Signal::KILL);
    };
    match fault {
        Fault::Rank => kill("pmix_wireup"),
        Fault::Sidecar => kill("wireup-pmix-hos"),
        Fault::Step => kill("wireup-step"),
        Fault::Agent => cluster.kill_agent(1),
        Fault::Launcher => running.signal(Signal::KILL),
        Fault::Host => cluster.lab().crash(cluster.host(1)).unwrap(),
    }
    // All hosts are clean then.
    let outcome = running.finish();
    match fault {
        Fault::Rank => {
            assert_eq!(outcome.code, 137, "{fault:?}: {outcome:?}");
            expect_cause(&outcome, &["rank ", "node02", "signal 9"]);
        }
        Fault::Launcher => assert_eq!(outcome.code, 137, "{fault:?}: {outcome:?}"),
        _ => {
            let code = if fault == Fault::Sidecar { 125 } else { 122 };
            assert_eq!(outcome.code, code, "{fault:?}: {outcome:?}");
            expect_cause(&outcome, &["node02"]);
        }
    }
    if fault == Fault::Agent {
        cluster.start_agent(1);
    }
    let list = match fault {
        Fault::Host => "node01,node03",
        _ => "node01,node02,node03",
    };
    let next = cluster.run(0, ["--hosts", list, "--ppn", "1", "true"]);
    next.deadline(DEADLINE).run().expect_quiet_success();
}

#[test]
fn death_in_fence_on_slow_network_is_reported_and_cleaned_up() {
    use Fault::{Agent, Host, Launcher, Rank, Sidecar, Step};
    for faults in [[Rank, Sidecar, Step], [Agent, Launcher, Host]] {
        std::thread::scope(|scope| {
            for fault in faults {
                scope.spawn(move || fail(fault));
            }
        });
    }
}
