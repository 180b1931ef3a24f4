//! Tools that are lost while ranks wait for them: `--on-tool-loss`.

use super::spawns::Debugger;
use super::{Job, NODES, versions};
use crate::common::{Output, Pmix};

/// A job whose ranks wait in this way, and a tool that has seen that they do.
fn waiting(library: &Pmix, stops: &str, options: &[&str]) -> (Job, Debugger) {
    let libpmix = ["--libpmix", library.path(), stops];
    let options = [&libpmix, options].concat();
    let run = library.run(4, &options, "pmix_stop", &[]);
    let job = Job::from(library.clone(), run);
    let tool = Debugger::attach(&job);
    tool.wait_for_line(&format!("ready={}", job.nspace()));
    (job, tool)
}

#[test]
fn ranks_waiting_for_lost_tool_continue_or_end_as_configured() {
    for library in versions() {
        for nodes in NODES {
            let stops = ["--stop-at=init:1-2", "--stop-at=exec"];
            let cases = [
                (stops[0], "release", 0),
                (stops[1], "release", 0),
                (stops[0], "end", 143),
                (stops[1], "end", 143),
            ];
            // libpmix waits for a second before it reports losses: all at the same time.
            let jobs = cases.map(|(stops, policy, code)| {
                let options = [&["--on-tool-loss", policy], nodes].concat();
                (waiting(&library, stops, &options), code)
            });
            let killed = jobs.map(|((job, tool), code)| {
                tool.kill();
                (job, code)
            });
            for (job, code) in killed {
                let outcome = job.running.finish().expect(code);
                let err = outcome.err();
                assert_eq!(err.contains("a debugger that is gone"), code != 0, "{err}");
                let begun = outcome.out().matches(" begun\n").count();
                assert_eq!(begun == 4, code == 0, "{outcome:?}");
            }
        }
    }
}

#[test]
fn ranks_wait_for_another_tool_unless_configured_otherwise() {
    for library in versions() {
        // Another is there.
        let options = ["--on-tool-loss", "end"];
        let (job, tool) = waiting(&library, "--stop-at=init", &options);
        let mut other = Debugger::attach(&job);
        tool.kill();
        other.wait_for_many("ready=", 1);
        let name = job.nspace();
        other.order(&format!("release {name}"));
        job.running.wait_for_many(Output::Stdout, " begun\n", 4);
        other.leave();
        job.running.finish().expect(0);
        // None is, and none has to be.
        let (job, tool) = waiting(&library, "--stop-at=init", &[]);
        tool.kill();
        let mut other = Debugger::attach(&job);
        other.order(&format!("release {}", job.nspace()));
        job.running.finish().expect(0);
        other.leave();
    }
}

#[test]
fn spawned_job_stopped_in_program_continues_after_tool_loss() {
    for library in versions() {
        for nodes in NODES {
            let options = [&["--on-tool-loss", "release", "--oversubscribe"], nodes].concat();
            let job = Job::start(library.clone(), &options);
            let mut tool = Debugger::attach(&job);
            let program = library.dir.join("pmix_stop");
            let wishes = "quiet pmix.dbg.notify pmix.mapby=node";
            let child = tool.spawns(&format!("{wishes} -- 2 {}", program.display()));
            tool.wait_for_line(&format!("ready={child} at=in-app"));
            assert!(
                !job.running
                    .so_far(Output::Stdout)
                    .windows(8)
                    .any(|text| text == b"released")
            );
            tool.kill();
            job.running.wait_for_many(Output::Stdout, " released\n", 2);
            job.end();
        }
    }
}
