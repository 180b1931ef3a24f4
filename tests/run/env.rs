//! The variables that wireup sets for ranks, and what users may do about them.

use std::collections::BTreeMap;

use crate::common::{Outcome, Run, mpi};

/// What each rank printed with `env`, by rank.
fn by_rank(outcome: &Outcome) -> BTreeMap<u32, BTreeMap<String, String>> {
    let mut ranks: BTreeMap<u32, BTreeMap<String, String>> = BTreeMap::new();
    for line in outcome.out().lines() {
        let (rank, variable) = line.strip_prefix('[').unwrap().split_once("] ").unwrap();
        let (name, value) = variable.split_once('=').unwrap();
        let known = ranks.entry(rank.parse().unwrap()).or_default();
        let before = known.insert(name.to_owned(), value.to_owned());
        assert_eq!(before, None, "{name} is there twice for rank {rank}");
    }
    ranks
}

#[test]
fn ranks_know_their_place_under_all_the_names_that_scripts_look_for() {
    let args = ["-l", "--virtual-nodes", "2", "-n", "3", "env", ":"];
    let args = args.iter().chain(&["-n", "2", "env"]);
    let run = Run::new(["--oversubscribe"].iter().chain(args)).env("OMPI_COMM_WORLD_RANK", "9");
    let outcome = run.run().expect(0);
    let ranks = by_rank(&outcome);
    assert_eq!(ranks.len(), 5);
    // Rank, node, place on the node, ranks there, program.
    let places = [
        (0, 0, 0, 3, 0),
        (1, 0, 1, 3, 0),
        (2, 0, 2, 3, 0),
        (3, 1, 0, 2, 1),
        (4, 1, 1, 2, 1),
    ];
    for (rank, node, local, local_size, app) in places {
        let env = &ranks[&rank];
        let is = |names: &[&str], value: &dyn ToString| {
            for name in names {
                let found = env.get(*name).map(String::as_str);
                assert_eq!(found, Some(&*value.to_string()), "{name} of rank {rank}");
            }
        };
        is(&["WIREUP_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"], &rank);
        is(
            &[
                "WIREUP_LOCAL_RANK",
                "MPI_LOCALRANKID",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_NODE_RANK",
            ],
            &local,
        );
        is(
            &[
                "WIREUP_LOCAL_SIZE",
                "MPI_LOCALNRANKS",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ],
            &local_size,
        );
        is(
            &[
                "WIREUP_SIZE",
                "WIREUP_NPROCS",
                "OMPI_COMM_WORLD_SIZE",
                "PMI_SIZE",
            ],
            &5,
        );
        is(&["WIREUP_NODE", "WIREUP_NODE_RANK"], &node);
        is(&["WIREUP_NNODES", "OMPI_NUM_APP_CTX"], &2);
        is(&["WIREUP_APPNUM"], &app);
        is(&["OMPI_APP_CTX_NUM_PROCS"], &"3 2");
        is(&["OMPI_FIRST_RANKS"], &"0 3");
        let nodes: Vec<&str> = env["WIREUP_NODELIST"].split(',').collect();
        assert_eq!(nodes.len(), 2, "{nodes:?}");
        is(&["WIREUP_HOST"], &nodes[node]);
        is(&["PMI_JOBID"], &env["WIREUP_JOB_ID"]);
    }
}

#[test]
fn what_the_user_sets_counts_except_for_what_makes_the_job() {
    let chosen = [
        "OMPI_COMM_WORLD_RANK=user",
        "OMPI_COMM_WORLD_SIZE=user",
        "MPI_LOCALNRANKS=user",
        "MPIR_CVAR_ENABLE_HEAVY_YIELD=user",
    ];
    let ours = [
        "WIREUP_RANK=user",
        "WIREUP_APPNUM=user",
        "WIREUP_JOB_ID=user",
        "PMI_RANK=user",
        "PMI_FD=user",
    ];
    let options = chosen.iter().chain(&ours).flat_map(|pair| ["-x", pair]);
    let args = ["-l", "-n", "2"].into_iter().chain(options);
    // The variables of one program are not those of the next.
    let args = args.chain(["env", ":", "-n", "2", "env"]);
    let run = Run::new(["--oversubscribe"].into_iter().chain(args));
    let ranks = by_rank(&run.run().expect_quiet_success());
    let split = |pair: &&str| pair.split_once('=').unwrap().0.to_owned();
    for (rank, env) in &ranks {
        for name in chosen.iter().map(split) {
            assert_eq!(env[&name] == "user", *rank < 2, "{name} of rank {rank}");
        }
        for name in ours.iter().map(split) {
            assert_ne!(env[&name], "user", "{name} of rank {rank}");
        }
    }
}

#[test]
fn other_launchers_run_inside_a_rank() {
    for name in ["mpich4", "mpich5", "openmpi4", "openmpi5", "impi"] {
        let Some(mpi) = mpi(name) else { continue };
        let outcome = mpi.run_launcher(2, "allreduce").run();
        let lines = outcome.expect(0).sorted_lines();
        let ours: Vec<&String> = lines
            .iter()
            .filter(|line| line.starts_with("allreduce "))
            .collect();
        assert_eq!(ours.len(), 2, "{name}: {lines:?}");
        for (rank, line) in ours.iter().enumerate() {
            let start = format!("allreduce rank={rank} size=2 ");
            assert!(line.starts_with(&start), "{name}: {line}");
        }
    }
}
