//! Process attributes of ranks: file mode creation mask and resource limits.

use crate::common::{Run, field, program, skip};

/// The soft and hard value of a limit as a shell of a rank prints them.
fn shown(letter: char) -> String {
    format!("echo $(ulimit -S{letter}):$(ulimit -H{letter})")
}

#[test]
fn umask_of_ranks_is_that_of_their_app() {
    let script = "umask; : >made$WIREUP_RANK; stat -c %a made$WIREUP_RANK";
    let args = ["-n", "1", "--umask", "0", "sh", "-c", script, ":"];
    let next = ["-n", "1", "--umask", "077", "sh", "-c", script, ":"];
    let last = ["-n", "1", "sh", "-c", script];
    let words = ["--oversubscribe"].iter().chain(&args);
    let run = Run::new(words.chain(&next).chain(&last)).after_shell("umask 027;");
    let lines = run.run().expect_quiet_success().sorted_lines();
    let expected = ["0000", "0027", "0077", "600", "640", "666"];
    assert_eq!(lines, expected);
}

#[test]
fn umask_of_app_is_not_umask_of_wireup() {
    // Rank 0 is there, with its mask, before wireup makes anything for the others.
    let args = ["--umask", "777", "--virtual-nodes", "2", "--pmi", "pmix"];
    let args = args.iter().chain(&["--output", "%r", "sh", "-c", "umask"]);
    let outcome = Run::ranks(2, args).run().expect_quiet_success();
    for rank in ["0", "1"] {
        let file = outcome.dir().join(rank);
        assert_eq!(std::fs::read_to_string(file).unwrap(), "0777\n");
    }
}

#[test]
fn limits_apply_to_ranks_of_app_only() {
    let first = ["-n", "1", "--rlimit", "stack=4M:16M", "--rlimit", "core=0"];
    let script = format!("{}; ulimit -Sc", shown('s'));
    let rest = ["sh", "-c", &script, ":", "sh", "-c", &script];
    let words = ["--oversubscribe"].iter().chain(&first).chain(&rest);
    let run = Run::new(words).after_shell("ulimit -Ss 8000;");
    let out = run.run().expect_quiet_success().sorted_lines();
    assert!(out.contains(&"4096:16384".to_owned()), "{out:?}");
    assert!(out.contains(&"0".to_owned()), "{out:?}");
    assert!(
        out.iter().any(|line| line.starts_with("8000:")),
        "the other program keeps what it inherits: {out:?}"
    );
}

#[test]
fn descriptor_limit_is_configurable_and_default_is_inherited() {
    let Some(fdreport) = program("fdreport") else {
        return;
    };
    let fdreport = fdreport.to_str().unwrap();
    let nofile = |options: &[&str]| {
        let args = options.iter().copied().chain([fdreport]);
        let run = Run::new(args).after_shell("ulimit -Sn 300; ulimit -Hn 500;");
        let out = run.run().expect_quiet_success().out();
        let line = out.lines().find(|line| line.starts_with("fdreport "));
        field(line.unwrap(), "nofile").unwrap().to_owned()
    };
    assert_eq!(nofile(&["-n", "1"]), "300:500");
    assert_eq!(nofile(&["-n", "1", "--rlimit", "nofile=400"]), "400:500");
    // Below the numbers of descriptors that are given to the rank.
    let low = ["-n", "1", "--rlimit", "NOFILE=900", "--rlimit"];
    let low: Vec<&str> = low.into_iter().chain(["nofile=8:20"]).collect();
    assert_eq!(nofile(&low), "8:20", "only the last counts");
}

#[test]
fn limit_beyond_hard_limit_is_refused_before_start() {
    let args = ["-n", "1", "--rlimit", "nofile=501", "echo", "ran"];
    // A privileged user may raise hard limits.
    let run = match rustix::process::geteuid().is_root() {
        true => Run::new(args).under(["setpriv", "--bounding-set=-sys_resource"]),
        false => Run::new(args),
    };
    let run = run.after_shell("ulimit -n 500;");
    let outcome = run.run().expect(125);
    assert_eq!(outcome.out(), "");
    outcome.expect_one_line(&["--rlimit: the hard limit of nofile is 500", "ulimit -Hn"]);
    let mistakes = [
        (
            "files=1",
            "unknown resource limit \"files\": use one of as, core",
        ),
        ("core=x", "invalid limit \"x\""),
        ("core=2:1", "the soft limit 2 is above the hard limit 1"),
        ("core", "write NAME=SOFT"),
    ];
    for (limit, words) in mistakes {
        let outcome = Run::new(["--rlimit", limit, "-n", "1", "echo", "ran"]).run();
        assert!(outcome.err().contains(words), "{outcome:?}");
        assert_eq!(outcome.expect(125).out(), "");
    }
}

#[test]
fn exceeded_limit_affects_only_its_rank() {
    let script = "ulimit -Sf; head -c 100000 /dev/zero >file";
    let args = ["--rlimit", "fsize=64K", "sh", "-c", script];
    let outcome = Run::ranks(1, args).run();
    assert_eq!(outcome.out(), "128\n", "blocks of 512 bytes; {outcome:?}");
    assert_ne!(outcome.code, 0, "{outcome:?}");
    let size = std::fs::metadata(outcome.dir().join("file")).unwrap().len();
    assert_eq!(size, 65536);
}

#[test]
fn dry_run_prints_limits_and_umask_of_ranks() {
    let options = [
        "--umask",
        "27",
        "--rlimit",
        "core=0:1k",
        "--pty",
        "1",
        "--dry-run",
    ];
    let wrap = ["--wrap", "env A=%r", "--wrap-ranks", "1"];
    let args = options.iter().chain(&wrap).chain(&["true"]);
    let out = Run::ranks(2, args).run().expect_quiet_success().out();
    for words in [
        "makes files with the mask 027",
        "has the limit core=0:1024",
        "runs under /usr/bin/env on ranks 1",
        "terminal   of rank 1",
        "OMPI_COMM_WORLD_RANK=0",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
}

/// Has the kernel refuse close_range(2) and faccessat2(2) to what is executed, as old seccomp profiles of containers do. Both
/// have one number on all machines.
const WITHOUT_NEW_CALLS: &str = r#"
import ctypes, os, struct, sys
insns = [(0x20, 0, 0, 0), (0x15, 2, 0, 436), (0x15, 1, 0, 439), (0x06, 0, 0, 0x7fff0000), (0x06, 0, 0, 0x00050001)]
program = b"".join(struct.pack("HBBI", *insn) for insn in insns)
buffer = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxP", len(insns), ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(filter), 0, 0) == 0, ctypes.get_errno()
os.execvp(sys.argv[1], sys.argv[1:])
"#;

#[test]
fn ranks_start_without_close_range_and_faccessat2() {
    let filtered = ["python3", "-c", WITHOUT_NEW_CALLS];
    if !std::process::Command::new("python3")
        .args(["-c", "pass"])
        .status()
        .is_ok_and(|status| status.success())
    {
        return skip("a filter of system calls: needs python3");
    }
    // As many as share the launcher's descriptors elsewhere; the shell's own is that of the directory.
    let words = ["--pmi", "none", "--oversubscribe", "--json", "status"];
    let run = Run::ranks(18, words).more(["ls", "/proc/self/fd"]);
    let outcome = run.under(filtered).run().expect_quiet_success();
    let expected: Vec<&str> = ["0", "1", "2", "3"]
        .iter()
        .flat_map(|fd| [*fd; 18])
        .collect();
    assert_eq!(outcome.sorted_lines(), expected);
}
