//! Jobs whose launcher was killed: with a guard that cleans up, and without.

use std::path::Path;
use std::process::{Command, Output as Answer};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{err, job_of, shown, staying, text, wireup};
use crate::common::{DEADLINE, Output, Run, Running, eventually};

/// Kills launcher and guard at once.
fn kill_launcher_and_guard(running: &Running) {
    let all = running.processes();
    let guard = all.iter().find(|process| process.name == "wireup-guard");
    let guard = Pid::from_raw(guard.expect("the guard runs").pid).unwrap();
    // A guard that does not run cannot see its launcher end.
    kill_process(guard, Signal::STOP).unwrap();
    running.signal(Signal::KILL);
    kill_process(guard, Signal::KILL).unwrap();
}

/// `wireup` where the run has its `/dev/shm`.
fn wireup_beside(process: i32, tmp: &Path, args: &[&str]) -> Answer {
    let target = process.to_string();
    let mut command = Command::new("nsenter");
    command
        .args(["--mount", "--target", &target, "--"])
        .arg(env!("CARGO_BIN_EXE_wireup"))
        .args(args)
        .env("TMPDIR", tmp);
    command.output().unwrap()
}

#[test]
fn orphaned_ranks_are_listed_and_ended_with_their_resources() {
    // A PMIx job has a directory and servers; the ranks ignore what they are asked, and leave shared memory and
    // children.
    let script = "trap '' TERM
        : >/dev/shm/mpich_shm_test.$WIREUP_RANK; env -i sleep 1000 & echo ready; wait; sleep 1000";
    let words = ["--pmi", "pmix", "sh", "-c", script];
    let run = Run::ranks(2, words).clean_within(Duration::ZERO);
    let tmp = run.dir().parent().unwrap().join("tmp");
    let running = run.start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    let before = job_of(&running);
    let name = text(&before, "job");
    assert!(tmp.join(name).is_dir());
    kill_launcher_and_guard(&running);
    let job = eventually("launcher and guard are gone", || {
        shown(name).filter(|job| job["pid"].is_null() && text(job, "state") == "orphaned")
    });
    assert_eq!((&job["ranks_alive"], &job["size"]), (&2.into(), &2.into()));
    assert_eq!(job["ranks"], before["ranks"].clone().with_same_use(&job));
    let table = String::from_utf8(wireup(["ps", name]).stdout).unwrap();
    assert!(table.contains("orphaned"), "{table}");

    let rank = job["ranks"][0]["pid"].as_i64().unwrap() as i32;
    // Nothing here has the directory for temporary files of the job but its own processes.
    let answer = wireup_beside(rank, Path::new("/tmp"), &["kill", text(&job, "short")]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    assert!(
        err(&answer).contains("its launcher was gone; "),
        "{answer:?}"
    );
    assert_eq!(shown(name), None);
    running.finish().expect(137);
}

/// Copies the values that change over time from another output.
trait SameUse {
    fn with_same_use(self, of: &serde_json::Value) -> Self;
}

impl SameUse for serde_json::Value {
    fn with_same_use(mut self, of: &Self) -> Self {
        let ranks = self.as_array_mut().unwrap();
        for (rank, other) in ranks.iter_mut().zip(of["ranks"].as_array().unwrap()) {
            for key in ["cpu", "memory", "state"] {
                rank[key] = other[key].clone();
            }
        }
        self
    }
}

#[test]
fn orphaned_ranks_take_other_signals_and_are_killed_at_once() {
    let script = "trap '' TERM; trap 'echo heard >heard.$WIREUP_RANK' USR1; echo ready
        exec >/dev/null 2>&1; while :; do sleep 0.05; done";
    let running = Run::ranks(2, ["sh", "-c", script]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    let name = text(&job_of(&running), "job").to_owned();
    kill_launcher_and_guard(&running);
    eventually("the launcher is gone", || {
        shown(&name).filter(|job| text(job, "state") == "orphaned")
    });
    let answer = wireup(["kill", "-s", "USR1", &name]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    assert!(err(&answer).ends_with("SIGUSR1 sent to 2 ranks\n"));
    let rank = shown(&name).unwrap()["ranks"][0]["pid"].as_i64().unwrap() as i32;
    let answer = eventually("both heard it", || {
        let dir = running.work();
        (0..2)
            .all(|rank| dir.join(format!("heard.{rank}")).exists())
            .then(|| wireup_beside(rank, Path::new("/tmp"), &["kill", "-s", "KILL", &name]))
    });
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    running.finish().expect(137);
}

#[test]
fn job_under_cleanup_by_guard_is_ending_and_can_be_awaited() {
    let script = "trap '' TERM; echo ready; exec >/dev/null 2>&1; while :; do sleep 0.05; done";
    let running = Run::ranks(2, ["sh", "-c", script]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    let name = text(&job_of(&running), "job").to_owned();
    running.signal(Signal::KILL);
    // It gives the ranks two seconds, which they take.
    let job = eventually("the launcher is gone", || {
        shown(&name).filter(|job| job["pid"].is_null())
    });
    assert_eq!(text(&job, "state"), "ending");
    let answer = wireup(["kill", &name]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    assert!(
        err(&answer).contains("its guard is ending it; ended after"),
        "{answer:?}"
    );
    assert_eq!(shown(&name), None);
    let clean = running.clean_within(DEADLINE);
    clean.finish().expect(137);
}

#[test]
fn guard_killed_during_cleanup_is_replaced_by_waiting_kill() {
    let script = "trap '' TERM; echo ready; exec >/dev/null 2>&1; while :; do sleep 0.05; done";
    let running = Run::ranks(2, ["--pmi", "pmi1", "sh", "-c", script]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    let name = text(&job_of(&running), "job").to_owned();
    let guard = running
        .processes()
        .into_iter()
        .find(|process| process.name == "wireup-guard");
    let guard = Pid::from_raw(guard.unwrap().pid).unwrap();
    // The guard does not get its resources at once; besides the socket it holds both ranks, and no sidecar.
    eventually("the guard knows the ranks", || {
        let held = std::fs::read_dir(format!("/proc/{guard}/fd")).unwrap();
        (held.count() == 3).then_some(())
    });
    // Stopped, it is there and does nothing.
    kill_process(guard, Signal::STOP).unwrap();
    running.signal(Signal::KILL);
    eventually("the launcher is gone", || {
        shown(&name).filter(|job| text(job, "state") == "ending")
    });
    let rank = shown(&name).unwrap()["ranks"][0]["pid"].as_i64().unwrap() as i32;
    let waiting = std::thread::spawn({
        let name = name.clone();
        move || wireup_beside(rank, Path::new("/tmp"), &["kill", &name])
    });
    kill_process(guard, Signal::KILL).unwrap();
    let answer = waiting.join().unwrap();
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    assert_eq!(shown(&name), None);
    running.finish().expect(137);
}

#[test]
fn running_job_is_not_taken_for_orphaned() {
    let running = staying(2, &[]);
    assert_eq!(text(&job_of(&running), "state"), "running");
    super::end(running);
}
