//! Programs that cannot be run: one line and the code a shell would give, before any rank starts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::Run;

fn file(path: &Path, contents: impl AsRef<[u8]>, mode: u32) {
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs `program` together with a valid one that prints a line when started, and checks the one
/// line.
#[track_caller]
fn refused(run: Run, code: i32, words: &[&str]) {
    let outcome = run.run().expect(code);
    outcome.expect_one_line(words);
    assert_eq!(outcome.out(), "", "{outcome:?}");
}

fn run(program: &str) -> Run {
    Run::new([
        "--oversubscribe",
        "echo",
        "started",
        ":",
        "-n",
        "3",
        program,
    ])
}

#[test]
fn missing_program_gives_127() {
    refused(
        run("no-such-program"),
        127,
        &["program \"no-such-program\" not found: searched PATH="],
    );
    refused(
        run("./no-such-program"),
        127,
        &["/no-such-program does not exist"],
    );
    refused(run("/dev/null/x"), 127, &["/dev/null/x does not exist"]);
    refused(run(""), 127, &["is empty"]);
    let here = run("mine");
    file(&here.dir().join("mine"), "#!/bin/sh\n", 0o755);
    refused(here, 127, &["the working directory has one: try ./mine"]);
}

#[test]
fn file_without_execute_permission_gives_126() {
    let plain = run("./plain");
    file(&plain.dir().join("plain"), "#!/bin/sh\n", 0o644);
    refused(plain, 126, &["may not be executed", "chmod +x"]);
    let dir = run("./dir");
    fs::create_dir(dir.dir().join("dir")).unwrap();
    refused(dir, 126, &["/dir is a directory, not a program"]);
    refused(run("/dev/null"), 126, &["/dev/null is not a regular file"]);
}

#[test]
fn program_for_other_architecture_gives_126_with_reason() {
    let own = fs::read("/bin/true").unwrap();
    let other = run("./other");
    let mut bytes = own.clone();
    // e_machine: RISC-V here, which no binfmt handler of a build machine is likely to take.
    bytes[18..20].copy_from_slice(&243_u16.to_le_bytes());
    file(&other.dir().join("other"), bytes, 0o755);
    if Path::new("/proc/sys/fs/binfmt_misc/qemu-riscv64").exists() {
        return crate::common::skip("a program for another machine: this one runs RISC-V");
    }
    refused(other, 126, &["is a program for ", "and this machine is"]);
    let cut = run("./cut");
    file(&cut.dir().join("cut"), &own[..40], 0o755);
    refused(cut, 126, &["cannot be run"]);
}

#[test]
fn program_with_missing_loader_gives_126_and_names_it() {
    let own = fs::read("/bin/true").unwrap();
    let at = own
        .windows(6)
        .position(|bytes| bytes == b"/lib64")
        .or_else(|| own.windows(5).position(|bytes| bytes == b"/lib/"));
    let mut bytes = own;
    bytes[at.unwrap() + 1] = b'X';
    let run = run("./foreign");
    file(&run.dir().join("foreign"), bytes, 0o755);
    refused(run, 126, &["needs the loader /Xib", "does not exist"]);
}

#[test]
fn scripts_run_by_interpreter_or_error_names_its_problem() {
    let script = |text: &str| {
        let run = run("./script");
        file(&run.dir().join("script"), text, 0o755);
        run
    };
    refused(
        script("#!/no/such/shell\n"),
        126,
        &["script for \"/no/such/shell\"", "the file does not exist"],
    );
    refused(script("#!/bin/sh\r\n"), 126, &["Windows line ends"]);
    refused(script("#!\n"), 126, &["the first line names none"]);
    let good = |text: &str| {
        let run = Run::ranks(2, ["./script", "a b", "c"]);
        file(&run.dir().join("script"), text, 0o755);
        run.run().expect_quiet_success().out()
    };
    assert_eq!(
        good("#!/bin/sh\necho \"${0##*/}:$1:$2\"\n"),
        "script:a b:c\n".repeat(2)
    );
    assert_eq!(
        good("#! /usr/bin/env sh\necho \"$1:$2\"\n"),
        "a b:c\n".repeat(2)
    );
    // A text without an interpreter is the shell's, as execvp has it.
    assert_eq!(good("echo \"$1:$2\"\n"), "a b:c\n".repeat(2));
}

#[test]
fn program_is_searched_in_working_directory_of_its_ranks() {
    let run = Run::ranks(
        2,
        ["-x", "PATH=sub:/bin:/usr/bin", "--wdir", "there", "tool"],
    );
    let tool = run.dir().join("there/sub");
    fs::create_dir_all(&tool).unwrap();
    file(&tool.join("tool"), "#!/bin/sh\necho found\n", 0o755);
    assert_eq!(run.run().expect_quiet_success().out(), "found\nfound\n");
}

#[test]
fn exec_failure_is_reported_with_its_rank() {
    let busy = Run::ranks(2, ["./busy"]);
    let path = busy.dir().join("busy");
    fs::copy("/bin/true", &path).unwrap();
    let writer = fs::OpenOptions::new().append(true).open(&path).unwrap();
    let outcome = busy.run().expect(126);
    outcome.expect_one_line(&[
        "rank ",
        " was not started: ",
        "/busy cannot be executed: Text file busy",
    ]);
    drop(writer);
}

#[test]
fn unusable_working_directory_is_refused() {
    let wdir = |dir: &str| {
        let run = Run::ranks(2, ["--wdir", dir, "echo", "started"]);
        file(&run.dir().join("file"), "", 0o755);
        run
    };
    refused(
        wdir("no/such"),
        125,
        &["--wdir ", "no/such: No such file or directory"],
    );
    refused(wdir("file"), 125, &["--wdir ", "file: not a directory"]);
    refused(wdir(""), 125, &["--wdir"]);
}

#[test]
fn deleted_current_directory_is_reported() {
    let run = |words: &[&str]| {
        let run = Run::ranks(1, words.iter().copied());
        run.after_shell("mkdir gone; cd gone; rmdir ../gone;").run()
    };
    for words in [&["true"][..], &["--wdir", "sub", "true"]] {
        run(words)
            .expect(125)
            .expect_one_line(&["cannot use the current directory", "--wdir"]);
    }
    let outcome = run(&["--wdir", "/tmp", "pwd"]).expect_quiet_success();
    assert_eq!(outcome.out(), "/tmp\n");
}
