//! Output into files of the ranks' own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::Run;

/// The files of a directory with their contents.
fn contents(dir: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(dir).unwrap().flatten();
    entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read_to_string(entry.path()).unwrap())
        })
        .collect()
}

const SCRIPT: &str = "echo out $WIREUP_RANK; echo err $WIREUP_RANK >&2; echo more";

#[test]
fn each_rank_writes_own_files() {
    let args = [
        "--virtual-nodes",
        "3",
        "--output",
        "%n-%r%%.%s",
        "sh",
        "-c",
        SCRIPT,
    ];
    let outcome = Run::ranks(3, args).run().expect(0);
    assert_eq!(outcome.out(), "");
    let expected: BTreeMap<String, String> = (0..3)
        .flat_map(|rank| {
            [
                (format!("{rank}-{rank}%.out"), format!("out {rank}\nmore\n")),
                (format!("{rank}-{rank}%.err"), format!("err {rank}\n")),
            ]
        })
        .collect();
    assert_eq!(contents(outcome.dir()), expected);
}

#[test]
fn both_streams_of_rank_may_share_file_in_order() {
    let run = Run::ranks(2, ["-l", "--output", "%h.%j.%r", "sh", "-c", SCRIPT]);
    let outcome = run.run().expect_quiet_success();
    let files = contents(outcome.dir());
    let host = rustix::system::uname()
        .nodename()
        .to_str()
        .unwrap()
        .to_owned();
    assert_eq!(files.len(), 2, "{files:?}");
    let mut jobs = Vec::new();
    for (rank, (name, text)) in files.iter().enumerate() {
        let rest = name
            .strip_prefix(&format!("{host}."))
            .expect("the host's name first");
        jobs.push(
            rest.strip_suffix(&format!(".{rank}"))
                .expect("the rank last"),
        );
        assert_eq!(*text, format!("out {rank}\nerr {rank}\nmore\n"));
    }
    assert_eq!(jobs[0], jobs[1]);
    // Two jobs have different names.
    let again = Run::ranks(1, ["--output", "%j", "true"]).run().expect(0);
    assert!(!contents(again.dir()).contains_key(jobs[0]));
}

#[test]
fn existing_file_is_truncated_only_when_job_runs() {
    let start = |args: &[&str]| {
        let run = Run::ranks(2, args);
        for name in ["0", "1", "same"] {
            fs::write(run.dir().join(name), "old and longer than what comes\n").unwrap();
        }
        run.run()
    };
    let files = contents(start(&["--output", "%r", "echo", "x"]).expect(0).dir());
    assert_eq!((&*files["0"], &*files["1"]), ("x\n", "x\n"));
    let outcome = start(&["--output", "same", "echo", "x"]).expect(125);
    outcome.expect_one_line(&[
        "--output same: ranks 0 and 1 would both write same",
        "use %r",
    ]);
    assert!(
        contents(outcome.dir())["same"].starts_with("old"),
        "{outcome:?}"
    );
    let outcome = start(&["--output", "%r", "not-a-program"]).expect(127);
    assert!(
        contents(outcome.dir())["0"].starts_with("old"),
        "{outcome:?}"
    );
}

#[test]
fn invalid_output_pattern_is_refused_before_start() {
    for (pattern, words) in [
        (
            "%x",
            ["--output %x: unknown pattern %x", "%r %l %h %j %n %s or %%"],
        ),
        ("a%", ["--output a%: a single % at the end", "write %%"]),
        (
            "/proc/none/%r",
            ["cannot write /proc/none/0", "No such file or directory"],
        ),
        (
            "/dev/null/%r",
            ["cannot write /dev/null/0", "Not a directory"],
        ),
        ("", ["a value is required", "--output <PATTERN>"]),
    ] {
        let args = ["--output", pattern, "sh", "-c", "echo started >&2"];
        let outcome = Run::ranks(2, args).run().expect(125);
        outcome.expect_one_line(&words);
        assert!(!outcome.err().contains("started"), "{outcome:?}");
    }
    // A file that exists and is a directory; for one that may not be written see `ends`.
    let run = Run::ranks(1, ["--output", "%r", "true"]);
    fs::create_dir(run.dir().join("0")).unwrap();
    run.run()
        .expect(125)
        .expect_one_line(&["cannot write 0", "Is a directory"]);
}

#[test]
fn output_device_may_be_shared_and_pipe_needs_reader() {
    let args = ["--output", "/dev/null", "sh", "-c", SCRIPT];
    let outcome = Run::ranks(3, args).run().expect_quiet_success();
    assert_eq!(outcome.out(), "");
    let pipe = |reader: &str| {
        let run = Run::ranks(1, ["--output", "pipe", "sh", "-c", SCRIPT]);
        let path = run.dir().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
        run.after_shell(reader).run()
    };
    pipe("")
        .expect(125)
        .expect_one_line(&["cannot write pipe", "No such device or address"]);
    let outcome = pipe("exec 3<>pipe;").expect_quiet_success();
    assert_eq!(outcome.out(), "");
}
