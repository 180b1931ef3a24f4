//! The variables ranks have, also inside another job.

use std::collections::{BTreeMap, BTreeSet};

use super::print_env;
use crate::common::Run;

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

#[test]
fn rank_can_run_wireup() {
    let names = [
        "WIREUP_RANK",
        "WIREUP_SIZE",
        "PMI_RANK",
        "PMI_SIZE",
        "MPI_LOCALRANKID",
    ];
    let inner = print_env(&names);
    let words = [WIREUP, "run", "--oversubscribe", "-n", "3"].map(str::to_owned);
    let outcome = Run::ranks(2, words.into_iter().chain(inner)).run();
    let expected: Vec<String> = ["0 3 0 3 0", "1 3 1 3 1", "2 3 2 3 2"]
        .iter()
        .flat_map(|line| [(*line).to_owned(), (*line).to_owned()])
        .collect();
    assert_eq!(outcome.expect_quiet_success().sorted_lines(), expected);
}

#[test]
fn variables_of_outer_launcher_are_removed_unless_requested() {
    let outer = [
        ("PMI_FD", "77"),
        ("PMI_PORT", "host:1"),
        ("PMI_ID", "9"),
        ("PMI2_SIZE", "8"),
        ("PMIX_NAMESPACE", "other"),
        ("PMIX_RANK", "9"),
        ("PMIX_SERVER_URI41", "x"),
        ("OMPI_COMM_WORLD_RANK", "9"),
        ("OMPI_MCA_orte_x", "9"),
        ("PRTE_X", "9"),
        ("SLURM_JOBID", "9"),
        ("SLURM_PROCID", "9"),
        ("FLUX_JOB_ID", "9"),
        ("HYDRA_X", "9"),
        ("HYDI_CONTROL_FD", "9"),
    ];
    let passed = [
        ("OMPI_MCA_btl", "self"),
        ("PMIX_MCA_gds", "hash"),
        ("PBS_JOBID", "9"),
        ("SLURM_JOB_ID", "9"),
        ("SLURM_RESTART_COUNT", "1"),
    ];
    let start = |names: &[&str]| {
        let options = names.iter().flat_map(|name| ["-x", name]);
        let run = Run::new(["-n", "1"].into_iter().chain(options).chain(["env"]));
        let run = outer
            .iter()
            .chain(&passed)
            .fold(run, |run, (name, value)| run.env(name, value));
        let lines = run.run().expect_quiet_success().sorted_lines();
        lines.into_iter().collect::<BTreeSet<String>>()
    };
    let has = |lines: &BTreeSet<String>, (name, value): &(&str, &str)| {
        lines.contains(&format!("{name}={value}"))
    };
    let lines = start(&[]);
    for pair in &outer {
        assert!(!has(&lines, pair), "{pair:?} in {lines:?}");
    }
    for pair in &passed {
        assert!(has(&lines, pair), "{pair:?} in {lines:?}");
    }
    // The job's own interface is what it is, whatever is asked for.
    assert!(
        lines.contains("PMI_FD=3") && lines.contains("PMI_SIZE=1"),
        "{lines:?}"
    );
    let lines = start(&["SLURM_JOBID", "FLUX_*"]);
    for pair in &outer {
        let is_requested = ["SLURM_JOBID", "FLUX_JOB_ID"].contains(&pair.0);
        assert_eq!(has(&lines, pair), is_requested, "{pair:?} in {lines:?}");
    }
}

#[test]
fn environment_has_unique_names_and_values_of_job() {
    // Programs disagree on which of two equal names counts.
    let options = [
        "-x",
        "PMI_SIZE=7",
        "-x",
        "WIREUP_RANK=7",
        "-x",
        "PMIX_RANK=7",
        "-x",
        "A=1",
    ];
    let words = [WIREUP, "run", "--pmi", "all", "-n", "1"];
    let words = words.iter().chain(&options).chain(&["env"]);
    let outcome = Run::ranks(2, words).run().expect_quiet_success();
    let lines = outcome.sorted_lines();
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, _) in lines.iter().filter_map(|line| line.split_once('=')) {
        *names.entry(name).or_default() += 1;
    }
    let wrong: Vec<_> = names.iter().filter(|(_, count)| **count != 2).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    for expected in [
        "PMI_SIZE=1",
        "WIREUP_SIZE=1",
        "WIREUP_RANK=0",
        "PMIX_RANK=0",
        "A=1",
    ] {
        assert!(
            lines.iter().any(|line| line == expected),
            "{expected}: {lines:?}"
        );
    }
}

#[test]
fn unset_variable_to_forward_is_warning() {
    let outcome = Run::new(["-n", "1", "-x", "NOT_SET_ANYWHERE", "true"])
        .run()
        .expect(0);
    outcome.expect_one_line(&["warning: -x NOT_SET_ANYWHERE: not set here"]);
    let outcome = Run::new(["-n", "1", "-x", "NOT_SET_ANYWHERE*", "true"]);
    let outcome = outcome.run().expect(0);
    outcome.expect_one_line(&["warning: -x NOT_SET_ANYWHERE*: not set here"]);
    let outcome = Run::new(["-n", "1", "-x", "=x", "true"]).run().expect(125);
    outcome.expect_one_line(&["-x: \"=x\" has no variable name"]);
}
