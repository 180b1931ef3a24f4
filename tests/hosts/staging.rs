//! `--stage`: what hosts lack of a program and its libraries is brought to them, once; `--same-build`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::{ALICE, Cluster};
use crate::common::{DEADLINE, Output, Pmix, Run, mpi, pmix};
use crate::doctor::on;
use crate::users::of;

/// Source of the program's own library; the program prints its path and that of the library.
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

/// Directory with the files on the first host alone.
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
    with_program(cluster, before, run)
}

/// A run while the first host alone has the program, for what `before` does first.
fn with_program(cluster: &Cluster, before: &str, run: Run) -> Run {
    let program_dir = cluster.dir().join("made").display().to_string();
    let script = format!(
        "mkdir /tmp/lib; cp {program_dir}/libstaged.so /tmp/lib; cp {program_dir}/only {ONLY}; {before} \"$@\"; code=$?; \
         rm -r /tmp/lib {ONLY}; exit $code"
    );
    run.under(["sh", "-c", &script, "sh"])
        .deadline(2 * DEADLINE)
}

/// A rank on the first of three hosts that spawns two of the program, for which the other hosts have room, with an info.
fn spawner(cluster: &Cluster, client: &Pmix, info: &str) -> Run {
    let hosts = ["--hosts", "node01:1,node02:1,node03:1", "-n", "1"];
    let run = cluster.run(0, hosts).more(["--pmi", "pmix"]);
    let run = run.more(["--libpmix", client.path()]);
    let run = run.more([client.dir.join("pmix_spawn")]);
    with_program(cluster, "", run.more(["run", ONLY, info]))
}

/// Nothing that was staged for a launch is on these hosts.
#[track_caller]
fn expect_no_files(cluster: &Cluster, hosts: &[usize]) {
    for host in hosts {
        let files = cluster.host(*host).files();
        let left = files
            .iter()
            .filter(|file| file.to_string_lossy().contains(".files"));
        assert_eq!(left.collect::<Vec<_>>(), Vec::<&PathBuf>::new());
    }
}

#[test]
fn large_program_is_staged_once_per_host_and_ends_with_agents() {
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
fn changed_program_is_staged_again_per_user() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let program_dir = cluster.dir().join("made");
    for (answer, user) in [(1, 0), (2, 0), (2, ALICE)] {
        make(&program_dir, answer, 0);
        let run = run(&cluster, 3, "", &["--stage"], &[]);
        let run = if user == 0 { run } else { of(user, run) };
        let outcome = run.run().expect_quiet_success();
        let answers = outcome.out().matches(&format!(" answer={answer} ")).count();
        assert_eq!(answers, 3, "{outcome:?}");
    }
}

#[test]
fn staged_files_are_removed_after_kill_of_launcher_or_host() {
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
fn host_without_disk_space_is_named_with_needed_size() {
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
        "on node02: --stage: 17 MiB must be copied, and /tmp has ",
        " MiB free",
    ]);
    expect_no_files(&cluster, &[0, 1, 2]);
}

#[test]
fn disk_full_during_staging_is_reported_with_phase() {
    let Some(cluster) = Cluster::builder(3).heartbeat("60").start() else {
        return;
    };
    make(&cluster.dir().join("made"), 42, 24);
    on(&cluster, 1, "mount -n -o remount,size=48m /tmp");
    // At most 8 MiB are on the way: it takes some seconds.
    let delay = |time| cluster.lab().slow_down(time, 0).unwrap();
    delay(Duration::from_millis(200));
    // What fills it is the test's.
    cluster.excuse(1);
    let running = run(&cluster, 3, "", &["--stage"], &[]).terminal().start();
    running.wait_for(
        Output::Stdout,
        "wireup: staging: 1 of 3 hosts have the files, waiting for node02, node03",
    );
    on(
        &cluster,
        1,
        "! head -c 1G /dev/zero 2>/dev/null >/tmp/filling",
    );
    let outcome = running.finish().expect(125);
    let line = "on node02: --stage: no space left in /tmp for /tmp/only: \
                No space left on device; make room there";
    assert!(outcome.out().contains(line), "{outcome:?}");
    expect_no_files(&cluster, &[0, 1, 2]);
    for host in [1, 2] {
        // The store has whole files only.
        let files = cluster.host(host).files();
        let names = files.iter().filter_map(|file| file.to_str());
        let mut stored =
            names.filter_map(|name| name.split_once("/wireup-staged.")?.1.split_once('/'));
        let partial = stored.find(|(_, name)| name.contains('.'));
        assert_eq!(partial, None);
    }
    on(&cluster, 1, "rm /tmp/filling");
    delay(Duration::ZERO);
    let outcome = run(&cluster, 3, "", &["--stage"], &[])
        .run()
        .expect_quiet_success();
    assert_eq!(
        outcome.out().matches("answer=42 ").count(),
        3,
        "{outcome:?}"
    );
}

