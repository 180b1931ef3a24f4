//! Ranks that a person starts with podman, one container for each, of a job that `wireup serve` serves.

use std::path::Path;
use std::time::Duration;

use crate::common::{eventually, mpi};
use crate::images::Images;
use crate::oci_hook::podman;

const DEADLINE: Duration = Duration::from_secs(300);

fn are_a_job(name: &str, pmi: &str) {
    let Some(mpi) = mpi(name) else { return };
    let Some(images) = Images::new(&[mpi.program("allreduce")]) else {
        return;
    };
    let cluster = &images.cluster;
    let env = cluster.dir().join("env");
    let words = [cluster.wireup(), Path::new("serve")];
    let serve = cluster.command(0, words).more(["-n", "2", "--env-dir"]);
    let serve = serve.more([&env]);
    let mut serve = serve.more(["--no-config", "--oversubscribe", "--pmi", pmi]);
    if let Some(libpmix) = &mpi.libpmix {
        serve = serve.more([Path::new("--libpmix"), libpmix.as_path()]);
    }
    let serve = serve.deadline(DEADLINE).start();
    let file = |rank: u32| env.join(format!("rank-{rank}.env"));
    eventually("the variables are there", || {
        let all = (0..2).all(|rank| file(rank).exists());
        all.then_some(())
    });
    // What the ranks of a host have in common, and the variables of one. The hook does not show the directory of root's PMIx
    // server to a container that no rank has started.
    let shared = match pmi {
        "pmix" => "-v /tmp:/tmp",
        _ => "--annotation org.wireup.ranks=yes",
    };
    let options = format!(
        "--pid host --network host --ipc host {shared} --env-file {}/rank-$CONTAINER.env",
        env.display()
    );
    let podman = podman(&images, &options, &[]);
    let container = |rank: u32| {
        let run = cluster.command(0, [podman.as_path(), Path::new("/opt/app/allreduce")]);
        let variables = mpi.env.iter();
        let run = variables.fold(run, |run, (name, value)| run.env(name, value));
        let run = run.env("CONTAINER", rank.to_string());
        run.deadline(DEADLINE).start()
    };
    let containers = [0, 1].map(container);
    for (rank, container) in containers.into_iter().enumerate() {
        let outcome = container.finish().expect(0);
        let line = format!("allreduce rank={rank} size=2 sum=3\n");
        assert_eq!(outcome.out(), line, "{outcome:?}");
    }
    serve.finish().expect(0);
}

#[test]
fn mpich_containers_form_job() {
    are_a_job("mpich5", "pmi1");
}

#[test]
fn intel_mpi_containers_form_job() {
    are_a_job("impi", "pmi1");
}

#[test]
fn open_mpi_containers_form_job() {
    are_a_job("openmpi5", "pmix");
}
