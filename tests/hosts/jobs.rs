//! `wireup ps` and `wireup kill` for jobs on several hosts: on the launcher's, on others, and where
//! all of them are seen at once.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::{ALICE, BOB, Cluster};
use crate::common::{Outcome, Output, Run, Running, eventually};
use crate::users::of;

/// Rank 0 on the first host, 1 and 2 on the second.
const THREE: [&str; 4] = ["--hosts", "node01:1,node02:2", "-n", "3"];

/// Command of a rank that prints `ready` and stays.
const STAY: [&str; 3] = ["sh", "-c", "echo ready; exec sleep 1000"];

/// Command of ranks that ignore SIGTERM and print a line at SIGUSR1.
const STUBBORN: [&str; 3] = [
    "sh",
    "-c",
    "trap '' TERM; trap 'echo rank $WIREUP_RANK heard' USR1; echo ready; while :; do sleep 0.1; done",
];

fn wireup(cluster: &Cluster, host: usize, words: &[&str]) -> Run {
    cluster
        .command(host, [cluster.wireup().to_str().unwrap()])
        .more(words)
}

/// Starts three ranks from a host, and waits until they are there.
fn three(cluster: &Cluster, from: usize, options: &[&str], program: [&str; 3]) -> Running {
    let run = cluster.run(from, THREE).more(options).more(program);
    let running = of(ALICE, run).start();
    running.wait_for_many(Output::Stdout, "ready", 3);
    running
}

/// Returns the jobs that `wireup ps` shows to a user on a host.
#[track_caller]
fn visible_jobs(user: u32, cluster: &Cluster, host: usize, options: &[&str]) -> Vec<Value> {
    let ps = wireup(cluster, host, &["ps", "--json"]).more(options);
    let outcome = of(user, ps).run().expect_quiet_success();
    let Value::Array(jobs) = serde_json::from_str(&outcome.out()).unwrap() else {
        panic!("no array: {outcome:?}");
    };
    jobs
}

/// Alice's only job on a host, once it is in a state.
#[track_caller]
fn job(cluster: &Cluster, host: usize, state: &str) -> Value {
    eventually(state, || {
        // A step that knows no job yet is listed by itself.
        let mut jobs = visible_jobs(ALICE, cluster, host, &[]);
        let job = jobs.pop().filter(|job| job["state"] == state)?;
        jobs.is_empty().then_some(job)
    })
}

/// Runs Alice's `wireup kill` on a host and checks its output.
#[track_caller]
fn kill(cluster: &Cluster, host: usize, words: &[&str], code: i32, texts: &[&str]) -> Outcome {
    let run = wireup(cluster, host, &["kill"]).more(words);
    let outcome = of(ALICE, run).run().expect(code);
    outcome.expect_one_line(texts);
    outcome
}

/// Numbers of a job's living ranks.
fn alive(job: &Value) -> Vec<u64> {
    let ranks = job["ranks"].as_array().unwrap().iter();
    ranks.map(|rank| rank["rank"].as_u64().unwrap()).collect()
}

/// The nodes of a job's part, without the pids of their steps.
fn nodes(job: &Value) -> Value {
    let mut nodes = job["part"]["nodes"].clone();
    for node in nodes.as_array_mut().unwrap() {
        let pid = node.as_object_mut().unwrap().remove("pid");
        assert!(pid.is_some_and(|pid| pid.as_i64() > Some(0)), "{job}");
    }
    nodes
}

