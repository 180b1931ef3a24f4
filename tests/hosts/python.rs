//! The Python package on hosts: those of a user's agents, and those of an allocation.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::cluster::{ALICE, Cluster};
use crate::common::{Run, mpi, mpi4py, repository};
use crate::slurm_cluster::Slurm;

/// Interpreter of the system, which has no packages.
const PYTHON: &str = "/usr/bin/python3";

/// Prints the hosts of a job's ranks, and those of a job that is added, whose options are the words of the command line.
const LAUNCHES: &str = r#"
import sys, wireup
hosts, more = (word.split(",") if word else None for word in sys.argv[1:])
result = wireup.run(["hostname"], hosts=hosts)
print(*(rank.stdout.strip() for rank in result.ranks), *(rank.host for rank in result.ranks))
with wireup.launch(["cat"], n=1, stdin=0, hosts=hosts) as launch:
    job = launch.spawn(["hostname"], hosts=more)
    print(job.wait())
    launch.close_stdin()
    launch.wait()
print(*job.stdout.values(), end="")
"#;

/// Prints the hosts of the ranks of an executor.
const EXECUTOR: &str = r#"
import os, wireup

def place(comm):
    return comm.rank, os.uname().nodename

if __name__ == "__main__":
    with wireup.MPIExecutor(n=2, hosts=["node01:1", "node02:1"]) as executor:
        print(executor.submit(place).result())
"#;

fn with_package(run: Run, wireup: &Path) -> Run {
    run.env("PYTHONPATH", repository().join("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("WIREUP_LAUNCHER", wireup)
}

#[test]
fn python_launches_on_hosts_of_user_agents() {
    let Some(cluster) = Cluster::builder(2).agents_of(ALICE).start() else {
        return;
    };
    let words = [PYTHON, "-c", LAUNCHES, "node01:1,node02:1", "node02"];
    let user = ALICE.to_string();
    let run = with_package(cluster.command(0, words), cluster.wireup());
    let run = run.under(["setpriv", "--reuid", &user, "--regid", &user]);
    let outcome = run.under(["--clear-groups", "--"]).run().expect_success();
    let expected = "node01 node02 node01 node02\n{0: 0}\nnode02\n";
    assert_eq!(outcome.out(), expected, "{outcome:?}");
}

#[test]
fn python_executor_has_ranks_on_hosts() {
    let Some(with) = mpi("mpich5").as_ref().and_then(mpi4py) else {
        return;
    };
    let Some(cluster) = Cluster::new(2) else {
        return;
    };
    let script = cluster.dir().join("executor.py");
    fs::write(&script, EXECUTOR).unwrap();
    let words = [with.python.as_os_str(), script.as_os_str()];
    let run = with_package(cluster.command(0, words), cluster.wireup());
    let variables = with.env.iter();
    let run = variables.fold(run, |run, (name, value)| run.env(name, value));
    let outcome = run.run().expect_success();
    let expected = "[(0, 'node01'), (1, 'node02')]\n";
    assert_eq!(outcome.out(), expected, "{outcome:?}");
}

#[test]
fn python_launches_on_hosts_of_slurm_allocation() {
    let Some(slurm) = Slurm::new(2) else { return };
    let salloc = ["salloc", "--quiet", "-N", "2", "--ntasks-per-node=1"];
    let words = salloc
        .into_iter()
        .chain([PYTHON, "-c", LAUNCHES, "", "node02"]);
    let run = with_package(slurm.command(words.map(OsStr::new)), slurm.wireup());
    let outcome = run.run().expect_success();
    let expected = "node01 node02 node01 node02\n{0: 0}\nnode02\n";
    assert_eq!(outcome.out(), expected, "{outcome:?}");
}
