//! Reports about a job for programs (`--json`), and about its lines for users (`--timestamps`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Outcome, Output, Run, eventually, mpi};

/// The events of a stream, each a whole line; the last is the result and the only one.
#[track_caller]
fn events(text: &str) -> Vec<Value> {
    assert!(text.ends_with('\n'), "{text:?}");
    let parse = |line: &str| -> Value {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
    };
    let events: Vec<Value> = text.lines().map(parse).collect();
    let results = events.iter().filter(|event| event["event"] == "result");
    assert_eq!(results.count(), 1, "{text}");
    assert_eq!(events.last().unwrap()["event"], "result", "{text}");
    // Lines are shown when they are whole, and bear the time of their beginning.
    let changes = events.iter().filter(|event| event["event"] != "output");
    let times = changes.map(|event| event["ms"].as_u64().unwrap());
    assert!(times.is_sorted(), "{text}");
    for event in &events {
        assert_time(event["time"].as_str().unwrap(), "Z");
    }
    events
}

/// Fails unless this is a date and time with milliseconds and that zone.
#[track_caller]
fn assert_time(time: &str, zone: &str) {
    let shape: String = time
        .chars()
        .map(|c| if c.is_ascii_digit() { '0' } else { c })
        .collect();
    let zone_shape = zone.replace(|c: char| c.is_ascii_digit(), "0");
    assert_eq!(
        shape,
        format!("0000-00-00T00:00:00.000{zone_shape}"),
        "{time}"
    );
    assert!(time.ends_with(zone), "{time}");
}

#[track_caller]
fn status_file(outcome: &Outcome) -> Vec<Value> {
    events(&std::fs::read_to_string(outcome.dir().join("status")).unwrap())
}

/// The states of each rank, in order.
fn states(events: &[Value]) -> BTreeMap<u64, Vec<String>> {
    let mut states: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["event"] == "rank") {
        let state = event["state"].as_str().unwrap().to_owned();
        let rank = event["rank"].as_u64().unwrap();
        states.entry(rank).or_default().push(state);
    }
    states
}

fn job_states(events: &[Value]) -> Vec<&str> {
    let jobs = events.iter().filter(|event| event["event"] == "job");
    jobs.map(|event| event["state"].as_str().unwrap()).collect()
}

#[test]
fn status_stream_has_states_of_each_rank_of_mpi_job() {
    for (name, offered) in [
        ("mpich4", "pmi"),
        ("openmpi4", "pmix"),
        ("openmpi5", "pmix"),
    ] {
        let Some(mpi) = mpi(name) else { continue };
        let options = ["--json", "status", "--virtual-nodes", "2"];
        let outcome = mpi.run(3, &options, "hello", &[]).run().expect(0);
        let events = status_file(&outcome);
        assert_eq!(job_states(&events), ["planned", "running"], "{name}");
        let planned = &events[0];
        assert_eq!(planned["version"], 1);
        assert_eq!(planned["size"], 3);
        assert_eq!(planned["offered"], serde_json::json!([offered]));
        assert_eq!(planned["nodes"][1]["ranks"], 1);
        for (rank, states) in states(&events) {
            let all = ["started", "connected", "finalized", "ended"];
            assert_eq!(states, all, "{name}, rank {rank}");
        }
        let result = events.last().unwrap();
        assert_eq!(result["exit_code"], 0);
        assert_eq!(result["cause"], Value::Null);
        assert_eq!(result["job"], planned["job"]);
        let ranks = result["ranks"].as_array().unwrap();
        assert_eq!(ranks.len(), 3);
        let lines = outcome.by_rank("hello", 3);
        for (rank, (record, line)) in ranks.iter().zip(&lines).enumerate() {
            assert_eq!(record["rank"], rank);
            assert_eq!(
                (&record["code"], &record["signal"]),
                (&0.into(), &Value::Null)
            );
            assert_eq!(record["connected"], true);
            assert!(
                record["last"].as_str().unwrap().ends_with("finalized"),
                "{record}"
            );
            assert!(
                line.contains(&format!("pid={} ", record["pid"])),
                "{record} {line}"
            );
            assert!(line.contains(&format!("host={} ", record["host"].as_str().unwrap())));
            assert_time(record["start"].as_str().unwrap(), "Z");
            assert!(record["start_ms"].as_u64() <= record["end_ms"].as_u64());
        }
    }
}

