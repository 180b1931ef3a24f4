//! Programs that load an MPI and do not use what they are offered: found, explained, and a failure
//! where that is asked for.

use rustix::process::Signal;

use crate::common::{Output, Run, executable, mpi, skip};

const ALONE: &str = " alone, as rank 0 of 1: ";

/// Opens the library it is given, calls its MPI_Init and waits for the end of its input.
const OPENER: &str = "#include <dlfcn.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    void *mpi = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : 0;
    int (*init)(int *, char ***) = mpi ? dlsym(mpi, \"MPI_Init\") : 0;
    char byte;

    if (!init || init(0, 0) != 0)
        return 1;
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
";

#[test]
fn singleton_under_wrong_interface_is_named_with_remedy() {
    for (name, wrong, needs, right) in [
        ("openmpi4", "pmi1", "PMIx", "--pmi pmix"),
        ("openmpi4", "none", "PMIx", "--pmi pmix"),
        ("mpich4", "pmix", "PMI", "--pmi pmi1"),
        ("mpich4", "none", "PMI", "--pmi pmi1"),
        ("impi", "pmix", "PMI", "--pmi pmi1"),
    ] {
        let Some(mpi) = mpi(name) else { continue };
        let options = ["--pmi", wrong, "--json", "status"];
        let run = mpi.run_alone(3, &options, "hello", &[]);
        let outcome = run.run().expect(0);
        assert_eq!(outcome.out().matches(" size=1 ").count(), 3, "{outcome:?}");
        let program = mpi.program("hello").display().to_string();
        let line = outcome.expect_one_line(&[&format!("it needs {needs},"), right]);
        // Ranks that still run after 3 s are reported before their end.
        let forms = [
            format!("warning: 3 ranks of {program} never contacted PMI; each ran{ALONE}"),
            format!(" of {program} have not contacted PMI; each runs{ALONE}"),
            format!(" of {program} has not contacted PMI; each runs{ALONE}"),
        ];
        assert!(forms.iter().any(|form| line.contains(form)), "{line}");
        // The same for programs that read.
        let status = std::fs::read_to_string(outcome.dir().join("status")).unwrap();
        let message = line.strip_prefix("wireup: warning: ").unwrap();
        assert!(status.contains(&format!(r#""event":"warning","message":"{message}""#)));
    }
}

#[test]
fn program_that_fails_for_wrong_interface_is_explained() {
    // MPICH 5 refuses PMIx instead of running alone.
    let Some(mpi) = mpi("mpich5") else { return };
    let outcome = mpi.run(2, &["--pmi", "pmix"], "hello", &[]).run();
    assert_ne!(outcome.code, 0, "{outcome:?}");
    let err = outcome.err();
    let line = err
        .lines()
        .find(|line| line.starts_with("wireup: warning: "));
    let line = line.unwrap_or_else(|| panic!("{outcome:?}"));
    // A rank that still runs after 3 s is reported before its end.
    let [before, after] = [
        " not contacted PMI; each runs alone, as rank 0 of 1: ",
        " never contacted PMI: ",
    ]
    .map(|text| format!("{text}it needs PMI,"));
    assert!(line.contains(&before) || line.contains(&after), "{line}");
}

#[test]
fn singleton_warning_names_removal_by_wrapper() {
    for (name, wrapper, words) in [
        ("mpich4", "env -u PMI_FD", "unset PMI_FD"),
        ("mpich4", "env -i", "cleared the environment"),
        ("openmpi4", "env -u JSM_JSRUN_PORT", "unset JSM_JSRUN_PORT"),
        (
            "openmpi4",
            "env -i PATH=$PATH HOME=/ TMPDIR=$TMPDIR",
            "cleared the environment",
        ),
    ] {
        let Some(mpi) = mpi(name) else { continue };
        // Only the running processes show the program behind a shell. Each rank is alone
        // and reads its own copy of the input to the end. Two of Open MPI 4.1 that are alone and start
        // at the same moment may both want to make the same directory, and one fails.
        let script = format!(
            "mkdir own$WIREUP_RANK; export TMPDIR=$PWD/own$WIREUP_RANK; exec {wrapper} {}",
            mpi.program("patient").display()
        );
        let words_of_run = ["--stdin", "all", "sh", "-c", &script];
        let mut running = Run::ranks(2, words_of_run).stdin_held().start();
        running.wait_for_many(Output::Stdout, "patient rank=0 size=1", 2);
        let err = running.wait_for(Output::Stderr, words);
        assert!(err.contains("2 ranks of "), "{name}, {wrapper}: {err}");
        let now = "have not contacted PMI; each runs alone";
        assert!(err.contains(now), "{err}");
        drop(running.stdin());
        // Told once, and not again at the end.
        let outcome = running.finish().expect(0);
        assert_eq!(outcome.err().matches(words).count(), 1, "{outcome:?}");
    }
}

#[test]
fn singleton_warning_names_own_network() {
    let Some(mpi) = mpi("openmpi4") else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("a network namespace: needs root");
    }
    // Any process that has the library loaded will do, and this one does not fail at once.
    let script = format!(
        "libmpi=$(ldd {} | sed -n 's/.*libmpi.so.* => \\(.*\\) (.*/\\1/p')
        LD_PRELOAD=$libmpi exec unshare -n sleep 100",
        mpi.program("hello").display()
    );
    let running = Run::ranks(2, ["--pmi", "pmix", "sh", "-c", &script]).start();
    running.wait_for(
        Output::Stderr,
        "start its container with the host's network",
    );
    running.signal(Signal::TERM);
    running.finish().expect(143);
}

#[test]
fn singleton_warning_is_hedged_without_mpi_init() {
    let Some(mpi) = mpi("openmpi4") else { return };
    let hint = "although it loads an MPI: either MPI_Init was not called";
    let args = ["all", "before-init", "0"];
    let outcome = mpi.run(2, &[], "exitcode", &args).run().expect(0);
    outcome.expect_one_line(&["warning: 2 ranks of ", hint]);
    // One rank is right to take itself for the only one, also under the wrong interface.
    let outcome = mpi.run(1, &[], "exitcode", &args).run();
    outcome.expect_success();
    let outcome = mpi.run(1, &["--pmi", "pmi1"], "hello", &[]).run();
    outcome.expect_success();
    // A wrong call is no matter of PMI.
    let outcome = mpi.run(2, &[], "exitcode", &[]).run().expect(2);
    outcome.expect_one_line(&["exited with code 2"]);
    // Programs that load no MPI may be launched as many.
    let outcome = Run::ranks(2, ["--strict-pmi", "sleep", "0.1"]).run();
    outcome.expect_quiet_success();
}

#[test]
fn strict_pmi_makes_singleton_failure() {
    for (name, wrong) in [("openmpi4", "pmi1"), ("mpich4", "pmix")] {
        let Some(mpi) = mpi(name) else { continue };
        for ranks in [1, 2] {
            let options = ["--strict-pmi", "--pmi", wrong, "--json", "status"];
            let run = mpi.run_alone(ranks, &options, "hello", &[]);
            let outcome = run.run().expect(123);
            outcome.expect_one_line(&["never contacted PMI: it needs", "(--strict-pmi)"]);
            let status = std::fs::read_to_string(outcome.dir().join("status")).unwrap();
            assert!(status.contains(r#""kind":"ran_alone""#), "{status}");
        }
        let outcome = mpi.run(2, &["--strict-pmi"], "hello", &[]).run();
        outcome.expect_success().by_rank("hello", 2);
        // One that goes on for long is not waited for.
        let options = ["--strict-pmi", "--pmi", wrong];
        let args = ["1", "without-finalize", "3"];
        let run = mpi.run_alone(2, &options, "exitcode", &args);
        let outcome = run.run().expect(123);
        outcome.expect_one_line(&["never contacted PMI", "(--strict-pmi)"]);
    }
}

#[test]
fn launcher_inside_rank_causes_no_singleton_warning() {
    let Some(mpi) = mpi("mpich4") else { return };
    // What runs below it is in contact with it, and not with us.
    let launcher = mpi.launcher.display();
    let script = format!(
        "{launcher} -n 2 {}; exit $?",
        mpi.program("hello").display()
    );
    let outcome = Run::ranks(1, ["--strict-pmi", "sh", "-c", &script]).run();
    outcome.expect_success().by_rank("hello", 2);
}

#[test]
fn mpi_that_is_loaded_late_is_found() {
    for (name, wrong, offered) in [
        ("openmpi4", "pmi1", "; offered: PMI (--strict-pmi)"),
        ("mpich4", "none", "; offered: nothing (--strict-pmi)"),
    ] {
        let Some(mpi) = mpi(name) else { continue };
        let program = mpi.program("patient").canonicalize().unwrap();
        let script = format!("eval 'sleep 3.2; {}'", program.display());
        let who = format!("{} below sh", program.display());
        let options = ["--pmi", wrong, "--stdin", "all"];
        let words = options.into_iter().chain(["sh", "-c", &script]);
        let strict = Run::ranks(1, ["--strict-pmi"]).more(words.clone());
        // No rank ends before the end of the input.
        let strict = strict.stdin_held().start();
        if name == "mpich4" {
            let mut running = Run::ranks(2, words).stdin_held().start();
            running.wait_for(Output::Stderr, "have not contacted PMI; each runs alone");
            drop(running.stdin());
            let outcome = running.finish().expect(0);
            outcome.expect_one_line(&["2 ranks of ", &who, "; offered: nothing"]);
        }
        strict.wait_for(Output::Stderr, "(--strict-pmi)");
        let outcome = strict.finish().expect(123);
        let why = format!("never contacted PMI: {who}: it needs");
        outcome.expect_one_line(&[&why, offered]);
    }
}

#[test]
fn mpi_opened_by_dlopen_is_found() {
    if let Some(_mpi) = mpi("openmpi4") {
        let run = Run::new(["-n", "1", "--stdin", "all", "--strict-pmi"]);
        let Some(opener) = executable(run.dir(), "app", OPENER, &["-ldl"]) else {
            return;
        };
        let running = run.more([opener, "libmpi.so.40".into()]);
        let running = running.stdin_held().start();
        running.wait_for(Output::Stderr, "(--strict-pmi)");
        let outcome = running.finish().expect(123);
        outcome.expect_one_line(&["never contacted PMI: it needs PMIx,", "give --pmi pmix"]);
    }
    if let Some(_mpi) = mpi("mpich4") {
        let run = Run::ranks(2, ["--pmi", "none", "--stdin", "all"]);
        let Some(opener) = executable(run.dir(), "app", OPENER, &["-ldl"]) else {
            return;
        };
        let running = run.more([opener, "libmpich.so.12".into()]);
        let mut running = running.stdin_held().start();
        running.wait_for(Output::Stderr, "have not contacted PMI; each runs alone");
        drop(running.stdin());
        let outcome = running.finish().expect(0);
        outcome.expect_one_line(&["2 ranks of ", "it needs PMI, which --pmi did not allow"]);
    }
}
