//! Benchmarks and tests of others over two clients of an IMPI job, whose programs know nothing of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::unchanged::{are_built, mpi4py_tests_pass, run_together};
use crate::common::{mpi, repository, skip, wireup};

const BENCHMARKS: [&str; 5] = ["PingPong", "Exchange", "Allreduce", "Bcast", "Alltoall"];

/// Bytes of the messages: 0 and powers of two up to 2^8, those of reductions from 4 on.
const SIZES: &str = "0:8";

/// Numbers of the lines of a benchmark's table that begin with a size.
fn count_rows(table: &str) -> usize {
    let is_size = |word: &str| word.parse::<u32>().is_ok();
    let first_words = table
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    first_words.filter(|word| is_size(word)).count()
}

#[test]
fn intel_benchmarks_measure_messages_between_two_mpis() {
    let (Some(mpich), Some(intel)) = (mpi("mpich5"), mpi("impi")) else {
        return;
    };
    let program = intel.prefix().join("bin/IMB-MPI1");
    if !are_built() {
        return;
    }
    let outcomes = run_together(&[(&mpich, 2), (&intel, 2)], &|mpi| {
        let options = ["-npmin", "4", "-iter", "5", "-msglog", SIZES];
        let mut words = vec!["--mpi".into(), mpi.prefix(), program.clone()];
        words.extend(options.iter().chain(&BENCHMARKS).map(PathBuf::from));
        words
    });
    let output = outcomes
        .into_iter()
        .map(|outcome| outcome.expect_success().out())
        .collect::<String>();
    let tables: Vec<&str> = output.split("# Benchmarking ").skip(1).collect();
    assert_eq!(tables.len(), BENCHMARKS.len(), "{output}");
    for (table, name) in tables.iter().zip(BENCHMARKS) {
        assert!(table.starts_with(name), "{table}");
        let rows = if name == "Allreduce" { 8 } else { 10 };
        assert_eq!(count_rows(table), rows, "{table}");
    }
    assert!(output.contains("All processes entering MPI_Finalize"));
}

/// Values of the lines `NAME=VALUE` that HPC Challenge writes.
fn value(results: &str, name: &str) -> f64 {
    let mut lines = results
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let text = lines.next().unwrap_or_else(|| panic!("no {name}"));
    text.parse().unwrap()
}

#[test]
fn hpc_challenge_has_right_residuals_over_two_mpis() {
    let (Some(old), Some(new)) = (mpi("openmpi4"), mpi("openmpi5")) else {
        return;
    };
    let program = Path::new("/usr/bin/hpcc");
    if !program.exists() {
        skip("hpcc is not installed: run scripts/setup");
        return;
    }
    if !are_built() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let input = repository().join("tests/applications/hpcc.txt");
    fs::copy(input, dir.path().join("hpccinf.txt")).unwrap();
    let outcomes = run_together(&[(&old, 1), (&new, 1)], &|mpi| {
        let mut words = vec!["--wdir".into(), dir.path().to_owned()];
        words.extend(["-x", "OPENBLAS_NUM_THREADS=1"].map(PathBuf::from));
        if mpi.name == new.name {
            words.extend(["--mpi".into(), mpi.prefix()]);
        }
        words.push(program.to_owned());
        words
    });
    for outcome in outcomes {
        outcome.expect_success();
    }
    let results = fs::read_to_string(dir.path().join("hpccoutf.txt")).unwrap();
    assert_eq!(value(&results, "CommWorldProcs"), 2.0, "{results}");
    assert_eq!(value(&results, "Success"), 1.0, "{results}");
    assert_eq!(value(&results, "PTRANS_residual"), 0.0, "{results}");
    assert_eq!(value(&results, "MPIRandomAccess_Errors"), 0.0, "{results}");
    assert!(value(&results, "MPIFFT_maxErr") < 1e-14, "{results}");
    assert!(!results.contains("FAILED"), "{results}");
    // The scaled residual of HPL, which is to be below 16.
    let norms = ["RnormI", "Anorm1", "Xnorm1"].map(|name| value(&results, &format!("HPL_{name}")));
    let [residual, matrix, solution] = norms;
    let scaled = residual / (f64::EPSILON * matrix * solution * value(&results, "HPL_N"));
    assert!(scaled < 16.0, "{scaled}: {results}");
}

#[test]
fn mpich_tests_pass_over_two_mpis() {
    if !are_built() {
        return;
    }
    let run = Command::new(repository().join("tests/mpich-tests"))
        .arg("--required")
        .env("WIREUP", wireup())
        .output()
        .unwrap();
    let report = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    match run.status.code() {
        Some(77) => skip(report.trim_end()),
        code => assert_eq!(code, Some(0), "{report}"),
    }
}

#[test]
fn mpi4py_collectives_of_buffers_cross_clients() {
    mpi4py_tests_pass("test_cco_buf");
}

#[test]
fn mpi4py_nonblocking_collectives_cross_clients() {
    mpi4py_tests_pass("test_cco_nb_buf");
}
