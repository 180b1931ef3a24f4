//! `--mpi` and `wireup mpis` on several hosts: each finds the MPI by itself.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::common::{field, mpi, standard_abi};

#[test]
fn standard_abi_program_runs_with_named_mpi_on_hosts() {
    let Some(dir) = standard_abi() else { return };
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    for (name, library) in [
        ("mpich5", "MPICH Version:      5.0.2"),
        ("impi", "Intel(R) MPI Library 2021.19"),
    ] {
        let Some(mpi) = mpi(name) else { return };
        let options = ["--hosts", "node01:2,node02:2", "-n", "4", "--define-mpi"];
        let run = cluster
            .run(0, options)
            .more([&mpi.definition(), "--mpi", name]);
        let outcome = run.more([dir.join("hello")]).run().expect_success();
        for (rank, line) in (0..).zip(outcome.by_rank("hello", 4)) {
            let host = format!("node{:02}", rank / 2 + 1);
            assert_eq!(field(&line, "host"), Some(&*host), "{line}");
            let found = field(&line, "library").unwrap();
            assert!(found.starts_with(library), "{outcome:?}");
        }
    }
    let run = cluster.run(0, ["--hosts", "node01,node02", "--mpi", "mpich17"]);
    let outcome = run.more([dir.join("hello")]).run().expect(125);
    let refused = outcome
        .err()
        .contains("--mpi mpich17: no such MPI on this host; ");
    assert!(refused, "{outcome:?}");
}

#[test]
fn mpis_of_hosts_are_listed() {
    let Some(mpi) = mpi("mpich5") else { return };
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let wireup = cluster.wireup().to_str().unwrap();
    let words = [wireup, "mpis", "--json", "--hosts", "node01,node02"];
    let run = cluster
        .command(0, words)
        .more(["--define-mpi", &mpi.definition()]);
    let outcome = run.run().expect_success();
    let records: Vec<Value> = serde_json::from_str(&outcome.out()).unwrap();
    for host in ["node01", "node02"] {
        let mut of_host = records.iter().filter(|it| it["on"] == host);
        let defined = of_host.any(|it| it["name"] == "mpich5" && it["version"] == "5.0.2");
        assert!(defined, "{host}: {records:?}");
    }
}
