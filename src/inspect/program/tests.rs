use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;

use super::elf::sample::Sample;
use super::*;
use crate::inspect::elf::Machine;

fn write(path: &Path, bytes: impl AsRef<[u8]>, mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn find(name: &str, path: &str, cwd: &Path) -> Result<Program, ProgramError> {
    Program::find(name.as_ref(), Some(path.as_ref()), cwd)
}

/// Returns the refusal of a file with this content and mode 0755.
fn refusal(bytes: &[u8]) -> ProgramError {
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join("app"), bytes, 0o755);
    find("./app", "", directory.path()).unwrap_err()
}

#[test]
fn path_is_searched_in_order_and_relative_to_working_directory() {
    let directory = tempfile::tempdir().unwrap();
    let cwd = directory.path();
    for place in ["one/app", "two/app", "here"] {
        write(&cwd.join(place), fs::read("/bin/true").unwrap(), 0o755);
    }
    let program = find("app", "/nowhere:one:two", cwd).unwrap();
    assert_eq!(program.path(), cwd.join("one/app"));
    assert!(matches!(program.kind(), Kind::Elf(_)));
    assert_eq!(
        program.exec_path().as_bytes(),
        cwd.join("one/app").as_os_str().as_bytes()
    );
    let argv = program.argv(["-x".into()]).unwrap();
    assert_eq!(
        argv,
        [c"app".to_owned(), c"-x".to_owned()],
        "the name as given comes first"
    );

    assert_eq!(
        find("here", "/nowhere:", cwd).unwrap().path(),
        cwd.join("here")
    );
    assert_eq!(
        find("two/app", "one", cwd).unwrap().path(),
        cwd.join("two/app")
    );
    let unset = Program::find("true".as_ref(), None, cwd).unwrap();
    assert!(unset.path().ends_with("bin/true"));
}

#[test]
fn missing_program_is_127_and_names_searched_paths() {
    let directory = tempfile::tempdir().unwrap();
    write(
        &directory.path().join("app"),
        fs::read("/bin/true").unwrap(),
        0o755,
    );
    let error = find("app", "/a:/b", directory.path()).unwrap_err();
    assert_eq!(error.exit_code(), 127);
    let text = error.to_string();
    assert!(
        text.contains("\"app\"") && text.contains("PATH=/a:/b"),
        "{text}"
    );
    assert!(text.contains("./app"), "the remedy: {text}");

    let error = find("./none", "/a", directory.path()).unwrap_err();
    assert_eq!(error.exit_code(), 127);
    assert!(!error.to_string().contains("PATH"), "{error}");
    assert_eq!(
        find("", "/a", directory.path()).unwrap_err().exit_code(),
        127
    );
}

#[test]
fn assignment_in_front_of_program_gets_line_before_path() {
    let directory = tempfile::tempdir().unwrap();
    let error = find("A=1", "/a:/b", directory.path()).unwrap_err();
    assert_eq!(error.exit_code(), 127);
    let text = |argv: &[&str], ranks| {
        let argv: Vec<OsString> = argv.iter().map(OsString::from).collect();
        let error = find("A=1", "/a:/b", directory.path()).unwrap_err();
        error.with_app(&argv, ranks).to_string()
    };
    for (argv, ranks, line) in [
        (&["A=1", "./a", "x"][..], None, "-x A=1 ./a"),
        (
            &["A=1", "B=2 3", "a"][..],
            Some(2),
            "-n 2 -x A=1 -x 'B=2 3' a",
        ),
        (&["A=1"][..], None, "-x A=1 PROGRAM"),
        (
            &["A=1", "-n", "2", "./a b"][..],
            None,
            "-x A=1 -n 2 './a b'",
        ),
    ] {
        let expected = format!(
            "program \"A=1\" not found; to set a variable of the ranks: wireup run {line}; searched PATH=/a:/b"
        );
        assert_eq!(text(argv, ranks), expected);
    }
}

#[test]
fn advice_for_source_quotes_its_name() {
    let directory = tempfile::tempdir().unwrap();
    for (name, advice) in [
        ("a b.c", "mpicc 'a b.c' -o 'a b' && wireup run -n 2 './a b'"),
        ("a b.py", "wireup run -n 2 python3 'a b.py'"),
    ] {
        write(&directory.path().join(name), "x", 0o644);
        let error = find(name, "/a", directory.path()).unwrap_err();
        let text = error.with_app(&[name.into()], Some(2)).to_string();
        assert!(text.ends_with(&format!("write: {advice}")), "{text}");
    }
    let name = OsStr::from_bytes(b"\xe9.py");
    let advice = SourceUse::Interpret("python3").advice(name, None);
    assert_eq!(advice.to_string(), r"wireup run python3 $'\xe9.py'");
}

#[test]
fn non_executable_file_is_skipped_but_reported_if_only_one() {
    let directory = tempfile::tempdir().unwrap();
    let cwd = directory.path();
    write(&cwd.join("one/app"), "", 0o644);
    let error = find("app", "one:two", cwd).unwrap_err();
    assert!(
        matches!(error, ProgramError::NotExecutable { .. }),
        "{error}"
    );
    assert_eq!(error.exit_code(), 126);
    assert!(error.to_string().contains("chmod +x"), "{error}");
    write(&cwd.join("two/app"), fs::read("/bin/true").unwrap(), 0o755);
    assert_eq!(
        find("app", "one:two", cwd).unwrap().path(),
        cwd.join("two/app")
    );
}

