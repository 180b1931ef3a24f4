//! Ranks that run their program under another command.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::{Run, mpi, node_name, repository, skip};

/// Words that print the rank and their arguments, each in brackets, and then run these.
const SHOW: &str =
    r#"sh -c 'printf "%%s" "$WIREUP_RANK:"; printf "[%%s]" "$@"; echo; exec "$@"' show"#;

#[test]
fn every_rank_runs_under_wrap_with_own_arguments() {
    let wrap = format!("{SHOW} env 'R=%r n %n' H=%h \"P=100%%\" B=\\\\%r");
    let script = "printf '%s|' \"$R\" $H $P $B; echo";
    let args = ["--wrap", &wrap, "sh", "-c", script, "a b"];
    let outcome = Run::ranks(2, args).run().expect_quiet_success();
    let (host, shell) = (node_name(), which("sh"));
    let mut expected: Vec<String> = (0..2)
        .flat_map(|rank| {
            let own = format!("[env][R={rank} n 0][H={host}][P=100%][B=\\{rank}]");
            let program = format!("[{shell}][-c][{script}][a b]");
            let printed = format!("{rank} n 0|{host}|100%|\\{rank}|");
            [format!("{rank}:{own}{program}"), printed]
        })
        .collect();
    expected.sort();
    assert_eq!(outcome.sorted_lines(), expected);
}

/// Returns the path of a program, as wireup finds it.
fn which(name: &str) -> String {
    let path = std::env::var("PATH").unwrap();
    let found = path.split(':').map(|dir| format!("{dir}/{name}"));
    found
        .into_iter()
        .find(|path| fs::metadata(path).is_ok())
        .unwrap()
}

#[test]
fn wrap_applies_to_selected_ranks_of_program_only() {
    let script = "echo $WIREUP_RANK ${MARK-bare}";
    let first = [
        "-n",
        "4",
        "--wrap",
        "env MARK=first%r",
        "--wrap-ranks",
        "0,2-3",
    ];
    let program = ["sh", "-c", script];
    let next = [":", "-n", "1", "--wrap", "env MARK=second%r"];
    let last = [":", "-n", "1"];
    let parts: [&[&str]; 7] = [
        &["--oversubscribe"],
        &first,
        &program,
        &next,
        &program,
        &last,
        &program,
    ];
    let run = Run::new(parts.concat());
    let lines = run.run().expect_quiet_success().sorted_lines();
    let expected = [
        "0 first0",
        "1 bare",
        "2 first2",
        "3 first3",
        "4 second4",
        "5 bare",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn program_behind_wrap_command_decides_interface() {
    for (name, offered) in [("mpich5", "offered: PMI"), ("openmpi5", "offered: PMIx")] {
        let Some(mpi) = mpi(name) else { continue };
        let options = ["-v", "--wrap", "env A=%r"];
        let outcome = mpi.run(2, &options, "allreduce", &[]).run().expect(0);
        assert_eq!(outcome.sorted_lines().len(), 2, "{outcome:?}");
        assert!(outcome.out().contains("size=2"), "{outcome:?}");
        let line = outcome.err();
        let line = line.lines().find(|line| line.contains("offered")).unwrap();
        assert!(line.contains(offered), "{name}: {line}");
        assert!(outcome.err().contains("; runs under "), "{outcome:?}");
    }
}

#[test]
fn text_without_interpreter_runs_in_shell_under_wrap() {
    let run = Run::ranks(1, ["--wrap", "env -i", "./text", "x"]);
    let text = run.dir().join("text");
    fs::write(&text, "echo \"arguments: $*\"\n").unwrap();
    fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(run.run().expect_quiet_success().out(), "arguments: x\n");
}

#[test]
fn invalid_wrap_command_is_refused_with_reason() {
    let refused = |options: &[&str], code: i32, words: &[&str]| {
        let args = options.iter().copied().chain(["echo", "ran"]);
        let outcome = Run::ranks(2, args).run().expect(code);
        assert_eq!(outcome.out(), "", "{outcome:?}");
        outcome.expect_one_line(words);
    };
    refused(
        &["--wrap", "no-such-command x"],
        127,
        &["--wrap: program \"no-such-command\" not found"],
    );
    refused(
        &["--wrap", "/etc/passwd"],
        126,
        &["--wrap: /etc/passwd may not be executed"],
    );
    refused(&["--wrap", " "], 125, &["--wrap is empty"]);
    refused(
        &["--wrap", "sh -c 'x"],
        125,
        &["--wrap", "a quote is not closed"],
    );
    refused(
        &["--wrap", "date +%Y"],
        125,
        &["unknown pattern %Y; use %r %l %h %j %n or %%"],
    );
    let ranks = ["--wrap", "env", "--wrap-ranks", "0,2"];
    refused(
        &ranks,
        125,
        &["--wrap-ranks 0,2: rank 2 does not run this program, whose ranks are 0 to 1"],
    );
    let ranks = ["--wrap", "env", "--wrap-ranks", "x"];
    refused(&ranks, 125, &["invalid rank list \"x\""]);
    let outcome = Run::ranks(2, ["--wrap-ranks", "0", "echo", "ran"]).run();
    assert!(
        outcome.err().contains("--wrap COMMAND is missing"),
        "{outcome:?}"
    );
    assert_eq!(outcome.expect(125).out(), "");
}

/// A clock is an event that every machine can count.
#[test]
fn perf_records_each_rank_into_own_file() {
    let counts = Command::new("perf")
        .args(["stat", "-e", "cpu-clock", "true"])
        .output();
    if !counts.is_ok_and(|output| output.status.success()) {
        return skip("perf is not installed (scripts/setup), or may not count events here");
    }
    let Some(mpi) = mpi("mpich5") else { return };
    let dir = tempfile::tempdir().unwrap();
    let wrap = format!(
        "perf record -q -e cpu-clock -o {}/p.%r",
        dir.path().display()
    );
    let outcome = mpi.run(2, &["--wrap", &wrap], "allreduce", &[]).run();
    assert_eq!(outcome.expect(0).by_rank("allreduce", 2).len(), 2);
    for rank in 0..2 {
        let recorded = fs::read(dir.path().join(format!("p.{rank}"))).unwrap();
        assert!(recorded.starts_with(b"PERFILE2"), "rank {rank}");
    }
}

#[test]
fn documented_gdb_command_ends_with_exit_code_of_program() {
    if Command::new("gdb").arg("--version").output().is_err() {
        return skip("gdb is not installed: run scripts/setup");
    }
    let page = fs::read_to_string(repository().join("docs/environment.md")).unwrap();
    let start = page.find("`gdb -batch ").unwrap() + 1;
    let command = page[start..].split('`').next().unwrap();
    for code in [0, 3] {
        let script = format!("exit {code}");
        let run = Run::new(["-n", "1", "--wrap", command, "sh", "-c", &script]);
        run.run().expect(code);
    }
}
