//! Signals to wireup: what reaches the ranks, in their sessions of their own, and which exit code
//! comes of it.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{Outcome, Output, Run, Running, eventually, field, pmix, process, program};

/// Ranks of `sigreport`, all ready; `None` when it is not built.
fn reporting(ranks: u32, options: &[&str]) -> Option<Running> {
    let sigreport = program("sigreport")?;
    let args = [sigreport.to_str().unwrap()];
    let running = Run::ranks(ranks, args.iter().chain(options)).start();
    running.wait_for_many(Output::Stdout, "ready", ranks as usize);
    Some(running)
}

/// Returns the command of a rank that ignores the signals `names` and prints a line when ready.
fn ignoring(names: &str) -> [String; 3] {
    let script = format!("trap '' {names}; echo ready; while :; do sleep 0.05; done");
    ["sh", "-c", &script].map(str::to_owned)
}

fn count(outcome: &Outcome, signal: &str) -> usize {
    outcome.out().matches(&format!("signal={signal} ")).count()
}

#[test]
fn harmless_signals_reach_every_rank() {
    let Some(running) = reporting(3, &[]) else {
        return;
    };
    for (signal, name) in [
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::INT, "INT"),
        (Signal::CONT, "CONT"),
    ] {
        running.signal(signal);
        running.wait_for_many(Output::Stdout, &format!("signal={name} "), 3);
    }
    running.signal(Signal::TERM);
    let outcome = running.finish();
    // They ended with code 0 of their own accord; it was the signal all the same.
    assert_eq!(
        (outcome.code, count(&outcome, "TERM")),
        (143, 3),
        "{outcome:?}"
    );
}

#[test]
fn each_signal_comes_once_and_from_wireup() {
    let Some(running) = reporting(2, &["--until", "USR2"]) else {
        return;
    };
    let pid = running.pid().to_string();
    running.signal(Signal::USR1);
    running.wait_for_many(Output::Stdout, "signal=USR1", 2);
    running.signal(Signal::USR2);
    let outcome = running.finish().expect_quiet_success();
    let lines: Vec<String> = outcome.sorted_lines();
    let signals: Vec<&String> = lines.iter().filter(|l| l.contains("signal=")).collect();
    assert_eq!(signals.len(), 4, "{outcome:?}");
    assert!(
        signals.iter().all(|line| field(line, "from") == Some(&pid)),
        "{outcome:?}"
    );
}

#[test]
fn terminating_signal_gives_its_own_exit_code() {
    for (signal, name, code) in [
        (Signal::TERM, "TERM", 143),
        (Signal::HUP, "HUP", 129),
        (Signal::QUIT, "QUIT", 131),
    ] {
        let Some(running) = reporting(2, &["--until", name, "--code", "7"]) else {
            return;
        };
        running.signal(signal);
        let outcome = running.finish().expect(code);
        assert_eq!(count(&outcome, name), 2, "{outcome:?}");
        outcome.expect_one_line(&["ended by SIG", " from pid "]);
    }
}

#[test]
fn ranks_killed_by_sent_signal_are_not_own_failure() {
    for (signal, code, words) in [
        (Signal::INT, 130, "interrupted"),
        (Signal::TERM, 143, "ended by SIGTERM from pid "),
        (Signal::HUP, 129, "ended by SIGHUP from pid "),
        (Signal::QUIT, 131, "ended by SIGQUIT from pid "),
    ] {
        let script = "ulimit -c 0; echo ready; exec sleep 100";
        let running = Run::ranks(3, ["sh", "-c", script]).start();
        running.wait_for_many(Output::Stdout, "ready", 3);
        running.signal(signal);
        running.finish().expect(code).expect_one_line(&[words]);
    }
}

