//! The command lines of `tests/command-lines.txt`, given to wireup under the names of the programs that they are for, in
//! the allocation that is described here: which ranks run what, on which hosts, with which variables.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::{fs, iter};

use serde_json::Value;

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

const CORPUS: &str = include_str!("../command-lines.txt");

/// A job of Slurm on four nodes with this number of tasks each.
fn allocation(tasks: u32) -> [(&'static str, String); 4] {
    [
        ("SLURM_JOB_ID", "7".to_owned()),
        ("SLURM_JOB_NODELIST", "node[01-04]".to_owned()),
        ("SLURM_TASKS_PER_NODE", format!("{tasks}(x4)")),
        ("SLURM_JOB_CPUS_PER_NODE", format!("{tasks}(x4)")),
    ]
}

/// Variables of its user. Programs are not looked for on this machine, whose installation would count otherwise.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("PATH", "/nonexistent"),
    ("LD_LIBRARY_PATH", "/opt/lib"),
    ("A", "a"),
    ("C", "c"),
    ("OMP_NUM_THREADS", "1"),
];

/// Host files that the lines name.
const HOST_FILES: [&str; 4] = ["hosts", "machinefile", "hosts.txt", "myhostfile"];

/// Programs that hosts of the allocation need not share with this one, which runs the lines for `localhost`.
const PROGRAMS: [&str; 2] = ["prog", "a.out"];

fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in HOST_FILES {
        fs::write(
            dir.path().join(name),
            "n1 slots=4\nn2 slots=4\nn3 slots=4\nn4 slots=4\n",
        )
        .unwrap();
    }
    let ranks = (0..4).map(|rank| format!("rank {rank}=node0{} slot={rank}\n", 1 + rank / 2));
    let ranks: String = ranks.collect();
    for name in ["my_rankfile", "My_rankfile"] {
        fs::write(dir.path().join(name), &ranks).unwrap();
    }
    for name in PROGRAMS {
        let program = dir.path().join(name);
        fs::write(&program, "#!/bin/sh\n").unwrap();
        fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    dir
}

/// Returns the output of `--dry-run` for a line: as text, and as a stream. Lines with their own host lists are planned
/// outside the allocation.
fn dry_run(dir: &Path, line: &str) -> Result<(String, Vec<Value>), String> {
    let (name, words) = line.split_once(' ').unwrap();
    let own_hosts = [
        "-f ",
        "-host",
        "--host",
        "-H ",
        "-machinefile",
        "--default-hostfile",
    ];
    let outside = own_hosts.iter().any(|option| words.contains(option));
    // This machine has as many slots as processors.
    let more = if words.contains("localhost ") {
        "--oversubscribe"
    } else {
        ""
    };
    let script =
        format!("exec \"$0\" {name} --no-config --dry-run --json fd:3 {more} {words} 3>plan");
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &script, WIREUP])
        .current_dir(dir)
        .env_clear()
        .envs(ENVIRONMENT)
        .env("HOME", dir);
    if !outside {
        let many = [" 64 ", " 128 "].iter().any(|ranks| words.contains(ranks));
        command.envs(allocation(if many { 64 } else { 8 }));
    }
    let output = command.output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8(output.stderr).unwrap());
    }
    let stream = fs::read_to_string(dir.join("plan")).unwrap();
    let stream = stream
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    Ok((String::from_utf8(output.stdout).unwrap(), stream.collect()))
}

/// `0-3,5` for these numbers, which are in order.
fn ranges(ranks: &[u64]) -> String {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for &rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let parts = parts.into_iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    parts.collect::<Vec<_>>().join(",")
}

/// The ranks of each host or program, in the order of their first ranks.
fn by_first_rank(stream: &[Value], of: impl Fn(&Value) -> String) -> Vec<(String, Vec<u64>)> {
    let mut groups: Vec<(String, Vec<u64>)> = Vec::new();
    for rank in stream.iter().filter(|event| event["event"] == "rank") {
        let (key, number) = (of(rank), rank["rank"].as_u64().unwrap());
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, ranks)) => ranks.push(number),
            None => groups.push((key, vec![number])),
        }
    }
    groups
}

