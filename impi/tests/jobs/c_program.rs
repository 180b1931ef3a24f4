//! The C interface: processes in C, by themselves, under the sanitizers and under valgrind.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::Signal;
use wireup_test_support::skip;

use super::{Job, end, library};

/// Compiler and launcher options of a C program.
struct Way {
    compiler: &'static str,
    flags: &'static [&'static str],
    before: &'static [&'static str],
}

const WAYS: [Way; 4] = [
    Way {
        compiler: "gcc",
        flags: &["-O2"],
        before: &[],
    },
    Way {
        compiler: "clang",
        flags: &["-O1"],
        before: &[],
    },
    Way {
        compiler: "gcc",
        flags: &[
            "-O1",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
        ],
        before: &[],
    },
    Way {
        compiler: "gcc",
        flags: &["-O1"],
        before: &[
            "valgrind",
            "--quiet",
            "--error-exitcode=99",
            "--fair-sched=try",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite,indirect,possible",
        ],
    },
];

/// Directory of the library; `None`, and the test is ignored, if something that it needs is
/// missing.
#[track_caller]
fn available(way: &Way) -> Option<PathBuf> {
    let libraries = library::libraries()?;
    let programs = [way.compiler]
        .into_iter()
        .chain(way.before.first().copied());
    for program in programs {
        if Command::new(program).arg("--version").output().is_err() {
            skip(&format!("no {program} here: scripts/setup installs it"));
            return None;
        }
    }
    Some(libraries)
}

/// Starts the program in each process of a job.
fn start(way: &Way, program: &Path, mode: &str, job: &Job) -> Vec<Child> {
    let mut children = Vec::new();
    for (variables, size) in job.variables.iter().zip(&job.sizes) {
        for index in 0..*size {
            // What is killed frees nothing.
            let killed = mode == "lost" && children.len() == 1;
            let before = if killed { &[] } else { way.before };
            let mut words = before.iter().map(Path::new).chain([program]);
            let mut command = Command::new(words.next().unwrap());
            command
                .args(words)
                .arg(mode)
                .envs(variables)
                .env_remove("WIREUP_RANK")
                .env("PMI_RANK", index.to_string())
                .env("ASAN_OPTIONS", "detect_leaks=1")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            children.push(command.spawn().unwrap());
        }
    }
    children
}

fn run(way: &Way, program: &Path, mode: &str, job: &Job) {
    let running = start(way, program, mode, job);
    let ended = running.into_iter().map(|child| child.wait_with_output());
    let in_order = |rank: usize, status: ExitStatus| match (mode, rank) {
        ("lost", 1) => status.signal() == Some(Signal::KILL.as_raw()),
        _ => status.success(),
    };
    // A failed process ends the others, so the output of all is shown.
    let failures: Vec<String> = ended
        .map(Result::unwrap)
        .enumerate()
        .filter(|(rank, output)| !in_order(*rank, output.status) || !output.stderr.is_empty())
        .map(|(_, output)| output)
        .map(|output| {
            format!(
                "{}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            )
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn checked(way: &Way) {
    let Some(libraries) = available(way) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("calls");
    let flags = [&["-g", "-pthread"], way.flags].concat();
    library::compile(way.compiler, &flags, &libraries, ("jobs/calls.c", &program));
    for (mode, sizes, options) in [
        ("external32", &[2, 1, 1][..], &[][..]),
        (
            "external32",
            &[1, 2],
            &["--datalen", "1000", "--ackmark", "1", "--hiwater", "2"],
        ),
        ("native", &[2, 2], &["--lam"]),
    ] {
        let job = Job::start(sizes, options);
        run(way, &program, mode, &job);
        job.end();
    }
    let job = Job::start(&[1, 2], &[]);
    run(way, &program, "lost", &job);
    let codes: Vec<Option<i32>> = job.agents.into_iter().map(|agent| end(agent).0).collect();
    assert_eq!(codes, [Some(1); 2]);
}

#[test]
fn each_function_does_as_header_documents() {
    checked(&WAYS[0]);
    checked(&WAYS[1]);
}

#[test]
fn sanitizers_find_nothing() {
    checked(&WAYS[2]);
}

#[test]
fn valgrind_finds_nothing() {
    checked(&WAYS[3]);
}

#[test]
fn header_is_c_and_cpp() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("capi/wireup-impi.h");
    for (compiler, language) in [
        ("gcc", "c"),
        ("clang", "c"),
        ("g++", "c++"),
        ("clang++", "c++"),
    ] {
        let mut command = Command::new(compiler);
        command.args([
            "-x",
            language,
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
        ]);
        let Ok(output) = command.arg(&header).output() else {
            return skip(&format!("no {compiler} here: scripts/setup installs it"));
        };
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler}: {stderr}");
    }
}
