//! Output and input of ranks: whole lines, exact bytes, bounded memory, and readers and writers
//! that misbehave.

mod files;
mod input;
mod shared;
mod slow;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsFd;

use rustix::process::Signal;

use crate::common::{Output, Run, Running, eventually, own_memory_peak_kib, program};

/// Line `index` of rank `rank` as the test program `lines` writes it, without its newline.
fn line(rank: usize, index: usize, length: usize) -> String {
    let mut line = format!("{rank} {index} ");
    let letters = (line.len()..length).map(|at| char::from(b'a' + ((at + index) % 26) as u8));
    line.extend(letters);
    line.truncate(length);
    line
}

/// Checks that `output` is the lines of `ranks` ranks, each whole, each rank's in order, all of
/// them labelled or none.
#[track_caller]
fn assert_lines(output: &[u8], ranks: usize, count: usize, lengths: &[usize], labelled: bool) {
    let text = std::str::from_utf8(output).unwrap();
    let mut next: BTreeMap<usize, usize> = (0..ranks).map(|rank| (rank, 0)).collect();
    for got in text.split_inclusive('\n') {
        let got = got.strip_suffix('\n').expect("a newline at the end");
        let bare = match labelled {
            true => got.split_once("] ").expect("a label").1,
            false => got,
        };
        let rank: usize = bare.split(' ').next().unwrap().parse().unwrap();
        let index = next.get_mut(&rank).expect("a rank of the job");
        let mut expected = line(rank, *index, lengths[*index % lengths.len()]);
        if labelled {
            expected.insert_str(0, &format!("[{rank}] "));
        }
        assert_eq!(got, expected);
        *index += 1;
    }
    assert!(next.values().all(|index| *index == count), "{next:?}");
}

/// Waits until every process of this name sleeps in a write: its output is not read any more.
fn wait_until_blocked(running: &Running, name: &str, count: usize) {
    let writes = format!("{} ", libc::SYS_write);
    eventually("all ranks blocked in a write", || {
        let blocked = running.processes().into_iter().filter(|process| {
            process.name == name
                && std::fs::read_to_string(format!("/proc/{}/syscall", process.pid))
                    .is_ok_and(|call| call.starts_with(&writes))
        });
        (blocked.count() == count).then_some(())
    });
}

#[test]
fn lines_of_many_ranks_stay_whole_and_in_order() {
    let Some(lines) = program("lines") else {
        return;
    };
    let lines = lines.to_str().unwrap();
    let lengths = [10, 81, 3000];
    // Pieces of 13 bytes: nearly every read of the launcher ends in the middle of a line.
    let args = [lines, "60", "10,81,3000", "--chunk", "13"];
    let outcome = Run::ranks(16, args).run().expect_quiet_success();
    assert_lines(&outcome.stdout, 16, 60, &lengths, false);
    let args = [
        "-l",
        lines,
        "60",
        "10,81,3000",
        "--chunk",
        "13",
        "--to",
        "both",
    ];
    let outcome = Run::ranks(16, args).run().expect(0);
    assert_lines(&outcome.stdout, 16, 60, &lengths, true);
    assert_lines(&outcome.stderr, 16, 60, &lengths, true);
}

#[test]
fn label_never_appears_inside_line() {
    // Each rank stops in the middle of its line for longer than unfinished lines are held back.
    let script = "for i in 1 2 3; do printf a; sleep 0.15; printf 'b\\n'; done; printf end";
    let outcome = Run::ranks(6, ["-l", "sh", "-c", script])
        .run()
        .expect_quiet_success();
    let mut text_by_label: BTreeMap<String, String> = BTreeMap::new();
    for got in outcome.out().lines() {
        let (label, rest) = got.split_once("] ").expect("a label");
        assert!(!rest.contains('['), "{outcome:?}");
        text_by_label
            .entry(label.to_owned())
            .or_default()
            .push_str(rest);
    }
    assert_eq!(text_by_label.len(), 6, "{outcome:?}");
    assert!(
        text_by_label.values().all(|text| text == "abababend"),
        "{outcome:?}"
    );
}

