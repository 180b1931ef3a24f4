//! Launches on several hosts as clients of an IMPI job: each host has an agent, to which the hosts of other launches
//! and its own ranks connect.

use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::common::{Mpi, Output, Run, Running, eventually, mpi, number};

/// The rendezvous server of two clients on a host, and its address.
fn server(cluster: &Cluster, host: usize) -> (Running, String) {
    server_for(cluster, host, "2")
}

/// The rendezvous server of so many clients on a host, and its address.
pub(crate) fn server_for(cluster: &Cluster, host: usize, clients: &str) -> (Running, String) {
    let wireup = cluster.wireup().to_str().unwrap();
    let address = cluster.host(host).address().to_string();
    let words = [wireup, "impi", "server", clients, "--address", &address];
    let server = cluster.command(host, words).env("IMPI_AUTH_KEY", "5678");
    let server = server.start();
    let address = server.wait_for(Output::Stdout, "\n");
    (server, address.trim_end().to_owned())
}

/// `wireup run` on a host as client `number`, with these hosts.
fn client(cluster: &Cluster, host: usize, (server, number): (&str, u32), hosts: &str) -> Run {
    let option = format!("{server},client={number}");
    let run = cluster.run(
        host,
        ["--oversubscribe", "--hosts", hosts, "--impi", &option],
    );
    run.env("IMPI_AUTH_KEY", "5678")
}

/// Two ranks of `impi_world`, built with an MPI.
fn world(cluster: &Cluster, mpi: &Mpi, run: Run) -> Run {
    let library = cluster.wireup().with_file_name("libwireup_impi.so");
    let run = run.more(["-n", "2"]).more([mpi.program("impi_world")]);
    let run = run.env("WIREUP_IMPI_LIBRARY", library);
    let set = |run: Run, (name, value): &(String, String)| run.env(name, value);
    mpi.env.iter().fold(run, set)
}

#[test]
fn mpich_and_open_mpi_on_three_hosts_form_one_world() {
    let (Some(mpich), Some(open)) = (mpi("mpich5"), mpi("openmpi5")) else {
        return;
    };
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let (server, address) = server(&cluster, 0);
    let two = client(&cluster, 0, (&address, 0), "node01:1,node02:1");
    let two = world(&cluster, &mpich, two).start();
    // Its launcher is not where its ranks are.
    let third = client(&cluster, 1, (&address, 1), "node03:2");
    let third = world(&cluster, &open, third).start();
    for (run, expected) in [
        (two, [[0, 4, 1, 10, 0, 0], [1, 4, 1, 10, 0, 1]]),
        (third, [[2, 4, 5, 10, 1, 2], [3, 4, 5, 10, 1, 2]]),
    ] {
        let lines = run.finish().expect(0).sorted_lines();
        let keys = ["rank", "size", "inside", "sum", "color", "host"];
        let fields = lines.iter().map(|line| keys.map(|key| number(line, key)));
        assert_eq!(fields.collect::<Vec<_>>(), expected, "{lines:?}");
    }
    server.finish().expect(0);
}

#[test]
fn unchanged_program_runs_on_three_hosts() {
    let (Some(mpich), Some(open)) = (mpi("mpich5"), mpi("openmpi5")) else {
        return;
    };
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let (server, address) = server(&cluster, 0);
    let start = |number: u32, hosts: &str, mpi: &Mpi| {
        let run = client(&cluster, 0, (&address, number), hosts);
        let run = run.more(["-n", "2"]).more([mpi.program("impi_unchanged")]);
        let set = |run: Run, (name, value): &(String, String)| run.env(name, value);
        mpi.env.iter().fold(run, set).start()
    };
    let runs = [
        start(0, "node01:1,node02:1", &mpich),
        start(1, "node03:2", &open),
    ];
    for run in runs {
        let lines = run.finish().expect(0).sorted_lines();
        let sizes = lines.iter().map(|line| number(line, "size"));
        assert_eq!(sizes.collect::<Vec<_>>(), [4, 4], "{lines:?}");
    }
    server.finish().expect(0);
}

