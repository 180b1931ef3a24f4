//! Programs that use no MPI: where they run, what they see, how they end, what they print.

use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::common::{Output, field, memory_peak_kib, number, program};

/// Command of a shell that prints its rank and host.
const WHERE: [&str; 3] = ["sh", "-c", "echo rank $WIREUP_RANK on $(uname -n)"];

#[test]
fn ranks_run_on_named_hosts_in_order() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for (hosts, expected) in [
        (
            "node01:2,node02:2",
            ["node01", "node01", "node02", "node02"],
        ),
        (
            "node03:1,node01:3",
            ["node03", "node01", "node01", "node01"],
        ),
        ("node02:4", ["node02"; 4]),
    ] {
        let run = cluster.run(0, ["--hosts", hosts, "-n", "4"]).more(WHERE);
        let outcome = run.run().expect_quiet_success();
        let place = |(rank, host)| format!("rank {rank} on {host}");
        let expected: Vec<String> = expected.iter().enumerate().map(place).collect();
        assert_eq!(outcome.sorted_lines(), expected, "{hosts}");
    }
}

#[test]
fn this_machine_in_list_has_name_of_its_agent() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    for (hosts, second) in [
        ("node01,localhost", "node02"),
        ("node01,127.0.0.1:1", "node02"),
    ] {
        let run = cluster.run(1, ["--hosts", hosts, "-n", "2", "--map-by", "node"]);
        let outcome = run.more(WHERE).run().expect_quiet_success();
        let expected = ["rank 0 on node01".to_owned(), format!("rank 1 on {second}")];
        assert_eq!(outcome.sorted_lines(), expected, "{hosts}");
    }
    let words = ["ps", "--nodes", "--hosts", "localhost,node03"].map(Into::into);
    let wireup = cluster.wireup().as_os_str().to_owned();
    let nodes = cluster.command(1, std::iter::once(wireup).chain(words));
    let outcome = nodes.run().expect_quiet_success();
    assert!(outcome.out().contains("\nnode02 "), "{outcome:?}");
}

#[test]
fn host_given_by_address_is_reported_with_its_name() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let address = cluster.host(1).address();
    let hosts = format!("node01,{address}");
    let run = cluster.run(0, ["--hosts", &hosts, "-n", "2"]);
    let outcome = run.more(WHERE).run().expect(125);
    assert!(outcome.err().contains("node02"), "{outcome:?}");
    let hosts = format!("node01:1,node02:1@{address}");
    let run = cluster.run(0, ["--hosts", &hosts, "-n", "2"]);
    run.more(WHERE).run().expect_quiet_success();
}

#[test]
fn launcher_needs_no_rank_on_its_own_host() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let run = cluster.run(2, ["--hosts", "node01:1,node02:1", "-n", "2"]);
    let outcome = run.more(WHERE).run().expect_quiet_success();
    let expected = ["rank 0 on node01", "rank 1 on node02"];
    assert_eq!(outcome.sorted_lines(), expected);
}

#[test]
fn ranks_know_job_and_place() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let names = [
        "RANK",
        "NPROCS",
        "NNODES",
        "NODE_RANK",
        "LOCAL_RANK",
        "LOCAL_SIZE",
        "NODELIST",
        "LAUNCH_ID",
        "ALLOC_ID",
    ];
    let show: Vec<String> = names.map(|name| format!("{name}=$WIREUP_{name}")).into();
    let script = format!("echo place {} A=$A", show.join(" "));
    let hosts = [
        "--hosts",
        "node01:1,node02:2",
        "-n",
        "3",
        "sh",
        "-c",
        &script,
    ];
    let run = cluster.run(0, hosts).env("A", "travels");
    let run = run.env("WIREUP_ALLOC_ID", "42").run();
    let outcome = run.expect_quiet_success();
    let lines = outcome.sorted_lines();
    let launch = field(&lines[0], "LAUNCH_ID").unwrap();
    assert!(!launch.is_empty(), "{lines:?}");
    let places = [[0, 0, 0, 1], [1, 1, 0, 2], [2, 1, 1, 2]];
    for (line, [rank, node, local, size]) in lines.iter().zip(places) {
        let numbers = [
            "RANK",
            "NODE_RANK",
            "LOCAL_RANK",
            "LOCAL_SIZE",
            "NPROCS",
            "NNODES",
        ];
        let got = numbers.map(|name| number(line, name));
        assert_eq!(got, [rank, node, local, size, 3, 2], "{line}");
        assert_eq!(field(line, "NODELIST"), Some("node01,node02"), "{line}");
        assert_eq!(field(line, "LAUNCH_ID"), Some(launch), "{line}");
        assert_eq!(field(line, "ALLOC_ID"), Some("42"), "{line}");
        assert_eq!(field(line, "A"), Some("travels"), "{line}");
    }
}