#[test]
fn failure_cause_is_typed() {
    let script = "ulimit -c 0; [ $WIREUP_RANK = 1 ] && kill -11 $$; exec sleep 100";
    let outcome = Run::ranks(3, ["--json", "status", "sh", "-c", script])
        .run()
        .expect(139);
    let events = status_file(&outcome);
    let states = job_states(&events);
    assert_eq!((states[0], *states.last().unwrap()), ("planned", "ending"));
    let result = events.last().unwrap();
    assert_eq!(result["exit_code"], 139);
    let cause = &result["cause"];
    assert_eq!(cause["kind"], "rank_failed");
    assert_eq!((&cause["rank"], &cause["signal"]), (&1.into(), &11.into()));
    assert_eq!(cause["pid"], result["ranks"][1]["pid"]);
    assert_eq!(cause["host"], result["ranks"][1]["host"]);
    assert_eq!(cause["last"], "never contacted PMI");
    assert!(cause["program"].as_str().unwrap().ends_with("sh"));
    let line = outcome.expect_one_line(&["rank 1 ("]);
    assert_eq!(
        line,
        format!("wireup: {}", cause["message"].as_str().unwrap())
    );
    assert_eq!(result["ranks"][1]["signal_name"], "SIGSEGV");
    let causes: Vec<&Value> = (0..3).map(|rank| &result["ranks"][rank]["cause"]).collect();
    assert_eq!(causes, ["job_ended", "rank_failed", "job_ended"]);
    let abort = |name| {
        let outcome = mpi(name)?
            .run(2, &["--json", "status"], "abort", &["1", "42"])
            .run();
        let result = status_file(&outcome.expect(42)).pop().unwrap();
        assert_eq!(result["ranks"][1]["cause"], "aborted");
        let cause = &result["cause"];
        assert_eq!(
            (&cause["kind"], &cause["code"]),
            (&"aborted".into(), &42.into())
        );
        Some(())
    };
    abort("mpich4");
    abort("openmpi4");
}

#[test]
fn result_lists_tolerated_failures() {
    let options = ["--json", "status", "--exit-policy", "max"];
    let words = options.into_iter().chain(["sh", "-c", "exit $WIREUP_RANK"]);
    let outcome = Run::ranks(3, words).run().expect(2);
    let events = status_file(&outcome);
    assert_eq!(job_states(&events).last(), Some(&"running"));
    let result = events.last().unwrap();
    assert_eq!(result["exit_policy"], "max");
    let codes: Vec<&Value> = (0..3).map(|rank| &result["ranks"][rank]["code"]).collect();
    assert_eq!(codes, [&0, &1, &2]);
    let causes: Vec<&Value> = (0..3).map(|rank| &result["ranks"][rank]["cause"]).collect();
    assert_eq!(
        causes,
        [&Value::Null, &"rank_failed".into(), &"rank_failed".into()]
    );
}

#[test]
fn interrupted_job_has_result() {
    let running = Run::ranks(
        2,
        ["--json", "status", "sh", "-c", "echo ready; exec sleep 100"],
    );
    let running = running.start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    running.signal(Signal::INT);
    let result = status_file(&running.finish().expect(130)).pop().unwrap();
    assert_eq!(result["exit_code"], 130);
    assert_eq!(result["cause"]["kind"], "interrupted");
    for rank in 0..2 {
        assert_eq!(result["ranks"][rank]["signal_name"], "SIGINT");
        assert_eq!(result["ranks"][rank]["cause"], "interrupted");
    }
    let outcome = Run::ranks(1, ["--json", "status", "--timeout", "0.2", "sleep", "100"]).run();
    let result = status_file(&outcome.expect(124)).pop().unwrap();
    assert_eq!(result["cause"]["kind"], "timeout");
}

#[test]
fn refused_launch_is_one_status_record() {
    for (words, code) in [
        (&["/nonexistent"][..], 127),
        (&["--stdin", "7", "true"], 125),
        (&["true", ":", "--nonsense", "true"], 125),
    ] {
        let to = |target| ["--json", target].into_iter().chain(words.iter().copied());
        let outcome = Run::new(to("status")).run().expect(code);
        let events = status_file(&outcome);
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(events[0]["exit_code"], code);
        assert_eq!(events[0]["version"], 1);
        assert_eq!(events[0]["cause"]["kind"], "refused");
        let message = events[0]["cause"]["message"].as_str().unwrap();
        assert!(outcome.err().contains(message), "{outcome:?}");
        // On standard output as well.
        let outcome = Run::new(to("-")).run().expect(code);
        assert_eq!(events_on_stdout(&outcome).len(), 1);
    }
    let outcome = Run::ranks(1, ["--json", "/nonexistent/status", "true"]).run();
    outcome
        .expect(125)
        .expect_one_line(&["--json /nonexistent/status: No such file"]);
}

