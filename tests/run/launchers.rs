//! wireup under the names of other launchers: every option of their own help texts is taken or refused by its name, and
//! what differs from `wireup run` is as there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::common::{Outcome, Run, mpis, not_checked};

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

/// An option as a launcher's help has it, and how many values.
type Known = (String, usize);

fn as_launcher<'a>(words: impl IntoIterator<Item = &'a str>) -> Run {
    Run::command(std::iter::once(WIREUP).chain(words))
}

/// Returns a launcher's own description of its options.
fn help_of(launcher: &Path, words: &[&str], variables: &[(&str, &Path)]) -> Option<String> {
    let mut command = Command::new(launcher);
    command.args(words);
    for (name, value) in variables {
        command.env(name, value);
    }
    let output = command.output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Options of Hydra and Intel MPI without a value. Their help shows no value of many that have one.
const HYDRA_SWITCHES: [&str; 25] = [
    "-aps",
    "-disable-auto-cleanup",
    "-disable-hostname-propagation",
    "-disable-x",
    "-enable-x",
    "-envall",
    "-envnone",
    "-gdb",
    "-genvall",
    "-genvnone",
    "-hybrid-hosts",
    "-info",
    "-mps",
    "-nolocal",
    "-pmi-port",
    "-prepend-rank",
    "-prepend-timestamp",
    "-print-all-exitcodes",
    "-print-rank-map",
    "-profile",
    "-prot",
    "-silent-abort",
    "-skip-launch-node",
    "-tv",
    "-verbose",
];

/// Lines of an option and its values, as Open MPI 4 (`-a|--b <arg0>`) and Hydra (`-a/-b {value}`) have them, with the
/// number of values of an option that is shown without any.
fn of_lines(text: &str, between: char, unshown: impl Fn(&str) -> usize) -> Vec<Known> {
    let mut known = Vec::new();
    for line in text
        .lines()
        .map(str::trim_start)
        .filter(|line| line.starts_with('-'))
    {
        let (names, rest) = line.split_once(' ').unwrap_or((line, ""));
        let description = rest.find("  ").unwrap_or(rest.len());
        let shown = rest[..description].matches(['<', '{']).count();
        known.extend(names.split(between).map(|name| {
            let values = if shown == 0 { unshown(name) } else { shown };
            (name.to_owned(), values)
        }));
    }
    known
}

/// The quoted options in the first column of PRRTE's tables, which break lines.
fn of_tables(text: &str) -> Vec<Known> {
    let mut known = Vec::new();
    let mut cell = String::new();
    // That of the first column, by the line above the cell.
    let mut width = 0;
    for line in text.lines() {
        let Some(row) = line.strip_prefix('|') else {
            if let Some(border) = line.strip_prefix('+') {
                width = border.find('+').unwrap_or_default();
            }
            known.extend(of_cell(&cell));
            cell.clear();
            continue;
        };
        let part = row.get(..width).unwrap_or_default().trim();
        if !cell.ends_with('-') {
            cell.push(' ');
        }
        cell.push_str(part);
    }
    known.retain(|(name, _)| name.starts_with('-'));
    known
}

/// The names in a cell (`"-a" | "--bcd <value>"`), which have the same values.
fn of_cell(cell: &str) -> Vec<Known> {
    let values = cell.matches('<').count();
    let values = values.min(1 + usize::from(cell.contains("> <")));
    let quoted = cell.split('"').skip(1).step_by(2);
    let names = quoted.map(|text| text.split([' ', '<']).next().unwrap_or_default());
    names.map(|name| (name.to_owned(), values)).collect()
}

/// `  -a, --bcd=value` and `      --bcd[=value]`.
fn of_getopt(text: &str) -> Vec<Known> {
    // Descriptions name options too.
    const INDENT_MAX: usize = 6;
    // Optional, by srun(1).
    const OPTIONAL: &str = "--bcast=<dest_path>";
    let mut known = Vec::new();
    for line in text
        .lines()
        .filter(|line| line.find('-').is_some_and(|at| at <= INDENT_MAX))
        .map(str::trim_start)
        .filter(|line| line.starts_with('-'))
    {
        let words = line
            .split([' ', ','])
            .take_while(|word| word.is_empty() || word.starts_with('-'));
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        let takes_value = words
            .iter()
            .any(|word| word.contains('=') && !word.contains("[=") && *word != OPTIONAL);
        for word in words {
            let name = word.split(['=', '[']).next().unwrap_or_default();
            known.push((name.to_owned(), usize::from(takes_value)));
        }
    }
    known
}

/// Values that are right for some options, whose meaning is checked late.
fn value(option: &str) -> &'static str {
    match option.trim_start_matches('-') {
        "H" | "host" | "hosts" | "add-host" | "w" | "nodelist" | "hosts-group" => "localhost",
        "wd" | "wdir" | "D" | "chdir" => ".",
        "rf" | "rankfile" => "ranks",
        "stdin" | "s" | "i" | "input" => "0",
        "output-filename" => "out",
        // This machine is one host, and may have one CPU and no GPU.
        "gpus-per-proc" | "gpus-per-task" => "0",
        _ => "1",
    }
}