#[test]
fn every_byte_arrives_unchanged_without_labels() {
    // No text, no newline at the end, and lines longer than any buffer on the way.
    let run = Run::new(["-n", "1", "cat", "data"]);
    let mut bytes: Vec<u8> = Vec::new();
    File::open("/dev/urandom")
        .unwrap()
        .take(3_000_001)
        .read_to_end(&mut bytes)
        .unwrap();
    bytes.extend(std::iter::repeat_n(0, 300_000));
    bytes.extend(std::iter::repeat_n(b'x', 300_000));
    std::fs::write(run.dir().join("data"), &bytes).unwrap();
    let outcome = run.run().expect(0);
    assert!(
        outcome.stdout == bytes,
        "{} of {} bytes",
        outcome.stdout.len(),
        bytes.len()
    );
}

#[test]
fn line_longer_than_any_buffer_has_one_label() {
    let script = "head -c 400000 /dev/zero | tr '\\0' x; echo; printf y";
    let outcome = Run::new(["-n", "1", "-l", "sh", "-c", script])
        .run()
        .expect_quiet_success();
    assert_eq!(outcome.out(), format!("[0] {}\n[0] y", "x".repeat(400_000)));
}

/// Most memory of its own, in KiB, that a launcher may take, whatever ranks print: 2 MiB are the last output that each node
/// keeps for tools, and it needs 3 to 5 without that.
pub(super) const LAUNCHER: u64 = 10 * 1024;

#[test]
fn buffered_output_of_many_ranks_is_bounded() {
    // 64 KiB of each stream would be 16 MiB.
    let script = "yes x | head -c 100000 >&2; yes x | head -c 100000; echo done; exec sleep 1000";
    let running = Run::ranks(128, ["sh", "-c", script]).start();
    running.wait_for_many(Output::Stdout, "done", 128);
    let peak = own_memory_peak_kib(running.pid());
    assert!(peak < LAUNCHER, "{peak} KiB");
    running.signal(Signal::INT);
    running.finish().expect(130);
}

#[test]
fn slow_reader_slows_ranks_without_filling_memory() {
    let Some(lines) = program("lines") else {
        return;
    };
    let (ranks, count, length) = (16, 3000, 999);
    let args = [lines.to_str().unwrap(), "3000", "999"];
    let mut running = Run::ranks(ranks as u32, args).stdout_held().start();
    let mut pipe = running.take_stdout();
    wait_until_blocked(&running, "lines", ranks);
    let mut output = vec![0; 1000 * count];
    pipe.read_exact(&mut output).unwrap();
    wait_until_blocked(&running, "lines", ranks);
    let peak = own_memory_peak_kib(running.pid());
    assert!(
        peak < LAUNCHER,
        "{peak} KiB with {} MB outstanding",
        ranks * count / 1000
    );
    pipe.read_to_end(&mut output).unwrap();
    running.finish().expect_quiet_success();
    assert_lines(&output, ranks, count, &[length], false);
}

#[test]
fn output_printed_before_kill_arrives() {
    let Some(lines) = program("lines") else {
        return;
    };
    let script = format!("{} 2000 80; kill -9 $$", lines.display());
    let outcome = Run::new(["-n", "1", "sh", "-c", &script]).run().expect(137);
    assert_lines(&outcome.stdout, 1, 2000, &[80], false);
    outcome.expect_one_line(&["rank 0 (", "killed by signal 9 (SIGKILL)"]);
    // The same for ranks that are ended because another one failed, and have last words.
    let script = "trap 'echo last words; exit 0' TERM; echo ready; \
                  if [ $WIREUP_RANK = 0 ]; then read x; exit 3; fi; while :; do sleep 0.05; done";
    let mut running = Run::ranks(4, ["sh", "-c", script]).stdin_held().start();
    running.wait_for_many(Output::Stdout, "ready", 4);
    drop(running.stdin());
    let outcome = running.finish().expect(3);
    assert_eq!(
        outcome.out().matches("last words").count(),
        3,
        "{outcome:?}"
    );
}

