//! Offered interfaces, by program, and the output of `--dry-run` and `-v`. The wrappers are the
//! real ones where they work; otherwise (no display, no right to count events) a script of that name
//! replaces them, since only the parsing of their command lines matters.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Mpi, Outcome, Output, Run, mpi, pmi2, program};

/// Wrappers with options, each to be followed by a program.
const WRAPPERS: &[&[&str]] = &[
    &["env", "-u", "NOTHING", "A=1"],
    &["numactl", "-l"],
    &["taskset", "-c", "0-1"],
    &["nice", "-n", "1"],
    &["ionice", "-c", "3"],
    &["chrt", "-o", "0"],
    &["setsid", "-w"],
    &["timeout", "-k", "5", "100"],
    &["stdbuf", "-oL"],
    &["nohup"],
    &["time", "-p"],
    &["valgrind", "-q", "--tool=none"],
    &["gdb", "-q", "-batch", "-ex", "run", "--args"],
    &["perf", "stat", "-o", "/dev/null", "-e", "task-clock"],
    &["perf", "record", "-o", "/dev/null", "-e", "task-clock"],
    &["strace", "-f", "-o", "/dev/null", "-e", "trace=none"],
    &["ltrace", "-o", "/dev/null", "-e", "none"],
    &["xterm", "-hold", "-T", "rank", "-e"],
    &["env", "-S", "nice -n 1 timeout 100"],
    &["numactl", "-l", "env", "A=1", "setsid", "-w"],
];

