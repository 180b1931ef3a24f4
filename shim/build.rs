//! Takes the protocol's constants from wire.h, and builds the shim itself if PMIx headers are
//! there: from `PMIX_INCLUDE_DIR`, else by pkg-config.
//!
//! The shim is linked here because the `cc` crate makes static archives only. It has no DT_NEEDED
//! on libpmix: the host process decides which one it gets.

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const SOURCES: [&str; 12] = [
    "bytes.c",
    "types.c",
    "encode.c",
    "decode.c",
    "pending.c",
    "kept.c",
    "link.c",
    "munge.c",
    "credentials.c",
    "watch.c",
    "upcalls.c",
    "host.c",
];
/// What distributions build with: functions that write check the size of their buffers, a stack that is written
/// beyond its end is noticed, and what is linked at the start cannot be written afterwards. A level of the
/// compiler's own or of `CFLAGS` gives way: a macro is not to be defined twice.
const HARDENING: [&str; 7] = [
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=3",
    "-fstack-protector-strong",
    "-fstack-clash-protection",
    "-Wformat",
    "-Werror=format-security",
    "-Wl,-z,relro,-z,now,-z,noexecstack",
];
const HEADERS: [&str; 4] = ["wire.h", "host.h", "shim.h", "types.h"];

fn main() -> ExitCode {
    println!("cargo:rustc-check-cfg=cfg(have_pmix)");
    println!("cargo:rerun-if-env-changed=PMIX_INCLUDE_DIR");
    for file in SOURCES.iter().chain(&HEADERS) {
        println!("cargo:rerun-if-changed={file}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let built = constants(&out).and_then(|()| match pmix_includes() {
        Ok(includes) => library(&out, &includes),
        Err(reason) => {
            println!("cargo:warning=built without PMIx support: {reason}");
            Ok(())
        }
    });
    match built {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("cargo:error={error}");
            ExitCode::FAILURE
        }
    }
}

fn constants(out: &Path) -> Result<(), String> {
    // bindgen panics when libclang cannot be loaded; its message would bury ours.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let bindings = std::panic::catch_unwind(|| {
        bindgen::Builder::default()
            .header("wire.h")
            .allowlist_item("WIREUP_.*")
            .allowlist_type("wireup_.*")
            .prepend_enum_name(false)
            .generate()
    });
    std::panic::set_hook(hook);
    bindings
        .map_err(|_| "libclang is missing: install libclang-dev (Debian) or clang-devel (Fedora)")?
        .map_err(|error| format!("wire.h: {error}"))?
        .write_to_file(out.join("wire.rs"))
        .map_err(|error| format!("wire.rs: {error}"))
}

fn pmix_includes() -> Result<Vec<PathBuf>, String> {
    if let Some(dir) = env::var_os("PMIX_INCLUDE_DIR") {
        let dir = PathBuf::from(dir);
        return match dir.join("pmix_server.h").is_file() {
            true => Ok(vec![dir]),
            false => Err(format!("no pmix_server.h in {}", dir.display())),
        };
    }
    let library = pkg_config::Config::new()
        .atleast_version("4.2.2")
        .cargo_metadata(false)
        .probe("pmix")
        .map_err(|_| "pkg-config knows no pmix of version 4.2.2 or later (libpmix-dev)")?;
    // Compilers search it themselves; named, it would come before the headers of another glibc.
    let mut includes = library.include_paths;
    includes.retain(|dir| dir != Path::new("/usr/include"));
    let has_header = |dir: &PathBuf| dir.join("pmix_server.h").is_file();
    match includes.iter().any(has_header) || Path::new("/usr/include/pmix_server.h").is_file() {
        true => Ok(includes),
        false => Err("pkg-config names no directory with pmix_server.h".into()),
    }
}

fn library(out: &Path, includes: &[PathBuf]) -> Result<(), String> {
    // OUT_DIR is <profile directory>/build/<package>/out.
    let beside_executables = out
        .ancestors()
        .nth(3)
        .ok_or("OUT_DIR has no profile directory")?;
    let library = beside_executables.join("libwireup-pmix-host.so");
    let mut command = cc::Build::new()
        .cargo_metadata(false)
        .try_get_compiler()
        .map_err(|error| format!("no C compiler: {error}"))?
        .to_command();
    command
        .args(["-std=gnu11", "-D_GNU_SOURCE", "-DWIREUP_BUILDING_SHIM"])
        .args([
            "-shared", "-fPIC", "-pthread", "-O2", "-g", "-Wall", "-Wextra",
        ])
        .args(HARDENING)
        .args(["-fvisibility=hidden", "-ldl"])
        .arg(concat!(
            "-DWIREUP_VERSION=\"",
            env!("CARGO_PKG_VERSION"),
            "\""
        ));
    for dir in includes {
        command.arg("-isystem").arg(dir);
    }
    let status = command
        .args(SOURCES)
        .arg("-o")
        .arg(&library)
        .status()
        .map_err(|error| format!("C compiler: {error}"))?;
    if !status.success() {
        return Err(format!("the shim does not compile: {status}"));
    }
    println!("cargo:rustc-cfg=have_pmix");
    let includes = env::join_paths(includes).map_err(|error| error.to_string())?;
    println!("cargo:pmix_includes={}", includes.display());
    println!("cargo:library={}", library.display());
    Ok(())
}
