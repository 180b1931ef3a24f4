//! Messages for new users: how a job ended, where its ranks ran, and what to write in place of the given
//! line.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::common::{MemoryGroup, Output, Run, executable, program, skip};

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

#[test]
fn timeout_names_ranks_still_running() {
    let script = "[ $WIREUP_RANK = 1 ] || exec sleep 100";
    let outcome = Run::ranks(3, ["--timeout", "3", "sh", "-c", script]).run();
    let line = outcome
        .expect(124)
        .expect_one_line(&["did not end within 3 s; 2 ranks had not ended: rank 0 ("]);
    assert!(line.contains(", pid "), "{line}");
    assert!(line.contains("before MPI_Init), rank 2 ("), "{line}");
    let many = Run::ranks(14, ["--timeout", "3", "sleep", "100"]).run();
    let line = many
        .expect(124)
        .expect_one_line(&["14 ranks had not ended"]);
    assert!(line.ends_with(", 4 more"), "{line}");
}

#[test]
fn ranks_in_barrier_are_reported_as_waiting() {
    let Some(pmi_raw) = program("pmi_raw") else {
        return;
    };
    let init = r"cmd=init pmi_version=1 pmi_subversion=1\n";
    let send = format!("{} 1 send '{init}cmd=barrier_in\\n'", pmi_raw.display());
    let script = format!("[ $WIREUP_RANK = 1 ] && {send}; exec sleep 100");
    let run = Run::ranks(2, ["--pmi", "pmi1", "--timeout", "5", "sh", "-c", &script]);
    run.run()
        .expect(124)
        .expect_one_line(&["waiting for other ranks", "before MPI_Init"]);
}

#[test]
fn sender_of_ending_signal_is_named() {
    let running = Run::ranks(1, ["sh", "-c", "echo ready; exec sleep 100"]).start();
    running.wait_for(Output::Stdout, "ready");
    let kill = Command::new(WIREUP)
        .args(["kill", &running.pid().to_string()])
        .output()
        .unwrap();
    assert!(kill.status.success(), "{kill:?}");
    let outcome = running.finish().expect(143);
    let line = outcome.expect_one_line(&["ended by SIGTERM from pid ", "(wireup kill, user "]);
    assert!(line.ends_with(')'), "{line}");
}

#[test]
fn core_dump_is_reported_with_debugger_command() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.trim_end() != "core" {
        return skip("where a core dump is: needs core as the kernel's core_pattern");
    }
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdlib.h>\nvoid solve(void) { abort(); }\n\
                  int main(void) { solve(); return 0; }\n";
    let flags = ["-g", "-O0", "-fno-omit-frame-pointer"];
    let Some(program) = executable(dir.path(), "aborts", source, &flags) else {
        return;
    };
    let run = Run::new(["-n", "1", "--rlimit", "core=unlimited"]).more([&program]);
    let work = run.dir().to_owned();
    let line = run
        .run()
        .expect(134)
        .expect_one_line(&["(SIGABRT)", "core dump in "]);
    let command = format!("gdb {} {}/core", program.display(), work.display());
    assert!(line.contains(&command), "{line}");
    if Command::new("gdb").arg("--version").output().is_ok() {
        let frames = "< solve (aborts.c:2) < main (aborts.c:3)";
        assert!(line.ends_with(frames), "{line}");
    }
    // A wrapper that executes the program is not what was dumped.
    let run = Run::new(["-n", "1", "--rlimit", "core=unlimited", "nice"]).more([&program]);
    let work = run.dir().to_owned();
    let line = run.run().expect(134).expect_one_line(&["(SIGABRT)"]);
    let command = format!("gdb {} {}/core", program.display(), work.display());
    assert!(line.contains(&command), "{line}");
    let without = Run::new(["-n", "1", "--rlimit", "core=0"]).more([&program]);
    let line = without.run().expect(134).expect_one_line(&["(SIGABRT)"]);
    assert!(!line.contains("core"), "{line}");
}

