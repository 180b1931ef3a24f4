//! Daemons of debuggers on the nodes of the processes that they debug.

use super::spawns::Debugger;
use super::{Job, NODES, versions};
use crate::common::{Output, Run, eventually, field, number};
use crate::debuggers::{PATIENCE, gdb, shown};

/// The lines of the daemons, and the order that spawns them.
fn lines(tool: &Debugger, child: &str, count: usize) -> Vec<String> {
    let text = " lrank=";
    let output = tool.wait_for_many(text, count);
    let mut lines: Vec<String> = output
        .lines()
        .filter(|l| l.contains(text))
        .map(str::to_owned)
        .collect();
    lines.sort();
    assert_eq!(lines.len(), count, "{child}: {output}");
    lines
}

#[test]
fn daemons_run_at_target_without_slots_and_get_end_event() {
    for library in versions() {
        for nodes in NODES {
            let job = Job::start(library.clone(), nodes);
            let mut tool = Debugger::attach(&job);
            let target = tool.spawns("pmix.fwd.stdin -- 1 cat");
            // There are too few slots.
            tool.order("spawn pmix.noover -- 999 sleep 1000");
            tool.wait_for_line("refused status=");
            let daemon = library.dir.join("pmix_daemon");
            let spawn = |tool: &mut Debugger, how: &str, count: u32, job: &str| {
                tool.spawns(&format!(
                    "pmix.noover pmix.debugger pmix.dbg.tgt={job}:-2 {how} -- {count} {}",
                    daemon.display()
                ))
            };
            let name = job.nspace();
            let hosts = nodes.len().max(1);
            for (how, count, daemons) in [
                ("pmix.dbg.dpnd=#2", 0, 2 * hosts),
                ("pmix.dbg.dpproc=#1", 0, 4),
                ("pmix.mapby=ppr:1:node", hosts as u32, hosts),
                ("pmix.mapby=ppr:2:node", 0, 2 * hosts),
                ("", 0, 4),
            ] {
                let mut own = Debugger::attach(&job);
                let child = spawn(&mut own, how, count, &name);
                let lines = lines(&own, &child, daemons);
                for line in &lines {
                    assert_eq!(
                        field(line, "target"),
                        Some(&*format!("{name}.-2")),
                        "{line}"
                    );
                    assert_eq!(number(line, "local") as usize, 4 / hosts, "{line}");
                }
                let on = |node: u32| lines.iter().filter(|l| number(l, "node") == node).count();
                assert_eq!(on(0), daemons / hosts, "{lines:?}");
                own.kill();
            }
            // Daemons of another job get the event of its end, and exit.
            let child = spawn(&mut tool, "pmix.dbg.dpnd=#1", 0, &target);
            lines(&tool, &child, 1);
            tool.order(&format!("end {target} 0"));
            tool.wait_for_line(&format!("ended={target}"));
            tool.wait_for_line("pmix_daemon rank=0 over");
            tool.wait_for_line(&format!("ended={child} status=0"));
            tool.leave();
            job.end();
        }
    }
}

#[test]
fn daemons_among_spawned_programs_are_separate_job() {
    for library in versions() {
        for nodes in NODES {
            let job = Job::start(library.clone(), &[nodes, &["--oversubscribe"]].concat());
            let mut tool = Debugger::attach(&job);
            let [stops, daemon] = ["pmix_stop", "pmix_daemon"].map(|name| library.dir.join(name));
            let (stops, daemon) = (stops.display(), daemon.display());
            let hosts = nodes.len().max(1);
            // The ranks are two, for themselves and for each other: their fences take no daemon into account.
            let ranks = format!("pmix.dbg.init pmix.mapby=node -- 2 {stops}");
            let child = tool.spawns(&format!(
                "{ranks} ++ pmix.debugger pmix.dbg.dpnd=#1 0 {daemon}"
            ));
            let text = format!(" target={child}.-2 local={}", 2 / hosts);
            job.running.wait_for_many(Output::Stdout, &text, hosts);
            tool.wait_for_line(&format!("ready={child} at=pmix-init"));
            tool.order(&format!("release {child}"));
            tool.wait_for_line(&format!("ended={child} status=0"));
            job.running.wait_for_many(Output::Stdout, " over\n", hosts);
            // Without daemons there is no job either.
            let before = tool.printed().matches("refused").count();
            tool.order(&format!(
                "spawn {ranks} ++ pmix.debugger pmix.dbg.dpnd=#1 0 /no/such/daemon"
            ));
            tool.wait_for_many("refused", before + 1);
            ranks_are_ended(&job);
            tool.leave();
            job.end();
        }
    }
}

