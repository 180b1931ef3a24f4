//! Leftovers of ranks on their hosts: segments of System V, shared memory, files of their own.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::cluster::{ALICE, Cluster};
use crate::common::{DEADLINE, Output, Run, Running, field, program as program_of_tests};
use crate::users::of;

const HOSTS: [&str; 4] = ["--hosts", "node01:2,node02:2", "-n", "4"];

/// Resources that one rank has created.
#[derive(Debug)]
struct Left {
    host: usize,
    segment: String,
    memory: String,
    scratch: String,
}

fn left(line: &str) -> Left {
    let value = |key| field(line, key).unwrap().to_owned();
    Left {
        host: if value("host") == "node01" { 0 } else { 1 },
        segment: value("segment"),
        memory: value("memory"),
        scratch: value("scratch"),
    }
}

fn all(out: &str) -> Vec<Left> {
    let lines = out.lines().filter(|line| line.starts_with("host="));
    let all: Vec<Left> = lines.map(left).collect();
    assert_eq!(all.len(), 4, "{out}");
    all
}

/// Returns the numbers of these that exist: segments, files in memory, and files of ranks.
fn present(cluster: &Cluster, all: &[Left]) -> [usize; 3] {
    let count = |there: &dyn Fn(&Left) -> bool| all.iter().filter(|left| there(left)).count();
    let segments = |left: &Left| {
        let mut list = cluster.host(left.host).command("cat");
        let list = list.arg("/proc/sysvipc/shm").output().unwrap();
        let list = String::from_utf8(list.stdout).unwrap();
        list.lines()
            .any(|line| line.split_whitespace().nth(1) == Some(&left.segment))
    };
    let file = |left: &Left, path: &str| cluster.host(left.host).path(path).exists();
    [
        count(&segments),
        count(&|left| file(left, &left.memory)),
        count(&|left| file(left, &left.scratch)),
    ]
}

/// Ranks that leave something, on both hosts.
fn leaving(cluster: &Cluster, program: &Path, how: &str) -> Run {
    let options = ["--rank-tmpdir", "--stdin", "0"];
    let run = cluster
        .run(0, HOSTS)
        .more(options)
        .more([program.as_os_str()])
        .more([how]);
    run.stdin_held().clean_within(DEADLINE)
}

/// Installs the program where all users find it.
fn program(cluster: &Cluster) -> Option<PathBuf> {
    program_of_tests("resources").map(|program| cluster.copy(&program))
}

fn started(run: Run) -> (Running, Vec<Left>) {
    let running = run.start();
    let out = running.wait_for_many(Output::Stdout, "mode=", 4);
    let all = all(&out);
    (running, all)
}

#[test]
fn resources_of_killed_ranks_are_removed_but_not_of_others() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let Some(program) = program(&cluster) else {
        return;
    };
    let (other, others) = started(leaving(&cluster, &program, "wait"));
    let (mut dying, own) = started(leaving(&cluster, &program, "die"));
    assert_eq!(present(&cluster, &own), [4, 4, 4]);
    writeln!(dying.stdin(), "now").unwrap();
    let outcome = dying.finish().expect(137);
    assert_eq!(present(&cluster, &own), [0, 0, 0], "{outcome:?}");
    let [segments, _, files] = present(&cluster, &others);
    assert_eq!([segments, files], [4, 4], "{outcome:?}");
    other.signal(Signal::TERM);
    other.finish();
    assert_eq!(present(&cluster, &others), [0, 0, 0]);
}

#[test]
fn guards_remove_rank_resources_of_killed_launcher() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let Some(program) = program(&cluster) else {
        return;
    };
    let (running, all) = started(of(ALICE, leaving(&cluster, &program, "wait")));
    let mut processes = cluster.host(0).processes().into_iter();
    let launcher = processes.find(|found| found.name == "wireup" && found.words.contains(" run "));
    launcher.unwrap().signal(Signal::KILL);
    running.finish().expect(137);
    assert_eq!(present(&cluster, &all), [0, 0, 0]);
}

#[test]
fn each_rank_has_own_directory_until_end() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let Some(program) = program(&cluster) else {
        return;
    };
    let outcome = leaving(&cluster, &program, "end").run().expect_success();
    let all = all(&outcome.out());
    assert_eq!(outcome.out().matches("mode=700").count(), 4, "{outcome:?}");
    let paths: BTreeSet<_> = all.iter().map(|left| (left.host, &left.scratch)).collect();
    assert_eq!(paths.len(), 4, "{outcome:?}");
    assert_eq!(present(&cluster, &all)[2], 0, "{outcome:?}");
    // Not asked for, there is none, nor that of an outer launch.
    let run = cluster.run(0, HOSTS).env("WIREUP_TMPDIR", "/outer");
    let shown = run
        .more(["sh", "-c", "echo \"<$WIREUP_TMPDIR>\""])
        .run()
        .expect_success();
    assert_eq!(shown.out().matches("<>\n").count(), 4, "{shown:?}");
}
