//! Reports on a launch after its end: `--report`, and `wireup report`.

use std::fs::File;
use std::os::fd::OwnedFd;

use serde_json::Value;

use crate::browser::{self, Browser};
use crate::common::{Outcome, Run, mpi, program, skip, wireup};
use crate::page::{rows, wide_stream};
use crate::virtual_nodes::node;

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

/// The beginning of a report of an older launch.
const OLDER_PAGE: &str = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<title>wireup</title>\n";

/// Lets rank 3 begin a second after the three others have connected, by what `--json status` writes.
const STRAGGLER: &str = r#"sh -c 'if [ "$WIREUP_RANK" = 3 ]; then
until [ "$(grep -c \"connected\" status)" = 3 ]; do sleep 0.05; done; sleep 1
fi; exec "$@"' late"#;

fn trace(outcome: &Outcome) -> Vec<Value> {
    let text = std::fs::read_to_string(outcome.dir().join("trace.json")).unwrap();
    let mut trace: Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(trace["traceEvents"].take()).unwrap()
}

#[test]
fn straggler_is_named_with_every_mpi() {
    let files = [
        "--json",
        "status",
        "--report",
        "page.html",
        "--report",
        "trace.json",
    ];
    let report_options = [&files[..], &["--report", "-"]].concat();
    for name in ["mpich4", "mpich5", "impi", "openmpi4", "openmpi5"] {
        let Some(mpi) = mpi(name) else { continue };
        let options = [
            &report_options[..],
            &["--wrap", STRAGGLER, "--virtual-nodes", "2"],
        ]
        .concat();
        // Its UCX may hang by itself when nodes end.
        let options = &options[..options.len() - if name == "mpich4" { 2 } else { 0 }];
        let outcome = mpi.run(4, options, "hello", &[]).run().expect(0);
        let err = outcome.err();
        let timing: Vec<&str> = err
            .lines()
            .filter(|line| line.starts_with("wireup: "))
            .collect();
        assert!(timing.len() <= 10, "{name}: {err}");
        assert!(timing[0].contains(": 4 ranks on "), "{name}: {err}");
        let share = "wireup's share is ";
        assert!(timing.last().unwrap().contains(share), "{name}: {err}");
        assert!(err.contains("rank 3 on"), "{name}: {err}");
        let page = std::fs::read_to_string(outcome.dir().join("page.html")).unwrap();
        assert!(page.ends_with("</html>\n"), "{name}");
        let events = trace(&outcome);
        let loads = |rank: u32| {
            let thread = events.iter().find(|event| {
                event["name"] == "thread_name" && event["args"]["name"] == format!("rank {rank}")
            });
            let tid = &thread.unwrap_or_else(|| panic!("{name}: no rank {rank}"))["tid"];
            let mut of_rank = events.iter().filter(|event| event["tid"] == *tid);
            let event = of_rank.find(|event| event["name"] == "loads").unwrap();
            event["dur"].as_u64().unwrap()
        };
        assert!(
            loads(3) > 900_000 && loads(3) > loads(0),
            "{name}: {events:?}"
        );
        if name == "mpich4" {
            continue;
        }
        let late = format!("for host {}", node(1));
        assert!(err.contains(&late), "{name}: {late:?} is not in {err}");
    }
}

#[test]
fn barriers_name_last_rank_also_on_one_node() {
    let Some(program) = program("pmi_wireup") else {
        return;
    };
    let options = [
        "--json",
        "status",
        "--wrap",
        STRAGGLER,
        program.to_str().unwrap(),
    ];
    let outcome = Run::ranks(4, options).run().expect(0);
    let stream = std::fs::read_to_string(outcome.dir().join("status")).unwrap();
    let events = stream
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let fences: Vec<Value> = events.filter(|event| event["event"] == "fence").collect();
    let first = &fences[0];
    assert_eq!(
        (&first["kind"], &first["ranks"]),
        (&"pmi_barrier".into(), &4.into())
    );
    assert_eq!(first["last"][0]["rank"]["rank"], 3, "{first}");
    assert!(first["spread_us"].as_u64().unwrap() > 500_000, "{first}");
}

