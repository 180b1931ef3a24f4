//! Runs on a terminal of their own, below an interactive shell where job control matters.

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::common::{Output, Process, Run, Running, eventually, mpi, process, program};
use crate::virtual_nodes::node;

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

const PROMPT: &str = "prompt> ";

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_Z: &str = "\x1a";
const CTRL_BACKSLASH: &str = "\x1c";

/// An interactive shell whose prompt is known, and which shows nothing that is typed.
fn shell() -> Running {
    let run = Run::command(["bash", "--norc", "--noprofile", "--noediting", "-i"])
        .env("PS1", PROMPT)
        .env("HISTFILE", "")
        .terminal();
    let running = run.start();
    running.wait_for(Output::Stdout, PROMPT);
    without_echo(&running);
    running
}

/// Turns the echo off, so that only the output of programs is seen.
fn without_echo(running: &Running) {
    let mut modes = tcgetattr(running.terminal()).unwrap();
    modes.local_modes.remove(LocalModes::ECHO);
    tcsetattr(running.terminal(), OptionalActions::Now, &modes).unwrap();
}

/// The processes of a run that have a name.
fn named(running: &Running, name: &str) -> Vec<Process> {
    let mut all = running.processes();
    all.retain(|process| process.name == name);
    all
}

/// Waits until `count` processes have this name and all of them this state.
#[track_caller]
fn all_are(running: &Running, name: &str, count: usize, state: fn(char) -> bool) {
    eventually(&format!("{count} {name} in the state expected"), || {
        let found = named(running, name);
        (found.len() == count && found.iter().all(|p| state(p.state))).then_some(())
    });
}

fn stopped(state: char) -> bool {
    state == 'T'
}

fn going_on(state: char) -> bool {
    state != 'T' && state != 'Z'
}

/// Ends the shell, once it has shown that many prompts in all, and looks at what is left. What is
/// typed earlier may still go to a rank.
#[track_caller]
fn leave(mut shell: Running, prompts: usize) {
    shell.wait_for_many(Output::Stdout, PROMPT, prompts);
    shell.type_text("exit\n");
    shell.finish();
}

#[test]
fn typed_input_reaches_rank_0() {
    let script = "[ $WIREUP_RANK = 0 ] || exit 0; read x; read y; echo \"got $x, $y\"";
    let mut running = Run::ranks(3, ["sh", "-c", script]).terminal().start();
    running.type_text("one\n");
    running.type_text("two\n");
    running.wait_for(Output::Stdout, "got one, two");
    running.finish().expect(0);
}

#[test]
fn end_of_input_at_terminal_is_end_for_rank() {
    let mut running = Run::ranks(2, ["--stdin", "1", "cat"]).terminal().start();
    without_echo(&running);
    running.type_text("line\n");
    running.wait_for(Output::Stdout, "line\r\n");
    running.type_text(CTRL_D);
    assert_eq!(running.finish().expect(0).out().matches("line").count(), 1);
}

#[test]
fn input_unread_by_ranks_is_left_for_shell() {
    let mut shell = shell();
    shell.type_text(&format!("{WIREUP} run -n 1 true; echo over\n"));
    shell.wait_for(Output::Stdout, "over\r\n");
    shell.type_text(&format!(
        "{WIREUP} run --stdin none -n 1 sh -c 'echo runs; sleep 0.2'\n"
    ));
    shell.wait_for(Output::Stdout, "runs\r\n");
    shell.type_text("echo typed ahead\n");
    shell.wait_for(Output::Stdout, "typed ahead\r\n");
    leave(shell, 4);
}

#[test]
fn ctrl_c_reaches_ranks() {
    let Some(sigreport) = program("sigreport") else {
        return;
    };
    let mut running = Run::ranks(3, [sigreport]).terminal().start();
    running.wait_for_many(Output::Stdout, "ready", 3);
    running.type_text(CTRL_C);
    running.wait_for_many(Output::Stdout, "signal=INT", 3);
    running.wait_for(Output::Stdout, "interrupt again to end them");
    running.type_text(CTRL_C);
    running.wait_for_many(Output::Stdout, "signal=TERM", 3);
    running.finish().expect(130);
}

