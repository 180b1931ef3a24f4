//! Tools that stop, signal and end ranks (`PMIx_Job_control`).

use super::spawns::Debugger;
use super::{Job, NODES, versions};
use crate::common::{Output, Run, eventually};

/// Script of ranks: they print that they are ready and which signals they get, and end by SIGTERM
/// alone.
const HEARS: &str = "trap 'echo usr1 $PMIX_RANK' USR1; trap 'echo term $PMIX_RANK; exit 0' TERM; \
                     echo ready; while :; do sleep 0.05; done";

fn job(library: &crate::common::Pmix, nodes: &[&str]) -> Job {
    let options = [&["--pmi", "pmix", "--libpmix", library.path()], nodes].concat();
    let run = Run::ranks(4, options).more(["sh", "-c", HEARS]);
    let job = Job::from(library.clone(), run);
    job.running.wait_for_many(Output::Stdout, "ready", 4);
    job
}

/// Has the tool give an order to a rank, or to all with -2.
#[track_caller]
fn control(tool: &mut Debugger, job: &Job, rank: i32, directive: &str) {
    let key = directive.split(' ').next().unwrap();
    let text = format!("control={key} status=0");
    let before = tool.printed().matches(&text).count();
    tool.order(&format!("control {} {rank} {directive}", job.nspace()));
    tool.wait_for_many(&text, before + 1);
}

#[test]
fn tool_pauses_continues_signals_and_ends_ranks_on_every_node() {
    for library in versions() {
        for nodes in NODES {
            let job = job(&library, nodes);
            let mut tool = Debugger::attach(&job);
            let shells = |state: char, count: usize| {
                eventually("so many shells are in that state", || {
                    let processes = job.running.processes();
                    let shells = processes.iter().filter(|one| one.name == "sh");
                    let there = shells.filter(|one| (one.state == 'T') == (state == 'T'));
                    (there.count() == count).then_some(())
                });
            };
            control(&mut tool, &job, 3, "pmix.jctrl.pause");
            shells('T', 1);
            control(&mut tool, &job, -2, "pmix.jctrl.pause");
            shells('T', 4);
            control(&mut tool, &job, -2, "pmix.jctrl.resume");
            shells('S', 4);
            control(&mut tool, &job, 2, "pmix.jctrl.sig 10");
            job.running.wait_for(Output::Stdout, "usr1 2");
            // Ranks that a tool ends are no failure.
            control(&mut tool, &job, 1, "pmix.jctrl.term");
            job.running.wait_for(Output::Stdout, "term 1");
            control(&mut tool, &job, 3, "pmix.jctrl.kill");
            shells('S', 2);
            tool.order(&format!("abort {} 0", job.nspace()));
            tool.wait_for_line("abort status=0");
            job.running.wait_for(Output::Stdout, "term 0");
            control(&mut tool, &job, 2, "pmix.jctrl.term");
            let outcome = job.running.finish().expect(0);
            let out = outcome.out();
            assert!(!out.contains("usr1 0") && !out.contains("term 3"), "{out}");
            tool.leave();
        }
    }
}

#[test]
fn tool_that_ends_whole_job_is_named() {
    for library in versions() {
        for nodes in NODES {
            for (directive, signal) in [("pmix.jctrl.term", 15), ("pmix.jctrl.kill", 9)] {
                let job = job(&library, nodes);
                let mut tool = Debugger::attach(&job);
                tool.order(&format!("control {} -2 {directive}", job.nspace()));
                let outcome = job.running.finish().expect(128 + signal);
                let text = format!("a tool had the job ended by signal {signal} through PMIx");
                outcome.expect_one_line(&[&text]);
                tool.kill();
            }
        }
    }
}

#[test]
fn tool_with_daemons_and_ended_jobs_ends_whole_job() {
    for library in versions() {
        for nodes in NODES {
            for (directive, signal) in [("pmix.jctrl.term", 15), ("pmix.jctrl.kill", 9)] {
                let job = job(&library, nodes);
                let mut tool = Debugger::attach(&job);
                let name = job.nspace();
                let brief = tool.spawns("-- 1 true");
                tool.wait_for_line(&format!("ended={brief}"));
                let daemon = library.dir.join("pmix_daemon");
                let wants = format!("pmix.debugger pmix.dbg.tgt={name}:-2 pmix.dbg.dpnd=#1");
                tool.spawns(&format!("{wants} -- 0 {}", daemon.display()));
                tool.wait_for_many(" lrank=0 ", nodes.len().max(1));
                tool.order(&format!("control {name} -2 {directive}"));
                let outcome = job.running.finish().expect(128 + signal);
                let text = format!("a tool had the job ended by signal {signal} through PMIx");
                outcome.expect_one_line(&[&text]);
                tool.kill();
            }
        }
    }
}