#[test]
fn usage_and_binding_of_each_rank_are_recorded_and_shown() {
    // Rank 1 computes for half a second of processor time, rank 2 has 64 MiB.
    let script = "import os, time
rank = os.environ['WIREUP_RANK']
while rank == '1' and time.process_time() < 0.5: pass
kept = bytearray(os.urandom(1)) * (64 << 20) if rank == '2' else None";
    let recorded = ["--json", "status", "--report", "page.html"];
    let bound = [
        "--virtual-nodes",
        "2",
        "--oversubscribe",
        "--bind-to",
        "core",
    ];
    let words = [&recorded[..], &bound, &["python3", "-c", script]].concat();
    // What a large process executes begins with the memory of that process, as the kernel counts.
    let large = "import os, sys
kept = bytearray(os.urandom(1)) * (200 << 20)
os.execv(sys.argv[1], sys.argv[1:])";
    let launch = ["run", "--oversubscribe", "-n", "4"];
    let run = Run::command(["python3", "-c", large]).more([wireup()]);
    let outcome = run.more(launch).more(words).run().expect(0);
    let stream = std::fs::read_to_string(outcome.dir().join("status")).unwrap();
    let events: Vec<Value> = stream
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let ended = |rank: u64| {
        let of = |event: &&Value| event["state"] == "ended" && event["rank"] == rank;
        events.iter().find(of).unwrap()
    };
    let part = |rank, name| ended(rank)[name].as_u64().unwrap();
    let cpu = |rank| part(rank, "cpu_user_us") + part(rank, "cpu_system_us");
    let memory = |rank| ended(rank)["rss_max"].as_u64().unwrap_or(0);
    assert!(cpu(1) > 400_000 && cpu(1) > cpu(0) + 200_000, "{stream}");
    assert!(
        memory(2) > 64 << 20 && memory(2) > memory(0) + (50 << 20),
        "{stream}"
    );
    let result = events.last().unwrap();
    assert_eq!(result["ranks"][1]["cpu_user_us"], ended(1)["cpu_user_us"]);
    let bindings = events.iter().filter(|event| event["event"] == "bindings");
    let bindings: Vec<(&Value, &Value)> = bindings
        .flat_map(|event| {
            let ranks = event["ranks"].as_array().unwrap().iter();
            ranks.map(move |rank| (&event["host"], &rank["rank"]))
        })
        .collect();
    let expected: [(Value, Value); 4] =
        [0, 1, 2, 3].map(|rank| (node(rank / 2).into(), rank.into()));
    assert_eq!(
        bindings,
        expected.each_ref().map(|(host, rank)| (host, rank))
    );
    if !browser::is_installed() {
        return skip("the page in a browser: needs chromium");
    }
    let mut browser = Browser::start(outcome.dir());
    browser.show(&outcome.dir().join("page.html"));
    let ranks = rows(&mut browser, "ranks");
    let shows = |rank: &str, text: &str| {
        let row = ranks.iter().find(|row| row[0] == rank).unwrap();
        row.iter().any(|cell| cell.contains(text))
    };
    assert!(shows("1", "core ") && shows("1", "CPU"), "{ranks:?}");
    assert!(shows("2", " MiB"), "{ranks:?}");
}

