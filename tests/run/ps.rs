//! `wireup ps` and `wireup kill` on real jobs. Other tests, and others' jobs, run at the same time on
//! the same machine: every test names its own jobs by pid, and `--all` is tried only where there
//! are no others.

mod elsewhere;
mod kill;
mod orphans;

use std::process::{Command, Output as Answer};

use serde_json::Value;

use crate::common::{Output, Run, Running, eventually, mpi, skip};
use crate::users::{Reachable, USER, as_user};

/// Command of ranks that print `ready` and stay.
const STAY: [&str; 3] = ["sh", "-c", "echo ready; exec sleep 1000"];

/// `wireup` with these arguments.
fn wireup<'a>(args: impl IntoIterator<Item = &'a str>) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wireup"));
    command.args(args).output().unwrap()
}

fn out(answer: &Answer) -> String {
    String::from_utf8(answer.stdout.clone()).unwrap()
}

fn err(answer: &Answer) -> String {
    String::from_utf8(answer.stderr.clone()).unwrap()
}

/// Returns the output of `wireup ps --json JOB`; `None` if the job does not exist.
fn shown(job: &str) -> Option<Value> {
    let answer = wireup(["ps", "--json", job]);
    match answer.status.code() {
        Some(0) => {
            let Value::Array(mut jobs) = serde_json::from_slice(&answer.stdout).unwrap() else {
                panic!("no array: {answer:?}");
            };
            assert_eq!(jobs.len(), 1, "{answer:?}");
            jobs.pop()
        }
        Some(1) => None,
        _ => panic!("{answer:?}"),
    }
}

/// The job of a run.
fn job_of(running: &Running) -> Value {
    shown(&running.pid().to_string()).expect("the job runs")
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("{key} of {value}"))
}

/// Starts ranks that stay, and waits until all are there.
fn staying(ranks: u32, options: &[&str]) -> Running {
    let words = options.iter().copied().chain(STAY);
    let running = Run::ranks(ranks, words).start();
    running.wait_for_many(Output::Stdout, "ready", ranks as usize);
    eventually("all of them sleep", || {
        let all = running.processes();
        // A program has its name before its libraries are loaded.
        let sleeping = all
            .iter()
            .filter(|process| process.name == "sleep" && process.state == 'S');
        (sleeping.count() == ranks as usize).then_some(())
    });
    running
}

/// Ends a run in the plain way.
#[track_caller]
fn end(running: Running) {
    running.signal(rustix::process::Signal::TERM);
    running.finish().expect(143);
}

#[test]
fn ps_shows_job_with_ranks_and_nodes() {
    let running = staying(3, &["--virtual-nodes", "2"]);
    let job = job_of(&running);
    assert_eq!(job["pid"], running.pid());
    assert_eq!(text(&job, "state"), "running");
    assert_eq!((&job["ranks_alive"], &job["size"]), (&3.into(), &3.into()));
    assert_eq!(job["nodes"].as_array().unwrap().len(), 2);
    assert_eq!(job["node_count"], 2);
    assert!(job["elapsed"].as_f64().unwrap() < 600.0, "{job}");
    let command: Vec<&str> = job["command"]
        .as_array()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap())
        .collect();
    assert_eq!(command[..3], ["--oversubscribe", "-n", "3"]);
    assert_eq!(command[command.len() - 3..], STAY);
    let ranks = job["ranks"].as_array().unwrap();
    for (number, rank) in ranks.iter().enumerate() {
        assert_eq!(rank["rank"], number);
        assert_eq!(rank["node"], number / 2);
        let pid = rank["pid"].as_i64().unwrap();
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
        let variables = [
            format!("WIREUP_RANK={number}"),
            format!("WIREUP_HOST={}", text(rank, "host")),
            format!("WIREUP_JOB_ID={}", text(&job, "job")),
        ];
        for variable in variables {
            let mut entries = environ.split(|byte| *byte == 0);
            assert!(
                entries.any(|entry| entry == variable.as_bytes()),
                "{variable}: {rank}"
            );
        }
        assert_eq!(rank["command"], serde_json::json!(["sleep", "1000"]));
        assert_eq!(text(rank, "state"), "sleeping");
        assert!(rank["memory"].as_u64().unwrap() > 4096, "{rank}");
    }
    end(running);
}

