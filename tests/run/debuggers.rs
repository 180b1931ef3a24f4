//! Debuggers: what they find of a launch by MPIR, with a real gdb, and ranks that are stopped before `main`.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{
    Mpi, Outcome, Output, Run, Running, descriptors, eventually, executable, field, mpi, mpis,
    node_name, number, process, program, repository, skip, wireup,
};

/// Time that gdb needs to read wireup, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Command of gdb with the script that reads the proctable; the words that select the process
/// follow.
pub(crate) fn gdb() -> Option<Vec<OsString>> {
    let found = std::process::Command::new("gdb").arg("--version").output();
    if found.is_err() {
        skip("gdb is not installed: run scripts/setup");
        return None;
    }
    let script = repository().join("tests/programs/mpir.py");
    let words = ["gdb", "-nx", "-q", "-batch", "-x"];
    let words = words.map(OsString::from).into_iter();
    Some(words.chain([script.into_os_string()]).collect())
}

/// A debugger that starts `wireup run` with these words.
fn led(words: &[&str]) -> Option<Run> {
    let run = Run::command(gdb()?).more(["--args"]).more([wireup()]);
    let run = run.more(["run", "--oversubscribe"]).more(words);
    Some(run.deadline(PATIENCE))
}

/// The processes that were shown, each time the debugger looked.
pub(crate) fn shown(outcome: &Outcome) -> Vec<Vec<String>> {
    let text = outcome.out();
    let looks = text.split("debug_state=1\n").skip(1);
    let processes = |look: &str| {
        let lines = look.lines().filter(|line| line.starts_with("process="));
        lines.map(str::to_owned).collect()
    };
    looks.map(processes).collect()
}

/// All processes of a launch of one program, as they are shown in one look.
#[track_caller]
fn expect_shown(look: &[String], program: &str, count: u32, was: &str) {
    let numbers: Vec<u32> = look.iter().map(|line| number(line, "process")).collect();
    assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "{look:#?}");
    for line in look {
        let of = |key| field(line, key);
        assert_eq!(of("executable"), Some(program), "{line}");
        assert_eq!(of("host"), Some(node_name().as_str()), "{line}");
        assert_eq!(of("was"), Some(was), "{line}");
    }
}

/// A debugger leads a launch of this MPI's ranks on two nodes.
fn leads(mpi: &Mpi) {
    let hello = mpi.program("hello");
    let hello = hello.to_str().unwrap();
    let env = mpi
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let env: Vec<String> = env.collect();
    let mut words = vec!["--virtual-nodes", "2", "-n", "4"];
    words.extend(env.iter().flat_map(|variable| ["-x", variable]));
    words.push(hello);
    let Some(run) = led(&words) else {
        return;
    };
    let outcome = run.run().expect(0);
    let looks = shown(&outcome);
    assert_eq!(looks.len(), 1, "{outcome:?}");
    expect_shown(&looks[0], hello, 4, "T");
    assert!(
        looks[0]
            .iter()
            .all(|line| field(line, "in_main") == Some("0"))
    );
    outcome.by_rank("hello", 4);
    assert!(
        outcome.out().contains("launcher exited with 0\n"),
        "{outcome:?}"
    );
}

#[test]
fn debugger_that_starts_launcher_finds_ranks_before_main() {
    for mpi in mpis() {
        leads(&mpi);
    }
}

#[test]
fn processes_without_mpi_are_in_proctable_and_set_exit_code() {
    let script = "sleep 0.1; exit 7";
    let Some(run) = led(&["--pmi", "none", "-n", "3", "sh", "-c", script]) else {
        return;
    };
    let outcome = run.run().expect(0);
    let looks = shown(&outcome);
    assert_eq!(looks.len(), 1, "{outcome:?}");
    assert_eq!(looks[0].len(), 3, "{outcome:?}");
    assert!(
        outcome.out().contains("launcher exited with 7\n"),
        "{outcome:?}"
    );
}

#[test]
fn spawned_processes_are_added_to_proctable() {
    let Some(mpi) = mpi("openmpi5").map(Mpi::with_dynamic_processes) else {
        return;
    };
    let spawn = mpi.program("spawn");
    let spawn = spawn.to_str().unwrap();
    let Some(run) = led(&["--virtual-nodes", "2", "-n", "2", spawn, "children=3"]) else {
        return;
    };
    let outcome = run.run().expect(0);
    let looks = shown(&outcome);
    let counts: Vec<usize> = looks.iter().map(Vec::len).collect();
    assert_eq!(counts, [2, 5], "{outcome:?}");
    expect_shown(&looks[0], spawn, 2, "T");
    assert!(
        outcome.out().contains("launcher exited with 0\n"),
        "{outcome:?}"
    );
}