#[test]
fn rank_killed_by_usr1_is_failure() {
    let running = Run::ranks(2, ["sh", "-c", "echo ready; exec sleep 100"]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    running.signal(Signal::USR1);
    running
        .finish()
        .expect(138)
        .expect_one_line(&["rank ", "killed by signal 10 (SIGUSR1)"]);
}

#[test]
fn signal_during_start_reaches_every_rank() {
    // Rank 0 asks at once, when most of the others are still to be started.
    let script = r#"[ "$WIREUP_RANK" != 0 ] || { kill -USR1 "$PPID"; sleep 0.2; }; exec sleep 60"#;
    let words = [
        "--no-kill-on-bad-exit",
        "--json",
        "status",
        "sh",
        "-c",
        script,
    ];
    let outcome = Run::ranks(64, words).run().expect(138);
    let status = std::fs::read_to_string(outcome.dir().join("status")).unwrap();
    let result: Value = serde_json::from_str(status.lines().last().unwrap()).unwrap();
    let ranks = result["ranks"].as_array().unwrap().iter();
    let killed = ranks.filter(|rank| rank["signal"] == 10);
    assert_eq!(killed.count(), 64, "{result}");
}

#[test]
fn rank_may_survive_one_interrupt_and_finish() {
    let Some(running) = reporting(2, &["--until", "USR1"]) else {
        return;
    };
    running.signal(Signal::INT);
    running.wait_for(Output::Stderr, "interrupt again to end them");
    running.signal(Signal::USR1);
    let outcome = running.finish().expect(130);
    outcome.expect_one_line(&["interrupted; 2 of 2 ranks still run, interrupt again"]);
}

#[test]
fn second_interrupt_terminates() {
    let Some(running) = reporting(2, &[]) else {
        return;
    };
    running.signal(Signal::INT);
    running.wait_for_many(Output::Stdout, "signal=INT", 2);
    running.signal(Signal::INT);
    let outcome = running.finish().expect(130);
    assert_eq!(
        (count(&outcome, "INT"), count(&outcome, "TERM")),
        (2, 2),
        "{outcome:?}"
    );
}

#[test]
fn third_interrupt_kills() {
    let run = Run::ranks(2, ["--grace", "1000"]).more(ignoring("INT TERM"));
    let running = run.start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    running.signal(Signal::INT);
    running.wait_for(Output::Stderr, "interrupt again");
    running.signal(Signal::INT);
    // Two equal signals that both wait to be read are one.
    eventually("the second one is taken", || {
        (!pending(running.pid())).then_some(())
    });
    running.signal(Signal::INT);
    // Long before the grace time is over.
    running.finish().expect(130);
}

/// Whether SIGINT waits to be taken by a process.
fn pending(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("ShdPnd:"))
        .unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << 1) != 0
}

#[test]
fn ranks_ignoring_sigterm_are_killed_after_grace_time() {
    let running = Run::ranks(3, ignoring("TERM INT HUP")).start();
    running.wait_for_many(Output::Stdout, "ready", 3);
    running.signal(Signal::TERM);
    let outcome = running.finish().expect(143);
    assert!(outcome.elapsed >= Duration::from_secs(2), "{outcome:?}");
}

#[test]
fn stopped_ranks_can_be_ended() {
    let running = Run::ranks(2, ["sh", "-c", "echo ready $$; exec sleep 100"]).start();
    let out = running.wait_for_many(Output::Stdout, "ready", 2);
    let pids: Vec<i32> = out
        .lines()
        .map(|line| line.strip_prefix("ready ").unwrap().parse().unwrap())
        .collect();
    for pid in &pids {
        let pid = Pid::from_raw(*pid).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
    }
    for pid in pids {
        eventually("it is stopped", || process(pid).filter(|p| p.state == 'T'));
    }
    running.signal(Signal::TERM);
    let _outcome = running.finish().expect(143);
}

#[test]
fn sigtstp_stops_ranks_and_wireup_and_sigcont_continues_them() {
    let Some(running) = reporting(2, &["--until", "USR2"]) else {
        return;
    };
    let ranks: Vec<i32> = running
        .processes()
        .into_iter()
        .filter(|process| process.name == "sigreport")
        .map(|process| process.pid)
        .collect();
    assert_eq!(ranks.len(), 2);
    running.signal(Signal::TSTP);
    for pid in ranks.iter().chain([&running.pid()]) {
        eventually("it is stopped", || process(*pid).filter(|p| p.state == 'T'));
    }
    running.signal(Signal::CONT);
    for pid in ranks.iter().chain([&running.pid()]) {
        eventually("it goes on", || process(*pid).filter(|p| p.state != 'T'));
    }
    running.wait_for_many(Output::Stdout, "signal=CONT", 2);
    running.signal(Signal::USR2);
    let outcome = running.finish().expect_quiet_success();
    assert_eq!(count(&outcome, "TSTP"), 2, "{outcome:?}");
}