#[test]
fn each_host_shows_its_node_to_user_and_root() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let running = three(&cluster, 0, &[], STAY);
    let first = json!({"node": 0, "of": 2, "host": "node01", "ranks": [0]});
    let second = json!({"node": 1, "of": 2, "host": "node02", "ranks": [1, 2]});
    let name = job(&cluster, 0, "running")["job"].clone();
    assert!(name.is_string());
    for (host, launcher, expected, living) in
        [(0, true, &first, vec![0]), (1, false, &second, vec![1, 2])]
    {
        let job = job(&cluster, host, "running");
        assert_eq!((&job["job"], &job["uid"]), (&name, &json!(ALICE)), "{job}");
        assert_eq!(
            (&job["size"], &job["node_count"]),
            (&json!(3), &json!(2)),
            "{job}"
        );
        assert_eq!(job["part"]["launcher"], launcher, "{job}");
        assert_eq!(job["pid"].is_null(), !launcher, "{job}");
        assert_eq!(job["part"]["hosts"], json!(["node01", "node02"]));
        assert_eq!(nodes(&job), json!([expected]));
        assert_eq!(alive(&job), living, "{job}");
        assert_eq!(job["nodes"], json!([expected["host"]]), "{job}");
        // By the pid of what leads it here, too.
        let step = job["part"]["nodes"][0]["pid"].to_string();
        assert_eq!(
            visible_jobs(ALICE, &cluster, host, &[&step])[0]["job"],
            name
        );

        assert_eq!(visible_jobs(BOB, &cluster, host, &[]), [] as [Value; 0]);
        assert_eq!(visible_jobs(0, &cluster, host, &[]), [] as [Value; 0]);
        let roots = visible_jobs(0, &cluster, host, &["--all-users"]);
        assert_eq!((roots.len(), &roots[0]["part"]), (1, &job["part"]));
    }
    assert_eq!(
        visible_jobs(0, &cluster, 2, &["--all-users"]),
        [] as [Value; 0]
    );

    let table = |host, user, options: &[&str]| {
        let ps = wireup(&cluster, host, &["ps"]).more(options);
        of(user, ps).run().expect_quiet_success().out()
    };
    for (host, user, options, words) in [
        (
            0,
            ALICE,
            &[][..],
            ["1/1 of 3", "node[01-02]", "launcher, node01: 0"],
        ),
        (1, ALICE, &[], ["2/2 of 3", "node[01-02]", "node02: 1-2"]),
        (1, 0, &["--all-users"], ["alice", "2/2 of 3", "node02: 1-2"]),
    ] {
        let table = table(host, user, options);
        assert_eq!(table.lines().count(), 2, "{table}");
        assert!(words.iter().all(|word| table.contains(word)), "{table}");
    }
    // From a host that has no part.
    let all = ["--hosts", "node01,node02,node03"];
    for (user, options) in [(ALICE, &all[..]), (0, &[all[0], all[1], "--all-users"])] {
        let jobs = visible_jobs(user, &cluster, 2, options);
        // The command is a launch too, which may still end.
        let parts = jobs.iter().filter(|job| job["job"] == name);
        let parts = parts.map(|job| json!([job["on"], job["job"], job["part"]["launcher"]]));
        let expected = [
            json!(["node01", name, true]),
            json!(["node02", name, false]),
        ];
        assert_eq!(parts.collect::<Vec<_>>(), expected);
    }
    assert_eq!(visible_jobs(BOB, &cluster, 2, &all), [] as [Value; 0]);
    let across = table(2, ALICE, &all);
    assert!(across.starts_with("HOST "), "{across}");
    for (host, ranks) in [("node01", "1/1 of 3"), ("node02", "2/2 of 3")] {
        let mut lines = across.lines();
        let line = lines.find(|line| line.starts_with(host)).unwrap();
        assert!(line.contains(ranks), "{across}");
    }

    let ranks = table(1, ALICE, &["-l"]);
    assert_eq!(ranks.lines().count(), 3, "{ranks}");
    assert_eq!(ranks.matches(" node02 ").count(), 2, "{ranks}");

    // Where all hosts and agents are seen, the parts are one job.
    let all = std::process::Command::new(cluster.wireup())
        .args(["ps", "--json", "--all-users"])
        .output();
    let all: Vec<Value> = serde_json::from_slice(&all.unwrap().stdout).unwrap();
    let mut whole = all.iter().filter(|job| job["job"] == name);
    let job = whole.next().unwrap();
    assert_eq!((whole.next(), alive(job)), (None, vec![0, 1, 2]));
    assert_eq!(job["pid"], running.pid());
    assert_eq!(nodes(job), json!([first, second]));

    kill(
        &cluster,
        0,
        &["--all"],
        0,
        &["SIGTERM sent to its launcher; ended after"],
    );
    running.finish().expect(143);
}

