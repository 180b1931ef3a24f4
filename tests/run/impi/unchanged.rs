//! MPI programs that know nothing of IMPI, in a world of launches with different MPIs (docs/impi-programs.md).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{KEY, WIREUP, server_at};
use crate::common::{
    Mpi, Outcome, Run, mpi, mpi4py, number, repository, skip, standard_abi, wireup,
};

const PROGRAM: &str = "impi_unchanged";

/// Whether the libraries for all binary interfaces were built; otherwise the test is ignored.
#[track_caller]
pub(super) fn are_built() -> bool {
    let names = ["mpich", "openmpi", "abi"].map(|name| format!("libwireup_impi_{name}.so"));
    let missing = names
        .iter()
        .find(|name| !wireup().with_file_name(name).exists());
    if let Some(name) = missing {
        skip(&format!(
            "{name} is not there: scripts/setup, and cargo build --workspace"
        ));
    }
    missing.is_none()
}

/// A launch as client `number`, in the environment of an MPI.
fn client(address: &str, number: usize, ranks: u32, mpi: &Mpi, words: &[&Path]) -> Run {
    let option = format!("{address},client={number}");
    let run = Run::ranks(ranks, ["--oversubscribe", "--impi", &option]).more(words);
    let set = |run: Run, (name, value): &(String, String)| run.env(name, value);
    mpi.env.iter().fold(run, set).env(KEY.0, KEY.1)
}

/// Runs a program on each of these MPIs with as many ranks, all in one world.
pub(super) fn run_together(
    clients: &[(&Mpi, u32)],
    words: &dyn Fn(&Mpi) -> Vec<PathBuf>,
) -> Vec<Outcome> {
    run_at("127.0.0.1", clients, words)
}

/// Does the same with the server at an address of this machine.
fn run_at(
    server: &str,
    clients: &[(&Mpi, u32)],
    words: &dyn Fn(&Mpi) -> Vec<PathBuf>,
) -> Vec<Outcome> {
    let (server, address) = server_at(server, u32::try_from(clients.len()).unwrap(), &[]);
    let started: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(number, (mpi, ranks))| {
            let words = words(mpi);
            let words: Vec<&Path> = words.iter().map(PathBuf::as_path).collect();
            let run = client(&address, number, *ranks, mpi, &words);
            run.deadline(Duration::from_secs(240)).start()
        })
        .collect();
    let ended = started
        .into_iter()
        .map(|running| running.finish())
        .collect();
    server.end();
    ended
}

/// All ranks have checked their results in one world.
fn expect_one_world(outcomes: Vec<Outcome>, size: u32) {
    let mut ranks: Vec<_> = outcomes
        .into_iter()
        .flat_map(|outcome| outcome.expect_success().sorted_lines())
        .map(|line| {
            assert_eq!(number(&line, "size"), size, "{line}");
            number(&line, "rank")
        })
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (0..size).collect::<Vec<_>>());
}

#[test]
fn program_of_mpich_and_open_mpi_runs_unchanged_in_one_world() {
    let (Some(mpich), Some(open)) = (mpi("mpich4"), mpi("openmpi4")) else {
        return;
    };
    if are_built() {
        let outcomes = run_together(&[(&mpich, 2), (&open, 3)], &|mpi| {
            vec![mpi.program(PROGRAM)]
        });
        expect_one_world(outcomes, 5);
    }
}

#[test]
fn program_of_two_mpis_runs_unchanged_at_ipv6() {
    let (Some(mpich), Some(open)) = (mpi("mpich4"), mpi("openmpi4")) else {
        return;
    };
    if are_built() {
        let outcomes = run_at("::1", &[(&mpich, 2), (&open, 2)], &|mpi| {
            vec![mpi.program(PROGRAM)]
        });
        expect_one_world(outcomes, 4);
    }
}

