//! End of jobs, as reported to tools.

use rustix::process::Signal;

use super::spawns::Debugger;
use super::{Job, NODES, versions};
use crate::common::{Run, field, number};

/// Values of `PMIX_ERR_JOB_ABORTED_BY_SIG` and `PMIX_ERR_JOB_NON_ZERO_TERM` as printed.
const BY_SIGNAL: &str = "-184";
const NON_ZERO: &str = "-187";

/// A job of four ranks that end with these codes when rank 0's input ends.
fn job_that_ends(library: &crate::common::Pmix, nodes: &[&str], codes: &str) -> Job {
    let script =
        format!("cat; sleep 0.2; echo last $PMIX_RANK; set -- {codes}; shift $PMIX_RANK; exit $1");
    let options = [
        &[
            "--pmi",
            "pmix",
            "--stdin",
            "all",
            "--libpmix",
            library.path(),
        ],
        nodes,
    ]
    .concat();
    let run = Run::ranks(4, options).more(["sh", "-c", &script]);
    Job::from(library.clone(), run.stdin_held())
}

#[test]
fn tool_gets_end_of_launch_and_its_last_output() {
    for library in versions() {
        for nodes in NODES {
            for (codes, status, code, rank) in
                [("0 0 0 0", "0", 0, "-2"), ("0 0 7 0", NON_ZERO, 7, "2")]
            {
                let mut job = job_that_ends(&library, nodes, codes);
                let name = job.nspace();
                let mut tool = Debugger::attach(&job);
                tool.order(&format!("pull {name}"));
                tool.wait_for_line("pmix_debugger pulls");
                drop(job.running.stdin());
                let ended = tool.wait_for_line(&format!("ended={name}"));
                assert_eq!(field(&ended, "status"), Some(status), "{ended}");
                assert_eq!(number(&ended, "code"), code, "{ended}");
                let proc = format!("{name}.{rank}");
                assert_eq!(field(&ended, "proc"), Some(&*proc), "{ended}");
                job.running.finish().expect(code as i32);
                let (out, _) = tool.leave();
                for rank in 0..4 {
                    let text = format!("got rank={rank} channel=2 text=last {rank}");
                    assert!(code > 0 || out.contains(&text), "{out}");
                }
            }
        }
    }
}

/// Jobs that run when their launch is ended.
const LASTING: usize = 5;

#[test]
fn tool_gets_end_of_job_and_of_jobs_it_spawned() {
    for library in versions() {
        for nodes in NODES {
            let options = [&["--oversubscribe"], nodes].concat();
            let job = Job::start(library.clone(), &options);
            let name = job.nspace();
            let mut tool = Debugger::attach(&job);
            let brief = tool.spawns("pmix.mapby=node -- 2 sh: exit 0");
            let ended = tool.wait_for_line(&format!("ended={brief}"));
            assert_eq!((number(&ended, "status"), number(&ended, "code")), (0, 0));
            let spawn = |_| tool.spawns("pmix.mapby=node -- 2 sleep 1000");
            let lasting: Vec<String> = (0..LASTING).map(spawn).collect();
            job.running.signal(Signal::TERM);
            for ended in lasting.iter().chain([&name]) {
                let ended = tool.wait_for_line(&format!("ended={ended}"));
                assert_eq!(field(&ended, "status"), Some(BY_SIGNAL), "{ended}");
                assert_eq!(number(&ended, "code"), 143, "{ended}");
            }
            let (out, _) = tool.leave();
            assert_eq!(out.matches("ended=").count(), LASTING + 2, "{out}");
            job.running.finish().expect(143);
        }
    }
}