#[test]
fn ranks_get_slurm_names_of_their_host_on_request() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let script = "echo $SLURM_PROCID $SLURM_NTASKS $SLURM_LOCALID $SLURM_NODEID $SLURM_NNODES \
                  $SLURM_TASKS_PER_NODE $SLURM_NODELIST $SLURMD_NODENAME $SLURM_JOB_ID";
    let hosts = ["--hosts", "node01:1,node02:2", "-n", "3"];
    let run = |options: &[&str]| {
        let run = cluster.run(0, hosts).more(options);
        let run = run.more(["sh", "-c", script]).env("SLURM_PROCID", "9");
        let outcome = run.env("WIREUP_ALLOC_ID", "42").run();
        outcome.expect_quiet_success().sorted_lines()
    };
    let expected = [
        "0 3 0 0 2 1,2 node[01-02] node01 42",
        "1 3 0 1 2 1,2 node[01-02] node02 42",
        "2 3 1 1 2 1,2 node[01-02] node02 42",
    ];
    assert_eq!(run(&["--slurm-env"]), expected);
    assert_eq!(run(&[]), [""; 3]);
}

#[test]
fn ranks_start_in_directory_of_launcher_with_its_umask() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let hosts = ["--hosts", "node01:1,node02:1", "-n", "2"];
    let run = cluster.run(0, hosts).after_shell("umask 027;");
    let run = run.more(["sh", "-c", "pwd; umask; echo x >rank.$WIREUP_RANK"]);
    let outcome = run.run().expect_quiet_success();
    let here = cluster.dir().display().to_string();
    assert_eq!(outcome.sorted_lines(), [&*here, &*here, "0027", "0027"]);
    for rank in 0..2 {
        let path = cluster.dir().join(format!("rank.{rank}"));
        let mode = std::fs::metadata(path).unwrap().permissions();
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777,
            0o640
        );
    }
}

#[test]
fn first_failure_on_any_host_is_failure_of_job() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let hosts = ["--hosts", "node01:2,node02:2", "-n", "4", "sh", "-c"];
    for (end, code, words) in [
        ("exit 7", 7, "7"),
        ("kill -SEGV $$", 139, "signal 11"),
        ("kill -KILL $$", 137, "signal 9"),
    ] {
        for rank in [1, 3] {
            let script = format!("[ $WIREUP_RANK != {rank} ] && exec sleep 1000; {end}");
            let outcome = cluster.run(0, hosts).more([script]).run().expect(code);
            let host = if rank == 1 { "node01" } else { "node02" };
            outcome.expect_one_line(&[&format!("rank {rank} "), words, host]);
        }
    }
}

#[test]
fn input_unread_by_ranks_is_left_for_shell_loop() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let each_line = "while read line; do \"$@\" && echo after $line; done";
    for (program, expected) in [
        ("true", "after one\nafter two\n"),
        ("cat", "two\nafter one\n"),
        ("read line; echo $line", "two\nafter one\n"),
    ] {
        let run = cluster.command(0, ["sh", "-c", each_line, "sh"]);
        let run = run.more([cluster.wireup().as_os_str()]);
        let run = run.more(["run", "--hosts", "node02:1", "sh", "-c", program]);
        let outcome = run.stdin_bytes("one\ntwo\n").run().expect_quiet_success();
        assert_eq!(outcome.out(), expected, "{program}");
    }
    let all = [
        "run",
        "--hosts",
        "node01:1,node02:1",
        "-n",
        "2",
        "--stdin",
        "all",
    ];
    for (program, expected) in [
        ("true", "after one\nafter two\n"),
        ("cat", "two\ntwo\nafter one\n"),
    ] {
        let run = cluster.command(0, ["sh", "-c", each_line, "sh"]);
        let run = run.more([cluster.wireup().as_os_str()]);
        let run = run.more(all).more(["sh", "-c", program]);
        let outcome = run.stdin_bytes("one\ntwo\n").run().expect_quiet_success();
        assert_eq!(outcome.out(), expected, "{program}");
    }
}

