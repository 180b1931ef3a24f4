//! Debuggers of launches on several hosts.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::common::{Output, eventually, executable, field, number, program, repository, skip};

/// Time that gdb needs to read wireup, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// The launcher's number on the first host, where the only job is started from.
pub(crate) fn launcher(cluster: &Cluster) -> String {
    let wireup = cluster.wireup().to_str().unwrap();
    let ps = cluster.command(0, [wireup, "ps", "--json"]).run();
    let jobs: Value = serde_json::from_str(&ps.expect(0).out()).unwrap();
    jobs[0]["pid"].to_string()
}

#[test]
fn debugger_finds_and_attaches_to_ranks_of_both_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let script = repository().join("tests/programs/mpir.py");
    let words = ["gdb", "-nx", "-q", "-batch", "-x", script.to_str().unwrap()];
    let job = ["run", "--hosts", "node01:1,node02:2", "-n", "3"];
    let led = cluster
        .command(0, words)
        .more(["--args", cluster.wireup().to_str().unwrap()])
        .more(job)
        .more(["sh", "-c", "echo began $WIREUP_RANK"]);
    let outcome = led.deadline(PATIENCE).run().expect(0);
    let text = outcome.out();
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("process=")).collect();
    let reported: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                number(line, "process"),
                field(line, "host"),
                field(line, "was"),
            )
        })
        .collect();
    let (first, second) = (Some("node01"), Some("node02"));
    let elsewhere = Some("elsewhere");
    let expected = [
        (0, first, Some("T")),
        (1, second, elsewhere),
        (2, second, elsewhere),
    ];
    assert_eq!(reported, expected, "{outcome:?}");
    assert_eq!(text.matches("began").count(), 3, "{outcome:?}");
    assert!(text.contains("launcher exited with 0\n"), "{outcome:?}");

    // One that attaches later, and others on the hosts of the ranks.
    let running = cluster
        .run(0, &job[1..])
        .more(["sleep", "1000"])
        .deadline(PATIENCE)
        .start();
    let pid = launcher(&cluster);
    let table = eventually("the table is there", || {
        let attached = cluster
            .command(0, words)
            .more(["-p", &pid])
            .deadline(PATIENCE);
        let text = attached.run().expect(0).out();
        (text.matches("process=").count() == 3).then_some(text)
    });
    for line in table.lines().filter(|line| line.starts_with("process=")) {
        let host = usize::from(field(line, "host") == second);
        let gdb = ["gdb", "-nx", "-q", "-batch", "-ex", "info inferiors", "-p"];
        let attached = cluster
            .command(host, gdb)
            .more([field(line, "pid").unwrap()]);
        let outcome = attached.deadline(PATIENCE).run().expect(0);
        assert!(outcome.out().contains("sleep"), "{outcome:?}");
    }
    running.signal(rustix::process::Signal::TERM);
    running.finish().expect(143);
}

#[test]
fn ranks_on_other_hosts_stop_before_main_too() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let options = [
        "--hosts",
        "node01:1,node02:2",
        "-n",
        "3",
        "--stop-at=exec:0,2",
    ];
    let program = ["sh", "-c", "echo began $WIREUP_RANK"];
    let running = cluster.run(0, options).more(program).start();
    running.wait_for(Output::Stderr, "stopped before main: ranks 0,2");
    running.wait_for(Output::Stdout, "began 1");
    let stopped = || {
        running
            .processes()
            .iter()
            .filter(|one| one.state == 'T')
            .count()
    };
    assert_eq!(stopped(), 2);
    let wireup = cluster.wireup().to_str().unwrap();
    let pid = launcher(&cluster);
    let kill = cluster.command(0, [wireup, "kill", "-s", "CONT", &pid]);
    kill.run().expect(0);
    let outcome = running.finish().expect(0);
    let lines = outcome.sorted_lines();
    assert_eq!(lines, ["began 0", "began 1", "began 2"], "{outcome:?}");
}