/// Compiles the program of the conformance kit with an MPI; the test is ignored where there is no compiler.
fn compile_check(mpi: &Mpi, dir: &Path) -> Option<PathBuf> {
    let compiler = match mpi.name.starts_with("mpich") {
        true => "mpicc.mpich",
        false => "mpicc.openmpi",
    };
    let program = dir.join(&mpi.name);
    let compiled = Command::new(compiler)
        .arg("-o")
        .arg(&program)
        .arg(repository().join("impi/kit/check.c"))
        .status();
    match compiled {
        Ok(status) => assert!(status.success(), "{compiler}: {status}"),
        Err(_) => {
            skip(&format!("{compiler} is not installed"));
            return None;
        }
    }
    Some(program)
}

#[test]
fn unchanged_programs_share_world_with_impi_library() {
    let (Some(mpich), Some(open)) = (mpi("mpich4"), mpi("openmpi4")) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let Some(check) = compile_check(&mpich, dir.path()) else {
        return;
    };
    if are_built() {
        // The processes of the second client use libwireup_impi's own code, without an MPI.
        let outcomes = run_together(&[(&mpich, 2), (&open, 3)], &|mpi| {
            if mpi.name == mpich.name {
                vec![check.clone()]
            } else {
                [WIREUP, "impi", "play"].map(PathBuf::from).to_vec()
            }
        });
        for outcome in outcomes {
            outcome.expect_success();
        }
    }
}

/// Runs the conformance kit with so many clients, of which an unchanged program is one.
fn kit_passes_unchanged_program(name: &str, clients: &str, client: &str) {
    let Some(mpi) = mpi(name) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let Some(check) = compile_check(&mpi, dir.path()) else {
        return;
    };
    if !are_built() {
        return;
    }
    let kit = [WIREUP, "impi", "check-client", "--clients", clients];
    let launch = ["--client", client, "--", WIREUP, "run", "--oversubscribe"];
    let rest = ["-n", "3", "--impi", "{server},client={client}"];
    let words = kit.into_iter().chain(launch).chain(rest);
    let words: Vec<&str> = words.chain([check.to_str().unwrap()]).collect();
    let set = |run: Run, (name, value): &(String, String)| run.env(name, value);
    let run = mpi.env.iter().fold(Run::command(words), set);
    let outcome = run.deadline(Duration::from_secs(240)).run().expect(0);
    let report = outcome.out();
    assert!(!report.contains("not ok"), "{report}");
    for part in ["reduce", "gather", "alltoall", "alltoallv", "scan"] {
        let line = format!("the check program: {part}\n");
        assert!(report.contains(&line), "{report}");
    }
}

#[test]
fn unchanged_program_of_mpich_passes_kit() {
    kit_passes_unchanged_program("mpich4", "3", "1");
}

#[test]
fn unchanged_program_of_open_mpi_passes_kit_of_six_clients() {
    kit_passes_unchanged_program("openmpi4", "6", "2");
}

/// Compiles the Fortran program with an MPI, or returns nothing where it has no compiler for Fortran.
fn compile_fortran(mpi: &Mpi, flag: &str, dir: &Path) -> Option<PathBuf> {
    let compiler = match mpi.name.starts_with("mpich") {
        true => "mpif90.mpich",
        false => "mpif90.openmpi",
    };
    let program = dir.join(&mpi.name);
    let compiled = Command::new(compiler)
        .args(["-cpp", "-O1", "-w", flag, "-o"])
        .arg(&program)
        .arg(repository().join("tests/programs/impi_fortran.F90"))
        .current_dir(dir)
        .status();
    match compiled {
        Ok(status) => assert!(status.success(), "{compiler}: {status}"),
        Err(_) => {
            skip(&format!("{compiler} is not installed"));
            return None;
        }
    }
    Some(program)
}