#[test]
fn input_reaches_rank_0_on_any_host() {
    let (Some(cluster), Some(sum)) = (Cluster::new(2), program("stdin_sum")) else {
        return;
    };
    let input: Vec<u8> = (0..3_000_000_u32).map(|i| ((i * 7) >> 3) as u8).collect();
    let hash = |bytes: &[u8]| {
        let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
    };
    for hosts in ["node01:1,node02:1", "node02:1,node01:1"] {
        let run = cluster.run(0, ["--hosts", hosts, "-n", "2"]).more([&sum]);
        let outcome = run.stdin_bytes(input.clone()).run().expect_quiet_success();
        let line = |rank: u32, bytes: &[u8]| {
            let (length, hash) = (bytes.len(), hash(bytes));
            format!("stdin_sum rank={rank} bytes={length} fnv1a={hash:016x}")
        };
        let expected = [line(0, &input), line(1, &[])];
        assert_eq!(outcome.sorted_lines(), expected, "{hosts}");
    }
}

#[test]
fn all_output_arrives_in_order_from_every_host() {
    let (Some(cluster), Some(lines)) = (Cluster::new(2), program("lines")) else {
        return;
    };
    let hosts = ["--hosts", "node01:2,node02:2", "-n", "4"];
    let lines = lines.to_str().unwrap();
    let run = cluster.run(0, hosts).more([lines, "20000", "120,1,700,40"]);
    let outcome = run.run().expect_quiet_success();
    let mut next = [0_u32; 4];
    for line in outcome.out().lines() {
        // The shortest lines are cut before their number.
        let mut words = line.split(' ');
        let rank: usize = words.next().unwrap().parse().unwrap();
        let due = next[rank];
        if let Some(number) = words.next() {
            assert_eq!(number.parse::<u32>().unwrap(), due, "of rank {rank}");
        }
        next[rank] += 1;
    }
    assert_eq!(next, [20000; 4]);
}

#[test]
fn both_outputs_stay_apart_and_labels_name_ranks_of_other_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let hosts = ["-l", "--hosts", "node01:1,node02:1", "-n", "2", "sh", "-c"];
    let run = cluster.run(0, hosts).more(["echo out; echo err >&2"]);
    let outcome = run.run().expect(0);
    let mut err: Vec<String> = outcome.err().lines().map(str::to_owned).collect();
    err.sort();
    assert_eq!(outcome.sorted_lines(), ["[0] out", "[1] out"]);
    assert_eq!(err, ["[0] err", "[1] err"]);

    let pattern = ["--label=%R/%l@%h,%s: "];
    let run = cluster.run(0, pattern).more(&hosts[1..]);
    let outcome = run.more(["echo out; echo err >&2"]).run().expect(0);
    let out = ["0/0@node01,out: out", "1/0@node02,out: out"];
    assert_eq!(outcome.sorted_lines(), out);
    assert!(outcome.err().contains("1/0@node02,err: err"), "{outcome:?}");
}

#[test]
fn interrupt_ends_ranks_on_all_hosts() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let hosts = ["--hosts", "node01:1,node02:1", "-n", "2", "sh", "-c"];
    let script = "trap 'echo interrupted' INT; echo up; while :; do sleep 0.05; done";
    let running = cluster.run(0, hosts).more([script]).start();
    running.wait_for_many(Output::Stdout, "up", 2);
    running.signal(Signal::INT);
    running.wait_for_many(Output::Stdout, "interrupted", 2);
    // They go on: the second one is meant seriously.
    running.signal(Signal::INT);
    running.finish().expect(130);
}

#[test]
fn launches_follow_and_accompany_each_other() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let all = ["--hosts", "node01:1,node02:1", "-n", "2"];
    for _ in 0..3 {
        cluster
            .run(0, all)
            .more(["true"])
            .run()
            .expect_quiet_success();
    }
    let both = [0, 1].map(|host| {
        let wait = ["sh", "-c", "echo up; read line; echo $line"];
        cluster.run(host, all).more(wait).stdin_held().start()
    });
    for running in &both {
        running.wait_for_many(Output::Stdout, "up", 2);
    }
    let [mut first, mut second] = both;
    std::io::Write::write_all(&mut first.stdin(), b"one\n").unwrap();
    let first = first.finish().expect_quiet_success();
    assert!(first.out().contains("one"), "{first:?}");
    std::io::Write::write_all(&mut second.stdin(), b"two\n").unwrap();
    let second = second.finish().expect_quiet_success();
    assert!(second.out().contains("two"), "{second:?}");
}