#[test]
fn ctrl_c_ends_ordinary_programs_at_once() {
    let mut running = Run::ranks(2, ["sh", "-c", "echo ready; exec sleep 1000"])
        .terminal()
        .start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    running.type_text(CTRL_C);
    let outcome = running.finish().expect(130);
    assert!(outcome.out().contains("wireup: interrupted"), "{outcome:?}");
}

#[test]
fn ctrl_backslash_is_sigquit() {
    let script = "ulimit -c 0; echo ready; exec sleep 1000";
    let mut running = Run::ranks(2, ["sh", "-c", script]).terminal().start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    running.type_text(CTRL_BACKSLASH);
    running.finish().expect(131);
}

#[test]
fn closed_terminal_ends_job() {
    let script = "echo ready; exec sleep 1000";
    let mut running = Run::ranks(2, ["sh", "-c", script]).terminal().start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    running.close_terminal();
    running.finish().expect(129);
}

#[test]
fn ctrl_z_stops_ranks_and_wireup_and_fg_continues_them() {
    let mut shell = shell();
    shell.type_text(&format!(
        "{WIREUP} run --oversubscribe -n 2 sh -c 'echo ready; read x; echo got $x; exec sleep 1000'\n"
    ));
    shell.wait_for_many(Output::Stdout, "ready\r\n", 2);
    // Rank 1 reads no terminal.
    all_are(&shell, "sleep", 1, going_on);
    shell.type_text(CTRL_Z);
    shell.wait_for(Output::Stdout, "Stopped");
    all_are(&shell, "sh", 1, stopped);
    all_are(&shell, "wireup", 1, stopped);
    // The shell reads the terminal now, and no rank.
    shell.type_text("echo the shell\n");
    shell.wait_for(Output::Stdout, "the shell\r\n");
    shell.type_text("fg\n");
    all_are(&shell, "wireup", 1, going_on);
    all_are(&shell, "sh", 1, going_on);
    shell.type_text("again\n");
    shell.wait_for(Output::Stdout, "got again\r\n");
    shell.type_text(CTRL_C);
    shell.wait_for_many(Output::Stdout, PROMPT, 4);
    shell.type_text("echo code=$?\n");
    shell.wait_for(Output::Stdout, "code=130\r\n");
    leave(shell, 5);
}

#[test]
fn stopped_job_can_continue_in_background() {
    let mut shell = shell();
    let script = "echo ready; while [ ! -e go ]; do sleep 0.05; done; echo done";
    shell.type_text(&format!(
        "{WIREUP} run --oversubscribe -n 2 sh -c '{script}'\n"
    ));
    shell.wait_for_many(Output::Stdout, "ready\r\n", 2);
    shell.type_text(CTRL_Z);
    shell.wait_for(Output::Stdout, "Stopped");
    all_are(&shell, "wireup", 1, stopped);
    shell.type_text("bg\n");
    all_are(&shell, "wireup", 1, going_on);
    shell.type_text(": >go\n");
    shell.wait_for_many(Output::Stdout, "done\r\n", 2);
    shell.type_text("wait; echo code=$?\n");
    shell.wait_for(Output::Stdout, "code=0\r\n");
    leave(shell, 5);
}

/// Has the shell list its jobs until it shows a stop, which the kernel shows earlier. Before that, `fg` continues no
/// job. The shell has printed `prompts` prompts; returns the number of the lists.
fn list_jobs_until_stopped(shell: &mut Running, prompts: usize) -> usize {
    let mut list_count = 0;
    eventually("the shell knows of the stop", || {
        shell.type_text("jobs -l\n");
        list_count += 1;
        shell.wait_for_many(Output::Stdout, PROMPT, prompts + list_count);
        let out = shell.so_far(Output::Stdout);
        String::from_utf8_lossy(&out)
            .contains("Stopped (tty input)")
            .then_some(list_count)
    })
}

