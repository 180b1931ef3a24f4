//! A wireup or a machine without PMIx: PMI-1 is served all the same, and a program that needs PMIx is refused
//! what to do. (Parts that are there and wrong: see `libraries`.)

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Outcome, Output, Run, mpi, number, pmix, skip};

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

/// A directory for installations that lack something.
struct Lacking {
    dir: tempfile::TempDir,
}

impl Lacking {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    /// Installs `wireup` with some of its parts in one directory.
    fn wireup_with(&self, parts: &[&str]) -> PathBuf {
        let dir = self.dir.path().join(format!("with-{}", parts.len()));
        fs::create_dir(&dir).unwrap();
        for part in ["wireup"].iter().chain(parts) {
            fs::copy(Path::new(WIREUP).with_file_name(part), dir.join(part)).unwrap();
        }
        dir.join("wireup")
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Fails unless no rank ran, and one line gives reason and remedy.
#[track_caller]
fn expect_refusal(outcome: Outcome, words: &[&str]) {
    let outcome = outcome.expect(125);
    outcome.expect_one_line(words);
    assert_eq!(outcome.out(), "", "{outcome:?}");
}

#[test]
fn wireup_without_sidecar_serves_pmi1_and_names_missing_parts() {
    let lacking = Lacking::new();
    let bare = lacking.wireup_with(&[]);
    let pmix = |wireup: &Path| {
        Run::command([
            text(wireup).as_str(),
            "run",
            "-n",
            "1",
            "--pmi",
            "pmix",
            "true",
        ])
        .run()
    };
    expect_refusal(
        pmix(&bare),
        &[
            "PMIx needs wireup-pmix-host",
            "libpmix-dev",
            "--libpmix host=FILE",
        ],
    );
    let no_shim = lacking.wireup_with(&["wireup-pmix-host"]);
    expect_refusal(
        pmix(&no_shim),
        &[
            "PMIx needs libwireup-pmix-host.so",
            "libpmix-dev",
            "--libpmix shim=FILE",
        ],
    );
    // Nothing shows that a script needs PMIx, and it works without.
    let words = [text(&bare), "run".into(), "-n".into(), "1".into()];
    let script = ["sh", "-c", "eval 'echo $PMI_SIZE'"].map(str::to_owned);
    let outcome = Run::command(words.iter().chain(&script)).run();
    assert_eq!(outcome.expect_quiet_success().out(), "1\n");
    let verbose = words.into_iter().chain(["-v".to_owned()]).chain(script);
    let outcome = Run::command(verbose).run().expect(0);
    assert!(
        outcome
            .err()
            .contains("interface: PMIx is left out: PMIx needs"),
        "{outcome:?}"
    );
    if let Some(mpi) = mpi("openmpi4") {
        let program = text(&mpi.program("hello"));
        let outcome = Run::command([text(&bare).as_str(), "run", "-n", "1", &program]).run();
        expect_refusal(outcome, &["PMIx needs wireup-pmix-host"]);
    }
    if let Some(mpi) = mpi("mpich5") {
        let program = text(&mpi.program("hello"));
        let outcome = Run::command([text(&bare).as_str(), "run", "-n", "1", &program]).run();
        outcome.expect_success().by_rank("hello", 1);
    }
}

#[test]
fn machine_without_libpmix_serves_pmi1_and_names_searched_paths() {
    let Some(system) = pmix("pmix4") else { return };
    // Lies over the library, for this run only.
    let script = "mount --bind /dev/null \"$0\" && exec \"$@\"";
    let hidden = |run: Run| {
        let prefix = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
        ];
        run.under(
            prefix
                .iter()
                .copied()
                .chain([text(&system.real()).as_str()]),
        )
    };
    let words = ["-n", "1", "--pmi", "pmix", "true"];
    let possible = [
        "unshare",
        "--mount",
        "mount",
        "--bind",
        "/dev/null",
        "/dev/null",
    ];
    let possible = Command::new(possible[0]).args(&possible[1..]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        return skip("a machine without libpmix: needs the right to mount");
    }
    let words_of_it = [
        "no libpmix.so.2 found; searched: ",
        "apt-get install libpmix2",
        "--libpmix",
    ];
    expect_refusal(hidden(Run::new(words)).run(), &words_of_it);
    let script = Run::new(["-n", "1", "sh", "-c", "eval 'echo $PMI_SIZE'"]);
    assert_eq!(hidden(script).run().expect_quiet_success().out(), "1\n");
}

#[test]
fn failure_to_create_directory_leaves_no_guard() {
    let run = Run::new(["--pmi", "pmix", "-n", "1", "true"]);
    let outcome = run.under(["env", "TMPDIR=/nonexistent/dir"]).run();
    let words = [
        "cannot create the directory /nonexistent/dir/wireup-",
        "set TMPDIR",
    ];
    expect_refusal(outcome, &words);
}

#[test]
fn failed_pmix_server_names_variable_of_user() {
    if pmix("pmix4").is_none() {
        return;
    }
    let run = Run::ranks(1, ["--pmi", "pmix", "true"]).env("PMIX_MCA_psec", "munge");
    let words = [
        "PMIx_server_init failed",
        ": PMIX_MCA_psec=munge in the environment may be the cause",
    ];
    let outcome = run.run().expect(125);
    let line = outcome.expect_one_line(&words);
    assert!(!line.contains("PMIX_MCA_gds"), "not ours: {line}");
}

/// Puts a command into namespaces after a line of a shell; `None`, and the test is ignored, where that is not permitted.
#[track_caller]
fn separated(run: Run, options: &[&str], line: &str) -> Option<Run> {
    let script = format!("{line} && exec \"$@\"");
    let mut words = vec!["unshare"];
    words.extend(options);
    words.extend(["sh", "-c", &script, "sh"]);
    let possible = Command::new(words[0])
        .args(&words[1..])
        .arg("true")
        .output();
    if !possible.is_ok_and(|output| output.status.success()) {
        skip("namespaces of its own: needs root");
        return None;
    }
    Some(run.under(words))
}

#[test]
fn failed_pmix_server_names_loopback_that_is_down() {
    if pmix("pmix4").is_none() {
        return;
    }
    let run = Run::ranks(1, ["--pmi", "pmix", "true"]);
    let Some(run) = separated(run, &["--net"], ":") else {
        return;
    };
    let outcome = run.run().expect(125);
    let line = outcome.expect_one_line(&["no connection over the loopback: ", "ip link set lo up"]);
    assert!(!line.contains("try another libpmix"), "{line}");
}

#[test]
fn missing_null_device_is_named() {
    let line = "mount -t tmpfs t /dev";
    let Some(run) = separated(Run::ranks(1, ["true"]), &["--mount"], line) else {
        return;
    };
    let outcome = run.run().expect(125);
    let line = outcome.expect_one_line(&["cannot open /dev/null: No such file or directory"]);
    assert!(!line.contains("ulimit"), "{line}");
}

#[test]
fn rank_without_directory_of_pmix_server_is_named() {
    // Open MPI 5 crashes there.
    for (name, code) in [("openmpi4", 0), ("openmpi5", 139)] {
        let Some(mpi) = mpi(name) else { continue };
        let script = "mount -t tmpfs t \"$PMIX_SYSTEM_TMPDIR\" && exec \"$0\"";
        let words = ["--pmi", "pmix", "unshare", "--mount", "sh", "-c", script];
        let run = Run::ranks(2, words).more([mpi.program("hello")]);
        let Some(run) = separated(run, &["--mount"], ":") else {
            return;
        };
        let outcome = run.run().expect(code);
        let words = ["is in a mount namespace without /", "TMPDIR"];
        let err = outcome.err();
        let lines = err
            .lines()
            .filter(|line| words.iter().all(|word| line.contains(word)));
        assert_eq!(lines.count(), 1, "{name}: {err}");
    }
}

#[test]
fn open_mpi_runs_on_hosts_with_names_libpmix_cannot_compress() {
    let Some(mpi) = mpi("openmpi4") else { return };
    for name in [&*"a".repeat(63), "a12345678901"] {
        let run = mpi.run(2, &[], "split_shared", &[]);
        let Some(run) = separated(run, &["--uts"], &format!("hostname {name}")) else {
            return;
        };
        for line in run.run().expect_success().by_rank("split_shared", 2) {
            assert_eq!(number(&line, "local_size"), 2, "{line}");
        }
    }
}

/// A name that would clear the terminal and begin a line of wireup's.
const HOSTILE: &str = "x\x1b[2J\nwireup: forged";

/// Fails if a text moves the cursor or has the line of [`HOSTILE`].
#[track_caller]
fn expect_plain(text: &str) {
    assert!(text.contains(r"[2J\nwireup: forged"), "{text:?}");
    let escape = |c: char| c.is_control() && c != '\n';
    assert!(!text.contains(escape), "{text:?}");
    assert!(!text.lines().any(|line| line == "wireup: forged"), "{text}");
}

#[test]
fn names_of_files_forge_no_line() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("directories").join(HOSTILE);
    fs::create_dir_all(&directory).unwrap();
    let program = place.path().join(HOSTILE);
    fs::write(
        &program,
        "#!/bin/sh\necho ready; read -r code; exit $code\n",
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let run = |options: &[&str]| {
        let words = ["-n", "1", "--wdir", directory.to_str().unwrap()];
        Run::new(words).more(options).more([&program])
    };
    let planned = run(&["--dry-run", "-v"]).run().expect(0);
    expect_plain(&planned.out());
    expect_plain(&planned.err());
    let missing = place.path().join("missing").join(HOSTILE);
    let refused = Run::new(["-n", "1"]).more([&missing]).run().expect(127);
    expect_plain(&refused.err());
    let mut running = run(&["-v"]).stdin_held().start();
    running.wait_for(Output::Stdout, "ready");
    let shown = Run::command([WIREUP, "ps", &running.pid().to_string()]);
    expect_plain(&shown.run().expect(0).out());
    running.stdin().write_all(b"3\n").unwrap();
    expect_plain(&running.finish().expect(3).err());
    let none = directory.join("status");
    let refused = Run::command([WIREUP, "report", none.to_str().unwrap()]).run();
    assert_ne!(refused.code, 0, "{refused:?}");
    expect_plain(&refused.err());
}
