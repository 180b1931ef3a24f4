//! Lines about ranks that seem to wait for each other for ever. The first comes 60 s after all have made contact.

use std::time::Duration;

use rustix::process::Signal;

use crate::common::{Output, Run, Running};

/// Time for several looks at the ranks: on a busy machine the first ones may find other facts.
const PATIENCE: Duration = Duration::from_secs(240);

/// Python program whose ranks make contact over PMI-1 and print their number. The ranks of the list then use a third of a
/// processor each, the others wait for a signal.
const RANKS: &str = r#"
import os, signal, sys, time
rank = os.environ["WIREUP_RANK"]
os.write(int(os.environ["PMI_FD"]), b"cmd=init pmi_version=1 pmi_subversion=1\n")
print("rank", rank, flush=True)
while rank in sys.argv[1]:
    start = time.process_time()
    while time.process_time() < start + 0.01:
        pass
    time.sleep(0.02)
signal.pause()
"#;

/// Job of ranks of which those in `polling` use a processor.
fn start(ranks: u32, polling: &str) -> Running {
    let run = Run::ranks(ranks, ["--pmi", "pmi1", "python3", "-c", RANKS, polling]);
    let running = run.deadline(PATIENCE).start();
    running.wait_for_many(Output::Stdout, "rank ", ranks as usize);
    running
}

/// Waits for the line about idle ranks, checks that it begins so and names the command, and ends the job.
#[track_caller]
fn expect_line(running: Running, start: &str, end: &str) {
    running.wait_for(Output::Stderr, "used no processor time");
    let pid = running.pid();
    running.signal(Signal::TERM);
    let outcome = running.finish().expect(143);
    let err = outcome.err();
    let is_about_idle = |line: &&str| line.contains("used no processor time");
    let mut lines = err.lines().filter(is_about_idle);
    let line = lines.next().unwrap();
    assert_eq!(lines.next(), None, "{outcome:?}");
    let end = format!(" s{end}; `wireup stacks {pid}` shows where the ranks are");
    let seconds = line
        .strip_prefix(start)
        .and_then(|rest| rest.strip_suffix(&end));
    let seconds: u64 = seconds
        .and_then(|seconds| seconds.parse().ok())
        .expect(line);
    assert!(seconds >= 30, "{line}");
}

#[test]
fn idle_rank_is_named_while_others_poll() {
    let running = start(4, "0,1,3");
    expect_line(
        running,
        "wireup: rank 2 has used no processor time, or waited in one fence, for ",
        " while 3 others used at least a tenth of a processor each and printed nothing: these may compute, or poll for a \
         message",
    );
}

#[test]
fn job_of_idle_ranks_is_reported() {
    let running = start(2, "");
    let start = "wireup: 2 of 2 ranks have used no processor time, or waited in one fence, for ";
    expect_line(running, start, "");
}
