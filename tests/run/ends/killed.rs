//! wireup itself killed by SIGKILL: its guard ends everything and removes what lies about.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Output, Process, Run, Running, eventually, program};

/// Timeout for the guard: the grace time of the ranks and a margin for a loaded machine.
const CLEAN_WITHIN: Duration = Duration::from_secs(60);

fn guard_of(running: &Running) -> Process {
    eventually("the guard runs", || {
        let all = running.processes();
        all.into_iter()
            .find(|process| process.name == "wireup-guard")
    })
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn stopped_guard_does_not_block_launcher_exit() {
    let mut running = Run::ranks(1, ["sh", "-c", "echo ready; cat"])
        .stdin_held()
        .start();
    running.wait_for(Output::Stdout, "ready");
    let guard = Pid::from_raw(guard_of(&running).pid).unwrap();
    kill_process(guard, Signal::STOP).unwrap();
    drop(running.stdin());
    running.finish().expect_quiet_success();
}

#[test]
fn guard_ends_all_running_ranks() {
    let Some(orphan) = program("orphan") else {
        return;
    };
    // Ranks that ignore SIGTERM, with children and daemons of their own.
    let script = format!(
        "trap '' TERM INT HUP; sleep 1000 & {} --hold-output; echo ready; sleep 1000",
        orphan.display()
    );
    let running = Run::ranks(6, ["sh", "-c", &script])
        .clean_within(CLEAN_WITHIN)
        .start();
    running.wait_for_many(Output::Stdout, "ready", 6);
    running.signal(Signal::KILL);
    running.finish().expect(137);
}

#[test]
fn ranks_may_exit_in_order_after_kill_of_wireup() {
    // Their output is not read any more; the shell must not die of that first.
    let script = "trap 'echo ended >ended.$WIREUP_RANK; exit' TERM
        echo ready; exec >/dev/null 2>&1; while :; do sleep 0.05; done";
    let running = Run::ranks(3, ["sh", "-c", script])
        .clean_within(CLEAN_WITHIN)
        .start();
    running.wait_for_many(Output::Stdout, "ready", 3);
    running.signal(Signal::KILL);
    let outcome = running.finish().expect(137);
    for rank in 0..3 {
        assert!(
            outcome.dir().join(format!("ended.{rank}")).exists(),
            "rank {rank}"
        );
    }
}

#[test]
fn kill_at_any_moment_of_start_leaves_nothing() {
    for ranks in [0, 1, 2, 5, 20, 60, 120, 199] {
        let running = Run::ranks(200, ["sleep", "1000"])
            .clean_within(CLEAN_WITHIN)
            .start();
        // With 0, as soon as it exists: perhaps even before it has a guard.
        eventually("so many ranks run", || {
            let all = running.processes();
            let wireup = all
                .iter()
                .any(|p| p.pid == running.pid() && p.name == "wireup");
            let sleeping = all.iter().filter(|p| p.name == "sleep").count();
            (wireup && sleeping >= ranks).then_some(())
        });
        running.signal(Signal::KILL);
        running.finish().expect(137);
    }
}

#[test]
fn kill_while_ranks_end_leaves_nothing() {
    for ended in [1, 20, 60, 99] {
        let running = Run::ranks(100, ["sh", "-c", "read x <gate; exit 0"]);
        let gate = running.dir().join("gate");
        rustix::fs::mkfifoat(rustix::fs::CWD, &gate, rustix::fs::Mode::RWXU).unwrap();
        let running = running.clean_within(CLEAN_WITHIN).start();
        let shells = || {
            running
                .processes()
                .iter()
                .filter(|p| p.name == "sh")
                .count()
        };
        eventually("all ranks run", || (shells() == 100).then_some(()));
        // Opens when a reader is there, and lets all of them go.
        let gate = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&gate)
            .unwrap();
        std::io::Write::write_all(&mut &gate, &[b'\n'; 100]).unwrap();
        eventually("some have ended", || {
            (shells() <= 100 - ended).then_some(())
        });
        running.signal(Signal::KILL);
        let outcome = running.finish();
        assert!([0, 137].contains(&outcome.code), "{outcome:?}");
    }
}

#[test]
fn killed_guard_does_not_disturb_launch() {
    let script = "echo ready; read x; echo $x";
    let mut running = Run::ranks(3, ["--stdin", "all", "sh", "-c", script])
        .stdin_held()
        .start();
    running.wait_for_many(Output::Stdout, "ready", 3);
    kill(guard_of(&running).pid);
    std::io::Write::write_all(&mut running.stdin(), b"on\n").unwrap();
    let outcome = running.finish().expect_quiet_success();
    assert_eq!(outcome.out().matches("on\n").count(), 3);
    // And not one that is being started.
    let running = Run::ranks(100, ["true"]).start();
    let guard = eventually("the guard runs, or all is over", || {
        let all = running.processes();
        let guard = all.iter().find(|process| process.name == "wireup-guard");
        let over = !all.iter().any(|process| process.pid == running.pid());
        (over || guard.is_some()).then(|| guard.map(|guard| guard.pid))
    });
    if let Some(guard) = guard {
        let _ = kill_process(Pid::from_raw(guard).unwrap(), Signal::KILL);
    }
    running.finish().expect_quiet_success();
}

#[test]
fn signals_do_not_end_guard() {
    let running = Run::ranks(2, ["sh", "-c", "echo ready; exec sleep 1000"])
        .clean_within(CLEAN_WITHIN)
        .start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    let guard = Pid::from_raw(guard_of(&running).pid).unwrap();
    for signal in [
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
        Signal::USR2,
    ] {
        kill_process(guard, signal).unwrap();
    }
    running.signal(Signal::KILL);
    running.finish().expect(137);
}

#[test]
fn reader_of_output_does_not_wait_for_guard() {
    // The pipe ends with the ranks and wireup; the guard holds none of it.
    let running = Run::ranks(1, ["sh", "-c", "echo ready; exec sleep 1000"])
        .clean_within(CLEAN_WITHIN)
        .start();
    running.wait_for(Output::Stdout, "ready");
    let guard = guard_of(&running);
    eventually("the guard has its socket alone", || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", guard.pid)).unwrap();
        let targets = fds.flatten().map(|fd| std::fs::read_link(fd.path()).ok());
        let targets: Option<Vec<_>> = targets.collect();
        let mut targets: Vec<String> = targets?
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        // One for each process it knows. It opens its record for a moment.
        targets.retain(|target| !target.contains("pidfd"));
        matches!(&targets[..], [own] if own.starts_with("socket:")).then_some(())
    });
    running.signal(Signal::KILL);
    running.finish().expect(137);
}
