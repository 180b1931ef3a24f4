//! Help, manual pages, completions, and the lines that people used to other launchers write.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rustix::process::Signal;

use crate::common::{Outcome, Output, Run, skip};
use crate::stacks::has;

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

fn wireup<'a>(words: impl IntoIterator<Item = &'a str>) -> Outcome {
    Run::command(std::iter::once(WIREUP).chain(words)).run()
}

/// Fails unless nothing ran, and one line gives reason and remedy.
#[track_caller]
fn expect_refusal(outcome: Outcome, words: &[&str]) {
    let outcome = outcome.expect(125);
    outcome.expect_one_line(words);
    assert_eq!(outcome.err().lines().count(), 1, "{outcome:?}");
    assert_eq!(outcome.out(), "", "{outcome:?}");
}

#[test]
fn every_man_page_formats_without_warning() {
    let run = Run::command([WIREUP, "man", "--dir", "share/man1"]);
    let dir = run.dir().join("share/man1");
    let outcome = run.run().expect_quiet_success();
    let help = wireup(["--help"]).expect_quiet_success().out();
    let commands = help
        .lines()
        .skip_while(|line| *line != "Run:")
        .take_while(|line| *line != "Options:")
        .filter(|line| line.starts_with("  "));
    let mut pages = vec!["wireup.1".to_owned()];
    for name in commands.filter_map(|line| line.split_whitespace().next()) {
        if name != "help" {
            pages.push(format!("wireup-{name}.1"));
        }
    }
    assert!(pages.len() >= 20, "{pages:?}");
    for page in &pages {
        let text = fs::read_to_string(dir.join(page)).unwrap();
        assert!(text.contains("\n.SH EXAMPLES\n"), "{page}");
    }
    let formatter = Command::new("man").arg("--version").output();
    if !formatter.is_ok_and(|output| output.status.success()) {
        return skip("that man shows the pages: needs man-db");
    }
    for page in pages {
        let words = ["--warnings", "-l", "--pager=cat"];
        let man = Command::new("man")
            .args(words)
            .arg(dir.join(&page))
            .env("MANWIDTH", "100")
            .output()
            .unwrap();
        assert!(
            man.status.success() && man.stderr.is_empty(),
            "{page}: {man:?}"
        );
        let shown = String::from_utf8(man.stdout).unwrap();
        if page == "wireup-run.1" {
            for word in [
                "-np",
                "`:`",
                "EXIT STATUS",
                "ENVIRONMENT",
                "FILES",
                "/etc/wireup.toml",
            ] {
                assert!(shown.contains(word), "{word}: {shown}");
            }
        }
    }
    drop(outcome);
}

#[test]
fn help_prints_one_page_and_refuses_unknown_topic() {
    let page = wireup(["man", "config", "show"])
        .expect_quiet_success()
        .out();
    assert!(page.contains("\n.TH WIREUP-CONFIG-SHOW 1 "), "{page}");
    expect_refusal(
        wireup(["man", "rum"]),
        &["no page of 'rum'; there are: run, "],
    );
}

#[test]
fn help_on_terminal_uses_man_or_pager() {
    let shown = |man: &str| {
        let run = Run::command([WIREUP, "man", "run"]).terminal();
        let bin = run.dir().join("bin");
        fs::create_dir(&bin).unwrap();
        let script = |name: &str, text: &str| {
            let file = bin.join(name);
            fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        };
        script("man", man);
        script("pager", "echo by the pager; grep -- '-n, --ranks'");
        let path = format!("{}:/usr/bin:/bin", bin.display());
        run.env("PATH", path)
            .env("PAGER", "pager")
            .run()
            .expect(0)
            .out()
    };
    let by_man = shown("echo \"by man $*\"; grep '^\\.TH'");
    for words in ["by man -l -", ".TH WIREUP-RUN 1"] {
        assert!(by_man.contains(words), "{by_man}");
    }
    assert!(!by_man.contains("by the pager"), "{by_man}");
    let by_pager = shown("exit 16");
    for words in ["by the pager", "-n, --ranks <N>"] {
        assert!(by_pager.contains(words), "{by_pager}");
    }
}

