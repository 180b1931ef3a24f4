//! Spawned jobs with a binding of their own, asked for by MPI's info keys and PMIx's attributes.

use super::parts;
use crate::common::{field, mpi, node_name, pmix};

#[test]
fn spawned_ranks_are_bound_as_requested() {
    let cores = parts("core");
    let host = node_name();
    for name in ["openmpi5", "mpich5"] {
        let Some(mpi) = mpi(name) else { continue };
        let mpi = mpi.with_dynamic_processes();
        let shown = |infos: &[&str]| {
            let args = [&["children=2"], infos].concat();
            let options = ["--oversubscribe", "--report-bindings"];
            mpi.run(1, &options, "spawn", &args).run().expect(0).err()
        };
        // The first rank has core 0, though it is not bound: it is a process of the launch there.
        let output = shown(&["info.bind_to=core"]);
        for rank in 0..2 {
            let core = (rank + 1) % cores.len();
            let line = format!("{host}: rank {rank}: core {core} ");
            assert!(output.contains(&line), "{name}: {output}");
        }
        let output = shown(&["info.map_by=package"]);
        let cores = match cores.len() {
            1 => "core 0 ".to_owned(),
            count => format!("cores 0-{} ", count - 1),
        };
        if parts("package").len() == 1 {
            let line = format!("{host}: rank 1: {cores}");
            assert!(output.contains(&line), "{name}: {output}");
        }
    }
}

#[test]
fn unsupported_bindings_refuse_spawn() {
    for name in ["pmix4", "pmix5"] {
        let Some(client) = pmix(name) else { continue };
        for (info, needed) in [
            ("job.pmix.bindto=board", "none, hwthread, core"),
            ("job.pmix.mapby=seq", "slot, node, hwthread"),
            ("job.pmix.rankby=span", "slot, fill or node"),
        ] {
            let options = ["--oversubscribe", "--libpmix", client.path()];
            let run = client.run(1, &options, "pmix_spawn", &["with", info]);
            let outcome = run.run().expect(0);
            let lines = outcome.by_rank("pmix_spawn", 1);
            assert_ne!(field(&lines[0], "status"), Some("0"), "{outcome:?}");
            let err = outcome.err();
            let key = info.split_once('.').unwrap().1.split_once('=').unwrap().0;
            let named = format!("info key {key}: ");
            assert!(err.contains(&named) && err.contains(needed), "{err}");
        }
        let options = [
            "--oversubscribe",
            "--report-bindings",
            "--libpmix",
            client.path(),
        ];
        let args = ["with", "job.!pmix.bindto=core", "job.!pmix.cpuperproc=1"];
        let outcome = client.run(1, &options, "pmix_spawn", &args).run().expect(0);
        let line = format!("{}: rank 0: core ", node_name());
        assert!(outcome.err().contains(&line), "{outcome:?}");
    }
}
