//! `--stage=program,FILE`: what only the launcher's host has goes along.

use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::common::{DEADLINE, Output, Run, number};
use crate::spawn::able;

/// Options for one rank on each of two hosts.
const HOSTS: [&str; 4] = ["--hosts", "node01:1,node02:1", "-n", "2"];

/// `wireup run` on the first host, while that alone has an executable `/tmp/only`, made by `make`, and
/// `/tmp/data.txt`.
fn alone(cluster: &Cluster, make: &str, options: &[&str]) -> Run {
    let script = format!(
        "{make} >/tmp/only; chmod +x /tmp/only; echo contents >/tmp/data.txt; \
         \"$@\"; code=$?; rm -f /tmp/only /tmp/data.txt; exit $code"
    );
    let run = cluster.run(0, HOSTS).more(options).more(["/tmp/only"]);
    run.under(["sh", "-c", &script, "sh"])
        .deadline(Duration::from_secs(120))
}

/// Nothing that went along is on any host.
#[track_caller]
fn expect_nothing_left(cluster: &Cluster) {
    let list = [
        "sh",
        "-c",
        "ls -A /dev/shm | grep -v '^wireup[.]'; ls -A /tmp | grep '[.]files'; true",
    ];
    let left = cluster.run(0, HOSTS).more(list).run().expect_success();
    assert_eq!(left.out(), "", "{left:?}");
}

const SCRIPT: &str = r"printf '#!/bin/sh\ncat data.txt; echo $0\n'";

#[test]
fn preloaded_files_exist_for_duration_of_job() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let options = ["--stage=program,/tmp/data.txt", "--wdir", "/dev/shm"];
    let outcome = alone(&cluster, SCRIPT, &options).run().expect_success();
    let out = outcome.out();
    assert_eq!(out.matches("contents\n").count(), 2, "{outcome:?}");
    let paths: Vec<&str> = out.lines().filter(|line| line.starts_with('/')).collect();
    assert_eq!(paths.len(), 2, "{outcome:?}");
    for path in paths {
        assert!(path.ends_with(".files/0/only"), "{outcome:?}");
    }
    expect_nothing_left(&cluster);
}

#[test]
fn missing_file_not_preloaded_is_reported_with_remedy() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let outcome = alone(&cluster, SCRIPT, &[]).run().expect(127);
    outcome.expect_one_line(&["on node02: program \"/tmp/only\"", "(--stage)"]);
    let lost = ["--stage=/tmp/lost.txt"];
    let outcome = alone(&cluster, SCRIPT, &lost).run().expect(125);
    outcome.expect_one_line(&["/tmp/lost.txt must be copied to other hosts and does not exist"]);
}

#[test]
fn dry_run_lists_preloaded_files_and_refuses_missing_ones() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let options = ["--dry-run", "--stage=program,/tmp/data.txt"];
    let output = alone(&cluster, SCRIPT, &options)
        .run()
        .expect_success()
        .out();
    for line in ["program /tmp/only", "file /tmp/data.txt"] {
        assert!(output.contains(&format!(" {line}\n")), "{output}");
    }
    let gone = cluster
        .run(0, HOSTS)
        .more(["--dry-run", "--stage=program", "/tmp/gone"]);
    let line = "--stage=program: /tmp/gone is not on this machine, or cannot be executed";
    gone.run().expect(125).expect_one_line(&[line]);
}

#[test]
fn every_mpi_runs_preloaded_program() {
    for name in ["mpich4", "mpich5", "openmpi4", "openmpi5", "impi"] {
        let (Some(cluster), Some(mpi)) = (Cluster::new(2), able(name)) else {
            continue;
        };
        let copy = format!("cat {}", mpi.program("allreduce").display());
        let run = alone(&cluster, &copy, &["--stage=program"]);
        let env = mpi.env.iter();
        let run = env.fold(run, |run, (name, value)| run.env(name, value));
        for line in run.run().expect_success().by_rank("allreduce", 2) {
            assert_eq!(number(&line, "size"), 2, "{line}");
        }
    }
}

#[test]
fn killed_launcher_leaves_no_preloaded_files() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let script = r"printf '#!/bin/sh\necho ready; exec sleep 1000\n'";
    let options = ["--stage=program,/tmp/data.txt", "--wdir=/dev/shm"];
    let run = alone(&cluster, script, &options).clean_within(DEADLINE);
    let running = run.start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    let mut all = cluster.host(0).processes().into_iter();
    let launcher = all.find(|process| process.name == "wireup" && process.words.contains(" run "));
    launcher.unwrap().signal(Signal::KILL);
    running.finish().expect(137);
    expect_nothing_left(&cluster);
}