#[test]
fn help_of_topic_has_its_options_alone() {
    for words in [
        &["run", "--help", "binding"][..],
        &["run", "--help=binding"],
        &["help", "run", "binding"],
    ] {
        let text = wireup(words.iter().copied()).expect_quiet_success().out();
        assert!(text.starts_with("Binding:\n"), "{text}");
        assert!(text.contains("--bind-to"), "{text}");
        assert!(!text.contains("--hosts <"), "{text}");
    }
    expect_refusal(
        wireup(["run", "--help", "bindng"]),
        &[
            "unknown help topic bindng; use a word of one of these: Options, ",
            "Binding",
            "wireup run --help shows all options",
        ],
    );
    let whole = wireup(["run", "--help"]).expect_quiet_success().out();
    assert!(whole.contains("\nTopics:\n"), "{whole}");
}

#[test]
fn help_has_width_of_terminal_behind_pager() {
    const NAMED: &str = "  WIREUP_LOCAL_RANK     its number among those of its node;\n";
    let wide = |text: &str| {
        let is_long = |line: &&str| line.chars().count() > 60 && !line.starts_with("Usage:");
        text.lines().find(is_long).map(str::to_owned)
    };
    let page = "stty cols 60; \"$0\" run --help | cat";
    let shown = Run::command(["sh", "-c", page, WIREUP]).terminal().run();
    let shown = shown.expect(0).out().replace('\r', "");
    assert!(shown.contains(NAMED), "{shown}");
    assert_eq!(wide(&shown), None);
    // Without a terminal, `COLUMNS` has it.
    for words in [&["run", "--help"][..], &["mpirun", "--help"]] {
        let words = [WIREUP].into_iter().chain(words.iter().copied());
        let page = Run::command(words).env("COLUMNS", "60").run();
        assert_eq!(wide(&page.expect_quiet_success().out()), None);
    }
}

#[test]
fn wireup_without_command_lists_commands_in_groups() {
    let outcome = wireup([]).expect(125);
    let text = outcome.err();
    for heading in ["Run:", "Look:", "Hosts and agents:", "Other launchers:"] {
        assert!(text.contains(&format!("\n{heading}\n")), "{text}");
    }
    let lines = [
        "  run            Run a program",
        "  ps             Show your jobs",
    ];
    for line in lines {
        assert!(text.contains(&format!("\n{line}")), "{text}");
    }
}

/// Words of Rust's library in messages.
const OF_RUST: [&str; 11] = [
    "os error",
    "..=",
    "invalid digit",
    "target type",
    "empty string",
    "syntax",
    "line 1 column",
    "invalid type",
    "unknown field",
    "EOF while",
    "failed to lookup",
];

