//! Programs in C over libwireup_impi, which `cargo build --workspace` makes.

use std::path::{Path, PathBuf};
use std::process::Command;

use wireup_test_support::skip;

/// Directory of the library; `None`, and the test is ignored, if it was not built.
#[track_caller]
pub(crate) fn libraries() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_wireup-impi"));
    let libraries = program.parent().unwrap().to_owned();
    if libraries.join("libwireup_impi.so").exists() {
        return Some(libraries);
    }
    skip("libwireup_impi.so is not there: cargo build --workspace");
    None
}

/// Compiles a source of these tests to a program, without a warning.
pub(crate) fn compile(
    compiler: &str,
    flags: &[&str],
    libraries: &Path,
    (source, program): (&str, &Path),
) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(compiler)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Wshadow", "-Werror"])
        .args(flags)
        .arg(package.join("tests").join(source))
        .arg("-I")
        .arg(package.join("capi"))
        .arg("-L")
        .arg(libraries)
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .args(["-lwireup_impi", "-o"])
        .arg(program)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
}
