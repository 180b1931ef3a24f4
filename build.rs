//! Compiles the program that holds the container of a node. It goes into images of any C library, so it uses none.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

const SOURCE: &str = "src/backend/container/holder.c";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let holder = out.join("holder");
    if let Err(reason) = compile(&holder) {
        println!("cargo:warning=built without support of containers: {reason}");
        fs::write(&holder, b"").expect("OUT_DIR can be written");
    }
}

fn compile(holder: &Path) -> Result<(), String> {
    let mut command = cc::Build::new()
        .cargo_metadata(false)
        .try_get_compiler()
        .map_err(|error| format!("no C compiler: {error}"))?
        .to_command();
    command
        .args([
            "-std=gnu11",
            "-Os",
            "-Wall",
            "-Wextra",
            "-ffreestanding",
            "-fno-stack-protector",
        ])
        .args([
            "-fno-pie",
            "-no-pie",
            "-static",
            "-nostdlib",
            "-s",
            "-Wl,--build-id=none,-z,noexecstack",
        ])
        .args([SOURCE, "-o"])
        .arg(holder);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{SOURCE} does not compile: {status}")),
        Err(error) => Err(format!("C compiler: {error}")),
    }
}
