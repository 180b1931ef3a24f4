//! `--stage`: what hosts lack of a program and its libraries is brought to them, once; `--same-build`.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::cluster::{ALICE, Cluster};
use crate::common::{DEADLINE, Output, Run};
use crate::users::of;

/// A library of the program's own, and the program, which says where it and the library are.
const LIBRARY: &str = "int answer(void) { return ANSWER; }\n";
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int answer(void);
int main(int argc, char **argv) {
    Dl_info info;
    char host[64] = "", self[4096] = "";
    gethostname(host, sizeof host - 1);
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0 || !dladdr((void *)answer, &info))
        return 9;
    printf("%s answer=%d program=%s library=%s built=%d\n", host, answer(), self, info.dli_fname, ANSWER);
    fflush(stdout);
    if (argc > 1)
        pause();
    return 0;
}
"#;

/// Where the first host alone has them.
const ONLY: &str = "/tmp/only";
const MIB: u64 = 1024 * 1024;

/// Makes both in a directory that all hosts see, the program with that many MiB behind it.
fn make(dir: &Path, answer: u32, mib: u64) {
    fs::create_dir_all(dir).unwrap();
    let dir = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    fs::write(dir("library.c"), LIBRARY).unwrap();
    fs::write(dir("program.c"), PROGRAM).unwrap();
    let cc = |args: &[&str]| {
        let output = Command::new("cc").args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let (library, answer) = (dir("libstaged.so"), format!("-DANSWER={answer}"));
    cc(&[
        "-shared",
        "-Wl,-soname,libstaged.so",
        "-fPIC",
        &answer,
        &dir("library.c"),
        "-o",
        &library,
    ]);
    let (program, rpath) = (dir("only"), "-Wl,-rpath,/tmp/lib");
    cc(&[
        &dir("program.c"),
        &library,
        rpath,
        "-ldl",
        &answer,
        "-o",
        &program,
    ]);
    // Nothing that compresses, or repeats.
    let script = format!("head -c {} /dev/urandom >>\"$0\"", mib * MIB);
    let filled = Command::new("sh").args(["-c", &script, &program]).status();
    assert!(filled.unwrap().success());
}

/// A run on the first hosts of a program that only the first has, with the arguments `words`; for what `before` does
/// first.
fn run(cluster: &Cluster, hosts: usize, before: &str, options: &[&str], words: &[&str]) -> Run {
    let made = cluster.dir().join("made").display().to_string();
    let script = format!(
        "mkdir /tmp/lib; cp {made}/libstaged.so /tmp/lib; cp {made}/only {ONLY}; {before} \"$@\"; code=$?; \
         rm -r /tmp/lib {ONLY}; exit $code"
    );
    let ranks = hosts.to_string();
    let list = [
        "--hosts",
        &cluster.names(hosts),
        "-n",
        &ranks,
        "--map-by",
        "node",
    ];
    let run = cluster.run(0, list).more(options).more([ONLY]).more(words);
    run.under(["sh", "-c", &script, "sh"])
        .deadline(2 * DEADLINE)
}

/// Nothing that was staged for a launch is on these hosts.
#[track_caller]
fn expect_no_files(cluster: &Cluster, hosts: &[usize]) {
    for host in hosts {
        let files = cluster.host(*host).files();
        let left = files
            .iter()
            .filter(|file| file.to_string_lossy().contains(".files"));
        assert_eq!(left.collect::<Vec<_>>(), Vec::<&std::path::PathBuf>::new());
    }
}

#[test]
fn a_large_program_is_brought_to_each_host_once_and_is_gone_with_the_agents() {
    const SIZE: u64 = 100;
    let Some(cluster) = Cluster::new(5) else {
        return;
    };
    make(&cluster.dir().join("made"), 42, SIZE);
    let received = || (1..5).map(|host| cluster.received(host));
    let before: Vec<u64> = received().collect();
    let outcome = run(&cluster, 5, "", &["--stage"], &[])
        .run()
        .expect_quiet_success();
    let lines = outcome.sorted_lines();
    assert_eq!(lines.len(), 5, "{outcome:?}");
    for (host, line) in (1..).zip(&lines) {
        let begin = format!("node{host:02} answer=42 program=");
        assert!(line.starts_with(&begin), "{outcome:?}");
        let own = line.contains(&format!("program={ONLY} library=/tmp/lib/libstaged.so"));
        let brought = line.contains(".files/0/only library=") && line.contains(".files/0/lib/");
        assert!(if host == 1 { own } else { brought }, "{outcome:?}");
    }
    let after: Vec<u64> = received().collect();
    for (before, after) in before.iter().zip(&after) {
        let got = after - before;
        assert!(
            (SIZE * MIB..SIZE * MIB * 5 / 4).contains(&got),
            "{got} bytes"
        );
    }
    expect_no_files(&cluster, &[0, 1, 2, 3, 4]);
    let outcome = run(&cluster, 5, "", &["--stage"], &[])
        .run()
        .expect_quiet_success();
    assert_eq!(outcome.sorted_lines().len(), 5, "{outcome:?}");
    for (before, after) in after.iter().zip(received()) {
        assert!(after - before < MIB, "{} bytes", after - before);
    }
    // The end of the cluster, and of its agents, looks for what is left.
}

#[test]
fn a_changed_program_is_brought_again_and_users_have_stores_of_their_own() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let made = cluster.dir().join("made");
    for (answer, user) in [(1, 0), (2, 0), (2, ALICE)] {
        make(&made, answer, 0);
        let run = run(&cluster, 3, "", &["--stage"], &[]);
        let run = if user == 0 { run } else { of(user, run) };
        let outcome = run.run().expect_quiet_success();
        let answers = outcome.out().matches(&format!(" answer={answer} ")).count();
        assert_eq!(answers, 3, "{outcome:?}");
    }
}

