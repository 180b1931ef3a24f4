//! Output directories that `scripts/package` refuses: it replaces the files of an earlier run, and no others.

use std::fs;
use std::path::Path;
use std::process::Command;

use wireup_test_support::repository;

/// Has `scripts/package` write to a directory; returns the message of the refusal.
#[track_caller]
fn refusal(output: &Path) -> String {
    let programs = tempfile::tempdir().unwrap();
    let mut script = Command::new(repository().join("scripts/package"));
    script.arg("--programs").arg(programs.path());
    let output = script.arg("--output").arg(output).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A directory with one file.
fn directory(name: &str, content: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(name), content).unwrap();
    dir
}

#[test]
fn output_with_other_files_is_refused() {
    let dir = directory("thesis.tex", "");
    let message = refusal(dir.path());
    assert!(message.contains("no SHA256SUMS"), "{message}");
    assert!(dir.path().join("thesis.tex").exists());
}

#[test]
fn output_with_other_checksums_is_refused() {
    let sums = format!("{}  debian.iso\n", "0".repeat(64));
    let dir = directory("SHA256SUMS", &sums);
    let message = refusal(dir.path());
    assert!(message.contains("debian.iso"), "{message}");
}

#[test]
fn output_above_repository_is_refused() {
    for above in [repository(), repository().parent().unwrap()] {
        let message = refusal(above);
        assert!(message.contains("it contains"), "{message}");
    }
}