#[test]
fn commands_reach_launcher_from_any_host() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let running = three(&cluster, 0, &[], STUBBORN);
    let job = job(&cluster, 1, "running");
    let name = job["job"].as_str().unwrap();
    let step = job["part"]["nodes"][0]["pid"].to_string();
    let shown = &name["wireup-".len()..][..8];
    let hosts = ["--hosts", "node01,node02,node03"];
    let ask = |user, host, words: &[&str], options: &[&str], code| {
        let run = wireup(&cluster, host, words).more(options);
        of(user, run).run().expect(code)
    };
    // By itself from another host of the job, and with --hosts from one that has no part.
    for (host, word, options) in [(1, &*step, &[][..]), (2, name, &hosts[..])] {
        let stacks = ask(ALICE, host, &["stacks", "--json", word], options, 0);
        let ranks: Vec<Value> = serde_json::from_str(&stacks.out()).unwrap();
        assert_eq!(ranks.len(), 3, "{stacks:?}");
        // On a loaded machine lines of progress follow.
        let err = stacks.err();
        let line = err.lines().next().unwrap_or_default();
        assert!(line.contains("runs on node01"), "{stacks:?}");
        let there = format!("ssh node01 'wireup stacks --json wireup-{shown}'");
        assert!(line.contains(&there), "{stacks:?}");
        assert!(!err.contains(name), "{stacks:?}");
    }
    let table = ask(ALICE, 1, &["top"], &[], 0).out();
    assert_eq!(table.matches(" node02 ").count(), 2, "{table}");
    let debug = ask(ALICE, 2, &["debug", "--print", "--ranks", "1"], &hosts, 0).out();
    assert!(debug.contains("gdb"), "{debug}");

    let other = ask(BOB, 2, &["stacks", name], &hosts, 1);
    other.expect_one_line(&["no job", "no launcher of a job of yours is on these hosts"]);
    ask(BOB, 2, &["kill", name], &hosts, 1);
    ask(ALICE, 2, &["kill", "-s", "USR1", name], &hosts, 0);
    running.wait_for_many(Output::Stdout, "heard", 3);
    ask(ALICE, 2, &["kill", "-s", "KILL"], &hosts, 0);
    running.finish().expect(143);
}

#[test]
fn job_waiting_for_host_is_named_and_can_be_ended_from_any_host() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for (host, action) in [
        (0, "sent to its launcher"),
        (1, "sent to its step here (node02)"),
    ] {
        cluster.excuse(2);
        cluster.host(2).pause().unwrap();
        let hosts = ["--hosts", "node01,node02,node03", "-n", "3"];
        let running = of(ALICE, cluster.run(0, hosts).more(STAY)).start();
        let name = eventually("the step of the second host", || {
            let jobs = visible_jobs(ALICE, &cluster, 1, &[]);
            let job = jobs.first().filter(|job| job["job"].is_string())?;
            assert_eq!((&job["state"], alive(job)), (&json!("starting"), vec![]));
            assert_eq!(nodes(job)[0]["ranks"], json!([1]), "{job}");
            Some(job["job"].clone())
        });
        let at_launcher = job(&cluster, 0, "starting");
        assert_eq!(
            (&at_launcher["job"], &at_launcher["size"]),
            (&name, &json!(3))
        );
        kill(
            &cluster,
            host,
            &[name.as_str().unwrap()],
            0,
            &[action, "; ended"],
        );
        cluster.host(2).resume().unwrap();
        assert_ne!(running.finish().code, 0);
        cluster.expect_clean(2);
    }
}

#[test]
fn signal_to_step_ends_job_on_all_hosts() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for (program, signal) in [
        (STAY, "TERM"),
        (STAY, "HUP"),
        (STUBBORN, "TERM"),
        (STUBBORN, "KILL"),
    ] {
        let running = three(&cluster, 0, &["--grace", "1"], program);
        let words = [
            "-s",
            signal,
            job(&cluster, 1, "running")["short"].as_str().unwrap(),
        ]
        .map(str::to_owned);
        let words = words.each_ref().map(String::as_str);
        let line =
            "SIGTERM sent to its step here (node02), which ends it on all its hosts; ended here";
        kill(&cluster, 1, &words, 0, &[line]);
        let outcome = running.finish();
        assert_ne!(outcome.code, 0, "{outcome:?}");
        let err = outcome.err();
        assert!(
            err.contains("node02: its step was ended by SIGTERM"),
            "{err}"
        );
    }
}