#[test]
fn no_value_is_refused_in_words_of_rust() {
    let texts = [
        "x",
        "",
        "-1",
        "0",
        "99999999999999999999",
        "/nonexistent/file",
    ];
    for option in [
        "--ranks",
        "--virtual-nodes",
        "--ppn",
        "--cpus-per-rank",
        "--gpus-per-rank",
        "--nodes",
        "--tree-width",
        "--pty",
        "--metrics",
        "--names",
        "--stage",
        "--stop-at",
        "--label",
        "--timeout",
        "--grace",
        "--wait-hosts",
        "--rlimit",
        "--hostfile",
        "--rankfile",
        "--env-file",
        "--wdir",
        "--json",
        "--report",
        "--output",
    ] {
        for text in texts {
            let value = format!("{option}={text}");
            let outcome = wireup(["run", "--dry-run", &value, "true"]);
            let err = outcome.err();
            for word in OF_RUST {
                assert!(!err.contains(word), "{value}: {err}");
            }
        }
    }
    for (launcher, options) in [
        (
            "mpirun",
            "-np --npernode --cpus-per-proc --timeout --hostfile --rankfile --wdir --stdin --bind-to --map-by",
        ),
        ("mpiexec.hydra", "-n -ppn -f -wdir -bind-to -map-by -s"),
        (
            "srun",
            "-n -N -c -t -D -F -m --ntasks-per-node --gpus-per-task --cpu-bind --mpi",
        ),
    ] {
        for (option, text) in options
            .split(' ')
            .flat_map(|option| texts.map(|text| (option, text)))
        {
            let outcome = wireup([launcher, "--dry-run", option, text, "true"]);
            let err = outcome.err();
            for word in OF_RUST {
                assert!(!err.contains(word), "{launcher} {option} {text}: {err}");
            }
            let is_named = err.is_empty() || err.contains(text);
            assert!(is_named, "{launcher} {option} {text}: {err}");
        }
    }
    for (line, needed) in [
        ("mpiexec.hydra -ppn x true", "-ppn x: give a whole number"),
        (
            "mpirun --map-by core:PE=x true",
            "--map-by core:PE=x: give a whole number",
        ),
        ("mpirun -np ./a", "-np ./a: give a number"),
        ("srun -N x true", "-N x: write -N K with one number"),
        (
            "run --virtual-nodes 2000 true",
            "give a number from 1 to 1024",
        ),
        ("run --ppn 0 true", "give a number, 1 or more"),
        ("run --ppn x true", "give a whole number"),
        ("run --metrics x true", "give ADDRESS:PORT, such as"),
        (
            "run --timeout x true",
            "give a number of seconds, or a duration such as",
        ),
        (
            "run --wdir /nonexistent true",
            "--wdir /nonexistent: No such file or directory",
        ),
        ("impi server 99", "give a number from 1 to 32"),
        ("serve -n 0", "give a number, 1 or more"),
    ] {
        let outcome = wireup(line.split(' '));
        expect_refusal(outcome, &[needed]);
    }
}

#[test]
fn non_text_or_unwanted_values_are_named() {
    use std::os::unix::ffi::OsStrExt as _;
    let name = std::ffi::OsStr::from_bytes(b"h\xe9");
    let words: [&std::ffi::OsStr; 4] = ["run".as_ref(), "--hosts".as_ref(), name, "./a".as_ref()];
    let host = Run::command(std::iter::once(WIREUP.as_ref()).chain(words)).run();
    expect_refusal(host, &[r"--hosts $'h\xe9' is not UTF-8"]);
    let switch = wireup(["run", "--dry-run=x", "./a"]);
    expect_refusal(switch, &["--dry-run takes no value; omit =x"]);
}

#[test]
fn no_file_and_no_answer_is_refused_in_words_of_rust() {
    let agent = "agent --config file";
    let check = "impi check-server nohost.invalid:1";
    for (line, file, code, needed) in [
        ("report file", "import os\n", 125, "not valid JSON"),
        ("report file", "{\"a\": \n", 125, "the JSON is incomplete"),
        ("report file", "{}\n", 125, "time is missing"),
        (
            "oci-hook",
            "",
            125,
            "of the container: the JSON is incomplete",
        ),
        (
            "oci-hook",
            "3",
            125,
            "of the container: integer 3 is not valid here",
        ),
        (
            agent,
            "foo = 1",
            125,
            "line 1: foo is unknown; write one of these: listen, ",
        ),
        (
            agent,
            "listen = 3",
            125,
            "line 1: integer 3 is not valid here; write ADDRESS:PORT in quotes",
        ),
        (
            agent,
            "listen = 'x'",
            125,
            "line 1: write ADDRESS:PORT, such as",
        ),
        (check, "", 1, "client 0: "),
    ] {
        let words = std::iter::once(WIREUP).chain(line.split(' '));
        let run = Run::command(words).stdin_bytes(file);
        fs::write(run.dir().join("file"), file).unwrap();
        let outcome = run.run().expect(code);
        let output = outcome.out() + &outcome.err();
        assert!(output.contains(needed), "{line}: {output}");
        for word in OF_RUST {
            assert!(!output.contains(word), "{line}: {output}");
        }
    }
}