#[test]
fn ps_tables_have_one_line_per_job_or_rank() {
    let running = staying(2, &[]);
    let pid = running.pid().to_string();
    let job = job_of(&running);
    let table = out(&wireup(["ps", &pid]));
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    let head: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(
        head,
        [
            "JOB", "PID", "STATE", "RANKS", "NODES", "ELAPSED", "COMMAND"
        ]
    );
    let cells: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(
        cells[..5],
        [text(&job, "short"), &pid, "running", "2/2", "1"]
    );
    assert!(
        lines[1].ends_with("-n 2 sh -c 'echo ready; exec sleep 1000'"),
        "{table}"
    );
    let table = out(&wireup(["ps", "--ranks", text(&job, "short")]));
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    for (number, line) in lines[1..].iter().enumerate() {
        let cells: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(cells[1], number.to_string(), "{table}");
        assert!(line.ends_with("sleep 1000"), "{table}");
    }
    end(running);
}

#[test]
fn ps_distinguishes_spawned_ranks() {
    let Some(mpi) = mpi("openmpi4") else { return };
    let what = ["children=2", "child=hang"];
    let run = mpi.run(1, &["--oversubscribe"], "spawn", &what);
    let running = run.start();
    running.wait_for_many(Output::Stdout, "hangs", 2);
    let job = job_of(&running);
    let number = |key| job[key].as_u64().unwrap();
    assert_eq!(
        ["size", "ranks_alive", "spawned_alive"].map(number),
        [1, 1, 2],
        "{job}"
    );
    let ranks = job["ranks"].as_array().unwrap().iter();
    let ranks: Vec<_> = ranks
        .map(|rank| (rank["spawned_job"].as_u64(), rank["rank"].as_u64().unwrap()))
        .collect();
    assert_eq!(ranks, [(None, 0), (Some(1), 0), (Some(1), 1)], "{job}");
    let cells = |table: &str, at: usize| -> Vec<String> {
        let lines = table.lines().skip(1);
        let cell = |line: &str| line.split_whitespace().nth(at).unwrap().to_owned();
        lines.map(cell).collect()
    };
    let short = text(&job, "short");
    assert_eq!(cells(&out(&wireup(["ps", short])), 3), ["1/1+2"]);
    assert_eq!(
        cells(&out(&wireup(["ps", "-l", short])), 1),
        ["0", "1:0", "1:1"]
    );
    // One of them has the same number, and is not meant.
    let killed = wireup(["kill", "--signal", "KILL", "--rank", "0", short]);
    assert!(killed.status.success(), "{killed:?}");
    running.finish().expect(137);
}

#[test]
fn cpu_time_and_memory_include_descendants_of_rank() {
    // The rank itself only waits for a child that computes.
    let script = "echo ready; sh -c 'while :; do :; done'; true";
    let running = Run::ranks(1, ["sh", "-c", script]).start();
    running.wait_for(Output::Stdout, "ready");
    eventually("its time counts", || {
        let job = job_of(&running);
        (job["ranks"][0]["cpu"].as_f64()? > 0.05).then_some(())
    });
    end(running);
}

#[test]
fn ps_distinguishes_jobs_by_name() {
    let (first, second) = (staying(1, &[]), staying(2, &[]));
    let jobs = [job_of(&first), job_of(&second)];
    assert_ne!(text(&jobs[0], "job"), text(&jobs[1], "job"));
    for job in &jobs {
        let name = text(job, "job");
        for word in [name, text(job, "short"), &name["wireup-".len()..]] {
            assert_eq!(shown(word).unwrap()["pid"], job["pid"], "{word}");
        }
    }
    let both = wireup([
        "ps",
        "--json",
        text(&jobs[1], "short"),
        text(&jobs[0], "short"),
        text(&jobs[1], "job"),
    ]);
    let both: Value = serde_json::from_slice(&both.stdout).unwrap();
    let sizes: Vec<&Value> = both
        .as_array()
        .unwrap()
        .iter()
        .map(|job| &job["size"])
        .collect();
    assert_eq!(sizes, [&Value::from(2), &Value::from(1)]);
    let answer = wireup(["ps", "no-such-job"]);
    assert_eq!(answer.status.code(), Some(1));
    let stderr = err(&answer);
    assert!(
        stderr.starts_with("wireup: no job \"no-such-job\"; there are "),
        "{stderr}"
    );
    end(first);
    end(second);
}

#[test]
fn job_inside_rank_is_separate_job() {
    let inner = env!("CARGO_BIN_EXE_wireup");
    let words = [inner, "run", "--oversubscribe", "-n", "2"];
    let running = Run::ranks(1, words.into_iter().chain(STAY)).start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    let outer = job_of(&running);
    assert_eq!(
        (&outer["size"], &outer["within"]),
        (&1.into(), &Value::Null)
    );
    // The inner launcher is the outer job's rank.
    let inner = shown(&outer["ranks"][0]["pid"].to_string()).unwrap();
    assert_eq!(
        (&inner["size"], &inner["within"]),
        (&2.into(), &outer["job"])
    );
    assert_ne!(inner["job"], outer["job"]);
    assert_eq!(inner["ranks"].as_array().unwrap().len(), 2);
    end(running);
}