/// Fails unless wireup takes each option with its values as that launcher, or refuses it by its name.
#[track_caller]
fn check(launcher: &str, known: &[Known]) {
    assert!(known.len() > 40, "{launcher}: {known:?}");
    let pages = ["-h", "--help", "-V", "--version", "--usage", "-info"];
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("1"), "localhost\n").unwrap();
    fs::write(dir.path().join("ranks"), "rank 0=localhost slot=0\n").unwrap();
    let mut wrong = Vec::new();
    for (option, values) in known
        .iter()
        .filter(|(option, _)| !pages.contains(&&**option))
    {
        let values = vec![value(option); *values];
        let output = Command::new(WIREUP)
            .args([launcher, "--no-config", "--dry-run", "-n", "1", option])
            .args(values)
            .arg("true")
            .current_dir(dir.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let rest = stderr.strip_prefix("wireup: ");
        let rest = rest.and_then(|text| text.strip_prefix(option.as_str()));
        let is_named = rest.is_some_and(|rest| rest.starts_with([' ', ':', '=']));
        if !output.status.success() && !is_named {
            wrong.push(format!("{launcher} {option}: {stderr}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.concat());
}

#[test]
fn options_of_mpi_launchers_help_are_taken_or_refused() {
    for mpi in mpis() {
        let launcher = Path::new(&mpi.launcher);
        let root = launcher.parent().and_then(Path::parent).unwrap_or(launcher);
        let known = match &*mpi.name {
            "openmpi4" => {
                let words = ["--allow-run-as-root", "--help", "full"];
                help_of(launcher, &words, &[]).map(|text| of_lines(&text, '|', |_| 0))
            }
            "openmpi5" => {
                let prefixes = [("OPAL_PREFIX", root), ("PRTE_PREFIX", root)];
                let help = help_of(&launcher.with_file_name("prterun"), &["--help"], &prefixes);
                help.map(|text| of_tables(&text))
            }
            _ => {
                let unshown = |name: &str| usize::from(!HYDRA_SWITCHES.contains(&name));
                help_of(launcher, &["--help"], &[]).map(|text| of_lines(&text, '/', unshown))
            }
        };
        let Some(known) = known else {
            not_checked(&format!(
                "the options of {}: its launcher prints no help",
                mpi.name
            ));
            continue;
        };
        let names: &[&str] = match mpi.libpmix {
            Some(_) => &["mpirun", "mpiexec"],
            None => &["mpiexec.hydra", "mpiexec"],
        };
        for name in names {
            check(name, &known);
        }
    }
}

#[test]
fn options_of_srun_help_are_taken_or_refused() {
    let paths = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&paths)
        .map(|dir| dir.join("srun"))
        .find(|path| path.is_file());
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("slurm.conf");
    let text = "ClusterName=a\nSlurmctldHost=localhost\nNodeName=localhost CPUs=1\nPartitionName=p Nodes=ALL\n";
    fs::write(&conf, text).unwrap();
    let help = found.and_then(|srun| help_of(&srun, &["--help"], &[("SLURM_CONF", &conf)]));
    match help {
        Some(text) => check("srun", &of_getopt(&text)),
        None => not_checked("the options of srun: needs slurm-client"),
    }
}

/// A script in the directory of a run.
fn script(run: &Run, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = run.dir().join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn mpirun_finds_program_in_working_directory() {
    for (launcher, code) in [("mpirun", 0), ("mpiexec.hydra", 127)] {
        let run = as_launcher([launcher, "--no-config", "-n", "1", "only-here"]);
        script(&run, "only-here", "echo here");
        let outcome = run.run().expect(code);
        assert_eq!(outcome.out().contains("here"), code == 0, "{outcome:?}");
    }
}

#[test]
fn mpiexec_hydra_runs_more_ranks_than_cores() {
    let count = std::thread::available_parallelism().unwrap().get() + 2;
    let count = count.to_string();
    let words = ["--no-config", "-n", &count, "echo", "x"];
    let outcome = as_launcher(["mpiexec.hydra"].into_iter().chain(words)).run();
    let lines = outcome.expect_quiet_success().sorted_lines();
    assert_eq!(lines.len().to_string(), count);
    let outcome = as_launcher(["mpirun"].into_iter().chain(words))
        .run()
        .expect(125);
    outcome.expect_one_line(&["--oversubscribe"]);
}

#[test]
fn srun_overcommit_runs_more_tasks_than_cpus() {
    let count = std::thread::available_parallelism().unwrap().get() + 2;
    let count = count.to_string();
    let start = |options: &[&str]| {
        let front = ["srun", "--no-config", "-n", &count];
        let words = front.iter().chain(options);
        let words = words.chain(&["echo", "x"]).copied();
        as_launcher(words)
    };
    let refusal = start(&["-s"]).run().expect(125);
    let line = refusal.expect_one_line(&["ranks do not fit", "use -O,"]);
    let (_, advice) = line.split_once("; use ").unwrap();
    let named = advice.split(',').next().unwrap();
    for option in [named, "--overcommit"] {
        let outcome = start(&[option]).run().expect_quiet_success();
        assert_eq!(outcome.sorted_lines().len().to_string(), count, "{option}");
    }
    start(&[])
        .env("SLURM_OVERCOMMIT", OsStr::new("1"))
        .run()
        .expect_quiet_success();
}

fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn srun_redirects_streams_of_tasks() {
    let task = "cat; echo out $WIREUP_RANK; echo err >&2";
    let front = ["srun", "--no-config", "-n", "2"];
    let oversubscribed = ["-c", "1", "--cpu-bind=none"];
    let program = ["sh", "-c", task];
    let words = |files: &'static [&'static str]| {
        let options = front.iter().chain(&oversubscribed).chain(files);
        options.chain(&program).copied().collect::<Vec<_>>()
    };
    let start = |files: &'static [&'static str]| {
        let run = as_launcher(words(files));
        for (name, text) in [("in.0", "zero\n"), ("in.1", "one\n")] {
            fs::write(run.dir().join(name), text).unwrap();
        }
        run.run()
    };
    let outcome = start(&["-o", "out.%t", "-e", "err.%t", "-i", "in.%t"]).expect_quiet_success();
    let dir: PathBuf = outcome.dir().to_owned();
    assert_eq!(outcome.out(), "");
    assert_eq!(read(&dir, "out.0"), "zero\nout 0\n");
    assert_eq!(read(&dir, "out.1"), "one\nout 1\n");
    assert_eq!(read(&dir, "err.1"), "err\n");
    let outcome = start(&["-o", "all", "-e", "err", "-i", "in.0"]);
    let outcome: Outcome = outcome.expect(0);
    assert_eq!(outcome.sorted_lines(), ["out 0", "out 1", "zero", "zero"]);
    assert_eq!(read(outcome.dir(), "err"), "err\nerr\n");
    let outcome = start(&["--output=both", "--input=none"]).expect_quiet_success();
    let both = read(outcome.dir(), "both");
    let mut both: Vec<&str> = both.lines().collect();
    both.sort_unstable();
    assert_eq!(both, ["err", "err", "out 0", "out 1"]);
}

#[test]
fn labels_equal_those_of_launcher() {
    let lines = |words: &[&str], count: &str| {
        // Slurm's --oversubscribe has no effect.
        let slots = format!("localhost:{count}");
        let room = match words[0] {
            "srun" => ["-w", &slots],
            _ => ["--no-config", "--oversubscribe"],
        };
        let front = ["--no-config", room[0], room[1], "-n", count];
        let program = ["sh", "-c", "echo out; echo err >&2"];
        let words = words[..1].iter().chain(&front).chain(&words[1..]);
        let outcome = as_launcher(words.chain(&program).copied()).run().expect(0);
        let text = outcome.out() + "\n" + &outcome.err();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.retain(|line| !line.is_empty());
        lines.sort_unstable();
        lines
    };
    assert_eq!(
        lines(&["mpirun", "--tag-output"], "2"),
        [
            "[1,0]<stderr>: err",
            "[1,0]<stdout>: out",
            "[1,1]<stderr>: err",
            "[1,1]<stdout>: out",
        ]
    );
    let dated = lines(&["mpirun", "--timestamp-output", "--tag-output"], "1");
    for (line, rest) in dated
        .iter()
        .zip(["][1,0]<stderr>: err", "][1,0]<stdout>: out"])
    {
        let date = line.strip_suffix(rest).unwrap_or_else(|| panic!("{line}"));
        assert_eq!(date.len(), "[Sat Nov 28 09:03:33 2026".len(), "{line}");
    }
    let detailed = lines(&["mpirun", "--output", "tag-detailed"], "1");
    let pid = detailed[0]
        .rsplit_once(']')
        .unwrap()
        .0
        .rsplit_once(':')
        .unwrap()
        .1;
    assert!(pid.parse::<u32>().unwrap() > 1, "{detailed:?}");
    let many = lines(&["srun", "-l"], "11");
    for line in [" 0: out", " 9: err", "10: out"] {
        assert!(many.iter().any(|found| found == line), "{line} {many:?}");
    }
    assert_eq!(lines(&["srun", "-l"], "1"), ["0: err", "0: out"]);
    let pattern = "%r %g %p %%: ";
    let virtual_nodes = ["--virtual-nodes", "2", "--ppn", "1"];
    let mut words = vec!["mpiexec.hydra", "-prepend-pattern", pattern];
    words.extend(virtual_nodes);
    assert_eq!(
        lines(&words, "2"),
        [
            "0 0 0 %: err",
            "0 0 0 %: out",
            "1 0 1 %: err",
            "1 0 1 %: out"
        ]
    );
    assert_eq!(lines(&["mpiexec.hydra", "-l"], "1"), ["[0] err", "[0] out"]);
}

#[test]
fn pattern_of_label_is_checked() {
    let outcome = Run::new(["-n", "1", "--label=%x", "true"]).run();
    outcome
        .expect(125)
        .expect_one_line(&["--label", "unknown pattern %x; use %r %R"]);
}

#[test]
fn job_options_apply_to_every_program() {
    let program = "echo $0 $A $(pwd) $OMPI_MCA_a; echo err >&2";
    let lines = |launcher: &str, words: &[&str]| {
        let front = [launcher, "--no-config", "--oversubscribe"];
        let first = ["-n", "1", "sh", "-c", program, "first"];
        let second = [":", "-n", "1", "sh", "-c", program, "second"];
        let words = front.iter().chain(words).chain(&first).chain(&second);
        as_launcher(words.copied())
            .env("A", OsStr::new("inherited"))
            .run()
            .expect(0)
    };
    let outcome = lines("mpiexec.hydra", &["-genvnone", "-gwdir", "/"]);
    assert_eq!(outcome.sorted_lines(), ["first /", "second /"]);
    let outcome = lines("mpiexec.hydra", &["-wdir", "/", "-genvlist", "A"]);
    assert!(
        outcome.sorted_lines()[0] == "first inherited /",
        "{outcome:?}"
    );
    assert!(
        outcome.sorted_lines()[1].starts_with("second inherited /"),
        "{outcome:?}"
    );
    let words = [
        "--gmca",
        "a",
        "1",
        "--wdir",
        "/",
        "--merge-stderr-to-stdout",
    ];
    let outcome = lines("mpirun", &words);
    let found = outcome.sorted_lines();
    assert_eq!(found[..2], ["err", "err"], "{outcome:?}");
    assert!(
        found
            .iter()
            .all(|line| line == "err" || line.ends_with(" 1"))
    );
}

#[test]
fn wrap_of_user_and_redirections_hold() {
    let front = ["--no-config", "--hosts", "localhost:3", "-n", "3"];
    let program = ["sh", "-c", "echo ${A:-none}; echo err >&2"];
    let run = |words: &[&str]| {
        let words = words[..1].iter().chain(&front).chain(&words[1..]);
        as_launcher(words.chain(&program).copied())
            .run()
            .expect_quiet_success()
    };
    let srun = [
        "srun",
        "-o",
        "out.%t",
        "-e",
        "err.%t",
        "--wrap",
        "env 'A=1 2'",
    ];
    let all = run(&srun);
    let some = run(&[&srun[..], &["--wrap-ranks", "0,2"]].concat());
    for (rank, expected) in ["1 2\n", "none\n", "1 2\n"].into_iter().enumerate() {
        assert_eq!(read(all.dir(), &format!("out.{rank}")), "1 2\n");
        assert_eq!(read(some.dir(), &format!("out.{rank}")), expected);
        assert_eq!(read(some.dir(), &format!("err.{rank}")), "err\n");
    }
    let pattern = [
        "mpiexec.hydra",
        "-outfile-pattern",
        "o.%r",
        "-errfile-pattern",
        "e.%r",
    ];
    let hydra = run(&[&pattern[..], &["--wrap", "env A=2"]].concat());
    assert_eq!(read(hydra.dir(), "o.1"), "2\n");
    assert_eq!(read(hydra.dir(), "e.1"), "err\n");
    let unordered = run(&[&srun[..], &["--wrap-ranks", "2,0-0,0"]].concat());
    assert_eq!(read(unordered.dir(), "out.0"), "1 2\n");
    assert_eq!(read(unordered.dir(), "out.1"), "none\n");
    assert_eq!(read(unordered.dir(), "out.2"), "1 2\n");
}

#[test]
fn wrap_of_user_is_refused_with_redirection() {
    let front = ["srun", "--no-config", "-n", "1", "-e", "err.%t"];
    for (options, code, text) in [
        (
            &["--wrap", "no-such-command x"][..],
            127,
            "--wrap: program \"no-such-command\" not found",
        ),
        (&["--wrap", ""][..], 125, "--wrap is empty"),
        (
            &["--wrap", "env", "--wrap-ranks", "9"][..],
            125,
            "--wrap-ranks 9: rank 9 does not run this program, whose only rank is 0",
        ),
    ] {
        let words = front.iter().chain(options).chain(&["echo", "ran"]);
        let outcome = as_launcher(words.copied()).run().expect(code);
        assert_eq!(outcome.out(), "", "{outcome:?}");
        outcome.expect_one_line(&[text]);
    }
}

#[test]
fn non_utf8_file_names_are_preserved() {
    use std::os::unix::ffi::OsStrExt as _;
    let name = |bytes: &'static [u8]| OsStr::from_bytes(bytes).to_owned();
    let output = |launcher: &str, option: &str, value: &'static [u8]| {
        let dir = tempfile::tempdir().unwrap();
        let status = Command::new(WIREUP)
            .args([launcher, "--no-config", "-n", "1", option])
            .arg(name(value))
            .args(["echo", "x"])
            .current_dir(dir.path())
            .status();
        assert!(status.unwrap().success());
        dir
    };
    for (launcher, option, value, file) in [
        ("srun", "-o", &b"\xff.%t"[..], &b"\xff.0"[..]),
        ("srun", "-e", b"\xff.%t", b"\xff.0"),
        ("srun", "-o", b"\xff%%", b"\xff%"),
        ("mpiexec.hydra", "-outfile-pattern", b"\xff.%r", b"\xff.0"),
        (
            "mpirun",
            "--output-filename",
            b"\xff",
            b"\xff/1/rank.0/stdout",
        ),
    ] {
        let dir = output(launcher, option, value);
        let path = dir.path().join(name(file));
        assert!(path.is_file(), "{launcher} {option}: {dir:?}");
    }
    let dir = output("mpirun", "--output", b"dir=\xff");
    let mut jobs = fs::read_dir(dir.path().join(name(b"\xff"))).unwrap();
    let job = jobs.next().unwrap().unwrap().path();
    assert_eq!(read(&job, "rank.0/stdout"), "x\n");
}

#[test]
fn options_without_effect_are_named_with_verbose() {
    let words = ["srun", "--no-config", "-n", "1", "--mem=4G", "-p", "debug"];
    let quiet = as_launcher(words.into_iter().chain(["true"])).run();
    quiet.expect_quiet_success();
    let verbose = as_launcher(words.into_iter().chain(["-v", "true"]))
        .run()
        .expect(0);
    for note in [
        "--mem=4G has no effect: it belongs to the allocation",
        "-p has no effect",
    ] {
        assert!(verbose.err().contains(note), "{verbose:?}");
    }
}

#[test]
fn mpiexec_timeout_variable_ends_job() {
    let run = as_launcher(["mpiexec", "--no-config", "-n", "1", "sleep", "600"]);
    let outcome = run
        .env("MPIEXEC_TIMEOUT", OsStr::new("1"))
        .run()
        .expect(124);
    assert!(outcome.err().contains("1 s"), "{outcome:?}");
}

#[test]
fn launcher_texts_name_launcher() {
    for (launcher, meant) in [
        ("srun", "Slurm"),
        ("mpirun", "Open MPI"),
        ("mpiexec.hydra", "MPICH"),
    ] {
        let version = as_launcher([launcher, "--version"])
            .run()
            .expect_quiet_success()
            .out();
        let first = format!("wireup {} as {launcher}: ", env!("CARGO_PKG_VERSION"));
        assert!(
            version.starts_with(&first) && version.contains(meant),
            "{version}"
        );
        let help = as_launcher([launcher, "--help"])
            .run()
            .expect_quiet_success()
            .out();
        assert!(
            help.contains(&format!("Usage: {launcher} [OPTIONS] PROGRAM")),
            "{help}"
        );
        let is_filled = help.lines().all(|line| line.chars().count() <= 100);
        assert!(is_filled, "{help}");
    }
}
