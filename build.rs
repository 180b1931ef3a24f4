//! Links `wireup` without shared libraries where the compiler has glibc as an archive: loading them
//! is a tenth to a fifth of the time of a short run. Where it has not, the unwinder alone is linked in.
//!
//! Only this executable may be: the agent looks up users, for which glibc loads modules, and the
//! sidecar's process loads OpenPMIx. rustc's `crt-static` is for all that is built at once, so it
//! is the linker that is told: it finds what rustc asks for by name (`-lc`) as a script that names
//! the archive.
//!
//! What a launch executes is linked together (`src/startup.order`): of a program that is read from
//! everywhere the system maps, and unmaps at its end, four times as much.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// What rustc links for its standard library on Linux with glibc, and the archives it is in.
const LIBRARIES: [(&str, &[&str]); 7] = [
    ("c", &["libc.a", "libgcc_eh.a", "libgcc.a"]),
    ("dl", &["libdl.a"]),
    ("gcc_s", &["libgcc_eh.a", "libgcc.a"]),
    ("m", &["libm.a"]),
    ("pthread", &["libpthread.a"]),
    ("rt", &["librt.a"]),
    ("util", &["libutil.a"]),
];

/// The glibc 2.x from which on a program without shared libraries can carry out a packed list of its
/// relocations. Source: glibc's NEWS.
const PACKED_SINCE: u32 = 36;

/// What a launch executes; see there.
const ORDER: &str = "src/startup.order";

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={ORDER}");
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("gnu") {
        return Ok(());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // As rustc does: its linker is a compiler, for this target, unless it was told another.
    let compiler = env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_owned());
    let archive = |name: &&str| archive(&compiler, name);
    if let Some(unwinder) = archive(&"libgcc_eh.a") {
        // Alone in a directory: beside it there is a libgcc_s.so, which must not be found.
        let alone = out.join("unwinder");
        fs::create_dir_all(&alone)?;
        fs::copy(unwinder, alone.join("libgcc_eh.a"))?;
        println!("cargo:rustc-link-search=native={}", alone.display());
        println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
    }
    let scripts = out.join("static");
    fs::create_dir_all(&scripts)?;
    for (library, archives) in LIBRARIES {
        let Some(archives) = archives.iter().map(archive).collect::<Option<Vec<_>>>() else {
            return Ok(());
        };
        let names: Vec<_> = archives.iter().map(|path| quoted(path)).collect();
        let script = format!("GROUP({})\n", names.join(" "));
        fs::write(scripts.join(format!("lib{library}.so")), script)?;
    }
    println!("cargo:rustc-link-arg-bin=wireup=-static-pie");
    if glibc(&compiler).is_some_and(|minor| minor >= PACKED_SINCE) {
        // What is to be relocated at the start is listed in a small part of the space.
        println!("cargo:rustc-link-arg-bin=wireup=-Wl,-z,pack-relative-relocs");
    }
    println!("cargo:rustc-link-arg-bin=wireup=-L{}", scripts.display());
    // Without optimization other functions are called, and there are too many to be quick.
    if env::var("OPT_LEVEL").is_ok_and(|level| level != "0") {
        let script = out.join("startup.ld");
        fs::write(&script, ordering(&fs::read_to_string(ORDER)?))?;
        println!(
            "cargo:rustc-link-arg-bin=wireup=-Wl,-T,{}",
            script.display()
        );
    }
    Ok(())
}

/// The linker script that puts the functions of a list first, and the constants of the C library, most of
/// which its start needs, beside the list of relocations. What is not there is no error.
fn ordering(list: &str) -> String {
    let names = list.lines().filter(|line| !line.starts_with('#'));
    let inputs = names.map(|name| match name.ends_with(".o") {
        true => format!("    *libc.a:{name}(.text .text.*)\n"),
        // What is called rarely is in sections of its own; a copy of a function has a number.
        false => format!("    *(.text.{name} .text.{name}.* .text.unlikely.{name})\n"),
    });
    let inputs: String = inputs.collect();
    format!(
        "SECTIONS {{\n  .text.startup_order : {{\n    *crt1.o(.text)\n{inputs}  }}\n}}\n\
         INSERT BEFORE .text;\n\
         SECTIONS {{\n  .rodata.startup_order : {{ *libc.a:*.o(.rodata .rodata.*) }}\n}}\n\
         INSERT AFTER .rela.dyn;\n"
    )
}

/// The minor version of the compiler's glibc, whose major version is 2.
fn glibc(compiler: &str) -> Option<u32> {
    let output = Command::new(compiler)
        .args([
            "-E",
            "-dM",
            "-include",
            "features.h",
            "-x",
            "c",
            "/dev/null",
        ])
        .output()
        .ok()?;
    let macros = String::from_utf8(output.stdout).ok()?;
    let minor = |line: &str| {
        line.strip_prefix("#define __GLIBC_MINOR__ ")?
            .trim()
            .parse()
            .ok()
    };
    macros.lines().find_map(minor)
}

/// Where the compiler has an archive.
fn archive(compiler: &str, name: &str) -> Option<PathBuf> {
    let output = Command::new(compiler)
        .arg(format!("-print-file-name={name}"))
        .output()
        .ok()?;
    // A compiler that does not have it prints the bare name.
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.is_absolute().then_some(path)
}

/// A path in a linker script.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display())
}
