//! A rank with a terminal of its own: below a terminal of the test's, below a shell with job
//! control, and without any.

use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{
    LocalModes, OptionalActions, OutputModes, Termios, Winsize, tcgetattr, tcsetattr, tcsetwinsize,
};

use crate::common::{DEADLINE, Output, Process, Run, Running, eventually};

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

const PROMPT: &str = "prompt> ";
/// Prompt of the shell that is a rank.
const INNER: &str = "inner> ";

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_Z: &str = "\x1a";

/// Runs on a terminal, rank 0 having one of its own.
fn on_terminal(ranks: u32, script: &str) -> Running {
    let args = ["--pty", "0", "sh", "-c", script];
    Run::ranks(ranks, args).terminal().start()
}

fn modes(running: &Running) -> Termios {
    tcgetattr(running.terminal()).unwrap()
}

fn is_raw(running: &Running) -> bool {
    let modes = modes(running);
    let cooked = LocalModes::ICANON | LocalModes::ISIG | LocalModes::ECHO;
    !modes.local_modes.intersects(cooked) && !modes.output_modes.contains(OutputModes::OPOST)
}

#[track_caller]
fn wait_raw(running: &Running) {
    eventually("the terminal is raw", || is_raw(running).then_some(()));
}

/// The processes of a run that have a name.
fn named(running: &Running, name: &str) -> Vec<Process> {
    let mut all = running.processes();
    all.retain(|process| process.name == name);
    all
}

/// The wireup that a shell has started; its guard has the same name at first.
fn wireup_below(shell: &Running) -> Pid {
    let mut all = named(shell, "wireup");
    all.retain(|process| process.parent == shell.pid());
    Pid::from_raw(all[0].pid).unwrap()
}