#[track_caller]
fn events_on_stdout(outcome: &Outcome) -> Vec<Value> {
    events(&outcome.out())
}

/// Returns the output of a rank on a stream, joined from the events.
fn written(events: &[Value], rank: u64, stream: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for event in events.iter().filter(|event| event["event"] == "output") {
        if event["rank"] == rank && event["stream"] == stream {
            match (event["text"].as_str(), event["base64"].as_str()) {
                (Some(text), None) => bytes.extend_from_slice(text.as_bytes()),
                (None, Some(_)) => bytes.push(b'?'),
                _ => panic!("{event}"),
            }
        }
    }
    bytes
}

#[test]
fn output_on_stdout_is_part_of_status_stream() {
    let script = r#"i=0; while [ $i -lt 500 ]; do echo "line $i of \"$WIREUP_RANK\"	ü"; i=$((i+1)); done
        echo "to err" >&2; printf 'no end'; printf '\377\n' >&2"#;
    let outcome = Run::ranks(3, ["--json", "-", "sh", "-c", script])
        .run()
        .expect(0);
    assert_eq!(outcome.err(), "");
    let events = events_on_stdout(&outcome);
    for rank in 0..3 {
        let lines: String = (0..500)
            .map(|i| format!("line {i} of \"{rank}\"\tü\n"))
            .collect();
        assert_eq!(
            written(&events, rank, "stdout"),
            (lines + "no end").as_bytes()
        );
        assert_eq!(written(&events, rank, "stderr"), b"to err\n?");
    }
}

#[test]
fn status_descriptor_is_not_inherited_by_ranks() {
    let list = "for f in /proc/self/fd/*; do readlink $f; done; exit 0";
    let outcome = Run::ranks(2, ["--json", "fd:7", "sh", "-c", list])
        .after_shell("exec 7>status;")
        .run()
        .expect(0);
    assert_eq!(states(&status_file(&outcome)).len(), 2);
    assert!(!outcome.out().contains("status"), "{outcome:?}");
    let refused = |redirection: &str, word: &str| {
        let run = Run::ranks(1, ["--json", "fd:7", "true"]).after_shell(redirection);
        let outcome = run.run().expect(125);
        outcome.expect_one_line(&["--json fd:7: the descriptor ", word]);
    };
    refused("exec 7>&-;", "is not open");
    refused("exec 7</dev/null;", "cannot be written to");
    // wireup itself takes the low numbers.
    for number in 3..10 {
        let target = format!("fd:{number}");
        for dry in [&[][..], &["--dry-run"]] {
            let words = ["--json", &target].into_iter().chain(dry.iter().copied());
            let run = Run::ranks(1, words.chain(["true"]));
            let run = run.after_shell(&format!("exec {number}>&-;"));
            let outcome = run.run().expect(125);
            outcome.expect_one_line(&[&target, "the descriptor is not open"]);
        }
    }
}

