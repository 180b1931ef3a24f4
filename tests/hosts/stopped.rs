//! Processes that are stopped, one of each kind: the launch ends soon and names the one that does not
//! answer, and its host. Only the launcher itself may be stopped for as long as its user likes.

use std::time::Duration;

use rustix::process::Signal;
use wireup_lab::Process;

use crate::cluster::Cluster;
use crate::common::{Outcome, Output, Running, eventually, pmix};

/// Twice the default heartbeat.
const SILENCE: Duration = Duration::from_secs(10);

/// A launch on these hosts, started on the first one, all of whose ranks have met.
fn running(cluster: &Cluster, hosts: &str) -> Option<Running> {
    let program = pmix("pmix5")?.dir.join("pmix_wireup");
    let ranks = hosts.split(',').count();
    let run = cluster.run(0, ["--hosts", hosts, "-n", &ranks.to_string()]);
    let run = run.more([program.to_str().unwrap(), "-w"]);
    let running = run.deadline(Duration::from_secs(120)).start();
    running.wait_for_many(Output::Stdout, "_wireup rank=", ranks);
    Some(running)
}

fn find(cluster: &Cluster, host: usize, which: impl Fn(&Process) -> bool) -> Process {
    let all = || cluster.host(host).processes().into_iter();
    eventually("the process", || all().find(|process| which(process)))
}

fn step(cluster: &Cluster, host: usize) -> Process {
    find(cluster, host, |process| process.name == "wireup-step")
}

fn sidecar(cluster: &Cluster, host: usize) -> Process {
    find(cluster, host, |process| process.name == "wireup-pmix-hos")
}

/// The launch has ended, not in order, and its cause has these words.
#[track_caller]
fn expect_end(outcome: &Outcome, words: &[&str]) {
    assert_ne!(outcome.code, 0, "{outcome:?}");
    let err = outcome.err();
    let cause = err.lines().find(|line| line.starts_with("wireup: "));
    let cause = cause.unwrap_or_else(|| panic!("no cause; {outcome:?}"));
    for word in words {
        assert!(cause.contains(word), "no {word:?} in {cause:?}");
    }
}

/// Waits until the launcher has ended.
#[track_caller]
fn await_end(running: &Running) {
    let pid = running.pid();
    eventually("the launcher ends", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        let ended = stat.map_or(true, |stat| stat.contains(") Z "));
        ended.then_some(())
    });
}

/// Stops a process of a host, has the launch end by that, and lets it go on.
#[track_caller]
fn stop(cluster: &Cluster, running: Running, (host, process): (usize, &Process), words: &[&str]) {
    cluster.excuse(host);
    process.signal(Signal::STOP);
    await_end(&running);
    // What was not killed for it.
    process.signal(Signal::CONT);
    cluster.expect_clean(host);
    expect_end(&running.finish(), words);
}

#[test]
fn stopped_agent_ends_launch_also_on_launcher_host() {
    for (host, words) in [
        (
            0,
            ["the agent of node01 (pid ", ") did not answer within 10 s"],
        ),
        (1, ["host node02: ", "no sign of life"]),
    ] {
        let Some(cluster) = Cluster::new(3) else {
            return;
        };
        let Some(launch) = running(&cluster, "node01,node02,node03") else {
            return;
        };
        let agent = cluster.agent(host);
        stop(&cluster, launch, (host, &agent), &words);
        let rest = ["--hosts", "node01,node02,node03", "-n", "3", "true"];
        cluster.run(0, rest).run().expect_quiet_success();
    }
}

#[test]
fn launcher_waits_for_its_agent_as_long_as_agent_announces() {
    let Some(cluster) = Cluster::builder(2).heartbeat("2").start() else {
        return;
    };
    let Some(launch) = running(&cluster, "node01,node02") else {
        return;
    };
    let agent = cluster.agent(0);
    let words = ["the agent of node01 (pid ", ") did not answer within 4 s"];
    stop(&cluster, launch, (0, &agent), &words);
}

#[test]
fn stopped_step_is_killed_by_agent_and_named() {
    for host in [0, 1] {
        let Some(cluster) = Cluster::new(2) else {
            return;
        };
        let Some(launch) = running(&cluster, "node01,node02") else {
            return;
        };
        let step = step(&cluster, host);
        let name = format!("host {}: ", cluster.host(host).name());
        let pid = format!("its step (pid {}) did not answer", step.inner_pid);
        stop(&cluster, launch, (host, &step), &[&name, &pid, "10 s"]);
    }
}

#[test]
fn stopped_sidecar_error_names_host() {
    for host in [0, 1] {
        let Some(cluster) = Cluster::new(2) else {
            return;
        };
        let Some(launch) = running(&cluster, "node01,node02") else {
            return;
        };
        let sidecar = sidecar(&cluster, host);
        let name = format!("the PMIx server of {} failed: ", cluster.host(host).name());
        let words = [&name, "it did not answer within 10 s"];
        stop(&cluster, launch, (host, &sidecar), &words);
    }
}

