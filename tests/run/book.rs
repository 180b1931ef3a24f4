//! The commands of the documentation. Every block of code of a shell runs here, or its first line names what runs it:
//!
//! - `sh`: the test runs it, after the blocks above it on its page, in a directory with an MPI program, `app`, under several
//!   names, and a program that runs until it is ended, `solver`;
//! - `sh plan`: it needs hosts or cores that this machine lacks, so `wireup run` gets `--dry-run`;
//! - `sh test=FILE`: this test does the same, on hosts or with services of its own;
//! - `sh network`, `sh build`: it downloads packages; it builds, or takes minutes;
//! - `python FILE`: the program FILE of the blocks below.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use crate::common::{DEADLINE, Outcome, Run, mpi, mpi4py, repository, wireup};

/// Names of the MPI program in the documentation.
const PROGRAMS: [&str; 10] = [
    "a",
    "a.out",
    "adaptive",
    "app",
    "client",
    "manager",
    "master",
    "my_mpi_program",
    "server",
    "worker",
];

const TUTORIAL: &str = "docs/tutorial.md";

/// Marks of blocks that no test runs.
const NOT_RUN: [&str; 2] = ["network", "build"];

/// Start of each script. The doctor exits with 1 for problems of this machine. An attach server waits for a day until a command asks
/// for the end of its job: on exit each job is killed and asked about.
const COMMANDS: &str = r#"set -euo pipefail
touch detached
trap 'while read -r job; do
    command wireup kill "$job" || true
    command wireup attach --no-stdin "$job" || true
done <detached &>/dev/null' EXIT
wireup() {
    if [[ "$1 ${2-}" == "run --detach" ]]; then
        command wireup "$@" | tee -a detached
    else
        command wireup "$@" || { local code=$?; [[ $1 == doctor && $code == 1 ]]; }
    fi
}
"#;

/// A block of code.
#[derive(Debug)]
struct Block {
    /// Path of the page and number of the line with the fence.
    place: String,
    /// Words behind the opening fence.
    info: Vec<String>,
    /// Lines, without the indentation of the fence.
    lines: Vec<String>,
}

impl Block {
    fn info(&self) -> Vec<&str> {
        self.info.iter().map(String::as_str).collect()
    }
}

/// The pages of one part of the book, or of all parts, as paths from the root of the repository.
fn pages(part: Option<&str>) -> Vec<String> {
    let summary = fs::read_to_string(repository().join("docs/SUMMARY.md")).unwrap();
    let mut within = "Summary";
    let mut pages = Vec::new();
    for line in summary.lines() {
        within = line.strip_prefix("# ").unwrap_or(within);
        let target = line
            .split_once("](")
            .and_then(|(_, rest)| rest.split_once(')'));
        let Some((target, _)) = target else { continue };
        if part.is_none_or(|part| part == within) {
            let below = format!("docs/{target}");
            pages.push(target.strip_prefix("../").map_or(below, str::to_owned));
        }
    }
    assert!(!pages.is_empty(), "no part {part:?} in docs/SUMMARY.md");
    pages
}

/// The blocks of a page, and the lines outside them, each with its number.
fn blocks(page: &str) -> (Vec<Block>, Vec<(usize, String)>) {
    let text = fs::read_to_string(repository().join(page)).unwrap();
    let (mut blocks, mut prose) = (Vec::new(), Vec::new());
    let mut open: Option<(usize, Block)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let indent = line.len() - line.trim_start().len();
        if let Some(info) = line.trim_start().strip_prefix("```") {
            match open.take() {
                Some((_, block)) => blocks.push(block),
                None => {
                    let block = Block {
                        place: format!("{page}:{number}"),
                        info: info.split(' ').map(str::to_owned).collect(),
                        lines: Vec::new(),
                    };
                    open = Some((indent, block));
                }
            }
        } else if let Some((indent, block)) = &mut open {
            block
                .lines
                .push(line.get(*indent..).unwrap_or("").to_owned());
        } else {
            prose.push((number, line.to_owned()));
        }
    }
    assert!(open.is_none(), "{page}: a block of code has no end");
    (blocks, prose)
}

/// A script for bash that runs the blocks of a page; `None` if it has none to run.
fn script(page: &str) -> Option<String> {
    let mut script = COMMANDS.to_owned();
    let mut count = 0;
    for block in blocks(page).0 {
        let text = block.lines.join("\n");
        let place = &block.place;
        match block.info()[..] {
            ["python", file] => {
                writeln!(script, "cat >{file} <<'END OF FILE'\n{text}\nEND OF FILE").unwrap();
                continue;
            }
            ["sh"] => writeln!(script, "trap 'echo {place}: failed >&2' ERR\n{text}"),
            ["sh", "plan"] => writeln!(
                script,
                "trap 'echo {place}: failed >&2' ERR\n(\n\
                wireup() {{ [[ $1 == run ]]; command wireup run --dry-run \"${{@:2}}\"; }}\n\
                export HWLOC_SYNTHETIC='package:2 numa:2 core:16 pu:2'\n{text}\n)"
            ),
            _ => continue,
        }
        .unwrap();
        count += 1;
    }
    (count > 0).then_some(script)
}