/// Waits until no process of a spawn is left.
#[track_caller]
fn ranks_are_ended(job: &Job) {
    let left = || {
        let processes = job.running.processes();
        let ranks = processes.iter().filter(|one| one.name == "pmix_stop");
        (ranks.count() == 0).then_some(())
    };
    eventually("the ranks are ended", left);
}

#[test]
fn cospawned_program_is_own_job_without_which_ranks_do_not_run() {
    for library in versions() {
        for nodes in NODES {
            let job = Job::start(library.clone(), &[nodes, &["--oversubscribe"]].concat());
            let mut tool = Debugger::attach(&job);
            let stops = library.dir.join("pmix_stop");
            // The fences of the two ranks take no other program into account.
            let ranks = format!(
                "pmix.dbg.init pmix.mapby=node -- 2 {} ++ pmix.cospawn 1",
                stops.display()
            );
            let says = "sh: echo beside=$PMIX_NAMESPACE rank=$PMIX_RANK size=$WIREUP_SIZE";
            let child = tool.spawns(&format!("{ranks} {says}"));
            let output = job.running.wait_for(Output::Stdout, " size=1\n");
            let line = output
                .lines()
                .find(|line| line.contains("beside="))
                .unwrap();
            let beside = field(line, "beside").unwrap();
            assert!(beside != child && beside != job.nspace(), "{line}, {child}");
            assert_eq!(field(line, "rank"), Some("0"), "{line}");
            tool.wait_for_line(&format!("ready={child} at=pmix-init"));
            tool.order(&format!("release {child}"));
            tool.wait_for_line(&format!("ended={child} status=0"));
            tool.order(&format!("spawn {ranks} /no/such/program"));
            tool.wait_for_line("refused");
            ranks_are_ended(&job);
            tool.leave();
            job.end();
        }
    }
}

#[test]
fn failed_daemon_is_not_failure_of_launch() {
    for library in versions() {
        let job = Job::start(library, &[]);
        let mut tool = Debugger::attach(&job);
        let name = job.nspace();
        // Of a process, and of a job by its older name.
        for target in [
            format!("pmix.dbg.tgt={name}:0 pmix.dbg.dpproc=#1"),
            format!("pmix.dbg.job={name} pmix.dbg.dpnd=#1"),
        ] {
            let child = tool.spawns(&format!("pmix.debugger {target} -- 0 sh: exit 3"));
            let ended = tool.wait_for_line(&format!("ended={child}"));
            assert_eq!(number(&ended, "code"), 3, "{ended}");
        }
        for (wrong, why) in [
            (
                "pmix.debugger pmix.dbg.dpnd=#1 -- 0 sh: exit 0",
                "requires PMIX_DEBUG_TARGET",
            ),
            (
                "pmix.debugger pmix.dbg.tgt=nobody:-2 -- 1 sh: exit 0",
                "no job nobody",
            ),
            ("-- 0 sh: exit 0", "one process of each program"),
        ] {
            let before = tool.printed().matches("refused").count();
            tool.order(&format!("spawn {wrong}"));
            tool.wait_for_many("refused", before + 1);
            job.running.wait_for(Output::Stderr, why);
        }
        tool.leave();
        job.end();
    }
}

#[test]
fn mpir_proctable_has_ranks_and_no_daemons() {
    let (Some(gdb), Some(library)) = (gdb(), versions().next()) else {
        return;
    };
    for nodes in NODES {
        let job = Job::start(library.clone(), nodes);
        let mut tool = Debugger::attach(&job);
        let daemon = library.dir.join("pmix_daemon");
        let wants = format!(
            "pmix.debugger pmix.dbg.tgt={}:-2 pmix.dbg.dpnd=#1",
            job.nspace()
        );
        let hosts = nodes.len().max(1);
        let daemons = tool.spawns(&format!("{wants} -- 0 {}", daemon.display()));
        lines(&tool, &daemons, hosts);
        // Ranks behind the daemons.
        tool.spawns("pmix.fwd.stdin pmix.mapby=node -- 1 cat");
        let pid = job.running.pid().to_string();
        let look = Run::command(&gdb).more(["-p", &pid]).deadline(PATIENCE);
        let outcome = look.run().expect(0);
        let table = shown(&outcome).remove(0);
        let numbers: Vec<u32> = table.iter().map(|row| number(row, "process")).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4], "{outcome:?}");
        let programs: Vec<&str> = table
            .iter()
            .map(|row| field(row, "executable").unwrap())
            .collect();
        assert!(
            programs[..4]
                .iter()
                .all(|path| path.ends_with("/pmix_client")),
            "{table:?}"
        );
        assert!(programs[4].ends_with("/cat"), "{table:?}");
        tool.kill();
        job.end();
    }
}