#[test]
fn agent_stopped_before_launch_is_named() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    cluster.agent(0).signal(Signal::STOP);
    let both = ["--hosts", "node01,node02", "-n", "2", "true"];
    let outcome = cluster.run(0, both).run();
    cluster.agent(0).signal(Signal::CONT);
    expect_end(&outcome, &["the agent of node01 (pid "]);
    cluster.run(0, both).run().expect_quiet_success();
}

#[test]
fn ps_reports_stopped_agent_as_not_answering() {
    let Some(cluster) = Cluster::new(1) else {
        return;
    };
    cluster.agent(0).signal(Signal::STOP);
    let wireup = cluster.wireup().to_str().unwrap();
    let command = cluster.command(0, [wireup, "ps", "--nodes"]);
    let outcome = command.deadline(Duration::from_secs(60)).run().expect(125);
    cluster.agent(0).signal(Signal::CONT);
    outcome.expect_one_line(&["does not answer within 30 s", "was it stopped?"]);
    assert!(!outcome.err().contains("ulimit"), "{outcome:?}");
}

/// Lets a time pass in which the stopped processes do nothing.
fn pass(time: Duration) {
    let time = rustix::event::Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    rustix::event::poll(&mut [], Some(&time)).unwrap();
}

/// A batch system suspends a job so: not at the same moment on all hosts, and a host may have sent a probe to another
/// when it is stopped itself.
#[test]
fn launch_survives_stop_of_all_processes() {
    let Some(cluster) = Cluster::builder(2).heartbeat("3").start() else {
        return;
    };
    let Some(pmix) = pmix("pmix5") else { return };
    let both = ["--hosts", "node01:1,node02:1", "-n", "2"];
    let run = cluster.run(0, both).stdin_held();
    let running = run.more([pmix.dir.join("pmix_steady")]).start();
    running.wait_for_many(Output::Stdout, "pmix_steady rank=", 4);
    let all = [1, 0].map(|host| cluster.host(host).processes());
    for (processes, time) in all.iter().zip([1300, 4000]) {
        let each = processes.iter();
        each.for_each(|process| process.signal(Signal::STOP));
        pass(Duration::from_millis(time));
    }
    let so_far = running.so_far(Output::Stdout);
    let rounds = String::from_utf8_lossy(&so_far).matches("rank=").count();
    for process in all.iter().rev().flatten() {
        process.signal(Signal::CONT);
    }
    running.wait_for_many(Output::Stdout, "pmix_steady rank=", rounds + 4);
    running.finish().expect_quiet_success();
}

/// Less than the heartbeat, of which a fifth may have passed since the last sign of life.
#[test]
fn agent_stopped_for_less_than_heartbeat_loses_no_launch() {
    let Some(cluster) = Cluster::builder(2).heartbeat("10").start() else {
        return;
    };
    let both = ["--hosts", "node01:1,node02:1", "-n", "2", "--stdin", "all"];
    let wait = ["sh", "-c", "echo up; read line; echo $line"];
    let mut running = cluster.run(0, both).more(wait).stdin_held().start();
    running.wait_for_many(Output::Stdout, "up", 2);
    cluster.agent(1).signal(Signal::STOP);
    pass(Duration::from_secs(6));
    cluster.agent(1).signal(Signal::CONT);
    std::io::Write::write_all(&mut running.stdin(), b"on\n").unwrap();
    let outcome = running.finish().expect_quiet_success();
    assert_eq!(outcome.out().matches("on\n").count(), 2, "{outcome:?}");
}

#[test]
fn launcher_continues_after_long_stop() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let both = ["--hosts", "node01,node02", "-n", "2"];
    let wait = ["sh", "-c", "echo up; read line; echo $line"];
    let mut running = cluster
        .run(0, both)
        .more(["--stdin", "all"])
        .more(wait)
        .stdin_held()
        .start();
    running.wait_for_many(Output::Stdout, "up", 2);
    running.signal(Signal::STOP);
    pass(SILENCE * 3 / 2);
    running.signal(Signal::CONT);
    std::io::Write::write_all(&mut running.stdin(), b"on\n").unwrap();
    let outcome = running.finish().expect_quiet_success();
    assert_eq!(outcome.out().matches("on\n").count(), 2, "{outcome:?}");
}

#[test]
fn cable_cut_at_launcher_host_is_not_blamed_on_other_hosts() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let Some(launch) = running(&cluster, "node01,node02,node03") else {
        return;
    };
    cluster.lab().isolate(cluster.host(0)).unwrap();
    await_end(&launch);
    let outcome = launch.finish();
    cluster.lab().heal_all().unwrap();
    let words = [
        "host node01, where the launch began, has lost all others",
        "node[02-03]",
        "its own network",
    ];
    expect_end(&outcome, &words);
}