#[test]
fn durations_have_units_everywhere() {
    let line = "run --timeout 10m --grace 500ms --fence-timeout 1h30m --spawn-timeout 2min \
                --wait-hosts 0s --names=keep=2d true";
    wireup(line.split(' ')).expect(0);
    let file = Run::new(["--timeout", "1m", "true"]);
    fs::write(file.dir().join("wireup.toml"), "[run]\ngrace = \"3s\"\n").unwrap();
    let path = file.dir().join("wireup.toml");
    file.env("WIREUP_SITE_CONFIG", path).run().expect(0);
    for (line, option) in [
        ("agent --heartbeat 5x", "--heartbeat"),
        ("top --interval 5x", "--interval"),
        ("impi check-server h:1 --timeout 5x", "--timeout"),
    ] {
        let outcome = wireup(line.split(' '));
        expect_refusal(
            outcome,
            &[option, "give a number of seconds, or a duration"],
        );
    }
}

#[test]
fn misspelt_command_is_refused_with_correction() {
    for (line, needed) in [
        (
            "run FOO=1 ./app",
            "program \"FOO=1\" not found; to set a variable of the ranks: wireup run -x FOO=1 ./app; ",
        ),
        (
            "run -n 2 FOO=1 BAR=2",
            "wireup run -n 2 -x FOO=1 -x BAR=2 PROGRAM; ",
        ),
        (
            "FOO=1 ./app",
            "to run a program with this variable: wireup run -x FOO=1 ./app",
        ),
        (
            "FOO=1 run -n 2 ./app",
            "to run a program with this variable: wireup run -x FOO=1 -n 2 ./app",
        ),
        ("run --hosts n01 n02 ./app", "did you mean: --hosts n01,n02"),
        (
            "run --hosts n01, n02 n03 ./app",
            "did you mean: --hosts n01,n02,n03",
        ),
        (
            "serve --hosts n01 n02 -n 2",
            "did you mean: --hosts n01,n02",
        ),
    ] {
        let outcome = wireup(line.split(' '));
        let is_program = line.starts_with("run") && line.contains("FOO");
        let code = if is_program { 127 } else { 125 };
        let outcome = outcome.expect(code);
        outcome.expect_one_line(&[needed]);
        assert_eq!(outcome.err().lines().count(), 1, "{outcome:?}");
    }
    let two = Run::new(["--oversubscribe", "-np2", "sh", "-c", "echo $WIREUP_SIZE"]).run();
    assert_eq!(two.expect_quiet_success().out(), "2\n2\n");
}

#[test]
fn missing_argument_is_reported_with_usage() {
    for (line, needed) in [
        (
            "serve",
            "--ranks N is missing; write: wireup serve --ranks N",
        ),
        ("report", "STREAM is missing; write: wireup report STREAM"),
        (
            "exec",
            "COMMAND is missing; write: wireup exec --hosts LIST [OPTION]... COMMAND",
        ),
        (
            "exec --hosts a",
            "COMMAND is missing; write: wireup exec --hosts LIST [OPTION]... COMMAND",
        ),
        ("rsh", "HOST is missing; write: wireup rsh HOST COMMAND"),
        (
            "install-links",
            "DIR is missing; write: wireup install-links DIR",
        ),
        (
            "pki issue",
            "--name NAME is missing; write: wireup pki issue --name NAME",
        ),
        (
            "impi server",
            "COUNT is missing; write: wireup impi server COUNT",
        ),
        (
            "impi agent",
            "--client K, --procs N and HOST:PORT are missing; write: wireup impi agent --client K",
        ),
        ("pmi get", "KEY is missing; write: wireup pmi get KEY"),
        ("run --wrap-ranks 0 true", "--wrap COMMAND is missing"),
    ] {
        expect_refusal(wireup(line.split(' ')), &[needed]);
    }
}

