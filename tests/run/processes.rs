//! Start of ranks: their number, their environment, and their clean process state.

mod environment;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use crate::common::{Outcome, Run, field, program};

/// Words of a shell that prints the named variables of a rank in one line, `-` for an unset one.
fn print_env(names: &[&str]) -> [String; 3] {
    let values: Vec<String> = names.iter().map(|name| format!("${{{name}--}}")).collect();
    ["sh", "-c", &format!("echo {}", values.join(" "))].map(str::to_owned)
}

/// The lines of a report whose first word is `word`, sorted.
fn reports(outcome: &Outcome, word: &str) -> Vec<String> {
    let start = format!("{word} ");
    let mut lines = outcome.sorted_lines();
    lines.retain(|line| line.starts_with(&start));
    lines
}

/// The mask of ignored signals in a line of fdreport. Signals 32 and 33 are left out: they belong to
/// the C library, whose posix_spawn ignores them in every child.
fn ignored(line: &str) -> u64 {
    u64::from_str_radix(field(line, "ignored").unwrap(), 16).unwrap() & !(3 << 31)
}

#[test]
fn default_is_one_rank_per_usable_core() {
    let usable = std::thread::available_parallelism().unwrap().get();
    let ranks = print_env(&["WIREUP_RANK", "WIREUP_SIZE", "PMI_RANK", "PMI_SIZE"]);
    let outcome = Run::new(&ranks).run().expect_quiet_success();
    let expected: BTreeSet<String> = (0..usable)
        .map(|rank| format!("{rank} {usable} {rank} {usable}"))
        .collect();
    let lines: BTreeSet<String> = outcome.sorted_lines().into_iter().collect();
    assert_eq!(lines, expected);
    // Of several programs each gets one.
    let apps = ranks.iter().map(String::as_str).chain([":"]);
    let apps: Vec<&str> = apps.chain(ranks.iter().map(String::as_str)).collect();
    let outcome = Run::new(apps)
        .under(["taskset", "-c", &first_cpu()])
        .run()
        .expect(125);
    outcome.expect_one_line(&["2 ranks do not fit in 1 slot ("]);
}

/// A CPU that this process may use.
fn first_cpu() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status
        .lines()
        .find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    let list = list.unwrap().trim();
    let end = list.find([',', '-']).unwrap_or(list.len());
    list[..end].to_owned()
}

#[test]
fn n_np_and_ranks_are_equal_only_among_options() {
    for option in ["-n", "-np", "--ranks"] {
        let run = Run::new(["--oversubscribe", option, "3", "echo", "-np", "7"]);
        assert_eq!(run.run().expect_quiet_success().out(), "-np 7\n".repeat(3));
    }
}

#[test]
fn too_many_ranks_are_refused_with_counts() {
    let cpu = first_cpu();
    let refused = Run::new(["-n", "2", "true"]).under(["taskset", "-c", &cpu]);
    let line = refused.run().expect(125).expect_one_line(&[
        "2 ranks do not fit in 1 slot (affinity mask: 1 of ",
        " CPUs, ",
        "cgroup limit",
        "use --oversubscribe, or -n 1",
    ]);
    assert!(line.len() < 200, "{line}");
    let allowed = Run::new(["--oversubscribe", "-n", "2", "true"]).under(["taskset", "-c", &cpu]);
    allowed.run().expect_quiet_success();
}

