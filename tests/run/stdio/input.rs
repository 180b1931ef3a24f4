//! Standard input, byte for byte, to the rank that was asked for.

use std::fs::File;
use std::io::{Read, Write};

use crate::common::{Output, Run, field, program};

/// Bytes that no cutting, doubling or reordering leaves as they are.
fn bytes(count: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count);
    File::open("/dev/urandom")
        .unwrap()
        .take(count as u64)
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

/// 64-bit FNV-1a, as the test program counts it.
fn sum(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{sum:016x}")
}

/// Returns the lines of `size` ranks about their input when those in `readers` get `bytes`.
fn expected(size: usize, readers: &[usize], bytes: &[u8]) -> Vec<String> {
    let line = |rank: usize| {
        let read = if readers.contains(&rank) { bytes } else { &[] };
        format!(
            "stdin_sum rank={rank} bytes={} fnv1a={}",
            read.len(),
            sum(read)
        )
    };
    (0..size).map(line).collect()
}

const MIB: usize = 1024 * 1024;

#[test]
fn only_one_rank_reads_input_file_or_pipe() {
    let Some(stdin_sum) = program("stdin_sum") else {
        return;
    };
    let stdin_sum = stdin_sum.to_str().unwrap();
    let bytes = bytes(5 * MIB + 1);
    for (options, readers) in [
        (vec![], vec![0]),
        (vec!["--stdin", "2"], vec![2]),
        (vec!["--stdin", "none"], vec![]),
    ] {
        let run = || Run::ranks(3, options.iter().copied().chain([stdin_sum]));
        let piped = run()
            .stdin_bytes(bytes.clone())
            .run()
            .expect_quiet_success();
        assert_eq!(piped.sorted_lines(), expected(3, &readers, &bytes));
        let run = run();
        let path = run.dir().join("input");
        std::fs::write(&path, &bytes).unwrap();
        let filed = run
            .stdin_file(File::open(path).unwrap())
            .run()
            .expect_quiet_success();
        assert_eq!(filed.sorted_lines(), expected(3, &readers, &bytes));
    }
}

#[test]
fn all_ranks_may_read_copy() {
    let Some(stdin_sum) = program("stdin_sum") else {
        return;
    };
    let bytes = bytes(5 * MIB + 1);
    let args = ["--stdin", "all", stdin_sum.to_str().unwrap()];
    let run = || Run::ranks(4, args);
    let outcome = run()
        .stdin_bytes(bytes.clone())
        .run()
        .expect_quiet_success();
    assert_eq!(outcome.sorted_lines(), expected(4, &[0, 1, 2, 3], &bytes));
    let with_file = run();
    let path = with_file.dir().join("input");
    std::fs::write(&path, &bytes).unwrap();
    let outcome = with_file.stdin_file(File::open(path).unwrap()).run();
    assert_eq!(
        outcome.expect_quiet_success().sorted_lines(),
        expected(4, &[0, 1, 2, 3], &bytes)
    );
}

#[test]
fn rank_that_stops_reading_does_not_block_input_of_others() {
    let Some(stdin_sum) = program("stdin_sum") else {
        return;
    };
    let bytes = bytes(2 * MIB);
    // Rank 1 ends at once, rank 2 goes on without its input.
    let script = format!(
        "case $WIREUP_RANK in 1) exit 0;; 2) exec <&-; while [ ! -e done ]; do sleep 0.05; done;; \
         *) {}; : >done;; esac",
        stdin_sum.display()
    );
    let run = Run::ranks(4, ["--stdin", "all", "sh", "-c", &script]);
    let outcome = run.stdin_bytes(bytes.clone()).run().expect_quiet_success();
    let lines = outcome.sorted_lines();
    assert_eq!(lines.len(), 2, "{outcome:?}");
    for line in lines {
        assert_eq!(field(&line, "fnv1a"), Some(&*sum(&bytes)), "{line}");
    }
}

#[test]
fn unread_or_endless_input_does_not_keep_job() {
    for options in [["--stdin", "0"], ["--stdin", "all"], ["--stdin", "none"]] {
        let mut running = Run::ranks(3, options.into_iter().chain(["true"]))
            .stdin_held()
            .start();
        let held = running.stdin();
        running.finish().expect_quiet_success();
        drop(held);
    }
}

#[test]
fn input_unread_by_rank_is_left_for_next_command() {
    let Some(stdin_sum) = program("stdin_sum") else {
        return;
    };
    let wireup = env!("CARGO_BIN_EXE_wireup");
    let script = format!("{wireup} run -n 1 {} 5; cat", stdin_sum.display());
    let run = Run::command(["sh", "-c", &script]).stdin_bytes("12345the rest");
    let out = run.run().expect_quiet_success().out();
    assert_eq!(
        out,
        format!("stdin_sum rank=0 bytes=5 fnv1a={}\nthe rest", sum(b"12345"))
    );
}

#[test]
fn input_unread_by_all_ranks_is_left_for_shell_loop() {
    let wireup = env!("CARGO_BIN_EXE_wireup");
    for (program, expected) in [
        ("true", "after one\nafter two\n"),
        ("read line; echo $line", "two\ntwo\nafter one\n"),
        ("[ $WIREUP_RANK = 0 ] || cat", "two\nafter one\n"),
    ] {
        let run = format!("{wireup} run --oversubscribe -n 2 --stdin all sh -c '{program}'");
        let each_line = format!("while read line; do {run} && echo after $line; done");
        let run = Run::command(["sh", "-c", &each_line]).stdin_bytes("one\ntwo\n");
        assert_eq!(
            run.run().expect_quiet_success().out(),
            expected,
            "{program}"
        );
    }
}

#[test]
fn typed_input_reaches_all_readers_at_once() {
    let script = "read x; echo \"$x\"; read x; echo \"$x\"";
    let mut running = Run::ranks(3, ["--stdin", "all", "sh", "-c", script])
        .stdin_held()
        .start();
    let mut stdin = running.stdin();
    stdin.write_all(b"one\n").unwrap();
    running.wait_for_many(Output::Stdout, "one\n", 3);
    stdin.write_all(b"two\n").unwrap();
    running.wait_for_many(Output::Stdout, "two\n", 3);
    running.finish().expect_quiet_success();
}

#[test]
fn missing_stdin_rank_is_refused() {
    let outcome = Run::ranks(2, ["--stdin", "2", "true"]).run().expect(125);
    outcome.expect_one_line(&["--stdin 2: the job has the ranks 0 to 1"]);
    let outcome = Run::ranks(2, ["--stdin", "some", "true"]).run().expect(125);
    outcome.expect_one_line(&["'some'", "give none, all or the number of a rank"]);
}