#[test]
fn source_in_place_of_command_gets_its_line() {
    for (word, needed) in [
        (
            "hello.c",
            "unknown command \"hello.c\"; to run this source: mpicc hello.c -o hello && wireup run ./hello",
        ),
        (
            "./p.py",
            "unknown command \"./p.py\"; to run this source: wireup run python3 ./p.py",
        ),
    ] {
        let run = Run::command([WIREUP, word]);
        fs::write(run.dir().join(word), "x = 1\n").unwrap();
        expect_refusal(run.run(), &[needed]);
    }
}

#[test]
fn sources_are_refused_with_compiler_or_interpreter() {
    for (file, mode, words, code, needed) in [
        (
            "p.py",
            0o644,
            "-n 2 p.py",
            126,
            "write: wireup run -n 2 python3 p.py",
        ),
        (
            "p.py",
            0o644,
            "./p.py",
            126,
            "write: wireup run python3 ./p.py",
        ),
        (
            "p.py",
            0o755,
            "-n 2 ./p.py",
            126,
            "write: wireup run -n 2 python3 ./p.py",
        ),
        (
            "a.c",
            0o644,
            "-n 2 a.c",
            126,
            "write: mpicc a.c -o a && wireup run -n 2 ./a",
        ),
        (
            "a.f90",
            0o755,
            "./a.f90",
            126,
            "write: mpifort ./a.f90 -o a && wireup run ./a",
        ),
        (
            "a.cpp",
            0o644,
            "a.cpp",
            126,
            "write: mpicxx a.cpp -o a && wireup run ./a",
        ),
        (
            "a.cu",
            0o755,
            "-n 2 ./a.cu",
            126,
            "write: nvcc -ccbin mpicxx ./a.cu -o a && wireup run -n 2 ./a",
        ),
        (
            "p.rb",
            0o644,
            "-n 2 p.rb",
            126,
            "write: wireup run -n 2 ruby p.rb",
        ),
        (
            "a.java",
            0o644,
            "-n 2 ./a.java",
            126,
            "write: wireup run -n 2 java ./a.java",
        ),
        (
            "a.rs",
            0o644,
            "-n 2 a.rs",
            126,
            "write: rustc a.rs -o a && wireup run -n 2 ./a",
        ),
        ("p.py", 0o644, "other.py", 127, "not found"),
        (
            "app",
            0o755,
            "2 ./app",
            127,
            "program \"2\" not found: for 2 ranks write -n 2; ",
        ),
    ] {
        let run = Run::new(words.split(' '));
        let path = run.dir().join(file);
        fs::write(&path, "x = 1\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        run.run().expect(code).expect_one_line(&[needed]);
    }
    // With an interpreter of its own it is a program.
    let run = Run::new(["-n", "1", "./p.py"]);
    let path = run.dir().join("p.py");
    fs::write(&path, "#!/bin/sh\necho own\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(run.run().expect_quiet_success().out(), "own\n");
}

/// In a process namespace of its own, where no jobs of other tests are.
const ALONE: &str = r#"
start() {
    "$0" run --no-config -n 1 sh -c 'echo ready; exec sleep 100' >out.$1 & eval job$1=$!
    until grep -q ready out.$1; do sleep 0.05; done
}
"$0" top; echo none $?
"$0" attach; echo detached $?
start 1
"$0" top | grep -c '^ *0 '; "$0" ps --proctable | grep -c " running "; "$0" debug --print | grep -c gdb
"$0" stacks >/dev/null; echo stacks $?
"$0" core >/dev/null; echo core $? $(ls | grep -c '^core.0.')
start 2
"$0" stacks; echo several $?
"$0" kill; echo several $?
"$0" kill $job2; wait $job2; echo ended $?
"$0" kill; wait $job1; echo ended $?
"#;

/// Detached jobs, which end when there is a file `end`. `$1` has the lines of a case.
const DETACHED: &str = r#"
detach() {
    "$0" run --no-config --detach -n 1 sh -c 'until [ -e end ]; do sleep 0.05; done; echo over'
}
eval "$1"
"#;

/// Returns the outcome of a script of `sh` in a process namespace of its own; `None` without root.
fn alone(script: &str, words: &[&str]) -> Option<Outcome> {
    if !rustix::process::geteuid().is_root() {
        skip("that the only job needs no name: needs root");
        return None;
    }
    let shell = ["unshare", "--pid", "--mount-proc", "--fork", "sh", "-c"];
    // The first pids of a namespace are short: one could be the beginning of another job's name.
    let script = format!("echo 30000 >/proc/sys/kernel/ns_last_pid\n{script}");
    let script = [script.as_str(), WIREUP];
    let words = shell.iter().chain(&script).chain(words).copied();
    Some(Run::command(words).run().expect(0))
}

#[test]
fn only_job_needs_no_name_and_several_are_listed() {
    if !has("gdb") {
        return;
    }
    let Some(outcome) = alone(ALONE, &[]) else {
        return;
    };
    let expected = "none 1\ndetached 125\n1\n1\n1\nstacks 0\ncore 0 1\nseveral 1\nseveral 1\nended 143\nended 143\n";
    assert_eq!(outcome.out(), expected, "{outcome:?}");
    let err = outcome.err();
    for words in [
        "name a JOB; you have no jobs on this machine",
        "no detached job on this machine",
        "name a JOB; there are ",
    ] {
        assert!(err.contains(words), "{err}");
    }
}

#[test]
fn only_detached_job_needs_no_name_and_several_are_listed() {
    for (case, expected, several) in [
        (
            r#"detach >job; touch end; "$0" attach --no-stdin; echo attached $?"#,
            "over\nattached 0\n",
            0,
        ),
        (
            r#"detach >job; touch end; "$0" wait; echo waited $?"#,
            "waited 0\n",
            0,
        ),
        (
            r#"one=$(detach); two=$(detach)
            "$0" attach --no-stdin; echo attached $?; "$0" wait; echo waited $?
            touch end; "$0" wait $one $two; echo named $?"#,
            "attached 125\nwaited 125\nnamed 0\n",
            2,
        ),
    ] {
        let Some(outcome) = alone(DETACHED, &[case]) else {
            return;
        };
        assert_eq!(outcome.out(), expected, "{outcome:?}");
        let err = outcome.err();
        assert_eq!(err.lines().count(), several, "{outcome:?}");
        for line in err.lines() {
            assert!(line.starts_with("wireup: name a JOB; there are "), "{line}");
            assert_eq!(line.matches("wireup-").count(), 2, "{line}");
        }
    }
}

#[test]
fn bash_completes_options_and_their_values() {
    let script = r#"
source <("$0" completions bash) || exit
complete_line() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    local function=$(complete -p wireup | sed 's/.*-F \([^ ]*\) .*/\1/')
    "$function" wireup "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[*]}"
}
complete_line wireup ru
complete_line wireup run --pm
complete_line wireup run --pmi pmi
complete_line wireup completions z
complete_line wireup impi check-
complete_line wireup impi server --ses
complete_line wireup impi check-client --print
"#;
    let outcome = Run::command(["bash", "--norc", "-c", script, WIREUP]).run();
    let out = outcome.expect_quiet_success().out();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "run");
    assert!(lines[1].split(' ').any(|word| word == "--pmi"), "{out}");
    assert!(
        lines[2].split(' ').all(|word| word.starts_with("pmi")),
        "{out}"
    );
    assert!(lines[2].split(' ').any(|word| word == "pmix"), "{out}");
    // What another executable carries out.
    let rest = [
        "zsh",
        "check-server check-client",
        "--sessions",
        "--print-program",
    ];
    assert_eq!(lines[3..], rest);
}