/// Two ranks of each of two launches, on node01 and node02 and on node03, which have met. The first rank waits for a
/// file that all hosts see; the others wait for it.
fn held(cluster: &Cluster, mpi: &Mpi, address: &str) -> [Running; 2] {
    let file = cluster.dir().join("go");
    let start = |number, hosts: &str| {
        let host = client(cluster, 0, (address, number), hosts);
        let run = world(cluster, mpi, host).env("IMPI_WORLD_AWAIT", &file);
        run.start()
    };
    let runs = [start(0, "node01:1,node02:1"), start(1, "node03:2")];
    for run in &runs {
        run.wait_for_many(Output::Stdout, "impi_world open", 2);
    }
    runs
}

/// The launch ends since its ranks' calls fail.
fn expect_broken(run: Running) {
    let outcome = run.finish().expect(1);
    let err = outcome.err();
    assert!(err.contains("the job has failed: "), "{err}");
    assert!(
        err.contains("wireup impi: host 0 of this launch: "),
        "{err}"
    );
}

#[test]
fn lost_host_ends_its_launch_and_other_impi_clients() {
    let Some(mpi) = mpi("mpich5") else { return };
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let (server, address) = server(&cluster, 0);
    let [two, third] = held(&cluster, &mpi, &address);
    cluster.lab().crash(cluster.host(1)).unwrap();
    let outcome = two.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    let err = outcome.err();
    let cause = err.lines().find(|line| line.starts_with("wireup: "));
    assert!(cause.is_some_and(|line| line.contains("node02")), "{err}");
    expect_broken(third);
    server.finish().expect(1);
}

#[test]
fn host_lost_while_launch_awaits_other_clients_ends_launch() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let (server, address) = server(&cluster, 0);
    let launch = client(&cluster, 0, (&address, 0), "node01:1,node02:1");
    let launch = launch.more(["-n", "2", "true"]).start();
    // The hosts have sent the addresses at which they listen.
    eventually("the agent of the client", || {
        let mut all = launch.processes().into_iter();
        all.find(|process| process.to_string().contains("wireup-impi agent "))
    });
    cluster.lab().crash(cluster.host(1)).unwrap();
    let outcome = launch.finish().expect(125);
    outcome.expect_one_line(&["the IMPI hosts of the launch: ", "node02"]);
    server.signal(Signal::KILL);
    server.finish();
}

#[test]
fn killed_launcher_ends_other_impi_launch_without_leftovers() {
    let Some(mpi) = mpi("mpich5") else { return };
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let (server, address) = server(&cluster, 0);
    let [two, third] = held(&cluster, &mpi, &address);
    two.signal(Signal::KILL);
    two.finish();
    expect_broken(third);
    server.finish().expect(1);
}

#[test]
fn killed_impi_server_is_only_warning_after_all_joined() {
    let Some(mpi) = mpi("mpich5") else { return };
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let (server, address) = server(&cluster, 0);
    let runs = held(&cluster, &mpi, &address);
    server.signal(Signal::KILL);
    server.finish();
    std::fs::write(cluster.dir().join("go"), "").unwrap();
    for run in runs {
        let outcome = run.finish().expect(0);
        let line = format!("wireup impi: warning: server {address}: it ended before the job");
        assert!(outcome.err().contains(&line), "{outcome:?}");
    }
}

/// Words that make two processes of the check program a client.
fn played(cluster: &Cluster, run: Run) -> Run {
    let wireup = cluster.wireup().to_str().unwrap();
    run.more(["-n", "2", wireup, "impi", "play"])
}