#[test]
fn background_job_stops_only_when_rank_reads_terminal() {
    let mut shell = shell();
    // Rank 0 may read the terminal, and does so only on request.
    let script = "echo ready; while [ ! -e go ]; do sleep 0.05; done; read x; echo \"got $x\"";
    shell.type_text(&format!(
        "{WIREUP} run --oversubscribe -n 2 sh -c '{script}' &\n"
    ));
    shell.wait_for_many(Output::Stdout, "ready\r\n", 2);
    let wireup = eventually("wireup runs", || named(&shell, "wireup").pop());
    // What is typed belongs to the shell.
    for number in 0..5 {
        shell.type_text(&format!("echo $((1000 + {number}))\n"));
        shell.wait_for(Output::Stdout, &format!("{}\r\n", 1000 + number));
    }
    assert!(process(wireup.pid).is_some_and(|p| going_on(p.state)));
    shell.type_text(": >go\n");
    eventually("it is stopped", || {
        process(wireup.pid).filter(|p| stopped(p.state))
    });
    let command_count = list_jobs_until_stopped(&mut shell, 8);
    shell.type_text("fg\n");
    eventually("it goes on", || {
        process(wireup.pid).filter(|p| going_on(p.state))
    });
    shell.type_text("words\n");
    shell.wait_for(Output::Stdout, "got words\r\n");
    leave(shell, 9 + command_count);
}

#[test]
fn background_job_stops_for_rank_that_waits_only_for_terminal() {
    let select =
        r#"perl -e 'vec($set, 0, 1) = 1; select($set, undef, undef, undef); print <STDIN>'"#;
    // A child of the rank, and one that does not read before there is something.
    for command in ["sh -c 'cat; true'", select] {
        let mut shell = shell();
        shell.type_text(&format!("{WIREUP} run -n 1 {command} &\n"));
        let wireup = eventually("wireup is stopped", || {
            let all = named(&shell, "wireup");
            all.into_iter().find(|process| stopped(process.state))
        });
        let list_count = list_jobs_until_stopped(&mut shell, 2);
        shell.type_text("fg\n");
        eventually("it goes on", || {
            process(wireup.pid).filter(|p| going_on(p.state))
        });
        shell.type_text("words\n");
        shell.type_text(CTRL_D);
        shell.wait_for(Output::Stdout, "words\r\n");
        leave(shell, 3 + list_count);
    }
}

#[test]
fn background_job_without_input_runs_to_end() {
    let mut shell = shell();
    shell.type_text(&format!(
        "{WIREUP} run --oversubscribe -n 3 sh -c 'echo rank=$WIREUP_RANK' & wait $!; echo code=$?\n"
    ));
    shell.wait_for(Output::Stdout, "code=0\r\n");
    let out = String::from_utf8_lossy(&shell.so_far(Output::Stdout)).into_owned();
    for rank in 0..3 {
        assert!(out.contains(&format!("rank={rank}\r\n")), "{out}");
    }
    leave(shell, 2);
}

/// Returns the lines visible on a terminal after all output was written to it.
fn screen(written: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(written).into_owned();
    let after_erasing = |line: &str| {
        let shown = line.rsplit("\r\x1b[K").next().unwrap_or(line);
        shown.trim_end_matches('\r').to_owned()
    };
    text.split('\n').map(after_erasing).collect()
}

#[test]
fn terminal_shows_awaited_rank_and_clears_line() {
    let Some(mpi) = mpi("mpich4") else { return };
    let script = format!(
        "[ $WIREUP_RANK = 1 ] && {{ echo slow=$$; read x; }}; exec {}",
        mpi.program("hello").display()
    );
    let words = ["--stdin", "1", "--pmi", "pmi1", "sh", "-c", &script];
    let mut running = Run::ranks(3, words).terminal().start();
    without_echo(&running);
    let out = running.wait_for(Output::Stdout, "slow=");
    let line = out.lines().find_map(|line| line.strip_prefix("slow="));
    let pid = line.unwrap().trim();
    let text = "wireup: in init: 2 of 3 ranks connected, waiting for rank 1 (";
    let out = running.wait_for_many(Output::Stdout, text, 2);
    assert!(out.contains(&format!("pid {pid})")), "{out}");
    running.type_text("go\n");
    let outcome = running.finish().expect(0);
    let screen = screen(&outcome.stdout);
    assert!(
        !screen.iter().any(|line| line.contains("waiting")),
        "{screen:?}"
    );
    let whole = screen.iter().filter(|line| line.starts_with("hello rank="));
    assert_eq!(whole.count(), 3, "{screen:?}");
}

