//! Plain commands on hosts, through their agents, and launchers that reach hosts by them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::cluster::Cluster;
use crate::common::mpi;

#[test]
fn commands_run_on_hosts_as_with_ssh() {
    let Some(cluster) = Cluster::new(3) else {
        return;
    };
    let wireup = cluster.wireup().to_str().unwrap();
    let each = [wireup, "exec", "--hosts", "node02,node03", "hostname"];
    let outcome = cluster.command(0, each).run().expect(0);
    assert_eq!(outcome.sorted_lines(), ["[0] node02", "[1] node03"]);
    let shell = [
        wireup,
        "rsh",
        "-q",
        "-x",
        "node02",
        "cat; echo",
        "\"a  b\"; exit 3",
    ];
    let outcome = cluster.command(0, shell).stdin_bytes("in ").run();
    assert_eq!(
        (outcome.code, &*outcome.out()),
        (3, "in a  b\n"),
        "{outcome:?}"
    );

    let Some(mpi) = mpi("mpich5") else {
        return;
    };
    let agent = cluster.dir().join("agent");
    fs::write(&agent, format!("#!/bin/sh\nexec {wireup} rsh \"$@\"\n")).unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    let words = [
        "-launcher",
        "ssh",
        "-hosts",
        "node01,node02,node03",
        "-n",
        "3",
    ];
    let run = cluster.command(0, [&mpi.launcher]).more(["-launcher-exec"]);
    let run = run.more([&agent]).more(words).more([mpi.program("hello")]);
    let outcome = run.run().expect(0);
    outcome.by_rank("hello", 3);
}