/// A named pipe in a run's directory, with its reading end.
fn pipe(dir: &Path) -> File {
    let path = dir.join("status");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let fd = rustix::fs::open(
        &path,
        flags | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    fd.unwrap().into()
}

#[test]
fn blocked_status_reader_does_not_block_job() {
    let run = Run::ranks(300, ["--pmi", "none", "--json", "status", "true"]);
    let reader = pipe(run.dir());
    let outcome = run.run().expect(0);
    outcome.expect_one_line(&["warning: the status stream (--json) has no reader"]);
    drop(reader);
}

#[test]
fn status_reader_that_exits_does_not_end_job() {
    let script = "echo ready; read x; echo done";
    let run = Run::ranks(1, ["--json", "status", "sh", "-c", script]).stdin_held();
    let reader = pipe(run.dir());
    let path = run.dir().join("status");
    let mut running = run.start();
    running.wait_for(Output::Stdout, "ready");
    drop(reader);
    // Another test's child may hold a copy of the reading end until its exec.
    eventually("the status cannot be read", || {
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
        let opened = rustix::fs::open(&path, flags, rustix::fs::Mode::empty());
        (opened.err() == Some(rustix::io::Errno::NXIO)).then_some(())
    });
    drop(running.stdin());
    let outcome = running.finish().expect(0);
    assert_eq!(outcome.out(), "ready\ndone\n");
    outcome.expect_one_line(&["warning: the status stream (--json) cannot be written"]);
}

#[test]
fn status_reader_that_exits_at_end_is_reported() {
    // More than a pipe holds, so that the end of the run waits for the reader.
    let run = Run::ranks(300, ["--pmi", "none", "--json", "status", "true"]);
    let reader = pipe(run.dir());
    let running = run.start();
    eventually("nothing of the run is left but wireup", || {
        let living = running.processes();
        let begun = rustix::io::ioctl_fionread(&reader).unwrap() > 0;
        (begun && living.len() == 1).then_some(())
    });
    drop(reader);
    let outcome = running.finish().expect(0);
    outcome.expect_one_line(&["warning: the status stream (--json) cannot be written"]);
}

#[test]
fn lines_arrive_during_job() {
    let mut running = Run::ranks(1, ["--json", "-", "sh", "-c", "echo ready; read x; exit 0"])
        .stdin_held()
        .start();
    running.wait_for(Output::Stdout, "\"state\":\"running\"");
    running.wait_for(Output::Stdout, "\"text\":\"ready\\n\"");
    drop(running.stdin());
    running.finish().expect(0);
}

#[test]
fn times_precede_lines_and_never_interrupt_them() {
    let script = "printf a; echo b; echo c >&2; printf end";
    let outcome = Run::ranks(2, ["--timestamps", "-l", "sh", "-c", script])
        .env("TZ", "XXX-05:30")
        .run()
        .expect(0);
    // A rank that pauses between `a` and `b` may get two lines.
    let mut texts: BTreeMap<(&str, &str), String> = BTreeMap::new();
    let (out, err) = (outcome.out(), outcome.err());
    for (stream, text) in [("out", &out), ("err", &err)] {
        for line in text.lines() {
            let (time, rest) = line.split_once(' ').unwrap();
            assert_time(time, "+05:30");
            let (label, text) = rest.split_once(' ').unwrap();
            *texts.entry((label, stream)).or_default() += text;
        }
    }
    let expected = ["[0]", "[1]"].map(|label| [((label, "err"), "c"), ((label, "out"), "abend")]);
    let expected = expected.into_iter().flatten();
    let expected = expected.map(|(key, text)| (key, text.to_owned()));
    assert_eq!(texts, expected.collect());
}

#[test]
fn times_precede_lines_in_files_of_one_or_both_streams() {
    let script = "i=0; while [ $i -lt 300 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    for (pattern, files) in [
        ("%r", &["0", "1"][..]),
        ("%r.%s", &["0.out", "0.err", "1.out", "1.err"]),
    ] {
        let words = ["--timestamps", "--output", pattern, "sh", "-c", script];
        let outcome = Run::ranks(2, words).env("TZ", "UTC").run();
        outcome.clone().expect_quiet_success();
        assert_eq!(outcome.out(), "");
        for file in files {
            let text = std::fs::read_to_string(outcome.dir().join(file)).unwrap();
            let rests = text.lines().map(|line| {
                let (time, rest) = line.split_once(' ').unwrap();
                assert_time(time, "+00:00");
                rest
            });
            let (out, err): (Vec<&str>, Vec<&str>) =
                rests.partition(|rest| rest.starts_with("out "));
            for (stream, lines) in [("out", out), ("err", err)] {
                let expected: Vec<String> = (0..300).map(|i| format!("{stream} {i}")).collect();
                let here = !file.contains('.') || file.ends_with(stream);
                assert_eq!(lines, if here { &expected[..] } else { &[] }, "{file}");
            }
        }
    }
}

#[test]
fn status_of_silent_job_is_on_disk_soon() {
    let running = Run::ranks(2, ["--json", "status", "sleep", "100"]);
    let path = running.dir().join("status");
    let running = running.start();
    eventually("the file has the start of both ranks", || {
        let text = std::fs::read_to_string(&path).ok()?;
        (text.matches("\"started\"").count() == 2 && text.ends_with('\n')).then_some(())
    });
    running.signal(Signal::TERM);
    let result = status_file(&running.finish().expect(143)).pop().unwrap();
    assert_eq!(result["cause"]["signal"], 15);
}

