//! Jobs that tools spawn.

use std::io::Write as _;
use std::process::ChildStdin;
use std::time::Duration;

use super::{Job, NODES, versions};
use crate::common::{Output, Run, Running, field, number};

/// `pmix_debugger`, attached to a job.
pub(super) struct Debugger {
    running: Running,
    orders: ChildStdin,
}

impl Debugger {
    pub(super) fn attach(job: &Job) -> Self {
        Self::from(Self::command(job))
    }

    /// One that may run for this time.
    #[track_caller]
    pub(super) fn attach_within(job: &Job, time: Duration) -> Self {
        Self::from(Self::command(job).deadline(time))
    }

    fn command(job: &Job) -> Run {
        let tool = job.library.dir.join("pmix_debugger");
        let words = [tool.to_str().unwrap().to_owned(), job.file()];
        Run::command(words).beside(&job.place)
    }

    /// One that comes by itself.
    #[track_caller]
    pub(super) fn from(run: Run) -> Self {
        let mut running = run.stdin_held().start();
        running.wait_for(Output::Stdout, "pmix_debugger attached");
        let orders = running.stdin();
        Self { running, orders }
    }

    pub(super) fn order(&mut self, line: &str) {
        writeln!(self.orders, "{line}").unwrap();
    }

    /// Waits for a line with this text and returns it.
    #[track_caller]
    pub(super) fn wait_for_line(&self, text: &str) -> String {
        let output = self.running.wait_for(Output::Stdout, text);
        let line = output.lines().find(|line| line.contains(text));
        line.unwrap().to_owned()
    }

    /// Waits for `count` of these; returns everything that was printed.
    #[track_caller]
    pub(super) fn wait_for_many(&self, text: &str, count: usize) -> String {
        self.running.wait_for_many(Output::Stdout, text, count)
    }

    /// Spawns a job with these words and gives its name.
    #[track_caller]
    pub(super) fn spawns(&mut self, words: &str) -> String {
        let so_far = self.printed().matches("pmix_debugger spawned=").count();
        self.order(&format!("spawn {words}"));
        let text = "pmix_debugger spawned=";
        let output = self.running.wait_for_many(Output::Stdout, text, so_far + 1);
        let line = output.lines().rfind(|line| line.starts_with(text));
        field(line.unwrap(), "spawned").unwrap().to_owned()
    }

    pub(super) fn printed(&self) -> String {
        String::from_utf8(self.running.so_far(Output::Stdout)).unwrap()
    }

    /// Lets it leave, and gives what it printed on both streams.
    #[track_caller]
    pub(super) fn leave(self) -> (String, String) {
        drop(self.orders);
        let outcome = self.running.finish().expect(0);
        (outcome.out(), outcome.err())
    }

    pub(super) fn kill(self) {
        self.running.signal(rustix::process::Signal::KILL);
        self.running.finish().expect(137);
    }
}

#[test]
fn tool_gets_output_of_job_it_spawned_instead_of_launcher() {
    let script = "echo out $PMIX_RANK of $WIREUP_SIZE on $WIREUP_NODE; echo err $PMIX_RANK >&2";
    for library in versions() {
        for nodes in NODES {
            let options = [&["--oversubscribe"], nodes].concat();
            let job = Job::start(library.clone(), &options);
            let mut tool = Debugger::attach(&job);
            let child = tool.spawns(&format!("pmix.mapby=node -- 3 sh: {script}"));
            assert_ne!(child, job.nspace());
            let ended = tool.wait_for_line(&format!("ended={child}"));
            assert_eq!(number(&ended, "status"), 0, "{ended}");
            let (out, err) = tool.leave();
            for rank in 0..3 {
                let node = if nodes.is_empty() { 0 } else { rank % 2 };
                let line = format!("out {rank} of 3 on {node}");
                assert!(out.lines().any(|l| l == line), "{line}: {out}");
                assert!(err.lines().any(|l| l == format!("err {rank}")), "{err}");
            }
            let outcome = job.end();
            assert!(!outcome.out().contains("of 3"), "{outcome:?}");
            assert!(!outcome.err().contains("err "), "{outcome:?}");
        }
    }
}

#[test]
fn spawned_job_loses_no_output_of_any_size() {
    let lines = 30_000;
    let script = format!("i=0; while [ $i -lt {lines} ]; do echo line $i; i=$((i+1)); done");
    for library in versions() {
        for nodes in NODES {
            let options = [&["--oversubscribe"], nodes].concat();
            let job = Job::start(library.clone(), &options);
            let mut tool = Debugger::attach(&job);
            let child = tool.spawns(&format!("pmix.mapby=node -- 2 sh: {script}"));
            tool.wait_for_line(&format!("ended={child}"));
            tool.running
                .wait_for_many(Output::Stdout, &format!("line {}\n", lines - 1), 2);
            let (out, _) = tool.leave();
            let got = out.lines().filter(|line| line.starts_with("line ")).count();
            assert_eq!(got, 2 * lines);
            job.end();
        }
    }
}

#[test]
fn output_goes_to_launcher_if_tool_does_not_take_it() {
    for library in versions() {
        for nodes in NODES {
            let options = [&["--oversubscribe"], nodes].concat();
            let job = Job::start(library.clone(), &options);
            let mut tool = Debugger::attach(&job);
            // A tool with libpmix 5.0.11 spawns nothing without an info.
            let child = tool.spawns("quiet pmix.mapby=slot -- 1 sh: echo for the launcher");
            tool.wait_for_line(&format!("ended={child}"));
            job.running.wait_for(Output::Stdout, "for the launcher\n");
            let waits = "echo begun; while sleep 0.1; do echo again; done";
            tool.spawns(&format!("pmix.mapby=node -- 2 sh: {waits}"));
            tool.running.wait_for_many(Output::Stdout, "again\n", 4);
            assert!(!job.running.so_far(Output::Stdout).ends_with(b"again\n"));
            tool.kill();
            job.running.wait_for_many(Output::Stdout, "again\n", 4);
            job.end();
        }
    }
}

#[test]
fn spawn_of_tool_fails_like_spawn_of_rank() {
    for library in versions() {
        let job = Job::start(library, &[]);
        let mut tool = Debugger::attach(&job);
        tool.order("spawn -- 1 ./not-there");
        let refused = tool.wait_for_line("refused status=");
        // PMIX_ERR_JOB_EXE_NOT_FOUND.
        assert_eq!(field(&refused, "status"), Some("-190"), "{refused}");
        tool.leave();
        let outcome = job.end();
        assert!(outcome.err().contains("the tool "), "{outcome:?}");
    }
}

#[test]
fn tool_starts_mpi_programs_and_writes_their_stdin() {
    for library in versions() {
        for nodes in NODES {
            let options = [&["--oversubscribe"], nodes].concat();
            let job = Job::start(library.clone(), &options);
            let mut tool = Debugger::attach(&job);
            let client = library.dir.join("pmix_client");
            let child = tool.spawns(&format!("-- 3 {} exchange 100", client.display()));
            let ended = tool.wait_for_line(&format!("ended={child}"));
            assert_eq!(number(&ended, "status"), 0, "{ended}");
            let child = tool.spawns("pmix.fwd.stdin pmix.mapby=node -- 2 sh: while read l; do echo got $l; done; echo eof");
            tool.order(&format!("push {child} 0 one"));
            tool.wait_for_line("got one");
            tool.order(&format!("end {child} 0"));
            tool.wait_for_line("eof");
            tool.wait_for_line("pushed status=0");
            tool.wait_for_line(&format!("ended={child}"));
            tool.leave();
            job.end();
        }
    }
}
