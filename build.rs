//! Links the unwinder into the executable, where the compiler has it as a static library: loading
//! the shared one is a twentieth of the time of a short run.

use std::path::Path;
use std::process::Command;

const LIBRARY: &str = "libgcc_eh.a";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("gnu") {
        return;
    }
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let Ok(output) = Command::new(compiler)
        .arg(format!("-print-file-name={LIBRARY}"))
        .output()
    else {
        return;
    };
    // A compiler that does not have it prints the bare name.
    let path = String::from_utf8_lossy(&output.stdout);
    let Some(dir) = Path::new(path.trim())
        .parent()
        .filter(|dir| dir.is_absolute())
    else {
        return;
    };
    println!("cargo:rustc-link-search=native={}", dir.display());
    println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
}
