//! Compiles the program that holds the container of a node, which goes into images of any C library, so it uses none; and
//! the symbols of MPIR, with debug information that stays when there is no other. Links the launcher so that it starts fast.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const SOURCE: &str = "src/backend/container/holder.c";
const MPIR: &str = "src/control/mpir.c";
const MPIR_DEBUG_INFO: &str = "src/control/mpir_debug_info.ld";

fn main() -> ExitCode {
    if let Err(error) = mpir() {
        println!("cargo:error={MPIR}: {error}");
        return ExitCode::FAILURE;
    }
    holder();
    shorten_start();
    ExitCode::SUCCESS
}

/// Links `wireup` so that the dynamic loader has little to do: docs/startup.md has what each of these gains.
fn shorten_start() {
    let list = |name: &str| env::var(name).unwrap_or_default();
    if list("CARGO_CFG_TARGET_ENV") != "gnu"
        || list("CARGO_CFG_TARGET_FEATURE").contains("crt-static")
    {
        return;
    }
    // The unwinder of GNU's compiler is then no library to be loaded. zig links its own so by itself.
    let Ok(compiler) = cc::Build::new().cargo_metadata(false).try_get_compiler() else {
        return;
    };
    let mut command = compiler.to_command();
    let found = command.arg("-print-file-name=libgcc_eh.a").output();
    let is_found =
        found.is_ok_and(|found| found.status.success() && found.stdout.starts_with(b"/"));
    if compiler.is_like_gnu() && is_found {
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
    }
}

/// Compiles the symbols of MPIR.
fn mpir() -> Result<(), cc::Error> {
    println!("cargo:rerun-if-changed={MPIR}");
    println!("cargo:rerun-if-changed={MPIR_DEBUG_INFO}");
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    cc::Build::new()
        .file(MPIR)
        .debug(true)
        // Parallel debuggers may not read later versions.
        .flag("-gdwarf-4")
        .flag(format!("-fdebug-prefix-map={root}=."))
        .warnings(true)
        .try_compile("wireup_mpir")?;
    // Without debug information of its own the executable would have that of the standard library. The profile cannot strip
    // it: that would take all.
    let is_wanted = env::var("DEBUG").is_ok_and(|debug| debug != "false");
    // Linkers that read no scripts leave it in. GNU's and LLD read them, and zig passes them to its LLD.
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut flags = flags
        .split('\x1f')
        .filter(|flag| !flag.starts_with("--remap-path-prefix"));
    let reads_scripts =
        !flags.any(|flag| ["mold", "wild"].iter().any(|linker| flag.contains(linker)));
    if !is_wanted && reads_scripts {
        println!("cargo:rustc-link-arg-bins=-Wl,-T,{root}/{MPIR_DEBUG_INFO}");
    }
    Ok(())
}

fn holder() {
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