#[test]
fn spawned_program_is_brought_to_each_host_once() {
    const SIZE: u64 = 20;
    let (Some(cluster), Some(client)) = (Cluster::new(3), pmix("pmix5")) else {
        return;
    };
    make(&cluster.dir().join("made"), 42, SIZE);
    let received = || [1, 2].map(|host| cluster.received(host));
    for is_first in [true, false] {
        let before = received();
        let outcome = spawner(&cluster, &client, "stage=true").run().expect(0);
        assert!(outcome.out().contains(" status=0 "), "{outcome:?}");
        let lines = outcome.sorted_lines().into_iter();
        let lines: Vec<_> = lines.filter(|line| line.contains(" answer=")).collect();
        assert_eq!(lines.len(), 2, "{outcome:?}");
        for (host, line) in ["node02", "node03"].iter().zip(&lines) {
            let begin = format!("{host} answer=42 program=");
            let is_brought =
                line.contains(".files/0/only library=") && line.contains(".files/0/lib/");
            assert!(line.starts_with(&begin) && is_brought, "{outcome:?}");
        }
        for (before, after) in before.into_iter().zip(received()) {
            assert_eq!(after - before >= SIZE * MIB, is_first, "{before} {after}");
        }
        expect_no_files(&cluster, &[0, 1, 2]);
    }
    let outcome = spawner(&cluster, &client, "stage=false").run().expect(0);
    // The first of the two hosts that refuses it.
    outcome.expect_one_line(&["cannot spawn: on node0", ONLY]);
}

#[test]
fn spawn_without_room_for_its_program_fails_alone() {
    let (Some(cluster), Some(client)) = (Cluster::new(3), pmix("pmix5")) else {
        return;
    };
    make(&cluster.dir().join("made"), 42, 16);
    on(&cluster, 1, "mount -n -o remount,size=4m /tmp");
    let outcome = spawner(&cluster, &client, "stage=true").run().expect(0);
    assert!(!outcome.out().contains(" status=0 "), "{outcome:?}");
    outcome.expect_one_line(&["on node02: --stage: 17 MiB must be copied, and /tmp has "]);
    expect_no_files(&cluster, &[0, 1, 2]);
}

#[test]
fn unstageable_file_is_refused_before_hosts_are_contacted() {
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
fn hosts_with_different_build_are_named_in_one_line() {
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

/// A library that a program loads, in fact a file.
fn loaded(program: &Path, prefix: &str) -> PathBuf {
    let listed = Command::new("ldd").arg(program).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut lines = listed.lines().map(str::trim);
    let line = lines.find(|line| line.starts_with(prefix)).unwrap();
    let path = line.split_whitespace().nth(2).unwrap();
    fs::canonicalize(path).unwrap()
}

/// A copy of a file with another build id: the header of the note, then its first byte turned.
fn with_another_build_id(from: &Path, to: &Path) {
    let mut bytes = fs::read(from).unwrap();
    let header = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let at = bytes.windows(header.len()).position(|part| part == header);
    bytes[at.unwrap() + header.len()] ^= 0xff;
    fs::write(to, bytes).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
}

#[test]
fn hosts_with_different_mpi_library_are_named_in_one_line() {
    // Those whose files have build ids.
    for name in ["mpich4", "openmpi4", "impi"] {
        let (Some(mpi), Some(cluster)) = (mpi(name), Cluster::new(3)) else {
            return;
        };
        let library = loaded(&mpi.program("hello"), "libmpi");
        let other = cluster.dir().join("libmpi-other");
        with_another_build_id(&library, &other);
        let mut mount = cluster.host(1).command("mount");
        let mounted = mount.args(["-n", "--bind"]).arg(&other).arg(&library);
        assert!(mounted.status().unwrap().success());
        let start = |options: &[&str]| {
            let hosts = ["--hosts", "node01,node02,node03", "-n", "3"];
            let run = cluster.run(0, hosts).more(options);
            let run = mpi
                .env
                .iter()
                .fold(run, |run, (name, value)| run.env(name, value));
            run.more([mpi.program("hello")]).run()
        };
        let outcome = start(&[]).expect(0);
        outcome.by_rank("hello", 3);
        let warning = "warning: hosts have other builds";
        let err = outcome.err();
        let lines = err.lines().filter(|line| line.contains(warning));
        let lines: Vec<&str> = lines.collect();
        assert_eq!(lines.len(), 1, "{outcome:?}");
        // The program itself is the same everywhere, and so is the library of the third host.
        let named = lines[0].split_once("ranks load: ").unwrap().1;
        assert!(
            named.starts_with("libmpi") && named.contains(" on node02 is build "),
            "{outcome:?}"
        );
        assert!(!named.contains(';'), "{outcome:?}");
        assert!(
            !start(&["--same-build", "off"])
                .expect_success()
                .err()
                .contains(warning)
        );
        let outcome = start(&["--same-build", "fail"]).expect(125);
        outcome.expect_one_line(&[
            "libmpi",
            " on node02 is build ",
            "install the same build on all hosts",
        ]);
        assert_eq!(outcome.out(), "");
    }
}
