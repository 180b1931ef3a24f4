//! MPI programs in Python: nothing shows before they run which MPI mpi4py will load.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::common::{Mpi, Output, Run, field, mpi, mpi4py, number, skip};
use crate::users::{Reachable, as_user};

/// Path of the program in Python.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/allreduce.py");

/// Returns the beginning of the version text of an MPI.
fn library(mpi: &Mpi) -> &'static str {
    match mpi.name.as_str() {
        "mpich4" => "MPICH Version:\t4.0",
        "openmpi4" => "Open MPI v4.1",
        "mpich5" => "MPICH Version:      5.0.2",
        "openmpi5" => "Open MPI v5.0.11",
        "impi" => "Intel(R) MPI Library 2021.19",
        other => panic!("no expectations of {other}"),
    }
}

/// Runs a command line with mpi4py on this MPI: two ranks, one world. The test is ignored without mpi4py.
#[track_caller]
fn run(mpi: &Mpi, options: &[&str], words: impl FnOnce(&Path, &Run) -> Vec<PathBuf>) {
    let Some(with) = mpi4py(mpi) else { return };
    let options = options.iter().map(Path::new);
    let run = Run::ranks(2, options);
    let words = words(&with.python, &run);
    let run = with
        .env
        .iter()
        .fold(run.more(words), |run, (name, value)| run.env(name, value));
    let outcome = run.run().expect_success();
    for line in outcome.by_rank("mpi4py", 2) {
        assert_eq!(number(&line, "sum"), 3, "{outcome:?}");
        let loaded = field(&line, "library").unwrap();
        assert!(loaded.starts_with(library(mpi)), "{outcome:?}");
    }
}

for_each_mpi!(mpich4 openmpi4 mpich5 openmpi5 impi: {
    python_program_forms_one_world_without_options
        => |mpi| run(&mpi, &[], |python, _| vec![python.into(), SOURCE.into()]),
    python_program_forms_one_world_with_all_interfaces
        => |mpi| run(&mpi, &["--pmi", "all"], |python, _| vec![python.into(), SOURCE.into()]),
    executable_python_script_forms_one_world => |mpi| {
        run(&mpi, &[], |python, run| {
            let script = run.dir().join("allreduce");
            let source = fs::read_to_string(SOURCE).unwrap();
            fs::write(&script, format!("#!{}\n{source}", python.display())).unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
            vec!["nice".into(), script]
        })
    },
});

/// Sessions of Open MPI 5 need a server of its own release, which nothing but mpi4py's settings leads
/// to: the system's is older.
#[test]
fn python_sessions_get_sidecar_of_loaded_open_mpi() {
    let Some(mpi) = mpi("openmpi5") else { return };
    let Some(with) = mpi4py(&mpi) else { return };
    let sessions = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/sessions.py"
    ));
    for nodes in ["1", "2"] {
        let run = Run::ranks(2, ["-v", "--virtual-nodes", nodes]).more([&*with.python, sessions]);
        let env = with.env.iter();
        let run = env.fold(run, |run, (name, value)| run.env(name, value));
        let outcome = run.run().expect(0);
        for line in outcome.by_rank("mpi4py", 2) {
            assert_eq!(number(&line, "sum"), 3, "{outcome:?}");
        }
        let err = outcome.err();
        assert!(err.contains("of the Open MPI that a script finds"), "{err}");
    }
}

#[test]
fn python_programs_open_no_transports_of_missing_networks() {
    if Path::new("/sys/class/infiniband").is_dir() {
        return skip("this machine has a fast network");
    }
    for name in ["openmpi4", "openmpi5"] {
        let Some(mpi) = mpi(name) else { continue };
        let Some(with) = mpi4py(&mpi) else { return };
        let verbose =
            ["btl", "mtl"].map(|framework| format!("OMPI_MCA_{framework}_base_verbose=100"));
        let options = verbose.iter().flat_map(|variable| ["-x", variable]);
        let run = Run::ranks(1, options).more([&*with.python, Path::new(SOURCE)]);
        let env = with.env.iter();
        let run = env.fold(run, |run, (name, value)| run.env(name, value));
        let outcome = run.run().expect(0);
        let err = outcome.err();
        assert!(err.contains("found loaded component tcp\n"), "{err}");
        for component in ["ofi", "psm", "psm2"] {
            let found = format!("found loaded component {component}\n");
            assert!(!err.contains(&found), "{name}: {err}");
        }
    }
}

#[test]
fn python_programs_run_for_ordinary_user() {
    let Some(user) = as_user() else { return };
    let here = Reachable::new();
    let script = here.copy(Path::new(SOURCE));
    // Debian's MPICH needs a link in the build's directory, which may belong to a user.
    for name in ["openmpi4", "mpich5", "openmpi5", "impi"] {
        let Some(mpi) = mpi(name) else { continue };
        let Some(with) = mpi4py(&mpi) else { return };
        let wireup = here.wireup();
        let words = [&*wireup, "run".as_ref(), "-n".as_ref(), "2".as_ref()];
        let words = words.into_iter().chain([&*with.python, &*script]);
        let run = Run::command(words).under(&user);
        let run = with
            .env
            .iter()
            .fold(run, |run, (name, value)| run.env(name, value));
        run.run().expect_success().by_rank("mpi4py", 2);
    }
}

#[test]
fn python_traceback_of_waiting_rank_is_explained() {
    // With Open MPI too rank 1 waits in MPI_Finalize for rank 0, which waits for a message of rank 1.
    let program =
        "from mpi4py import MPI; c = MPI.COMM_WORLD; 1 / (1 - c.rank); c.bcast(None, root=1)";
    let merged = &["sh", "-c", "exec \"$@\" 2>&1", "sh"][..];
    let mpis = ["mpich4", "mpich5", "openmpi4", "openmpi5", "impi"];
    let mpis = mpis.into_iter().filter_map(mpi);
    let mut choices: Vec<(Mpi, &[&str])> = mpis.map(|mpi| (mpi, &[][..])).collect();
    choices.extend(mpi("mpich5").map(|mpi| (mpi, merged)));
    let launches = choices.iter().filter_map(|(mpi, wrapper)| {
        let with = mpi4py(mpi)?;
        let words = [with.python.as_path(), Path::new("-c"), Path::new(program)];
        let run = Run::ranks(2, *wrapper).more(words);
        let env = with.env.iter();
        Some(env.fold(run, |run, (name, value)| run.env(name, value)))
    });
    for run in launches.map(Run::start).collect::<Vec<_>>() {
        run.wait_for(Output::Stderr, "python -m mpi4py");
        run.signal(Signal::TERM);
        let outcome = run.finish().expect(143);
        let err = outcome.err();
        let hint = err.lines().find(|line| line.contains("python -m mpi4py"));
        let hint = hint.unwrap_or_default();
        let start = "wireup: warning: rank 1 (";
        assert!(hint.starts_with(start), "{err}");
        let words = "printed a Python traceback 10 s ago and has not ended: it may wait in MPI_Finalize for rank 0 (";
        assert!(hint.contains(words), "{err}");
    }
}