#[test]
fn prompt_without_newline_is_shown() {
    let script = "printf 'name? '; read name; echo \"hello $name\"";
    let mut running = Run::new(["-n", "1", "sh", "-c", script])
        .stdin_held()
        .start();
    running.wait_for(Output::Stdout, "name? ");
    std::io::Write::write_all(&mut running.stdin(), b"you\n").unwrap();
    assert_eq!(
        running.finish().expect_quiet_success().out(),
        "name? hello you\n"
    );
}

#[test]
fn reader_that_exits_ends_job_as_in_pipeline() {
    let wireup = env!("CARGO_BIN_EXE_wireup");
    for (ranks, redirection) in [("yes", ""), ("sh -c 'exec yes >&2'", "2>&1 >/dev/null")] {
        let script = format!(
            "{wireup} run --oversubscribe -n 4 {ranks} {redirection} | head -n 1; \
             echo ${{PIPESTATUS[0]}}"
        );
        let outcome = Run::command(["bash", "-c", &script]).run();
        let outcome = outcome.expect_quiet_success();
        assert_eq!(outcome.out(), "y\n141\n");
    }
}

#[test]
fn message_of_wireup_starts_line_after_unfinished_output() {
    let script = "trap '' INT; printf part >&2; read x; echo rest >&2; exit 3";
    for (options, label) in [(&[][..], ""), (&["-l"], "[0] ")] {
        let words = [options, &["sh", "-c", script]].concat();
        let mut running = Run::ranks(1, words).stdin_held().start();
        running.wait_for(Output::Stderr, "part");
        running.signal(Signal::INT);
        running.wait_for(Output::Stderr, "interrupt again");
        drop(running.stdin());
        let outcome = running.finish().expect(3);
        let err = outcome.err();
        let lines: Vec<&str> = err.lines().collect();
        let (part, rest) = (format!("{label}part"), format!("{label}rest"));
        assert_eq!((lines[0], lines[2]), (&*part, &*rest), "{outcome:?}");
        assert!(lines[1].starts_with("wireup: interrupted; "), "{outcome:?}");
        assert!(lines[3].starts_with("wireup: rank 0 "), "{outcome:?}");
    }
}

#[test]
fn full_disk_of_output_files_is_reported() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let run = Run::ranks(
        2,
        [
            "--output",
            "full/%r",
            "sh",
            "-c",
            "head -c 100000 /dev/zero; true",
        ],
    );
    std::fs::create_dir(run.dir().join("full")).unwrap();
    let mount = "mount -t tmpfs -o size=64k none full && exec \"$@\"";
    let outcome = run
        .under(["unshare", "-m", "sh", "-c", mount, "sh"])
        .run()
        .expect(0);
    outcome.expect_one_line(&["--output: no space left for full/0", "may be incomplete"]);
}

#[test]
fn full_output_disk_fails_job() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let outcome = Run::ranks(2, ["yes"]).stdout_to(full).run().expect(125);
    outcome.expect_one_line(&["standard output cannot be written", "No space left"]);
}

#[test]
fn blocked_reader_does_not_prevent_end_by_two_interrupts() {
    let mut running = Run::ranks(2, ["yes"]).stdout_held().start();
    let pipe = running.take_stdout();
    wait_until_blocked(&running, "yes", 2);
    running.signal(Signal::INT);
    eventually("the ranks are gone", || {
        (!running
            .processes()
            .iter()
            .any(|process| process.name == "yes"))
        .then_some(())
    });
    running.signal(Signal::INT);
    running.finish().expect(130);
    drop(pipe);
}