fn fortran_program_runs(flag: &str) {
    let (Some(mpich), Some(open)) = (mpi("mpich4"), mpi("openmpi4")) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let clients = [(&mpich, 2), (&open, 3)];
    let programs = clients.map(|(mpi, _)| compile_fortran(mpi, flag, dir.path()));
    if are_built() && programs.iter().all(Option::is_some) {
        let outcomes = run_together(&clients, &|mpi| vec![dir.path().join(&mpi.name)]);
        expect_one_world(outcomes, 5);
    }
}

#[test]
fn fortran_program_of_module_mpi_runs_unchanged() {
    fortran_program_runs("-UF08");
}

#[test]
fn fortran_program_of_module_mpi_f08_runs_unchanged() {
    fortran_program_runs("-DF08");
}

#[test]
fn unchanged_program_runs_on_two_nodes_of_each_client() {
    let (Some(mpich), Some(open)) = (mpi("mpich5"), mpi("openmpi5")) else {
        return;
    };
    if are_built() {
        let outcomes = run_together(&[(&mpich, 2), (&open, 3)], &|mpi| {
            vec!["--virtual-nodes".into(), "2".into(), mpi.program(PROGRAM)]
        });
        expect_one_world(outcomes, 5);
    }
}

#[test]
fn program_of_three_mpis_runs_unchanged_in_one_world() {
    let names = ["openmpi5", "mpich5", "impi"].map(mpi);
    let [Some(open), Some(mpich), Some(intel)] = &names else {
        return;
    };
    if are_built() {
        let clients = [(open, 2), (mpich, 1), (intel, 2)];
        let outcomes = run_together(&clients, &|mpi| vec![mpi.program(PROGRAM)]);
        expect_one_world(outcomes, 5);
    }
}

#[test]
fn binary_of_standard_abi_runs_unchanged_with_two_mpis() {
    let (Some(mpich), Some(intel), Some(dir)) = (mpi("mpich5"), mpi("impi"), standard_abi()) else {
        return;
    };
    if are_built() {
        let outcomes = run_together(&[(&mpich, 2), (&intel, 2)], &|mpi| {
            // The standard interface of Intel MPI 2021.19 aborts after each error.
            let program = dir.join(PROGRAM);
            vec!["--mpi".into(), mpi.prefix(), program, "fatal".into()]
        });
        expect_one_world(outcomes, 4);
    }
}

pub(super) fn mpi4py_tests_pass(tests: &str) {
    let (Some(mpich), Some(open)) = (mpi("mpich5"), mpi("openmpi5")) else {
        return;
    };
    let (Some(with), true) = (mpi4py(&mpich), are_built()) else {
        return;
    };
    let outcomes = run_together(&[(&mpich, 1), (&open, 2)], &|mpi| {
        let script = with.tests.join(format!("{tests}.py"));
        vec!["--mpi".into(), mpi.prefix(), with.python.clone(), script]
    });
    for outcome in outcomes {
        assert_eq!(outcome.code, 0, "{outcome:?}");
        assert!(outcome.err().contains("\nOK"), "{outcome:?}");
    }
}

#[test]
fn mpi4py_messages_of_objects_cross_clients() {
    mpi4py_tests_pass("test_p2p_obj");
}

#[test]
fn mpi4py_collectives_of_objects_cross_clients() {
    mpi4py_tests_pass("test_cco_obj");
}

#[test]
fn mpi4py_communicators_have_members_in_two_clients() {
    mpi4py_tests_pass("test_comm");
}

/// Both clients end, and the second one with this code; returns what they report.
fn end_with(mode: &str, code: i32) -> Option<[String; 2]> {
    let (mpich, open) = (mpi("mpich4")?, mpi("openmpi4")?);
    are_built().then_some(())?;
    let outcomes = run_together(&[(&mpich, 1), (&open, 2)], &|mpi| {
        vec![mpi.program(PROGRAM), mode.into()]
    });
    let [first, second]: [Outcome; 2] = outcomes.try_into().unwrap();
    assert_ne!(first.code, 0, "{first:?}");
    assert_eq!(second.code, code, "{second:?}");
    Some([first.err(), second.err()])
}

