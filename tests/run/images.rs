//! Ranks whose root directory is an image, on one machine. The image is the machine's own root directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{DEADLINE, Output, Run, mpi, pmix, skip};

/// Two virtual nodes with two ranks each, in the image.
fn run() -> Run {
    Run::ranks(4, ["--virtual-nodes", "2", "--image", "/"])
}

#[test]
fn virtual_nodes_share_one_container() {
    let script =
        "uname -n; readlink /proc/self/ns/mnt; touch /usr/new 2>/dev/null && echo written; true";
    let outcome = run()
        .more(["sh", "-c", script])
        .run()
        .expect_quiet_success();
    let mut lines = outcome.sorted_lines();
    lines.dedup();
    let own = fs::read_link("/proc/self/ns/mnt").unwrap();
    // A name for each node and mounts for both, which are not this machine's, and nothing written.
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(
        lines[0].starts_with("mnt:") && *lines[0] != *own.to_string_lossy(),
        "{lines:?}"
    );
}

#[test]
fn mpis_run_in_image() {
    for name in ["mpich5", "openmpi4"] {
        let Some(mpi) = mpi(name) else { continue };
        let mut run = run();
        for (name, value) in &mpi.env {
            run = run.env(name, value).more(["-x", name]);
        }
        let outcome = run.more([mpi.program("ring")]).run().expect_success();
        outcome.by_rank("ring", 4);
    }
}

#[test]
fn killed_launcher_leaves_no_image_mount() {
    let run = run().more(["sh", "-c", "echo ready; exec sleep 1000"]);
    let running = run.clean_within(DEADLINE).start();
    running.wait_for_many(Output::Stdout, "ready", 4);
    running.signal(Signal::KILL);
    running.finish().expect(137);
}

#[test]
fn killed_runtime_and_stopped_holder_leave_nothing() {
    let Ok(_) = Command::new("crun").arg("--version").output() else {
        return skip("no crun: run scripts/setup");
    };
    for (name, signal) in [("crun", Signal::KILL), ("holder", Signal::STOP)] {
        let script = "echo ready $WIREUP_LAUNCH_ID; read line; exit 7";
        let run = Run::ranks(1, ["--image", "crun:/"]);
        let mut running = run.more(["sh", "-c", script]).stdin_held().start();
        let line = running.wait_for(Output::Stdout, "ready");
        let launch = line.trim().strip_prefix("ready ").unwrap().to_owned();
        let processes = running.processes();
        let runtime = processes.iter().find(|process| process.name == "crun");
        let runtime = runtime.expect("the runtime is there").pid;
        let children = format!("/proc/{runtime}/task/{runtime}/children");
        let holder: i32 = fs::read_to_string(children)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let pid = if name == "crun" { runtime } else { holder };
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
        drop(running.stdin());
        running.finish().expect(7);
        // A zombie has an empty command line.
        let words = fs::read_to_string(format!("/proc/{holder}/cmdline"));
        assert!(
            !words.is_ok_and(|words| words.contains("wireup-holder")),
            "{name}"
        );
        let named = format!("{launch}.n0.image");
        assert!(!Path::new("/run/crun").join(&named).exists(), "{name}");
        let controllers = fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
        let groups = controllers.map(|controller| controller.path().join(&named));
        let left: Vec<PathBuf> = groups.filter(|group| group.exists()).collect();
        assert!(left.is_empty(), "{name}: {left:?}");
    }
}

/// A runtime of this name that is a script of the shell.
fn says(script: &str, words: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("bwrap");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    let run = Run::ranks(1, ["--image", "/"]).env("PATH", path);
    run.more(["true"]).run().expect(125).expect_one_line(words);
}

#[test]
fn container_runtime_that_makes_no_container_is_reported() {
    let failed = |reason| format!("--image /: bwrap cannot make the container: {reason}");
    says("exit 9", &[&failed("exited with code 9")]);
    says("kill -9 $$", &[&failed("killed by signal 9 (SIGKILL)")]);
    says("echo why >&2; exit 9", &[&failed("why")]);
    let other = failed("the container has a pid namespace of its own");
    says("echo 1", &[&other]);
}

#[test]
fn open_mpi_of_image_may_have_other_libpmix_than_server() {
    let (Some(mpi), Some(server)) = (mpi("openmpi5"), pmix("pmix4")) else {
        return;
    };
    let run = run().more(["-v", "--libpmix"]).more([&server.library]);
    let outcome = run.more([mpi.program("hello")]).run().expect(0);
    let version = |text: &str, before: &str| {
        let (_, rest) = text.split_once(before).expect(before);
        rest.split(' ').next().map(str::to_owned)
    };
    outcome.by_rank("hello", 4);
    let served = version(&outcome.err(), ": OpenPMIx ");
    let loaded = version(&outcome.out(), "pmix=\"OpenPMIx ");
    assert_ne!(served, loaded, "{outcome:?}");
}
