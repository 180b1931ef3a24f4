//! The variables that wireup sets for ranks, and what users may do about them.

use std::collections::BTreeMap;

use crate::common::{Outcome, Run, mpi};

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

/// Returns the output of `env` in each rank, by rank.
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
fn ranks_know_their_place_under_names_of_all_launchers() {
    let args = ["-l", "--virtual-nodes", "2", "-n", "3", "env", ":"];
    let args = args.iter().chain(&["-n", "2", "env"]);
    let run = Run::new(["--oversubscribe"].iter().chain(args)).env("OMPI_COMM_WORLD_RANK", "9");
    let outcome = run.run().expect(0);
    let ranks = by_rank(&outcome);
    assert_eq!(ranks.len(), 5);
    let machine = rustix::system::uname();
    let machine = machine.nodename().to_string_lossy();
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
        is(&["WIREUP_MACHINE"], &machine);
        is(&["PMI_JOBID"], &env["WIREUP_JOB_ID"]);
        is(&["PMI_SPAWNED"], &0);
    }
}

#[test]
fn user_variables_prevail_except_those_that_define_job() {
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
fn other_launchers_run_inside_rank() {
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

/// The names and values in the environment of a rank run with these options, wireup's own left out.
fn chosen(options: &[&str]) -> Vec<String> {
    let words = options.iter().copied().chain(["/usr/bin/env"]);
    let run = Run::new(["-n", "1"].into_iter().chain(words)).under([
        "env",
        "-i",
        "A=1",
        "AB=2",
        "SLURM_PROCID=3",
        "PATH=/usr/bin",
    ]);
    let ours = ["WIREUP_", "PMI_", "PMIX_", "OMPI_", "MPI_", "JSM_", "MPIR_"];
    let mut lines = run.run().expect_quiet_success().sorted_lines();
    lines.retain(|line| !ours.iter().any(|start| line.starts_with(start)));
    lines
}

#[test]
fn inherited_variables_are_selected_by_env_option() {
    let outer = ["A=1", "AB=2", "PATH=/usr/bin"];
    assert_eq!(chosen(&[]), outer);
    assert_eq!(chosen(&["--env", "all"]), outer);
    assert_eq!(chosen(&["--env", "none"]), [""; 0]);
    assert_eq!(chosen(&["--env", "none", "-x", "A"]), ["A=1"]);
    let list = chosen(&["--env", "A*,SLURM_PROCID"]);
    assert_eq!(list, ["A=1", "AB=2", "SLURM_PROCID=3"]);
    assert_eq!(chosen(&["--env=PATH,"]), ["PATH=/usr/bin"]);
    // With one name, or a value, it is -x.
    let one = chosen(&["--env", "SLURM_*", "--env=N=4,5"]);
    assert_eq!(
        one,
        ["A=1", "AB=2", "N=4,5", "PATH=/usr/bin", "SLURM_PROCID=3"]
    );
}

#[test]
fn program_is_found_for_ranks_without_path() {
    let args = [
        "--env",
        "none",
        "-n",
        "1",
        "sh",
        "-c",
        "echo ${PATH-unset}; env",
    ];
    let outcome = Run::new(args).run().expect_quiet_success();
    // The shell has a path of its own; it does not pass it on.
    assert!(!outcome.out().contains("\nPATH="), "{outcome:?}");
    assert!(outcome.out().contains("\nWIREUP_RANK=0\n"), "{outcome:?}");
}

#[test]
fn selected_variable_that_is_unset_is_warning() {
    let run = Run::new(["--env", "NOT_SET_ANYWHERE,HOME", "-n", "1", "true"]);
    let outcome = run.run().expect(0);
    outcome.expect_one_line(&["warning: --env NOT_SET_ANYWHERE: not set here"]);
    let outcome = Run::new(["--env", ",", "-n", "1", "true"])
        .run()
        .expect(125);
    assert!(
        outcome.err().contains("give names separated by commas"),
        "{outcome:?}"
    );
}

#[test]
fn env_files_yield_to_options_and_later_files_prevail() {
    let script = "echo \"$A|$B|$C|$D|$E|$OUTER\"";
    let options = ["-x", "C=option", "--env-file", "one", "--env-file", "two"];
    let args = options.into_iter().chain(["-n", "1", "sh", "-c", script]);
    let run = Run::new(args)
        .env("A", "outer")
        .env("D", "outer")
        .env("OUTER", "outer");
    let one = "# comment\n\nA=file  # not a comment\nB=one\nC=one\nexport E=\"quoted\"\r\n";
    std::fs::write(run.dir().join("one"), one).unwrap();
    std::fs::write(run.dir().join("two"), "B=two\nD\nOUTER=").unwrap();
    let outcome = run.run().expect_quiet_success();
    let expected = "file  # not a comment|two|option|outer|\"quoted\"|\n";
    assert_eq!(outcome.out(), expected);
}

#[test]
fn env_file_belongs_to_its_app_and_may_be_pipe() {
    let script = "echo $WIREUP_RANK ${A-unset}";
    let run = Run::command([
        "bash",
        "-c",
        &format!(
            "{WIREUP} run --oversubscribe -n 1 --env-file <(echo A=1) sh -c '{script}' : \
             -n 1 sh -c '{script}'"
        ),
    ]);
    let lines = run.run().expect_quiet_success().sorted_lines();
    assert_eq!(lines, ["0 1", "1 unset"]);
}

#[test]
fn env_file_errors_name_line() {
    let with = |text: &str, words: &[&str]| {
        let run = Run::new(["--env-file", "file", "-n", "1", "echo", "ran"]);
        std::fs::write(run.dir().join("file"), text).unwrap();
        let outcome = run.run().expect(125);
        assert_eq!(outcome.out(), "");
        outcome.expect_one_line(words);
    };
    with(
        "A=1\nB = 2\n",
        &["--env-file file: line 2:", "\"B \"", "blank"],
    );
    with(
        "\n\n=2\n",
        &["--env-file file: line 3:", "no variable name"],
    );
    let outcome = Run::new(["--env-file", "absent", "-n", "1", "true"]).run();
    outcome
        .expect(125)
        .expect_one_line(&["--env-file absent: No such file"]);
    let outcome = Run::new(["--env-file", "/dev/zero", "-n", "1", "true"]).run();
    outcome
        .expect(125)
        .expect_one_line(&["--env-file /dev/zero: the file is larger"]);
    let run = Run::new(["--env-file", "file", "-n", "1", "true"]);
    std::fs::write(run.dir().join("file"), "NOT_SET_ANYWHERE").unwrap();
    let outcome = run.run().expect(0);
    outcome.expect_one_line(&["warning: --env-file NOT_SET_ANYWHERE: not set here"]);
}

#[test]
fn hosts_file_of_wireup_env_avoids_taken_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = || {
        let run = Run::command([WIREUP, "env", "--no-config", "--hosts", "a:2,b"]);
        let outcome = run.env("XDG_RUNTIME_DIR", dir.path()).run().expect(0);
        let text = outcome.out();
        let mut lines = text.lines();
        let name = "export PRTE_MCA_prte_default_hostfile=";
        let path = lines.find_map(|line| line.strip_prefix(name)).unwrap();
        std::path::PathBuf::from(path.trim_matches('\''))
    };
    let path = file();
    assert_eq!(file(), path, "one text has one file");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let other = file();
    assert_ne!(other, path);
    assert_eq!(
        std::fs::read_to_string(other).unwrap(),
        "a slots=2\nb slots=1\n"
    );
}
