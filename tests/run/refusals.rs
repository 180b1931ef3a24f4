//! A wireup or a machine without PMIx: PMI-1 is served all the same, and a program that needs PMIx is refused
//! what to do. (Parts that are there and wrong: see `libraries`.)

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Outcome, Run, mpi, pmix, skip};

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

    /// `wireup` with some of its parts beside it.
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

/// Fails unless no rank ran, and one line says why and what to do.
#[track_caller]
fn expect_refusal(outcome: Outcome, words: &[&str]) {
    let outcome = outcome.expect(125);
    outcome.expect_one_line(words);
    assert_eq!(outcome.out(), "", "{outcome:?}");
}

#[test]
fn a_wireup_without_its_parts_serves_pmi_1_and_says_what_pmix_needs() {
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
        &["PMIx needs wireup-pmix-host", "libpmix-dev", "--pmix-host"],
    );
    let no_shim = lacking.wireup_with(&["wireup-pmix-host"]);
    expect_refusal(
        pmix(&no_shim),
        &["PMIx needs libwireup-pmix-host.so", "libpmix-dev", "--shim"],
    );
    // Nothing says that a script needs PMIx, and it does without.
    let words = [text(&bare), "run".into(), "-n".into(), "1".into()];
    let script = ["sh", "-c", "eval 'echo $PMI_SIZE'"].map(str::to_owned);
    let outcome = Run::command(words.iter().chain(&script)).run();
    assert_eq!(outcome.expect_quiet_success().out(), "1\n");
    let verbose = words.into_iter().chain(["-v".to_owned()]).chain(script);
    let outcome = Run::command(verbose).run().expect(0);
    assert!(
        outcome
            .err()
            .contains("wireup: PMIx is not offered: PMIx needs"),
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
fn a_machine_without_libpmix_serves_pmi_1_and_says_where_pmix_was_looked_for() {
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
fn a_directory_that_cannot_be_made_is_refused_and_no_guard_is_left() {
    let run = Run::new(["--pmi", "pmix", "-n", "1", "true"]);
    let outcome = run.under(["env", "TMPDIR=/nonexistent/dir"]).run();
    let words = [
        "cannot make the directory /nonexistent/dir/wireup-",
        "set TMPDIR",
    ];
    expect_refusal(outcome, &words);
}
