//! Small shared libraries and programs that tests make for themselves.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{repository, skip};

/// Compiles one C file, with `others` to link it with, into a shared library in `dir`; `None`, and the test is ignored, without a compiler.
///
/// # Panics
/// When the compiler does not accept it.
#[track_caller]
pub fn shared_library(dir: &Path, name: &str, source: &Path, others: &[&Path]) -> Option<PathBuf> {
    let library = dir.join(name);
    let shim = repository().join("shim");
    let mut command = Command::new("cc");
    command
        .args([
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-I",
        ])
        .arg(shim)
        .arg(source)
        // Debian's compilers leave out what nothing refers to yet.
        .arg("-Wl,--no-as-needed")
        .args(others)
        .args(["-pthread", "-ldl", "-o"])
        .arg(&library);
    accepted(&mut command, source).then_some(library)
}

/// Compiles a C program of a few lines in `dir`; `None`, and the test is ignored, without a compiler.
///
/// # Panics
/// As [`shared_library`].
#[track_caller]
pub fn executable(dir: &Path, name: &str, text: &str, options: &[&str]) -> Option<PathBuf> {
    let program = dir.join(name);
    let source = program.with_extension("c");
    std::fs::write(&source, text).unwrap();
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror"]);
    command.args(options).arg(&source).arg("-o").arg(&program);
    accepted(&mut command, &source).then_some(program)
}

/// Runs a compiler; false, and the test is ignored, if there is none.
#[track_caller]
fn accepted(command: &mut Command, source: &Path) -> bool {
    match command.output() {
        Err(_) => {
            skip("what the tests compile: there is no cc");
            false
        }
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {stderr}", source.display());
            true
        }
    }
}