#[test]
fn rank_killed_by_oom_killer_is_reported_as_such() {
    const LIMIT: u64 = 96 << 20;
    let Some(group) = MemoryGroup::new(LIMIT) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <stdlib.h>\n#include <string.h>\nint main(void) {\n\
                  for (;;) { char *p = malloc(1 << 20); if (p) memset(p, 1, 1 << 20); } }\n";
    let Some(program) = executable(dir.path(), "eats", source, &["-O0"]) else {
        return;
    };
    let script = format!("echo $$ > {}; exec \"$@\"", group.procs().display());
    let words = ["sh", "-c", &script, "sh", WIREUP, "run", "-n", "1"];
    let outcome = Run::command(words).more([&program]).run().expect(137);
    outcome.expect_one_line(&[
        "was killed by signal 9",
        "the kernel's out-of-memory killer ended it: the memory limit of the cgroup is 96 MiB",
    ]);
}

#[test]
fn directories_of_output_files_are_made() {
    let run = Run::ranks(2, ["--output", "out/%h/%r-%l.%s", "echo", "a"]);
    let outcome = run.run().expect_quiet_success();
    let mut hosts = fs::read_dir(outcome.dir().join("out")).unwrap();
    let host = hosts.next().unwrap().unwrap().path();
    for file in ["0-0.out", "1-1.out"] {
        assert_eq!(fs::read_to_string(host.join(file)).unwrap(), "a\n");
    }
}

#[test]
fn plan_is_printed_as_json_on_request() {
    for words in [
        &["--dry-run", "--json", "-", "--virtual-nodes", "2", "./a"][..],
        &["--dry-run", "--json", "--virtual-nodes", "2", "./a"],
        &["--dry-run", "--virtual-nodes", "2", "--json", "--", "./a"],
    ] {
        let run = with_program(words);
        let program = run.dir().join("a");
        let out = run.run().expect_quiet_success().out();
        let lines: Vec<Value> = out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 5, "{out}");
        assert_eq!(lines[0]["state"], "planned");
        assert_eq!(lines[0]["size"], 4);
        // As a user would write it: not DIRECTORY/./a.
        assert_eq!(lines[0]["apps"][0]["program"], program.to_str().unwrap());
        let nodes: Vec<&Value> = lines[1..].iter().map(|line| &line["node"]).collect();
        assert_eq!(nodes, [0, 0, 1, 1]);
        assert!(lines[1..].iter().all(|line| line["state"] == "planned"));
    }
}

/// A run of four ranks in whose directory there is a program `a`.
fn with_program(words: &[&str]) -> Run {
    let run = Run::ranks(4, words);
    let program = run.dir().join("a");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    let chmod = Command::new("chmod").arg("+x").arg(program).status();
    assert!(chmod.unwrap().success());
    run
}

#[test]
fn file_options_do_not_overwrite_program() {
    for (words, needed) in [
        (
            &["--dry-run", "--json", "./a"][..],
            "--json takes ./a as its file, for standard output write --json - ./a",
        ),
        (
            &["--report", "./a"],
            "--report takes ./a as its file, write --report FILE ./a",
        ),
        (
            &["--report", "./a", "./a"],
            "--report ./a would overwrite a program; name a file for the report before the program",
        ),
        (
            &["--dry-run", "--report", "trace:./a", "./a"],
            "--report ./a would overwrite a program",
        ),
        (
            &["-n", "1", "--output", "./a", "true"],
            "--output ./a: cannot overwrite the program ./a; name a file for the output before the program",
        ),
        (
            &["-n", "1", "--dry-run", "--output", "./a", "true"],
            "cannot overwrite the program ./a",
        ),
        (
            &["--json", "./a", "./a"],
            "--json ./a would overwrite a program; write --json - for standard output",
        ),
        (
            &["--dry-run", "--json", "./a", "./a"],
            "--json ./a would overwrite a program",
        ),
        (
            &["--json", "./a", "./b"],
            "--json ./a would overwrite a program",
        ),
    ] {
        let outcome = with_program(words).run();
        assert_ne!(outcome.code, 0, "{words:?}");
        assert!(outcome.err().contains(needed), "{}", outcome.err());
        let program = fs::read_to_string(outcome.dir().join("a"));
        assert_eq!(program.unwrap(), "#!/bin/sh\n", "{words:?}");
    }
}