#[test]
fn output_read_after_exit_of_all_ranks_ends_launch() {
    // Nothing else wakes this one: no interface, no clock. Twice what a pipe holds.
    let options = ["--pmi", "none", "head", "-c", "131072", "/dev/zero"];
    let mut running = Run::ranks(1, options).stdout_held().start();
    let mut pipe = running.take_stdout();
    eventually("the rank has written and gone", || {
        let all = running.processes();
        let gone = !all.iter().any(|process| process.name == "head");
        (gone && rustix::io::ioctl_fionread(&pipe).unwrap() == 65536).then_some(())
    });
    // Not to the end, which would not come.
    pipe.read_exact(&mut [0; 131072]).unwrap();
    running.finish().expect_quiet_success();
}

#[test]
fn second_interrupt_of_running_ranks_discards_blocked_output() {
    let script = "trap '' INT; exec yes";
    let mut running = Run::ranks(1, ["sh", "-c", script]).stdout_held().start();
    let pipe = running.take_stdout();
    wait_until_blocked(&running, "yes", 1);
    // A rank whose start has not been reported yet would not be waited for.
    eventually("wireup reads what it writes", || {
        (rustix::io::ioctl_fionread(&pipe).unwrap() > 0).then_some(())
    });
    running.signal(Signal::INT);
    running.wait_for(Output::Stderr, "interrupt again");
    running.signal(Signal::INT);
    running.finish().expect(130);
    drop(pipe);
}

#[test]
fn interrupt_during_end_of_job_discards_blocked_output() {
    // What the rank leaves behind holds its output, which has no reader.
    let options = ["sh", "-c", "sleep 1000 & exec yes"];
    let mut running = Run::ranks(1, options).stdout_held().start();
    let pipe = running.take_stdout();
    wait_until_blocked(&running, "yes", 1);
    running.signal(Signal::INT);
    eventually("the rank is gone", || {
        let all = running.processes();
        (!all.iter().any(|process| process.name == "yes")).then_some(())
    });
    running.signal(Signal::INT);
    running.finish().expect(130);
    drop(pipe);
}

#[test]
fn non_blocking_output_loses_nothing() {
    let Some(lines) = program("lines") else {
        return;
    };
    let (read, write) = rustix::pipe::pipe().unwrap();
    rustix::fs::fcntl_setfl(write.as_fd(), rustix::fs::OFlags::NONBLOCK).unwrap();
    let args = [lines.to_str().unwrap(), "20000", "99"];
    let running = Run::ranks(3, args).stdout_to(write.into()).start();
    wait_until_blocked(&running, "lines", 3);
    let mut output = Vec::new();
    File::from(read).read_to_end(&mut output).unwrap();
    running.finish().expect_quiet_success();
    assert_lines(&output, 3, 20000, &[99], false);
}

#[test]
fn wireup_works_with_closed_standard_descriptors() {
    let Some(fdreport) = program("fdreport") else {
        return;
    };
    let cases = [
        ("<&-", "0\n2\n", "2\n"),
        (">&-", "", "2\n"),
        ("2>&-", "0\n2\n", ""),
        ("<&- >&- 2>&-", "", ""),
    ];
    for (closed, out, err) in cases {
        let close = format!("exec {closed};");
        let run = Run::new(["-n", "1", "sh", "-c", "wc -c; echo 2; echo 2 >&2"]);
        let outcome = run.after_shell(&close).run().expect(0);
        assert_eq!((&*outcome.out(), &*outcome.err()), (out, err), "{closed}");
        // Even then the ranks have all three.
        let run = Run::new(["-n", "1", "--output", "%s", fdreport.to_str().unwrap()]);
        let outcome = run.after_shell(&close).run().expect(0);
        let report = std::fs::read_to_string(outcome.dir().join("out")).unwrap();
        assert!(report.contains("fds=0,1,2,3\n"), "{closed}: {report}");
    }
}
