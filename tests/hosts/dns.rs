//! Hosts that a real server of DNS knows: dnsmasq, on the launcher's host.

use crate::cluster::Cluster;
use crate::common::{Output, Running};
use crate::impi;

/// Answers for these records; other names do not exist.
fn serve(cluster: &Cluster, records: &[&str]) -> Running {
    let words = [
        "/usr/sbin/dnsmasq",
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--user=root",
        "--no-resolv",
        "--no-hosts",
        "--local=/test/",
        "--listen-address=127.0.0.1",
        "--bind-interfaces",
        "--pid-file=",
        "--log-facility=-",
    ];
    let server = cluster.command(0, words.iter().chain(records)).start();
    server.wait_for(Output::Stderr, "started");
    server
}

fn end(server: Running) {
    server.signal(rustix::process::Signal::TERM);
    server.finish().expect(0);
}

/// Three hosts as a headless service of Kubernetes has them, in another order.
const SERVICE: [&str; 6] = [
    "--host-record=node03.mpi.test,10.99.0.3",
    "--host-record=node01.mpi.test,10.99.0.1",
    "--host-record=node02.mpi.test,10.99.0.2",
    "--srv-host=_wireup._tcp.mpi.test,node03.mpi.test,7437",
    "--srv-host=_wireup._tcp.mpi.test,node01.mpi.test,7437",
    "--srv-host=_wireup._tcp.mpi.test,node02.mpi.test,7437",
];

#[test]
fn hosts_come_from_srv_records() {
    let Some(cluster) = Cluster::builder(3).with_name_servers().start() else {
        return;
    };
    let server = serve(&cluster, &SERVICE);
    let run = cluster.run(0, ["--hosts", "dns:mpi.test:2", "-n", "6"]);
    let outcome = run.more(["uname", "-n"]).run().expect_quiet_success();
    assert_eq!(
        outcome.sorted_lines(),
        ["node01", "node01", "node02", "node02", "node03", "node03"]
    );
    // The first ones, in the order of their names.
    let run = cluster.run(0, ["--hosts", "dns:mpi.test", "--nodes", "2", "--ppn", "1"]);
    let outcome = run.more(["uname", "-n"]).run().expect_quiet_success();
    assert_eq!(outcome.sorted_lines(), ["node01", "node02"]);
    end(server);
}

#[test]
fn missing_hosts_are_awaited() {
    let Some(cluster) = Cluster::builder(3).with_name_servers().start() else {
        return;
    };
    let few = serve(&cluster, &SERVICE[1..5]);
    let hosts = ["--hosts", "dns:mpi.test:1", "-n", "3"];
    let run = cluster.run(0, hosts).more(["--wait-hosts", "90"]);
    let running = run.more(["uname", "-n"]).start();
    // One of the two records has a name without an address.
    running.wait_for(
        Output::Stderr,
        "dns:mpi.test:1: 1 of 3 hosts; waiting up to",
    );
    end(few);
    let server = serve(&cluster, &SERVICE);
    let outcome = running.finish().expect(0);
    assert_eq!(outcome.sorted_lines(), ["node01", "node02", "node03"]);

    let run = cluster.run(0, ["--hosts", "dns:mpi.test", "--nodes", "4"]);
    let outcome = run.more(["--wait-hosts", "1", "true"]).run().expect(125);
    let err = outcome.err();
    let last = "--hosts dns:mpi.test: only 3 of 4 hosts found within 1 s (node[01-03]); start more";
    assert!(err.contains(last), "{err}");

    let run = cluster.run(0, ["--hosts", "dns:other.test", "-n", "1"]);
    let outcome = run.more(["--wait-hosts", "0", "true"]).run().expect(125);
    outcome.expect_one_line(&[
        "--hosts dns:other.test: no host found within 0 s: ",
        "not known",
    ]);
    end(server);
    // A server that is not there.
    let run = cluster.run(0, ["--hosts", "dns:mpi.test", "-n", "1"]);
    let outcome = run.more(["--wait-hosts", "0", "true"]).run().expect(125);
    // A line in front of it may report that no answer has come.
    let err = outcome.err();
    let last = err.lines().last().unwrap_or_default();
    let refusal = "--hosts dns:mpi.test: no host found within 0 s: ";
    assert!(
        last.contains(refusal) && last.contains("emporary failure"),
        "{err}"
    );
}

#[test]
fn detach_shows_wait_for_hosts() {
    let Some(cluster) = Cluster::builder(3).with_name_servers().start() else {
        return;
    };
    let few = serve(&cluster, &SERVICE[1..5]);
    let script = "job=$(\"$@\") && \"$1\" attach --no-stdin $job";
    let run = cluster.command(0, ["sh", "-c", script, "sh"]);
    let run = run.more([cluster.wireup()]).more(["run", "--detach"]);
    let run = run.more(["--hosts", "dns:mpi.test:1", "-n", "3", "--wait-hosts", "90"]);
    let running = run.more(["uname", "-n"]).start();
    let message = "dns:mpi.test:1: 1 of 3 hosts; waiting up to";
    running.wait_for(Output::Stderr, message);
    end(few);
    let server = serve(&cluster, &SERVICE);
    let outcome = running.finish().expect(0);
    assert_eq!(outcome.sorted_lines(), ["node01", "node02", "node03"]);
    // `wireup attach` does not show it again.
    assert_eq!(outcome.err().matches(message).count(), 1, "{outcome:?}");
    end(server);
}

#[test]
fn impi_launch_looks_hosts_up_once() {
    let Some(cluster) = Cluster::builder(2).with_name_servers().start() else {
        return;
    };
    let records = [&SERVICE[1..3], &SERVICE[4..6], &["--log-queries"]].concat();
    let names = serve(&cluster, &records);
    let (server, address) = impi::server_for(&cluster, 0, "1");
    let client = format!("{address},client=0");
    // The IMPI hosts are a launch of their own, on the same hosts.
    let run = cluster.run(0, ["--hosts", "dns:mpi.test:1", "-n", "2"]);
    let run = run.more(["--impi", &client, "uname", "-n"]);
    let outcome = run.env("IMPI_AUTH_KEY", "5678").run().expect(0);
    assert_eq!(outcome.sorted_lines(), ["node01", "node02"]);
    server.finish().expect(0);
    names.signal(rustix::process::Signal::TERM);
    let outcome = names.finish().expect(0);
    let queries = outcome
        .err()
        .matches("query[SRV] _wireup._tcp.mpi.test")
        .count();
    assert_eq!(queries, 1, "{outcome:?}");
}

#[test]
fn addresses_without_names_name_hosts() {
    let cluster = Cluster::builder(3).with_name_servers().known_by_address();
    let Some(cluster) = cluster.start() else {
        return;
    };
    let records = [
        "--host-record=mpi.test,10.99.0.2",
        "--host-record=mpi.test,10.99.0.3",
    ];
    let server = serve(&cluster, &records);
    let run = cluster.run(0, ["--hosts", "dns:mpi.test:1", "-n", "2", "uname", "-n"]);
    let outcome = run.run().expect_quiet_success();
    assert_eq!(outcome.sorted_lines(), ["node02", "node03"]);
    end(server);
}
