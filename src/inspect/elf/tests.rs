use super::sample::Sample;
use super::*;

#[test]
fn real_program_has_its_loader_and_c_library() {
    let elf = read(Path::new("/bin/true")).unwrap();
    assert_eq!(elf.machine, Machine::OWN);
    assert!(elf.runnable && elf.dynamic);
    assert!(elf.interpreter.unwrap().exists());
    assert!(
        elf.needed
            .iter()
            .any(|name| name.to_string_lossy().contains("libc"))
    );
}

#[test]
fn dynamic_entries_are_read_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = Sample {
        needed: &["libb.so.2", "liba.so.1"],
        rpath: Some("/old"),
        runpath: Some("$ORIGIN/../lib"),
        interpreter: Some("/lib/ld.so"),
        ..Sample::default()
    }
    .write(directory.path().join("app"));
    let elf = read(&path).unwrap();
    assert_eq!(elf.needed, ["libb.so.2", "liba.so.1"]);
    assert_eq!(elf.rpath.as_deref(), Some("/old".as_ref()));
    assert_eq!(elf.runpath.as_deref(), Some("$ORIGIN/../lib".as_ref()));
    assert_eq!(elf.interpreter.as_deref(), Some("/lib/ld.so".as_ref()));
}

#[test]
fn no_truncation_and_no_single_damaged_byte_panics() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app");
    let whole = Sample {
        needed: &["libmpi.so.40", "libc.so.6"],
        runpath: Some("$ORIGIN"),
        interpreter: Some("/lib/ld.so"),
        constants: "OpenPMIx 5.0.1",
        ..Sample::default()
    }
    .bytes();
    let look = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let found = find_in_constants(&path, b"PMIx ", 16, |text| Some(text.to_vec()));
        (read(&path), found)
    };
    for length in 0..whole.len() {
        let (elf, _) = look(&whole[..length]);
        assert!(elf.is_err(), "{length} of {} bytes", whole.len());
    }
    for at in 0..whole.len() {
        for value in [0, 0x7f, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = value;
            // Any result will do.
            let _ = look(&damaged);
        }
    }
}

#[test]
fn non_file_and_non_elf_are_distinguished() {
    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("text");
    std::fs::write(&text, "#!/bin/sh\n").unwrap();
    assert!(matches!(read(&text), Err(ElfError::NotElf)));
    assert!(matches!(read(directory.path()), Err(ElfError::NotAFile)));
    let pipe = directory.path().join("pipe");
    rustix::fs::mkfifoat(CWD, &pipe, Mode::RUSR).unwrap();
    assert!(
        matches!(read(&pipe), Err(ElfError::NotAFile)),
        "and does not wait for a writer"
    );
    assert!(matches!(read(Path::new("/nowhere")), Err(ElfError::Io(_))));
}

#[test]
fn constant_is_found_across_chunk_boundary() {
    let directory = tempfile::tempdir().unwrap();
    // The pattern starts at every position around the reader's window of 256 KiB.
    for before in (262_144 - 280)..(262_144 - 220) {
        let path = Sample {
            constants: &format!("{}PMIx 5.0.11rc1", "x".repeat(before)),
            ..Sample::default()
        }
        .write(directory.path().join("lib"));
        let mut found = Vec::new();
        find_in_constants(&path, b"PMIx ", 6, |text| {
            found.push(text.to_vec());
            None::<()>
        })
        .unwrap();
        assert_eq!(found, [b"5.0.11"], "{before}");
    }
}

#[test]
fn code_has_no_constants_where_linker_separates_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lib");
    let mut file = Sample {
        constants: "PMIx 5.0.11",
        ..Sample::default()
    }
    .bytes();
    let mut set_word = |at: usize, value: u32| {
        file[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        std::fs::write(&path, &file).unwrap();
        let found = find_in_constants(&path, b"PMIx ", 6, |text| Some(text.to_vec()));
        found.unwrap()
    };
    let one_segment = set_word(64 + 4, elf::PF_R | elf::PF_X);
    assert_eq!(one_segment.as_deref(), Some(&b"5.0.11"[..]));
    // The third segment is empty; now it is one of constants.
    let separate = set_word(64 + 2 * 56, elf::PT_LOAD);
    assert_eq!(separate, None);
}

#[test]
fn fuzz_corpus_has_file_of_every_kind() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/elf");
    let wide = Sample {
        needed: &["libmpi.so.40", "libpmix.so.2"],
        rpath: Some("$ORIGIN"),
        runpath: Some("/opt/lib:/usr/lib"),
        interpreter: Some("/lib64/ld.so"),
        constants: "Open MPI v5.0.3, package",
        ..Sample::default()
    };
    // The file is in this machine's byte order; on other machines it is one more foreign file.
    if Machine::OWN.little_endian {
        if std::env::var_os("WIREUP_WRITE_GOLDEN").is_some() {
            std::fs::write(folder.join("wide"), wide.bytes()).unwrap();
        }
        let mut stored = std::fs::read(folder.join("wide")).unwrap();
        // The code of the machine follows the type of the file.
        stored[18..20].copy_from_slice(&Machine::OWN.code.to_ne_bytes());
        assert!(stored == wide.bytes(), "out of date");
    }
    for (name, little_endian) in [("narrow", true), ("narrow-big-endian", false)] {
        let path = folder.join(name);
        let elf = read(&path).unwrap();
        assert_eq!(
            (elf.machine.wide, elf.machine.little_endian),
            (false, little_endian)
        );
        assert_eq!(elf.needed, ["libmpi.so.12"]);
        assert_eq!(elf.rpath.as_deref(), Some("/opt/lib".as_ref()));
        assert_eq!(elf.interpreter, Some("/lib/ld-linux.so.2".into()));
        let version = find_in_constants(&path, b"Open MPI v", 5, |text| Some(text.to_vec()));
        assert_eq!(version.unwrap().as_deref(), Some(&b"5.0.3"[..]));
    }
}