#[test]
fn bash_completes_jobs_signals_and_programs_but_no_arguments() {
    let running = Run::ranks(1, ["sh", "-c", "echo ready; exec sleep 100"]).start();
    running.wait_for(Output::Stdout, "ready");
    let script = r#"
source <("$0" completions bash) || exit
complete_line() {
    COMP_WORDS=("$0" "$@") COMP_CWORD=$# COMPREPLY=()
    _wireup_first "$0" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[*]}"
}
complete_line kill ''
complete_line kill -s TER
complete_line run -n 2 slee
complete_line run -n 2 sleep --pm
complete_line run -n 2 sleep : --pm
"$0" ps
"#;
    let outcome = Run::command(["bash", "--norc", "-c", script, WIREUP]).run();
    let out = outcome.expect_quiet_success().out();
    let mut lines = out.lines();
    let mut next = || lines.next().unwrap().split(' ');
    let jobs: Vec<&str> = next().collect();
    assert_eq!(next().collect::<Vec<_>>(), ["SIGTERM"]);
    assert!(next().any(|word| word == "sleep"), "{out}");
    assert_eq!(next().collect::<Vec<_>>(), [""]);
    assert!(next().any(|word| word == "--pmi"), "{out}");
    // Other tests have jobs as well.
    let own = running.pid().to_string();
    let shown = lines.find(|line| line.split_whitespace().any(|word| word == own));
    let name = shown
        .and_then(|line| line.split_whitespace().next())
        .unwrap();
    assert!(jobs.contains(&name), "{out}");
    running.signal(Signal::TERM);
    running.finish().expect(143);
}