#[test]
fn debugger_that_attaches_later_finds_ranks_and_leaves_no_trace() {
    let Some(steady) = program("sigreport") else {
        return;
    };
    let Some(gdb) = gdb() else {
        return;
    };
    let steady = steady.to_str().unwrap();
    let options = ["--virtual-nodes", "2"];
    let run = Run::ranks(4, options).more([steady]).deadline(PATIENCE);
    let tmp = run.dir().with_file_name("tmp");
    let running = run.start();
    running.wait_for_many(Output::Stdout, "ready", 4);
    // The listener for PMIx tools comes later than the ranks.
    eventually("tools can find the job", || {
        let job = std::fs::read_dir(&tmp).ok()?.flatten().next()?;
        let files = std::fs::read_dir(job.path().join("n0/server")).ok()?;
        let is_last = |name: &OsStr| name.to_string_lossy().ends_with(".tool");
        files
            .flatten()
            .any(|file| is_last(&file.file_name()))
            .then_some(())
    });
    let before = descriptors(running.pid());
    for _ in 0..2 {
        let pid = running.pid().to_string();
        let attached = Run::command(&gdb).more(["-p", &pid]).deadline(PATIENCE);
        let outcome = attached.run().expect(0);
        let looks = shown(&outcome);
        assert_eq!(looks.len(), 1, "{outcome:?}");
        let asleep = looks[0]
            .iter()
            .all(|line| field(line, "in_main") == Some("1"));
        assert!(asleep, "{outcome:?}");
        assert_eq!(looks[0].len(), 4);
    }
    // Connections of the start may have been open before.
    let after = descriptors(running.pid());
    assert!(after <= before, "{before} descriptors became {after}");
    running.signal(Signal::TERM);
    let outcome = running.finish().expect(143);
    assert_eq!(
        outcome.out().matches("signal=TERM ").count(),
        4,
        "{outcome:?}"
    );
}

/// Pids of the ranks once all are stopped, and none has begun.
#[track_caller]
fn stopped(running: &Running, count: usize) -> Vec<i32> {
    eventually("the ranks are stopped", || {
        let processes = running.processes();
        let stopped = processes.iter().filter(|one| one.state == 'T');
        let pids: Vec<i32> = stopped.map(|one| one.pid).collect();
        (pids.len() == count).then_some(pids)
    })
}

/// Sends SIGCONT with `wireup kill`.
fn let_go_on(running: &Running, options: &[&str]) {
    let pid = running.pid().to_string();
    let kill = Run::command([wireup()]).more(["kill", "-s", "CONT"]);
    kill.more(options).more([pid]).run().expect(0);
}

#[test]
fn scripts_and_static_programs_stop_at_start_until_continued() {
    let shell = Run::ranks(3, ["--stop-at=exec", "--virtual-nodes", "3"]);
    let script = shell.dir().join("script");
    std::fs::write(&script, "#!/bin/sh\necho began $WIREUP_RANK\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let text = "#include <stdio.h>\nint main(void) { return puts(\"began x\") < 0; }\n";
    let program = executable(shell.dir(), "static", text, &["-static"]);
    for path in [Some(script), program].into_iter().flatten() {
        let run = Run::ranks(3, ["--stop-at=exec", "--virtual-nodes", "3"]).more([&path]);
        let running = run.start();
        running.wait_for(Output::Stderr, "stopped before main: ranks 0-2");
        for pid in stopped(&running, 3) {
            let executes = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
            assert_ne!(executes.file_name(), wireup().file_name());
            // Nothing is traced or blocked any more.
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            assert!(status.contains("TracerPid:\t0\n"), "{status}");
            assert!(status.contains("SigBlk:\t0000000000000000\n"), "{status}");
        }
        assert_eq!(running.so_far(Output::Stdout), b"");
        let_go_on(&running, &[]);
        let outcome = running.finish().expect(0);
        assert_eq!(outcome.out().matches("began").count(), 3, "{outcome:?}");
    }
}

#[test]
fn ranks_of_every_mpi_stop_before_main() {
    for mpi in mpis() {
        let options = ["--stop-at=exec:1,3", "--virtual-nodes", "2"];
        let running = mpi.run(4, &options, "hello", &[]).start();
        running.wait_for(Output::Stderr, "stopped before main: ranks 1,3");
        let pids = stopped(&running, 2);
        assert_eq!(pids.len(), 2);
        let_go_on(&running, &["--rank", "1"]);
        stopped(&running, 1);
        let_go_on(&running, &[]);
        let outcome = running.finish().expect(0);
        outcome.by_rank("hello", 4);
    }
}

#[test]
fn job_with_stopped_ranks_ends_like_any_other() {
    for signal in [Signal::TERM, Signal::HUP] {
        let running = Run::ranks(2, ["--stop-at=exec", "sleep", "1000"]).start();
        let pids = stopped(&running, 2);
        running.signal(signal);
        running.finish().expect(128 + signal.as_raw());
        assert!(pids.into_iter().all(|pid| process(pid).is_none()));
    }
    let outcome = Run::ranks(2, ["--stop-at=exec", "--timeout", "0.5", "sleep", "1000"]).run();
    outcome.expect(124);
}

#[test]
fn missing_ranks_cannot_be_stopped() {
    let outcome = Run::ranks(2, ["--stop-at=exec:1-2", "true"]).run();
    let outcome = outcome.expect(125);
    outcome.expect_one_line(&["--stop-at exec:1-2", "ranks 0 to 1"]);
}