#[test]
fn stopping_and_going_on_is_shown() {
    let running = staying(2, &[]);
    let pid = running.pid().to_string();
    let state = || text(&job_of(&running), "state").to_owned();
    for (signal, expected) in [("STOP", "stopped"), ("CONT", "running")] {
        let answer = wireup(["kill", "-s", signal, &pid]);
        assert_eq!(answer.status.code(), Some(0), "{answer:?}");
        eventually(expected, || (state() == expected).then_some(()));
    }
    // As Ctrl-Z does it, launcher included.
    wireup(["kill", "-s", "TSTP", &pid]);
    eventually("all are stopped", || {
        let job = job_of(&running);
        (text(&job, "state") == "stopped" && text(&job["ranks"][1], "state") == "stopped")
            .then_some(())
    });
    let answer = wireup(["kill", &pid]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    running.finish().expect(143);
}

#[test]
fn jobs_that_start_and_end_during_listing_are_optional() {
    let stop = std::sync::atomic::AtomicBool::new(false);
    let going = || !stop.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while going() {
                    Run::ranks(8, ["true"]).run().expect_quiet_success();
                }
            });
        }
        for _ in 0..60 {
            for arguments in [&["ps", "--json"][..], &["ps"], &["ps", "-l"]] {
                let answer = wireup(arguments.iter().copied());
                if answer.status.code() != Some(0) || !answer.stderr.is_empty() {
                    stop.store(true, std::sync::atomic::Ordering::Relaxed);
                    panic!("{answer:?}");
                }
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn jobs_of_another_user_are_neither_seen_nor_ended() {
    let Some(user) = as_user() else { return };
    let here = Reachable::new();
    let wireup_of_user = |args: &[&str]| {
        Command::new(user[0])
            .args(&user[1..])
            .arg(here.wireup())
            .args(args)
            .output()
            .unwrap()
    };
    let ours = staying(1, &[]);
    let words = ["run", "-n", "1"].into_iter().chain(STAY);
    let path = here.wireup();
    let theirs = Run::command(std::iter::once(path.to_str().unwrap()).chain(words))
        .under(&user)
        .start();
    theirs.wait_for(Output::Stdout, "ready");
    let (our_pid, their_pid) = (ours.pid().to_string(), theirs.pid().to_string());

    // The user sees and ends his own only.
    let listed = wireup_of_user(&["ps", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let listed = listed.as_array().unwrap();
    assert!(listed.iter().any(|job| job["pid"] == theirs.pid()));
    let user_id: u64 = USER.parse().unwrap();
    assert!(listed.iter().all(|job| job["uid"] == user_id));
    for arguments in [&["ps", &our_pid][..], &["kill", &our_pid]] {
        let answer = wireup_of_user(arguments);
        assert_eq!(answer.status.code(), Some(1), "{answer:?}");
        assert!(err(&answer).starts_with("wireup: no job "), "{answer:?}");
    }
    let answer = wireup_of_user(&["ps", "--all-users"]);
    assert_eq!(answer.status.code(), Some(125), "{answer:?}");
    assert!(err(&answer).contains("needs root"), "{answer:?}");

    // Root sees others' when it asks for them, and may name any.
    let pids = |args: &[&str]| -> Vec<Value> {
        let answer = wireup(args.iter().copied());
        let all: Value = serde_json::from_slice(&answer.stdout).unwrap();
        let jobs = all.as_array().unwrap().iter();
        jobs.map(|job| job["pid"].clone()).collect()
    };
    let (our, their) = (Value::from(ours.pid()), Value::from(theirs.pid()));
    let own = pids(&["ps", "--json"]);
    assert!(own.contains(&our) && !own.contains(&their));
    let all = pids(&["ps", "--json", "--all-users"]);
    assert!(all.contains(&our) && all.contains(&their));
    // Theirs is a number that has no name.
    for (pid, name) in [(&their_pid, USER), (&our_pid, "root")] {
        let table = out(&wireup(["ps", "--all-users", pid]));
        let cells: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(cells[1], name, "{table}");
    }
    let answer = wireup(["kill", &their_pid]);
    assert_eq!(answer.status.code(), Some(0), "{answer:?}");
    theirs.finish().expect(143);
    end(ours);
}

/// Returns the command that runs another in its own PID namespace; `None`, and the test is ignored, where that
/// is not permitted.
fn alone() -> Option<Vec<&'static str>> {
    let words = vec!["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let possible = Command::new(words[0])
        .args(&words[1..])
        .arg("true")
        .output();
    if !possible.is_ok_and(|output| output.status.success()) {
        skip("all jobs of a user: needs the right to make PID namespaces");
        return None;
    }
    Some(words)
}