#[test]
fn launch_continues_after_long_stop_of_all_processes() {
    // Time that exceeds every timeout for a reply of a process of the same host.
    const STOPPED: Duration = Duration::from_secs(12);
    let Some(library) = pmix("pmix5") else {
        return;
    };
    let steady = library.dir.join("pmix_steady");
    let words = ["--libpmix", library.path(), steady.to_str().unwrap()];
    let mut running = Run::ranks(2, words).stdin_held().start();
    let rounds = |count| {
        running.wait_for_many(Output::Stdout, "pmix_steady rank=", count);
    };
    rounds(4);
    let all = running.processes();
    let send = |signal| {
        for process in &all {
            kill_process(Pid::from_raw(process.pid).unwrap(), signal).unwrap();
        }
    };
    send(Signal::STOP);
    for one in &all {
        eventually("it is stopped", || {
            process(one.pid).filter(|p| p.state == 'T')
        });
    }
    let printed = running.so_far(Output::Stdout);
    let start = Instant::now();
    eventually("they have been stopped for long", || {
        (start.elapsed() >= STOPPED).then_some(())
    });
    send(Signal::CONT);
    let printed = String::from_utf8(printed).unwrap();
    rounds(printed.matches("pmix_steady rank=").count() + 8);
    drop(running.stdin());
    running.finish().expect_quiet_success();
}

#[test]
fn nohup_protects_job_from_hangup() {
    let Some(sigreport) = program("sigreport") else {
        return;
    };
    let args = [sigreport.to_str().unwrap(), "--until", "USR1"];
    let running = Run::ranks(2, args).under(["nohup"]).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    running.signal(Signal::HUP);
    running.signal(Signal::USR1);
    let outcome = running.finish().expect(0);
    assert_eq!(
        (count(&outcome, "HUP"), count(&outcome, "USR1")),
        (0, 2),
        "{outcome:?}"
    );
}

#[test]
fn signal_during_start_of_many_ranks_ends_all() {
    // The first signal is one that ranks ignore. Ranks that do not exist yet cannot be asked to
    // finish, so one interrupt is enough.
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let sleep = ["env", "--ignore-signal=INT", "sleep", "100"];
        let running = Run::ranks(400, sleep).start();
        eventually("some ranks run", || {
            (running
                .processes()
                .iter()
                .filter(|p| p.name == "sleep")
                .count()
                >= 10)
                .then_some(())
        });
        running.signal(signal);
        let _outcome = running.finish().expect(code);
    }
}

#[test]
fn rapid_signals_are_handled() {
    let Some(running) = reporting(4, &["--until", "never"]) else {
        return;
    };
    for round in 0..200 {
        let signals = [Signal::USR1, Signal::USR2, Signal::CONT, Signal::WINCH];
        running.signal(signals[round % signals.len()]);
    }
    running.wait_for_many(Output::Stdout, "signal=USR2", 4);
    running.signal(Signal::TERM);
    running.finish().expect(143);
}

#[test]
fn rank_stopped_before_exec_is_killed_with_others() {
    // The guard makes a session too, and is stopped as well: it is not needed here.
    let stopped = "inject=setsid:signal=STOP";
    let traced = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=setsid",
        "-e",
        stopped,
    ];
    // More ranks than the launcher's own thread takes part in starting.
    let args = [
        "--oversubscribe",
        "--grace",
        "0.2",
        "-n",
        "64",
        "sleep",
        "1000",
    ];
    let running = Run::new(args).under(traced).start();
    eventually("ranks that are stopped before their program", || {
        let all = running.processes();
        let mut all = all.into_iter();
        all.find(|process| process.name == "start" && matches!(process.state, 'T' | 't'))
    });
    let launcher = eventually("the launcher", || {
        let all = running.processes();
        all.into_iter().find(|process| process.name == "wireup")
    });
    kill_process(Pid::from_raw(launcher.pid).unwrap(), Signal::TERM).unwrap();
    running.finish().expect(143);
}
