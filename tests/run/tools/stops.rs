//! Ranks that stop for a debugger: which, where, and until when.

use super::spawns::Debugger;
use super::{Job, NODES, versions};
use crate::common::{Output, Pmix, Run, field};
use rustix::process::Signal;

fn stopping(library: &Pmix, options: &[&str]) -> Job {
    let options = [&["--libpmix", library.path()], options].concat();
    let run = library.run(4, &options, "pmix_stop", &[]);
    Job::from(library.clone(), run)
}

/// Returns the ranks that have printed this.
fn ranks_with(printed: &str, what: &str) -> Vec<u32> {
    let ranks = (0..8).filter(|rank| printed.contains(&format!("pmix_stop rank={rank} {what}\n")));
    ranks.collect()
}

#[test]
fn named_ranks_stop_in_init_and_are_released_one_by_one() {
    for library in versions() {
        for nodes in NODES {
            let job = stopping(&library, &[&["--stop-at=init:1-2"], nodes].concat());
            let name = job.nspace();
            let mut tool = Debugger::attach(&job);
            let ready = tool.wait_for_line(&format!("ready={name}"));
            assert_eq!(field(&ready, "at"), Some("pmix-init"), "{ready}");
            job.running.wait_for_many(Output::Stdout, " begun\n", 2);
            let out = || String::from_utf8(job.running.so_far(Output::Stdout)).unwrap();
            assert_eq!(ranks_with(&out(), "begun"), [0, 3]);
            tool.order(&format!("release {name} 1"));
            job.running
                .wait_for(Output::Stdout, "pmix_stop rank=1 begun\n");
            assert_eq!(ranks_with(&out(), "begun"), [0, 1, 3]);
            tool.order(&format!("release {name}"));
            job.running.finish().expect(0);
            tool.leave();
        }
    }
}

#[test]
fn ranks_of_spawned_job_stop_as_requested() {
    for library in versions() {
        for nodes in NODES {
            let job = Job::start(library.clone(), &[&["--oversubscribe"], nodes].concat());
            let mut tool = Debugger::attach(&job);
            let program = library.dir.join("pmix_stop");
            let program = format!("-- 3 {}", program.display());
            // All, or one; in PMIx, or at a place of the program's own.
            for (wish, at, passes, what) in [
                ("pmix.dbg.init", "pmix-init", 0, "begun"),
                ("pmix.dbg.init=@1", "pmix-init", 2, "begun"),
                ("pmix.dbg.notify=@2", "in-app", 3, "released"),
                ("pmix.dbg.notify", "in-app", 3, "released"),
            ] {
                let before = tool.printed().len();
                let child = tool.spawns(&format!("{wish} pmix.mapby=node {program}"));
                let ready = tool.wait_for_line(&format!("ready={child}"));
                assert_eq!(field(&ready, "at"), Some(at), "{ready}");
                let out = |tool: &Debugger| tool.printed()[before..].to_owned();
                crate::common::eventually("the others go on", || {
                    (ranks_with(&out(&tool), "begun").len() == passes).then_some(())
                });
                let waiting = ranks_with(&out(&tool), what).len();
                assert_eq!(waiting, if what == "begun" { passes } else { 0 }, "{wish}");
                tool.order(&format!("release {child}"));
                tool.wait_for_line(&format!("ended={child} status=0"));
            }
            tool.leave();
            job.end();
        }
    }
}

#[test]
fn any_program_stops_before_start() {
    for library in versions() {
        for nodes in NODES {
            let job = Job::start(library.clone(), &[&["--oversubscribe"], nodes].concat());
            let mut tool = Debugger::attach(&job);
            let child = tool.spawns("pmix.dbg.exec pmix.mapby=node -- 2 sh: echo began $PMIX_RANK");
            let ready = tool.wait_for_line(&format!("ready={child}"));
            assert_eq!(field(&ready, "at"), Some("exec"), "{ready}");
            assert!(!tool.printed().contains("began"));
            tool.order(&format!("table {child}"));
            tool.wait_for_line(&format!("local={child}.0 pid="));
            for process in job.running.processes() {
                if process.name == "sh" {
                    let pid = rustix::process::Pid::from_raw(process.pid).unwrap();
                    rustix::process::kill_process(pid, Signal::CONT).unwrap();
                }
            }
            tool.wait_for_line("began 0\n".trim_end());
            tool.wait_for_line(&format!("ended={child} status=0"));
            tool.leave();
            job.end();
        }
    }
}

#[test]
fn attributes_for_debuggers_are_listed() {
    for library in versions() {
        let job = Job::start(library, &[]);
        let mut tool = Debugger::attach(&job);
        tool.order("ask pmix.qry.debug");
        let line = tool.wait_for_line("pmix.qry.debug=");
        let keys = field(&line, "pmix.qry.debug").unwrap().to_owned();
        let mut keys: Vec<&str> = keys.split(',').collect();
        keys.sort_unstable();
        // What the tests of this directory do.
        let expected = [
            "pmix.dbg.dpnd",
            "pmix.dbg.dpproc",
            "pmix.dbg.exec",
            "pmix.dbg.init",
            "pmix.dbg.job",
            "pmix.dbg.notify",
            "pmix.dbg.tgt",
            "pmix.debugger",
        ];
        assert_eq!(keys, expected);
        tool.leave();
        job.end();
    }
}

#[test]
fn missing_ranks_cannot_stop() {
    let outcome = Run::ranks(2, ["--stop-at=init:0,7", "--pmi", "pmix", "true"]).run();
    outcome
        .expect(125)
        .expect_one_line(&["--stop-at init:0,7", "0 to 1"]);
}