#[test]
fn killed_job_ends_on_all_hosts_without_grace_time() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    // With ranks on the launcher's host, and without.
    for from in [0, 2] {
        let running = three(&cluster, from, &["--grace", "1000"], STUBBORN);
        let line = "its launcher kills it on all hosts; ended after";
        kill(&cluster, from, &["-s", "KILL", "--all"], 0, &[line]);
        running.finish().expect(143);
    }
}

#[test]
fn ranks_are_signalled_on_their_host() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let running = three(&cluster, 2, &[], STUBBORN);
    let at_launcher = job(&cluster, 2, "running");
    assert_eq!(
        (nodes(&at_launcher), alive(&at_launcher)),
        (json!([]), vec![])
    );
    let name = at_launcher["job"].as_str().unwrap();
    let some = |ranks| ["-s", "USR1", "--rank", ranks, name];

    kill(&cluster, 1, &some("2"), 0, &["SIGUSR1 sent to rank 2"]);
    running.wait_for(Output::Stdout, "rank 2 heard");
    let line = "SIGUSR1 sent to rank 1; rank 0 is on node01: signal them there";
    kill(&cluster, 1, &some("1,0"), 1, &[line]);
    running.wait_for(Output::Stdout, "rank 1 heard");
    let line = "ranks 1, 2 are on node02: signal them there";
    kill(&cluster, 0, &some("1,2"), 1, &[line]);
    kill(&cluster, 2, &some("0"), 1, &["rank 0 is on node01"]);
    kill(&cluster, 1, &some("1,3"), 1, &["no rank 3 runs"]);
    let signal_counts = |output: &str| {
        ["0", "1", "2"].map(|rank| output.matches(&format!("rank {rank} heard")).count())
    };
    assert_eq!(
        signal_counts(&running.wait_for(Output::Stdout, "heard")),
        [0, 1, 1]
    );

    // All of them: through the launcher, or those of a host.
    kill(
        &cluster,
        2,
        &["-s", "USR1", name],
        0,
        &["SIGUSR1 sent to its launcher"],
    );
    running.wait_for_many(Output::Stdout, "heard", 5);
    let line = "SIGUSR1 sent to 2 ranks; rank 0 is on node01: signal them there, or all ranks on node03, the host of its \
                launcher";
    kill(&cluster, 1, &["-s", "USR1", name], 1, &[line]);
    let output = running.wait_for_many(Output::Stdout, "heard", 7);
    assert_eq!(signal_counts(&output), [1, 3, 3]);
    kill(
        &cluster,
        2,
        &["-s", "WINCH", name],
        1,
        &["rank 0 is on node01, ranks 1, 2 are on node02"],
    );

    // Stopped where they are, which the launcher does not know.
    kill(
        &cluster,
        1,
        &["-s", "STOP", name],
        1,
        &["SIGSTOP sent to 2 ranks"],
    );
    job(&cluster, 1, "stopped");
    kill(
        &cluster,
        1,
        &["-s", "CONT", name],
        1,
        &["SIGCONT sent to 2 ranks"],
    );
    job(&cluster, 1, "running");
    kill(&cluster, 2, &["-s", "KILL", name], 0, &["; ended after"]);
    running.finish().expect(143);
}

#[test]
fn step_without_agent_is_found_and_ended() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for signal in ["TERM", "KILL"] {
        let running = three(&cluster, 0, &[], STAY);
        job(&cluster, 1, "running");
        // One that is stopped cannot see its agent go.
        let mut processes = cluster.host(1).processes().into_iter();
        let step = processes.find(|process| process.name == "wireup-step");
        step.unwrap().signal(Signal::STOP);
        cluster.kill_agent(1);
        let orphaned = job(&cluster, 1, "orphaned");
        assert_eq!(alive(&orphaned), [1, 2]);
        let line = "SIGTERM sent to its step here (node02), whose agent is gone; ended here";
        let name = orphaned["job"].as_str().unwrap();
        kill(&cluster, 1, &["-s", signal, name], 0, &[line]);
        assert_ne!(running.finish().code, 0);
        cluster.start_agent(1);
    }
}