#[test]
fn nothing_of_a_launch_is_left_when_its_launcher_or_a_host_is_killed() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    make(&cluster.dir().join("made"), 42, 1);
    let start = || {
        let running = run(&cluster, 3, "", &["--stage"], &["wait"])
            .clean_within(DEADLINE)
            .start();
        running.wait_for_many(Output::Stdout, "answer=42", 3);
        running
    };
    let running = start();
    let mut all = cluster.host(0).processes().into_iter();
    let launcher = all.find(|process| process.name == "wireup" && process.words.contains(" run "));
    launcher.unwrap().signal(Signal::KILL);
    running.finish().expect(137);
    expect_no_files(&cluster, &[0, 1, 2]);
    let running = start();
    cluster.excuse(2);
    cluster.lab().crash(cluster.host(2)).unwrap();
    let outcome = running.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    expect_no_files(&cluster, &[0, 1]);
}

#[test]
fn a_host_without_room_is_named_with_what_is_needed() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    make(&cluster.dir().join("made"), 42, 16);
    let mut remount = cluster.host(1).command("mount");
    let remounted = remount
        .args(["-n", "-o", "remount,size=4m", "/tmp"])
        .status();
    assert!(remounted.unwrap().success());
    let outcome = run(&cluster, 3, "", &["--stage"], &[]).run().expect(125);
    outcome.expect_one_line(&[
        "on node02: --stage: 17 MiB are to be brought, and /tmp has ",
        " MiB free",
    ]);
    expect_no_files(&cluster, &[0, 1, 2]);
}

#[test]
fn what_cannot_be_staged_is_refused_before_hosts_are_asked() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let hosts = ["--hosts", "node01,node02", "-n", "2", "--stage"];
    let outcome = cluster.run(0, hosts).more(["/tmp/gone"]).run().expect(125);
    outcome.expect_one_line(&["--stage: /tmp/gone is not on this machine"]);
    let image = ["--image", "/", "true"];
    let outcome = cluster.run(0, hosts).more(image).run().expect(125);
    outcome.expect_one_line(&["--stage: ranks find their programs in the image"]);
}

#[test]
fn hosts_with_another_build_are_named_in_one_line_before_the_start() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let (here, there) = (cluster.dir().join("made"), cluster.dir().join("other"));
    make(&here, 1, 0);
    make(&there, 2, 0);
    let clean = |host: usize| {
        let script = format!("rm -rf /tmp/lib {ONLY}");
        cluster
            .host(host)
            .command("sh")
            .args(["-c", &script])
            .status()
            .unwrap();
    };
    for (host, from) in [(1, &there), (2, &here)] {
        let from = from.display();
        let script =
            format!("mkdir /tmp/lib; cp {from}/libstaged.so /tmp/lib; cp {from}/only {ONLY}");
        let copied = cluster
            .host(host)
            .command("sh")
            .args(["-c", &script])
            .status();
        assert!(copied.unwrap().success());
    }
    let options = |same: &'static str| ["--same-build", same];
    // The files are the test's.
    cluster.excuse(1);
    cluster.excuse(2);
    // Warned by default.
    let start = |options: &[&str]| run(&cluster, 3, "", options, &[]).clean_within(DEADLINE);
    let outcome = start(&[]).run().expect(0);
    let words = [
        "warning: hosts have other builds",
        "/tmp/only on node02 is build ",
        "(here ",
    ];
    outcome.expect_one_line(&words);
    assert!(!outcome.err().contains("node03"), "{outcome:?}");
    assert_eq!(outcome.out().matches("answer=").count(), 3);
    start(&options("off")).run().expect_quiet_success();
    let outcome = start(&options("fail")).run().expect(125);
    outcome.expect_one_line(&["/tmp/only on node02 is build ", "--stage"]);
    assert_eq!(outcome.out(), "");
    // What is brought along is the same everywhere.
    let staged = [&options("fail")[..], &["--stage"]].concat();
    let outcome = start(&staged).run().expect_quiet_success();
    assert_eq!(outcome.out().matches("answer=1 ").count(), 3, "{outcome:?}");
    for host in [1, 2] {
        clean(host);
        cluster.expect_clean(host);
    }
}