/// Leaves the wrapper's own words out and executes the program, which is the first absolute path.
const STAND_IN: &str = "#!/bin/sh
while case $1 in /dev/*) true;; /*) false;; *) true;; esac; do shift; done
exec \"$@\"
";

/// Whether a wrapper is installed and may do here what its options ask for.
fn works(words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg("/bin/true");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A run with a stand-in in PATH for a wrapper that does not work here.
fn with_stand_in(run: Run, wrapper: &[&str]) -> Run {
    if works(wrapper) {
        return run;
    }
    let bin = run.dir().join("bin");
    fs::create_dir(&bin).unwrap();
    let script = bin.join(wrapper[0]);
    fs::write(&script, STAND_IN).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path)));
    run.env("PATH", path.unwrap())
}

/// Runs a program of an MPI behind a wrapper, with the decision printed.
fn behind(mpi: &Mpi, wrapper: &[&str]) -> Run {
    let program = mpi.program("allreduce");
    let words = std::iter::once("-v").chain(wrapper.iter().copied());
    let words = words.map(Path::new).chain([&*program]);
    let run = with_stand_in(Run::ranks(2, words), wrapper);
    let env = mpi.env.iter();
    env.fold(run, |run, (name, value)| run.env(name, value))
}

/// The interfaces offered, as the first line of `-v` has them.
#[track_caller]
fn offered(outcome: &Outcome) -> String {
    let err = outcome.err();
    let interfaces = err.lines().find_map(|line| line.split_once("; offered: "));
    interfaces
        .unwrap_or_else(|| panic!("{outcome:?}"))
        .1
        .to_owned()
}

#[track_caller]
fn expect_detection_behind_every_wrapper(name: &str, interface: &str) {
    let Some(mpi) = mpi(name) else { return };
    for wrapper in WRAPPERS {
        let outcome = behind(&mpi, wrapper).run().expect(0);
        outcome.by_rank("allreduce", 2);
        assert_eq!(offered(&outcome), interface, "{wrapper:?}: {outcome:?}");
        let behind = format!("behind {}", wrapper[0]);
        assert!(outcome.err().contains(&behind), "{wrapper:?}: {outcome:?}");
    }
}

#[test]
fn pmi_program_is_detected_behind_every_wrapper() {
    expect_detection_behind_every_wrapper("mpich5", "PMI");
}

#[test]
fn pmix_program_is_detected_behind_every_wrapper() {
    expect_detection_behind_every_wrapper("openmpi5", "PMIx");
}

#[test]
fn libraries_chosen_by_wrapper_decide_interface() {
    let (Some(mpich), Some(impi)) = (mpi("mpich5"), mpi("impi")) else {
        return;
    };
    let Some(openmpi) = mpi("openmpi5") else {
        return;
    };
    // A program without a library of its own: everything is preloaded.
    for (mpi, interface) in [(&mpich, "PMI"), (&openmpi, "PMIx"), (&impi, "PMI")] {
        let preload = format!("LD_PRELOAD={}", libmpi(mpi).display());
        let outcome = Run::new(["--dry-run", "env", &preload, "true"]).run();
        let out = outcome.expect_quiet_success().out();
        assert!(out.contains(&format!("interface  {interface}:")), "{out}");
    }
    let gone = ["--dry-run", "env", "-u", "LD_PRELOAD", "true"];
    let run = Run::new(gone).env("LD_PRELOAD", libmpi(&mpich));
    let out = run.run().expect_quiet_success().out();
    assert!(
        out.contains("interface  PMI: no program loads an MPI"),
        "{out}"
    );
}

/// Returns the library that an MPI's programs load, according to the system's loader.
fn libmpi(mpi: &Mpi) -> PathBuf {
    let output = Command::new("ldd")
        .arg(mpi.program("hello"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with("libmpi.so"));
    line.unwrap()
        .split_ascii_whitespace()
        .nth(2)
        .unwrap()
        .into()
}

#[test]
fn programs_without_mpi_never_start_sidecar() {
    let sidecar_behind = |words: &[&str]| {
        let mut running = Run::new(["-n", "1"].iter().chain(words))
            .stdin_held()
            .start();
        let mut input = running.stdin();
        writeln!(input, "ready").unwrap();
        running.wait_for(Output::Stdout, "ready");
        let names = running.processes().into_iter().map(|p| p.name);
        let names: Vec<String> = names.collect();
        drop(input);
        let _ = running.finish();
        names.iter().any(|name| name.starts_with("wireup-pmix"))
    };
    for words in [
        &["cat"][..],
        &["nice", "-n", "1", "cat"],
        &["env", "A=1", "cat"],
    ] {
        assert!(!sidecar_behind(words), "{words:?}");
    }
    // Programs started by a shell are not reported.
    assert!(sidecar_behind(&["sh", "-c", "exec cat"]));
}

#[test]
fn job_of_pmi_and_pmix_programs_gets_both_with_warning() {
    let (Some(mpich), Some(openmpi)) = (mpi("mpich5"), mpi("openmpi5")) else {
        return;
    };
    let (one, other) = (mpich.program("hello"), openmpi.program("hello"));
    let words = ["--dry-run", "-n", "1"]
        .map(Path::new)
        .into_iter()
        .chain([&*one]);
    let words = words
        .chain([":", "-n", "1"].map(Path::new))
        .chain([&*other]);
    let outcome = Run::new(words).run().expect(0);
    let out = outcome.out();
    let why = "interface  PMI and PMIx: program 2 needs PMIx and program 1 PMI\n";
    assert!(out.contains(why), "{out}");
    let is_open_mpi = format!("warning: {} is a program of Open MPI", other.display());
    let is_mpich = format!("and {} one of MPICH or a relative: ", one.display());
    outcome.expect_one_line(&[&is_open_mpi, &is_mpich]);
    let library = openmpi.libpmix.unwrap();
    assert!(
        out.contains(&format!("libpmix    {}", library.display())),
        "{out}"
    );
    assert!(out.contains("  MPIR_CVAR_PMI_VERSION=1\n"), "{out}");
}

#[test]
fn programs_of_different_libraries_of_one_mpi_are_warned_of() {
    for (one, other) in [("mpich4", "mpich5"), ("openmpi4", "openmpi5")] {
        let (Some(one), Some(other)) = (mpi(one), mpi(other)) else {
            return;
        };
        let dry = |first: &Mpi, second: &Mpi| {
            let words = ["--dry-run", "-n", "1"].map(PathBuf::from).into_iter();
            let words = words.chain([first.program("hello")]);
            let words = words.chain([":", "-n", "1"].map(PathBuf::from));
            let outcome = Run::new(words.chain([second.program("hello")])).run();
            outcome.expect(0)
        };
        assert_eq!(dry(&one, &one).err(), "");
        let warned = dry(&one, &other);
        let words = [
            "warning: ",
            "ranks of two MPI libraries may not understand each other",
        ];
        let line = warned.expect_one_line(&words);
        for mpi in [&one, &other] {
            let program = mpi.program("hello").display().to_string();
            assert!(line.contains(&program), "{line}");
        }
    }
}

#[test]
fn unstageable_files_are_warned_of() {
    let words = ["--dry-run", "--stage=a,b", "true"];
    let outcome = Run::new(words).run().expect(0);
    outcome.expect_one_line(&["--stage: no file is copied on one machine"]);
}

#[test]
fn user_choice_of_mpich_pmi_version_is_kept() {
    let words = ["--dry-run", "--pmi", "all", "true"];
    let run = Run::new(words).env("MPIR_CVAR_PMI_VERSION", "x");
    let out = run.run().expect_quiet_success().out();
    assert!(!out.contains("MPIR_CVAR_PMI_VERSION"), "{out}");
}

#[test]
fn client_of_other_pmi_version_is_served_and_named_once() {
    if let Some(mpi) = mpi("mpich5") {
        let run = |pmi| mpi.run(2, &["--pmi", pmi], "allreduce", &[]).run();
        run("pmi1").expect_success().by_rank("allreduce", 2);
        let outcome = run("pmi2").expect(0);
        outcome.by_rank("allreduce", 2);
        outcome.expect_one_line(&["speaks PMI-1, not PMI-2 as --pmi pmi2 expects"]);
    }
    if let Some(program) = program("pmi2_wireup") {
        let words = |pmi| Run::ranks(2, ["--pmi", pmi, program.to_str().unwrap()]).run();
        words("pmi2").expect_success();
        let outcome = words("pmi1").expect(0);
        outcome.expect_one_line(&["speaks PMI-2, not PMI-1 as --pmi pmi1 expects"]);
    }
    if let Some(pmi2) = pmi2() {
        let plan_run = Run::new(["--dry-run".as_ref(), &*pmi2.program("pmi2_api")]);
        let out = plan_run.run().expect_quiet_success().out();
        assert!(
            out.contains("interface  PMI: program 1 needs PMI\n"),
            "{out}"
        );
    }
}

#[test]
fn dry_run_prints_whole_plan() {
    let Some(mpi) = mpi("openmpi5") else { return };
    let program = mpi.program("hello");
    let options = [
        "--dry-run",
        "--virtual-nodes",
        "2",
        "-x",
        "ASKED=it's",
        "--wdir",
        "/",
    ];
    let run = mpi.run(4, &options, "hello", &["a b"]);
    let outcome = run.env("SLURM_PROCID", "1").run().expect_quiet_success();
    let out = outcome.out();
    let node = crate::common::node_name();
    let stem = node.split('.').next().unwrap();
    for line in [
        "job        4 ranks on 2 virtual nodes",
        &format!("placement  {stem}-v0 has ranks 0-1\n"),
        &format!("placement  {stem}-v1 has ranks 2-3\n"),
        &format!("program 1  {} 'a b' (4 ranks)\n", program.display()),
        "starts in / (--wdir)\n",
        "needs libmpi.so.40",
        "interface  PMIx: program 1 needs PMIx\n",
        &format!(
            "libpmix    {} (OpenPMIx 5.0.11), the program's own\n",
            mpi.libpmix.unwrap().display()
        ),
        "wireup-pmix-host\n",
        "libwireup-pmix-host.so\n",
        "directory  ",
        "\nenvironment of rank 0",
        "  ASKED='it'\\''s'\n",
        "  WIREUP_RANK=0\n",
        "  WIREUP_SIZE=4\n",
        "  JSM_JSRUN_PORT=wireup\n",
        "  and what the PMIx server gives: PMIX_NAMESPACE",
        "  not passed on: ",
    ] {
        assert!(out.contains(line), "no {line:?} in\n{out}");
    }
    assert!(!out.contains("PMI_RANK"), "{out}");
    let removed = out.lines().find(|line| line.contains("not passed on: "));
    assert!(removed.unwrap().contains("SLURM_PROCID"), "{out}");
}

#[test]
fn dry_run_starts_and_creates_nothing() {
    // A plan that is longer than a pipe holds: wireup waits in the middle of printing it.
    let long = "x".repeat(100_000);
    let words = [
        "--dry-run",
        "--pmi",
        "all",
        "--output",
        "%r",
        "--json",
        "j",
        "true",
        &long,
    ];
    let mut running = Run::new(words).stdout_held().start();
    let mut stdout = running.take_stdout();
    let mut first = [0];
    stdout.read_exact(&mut first).unwrap();
    let processes = running.processes();
    let own = running.pid();
    assert!(
        processes.iter().all(|process| process.pid == own),
        "{processes:?}"
    );
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert!(rest.contains(&long) && rest.contains("PMI and PMIx: --pmi all"));
    let outcome = running.finish().expect(0);
    let files: Vec<_> = fs::read_dir(outcome.dir()).unwrap().flatten().collect();
    assert!(files.is_empty(), "{files:?}");
    assert_eq!(outcome.err(), "");
}

#[test]
fn dry_run_refuses_same_errors_as_run() {
    let absent = "/nonexistent/dir";
    for (options, code) in [
        (&["-n", "100000", "true"][..], 125),
        (&["no-such-program"], 127),
        (&["/etc/passwd"], 126),
        (&["--wdir", absent, "true"], 125),
        (&["--virtual-nodes", "9", "-n", "2", "true"], 125),
        (&["--output", "/dev/null/dir/%r", "true"], 125),
        (&["--output", "same", "-n", "2", "true"], 125),
        (&["--output", "%y", "true"], 125),
        (&["--json", "/nonexistent/dir/x", "true"], 125),
        (&["--json", "fd:77", "true"], 125),
        (&["--stdin", "7", "-n", "1", "true"], 125),
        (&["--libpmix", absent, "--pmi", "pmix", "true"], 125),
        (
            &["--libpmix", "host=/nonexistent/dir", "--pmi", "all", "true"],
            125,
        ),
    ] {
        let real = Run::new(options).run().expect(code);
        let dry = Run::new(["--dry-run"].iter().chain(options))
            .run()
            .expect(code);
        assert_eq!(dry.err(), real.err(), "{options:?}");
        assert_eq!(dry.out(), "", "{options:?}");
    }
    // The name of the directory differs from run to run.
    let run = |options: &[&str]| {
        let run = Run::new(options.iter().chain(&["--pmi", "pmix", "true"]));
        run.under(["env", "TMPDIR=/nonexistent/dir"])
            .run()
            .expect(125)
    };
    for outcome in [run(&[]), run(&["--dry-run"])] {
        outcome.expect_one_line(&[
            "cannot create the directory /nonexistent/dir/wireup-",
            "set TMPDIR",
        ]);
    }
}

#[test]
fn explain_prints_reasons_and_runs_job() {
    let Some(mpi) = mpi("openmpi5") else { return };
    let outcome = mpi.run(2, &["-v"], "hello", &[]).run().expect(0);
    outcome.by_rank("hello", 2);
    let err = outcome.err();
    for line in [
        "wireup: ranks: 2 of program 1",
        "as given (-n)",
        "wireup: slots: ",
        "in the affinity mask",
        "cgroup",
        "wireup: placement: ",
        "wireup: program 1: ",
        "needs libmpi.so.40",
        "wireup: interface: PMIx, because program 1 needs PMIx\n",
        "wireup: libpmix: searched by --libpmix, then",
        &format!(
            "wireup: libpmix: taken {}",
            mpi.libpmix.as_ref().unwrap().display()
        ),
        "wireup: directory: ",
        "below TMPDIR; removed at the end\n",
    ] {
        assert!(err.contains(line), "no {line:?} in\n{err}");
    }
    // One slot for each CPU it may use, and no more.
    let run = Run::new(["-v", "--dry-run", "true"]).under(["taskset", "-c", "0"]);
    let outcome = run.run().expect(0);
    let err = outcome.err();
    assert!(
        outcome.out().contains("job        1 rank on 1 node"),
        "{outcome:?}"
    );
    assert!(
        err.contains("ranks: 1 of program 1 (/usr/bin/true): one per slot"),
        "{err}"
    );
    assert!(err.contains("slots: 1: 1 of "), "{err}");
    assert!(
        err.contains("no PMIx server, no libpmix and no directory"),
        "{err}"
    );
}

#[test]
fn explain_names_skipped_candidates() {
    let Some(mpi) = mpi("openmpi4") else { return };
    let run = Run::new(["-v", "--dry-run", "--pmi", "all", "true"]);
    let library = run.dir().join("libpmix.so.2");
    // Where the dynamic loader looks first, and ELF enough for it; without a version in it.
    fs::copy(mpi.program("hello"), &library).unwrap();
    let directory = run.dir().to_owned();
    let err = run.env("LD_LIBRARY_PATH", directory).run().expect(0).err();
    let line = format!(
        "libpmix: passed over {}, found by the dynamic loader: no version in the library\n",
        library.display()
    );
    assert!(err.contains(&line), "{err}");
}