/// Programs in the text: their command lines, and the difference of the environment of their first rank from the
/// launcher's, in set and removed variables.
struct Programs {
    commands: Vec<String>,
    set: Vec<BTreeMap<String, String>>,
    removed: Vec<BTreeSet<String>>,
}

impl Programs {
    fn of(dir: &Path, text: &str) -> Self {
        let mut programs = Self {
            commands: Vec::new(),
            set: Vec::new(),
            removed: Vec::new(),
        };
        for line in text.lines() {
            if line.starts_with("program ") {
                let command = line.get(11..).unwrap().rsplit_once(" (").unwrap().0;
                let here = format!("{}/", dir.display());
                programs.commands.push(command.replacen(&here, "./", 1));
            } else if line.starts_with("environment of rank ") {
                programs.set.push(BTreeMap::new());
                programs.removed.push(BTreeSet::new());
            } else if let Some(names) = line.strip_prefix("  not passed on: ") {
                let names = names.split(' ').map(str::to_owned);
                programs.removed.last_mut().unwrap().extend(names);
            } else if let Some(entry) = line.strip_prefix("  ")
                && let Some((name, value)) = entry.split_once('=')
                && let Some(set) = programs.set.last_mut()
            {
                set.insert(name.to_owned(), value.to_owned());
            }
        }
        assert_eq!(programs.commands.len(), programs.set.len(), "{text}");
        programs
    }
}

/// The plan in one line: ranks of each host, then ranks, command line and own variables of each program, where `usual`
/// are the variables that every program gets and that none gets.
fn shown(dir: &Path, line: &str, usual: &Programs) -> String {
    let (text, stream) = match dry_run(dir, line) {
        Ok(plan) => plan,
        Err(error) => return format!("    plan refused: {}", error.trim_end()),
    };
    let programs = Programs::of(dir, &text);
    let hosts = by_first_rank(&stream, |rank| rank["host"].as_str().unwrap().to_owned());
    let hosts = hosts.into_iter().map(|(host, ranks)| {
        let own = rustix::system::uname();
        let is_own = own.nodename().to_str().is_ok_and(|own| own == host);
        let host = if is_own { "localhost" } else { &host };
        format!("{host}:{}", ranges(&ranks))
    });
    let apps = by_first_rank(&stream, |rank| rank["app"].to_string());
    assert_eq!(apps.len(), programs.commands.len(), "{text}");
    let apps = apps.into_iter().enumerate().map(|(index, (_, ranks))| {
        let mut part = format!("{} {}", ranges(&ranks), programs.commands[index]);
        for (name, value) in &programs.set[index] {
            // On this machine there are more, by which MPIs share its processors.
            let has_variables = !line.contains("localhost");
            if has_variables && !usual.set[0].contains_key(name) {
                part.push_str(&format!(" +{name}={value}"));
            }
        }
        for name in programs.removed[index].difference(&usual.removed[0]) {
            // The shell's own.
            if name != "PWD" {
                part.push_str(&format!(" -{name}"));
            }
        }
        part
    });
    let parts = iter::once(hosts.collect::<Vec<_>>().join(" ")).chain(apps);
    format!("    plan {}", parts.collect::<Vec<_>>().join(" | "))
}

#[test]
fn documented_command_lines_are_planned_correctly() {
    let dir = directory();
    let dir = dir.path();
    let (text, _) = dry_run(dir, "mpiexec -n 1 ./a.out").unwrap();
    let usual = Programs::of(dir, &text);
    let mut lines = CORPUS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .peekable();
    let (mut count, mut wrong) = (0, Vec::new());
    while let Some(line) = lines.next() {
        let translation = lines.next().unwrap();
        if translation.starts_with("    refused: ") {
            continue;
        }
        let expected = lines.next_if(|line| line.starts_with("    plan "));
        let found = shown(dir, line, &usual);
        if expected != Some(&*found) {
            wrong.push(format!("{line}\n{found}\n"));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "planned otherwise:\n{}", wrong.concat());
    assert!(count >= 160, "{count}");
}
