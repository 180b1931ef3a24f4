//! Detached jobs on several hosts.

use std::ffi::OsStr;
use std::io::Write as _;

use rustix::process::Signal;
use wireup_lab::{Host, Process};

use crate::cluster::Cluster;
use crate::common::{DEADLINE, Output, Run, Running, eventually, mpi};

const TWO: [&str; 6] = [
    "--oversubscribe",
    "--hosts",
    "node01:2,node02:2",
    "-n",
    "4",
    "--",
];

/// Starts a job on the first host, below a shell that stays until its input ends; the job's name.
fn detach(cluster: &Cluster, words: &[&OsStr], adapt: impl Fn(Run) -> Run) -> (Running, String) {
    let run = cluster.command(0, ["sh", "-c", "\"$@\" || exit; read line; exit 0", "sh"]);
    let run = run.more([cluster.wireup()]).more(["run", "--detach"]);
    let shell = adapt(run.more(TWO).more(words)).stdin_held().start();
    let job = shell.wait_for(Output::Stdout, "\n").trim_end().to_owned();
    (shell, job)
}

fn command(cluster: &Cluster, words: [&str; 2]) -> Run {
    cluster.command(0, [cluster.wireup()]).more(words)
}

#[test]
fn jobs_of_pmi_and_pmix_are_waited_for_and_shown_later() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for mpi in ["mpich5", "openmpi5"].into_iter().filter_map(mpi) {
        let program = mpi.program("hello");
        let (shell, job) = detach(&cluster, &[program.as_os_str()], |run| {
            let variables = mpi.env.iter();
            variables.fold(run, |run, (name, value)| run.env(name, value))
        });
        command(&cluster, ["wait", &job])
            .run()
            .expect_quiet_success();
        let shown = command(&cluster, ["attach", &job]).run().expect(0);
        let hosts = shown.by_rank("hello", 4);
        assert!(
            hosts[0].contains("node01") && hosts[3].contains("node02"),
            "{shown:?}"
        );
        shell.finish().expect(0);
    }
}

#[test]
fn detached_job_ends_by_signal_or_with_its_launcher() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let script = [
        "sh",
        "-c",
        "echo ready; read line && echo $line; exec sleep 1000",
    ]
    .map(OsStr::new);
    for (by_signal, code) in [(true, 130), (false, 137)] {
        let (shell, job) = detach(&cluster, &script, |run| run);
        let first = command(&cluster, ["attach", &job]).stdin_held().start();
        first.wait_for_many(Output::Stdout, "ready", 4);
        first.signal(Signal::KILL);
        first.finish().expect(137);
        let mut viewer = command(&cluster, ["attach", &job]).stdin_held().start();
        viewer.stdin().write_all(b"on\n").unwrap();
        viewer.wait_for(Output::Stdout, "on\n");
        let running = cluster.host(0).processes();
        let launcher = running
            .iter()
            .find(|one| one.words.starts_with("wireup run"));
        match (by_signal, launcher) {
            (true, _) => viewer.signal(Signal::INT),
            (false, launcher) => launcher.expect("it runs").signal(Signal::KILL),
        }
        viewer.finish().expect(code);
        shell.finish().expect(0);
    }
}

#[test]
fn failed_detached_launch_has_no_name() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let detach = |hosts: &str| {
        let run = cluster.run(0, ["--detach", "--hosts", hosts, "-n", "2"]);
        run.clean_within(DEADLINE)
    };
    for (hosts, program, code, reason) in [
        ("node01,nowhere", "true", 125, "nowhere"),
        ("node01,node02", "/nowhere/program", 127, "/nowhere/program"),
    ] {
        let outcome = detach(hosts).more([program]).run().expect(code);
        assert_eq!(outcome.out(), "", "{outcome:?}");
        assert!(outcome.err().contains(reason), "{outcome:?}");
    }
    // A host that does not answer holds up the start, and the user gives it up.
    cluster.host(1).pause().unwrap();
    let waiting = detach("node01,node02").more(["cat"]).start();
    eventually("the launcher runs", || {
        let running = cluster.host(0).processes();
        let launcher = |one: &Process| one.words.starts_with("wireup run --detach");
        running.iter().any(launcher).then_some(())
    });
    waiting.signal(Signal::INT);
    let outcome = waiting.finish();
    cluster.host(1).resume().unwrap();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    assert_eq!(outcome.out(), "", "{outcome:?}");
    eventually("no keeper is left", || {
        let running = cluster.host(0).processes();
        let of_job = running.iter().filter(|one| is_of_job(one));
        (of_job.count() == 0).then_some(())
    });
}

#[test]
fn detached_job_continues_on_all_hosts_after_command_is_killed() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let script = "echo ready; read line || exec sleep 1000; echo $line; exit 4";
    let run = cluster.run(0, ["--detach=on-loss"]).more(TWO);
    let front = run.more(["sh", "-c", script]).stdin_held().start();
    front.wait_for_many(Output::Stdout, "ready", 4);
    let notice = front.wait_for(Output::Stderr, "comes back to it");
    let mut words = notice.split_whitespace();
    let job = words.find(|word| word.starts_with("wireup-")).unwrap();
    front.signal(Signal::KILL);
    let waiting = command(&cluster, ["wait", job]).start();
    let mut viewer = command(&cluster, ["attach", job]).stdin_held().start();
    viewer.stdin().write_all(b"on\n").unwrap();
    viewer.wait_for(Output::Stdout, "on\n");
    viewer.finish().expect(4);
    waiting.finish().expect(4);
    front.finish().expect(137);
}

/// Whether a process belongs to a job on a host: its leader or one of its ranks.
fn is_of_job(process: &Process) -> bool {
    let names = ["wireup-step", "wireup-guard", "sleep"];
    let words = ["wireup run", "wireup keep"];
    names.contains(&process.name.as_str())
        || words.iter().any(|words| process.words.starts_with(words))
}

/// The kernel does the same to a whole cgroup that is out of memory (`memory.oom.group`), and systemd-oomd to any.
#[test]
fn job_ends_when_all_its_processes_on_one_host_are_killed() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let script = ["sh", "-c", "echo ready; exec sleep 1000"].map(OsStr::new);
    for (host, code, words) in [
        (1, 122, ["wireup: ", "node02"]),
        (0, 125, ["the attach server of job", "not known"]),
    ] {
        let (shell, job) = detach(&cluster, &script, |run| run);
        let viewer = command(&cluster, ["attach", &job]).stdin_held().start();
        viewer.wait_for_many(Output::Stdout, "ready", 4);
        let of_host = |host: &Host| host.processes().into_iter().filter(is_of_job);
        let all: Vec<Process> = of_host(cluster.host(host)).collect();
        // None is to see the end of another one.
        for signal in [Signal::STOP, Signal::KILL] {
            all.iter().for_each(|process| process.signal(signal));
        }
        let outcome = viewer.finish().expect(code);
        for word in words {
            assert!(outcome.err().contains(word), "no {word:?}: {outcome:?}");
        }
        eventually("nothing runs on the other host", || {
            of_host(cluster.host(1 - host))
                .next()
                .is_none()
                .then_some(())
        });
        // It also removes the files of what was killed.
        let next = cluster.run(0, TWO).more(["true"]);
        next.run().expect_quiet_success();
        shell.finish().expect(0);
    }
}
