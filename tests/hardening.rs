//! Hardening of the built programs and libraries, as distributions do it.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use object::elf::{DF_BIND_NOW, DT_FLAGS, FileHeader64, PF_X, PT_GNU_RELRO, PT_GNU_STACK};
use object::read::elf::{Dyn, ElfFile, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};

/// Reads a program that `cargo build --workspace` builds.
fn built(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_BIN_EXE_wireup")).with_file_name(name);
    std::fs::read(path).unwrap()
}

#[track_caller]
fn linked_tight(name: &str, data: &[u8]) {
    let header = FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = header.endian().unwrap();
    let segments = header.program_headers(endian, data).unwrap();
    let of_type = |kind| segments.iter().find(move |s| s.p_type(endian) == kind);
    assert!(of_type(PT_GNU_RELRO).is_some(), "{name}: RELRO");
    let stack = of_type(PT_GNU_STACK).expect("a stack");
    assert_eq!(stack.p_flags(endian) & PF_X, 0, "{name}: the stack");
    let mut dynamic = segments
        .iter()
        .filter_map(|segment| segment.dynamic(endian, data).unwrap())
        .flatten();
    let now = dynamic.any(|entry| {
        entry.tag32(endian) == Some(DT_FLAGS)
            && entry.d_val.get(endian) & u64::from(DF_BIND_NOW) != 0
    });
    assert!(now, "{name}: bound at the start");
}

#[test]
fn libraries_and_programs_are_linked_tight() {
    for name in ["wireup", "wireup-agent", "wireup-pmix-host"] {
        linked_tight(name, &built(name));
    }
}

#[test]
fn shim_has_stack_and_buffer_checks() {
    let name = "libwireup-pmix-host.so";
    let path = Path::new(env!("CARGO_BIN_EXE_wireup")).with_file_name(name);
    let Ok(data) = std::fs::read(path) else {
        println!("ignored: built without PMIx");
        return;
    };
    linked_tight(name, &data);
    let file = ElfFile::<FileHeader64<Endianness>>::parse(&*data).unwrap();
    let symbols: Vec<&str> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined())
        .map(|symbol| symbol.name().unwrap())
        .collect();
    assert!(symbols.contains(&"__stack_chk_fail"), "{symbols:?}");
    let checked = |name: &&str| name.starts_with("__") && name.ends_with("_chk");
    assert!(symbols.iter().any(checked), "{symbols:?}");
}