#[test]
fn directory_and_device_are_126() {
    let directory = tempfile::tempdir().unwrap();
    let error = find("./", "", directory.path()).unwrap_err();
    assert!(matches!(error, ProgramError::Directory { .. }), "{error}");
    assert_eq!(error.exit_code(), 126);
    let error = find("/dev/null", "", directory.path()).unwrap_err();
    assert!(matches!(error, ProgramError::NotAFile { .. }), "{error}");
}

#[test]
fn program_for_other_processor_names_both() {
    let mut bytes = fs::read("/bin/true").unwrap();
    // Sparc: a machine has an emulator for it only if someone installed it.
    let at = if Machine::OWN.little_endian { 18 } else { 19 };
    bytes[at] = 43;
    let error = refusal(&bytes);
    assert!(
        matches!(error, ProgramError::WrongMachine { .. }),
        "{error}"
    );
    assert_eq!(error.exit_code(), 126);
    let text = error.to_string();
    assert!(
        text.contains("machine 43") && text.contains(&Machine::OWN.to_string()),
        "{text}"
    );
}

#[test]
fn missing_loader_and_object_file_are_named() {
    let sample = Sample {
        interpreter: Some("/lib/ld-of-another-world.so.1"),
        ..Sample::default()
    };
    let error = refusal(&sample.bytes());
    assert!(
        error.to_string().contains("/lib/ld-of-another-world.so.1"),
        "{error}"
    );
    assert_eq!(error.exit_code(), 126);

    let mut object = Sample::default().bytes();
    object[16..18].copy_from_slice(&object::elf::ET_REL.to_ne_bytes());
    assert!(refusal(&object).to_string().contains("link it"));
    assert!(matches!(
        refusal(&object[..40]),
        ProgramError::BadElf { .. }
    ));
}

#[test]
fn script_is_checked_down_to_its_last_interpreter() {
    let directory = tempfile::tempdir().unwrap();
    let cwd = directory.path();
    write(&cwd.join("plain"), "#! /bin/sh -e\nexit 0\n", 0o755);
    let program = find("./plain", "", cwd).unwrap();
    assert_eq!(
        program.kind(),
        &Kind::Script {
            interpreter: "/bin/sh".into(),
            argument: Some("-e".into()),
        }
    );
    assert_eq!(
        program.argv([]).unwrap(),
        [c"./plain".to_owned()],
        "the kernel adds the rest"
    );

    // A script for a script for /bin/sh runs; the interpreter is relative to the directory.
    write(&cwd.join("second"), "#!./plain", 0o755);
    assert!(find("./second", "", cwd).is_ok());

    for (line, reason) in [
        ("#!/no/such/shell -x\n", "the file does not exist"),
        ("#!/bin/sh\r\n", "Windows line ends"),
        ("#!/dev/null\n", "not a regular file"),
        ("#!\n", "names none"),
        ("#!./text\n", "text without"),
        ("#!./self\n", "too many"),
        ("#!./closed\n", "may not be executed"),
    ] {
        write(&cwd.join("text"), "exit 0\n", 0o755);
        write(&cwd.join("closed"), "#!/bin/sh\n", 0o644);
        write(&cwd.join("self"), line, 0o755);
        let error = find("./self", "", cwd).unwrap_err();
        assert!(
            matches!(error, ProgramError::BadInterpreter { .. }),
            "{line:?}: {error}"
        );
        assert_eq!(error.exit_code(), 126);
        assert!(error.to_string().contains(reason), "{line:?}: {error}");
    }
}

#[test]
fn text_without_interpreter_runs_in_shell() {
    let directory = tempfile::tempdir().unwrap();
    let cwd = directory.path();
    write(&cwd.join("bin/text"), "echo $0 $1\n", 0o755);
    let program = find("text", "bin", cwd).unwrap();
    assert_eq!(program.kind(), &Kind::Text);
    let argv = program.argv(["one".into()]).unwrap();
    let words: Vec<_> = argv
        .iter()
        .map(|word| OsStr::from_bytes(word.as_bytes()))
        .collect();
    let output = std::process::Command::new(OsStr::from_bytes(program.exec_path().as_bytes()))
        .args(&words[1..])
        .output()
        .unwrap();
    let expected = format!("{} one\n", cwd.join("bin/text").display());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);

    write(&cwd.join("empty"), "", 0o755);
    assert_eq!(find("./empty", "", cwd).unwrap().kind(), &Kind::Text);
    assert!(program.argv(["a\0b".into()]).is_none());
}

#[test]
fn binary_of_unknown_format_is_126() {
    let error = refusal(b"\xca\xfe\xba\xbe\0\0\0\x02");
    assert!(
        matches!(error, ProgramError::UnknownFormat { .. }),
        "{error}"
    );
    assert_eq!(error.exit_code(), 126);
}
