//! Input and output of ranks for tools.

use std::io::Write as _;
use std::time::Duration;

use super::spawns::Debugger;
use super::{Job, NODES, versions};
use crate::common::{Output, Run, memory_peak_kib};

#[test]
fn tool_gets_no_output_after_iof_deregister() {
    const PRINTS: &str = "while sleep 0.05; do echo out-$PMIX_RANK; done";
    for library in versions() {
        for nodes in NODES {
            let options = [&["--pmi", "pmix", "--libpmix", library.path()], nodes].concat();
            let run = Run::ranks(4, options).more(["sh", "-c", PRINTS]);
            let job = Job::from(library.clone(), run);
            let mut tool = Debugger::attach(&job);
            tool.order(&format!("pull {}", job.nspace()));
            // From every node.
            for rank in 0..4 {
                tool.wait_for_line(&format!("got rank={rank} "));
            }
            tool.order("stop");
            tool.wait_for_line("pmix_debugger stopped");
            let go_on = || {
                let lines = || job.running.so_far(Output::Stdout).len();
                let before = lines();
                crate::common::eventually("ranks go on", || (lines() > before + 200).then_some(()));
            };
            // From 6.1 on something may be on its way.
            go_on();
            let got = tool.printed().matches(" got ").count();
            go_on();
            assert_eq!(tool.printed().matches(" got ").count(), got);
            tool.leave();
            job.end();
        }
    }
}

#[test]
fn late_tool_gets_earlier_output_of_ranks() {
    const PRINTS: &str = "echo early-$PMIX_RANK; echo trouble-$PMIX_RANK >&2; [ $PMIX_RANK = 3 ] || \
                          exec sleep 1000";
    for library in versions() {
        for nodes in NODES {
            let options = [&["--pmi", "pmix", "--libpmix", library.path()], nodes].concat();
            let run = Run::ranks(4, options).more(["sh", "-c", PRINTS]);
            let job = Job::from(library.clone(), run);
            job.running.wait_for_many(Output::Stdout, "early-", 4);
            job.running.wait_for_many(Output::Stderr, "trouble-", 4);
            let mut tool = Debugger::attach(&job);
            let name = job.nspace();
            tool.order(&format!("pull {name}"));
            for rank in 0..4 {
                tool.wait_for_line(&format!("got rank={rank} channel=2 text=early-{rank}"));
                tool.wait_for_line(&format!("got rank={rank} channel=4 text=trouble-{rank}"));
            }
            // And the end of the rank that has ended.
            tool.wait_for_many("got rank=3 channel=2 text=\n", 1);
            // Another one gets less, if it wants.
            for (words, text) in [
                ("pmix.iof.csize=%4", "y-0"),
                ("pmix.iof.csize=%4 pmix.iof.new", "earl"),
            ] {
                tool.order("stop");
                tool.order(&format!("pull {name} 0 {words}"));
                tool.wait_for_many(&format!("got rank=0 channel=2 text={text}\n"), 1);
            }
            tool.leave();
            job.end();
        }
    }
}

#[test]
fn tool_writes_stdin_of_all_its_spawned_processes() {
    let reads = "while read l; do echo $PMIX_RANK got $l; done; echo $PMIX_RANK eof";
    for library in versions() {
        for nodes in NODES {
            let job = Job::start(library.clone(), nodes);
            let mut tool = Debugger::attach(&job);
            let wishes = "pmix.fwd.stdin pmix.stdin=all pmix.mapby=node";
            let child = tool.spawns(&format!("{wishes} -- 2 sh: {reads}"));
            for rank in [1, 0] {
                tool.order(&format!("push {child} {rank} line-{rank}"));
                tool.wait_for_line(&format!("{rank} got line-{rank}"));
            }
            assert!(!tool.printed().contains("eof"));
            tool.order(&format!("end {child} 1"));
            tool.wait_for_line("1 eof");
            assert!(!tool.printed().contains("0 eof"));
            tool.order(&format!("end {child} -2"));
            tool.wait_for_line("0 eof");
            tool.wait_for_line(&format!("ended={child} status=0"));
            tool.leave();
            job.end();
        }
    }
}

#[test]
fn tool_that_stops_reading_blocks_no_ranks_and_no_tools() {
    const BYTES: usize = 100 << 20;
    // These bytes through two nodes take a busy machine more than a minute.
    const AT_LENGTH: Duration = Duration::from_secs(300);
    let prints = format!(
        "[ $PMIX_RANK = 1 ] || exec sleep 1000; read go; head -c {BYTES} /dev/zero | tr '\\0' x; \
         echo done >&2; exec sleep 1000 >&-"
    );
    for library in versions() {
        for nodes in NODES {
            let options = ["--pmi", "pmix", "--libpmix", library.path(), "--stdin", "1"];
            let run = Run::ranks(2, [&options[..], nodes].concat());
            let run = run.more(["sh", "-c", &prints]).stdin_held();
            let run = run.deadline(AT_LENGTH);
            let null = std::fs::File::create("/dev/null").unwrap();
            let mut job = Job::from(library.clone(), run.stdout_to(null));
            let mut input = job.running.stdin();
            let mut tool = Debugger::attach_within(&job, AT_LENGTH);
            tool.order("hang");
            tool.order(&format!("pull {}", job.nspace()));
            tool.wait_for_line("pmix_debugger pulls");
            let mut other = Debugger::attach_within(&job, AT_LENGTH);
            other.order(&format!("count {} 1", job.nspace()));
            other.wait_for_line("pmix_debugger counts");
            input.write_all(b"go\n").unwrap();
            job.running.wait_for(Output::Stderr, "done\n");
            job.running
                .wait_for(Output::Stderr, "does not read its forwarded output");
            other.wait_for_line(&format!("counted rank=1 bytes={BYTES}"));
            other.leave();
            for process in job.running.processes() {
                if process.name.starts_with("wireup-pmix-hos") {
                    let peak = memory_peak_kib(process.pid);
                    assert!(peak < 110 * 1024, "{peak} kB");
                }
            }
            tool.kill();
            job.running.signal(rustix::process::Signal::TERM);
            job.running.finish().expect(143);
        }
    }
}