#[test]
fn recorded_stream_gives_same_report() {
    let Some(mpi) = mpi("openmpi5") else { return };
    let options = ["--json", "status", "--virtual-nodes", "2"];
    let outcome = mpi.run(4, &options, "spawn", &["children=2"]).run();
    let stream = std::fs::read(outcome.dir().join("status")).unwrap();
    let spawned = String::from_utf8_lossy(&stream).contains(r#""event":"spawned","spawned_job":1"#);
    assert!(spawned, "{}", String::from_utf8_lossy(&stream));
    let report = |more: &[&str]| {
        let words = [WIREUP, "report", "-"];
        Run::command(words.iter().chain(more))
            .stdin_bytes(stream.clone())
            .run()
    };
    let summary = report(&[]).expect(0);
    assert!(
        summary.out().contains(": 4 ranks on 2 hosts"),
        "{}",
        summary.out()
    );
    let outcome = report(&["-o", "page.html", "-o", "trace.json"]).expect_quiet_success();
    assert!(
        trace(&outcome)
            .iter()
            .any(|event| event["name"] == "spawn of 2 ranks")
    );
    let strange = Run::command([WIREUP, "report", "-"])
        .stdin_bytes("hello\n")
        .run()
        .expect(125);
    strange.expect_one_line(&["line 1", "not a record of a status stream"]);
}

#[test]
fn report_to_unwritable_path_is_refused_before_start() {
    let outcome = Run::ranks(1, ["--report", "/nowhere/page.html", "touch", "started"]).run();
    outcome.expect_one_line(&["/nowhere/page.html", "No such file"]);
    assert!(!outcome.dir().join("started").exists());
}

#[test]
fn failed_launch_has_report_with_failure_cause() {
    let script = "[ $WIREUP_RANK != 1 ] || kill -9 $$; exec sleep 1000";
    let report_options = ["--report", "page.html", "--report", "trace.json"];
    let options = [
        &report_options[..],
        &["--virtual-nodes", "2", "sh", "-c", script],
    ]
    .concat();
    let outcome = Run::ranks(4, &options).run().expect(137);
    let died = "killed by signal 9 (SIGKILL)";
    outcome.expect_one_line(&["rank 1 (", died]);
    let page = std::fs::read_to_string(outcome.dir().join("page.html")).unwrap();
    assert!(page.ends_with("</html>\n"));
    for part in [died, r#""exit_code":137"#, r#""cause":"rank_failed""#] {
        assert!(page.contains(part), "{part:?} is not in {page}");
    }
    let events = trace(&outcome);
    let mut names = events.iter().filter(|event| event["name"] == "thread_name");
    assert!(names.any(|event| event["args"]["name"] == "rank 1"));
}

#[test]
fn refused_launch_has_no_report() {
    let report_options = ["--report", "page.html", "--json", "status"];
    let run = Run::ranks(1, [&report_options[..], &["./nothing"]].concat());
    std::fs::write(run.dir().join("page.html"), OLDER_PAGE).unwrap();
    let outcome = run.run().expect(127);
    outcome.expect_one_line(&["./nothing", "not found"]);
    let page = std::fs::read_to_string(outcome.dir().join("page.html")).unwrap();
    assert_eq!(page, OLDER_PAGE);
    let stream = std::fs::read(outcome.dir().join("status")).unwrap();
    let report = Run::command([WIREUP, "report", "-"]).stdin_bytes(stream);
    let outcome = report.run().expect(125);
    outcome.expect_one_line(&["- records no launch", "./nothing", "not found"]);
}

#[test]
fn foreign_file_is_not_overwritten_by_report() {
    let text = "int main(void) { return 0; }\n";
    for (option, file) in [
        ("--report", "a.c"),
        ("--report", "trace:a.c"),
        ("--json", "a.c"),
    ] {
        let run = Run::ranks(1, [option, file, "touch", "started"]);
        std::fs::write(run.dir().join("a.c"), text).unwrap();
        let outcome = run.run().expect(125);
        outcome.expect_one_line(&[option, "a.c would overwrite a file that is not a"]);
        assert_eq!(
            std::fs::read_to_string(outcome.dir().join("a.c")).unwrap(),
            text
        );
        assert!(!outcome.dir().join("started").exists());
    }
    // Not the stream that it reads either.
    for file in ["stream", "trace:stream"] {
        let report = Run::command([WIREUP, "report", "stream", "-o", file]);
        let stream = wide_stream(4, 2);
        std::fs::write(report.dir().join("stream"), &stream).unwrap();
        let outcome = report.run().expect(125);
        outcome.expect_one_line(&["-o stream would overwrite a file"]);
        let text = std::fs::read_to_string(outcome.dir().join("stream")).unwrap();
        assert_eq!(text, stream, "{file}");
    }
}

#[test]
fn older_files_of_wireup_are_replaced() {
    let options = [
        "--report",
        "page.html",
        "--report",
        "trace.json",
        "--json",
        "status",
    ];
    let twice = [
        "sh",
        "-c",
        "\"$@\" && \"$@\"",
        "sh",
        WIREUP,
        "run",
        "-n",
        "1",
    ];
    let words = twice.iter().chain(&options).chain(&["true"]);
    Run::command(words).run().expect_quiet_success();
}

#[test]
fn report_write_failure_at_end_fails_successful_launch() {
    let full = "/dev/full cannot be written: No space left on device";
    for (program, code) in [("true", 125), ("false", 1)] {
        let options = ["--report", "/dev/full", "--report", "trace.json", program];
        let outcome = Run::ranks(1, options).run().expect(code);
        assert!(outcome.err().contains(full), "{outcome:?}");
        // What can be written is.
        assert!(!trace(&outcome).is_empty());
    }
    for file in ["/dev/full", "trace:/dev/full"] {
        let report = Run::command([WIREUP, "report", "-", "-o", file]);
        let outcome = report.stdin_bytes(wide_stream(4, 2)).run().expect(125);
        outcome.expect_one_line(&[full]);
    }
    let full = File::options().write(true).open("/dev/full").unwrap();
    let report = Run::command([WIREUP, "report", "-"]).stdout_to(full);
    let outcome = report.stdin_bytes(wide_stream(4, 2)).run().expect(125);
    outcome.expect_one_line(&["standard output", "No space left on device"]);
}

#[test]
fn summary_without_reader_is_not_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let report = Run::command([WIREUP, "report", "-"]).stdout_to(File::from(OwnedFd::from(writer)));
    let outcome = report.stdin_bytes(wide_stream(4, 2)).run();
    outcome.expect_quiet_success();
}

#[test]
fn invalid_stream_is_refused_and_truncated_one_is_used() {
    let report = |stream: Vec<u8>| {
        let words = [WIREUP, "report", "-", "-o", "page.html"];
        Run::command(words).stdin_bytes(stream).run()
    };
    let whole = wide_stream(4, 2).into_bytes();
    let first_line = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let garbage: Vec<u8> = (0..100_000_u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    for (stream, words) in [
        (vec![], "records no launch"),
        (whole[..first_line / 2].to_vec(), "records no launch"),
        (vec![0; 1 << 20], "records no launch"),
        (b"\n".to_vec(), "line 1 is not a record of a status stream"),
        (
            b"{}\n".to_vec(),
            "line 1 is not a record of a status stream",
        ),
        (garbage, "line 1 is not a record of a status stream"),
        (
            [&whole[..], b"{\"event\":\"rank\"}\n"].concat(),
            "is not a record of a status stream",
        ),
    ] {
        let outcome = report(stream).expect(125);
        outcome.expect_one_line(&["wireup: -", words]);
        assert!(!outcome.dir().join("page.html").exists());
    }
    for end in [first_line, whole.len() / 2, whole.len() - 1] {
        let outcome = report(whole[..end].to_vec()).expect_quiet_success();
        let page = std::fs::read_to_string(outcome.dir().join("page.html")).unwrap();
        assert!(page.ends_with("</html>\n") && page.contains(r#""job":"wide""#));
    }
}