#[test]
fn stack_tree_names_divergent_rank_of_64_on_four_hosts() {
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    let Some(hang) = program("hang") else {
        return;
    };
    let options = ["--hosts", "node[01-04]:16", "-n", "64"];
    let run = cluster.run(0, options).more([hang.to_str().unwrap(), "37"]);
    let running = run.deadline(PATIENCE).start();
    running.wait_for_many(Output::Stdout, "hang rank=", 64);
    let wireup = cluster.wireup().to_str().unwrap();
    let pid = launcher(&cluster);
    let ask = |words: &[&str]| {
        let command = cluster.command(0, [wireup]).more(words).more([&pid]);
        command.deadline(PATIENCE).run().expect(0).out()
    };
    let text = ask(&["stacks"]);
    let ends = |words: &str, ranks: &str| {
        let line = text.lines().find(|line| line.contains(words));
        assert!(line.is_some_and(|line| line.ends_with(ranks)), "{text}");
    };
    ends("main (", "[ranks 0-63]");
    ends("elsewhere (", "[rank 37]");
    ends("receive (", "[ranks 0-36,38-63]");
    let table: Value = serde_json::from_str(&ask(&["ps", "--proctable", "--json"])).unwrap();
    let hosts: Vec<&str> = table
        .as_array()
        .unwrap()
        .iter()
        .map(|process| process["host"].as_str().unwrap())
        .collect();
    let expected = (0..64).map(|rank| format!("node0{}", rank / 16 + 1));
    assert!(hosts.iter().copied().eq(expected), "{hosts:?}");
    running.signal(rustix::process::Signal::TERM);
    running.finish().expect(143);
}

#[test]
fn core_dump_of_remote_rank_is_reported_with_location() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.trim_end() != "core" {
        return skip("where a core dump is: needs core as the kernel's core_pattern");
    }
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let source = "#include <stdlib.h>\n#include <unistd.h>\nvoid solve(void) { abort(); }\n\
                  int main(void) { if (getenv(\"WIREUP_RANK\")[0] == '1') solve(); sleep(100); }\n";
    let options = [
        "--hosts",
        "node01:1,node02:1",
        "-n",
        "2",
        "--rlimit",
        "core=unlimited",
    ];
    let run = cluster.run(0, options);
    let flags = ["-g", "-O0", "-fno-omit-frame-pointer"];
    let Some(program) = executable(run.dir(), "aborts", source, &flags) else {
        return;
    };
    let outcome = run.more([program]).deadline(PATIENCE).run().expect(134);
    let words = [
        "rank 1 (",
        "node02",
        "core dump in ",
        "solve (aborts.c:3) < main (aborts.c:4)",
    ];
    outcome.expect_one_line(&words);
}

#[test]
fn ranks_on_other_hosts_get_panes_with_working_debuggers() {
    let (Some(cluster), Some(hang)) = (Cluster::new(2), program("hang")) else {
        return;
    };
    let hosts = ["--hosts", "node01:1,node02:1", "-n", "2"];
    let job = cluster.run(0, hosts).more([hang.to_str().unwrap(), "0"]);
    let job = job.deadline(PATIENCE).start();
    let ranks = eventually("both ranks run", || {
        let processes = job.processes();
        let ranks = processes.iter().filter(|one| one.name == "hang");
        let ranks: Vec<i32> = ranks.map(|one| one.pid).collect();
        (ranks.len() == 2).then_some(ranks)
    });
    let tracer = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("TracerPid:"));
        line.unwrap() != "TracerPid:\t0"
    };
    let pid = launcher(&cluster);
    let wireup = cluster.wireup().to_str().unwrap();
    let debug = cluster.command(0, [wireup, "debug", &pid]).terminal();
    let debug = debug.env("TERM", "xterm").env("TMUX", "");
    let panes = debug.deadline(PATIENCE).clean_within(PATIENCE).start();
    eventually("both are traced", || ranks.iter().all(tracer).then_some(()));
    let order = |words: &[&str]| cluster.command(0, ["tmux"]).more(words).run();
    let screen = || order(&["capture-pane", "-p", "-t", ".1"]).out();
    let shows = |text: &str| {
        let until = Instant::now() + PATIENCE;
        while !screen().contains(text) {
            assert!(Instant::now() < until, "no {text}: {}", screen());
        }
    };
    // The second rank's is on the other host: it takes lines, and Ctrl-C interrupts the rank there.
    shows("(gdb)");
    order(&["send-keys", "-t", ".1", "print 40 + 2", "Enter"]);
    shows("$1 = 42");
    order(&["send-keys", "-t", ".1", "continue", "Enter"]);
    shows("Continuing.");
    order(&["send-keys", "-t", ".1", "C-c"]);
    shows("SIGINT");
    order(&["kill-server"]);
    // A host has its own /tmp.
    cluster
        .command(0, ["sh", "-c", "rm -r /tmp/tmux-*"])
        .run()
        .expect(0);
    panes.finish();
    eventually("both go on", || (!ranks.iter().any(tracer)).then_some(()));
    job.signal(rustix::process::Signal::TERM);
    job.finish().expect(143);
}