/// Four ranks on two nodes that meet in a barrier, which rank 3 enters after this command.
fn late_in_the_first_fence(options: &[&str], command: &str) -> Run {
    let script = r#"ask() { printf "$1\n" >&3; read -r reply <&3; }
        ask 'cmd=init pmi_version=1 pmi_subversion=1'
        echo "rank $WIREUP_RANK begins"
        [ $WIREUP_RANK != 3 ] || eval "$LATE"
        ask cmd=barrier_in
        echo "rank $WIREUP_RANK goes on"
        ask cmd=finalize"#;
    let nodes = ["--virtual-nodes", "2", "--pmi", "pmi1", "--stdin", "3"];
    let words = [&nodes[..], options, &["bash", "-c", script]].concat();
    Run::ranks(4, words).env("LATE", command).terminal()
}

#[test]
fn terminal_shows_node_that_is_late_in_first_fence() {
    let mut running = late_in_the_first_fence(&[], "read x").start();
    without_echo(&running);
    let text = format!(
        "wireup: in the first fence: 3 of 4 ranks, waiting for {} (1 rank)",
        node(1)
    );
    running.wait_for_many(Output::Stdout, &text, 2);
    running.type_text("go\n");
    let outcome = running.finish().expect(0);
    let screen = screen(&outcome.stdout);
    assert!(
        !screen.iter().any(|line| line.contains("waiting")),
        "{screen:?}"
    );
    let whole = screen.iter().filter(|line| line.ends_with(" goes on"));
    assert_eq!(whole.count(), 4, "{screen:?}");
}

#[test]
fn progress_is_hidden_on_request() {
    // Longer than anything would be waited for in silence.
    let run = late_in_the_first_fence(&["--no-progress"], "sleep 4.5");
    let outcome = run.run().expect(0);
    assert_eq!(outcome.out().matches(" goes on").count(), 4, "{outcome:?}");
    assert!(!outcome.out().contains("waiting"), "{outcome:?}");
}

#[test]
fn progress_goes_to_log_only_on_request() {
    let Some(mpi) = mpi("mpich4") else { return };
    let script = format!(
        "[ $WIREUP_RANK = 1 ] && read x; exec {}",
        mpi.program("hello").display()
    );
    let words = ["-v", "--stdin", "1", "--pmi", "pmi1", "sh", "-c", &script];
    let mut running = Run::ranks(2, words).stdin_held().start();
    running.wait_for(
        Output::Stderr,
        "wireup: in init: 1 of 2 ranks connected, waiting for rank 1 (",
    );
    drop(running.stdin());
    let outcome = running.finish().expect(0);
    assert!(!outcome.err().contains('\x1b'), "{outcome:?}");
}

#[test]
fn terminal_shows_rank_that_does_not_end() {
    let script = "trap '' TERM INT; echo ready; while :; do sleep 0.05; done";
    let words = ["--grace", "100", "sh", "-c", script];
    let mut running = Run::ranks(2, words).terminal().start();
    running.wait_for_many(Output::Stdout, "ready", 2);
    running.type_text(CTRL_C);
    running.wait_for(Output::Stdout, "interrupt again to end them");
    running.type_text(CTRL_C);
    let out = running.wait_for(
        Output::Stdout,
        "waiting for 2 ranks to end after SIGTERM: rank 0 (",
    );
    assert!(!out.contains("connected"), "{out}");
    running.type_text(CTRL_C);
    let outcome = running.finish().expect(130);
    let screen = screen(&outcome.stdout);
    assert!(
        !screen.iter().any(|line| line.contains("waiting")),
        "{screen:?}"
    );
}

#[test]
fn programs_without_mpi_are_not_awaited() {
    // The time is longer than any wait without a progress line.
    let outcome = Run::ranks(2, ["sleep", "4.5"]).terminal().run().expect(0);
    assert_eq!(outcome.out(), "");
}