#[test]
fn other_shells_get_scripts_and_reader_may_stop_early() {
    for shell in ["zsh", "fish"] {
        let script = wireup(["completions", shell]).expect_quiet_success().out();
        for word in ["oversubscribe", "check-client", "print-program"] {
            assert!(script.contains(word), "{word} in {shell}: {script}");
        }
    }
    let early = Run::command([
        "bash",
        "-c",
        r#""$0" completions zsh | head -n 1; echo ${PIPESTATUS[0]}"#,
        WIREUP,
    ]);
    assert_eq!(
        early.run().expect_quiet_success().out(),
        "#compdef wireup\n0\n"
    );
}

#[test]
fn closed_stderr_changes_no_exit_code() {
    let script = r#"
mkfifo pipe; exec 3<>pipe 4>pipe 3>&-
for words in '' rnu run pki config serve 'impi server' 'top nojob'; do
    "$0" $words 2>&4; echo $words $?
done
"#;
    let outcome = Run::command(["bash", "-c", script, WIREUP]).run();
    assert_eq!(
        outcome.expect_quiet_success().out(),
        "125\nrnu 125\nrun 125\npki 125\nconfig 125\nserve 125\nimpi server 125\ntop nojob 1\n"
    );
}

#[test]
fn forgotten_run_is_suggested() {
    expect_refusal(
        wireup(["./app", "x"]),
        &["unknown command \"./app\"", "wireup run ./app"],
    );
    expect_refusal(
        wireup(["-n", "4", "./app"]),
        &["-n is an option of a command", "wireup run -n"],
    );
    expect_refusal(
        wireup(["rnu", "./app"]),
        &["unknown command \"rnu\"", "did you mean: wireup run"],
    );
    expect_refusal(
        wireup(["list"]),
        &["unknown command \"list\"", "did you mean: wireup ps"],
    );
    for far in ["--memory-per-rank", "--per-host-count"] {
        let outcome = wireup(["run", far, "true"]).expect(125);
        assert!(!outcome.err().contains("similar"), "{outcome:?}");
    }
    expect_refusal(
        wireup(["config", "shwo"]),
        &["unrecognized subcommand 'shwo'", "'show'"],
    );
    expect_refusal(
        wireup(["run"]),
        &["no program is given; write: wireup run [OPTIONS] PROGRAM"],
    );
}