#[test]
fn abort_of_unchanged_program_ends_other_client() {
    let Some([first, second]) = end_with("abort", 3) else {
        return;
    };
    assert!(first.contains("MPI_Recv: the job has failed: "), "{first}");
    assert!(second.contains("called MPI_Abort with code 3"), "{second}");
    // Without a print server, the launch prints the line of its agent.
    assert!(
        second.contains("wireup impi: process 2: called MPI_Abort with code 3"),
        "{second}"
    );
}

#[test]
fn killed_rank_of_unchanged_program_ends_other_client() {
    let Some([first, second]) = end_with("lost", 137) else {
        return;
    };
    assert!(
        first.contains("the connection ended before FINI"),
        "{first}"
    );
    assert!(second.contains("was killed by signal 9"), "{second}");
}

#[test]
fn window_over_clients_is_refused_with_line() {
    let (Some(mpich), true) = (mpi("mpich4"), are_built()) else {
        return;
    };
    let outcomes = run_together(&[(&mpich, 1), (&mpich, 1)], &|mpi| {
        vec![mpi.program(PROGRAM), "refused".into()]
    });
    let line = "wireup: impi: MPI_Win_create does not support a communicator of several clients\n";
    let reports: Vec<String> = outcomes.iter().map(Outcome::err).collect();
    assert!(
        reports.iter().any(|report| report.contains(line)),
        "{reports:?}"
    );
    assert!(outcomes.iter().all(|outcome| outcome.code != 0));
}

/// Compiles the library of an MPI with the sanitizers.
fn sanitized(mpi: &Mpi, dir: &Path) -> Option<PathBuf> {
    let (name, package) = match mpi.name.starts_with("mpich") {
        true => ("mpich", "mpich"),
        false => ("openmpi", "ompi-c"),
    };
    let library = dir.join(format!("libwireup_impi_{name}.so"));
    let script = "gcc -std=gnu11 -D_GNU_SOURCE -shared -fPIC -pthread -O1 -g -fvisibility=hidden \
                  -fsanitize=address,undefined -fno-sanitize-recover=undefined -I../capi $(pkg-config --cflags $package) \
                  *.c -o $library -L$directory -lwireup_impi -Wl,-rpath,$directory -ldl";
    let output = Command::new("sh")
        .args(["-ec", script])
        .current_dir(repository().join("impi/preload"))
        .env("package", package)
        .env("library", &library)
        .env("directory", wireup().parent()?)
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    Some(library)
}

/// The run-time libraries of the sanitizers, which come first.
fn sanitizer_libraries() -> String {
    let path = |name: &str| {
        let output = Command::new("gcc")
            .arg(format!("-print-file-name={name}"))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    format!("{}:{}", path("libasan.so"), path("libubsan.so"))
}

#[test]
fn sanitizers_find_nothing_in_libraries_for_unchanged_programs() {
    let (Some(mpich), Some(open)) = (mpi("mpich4"), mpi("openmpi4")) else {
        return;
    };
    if !are_built() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let first = sanitizer_libraries();
    let outcomes = run_together(&[(&mpich, 2), (&open, 2)], &|mpi| {
        let library = sanitized(mpi, dir.path()).unwrap();
        // The launcher leaves programs with this variable as they are.
        let own = "WIREUP_IMPI_LIBRARY=none".to_owned();
        let preload = format!("LD_PRELOAD={first}:{}", library.display());
        // MPIs leave memory behind.
        let options = "ASAN_OPTIONS=detect_leaks=0".to_owned();
        let variables = [own, preload, options];
        let mut words: Vec<PathBuf> = variables
            .iter()
            .flat_map(|variable| ["-x".into(), variable.into()])
            .collect();
        words.push(mpi.program(PROGRAM));
        words
    });
    expect_one_world(outcomes, 4);
}
