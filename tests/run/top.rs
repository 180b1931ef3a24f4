//! `wireup top`: what the ranks of a job do and use.

use std::process::Command;

use rustix::process::Signal;
use rustix::termios::{Winsize, tcsetwinsize};

use crate::common::{Output, Run, Running, eventually};
use crate::virtual_nodes::node;

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

/// Four ranks on two nodes: rank 1 computes, rank 2 prints without end, and all but rank 3 wait in a barrier or are on their
/// way to it.
const SCRIPT: &str = r#"ask() { printf "$1\n" >&3; read -r reply <&3; }
    ask 'cmd=init pmi_version=1 pmi_subversion=1'
    echo ready >&2
    case $WIREUP_RANK in
        0) ask cmd=barrier_in;;
        1) while :; do :; done;;
        2) while :; do echo 0123456789; sleep 0.02; done;;
        3) sleep 1000;;
    esac"#;

/// The job under way, when all its ranks run.
fn started() -> Running {
    let options = ["--virtual-nodes", "2", "--pmi", "pmi1", "--oversubscribe"];
    let words = [&options[..], &["bash", "-c", SCRIPT]].concat();
    let running = Run::ranks(4, words).start();
    running.wait_for_many(Output::Stderr, "ready", 4);
    running
}

fn end(running: Running) {
    running.signal(Signal::TERM);
    running.finish();
}

fn top(running: &Running, words: &[&str]) -> String {
    let pid = running.pid().to_string();
    let mut command = Command::new(WIREUP);
    let output = command.args(["top", &pid]).args(words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The cells of a table's line that begins with this.
fn line<'t>(table: &'t str, first: &str) -> Vec<&'t str> {
    let mut lines = table.lines().map(|line| line.split_whitespace().collect());
    lines
        .find(|line: &Vec<&str>| line.first() == Some(&first))
        .unwrap_or_else(|| panic!("no line of {first} in\n{table}"))
}

#[test]
fn top_shows_ranks_that_compute_print_and_wait() {
    let running = started();
    let table = eventually("a rank in the barrier", || {
        let table = top(&running, &[]);
        table.contains("1 wait in a fence").then_some(table)
    });
    assert!(table.contains(": 4 of 4 ranks run on 2 hosts"), "{table}");
    let cpu = |rank| line(&table, rank)[4].parse::<u32>().unwrap();
    assert!(cpu("1") > cpu("3"), "{table}");
    assert!(
        table.lines().any(|line| line.contains("pmi_barrier 0 of ")),
        "{table}"
    );
    assert_eq!(line(&table, "0")[1], node(0));
    assert_eq!(line(&table, "3")[1], node(1));
    let hosts = top(&running, &["--hosts", "--sort", "host"]);
    assert_eq!(line(&hosts, &node(0))[1], "2", "{hosts}");
    // On a busy host, rank 2 may print nothing for the time of one table.
    eventually("the rank that prints comes first", || {
        let sorted = top(&running, &["--sort", "output"]);
        let first = sorted.lines().nth(2).unwrap().trim_start();
        first.starts_with("2 ").then_some(())
    });
    let missing = Command::new(WIREUP).args(["top", "0123abc"]).output();
    assert_eq!(missing.unwrap().status.code(), Some(1));
    end(running);
}

#[test]
fn tables_follow_each_other_until_job_ends() {
    let running = Run::ranks(2, ["sh", "-c", "echo ready; exec sleep 1000"]).start();
    running.wait_for(Output::Stdout, "ready");
    let pid = running.pid().to_string();
    let words = [WIREUP, "top", &pid, "--interval", "0.2"];
    let watching = Run::command(words).start();
    watching.wait_for_many(Output::Stdout, "2 of 2 ranks run on 1 host,", 3);
    end(running);
    watching.finish().expect(0);
}

#[test]
fn top_on_terminal_refreshes_and_obeys_keys() {
    let running = started();
    let pid = running.pid().to_string();
    let words = [WIREUP, "top", &pid, "--interval", "0.3"];
    let mut screen = Run::command(words).terminal().start();
    let size = Winsize {
        ws_row: 24,
        ws_col: 140,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(screen.terminal(), size).unwrap();
    screen.wait_for(Output::Stdout, "4 of 4 ranks run on 2 hosts");
    screen.wait_for(Output::Stdout, "quit");
    screen.type_text("h");
    screen.wait_for(Output::Stdout, "FENCE");
    screen.type_text("h");
    screen.type_text("c");
    screen.type_text("q");
    let outcome = screen.finish().expect(0);
    // The screen of before comes back.
    assert!(outcome.out().contains("\u{1b}[?1049l"), "{outcome:?}");
    end(running);
}