#[test]
fn equivalent_options_of_other_launchers_work() {
    let show = ["sh", "-c", "echo $A $B"];
    let words = [
        "-genv",
        "A",
        "1",
        "-np",
        "1",
        "-env",
        "B",
        "2",
        "--allow-run-as-root",
    ];
    let next = [":", "-np", "1", "-env", "B", "3"];
    let words = ["--oversubscribe", "--bind-to", "none"]
        .iter()
        .chain(&words)
        .chain(&show);
    let outcome = Run::new(words.chain(&next).chain(&show)).run();
    assert_eq!(
        outcome.expect_quiet_success().sorted_lines(),
        ["1 2", "1 3"]
    );
    let outcome = Run::new(["-np", "1", "--tag-output", "-wdir", "/", "pwd"]).run();
    assert_eq!(outcome.expect_quiet_success().out(), "[0] /\n");
}

#[test]
fn foreign_options_are_refused_with_replacement() {
    for (words, needed) in [
        (
            &["--mca", "btl", "tcp", "true"][..],
            "--mca: write -x OMPI_MCA_btl=tcp",
        ),
        (
            &["-N", "2", "true"],
            "-N: to srun it is a number of nodes, to mpirun of ranks on each; write --nodes 2 or --ppn 2",
        ),
        (
            &["--mpi=pmi2", "true"],
            "write --pmi pmi2 for the interface",
        ),
        (
            &["-path", "/opt/bin", "true"],
            "-path: write -x PATH=/opt/bin:$PATH",
        ),
        (&["--export=ALL", "true"], "--export=ALL: write --env all"),
        (&["-gdb", "true"], "-gdb: write --wrap"),
        (&["-t", "5", "true"], "-t: write --timeout SECONDS"),
        (
            &["--rank-by", "core", "true"],
            "--rank-by: ranks are numbered as",
        ),
        (
            &["--cpu-bind", "cores", "true"],
            "--cpu-bind cores: write --bind-to core,",
        ),
        (
            &["--map-by", "board", "true"],
            "give slot, node, hwthread, core, l2, l3, numa, package, or ppr:N:",
        ),
        (
            &["-c", "2", "-n", "2", "true"],
            "-c: to mpirun it is a number of ranks, to srun CPUs for each; write -n 2",
        ),
    ] {
        expect_refusal(Run::new(words).run(), &[needed]);
    }
    // After the program they are the program's.
    let outcome = Run::new(["-n", "1", "echo", "--mca", "-np"]).run();
    assert_eq!(outcome.expect_quiet_success().out(), "--mca -np\n");
}

#[test]
fn last_occurrence_of_option_counts_and_no_negates_it() {
    let outcome = Run::new(["-n", "7000", "-n", "1", "-l", "--no-label", "echo", "a"]).run();
    assert_eq!(outcome.expect_quiet_success().out(), "a\n");
    expect_refusal(
        Run::new(["--no-frob", "true"]).run(),
        &["unexpected argument '--no-frob' found"],
    );
}

#[test]
fn job_options_after_colon_must_move_to_front() {
    expect_refusal(
        Run::new(["-n", "1", "true", ":", "-l", "true"]).run(),
        &[
            "program 2 (after `:`): -l holds for the whole job",
            "in front of the first program",
        ],
    );
}

#[test]
fn old_spellings_of_options_run() {
    for line in [
        "--explain true",
        "--label-pattern %h: echo a",
        "--timing true",
        "--trace t.json true",
        "--preload-binary true",
        "--preload-files ./here true",
        "--meet m true",
        "--keep-names=1h true",
        "--on-terminal-loss end true",
        "--on-launcher-loss end true",
        "--stop-on-exec --dry-run true",
        "--stop-in-init=0 --pmi none --dry-run --no-stop-in-init true",
        "--hosts a,b --star-limit 1 --dry-run true",
    ] {
        let words = line.split(' ');
        wireup(["run", "-n", "1"].into_iter().chain(words)).expect(0);
    }
}
