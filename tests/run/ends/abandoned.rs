//! Launcher and guard both killed, at once: the ranks end, and the next launch ends and removes the rest.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{DEADLINE, Output, Run, Running, eventually, process, skip};
use crate::users::{Reachable, USER, as_user};

/// Kills launcher and guard, of which neither can do anything about the other's end.
fn kill_both(running: &Running) {
    let all = running.processes();
    let guard = all.iter().find(|process| process.name == "wireup-guard");
    let guard = Pid::from_raw(guard.expect("the guard runs").pid).unwrap();
    kill_process(guard, Signal::STOP).unwrap();
    running.signal(Signal::STOP);
    running.signal(Signal::KILL);
    kill_process(guard, Signal::KILL).unwrap();
    for pid in [running.pid(), guard.as_raw_nonzero().get()] {
        eventually("both are dead", || {
            process(pid)
                .is_none_or(|process| process.state == 'Z')
                .then_some(())
        });
    }
}

/// The numbers of processes with these arguments.
fn called(words: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let called = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.trim() == words
    };
    pids.filter(called).collect()
}

/// The control group of a launch, by what a rank printed of its own; `None`, and the test is ignored, where there can be none.
fn group_of(printed: &str) -> Option<PathBuf> {
    let path = printed
        .split_whitespace()
        .find_map(|word| word.strip_prefix("group=0::/"));
    let path = path.filter(|path| path.contains("wireup-"));
    if path.is_none() {
        skip("a launch's control group: this machine lets us make none");
    }
    let points = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let groups = points.map(|point| Path::new(point).join(path.unwrap_or_default()));
    groups
        .into_iter()
        .find(|group| path.is_some() && group.is_dir())
}

const TELL_GROUP: &str = "echo group=$(grep ^0:: /proc/self/cgroup)";

#[test]
fn plain_ranks_end_when_launcher_and_guard_are_killed() {
    // More than one thread starts these; those have ended long before.
    let script = "echo ready; exec sleep 1000";
    let run = Run::ranks(12, ["--oversubscribe", "sh", "-c", script]);
    let next = Run::ranks(1, ["true"]).beside(&run);
    let running = run.start();
    running.wait_for_many(Output::Stdout, "ready", 12);
    kill_both(&running);
    eventually("no rank is left", || {
        running.processes().is_empty().then_some(())
    });
    next.run().expect_quiet_success();
    running.finish().expect(137);
}