fn write_executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the blocks of a page; `None`, and the test is ignored, without the MPIs, and `None` for a page without commands.
#[track_caller]
fn run_page(page: &str) -> Option<Outcome> {
    let script = script(page)?;
    let program = mpi("mpich5")?.program("hello");
    let python = mpi4py(&mpi("openmpi5")?)?;
    let run = Run::command(["bash", "page.sh"]).deadline(Duration::from_mins(5));
    // An attach server whose job has been asked about stays for a second.
    let run = run.clean_within(DEADLINE);
    let dir = run.dir().to_owned();
    fs::write(dir.join("page.sh"), script).unwrap();
    for name in PROGRAMS {
        symlink(&program, dir.join(name)).unwrap();
    }
    write_executable(&dir.join("solver"), "#!/bin/sh\nexec sleep 600\n");
    write_executable(&dir.join("script.sh"), "#!/bin/sh\nmpiexec -n 2 ./app\n");
    fs::write(dir.join("ranks.txt"), "rank 0=localhost slot=0\n").unwrap();
    fs::write(dir.join("input.dat"), "1\n").unwrap();
    // Machines of tests may have one core.
    fs::write(dir.join("wireup.toml"), "[run]\noversubscribe = true\n").unwrap();
    let bin = dir.join("bin");
    fs::create_dir(&bin).unwrap();
    let interpreter = format!("#!/bin/sh\nexec {} \"$@\"\n", python.python.display());
    for name in ["python", "python3"] {
        write_executable(&bin.join(name), &interpreter);
    }
    let system = std::env::var("PATH").unwrap();
    let own = wireup().parent().unwrap().display().to_string();
    let run = run.env("PATH", format!("{}:{own}:{system}", bin.display()));
    let run = run.env("HOME", &dir);
    let run = python
        .env
        .iter()
        .fold(run, |run, (name, value)| run.env(name, value));
    Some(run.run().expect(0))
}

/// Runs the pages of a part.
#[track_caller]
fn run_part(part: &str) {
    for page in pages(Some(part)) {
        if page != TUTORIAL {
            run_page(&page);
        }
    }
}

#[test]
fn tutorial_spawns_on_two_virtual_nodes() {
    let Some(outcome) = run_page(TUTORIAL) else {
        return;
    };
    let out = outcome.out();
    let line = out.lines().find(|line| line.starts_with("6 processes, "));
    let line = line.unwrap_or_else(|| panic!("{outcome:?}"));
    assert!(line.starts_with("6 processes, sum 15: "), "{line}");
    for node in 0..2 {
        let name = format!("-v{node}");
        let count = line.split(' ').filter(|word| word.ends_with(&name)).count();
        assert!(count > 1, "a manager and no worker on node {node}: {line}");
    }
}

#[test]
fn commands_of_front_pages_succeed() {
    run_part("Summary");
}

#[test]
fn commands_for_users_succeed() {
    run_part("Use");
}

#[test]
fn commands_for_sites_succeed() {
    run_part("Run a site");
}

#[test]
fn commands_for_programs_succeed() {
    run_part("Build on it");
}

#[test]
fn commands_for_developers_succeed() {
    run_part("Work on it");
}

#[test]
fn pages_open_with_command() {
    // Written by scripts/bench; begins with its first step.
    let others = ["docs/benchmarks.md", TUTORIAL];
    for page in pages(None) {
        let own = page
            .strip_prefix("docs/")
            .is_some_and(|name| !name.contains('/'));
        if !own || others.contains(&&*page) {
            continue;
        }
        let text = fs::read_to_string(repository().join(&page)).unwrap();
        let opening = text.split("\n## ").next().unwrap();
        assert!(
            opening.contains("```sh") || opening.contains("```python"),
            "{page}: no command before the first section"
        );
    }
}

#[test]
fn command_blocks_run_or_name_reason() {
    let mut count = 0;
    let is_command = |line: &str| {
        let word = line.trim_start().split(' ').next().unwrap();
        matches!(word, "wireup" | "cargo" | "sudo" | "$") || word.starts_with("scripts/")
    };
    for page in pages(None) {
        let (blocks, prose) = blocks(&page);
        for block in blocks {
            let place = &block.place;
            match block.info()[..] {
                ["sh"] | ["sh", "plan"] | ["python", _] => count += 1,
                ["sh", mark] => {
                    let test = mark.strip_prefix("test=");
                    let exists = test.is_some_and(|test| repository().join(test).exists());
                    assert!(exists || NOT_RUN.contains(&mark), "{place}: {mark}");
                }
                [language] if language != "bash" && language != "console" => {
                    // Figures of processes name commands too.
                    let is_figure = block.lines.iter().any(|line| line.contains(['─', '═']));
                    let command = block
                        .lines
                        .iter()
                        .find(|line| !is_figure && is_command(line));
                    assert!(command.is_none(), "{place}: {command:?}: write ```sh");
                }
                _ => panic!("{place}: {:?}: see tests/run/book.rs", block.info),
            }
        }
        for (number, line) in prose {
            let code = line.starts_with("    ") && is_command(&line);
            assert!(!code, "{page}:{number}: {line:?}: write ```sh");
        }
    }
    assert!(count > 40, "{count}");
}