#[test]
fn rank_leads_foreground_session_on_pty_of_same_size() {
    let script = "[ $WIREUP_RANK = 0 ] || { tty; exit 0; }; read go; tty; stty size; \
                  ps -o pid=,sid=,tpgid= $$; echo err >&2; test -t 0 -a -t 1 -a -t 2 && echo three";
    let mut running = on_terminal(2, script);
    let size = Winsize {
        ws_row: 33,
        ws_col: 44,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    wait_raw(&running);
    tcsetwinsize(running.terminal(), size).unwrap();
    // The system notifies wireup, and wireup the rank; a line is typed after that has happened.
    eventually("the size arrives", || {
        let rank = named(&running, "sh").pop()?;
        let stty = ["-F", &format!("/proc/{}/fd/0", rank.pid), "size"];
        let out = std::process::Command::new("stty")
            .args(stty)
            .output()
            .unwrap();
        (out.stdout == b"33 44\n").then_some(())
    });
    running.type_text("go\r");
    let outcome = running.finish().expect(0);
    let out = outcome.out();
    assert!(
        out.contains("not a tty\r\n"),
        "the other rank has none: {out}"
    );
    assert!(out.contains("/dev/pts/"), "{out}");
    assert!(out.contains("33 44\r\n"), "{out}");
    let numbers = out.lines().find_map(|line| {
        let words: Vec<i32> = line
            .split_whitespace()
            .filter_map(|w| w.parse().ok())
            .collect();
        (words.len() == 3).then_some(words)
    });
    let numbers = numbers.unwrap();
    assert!(numbers.iter().all(|number| *number == numbers[0]), "{out}");
    assert!(
        out.contains("err\r\n") && out.contains("three\r\n"),
        "{out}"
    );
}

#[test]
fn change_of_terminal_size_signals_rank() {
    let script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut running = on_terminal(1, script);
    running.wait_for(Output::Stdout, "ready\r");
    for rows in [20, 21] {
        let size = Winsize {
            ws_row: rows,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(running.terminal(), size).unwrap();
        running.wait_for(Output::Stdout, &format!("{rows} 80\r\n"));
    }
    running.type_text(CTRL_C);
    running.finish().expect(130);
}

#[test]
fn ctrl_c_reaches_rank_and_not_job() {
    let script = "[ $WIREUP_RANK = 0 ] || { while [ ! -e go ]; do sleep 0.05; done; exit; }; \
                  trap 'echo caught' INT; echo ready; while [ ! -e go ]; do sleep 0.05; done; \
                  exit 0";
    let run = Run::ranks(2, ["--pty", "0", "sh", "-c", script]).terminal();
    let go = run.dir().join("go");
    let mut running = run.start();
    running.wait_for(Output::Stdout, "ready\r");
    wait_raw(&running);
    for count in 1..=3 {
        running.type_text(CTRL_C);
        running.wait_for_many(Output::Stdout, "caught\r\n", count);
    }
    running.type_text("x");
    running.wait_for(Output::Stdout, "x");
    std::fs::write(go, "").unwrap();
    let outcome = running.finish().expect(0);
    assert!(!outcome.out().contains("wireup:"), "{outcome:?}");
}

#[test]
fn program_without_handlers_ends_by_ctrl_c() {
    let before_after = |script: &str, code: i32| {
        let mut running = on_terminal(2, script);
        running.wait_for(Output::Stdout, "ready\r");
        wait_raw(&running);
        running.type_text(CTRL_C);
        let outcome = running.finish().expect(code);
        assert!(outcome.out().contains("wireup: rank 0 "), "{outcome:?}");
    };
    let script = "[ $WIREUP_RANK = 0 ] && echo ready; exec sleep 1000";
    before_after(script, 130);
}

/// Runs a script as the only rank, on the terminal of a shell that outlives wireup; has it ended,
/// and fails unless the terminal is then what it was. The code is as the shell sees it.
#[track_caller]
fn left_as_found(script: &str, end: impl Fn(&mut Running, Pid), code: i32) {
    let shell = format!(
        "stty -ixon -echoe intr ^X; echo modes=$(stty -g); \
         {WIREUP} run -n 1 --pty 0 sh -c '{script}'; echo code=$?; \
         while stty -a | grep -q -e -icanon; do sleep 0.02; done; echo modes=$(stty -g)"
    );
    let run = Run::command(["sh", "-c", &shell]).terminal();
    let mut running = run.clean_within(DEADLINE).start();
    running.wait_for(Output::Stdout, "ready\r");
    wait_raw(&running);
    let wireup = wireup_below(&running);
    end(&mut running, wireup);
    let out = running.finish().expect(0).out();
    assert!(out.contains(&format!("code={code}")), "{out}");
    let modes = out.lines().filter(|line| line.starts_with("modes="));
    let modes: Vec<&str> = modes.collect();
    assert_eq!(modes.len(), 2, "{out}");
    assert_eq!(modes[0], modes[1], "{out}");
}

#[test]
fn terminal_modes_are_restored_at_every_end() {
    let wait = "echo ready; exec sleep 1000";
    let typed = |running: &mut Running, _| running.type_text("\r");
    left_as_found("echo ready; read x", typed, 0);
    left_as_found("echo ready; read x; kill -9 $$", typed, 137);
    // As typed, the interrupting character is the user's own.
    left_as_found(wait, |running, _| running.type_text("\x18"), 130);
    let signal = |signal| move |_: &mut Running, wireup| kill_process(wireup, signal).unwrap();
    left_as_found(wait, signal(Signal::TERM), 143);
    left_as_found(wait, signal(Signal::HUP), 129);
}

#[test]
fn terminal_modes_are_restored_after_kill_of_wireup() {
    let wait = "echo ready; exec sleep 1000";
    let signal = |signal| move |_: &mut Running, wireup| kill_process(wireup, signal).unwrap();
    left_as_found(wait, signal(Signal::KILL), 137);
    left_as_found(wait, signal(Signal::ABORT), 134);
}

#[test]
fn other_lines_start_in_first_column_and_rank_bytes_are_kept() {
    let script = "if [ $WIREUP_RANK = 0 ]; then stty raw; printf 'a\\nb\\r\\n'; : >printed; \
                  while [ ! -e go ]; do sleep 0.02; done; sleep 0.5; exit; fi; \
                  while [ ! -e printed ]; do sleep 0.02; done; echo one; echo two >&2; : >go";
    let running = Run::ranks(2, ["-l", "--pty", "0", "sh", "-c", script])
        .terminal()
        .start();
    let out = running.finish().expect(0).out();
    assert!(out.contains("a\nb\r\n"), "{out:?}");
    assert!(
        out.contains("[1] one\r\n") && !out.contains("[1] one\r\r\n"),
        "{out:?}"
    );
    assert!(out.contains("[1] two\r\n"), "{out:?}");
    assert!(!out.contains("[0]"), "{out:?}");
}

#[test]
fn ctrl_c_interrupts_job_after_exit_of_rank() {
    let script = "if [ $WIREUP_RANK = 0 ]; then echo ready; read x; exit; fi; exec sleep 1000";
    let mut running = on_terminal(2, script);
    running.wait_for(Output::Stdout, "ready\r");
    wait_raw(&running);
    running.type_text("\r");
    eventually("it is not raw", || (!is_raw(&running)).then_some(()));
    running.type_text(CTRL_C);
    let outcome = running.finish().expect(130);
    assert!(outcome.out().contains("wireup: interrupted"), "{outcome:?}");
}

/// An interactive shell as the only rank, on a terminal.
fn inner_shell() -> Running {
    let args = [
        "-n",
        "1",
        "--grace",
        "1000",
        "--pty",
        "0",
        "-x",
        "PS1=inner> ",
    ];
    let shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"];
    let run = Run::new(args.iter().chain(&shell)).env("HISTFILE", "");
    let running = run.terminal().start();
    running.wait_for(Output::Stdout, INNER);
    running
}

#[test]
fn interactive_shell_has_job_control() {
    let mut running = inner_shell();
    running.type_text("sleep 1000\r");
    eventually("sleep runs", || named(&running, "sleep").pop());
    running.type_text(CTRL_Z);
    running.wait_for(Output::Stdout, "Stopped");
    running.wait_for_many(Output::Stdout, INNER, 2);
    let wireup = named(&running, "wireup");
    assert!(
        wireup.iter().all(|process| process.state != 'T'),
        "{wireup:?}"
    );
    running.type_text("fg\r");
    eventually("it goes on", || {
        named(&running, "sleep")
            .pop()
            .filter(|sleep| sleep.state == 'S')
    });
    running.type_text(CTRL_C);
    running.wait_for_many(Output::Stdout, INNER, 3);
    running.type_text("echo code=$?\r");
    running.wait_for(Output::Stdout, "code=130\r\n");
    running.wait_for_many(Output::Stdout, INNER, 4);
    running.type_text(CTRL_D);
    running.finish().expect(0);
}

#[test]
fn interactive_shell_that_ignores_sigterm_ends_at_once() {
    let running = inner_shell();
    running.signal(Signal::TERM);
    // Long before the grace time is over.
    running.finish().expect(143);
}

#[test]
fn closed_terminal_ends_rank_and_job() {
    let mut running = inner_shell();
    running.close_terminal();
    running.finish().expect(129);
}

/// A shell with job control, in which wireup is started.
fn outer_shell() -> Running {
    let run = Run::command(["bash", "--norc", "--noprofile", "--noediting", "-i"])
        .env("PS1", PROMPT)
        .env("HISTFILE", "")
        .terminal();
    let running = run.start();
    running.wait_for(Output::Stdout, PROMPT);
    let mut modes = tcgetattr(running.terminal()).unwrap();
    modes.local_modes.remove(LocalModes::ECHO);
    tcsetattr(running.terminal(), OptionalActions::Now, &modes).unwrap();
    running
}

const READER: &str = "echo ready; while read x; do echo \"got $x\"; done; echo end";

fn is_cooked(running: &Running) -> bool {
    modes(running)
        .local_modes
        .contains(LocalModes::ICANON | LocalModes::ISIG)
}

#[test]
fn stopped_wireup_returns_terminal_and_takes_it_after_resume() {
    let mut shell = outer_shell();
    shell.type_text(&format!("{WIREUP} run -n 1 --pty 0 sh -c '{READER}'\n"));
    shell.wait_for(Output::Stdout, "ready\r");
    eventually("it is not cooked", || (!is_cooked(&shell)).then_some(()));
    shell.type_text("one\r");
    shell.wait_for(Output::Stdout, "got one\r\n");
    let wireup = wireup_below(&shell);
    for (signal, times) in [(Signal::TSTP, 1), (Signal::STOP, 2)] {
        kill_process(wireup, signal).unwrap();
        shell.wait_for_many(Output::Stdout, "Stopped", times);
        eventually("it is cooked", || is_cooked(&shell).then_some(()));
        shell.type_text("echo $((40 + 2))\n");
        shell.wait_for_many(Output::Stdout, "42\r\n", times);
        shell.type_text("fg\n");
        eventually("it is not cooked", || (!is_cooked(&shell)).then_some(()));
        shell.type_text("more\r");
        shell.wait_for_many(Output::Stdout, "got more\r\n", times);
    }
    shell.type_text(CTRL_D);
    shell.wait_for(Output::Stdout, "end\r");
    eventually("it is cooked", || is_cooked(&shell).then_some(()));
    shell.type_text("echo code=$?\n");
    shell.wait_for(Output::Stdout, "code=0\r\n");
    shell.type_text("exit\n");
    shell.finish();
}

#[test]
fn background_launch_leaves_terminal_alone_until_foreground() {
    let mut shell = outer_shell();
    shell.type_text(&format!("{WIREUP} run -n 1 --pty 0 sh -c '{READER}' &\n"));
    shell.wait_for(Output::Stdout, "ready\r");
    for number in 0..5 {
        shell.type_text(&format!("echo $((1000 + {number}))\n"));
        shell.wait_for(Output::Stdout, &format!("{}\r\n", 1000 + number));
        assert!(is_cooked(&shell));
    }
    shell.type_text("fg\n");
    eventually("it is not cooked", || (!is_cooked(&shell)).then_some(()));
    shell.type_text("words\r");
    shell.wait_for(Output::Stdout, "got words\r\n");
    shell.type_text(CTRL_D);
    shell.wait_for(Output::Stdout, "end\r");
    shell.wait_for_many(Output::Stdout, PROMPT, 8);
    shell.type_text("exit\n");
    shell.finish();
}

#[test]
fn input_without_terminal_is_copied_to_end_without_echo() {
    let script = "cat; echo first; cat; echo second; tty";
    let args = [
        "-n", "1", "--grace", "1000", "--pty", "0", "sh", "-c", script,
    ];
    let outcome = Run::new(args).stdin_bytes("one\ntwo").run();
    let out = outcome.expect_quiet_success().out();
    let start = "one\r\ntwofirst\r\nsecond\r\n/dev/pts/";
    assert!(out.starts_with(start), "{out:?}");
    let lines: String = (0..20000).map(|line| format!("{line}\n")).collect();
    let args = [
        "-n",
        "1",
        "--pty",
        "0",
        "sh",
        "-c",
        "md5sum >&2; exec md5sum",
    ];
    let outcome = Run::new(args).stdin_bytes(lines.clone()).run().expect(0);
    let expected = Run::command(["md5sum"]).stdin_bytes(lines).run().out();
    let sum = expected.split(' ').next().unwrap();
    assert!(outcome.out().starts_with(sum), "{outcome:?}");
    // A shell that reads with an editor, and is slow to start.
    let args = [
        "-n", "1", "--grace", "1000", "--pty", "0", "bash", "--norc", "-i",
    ];
    let outcome = Run::new(args).stdin_bytes("echo $((40 + 2))\n").run();
    let out = outcome.expect_quiet_success().out();
    assert!(out.contains("42\r\n"), "{out:?}");
}

#[test]
fn terminal_input_is_awaited() {
    let args = [
        "-n", "1", "--grace", "1000", "--pty", "0", "sh", "-c", READER,
    ];
    let mut running = Run::new(args).stdin_held().start();
    let mut pipe = running.stdin();
    running.wait_for(Output::Stdout, "ready\r");
    std::io::Write::write_all(&mut pipe, b"line\n").unwrap();
    running.wait_for(Output::Stdout, "got line\r\n");
    assert!(!String::from_utf8_lossy(&running.so_far(Output::Stdout)).contains("end"));
    drop(pipe);
    running.finish().expect_quiet_success();
}

#[test]
fn mistakes_are_refused() {
    let refused = |options: &[&str], words: &str| {
        let args = options.iter().copied().chain(["echo", "ran"]);
        let outcome = Run::ranks(2, args).run().expect(125);
        assert!(outcome.err().contains(words), "{outcome:?}");
        assert!(!outcome.out().contains("ran\n"), "{outcome:?}");
    };
    refused(&["--pty", "2"], "--pty 2: the job has the ranks 0 to 1");
    refused(&["--pty", "x"], "--pty <RANK>");
    refused(&["--pty", "0", "--stdin", "1"], "cannot be used with");
    refused(
        &["--pty", "0", "--json", "-"],
        "--pty 0 uses standard output, to which --json writes",
    );
}
