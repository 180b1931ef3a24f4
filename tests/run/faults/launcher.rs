//! wireup itself is killed while a PMIx job is in one phase or another: its guard cleans up.

use std::time::Duration;

use rustix::process::Signal;

use super::{Job, Stage};
use crate::common::{Output, Run, eventually};

/// Timeout for the guard: half a second of grace time, and a busy machine.
const GUARD: Duration = Duration::from_secs(60);

#[test]
fn launcher_killed_in_any_phase_leaves_nothing() {
    for stage in Stage::all() {
        for (job, rule) in [
            (Job::Hello, "hello 1 before stop"),
            (Job::Hello, "init 1 before hang"),
            (Job::Hello, "register_job reply 1 before stop"),
            (Job::Hello, "client_connected 1 before hang"),
            (Job::Modex, "node=1 fence 1 after hang"),
            (Job::Modex, "node=0 fence 2 before stop"),
            (Job::Hello, "client_finalized 1 before hang"),
            (Job::Hello, "finalize 1 before stop"),
        ] {
            let run = stage.run(job, rule, &["-vv"]).clean_within(GUARD).start();
            run.wait_for(Output::Stderr, "preload: acting");
            run.signal(Signal::KILL);
            assert_eq!(run.finish().code, 128 + 9, "{rule}");
        }
        let run = stage.run(Job::Waiting, "hello 2 before kill", &[]);
        let run = run.clean_within(GUARD).start();
        run.wait_for_many(Output::Stdout, "exitcode rank=", 2);
        run.signal(Signal::KILL);
        assert_eq!(run.finish().code, 128 + 9);
    }
}

#[test]
fn launcher_killed_while_starting_ranks_leaves_nothing() {
    const RANKS: usize = 16;
    // Launcher, guard and server come before the ranks.
    for count in 1..=RANKS + 3 {
        let run = Run::ranks(RANKS as u32, ["--pmi", "pmix", "sleep", "1000"]);
        let run = run.clean_within(GUARD).start();
        eventually("processes of the run", || {
            (run.processes().len() >= count).then_some(())
        });
        run.signal(Signal::KILL);
        assert_eq!(run.finish().code, 128 + 9, "with {count} processes");
    }
}
