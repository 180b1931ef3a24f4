//! Tools that start `wireup run` themselves and direct what it launches.

use std::time::Duration;

use super::spawns::Debugger;
use super::{NODES, versions};
use crate::common::{Output, Pmix, Run, eventually, field, mpi};

/// A tool that starts the launcher with these directives.
fn start(library: &Pmix, directives: &str, run: Run) -> Debugger {
    Debugger::from(directed(library, directives, run))
}

/// Adds to a run the variables of a tool with these directives, without starting it.
fn directed(library: &Pmix, directives: &str, run: Run) -> Run {
    let tool = library.dir.join("pmix_debugger");
    let words = [tool.to_str().unwrap(), "launch"].into_iter();
    run.under(words.chain(directives.split(' ')).chain(["--"]))
}

fn job(library: &Pmix, options: &[&str], program: &str) -> Run {
    let options = [&["--libpmix", library.path()], options].concat();
    library.run(4, &options, program, &[])
}

#[test]
fn tool_that_starts_launcher_sets_stop_point_of_ranks() {
    for library in versions() {
        for nodes in NODES {
            for (wish, at) in [
                ("pmix.dbg.init", "pmix-init"),
                ("pmix.dbg.notify=@2 pmix.fwd.stdout", "in-app"),
            ] {
                let mut tool = start(&library, wish, job(&library, nodes, "pmix_stop"));
                assert!(!tool.printed().contains("begun"));
                tool.order("go");
                let launched = tool.wait_for_line("launched=");
                let name = field(&launched, "launched").unwrap().to_owned();
                let ready = tool.wait_for_line(&format!("ready={name}"));
                assert_eq!(field(&ready, "at"), Some(at), "{ready}");
                // It sees the launch like one that has attached.
                let daemon = library.dir.join("pmix_daemon");
                let child = tool.spawns(&format!(
                    "pmix.debugger pmix.dbg.tgt={name}:-2 pmix.dbg.dpnd=#1 -- 0 {}",
                    daemon.display()
                ));
                tool.wait_for_many(" lrank=", nodes.len().max(1));
                tool.order(&format!("release {name}"));
                tool.wait_for_line(&format!("ended={name} status=0"));
                tool.wait_for_line(&format!("ended={child} status=0"));
                tool.wait_for_line("pmix_debugger lost");
                let (out, _) = tool.leave();
                assert_eq!(out.matches(" begun\n").count(), 4, "{out}");
            }
        }
    }
}

#[test]
fn directed_launch_of_programs_without_pmix_stops_before_main() {
    for library in versions() {
        let script = "echo began $WIREUP_RANK";
        let options = ["--libpmix", library.path(), "sh", "-c", script];
        let mut tool = start(&library, "pmix.dbg.exec", Run::ranks(2, options));
        tool.order("go");
        let launched = tool.wait_for_line("launched=");
        let name = field(&launched, "launched").unwrap().to_owned();
        let ready = tool.wait_for_line(&format!("ready={name}"));
        assert_eq!(field(&ready, "at"), Some("exec"), "{ready}");
        assert!(!tool.printed().contains("began"));
        tool.order(&format!("table {name}"));
        let output = tool.wait_for_many(" pid=", 2);
        for line in output.lines().filter(|line| line.contains(" pid=")) {
            let pid = crate::common::number(line, "pid") as i32;
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        }
        tool.wait_for_line(&format!("ended={name} status=0"));
        tool.wait_for_line("pmix_debugger lost");
        let (out, _) = tool.leave();
        assert_eq!(out.matches("began").count(), 2, "{out}");
    }
}

#[test]
fn invalid_directives_are_named_and_ignored() {
    let Some(library) = versions().next() else {
        return;
    };
    let run = job(&library, &[], "pmix_stop");
    let mut tool = start(&library, "pmix.dbg.init=@9", run);
    tool.order("go");
    tool.wait_for_line("pmix_debugger lost");
    let (out, err) = tool.leave();
    assert_eq!(out.matches(" begun\n").count(), 4, "{out}");
    assert!(err.contains("no rank 9; the job has ranks 0 to 3"), "{err}");
}

#[test]
fn launcher_with_pause_directive_waits_for_tool() {
    for library in versions() {
        for nodes in NODES {
            let run = job(&library, nodes, "pmix_stop");
            let file = run.dir().join("rendezvous");
            let place = Run::command(["true"]).beside(&run);
            let running = run
                .env("PMIX_LAUNCHER_PAUSE_FOR_TOOL", "tool:0")
                .env("PMIX_LAUNCHER_RENDEZVOUS_FILE", &file)
                .start();
            eventually("the server can be found", || {
                let text = std::fs::read_to_string(&file).unwrap_or_default();
                (text.lines().count() >= 4).then_some(())
            });
            let tool = library.dir.join("pmix_debugger");
            let words = [tool.to_str().unwrap(), file.to_str().unwrap()];
            let mut tool = Debugger::from(Run::command(words).beside(&place));
            tool.wait_for_line("pmix_debugger waits");
            assert!(running.so_far(Output::Stdout).is_empty());
            tool.order("go");
            tool.wait_for_line("launched=");
            running.finish().expect(0);
            tool.leave();
            assert!(!file.exists());
        }
    }
}

#[test]
fn launcher_ends_with_tool_that_sent_no_directives() {
    for library in versions() {
        let run = directed(&library, "pmix.dbg.init", job(&library, &[], "pmix_stop"));
        Debugger::from(run.clean_within(Duration::from_secs(10))).kill();
    }
}

#[test]
fn mpi_programs_run_under_launcher_started_by_tool() {
    for library in versions() {
        for name in ["mpich4", "openmpi4"] {
            let Some(mpi) = mpi(name) else { return };
            let run = mpi.run(2, &["--libpmix", library.path()], "hello", &[]);
            let mut tool = start(&library, "pmix.fwd.stdout", run);
            tool.order("go");
            tool.wait_for_line("pmix_debugger lost");
            let (out, err) = tool.leave();
            assert_eq!(out.matches(" size=2 ").count(), 2, "{out} {err}");
        }
    }
}
