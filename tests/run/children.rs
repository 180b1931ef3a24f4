//! The life of spawned processes: how long their start may take, and what becomes of them when their
//! parents have ended. The spawner is a shell that speaks PMI-1.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Output, Run, Running, eventually, pmix, process};

/// `spawn SCRIPT [KEY VALUE]` starts a shell with that script, and an info if one is given.
const SPAWNER: &str = r#"
    ask() { printf '%s\n' "$1" >&"$PMI_FD"; IFS= read -r reply <&"$PMI_FD"; }
    spawn() {
        info=info_num=0
        [ $# = 1 ] || info=$(printf 'info_num=1\ninfo_key_0=%s\ninfo_val_0=%s' "$2" "$3")
        ask "$(printf '%s\n' mcmd=spawn nprocs=1 execname=bash totspawns=1 spawnssofar=1 argcnt=2 \
            arg1=-c "arg2=$1" "$info" endcmd)"
        echo "$reply"
    }
    ask 'cmd=init pmi_version=1 pmi_subversion=1'
"#;

/// Script of a parent whose child prints that its parents have ended, and waits to be signalled.
const ABANDONED: &str = r#"
    spawn "while [ -d /proc/$$ ]; do sleep 0.01; done; echo alone; \
        until [ -e go ]; do sleep 0.01; done; echo went" "$@"
    ask cmd=finalize
"#;

fn parent(options: &[&str], script: &str, args: &[&str]) -> Running {
    let script = format!("{SPAWNER}{script}");
    let shell = ["bash", "-c", &script, "bash"];
    let words = ["--oversubscribe"]
        .into_iter()
        .chain(options.iter().copied());
    let words = words.chain(shell).chain(args.iter().copied());
    Run::ranks(1, words)
        .deadline(Duration::from_secs(60))
        .start()
}

fn create(run: &Running, name: &str) {
    std::fs::write(run.work().join(name), "").unwrap();
}

#[test]
fn children_end_with_parents_unless_independent() {
    let run = parent(&["--pmi", "pmi1", "--grace", "0.1"], ABANDONED, &[]);
    let outcome = run.finish().expect(0);
    assert!(
        outcome.out().contains("cmd=spawn_result rc=0"),
        "{outcome:?}"
    );
    assert!(!outcome.out().contains("went"), "{outcome:?}");
    assert!(
        outcome.err().contains("would outlive its parent"),
        "{outcome:?}"
    );
    let choices: [(&[&str], &[&str]); 2] = [
        (&["--children", "independent"], &[]),
        (&[], &["PMIX_SPAWN_CHILD_SEP", "true"]),
    ];
    for (options, info) in choices {
        let options = [&["--pmi", "pmi1", "--grace", "0.1"], options].concat();
        let run = parent(&options, ABANDONED, info);
        run.wait_for(Output::Stdout, "alone");
        create(&run, "go");
        let outcome = run.finish().expect(0);
        assert!(outcome.out().contains("went"), "{outcome:?}");
    }
}

#[test]
fn spawn_over_its_timeout_fails_without_leftovers() {
    let Some(pmix) = pmix("pmix4") else { return };
    let library = pmix.library.to_str().unwrap();
    let script = r#"
        echo ready
        until [ -e go ]; do sleep 0.01; done
        spawn 'echo first'
        until [ -e end ]; do sleep 0.01; done
        spawn 'echo second'
        ask cmd=finalize
    "#;
    let options = ["--pmi", "all", "--libpmix", library, "--spawn-timeout", "4"];
    let run = parent(&options, script, &[]);
    run.wait_for(Output::Stdout, "ready");
    let processes = run.processes();
    let server = processes.iter().find(|p| p.name.starts_with("wireup-pmix"));
    let pid = server.expect("a PMIx server").pid;
    let server = Pid::from_raw(pid).unwrap();
    kill_process(server, Signal::STOP).unwrap();
    eventually("it is stopped", || process(pid).filter(|p| p.state == 'T'));
    create(&run, "go");
    run.wait_for(Output::Stdout, "cmd=spawn_result rc=-1");
    kill_process(server, Signal::CONT).unwrap();
    create(&run, "end");
    let outcome = run.finish().expect(0);
    assert!(!outcome.out().contains("first"), "{outcome:?}");
    assert!(outcome.out().contains("second"), "{outcome:?}");
    let why = "rank 0 cannot spawn: not all processes were started within the 4 s allowed";
    assert!(outcome.err().contains(why), "{outcome:?}");
}
