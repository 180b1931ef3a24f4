//! Readers that take their time: what waits for them is bounded, and comes in the end.

use std::io::Read as _;
use std::time::{Duration, Instant};

use super::{LAUNCHER, assert_lines, wait_until_blocked};
use crate::common::{Run, Running, eventually, own_memory_peak_kib, process, program};

/// Waits until all ranks have ended and wireup sleeps: it takes no more of what they left.
fn wait_until_idle(running: &Running, name: &str) {
    let mut times = 0;
    eventually("the ranks have ended and wireup sleeps", || {
        let all = running.processes();
        let idle = !all.iter().any(|process| process.name == name)
            && process(running.pid()).is_some_and(|wireup| wireup.state == 'S');
        times = if idle { times + 1 } else { 0 };
        (times == 20).then_some(())
    });
}

#[test]
fn output_left_in_pipes_of_exited_ranks_waits_for_reader() {
    // Lines that become many times as long.
    for (options, ranks, count) in [
        (&["-l"][..], 200, 32 * 1024),
        (&["-l", "--timestamps"], 100, 16 * 1024),
        (&["--json", "-"], 50, 8 * 1024),
    ] {
        let words = [options, &["cat", "newlines"]].concat();
        let run = Run::ranks(ranks, words).stdout_held();
        std::fs::write(run.dir().join("newlines"), "\n".repeat(count)).unwrap();
        let mut running = run.start();
        let mut pipe = running.take_stdout();
        // The first lines show that it runs.
        pipe.read_exact(&mut [0; 4096]).unwrap();
        wait_until_idle(&running, "cat");
        let peak = own_memory_peak_kib(running.pid());
        assert!(peak < LAUNCHER, "{options:?}: {peak} KiB");
        let mut rest = Vec::new();
        pipe.read_to_end(&mut rest).unwrap();
        running.finish().expect_quiet_success();
        let marks = [&b"] \n"[..], br#""text":"\n""#];
        let found: usize = marks
            .iter()
            .map(|mark| memchr::memmem::find_iter(&rest, mark).count())
            .sum();
        // Some were in what was read first.
        let all = ranks as usize * count;
        assert!(
            found <= all && found > all - 1024,
            "{options:?}: {found} of {all}"
        );
    }
}

#[test]
fn all_ranks_get_turns_with_slow_reader() {
    // Far more of them than may be queued at once.
    let script = "exec yes $WIREUP_RANK";
    let mut running = Run::ranks(64, ["sh", "-c", script]).stdout_held().start();
    let mut pipe = running.take_stdout();
    wait_until_blocked(&running, "yes", 64);
    let mut output = vec![0; 24 << 20];
    pipe.read_exact(&mut output).unwrap();
    drop(pipe);
    running.finish().expect(141);
    let text = String::from_utf8(output).unwrap();
    let mut lines = vec![0; 64];
    for line in text.lines() {
        // The last one may be cut.
        if let Some(count) = line
            .parse()
            .ok()
            .and_then(|rank: usize| lines.get_mut(rank))
        {
            *count += 1;
        }
    }
    assert!(lines.iter().all(|count| *count > 0), "{lines:?}");
}

#[test]
fn line_stays_whole_while_its_rest_waits_for_reader() {
    let Some(lines) = program("lines") else {
        return;
    };
    let (ranks, count) = (16, 2000);
    // Written in pieces: ranks stop in the middle of a line. None can have ended when all are blocked.
    let lines = lines.to_str().unwrap();
    let args = ["-l", lines, "2000", "999", "--chunk", "700"];
    let mut running = Run::ranks(ranks as u32, args).stdout_held().start();
    let mut pipe = running.take_stdout();
    let mut output = vec![0; 500_000];
    pipe.read_exact(&mut output).unwrap();
    wait_until_blocked(&running, "lines", ranks);
    let blocked = Instant::now();
    eventually("unfinished lines would have been shown", || {
        (blocked.elapsed() > Duration::from_millis(300)).then_some(())
    });
    pipe.read_to_end(&mut output).unwrap();
    running.finish().expect_quiet_success();
    assert_lines(&output, ranks, count, &[999], true);
}