#[test]
fn unused_nodes_of_allocation_are_named_unless_hosts_are_given() {
    let own = rustix::system::uname();
    let own = own.nodename().to_str().unwrap().to_owned();
    let nodes = format!("{own},other[1-2]");
    let run = |words: &[&str]| {
        let run = Run::ranks(2, words.iter().chain(&["true"]));
        run.env("SLURM_JOB_NODELIST", &nodes).run().expect(0)
    };
    run(&[]).expect_one_line(&[
        "2 other nodes (other[1-2])",
        "--hosts \"$SLURM_JOB_NODELIST\"",
    ]);
    assert_eq!(run(&["--virtual-nodes", "2"]).err(), "");
    assert_eq!(run(&["--dry-run", "--hosts", "other1,other2"]).err(), "");
    let alone = Run::ranks(1, ["true"]).env("SLURM_JOB_NODELIST", &own);
    alone.run().expect_quiet_success();
}

#[test]
fn long_search_path_is_shortened() {
    let path = format!("/first:{}/usr/bin", "/a/directory/of/many:".repeat(100));
    let outcome = Run::new(["-x", &format!("PATH={path}"), "-n", "1", "no-such-program"]).run();
    let line = outcome
        .expect(127)
        .expect_one_line(&["none of the 102 directories of PATH has it (/first:…)"]);
    assert!(line.len() < 200, "{line}");
}

#[test]
fn verbose_output_has_placement() {
    let outcome = Run::ranks(3, ["-v", "--virtual-nodes", "2", "true"])
        .run()
        .expect(0);
    let err = outcome.err();
    assert!(err.contains(" has ranks 0-1\n"), "{err}");
    assert!(err.contains(" has rank 2\n"), "{err}");
}

#[test]
fn more_ranks_on_virtual_nodes_than_cores_get_remedy() {
    let words = ["taskset", "-c", "0"];
    let run = |ppn: &str| Run::new(["--virtual-nodes", "2", "--ppn", ppn, "true"]).under(words);
    if !Command::new("taskset")
        .args(["-c", "0", "true"])
        .status()
        .is_ok_and(|s| s.success())
    {
        return skip("one core for virtual nodes: needs taskset, and to be allowed CPU 0");
    }
    let refused = run("3").run().expect(125);
    refused.expect_one_line(&[
        "3 ranks do not fit in 1 slot",
        "--oversubscribe, or --ppn 1",
    ]);
    run("1").run().expect_quiet_success();
}

#[test]
fn x_option_takes_list_and_pattern_has_local_rank() {
    let script = "echo $A$B$C";
    let run = Run::new([
        "-n",
        "1",
        "-x",
        "PMI_A,PMI_B",
        "sh",
        "-c",
        "echo $PMI_A$PMI_B$C",
    ]);
    let run = ["PMI_A", "PMI_B", "C"]
        .iter()
        .fold(run, |run, name| run.env(name, "x"));
    assert_eq!(run.run().expect_quiet_success().out(), "xxx\n");
    let words = ["-genv", "A=1", "-n", "1", "-env", "B=2", "sh", "-c", script];
    let outcome = Run::new(words).env("C", "3").run();
    assert_eq!(outcome.expect_quiet_success().out(), "123\n");
    let words = [
        "--virtual-nodes",
        "2",
        "--wrap",
        "env L=%l",
        "sh",
        "-c",
        "echo $L",
    ];
    let outcome = Run::ranks(4, words).run().expect_quiet_success();
    assert_eq!(outcome.sorted_lines(), ["0", "0", "1", "1"]);
}

#[test]
fn short_help_fits_on_screen_and_long_help_has_every_option() {
    let help = |word: &str| Run::new([word]).run().expect_quiet_success().out();
    let short = help("-h");
    assert!(short.lines().count() <= 25, "{short}");
    assert!(
        short.contains("--hosts") && !short.contains("--memory-alloc-kinds"),
        "{short}"
    );
    let long = help("--help");
    for option in [
        "--memory-alloc-kinds",
        "--layout",
        "--tree-width",
        "--agent",
        "--control",
    ] {
        assert!(long.contains(option), "{option}");
    }
}
