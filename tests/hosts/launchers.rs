//! Launchers of MPIs that reach hosts through `wireup rsh`, as users' scripts call them. There is no sshd on the hosts.

use crate::cluster::{ALICE, BOB, Cluster};
use crate::common::{Mpi, Outcome, Output, Run, eventually, field, number};
use crate::users::of;

for_each_mpi!(openmpi4 openmpi5 mpich4 mpich5 impi: {
    unchanged_script_starts_over_agents => |mpi| scripts(&mpi),
    failure_on_host_fails_launcher => |mpi| failures(&mpi),
});

/// The program that all of them run. Debian's MPICH hangs between hosts after large messages, under ssh too.
fn program(mpi: &Mpi) -> &'static str {
    match &*mpi.name {
        "mpich4" => "hello",
        _ => "ring",
    }
}

/// A command on the first host, in the surroundings that the launcher needs.
fn command(cluster: &Cluster, mpi: &Mpi, script: &str) -> Run {
    let wireup = cluster.wireup().display();
    let script = script
        .replace("WIREUP", &wireup.to_string())
        .replace("MPIRUN", &mpi.launcher.display().to_string())
        .replace("APP", &mpi.program(program(mpi)).display().to_string());
    let run = cluster.command(0, ["sh", "-ec", &script]);
    // Open MPI does not run as root by default.
    let mut run = run
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    for (name, value) in &mpi.env {
        run = run.env(name, value);
    }
    run
}

/// All four hosts have a rank each, and messages have crossed the network.
fn expect_on_four_hosts(cluster: &Cluster, mpi: &Mpi, outcome: Outcome, before: u64) {
    let outcome = outcome.expect_success();
    let lines = outcome.by_rank(program(mpi), 4);
    let crossed = cluster.received(1) - before;
    match &*mpi.name {
        "mpich4" => {
            let hosts: Vec<_> = lines.iter().map(|line| field(line, "host")).collect();
            let names = ["node01", "node02", "node03", "node04"].map(Some);
            assert_eq!(hosts, names, "{lines:?}");
        }
        _ => {
            assert!(lines.iter().all(|line| number(line, "bytes") == 4 << 20));
            assert!(crossed >= 4 << 20, "{crossed} bytes");
        }
    }
}

fn scripts(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    let hosts = "--hosts node01:1,node02:1,node03:1,node04:1";
    // The first leaves a file with the hosts.
    let runtime = "mkdir -p run; export XDG_RUNTIME_DIR=$PWD/run";
    for script in [
        format!("{runtime}; eval \"$(WIREUP env {hosts})\"; MPIRUN -np 4 APP"),
        format!("exec WIREUP run {hosts} MPIRUN -np 4 APP"),
    ] {
        let before = cluster.received(1);
        let outcome = command(&cluster, mpi, &script).run();
        expect_on_four_hosts(&cluster, mpi, outcome, before);
    }
    // An unreachable host ends the launcher, with an exit code that shows it. Hydra 4 waits for the host without end,
    // with ssh too, if it has no time limit.
    let limit = match &*mpi.name {
        "mpich4" => "export MPIEXEC_TIMEOUT=3",
        _ => ":",
    };
    let script = format!(
        "{limit}; {runtime}; eval \"$(WIREUP env --hosts node01:1,nowhere:1)\"; MPIRUN -np 2 APP"
    );
    // Hydra 5 may notice the exit of a process that it started before it has read its output.
    let tries = if mpi.name == "mpich5" { 5 } else { 1 };
    let named = (0..tries).any(|_| {
        cluster.excuse(0);
        let outcome = command(&cluster, mpi, &script).run();
        assert_ne!(outcome.code, 0, "{outcome:?}");
        remove_files_of_hydra(&cluster);
        outcome.err().contains("nowhere")
    });
    assert!(named, "{}: the host is not named", mpi.name);
}

/// Hydra may end before its proxy on the same host, whose file stays then, as does that of the rank it started there. Nothing
/// of wireup is above these processes.
fn remove_files_of_hydra(cluster: &Cluster) {
    let host = cluster.host(0);
    eventually("Hydra's proxy has ended", || {
        let all = host.processes();
        let proxy = all
            .iter()
            .any(|one| one.name.starts_with("hydra_pmi_proxy"));
        (!proxy).then_some(())
    });
    for file in host.files() {
        if file
            .to_string_lossy()
            .starts_with("/tmp/hydra_hwloc_xmlfile_")
        {
            std::fs::remove_file(host.path(&file)).unwrap();
        }
    }
    cluster.expect_clean(0);
}