#[test]
fn impi_proxy_relays_between_clients_on_several_hosts() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let (server, address) = server(&cluster, 0);
    let wireup = cluster.wireup().to_str().unwrap();
    let record = cluster.dir().join("job.impi");
    let record = record.to_str().unwrap();
    // On a host of its own: the address of another host is not one at which it can listen.
    let own = cluster.host(2).address().to_string();
    let words = [
        "impi",
        "proxy",
        &address,
        "--address",
        &own,
        "--record",
        record,
    ];
    let words = std::iter::once(wireup).chain(words);
    let proxy = cluster.command(2, words).start();
    let front = proxy.wait_for(Output::Stdout, "\n");
    let front = front.trim_end();
    let clients = [(0, 0, "node01:1,node02:1"), (1, 1, "node02:1,node03:1")];
    let clients = clients.map(|(host, number, hosts)| {
        played(&cluster, client(&cluster, host, (front, number), hosts)).start()
    });
    for client in clients {
        client.finish().expect(0);
    }
    server.finish().expect(0);
    proxy.finish().expect(0);
    let words = [wireup, "impi", "decode", "--program", record];
    let out = cluster.command(2, words).run().expect(0).out();
    for broken in ["violation", "finding"] {
        assert!(!out.contains(broken), "{out}");
    }
    // Each host connects to those before it, of its own client too.
    for (host, others) in [(1, 1), (2, 2), (3, 3)] {
        let line = format!("[2.3.8] the host that connects is host {host}\n");
        assert_eq!(out.matches(&line).count(), others, "{line}: {out}");
    }
    // A process of each client on another host than its first, and the other way round.
    for message in ["1 -> 3", "3 -> 1"] {
        let words = format!("[3.7.1] DATA {message}: 4 of 4 bytes, tag 11");
        assert!(out.contains(&words), "{words}: {out}");
    }
}

#[test]
fn impi_kit_tests_client_on_several_hosts() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let wireup = cluster.wireup().to_str().unwrap();
    let own = cluster.host(0).address().to_string();
    let front = ["impi", "check-client", "--address", &own, "--"];
    let front = std::iter::once(wireup).chain(front);
    let run = ["run", "--oversubscribe", "--hosts", "node02:1,node03:1"];
    let run = std::iter::once(wireup).chain(run);
    let rest = [
        "--impi",
        "{server},client={client}",
        "-n",
        "2",
        wireup,
        "impi",
        "play",
    ];
    let words: Vec<&str> = front.chain(run).chain(rest).collect();
    let outcome = cluster.command(0, words).run().expect(0);
    let out = outcome.out();
    assert!(!out.contains("not ok"), "{out}");
    for rule in ["RankFirst [2.3.8]", "LongSum [3.7.2]", "WorldContext [3.3]"] {
        let line = out.lines().find(|line| line.contains(rule)).unwrap();
        assert!(line.starts_with("ok") && !line.contains("SKIP"), "{line}");
    }
}

#[test]
fn missing_impi_program_on_host_is_named_with_path_and_remedy() {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let (server, address) = server(&cluster, 0);
    let on_launchers_host = |script: &str| {
        let installed = cluster.wireup().parent().unwrap().to_str().unwrap();
        let outcome = cluster.command(0, ["sh", "-c", script, installed]).run();
        outcome.expect(0);
    };
    // Where wireup is installed on the launcher's host, and on no other.
    on_launchers_host("mkdir /tmp/wireup && mount -n --bind $0 /tmp/wireup");
    let launch = |number: &str, stage: &[&str]| {
        let option = format!("{address},client={number}");
        let wireup = "/tmp/wireup/wireup";
        let hosts = ["--hosts", "node01:1,node02:1", "--impi", &option];
        let words = [wireup, "run", "--oversubscribe"].into_iter().chain(hosts);
        let words = words.chain(stage.iter().copied());
        let run = played(&cluster, cluster.command(0, words));
        run.env("IMPI_AUTH_KEY", "5678").start()
    };
    let refused = launch("0", &[]).finish().expect(125);
    refused.expect_one_line(&[
        "on node02: ",
        "/tmp/wireup/wireup-impi does not exist; copy it to the host, ",
        "(--stage)",
    ]);
    // The remedy is one.
    let staged = ["0", "1"].map(|number| launch(number, &["--stage"]));
    for run in staged {
        run.finish().expect(0);
    }
    on_launchers_host("umount -n /tmp/wireup && rmdir /tmp/wireup");
    server.finish().expect(0);
}