#[test]
fn missing_files_on_some_hosts_are_reported_once_with_remedy() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    // Below /tmp each host has its own; the shell makes it and removes it.
    let program = "printf '#!/bin/sh\\n' >/tmp/here; chmod +x /tmp/here";
    for (make, words, code, texts) in [
        (
            program,
            &["/tmp/here"][..],
            127,
            [
                "program \"/tmp/here\" not found",
                "; copy it to the host, or ",
            ],
        ),
        (
            "mkdir /tmp/here",
            &["--wdir", "/tmp/here", "true"],
            125,
            [
                "working directory /tmp/here: ",
                "; create it on the host, or ",
            ],
        ),
    ] {
        let here = format!("{make}; \"$@\"; r=$?; rm -r /tmp/here; exit $r");
        let hosts = ["--hosts", "node01:1,node02:1,node03:1", "-n", "3"];
        let run = cluster.run(0, hosts).more(words);
        let outcome = run.under(["sh", "-c", &here, "sh"]).run().expect(code);
        let line = outcome.expect_one_line(&texts);
        assert!(line.contains("on node[02-03]: "), "{line}");
    }
}

#[test]
fn all_hosts_without_agent_are_named_at_once() {
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    for host in [1, 3] {
        cluster.kill_agent(host);
    }
    let all = "node01:1,node02:1,node03:1,node04:1";
    let outcome = cluster.run(0, ["--hosts", all, "-n", "4", "true"]).run();
    assert_ne!(outcome.code, 0);
    outcome.expect_one_line(&["on node[02,04]: ", "refused"]);
    // Names are looked up first: no host is contacted while one is unknown.
    let hosts = format!("{all},node05:1");
    let outcome = cluster.run(0, ["--hosts", &hosts, "-n", "5", "true"]).run();
    assert_ne!(outcome.code, 0);
    let err = outcome.err();
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 2, "one for each reason; {outcome:?}");
    let has_line = |words: &[&str]| {
        lines
            .iter()
            .any(|line| words.iter().all(|w| line.contains(w)))
    };
    assert!(has_line(&["on node05: "]), "{err}");
    assert!(has_line(&["on node[01-04]: ", "not contacted"]), "{err}");
    // In a tree, where node04 is below node02.
    let tree = ["--tree-width", "2"];
    let hosts = ["--hosts", "node01:1,node02:1,node03:1,node04:1", "-n", "4"];
    let outcome = cluster.run(0, tree).more(hosts).more(["true"]).run();
    let err = outcome.err();
    assert!(
        err.contains("on node02: cannot reach the agent of node02"),
        "{err}"
    );
    let behind = "on node04: its agent was not reached, since the connection leads through node02";
    assert!(err.contains(behind), "{err}");
    let rest = ["--hosts", "node01:1,node03:1", "-n", "2", "true"];
    cluster.run(0, rest).run().expect_quiet_success();
}

#[test]
fn much_output_of_many_ranks_arrives_complete_in_bounded_memory() {
    let (Some(cluster), Some(lines)) = (Cluster::new(4), program("lines")) else {
        return;
    };
    // 200 MB in lines of 1000 bytes with their newline, 12,500 from each of 16 ranks.
    let hosts = ["--oversubscribe", "--hosts", "node[01-04]:4", "-n", "16"];
    let lines = lines.to_str().unwrap();
    let run = cluster.run(0, hosts).more([lines, "12500", "999"]);
    let run = run.stdout_held().deadline(Duration::from_secs(120));
    let mut running = run.start();
    let mut output = BufReader::new(running.take_stdout());
    let (mut next, mut line) = ([0_u32; 16], String::new());
    let mut peak = 0;
    while output.read_line(&mut line).unwrap() > 0 {
        let mut words = line.splitn(3, ' ');
        let mut number = || words.next().unwrap().parse::<u32>().unwrap();
        let (rank, number) = (number() as usize, number());
        assert_eq!((number, line.len()), (next[rank], 1000), "of rank {rank}");
        next[rank] += 1;
        if number == 12_000 {
            peak = peak.max(memory_peak_kib(running.pid()));
        }
        line.clear();
    }
    assert_eq!(next, [12_500; 16]);
    assert!((1..64 * 1024).contains(&peak), "{peak} KiB");
    for host in 0..4 {
        let peak = memory_peak_kib(cluster.agent(host).pid);
        assert!(peak < 64 * 1024, "{peak} KiB of the agent of host {host}");
    }
    running.finish().expect_quiet_success();
}