/// Makes standard input the descriptor of orders.
const ORDERED: &str = "exec 7<&0 </dev/null;";

#[test]
fn control_commands_signal_ranks_and_their_end_ends_job() {
    let script = "trap 'exit 3' USR1; trap 'exit 4' USR2; echo ready; while :; do sleep 0.05; done";
    let options = [
        "--control",
        "fd:7",
        "--no-kill-on-bad-exit",
        "--json",
        "status",
    ];
    let run = Run::ranks(4, options).more(["sh", "-c", script]);
    let mut running = run.after_shell(ORDERED).stdin_held().start();
    running.wait_for_many(Output::Stdout, "ready", 4);
    let mut orders = running.stdin();
    orders
        .write_all(b"{\"signal\":10,\"ranks\":[1,3,9]}\nnonsense\n")
        .unwrap();
    running.wait_for(Output::Stderr, "invalid --control command: ");
    orders.write_all(b"{\"signal\":12}\n").unwrap();
    let outcome = running.finish();
    let codes: Vec<u64> = status_file(&outcome).last().unwrap()["ranks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rank| rank["code"].as_u64().unwrap())
        .collect();
    assert_eq!(codes, [4, 3, 4, 3]);
    drop(orders);
}

#[test]
fn control_commands_add_jobs_and_wrong_ones_are_named() {
    let options = [
        "--control",
        "fd:7",
        "--virtual-nodes",
        "2",
        "--json",
        "status",
    ];
    let run = Run::ranks(2, options).more(["sleep", "1000"]);
    let mut running = run.after_shell(ORDERED).stdin_held().start();
    let status = running.work().join("status");
    let wait_for = |text: &str| {
        eventually(text, || {
            let status = std::fs::read_to_string(&status).unwrap_or_default();
            status.contains(text).then_some(())
        });
    };
    wait_for("\"running\"");
    let mut commands = running.stdin();
    let spawn = |request: u32, program: &str, n: u32| {
        format!(
            "{{\"spawn\":{{\"request\":{request},\"apps\":[{{\"command\":[\"{program}\"],\"n\":{n}}}]}}}}\n"
        )
    };
    let text = format!(
        "{{\"signal\":9,\"spawned_job\":1}}\n{}{}",
        spawn(7, "hostname", 2),
        spawn(8, "/no/such", 1)
    );
    commands.write_all(text.as_bytes()).unwrap();
    wait_for("\"request\":7");
    wait_for("\"request\":8");
    commands.write_all(b"{\"signal\":15}\n").unwrap();
    let outcome = running.finish();
    let unknown = "invalid --control command: unknown spawned_job 1; the launch has spawned 0 jobs";
    assert!(outcome.err().contains(unknown), "{outcome:?}");
    let events = status_file(&outcome);
    let reply = |request: u64| {
        let mut replies = events
            .iter()
            .filter(|event| event["event"] == "spawn_reply");
        replies.find(|event| event["request"] == request).unwrap()
    };
    assert_eq!(reply(7)["spawned_job"], 1);
    let message = reply(8)["message"].as_str().unwrap();
    assert!(message.contains("\"/no/such\" not found"), "{message}");
    let started = |event: &&Value| event["state"] == "started" && event["spawned_job"] == 1;
    assert_eq!(events.iter().filter(started).count(), 2);
    drop(commands);
}

#[test]
fn job_ends_with_its_control_stream() {
    let run = Run::ranks(
        2,
        ["--control", "fd:7", "--json", "status", "sleep", "1000"],
    );
    let mut running = run.after_shell(ORDERED).stdin_held().start();
    let status = running.work().join("status");
    eventually("the ranks run", || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        text.contains("\"running\"").then_some(())
    });
    drop(running.stdin());
    let outcome = running.finish();
    let events = status_file(&outcome);
    let cause = &events.last().unwrap()["cause"];
    assert_eq!(
        (cause["kind"].as_str(), cause["signal"].as_u64()),
        (Some("interrupted"), Some(1))
    );
    let outcome = Run::ranks(1, ["--control", "fd:7", "true"]).run();
    outcome.expect_one_line(&["--control fd:7: the descriptor is not open"]);
}