#[test]
fn apps_have_own_counts_variables_and_directories() {
    let names = ["WIREUP_RANK", "WIREUP_SIZE", "COLOUR", "PWD_NOW"];
    let shell = format!(
        "PWD_NOW=$(pwd); echo {}",
        names.map(|n| format!("${{{n}--}}")).join(" ")
    );
    let run = Run::new([
        "--oversubscribe",
        "-n",
        "2",
        "-x",
        "COLOUR=red",
        "--wdir",
        "a",
        "sh",
        "-c",
        &shell,
        ":",
        "sh",
        "-c",
        &shell,
        ":",
        "-np",
        "2",
        "--wdir",
        "b",
        "-x",
        "COLOUR=a=b",
        "sh",
        "-c",
        &shell,
    ])
    .env("COLOUR", "blue");
    let dir = run.dir().canonicalize().unwrap();
    for name in ["a", "b"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    let dir = dir.display();
    let expected = [
        format!("0 5 red {dir}/a"),
        format!("1 5 red {dir}/a"),
        format!("2 5 blue {dir}"),
        format!("3 5 a=b {dir}/b"),
        format!("4 5 a=b {dir}/b"),
    ];
    assert_eq!(run.run().expect_quiet_success().sorted_lines(), expected);
}

#[test]
fn error_in_later_app_names_it() {
    for (args, words) in [
        (
            vec!["true", ":", "-n", "x", "true"],
            vec!["program 2 (after `:`)", "'x'"],
        ),
        (vec!["true", ":"], vec!["program 2 (after `:`)"]),
        (
            vec!["true", ":", "--oversubscribe", "true"],
            vec!["program 2", "--oversubscribe"],
        ),
    ] {
        let outcome = Run::new(&args).run().expect(125);
        for word in words {
            assert!(
                outcome.err().contains(word),
                "{word:?} for {args:?}: {outcome:?}"
            );
        }
    }
}

#[test]
fn options_after_program_belong_to_program() {
    let outcome = Run::new(["-n", "1", "echo", "-n", "2", "--label", "-x"]).run();
    assert_eq!(outcome.expect_quiet_success().out(), "2 --label -x");
    let outcome = Run::new(["-n", "1", "--", "echo", "x"]).run();
    assert_eq!(outcome.expect_quiet_success().out(), "x\n");
}

#[test]
fn rank_inherits_only_its_descriptors_and_clean_signals() {
    let Some(fdreport) = program("fdreport") else {
        return;
    };
    // What a careless parent may leave: descriptors above and below ten, a low limit, blocked
    // and ignored signals, an own mask.
    let parent = "ulimit -Sn 300; umask 027; exec 5</dev/null 7<&5;";
    let env = [
        "env",
        "--ignore-signal=INT,PIPE,USR1,CHLD",
        "--block-signal=TERM,USR2,RTMIN",
    ];
    // With many ranks their processes get no copies of what the launcher has of the others.
    for ranks in [3, 20] {
        let outcome = Run::ranks(ranks, [&fdreport])
            .after_shell(parent)
            .under(env)
            .run();
        let outcome = outcome.expect_quiet_success();
        let lines = reports(&outcome, "fdreport");
        assert_eq!(lines.len(), ranks as usize, "{outcome:?}");
        let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        let hard = hard.map_or_else(|| u64::MAX.to_string(), |limit| limit.to_string());
        for line in lines {
            let get = |key| field(&line, key).unwrap();
            assert_eq!(
                (get("sid"), get("pgid")),
                (get("pid"), get("pid")),
                "{line}"
            );
            assert_eq!(get("fds"), "0,1,2,3", "{outcome:?}");
            assert_eq!(get("nofile"), format!("300:{hard}"), "{line}");
            assert_eq!(get("umask"), "027", "{line}");
            assert_eq!(get("blocked"), "0".repeat(16), "{line}");
            assert_eq!(ignored(&line), 0, "{line}");
            assert_eq!(get("no_new_privs"), "0", "{line}");
        }
        let fds = reports(&outcome, "fd");
        for rank in 0..ranks {
            let target = |number| {
                let start = format!("fd rank={rank} number={number} target=");
                fds.iter()
                    .find_map(|line| line.strip_prefix(&start))
                    .unwrap()
            };
            let kinds = [0, 1, 2, 3].map(|n| target(n).split(':').next().unwrap());
            assert_eq!(kinds, ["/dev/null", "pipe", "pipe", "socket"], "{fds:?}");
            assert_ne!(target(1), target(2));
        }
    }
    let outcome = Run::new([OsString::from("--pmi"), "none".into(), fdreport.into()]).run();
    for line in reports(&outcome.expect_quiet_success(), "fdreport") {
        assert_eq!(field(&line, "fds"), Some("0,1,2"));
    }
}

#[test]
fn program_writing_to_closed_pipe_is_killed_by_sigpipe() {
    // Rust's runtime ignores SIGPIPE; a rank that inherited that would see an error instead.
    let script = "yes | head -n 1 >/dev/null; echo ${PIPESTATUS[0]}";
    let outcome = Run::new(["-n", "1", "bash", "-c", script]).run();
    assert_eq!(outcome.expect_quiet_success().out(), "141\n");
}

#[test]
fn nohup_applies_to_ranks() {
    let Some(fdreport) = program("fdreport") else {
        return;
    };
    let outcome = Run::ranks(1, [fdreport])
        .under(["env", "--ignore-signal=HUP"])
        .run();
    let lines = reports(&outcome.expect_quiet_success(), "fdreport");
    assert_eq!(ignored(&lines[0]), 1, "{lines:?}");
}

#[test]
fn virtual_nodes_have_names_and_local_ranks() {
    let names = [
        "WIREUP_RANK",
        "WIREUP_NODE",
        "WIREUP_LOCAL_RANK",
        "MPI_LOCALNRANKS",
        "WIREUP_HOST",
    ];
    let shell = format!(
        "echo {} $(uname -n)",
        names.map(|name| format!("${{{name}--}}")).join(" ")
    );
    let args = ["--virtual-nodes", "3", "sh", "-c", &shell];
    let lines = Run::ranks(5, args).run().expect(0).sorted_lines();
    let start: Vec<Vec<&str>> = lines.iter().map(|line| line.split(' ').collect()).collect();
    let numbers: Vec<[&str; 4]> = start.iter().map(|w| [w[0], w[1], w[2], w[3]]).collect();
    let expected = [
        ["0", "0", "0", "2"],
        ["1", "0", "1", "2"],
        ["2", "1", "0", "2"],
        ["3", "1", "1", "2"],
        ["4", "2", "0", "1"],
    ];
    assert_eq!(numbers, expected, "{lines:?}");
    let hosts: BTreeSet<&str> = start.iter().map(|words| words[4]).collect();
    assert_eq!(hosts.len(), 3, "{lines:?}");
    if rustix::process::geteuid().is_root() {
        assert!(start.iter().all(|words| words[4] == words[5]), "{lines:?}");
    }
    let outcome = Run::ranks(2, ["--virtual-nodes", "3", "true"])
        .run()
        .expect(125);
    outcome.expect_one_line(&["--virtual-nodes 3 needs at least one rank per node"]);
}

#[test]
fn five_hundred_and_twelve_ranks_run() {
    let outcome = Run::ranks(512, ["-l", "echo", "here"])
        .run()
        .expect_quiet_success();
    let lines: BTreeSet<String> = outcome.sorted_lines().into_iter().collect();
    let expected: BTreeSet<String> = (0..512).map(|rank| format!("[{rank}] here")).collect();
    assert_eq!(lines, expected);
}

#[test]
fn exits_of_short_ranks_are_all_seen() {
    for _ in 0..5 {
        Run::ranks(128, ["true"]).run().expect_quiet_success();
    }
    // The first failure decides; what the others do after that does not.
    let fail = ["sh", "-c", "test $WIREUP_RANK != 77 || exit 9"];
    for _ in 0..3 {
        let outcome = Run::ranks(128, fail).run().expect(9);
        outcome.expect_one_line(&["rank 77 (", "exited with code 9"]);
    }
}

#[test]
fn concurrent_jobs_are_isolated() {
    let Some(pmi_wireup) = program("pmi_wireup") else {
        return;
    };
    let first = Run::ranks(8, [Path::new(&pmi_wireup)]);
    let second = Run::ranks(8, [&pmi_wireup]).beside(&first);
    let (first, second) = (first.start(), second.start());
    let names = [first, second].map(|running| {
        let lines = running.finish().expect_quiet_success().sorted_lines();
        assert_eq!(lines.len(), 8, "{lines:?}");
        let names: BTreeSet<String> = lines
            .iter()
            .map(|line| field(line, "kvsname").unwrap().to_owned())
            .collect();
        assert_eq!(names.len(), 1, "{lines:?}");
        names
    });
    assert_ne!(names[0], names[1]);
}
