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
    // As ssh, it gives a shell the words with blanks between them, and that shell's code is its own.
    let line = [
        wireup,
        "rsh",
        "node02",
        "A='x  y';",
        "export",
        "A;",
        "sh -c 'echo \"$A\" [1-3] \\$1; exit 7'",
    ];
    let outcome = cluster.command(0, line).run();
    assert_eq!(
        (outcome.code, &*outcome.out()),
        (7, "x  y [1-3] $1\n"),
        "{outcome:?}"
    );
    let missing = [wireup, "rsh", "node02", "/nowhere/orted"];
    let outcome = cluster.command(0, missing).run();
    assert_eq!(outcome.code, 127, "{outcome:?}");
    let killed = [wireup, "rsh", "node02", "kill -KILL $$"];
    let outcome = cluster.command(0, killed).run();
    assert_eq!(outcome.code, 137, "{outcome:?}");

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