#[test]
fn next_launch_removes_leftovers_of_dead_one() {
    // One rank ignores SIGTERM, and has a child that only its process group connects with the launch.
    let alone = format!("sleep 1000{}", std::process::id());
    let script = format!(
        "trap '' TERM; (env -i setsid {alone} &); : >/dev/shm/mpich_shm_test.$WIREUP_RANK
        {TELL_GROUP}; echo ready; while :; do sleep 1; done"
    );
    let words = ["--oversubscribe", "--pmi", "pmix", "sh", "-c", &script];
    let run = Run::ranks(2, words).clean_within(Duration::ZERO);
    let tmp = run.dir().parent().unwrap().join("tmp");
    let next = Run::ranks(1, ["true"]).beside(&run);
    let running = run.start();
    let printed = running.wait_for_many(Output::Stdout, "ready", 2);
    let group = group_of(&printed);
    eventually("the lonely children run", || {
        (called(&alone).len() == 2).then_some(())
    });
    kill_both(&running);
    let left = |path: &Path| std::fs::read_dir(path).unwrap().count();
    assert_ne!(left(&tmp), 0, "a job's directory");
    next.run().expect_quiet_success();
    assert_eq!(left(&tmp), 0);
    match group {
        Some(group) => {
            assert!(called(&alone).is_empty());
            assert!(!group.exists());
        }
        // What has left everything behind cannot be known for the launch's.
        None => called(&alone).into_iter().for_each(kill),
    }
    running.finish().expect(137);
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn guard_ends_children_without_session_parent_and_environment() {
    expect_lonely_children_end(2000, |script| Run::ranks(2, ["sh", "-c", script]));
}

/// A group of which a user may make others, as a service manager makes one for each session.
struct Delegated(PathBuf);

impl Delegated {
    /// `None`, and the test is ignored, where there can be none.
    fn to(user: &str) -> Option<Self> {
        let points = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let point = points
            .into_iter()
            .find(|point| point.join("cgroup.controllers").exists());
        let path = point.map(|point| point.join(format!("delegated-{}", std::process::id())));
        let Some(path) = path.filter(|path| std::fs::create_dir(path).is_ok()) else {
            skip("a delegated control group: this machine lets us make none");
            return None;
        };
        let group = Self(path);
        std::fs::create_dir(group.session()).unwrap();
        let chown = std::process::Command::new("chown")
            .args(["-R", user])
            .arg(&group.0)
            .status();
        assert!(chown.unwrap().success());
        Some(group)
    }

    fn session(&self) -> PathBuf {
        self.0.join("session")
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // A process that ends leaves its group last.
        for group in [&self.session(), &self.0] {
            eventually("an empty control group", || std::fs::remove_dir(group).ok());
        }
    }
}

#[test]
fn user_with_delegated_cgroup_leaves_nothing() {
    let Some(user) = as_user() else {
        return;
    };
    let Some(delegated) = Delegated::to(USER) else {
        return;
    };
    let reachable = Reachable::new();
    let join = format!("echo $$ >{}/cgroup.procs;", delegated.session().display());
    expect_lonely_children_end(3000, |script| {
        let wireup = reachable.wireup();
        let words = ["run", "--oversubscribe", "-n", "2", "sh", "-c", script];
        let words = std::iter::once(wireup.as_path()).chain(words.map(Path::new));
        Run::command(words).after_shell(&join).under(&user)
    });
}

#[test]
fn launch_runs_in_group_that_was_killed_before() {
    let Some(delegated) = Delegated::to("root") else {
        return;
    };
    let session = delegated.session();
    if std::fs::write(session.join("cgroup.kill"), "1").is_err() {
        return skip("a killed control group: this kernel has no cgroup.kill");
    }
    let join = format!("echo $$ >{}/cgroup.procs;", session.display());
    let outcome = Run::ranks(2, ["sh", "-c", TELL_GROUP])
        .after_shell(&join)
        .run();
    let outcome = outcome.expect(0);
    let own = format!("{}/wireup-", session.file_name().unwrap().display());
    assert_eq!(outcome.out().matches(&own).count(), 2, "{outcome:?}");
}

/// Kills a launcher whose ranks have children that only the control group connects with the launch. These
/// sleep for a time that begins with `seconds`, by which they are known.
fn expect_lonely_children_end(seconds: u32, run: impl FnOnce(&str) -> Run) {
    let alone = format!("sleep {seconds}{}", std::process::id());
    let script = format!("(env -i setsid {alone} &); {TELL_GROUP}; echo ready; exec sleep 1000");
    let running = run(&script).clean_within(DEADLINE).start();
    let printed = running.wait_for_many(Output::Stdout, "ready", 2);
    let Some(group) = group_of(&printed) else {
        running.signal(Signal::KILL);
        running.finish().expect(137);
        return called(&alone).into_iter().for_each(kill);
    };
    eventually("the lonely children run", || {
        (called(&alone).len() == 2).then_some(())
    });
    running.signal(Signal::KILL);
    running.finish().expect(137);
    eventually("they have ended", || {
        called(&alone).is_empty().then_some(())
    });
    eventually("the group is gone", || (!group.exists()).then_some(()));
}

#[test]
fn running_launch_is_not_taken_for_dead() {
    let run = Run::ranks(
        2,
        ["--pmi", "pmix", "sh", "-c", "echo ready; read x; echo on"],
    );
    let next = Run::ranks(1, ["true"]).beside(&run);
    let other = Run::ranks(1, ["true"]).beside(&run);
    let mut running = run.stdin_held().start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    next.run().expect_quiet_success();
    // Nor is one whose guard alone is gone.
    let all = running.processes();
    let guard = all.iter().find(|process| process.name == "wireup-guard");
    kill(guard.unwrap().pid);
    other.run().expect_quiet_success();
    drop(running.stdin());
    let outcome = running.finish().expect_quiet_success();
    assert_eq!(outcome.out().matches("on\n").count(), 2);
}