/// A rank that fails, and a host whose agent ends while ranks run there.
fn failures(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let hosts = "--hosts node01:1,node02:1";
    // The rank of the launcher's host last: Hydra's proxy on the other tries to connect for long if the launcher has ended before.
    let fails = format!(
        "if [ \"${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}}\" = 1 ]; then : >{0}; else until [ -e {0} ]; do sleep 0.1; done; sleep 1; fi; exit 3",
        cluster.dir().join("rank1").display()
    );
    let script = format!("exec WIREUP env {hosts} MPIRUN -np 2 sh -c '{fails}'");
    let outcome = command(&cluster, mpi, &script).run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    // Debian's Hydra waits for a proxy without end if it has no time limit.
    // Open MPI 4's daemon leaves its directory if it is killed while it ends, as on a busy host whose agent is lost.
    let setting = match &*mpi.name {
        "mpich4" => "export MPIEXEC_TIMEOUT=10".to_owned(),
        "openmpi4" => format!(
            "export OMPI_MCA_orte_tmpdir_base={}",
            cluster.dir().display()
        ),
        _ => ":".to_owned(),
    };
    let ranks = "sh -c 'echo up; exec sleep 1000'";
    // Open MPI 5 leaves its own host's ranks behind when it loses another; wireup does not, if it has started it.
    let by = match &*mpi.name {
        "openmpi5" => "run",
        _ => "env",
    };
    let script = format!("{setting}; exec WIREUP {by} {hosts} MPIRUN -np 2 {ranks}");
    let running = command(&cluster, mpi, &script).start();
    running.wait_for_many(Output::Stdout, "up", 2);
    cluster.kill_agent(1);
    let outcome = running.finish();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    cluster.start_agent(1);
}

/// Two users' launches at the same time, of one launcher each.
#[test]
fn two_users_start_over_agents_at_once() {
    let (Some(hydra), Some(open)) = (crate::common::mpi("mpich5"), crate::common::mpi("openmpi4"))
    else {
        return;
    };
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    // Ranks of Hydra other than the first do not see the end of standard input.
    let go = cluster.dir().join("go");
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
    let ranks = format!("sh -c 'echo up $(hostname) $(id -u); {wait}'");
    let script = format!("exec WIREUP env --hosts node01:1,node02:1 MPIRUN -np 2 {ranks}");
    let users = [(ALICE, hydra), (BOB, open)];
    let runs = users.map(|(user, mpi)| {
        let run = of(user, command(&cluster, &mpi, &script)).env("HOME", "/tmp");
        (user, run.start())
    });
    for (_, running) in &runs {
        running.wait_for_many(Output::Stdout, "up", 2);
    }
    std::fs::write(go, "").unwrap();
    for (user, running) in runs {
        let outcome = running.finish().expect(0);
        let expected = ["node01", "node02"].map(|host| format!("up {host} {user}"));
        assert_eq!(outcome.sorted_lines(), expected, "{outcome:?}");
    }
}

/// Each host starts the daemon of the next one.
fn tree(mpi: &Mpi) {
    let Some(cluster) = Cluster::new(4) else {
        return;
    };
    let radix = "export OMPI_MCA_routed_radix=1 PRTE_MCA_rml_base_radix=1";
    let hosts = "--hosts node01:1,node02:1,node03:1,node04:1";
    let script = format!("{radix}; exec WIREUP env {hosts} MPIRUN -np 4 APP");
    let before = cluster.received(1);
    let outcome = command(&cluster, mpi, &script).run();
    expect_on_four_hosts(&cluster, mpi, outcome, before);
    for (host, by) in [(1, "node01"), (2, "node02"), (3, "node03")] {
        let log = cluster.log(host);
        let begun = log.lines().filter(|line| line.contains("begins as node"));
        let from: Vec<&str> = begun.collect();
        assert!(
            matches!(from[..], [one] if one.contains(&format!("brought by {by}"))),
            "{log}"
        );
    }
}

#[test]
fn open_mpi_4_starts_its_daemons_in_tree() {
    let _ = crate::common::mpi("openmpi4").map(|mpi| tree(&mpi));
}

#[test]
fn open_mpi_5_starts_its_daemons_in_tree() {
    let _ = crate::common::mpi("openmpi5").map(|mpi| tree(&mpi));
}
