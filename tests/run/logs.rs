//! Texts that ranks have logged through PMIx: on one node and on two.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::common::{Outcome, Pmix, pmix, skip};
use crate::pmix::SERVERS;

/// One node, and two.
const NODES: [&[&str]; 2] = [&[], &["--virtual-nodes", "2"]];

/// Every libpmix that is here, as server and as client.
fn versions() -> impl Iterator<Item = Pmix> {
    SERVERS.iter().filter_map(|(name, _)| pmix(name))
}

/// Runs a mode of `pmix_log` with each libpmix, on one node and on two.
fn everywhere(options: &[&str], mode: &str, check: impl Fn(&Outcome)) {
    for client in versions() {
        for nodes in NODES {
            let options = [&["--libpmix", client.path()], options, nodes].concat();
            let outcome = client.run(4, &options, "pmix_log", &[mode]).run();
            check(&outcome.expect(0));
        }
    }
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

const OF_ALL: [&str; 4] = ["rank 0", "rank 1", "rank 2", "rank 3"];

#[test]
fn texts_of_all_ranks_go_to_named_channels() {
    everywhere(&[], "plain", |outcome| {
        assert_eq!(sorted(&outcome.out()), OF_ALL);
        assert_eq!(sorted(&outcome.err()), OF_ALL);
    });
}

#[test]
fn log_once_text_is_printed_once_in_first_channel() {
    everywhere(&[], "once", |outcome| {
        assert_eq!(outcome.err(), "the same\n");
        assert_eq!(outcome.out(), "");
    });
}

#[test]
fn equal_texts_are_merged_per_channel_on_request() {
    everywhere(&[], "agg", |outcome| {
        assert_eq!(outcome.err(), "the same\n");
        assert_eq!(outcome.out(), "the same\n");
    });
}

#[test]
fn status_stream_names_rank_of_log_text() {
    everywhere(&["--json", "-"], "record", |outcome| {
        let out = outcome.out();
        let lines = out
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let mut texts: Vec<String> = lines
            .filter(|line| line["event"] == "log")
            .map(|line| format!("{}: {}", line["rank"], line["text"].as_str().unwrap()))
            .collect();
        texts.sort_unstable();
        let expected = [0, 1, 2, 3].map(|rank| format!("{rank}: rank {rank}\n"));
        assert_eq!(texts, expected);
    });
    // Without a reader there is no record, and the texts are shown all the same.
    everywhere(&[], "record", |outcome| {
        assert_eq!(sorted(&outcome.err()), OF_ALL);
    });
}

#[test]
fn unknown_log_channel_is_refused_and_others_are_used() {
    everywhere(&[], "mail", |outcome| {
        assert_eq!(sorted(&outcome.err()), OF_ALL);
    });
}

#[test]
fn channel_and_time_of_log_text_are_printed_on_request() {
    everywhere(&[], "marked", |outcome| {
        let texts =
            |channel| OF_ALL.map(|text| format!("1970-01-02T00:00:00.000Z [{channel}] {text}"));
        assert_eq!(sorted(&outcome.out()), texts("stdout"));
        assert_eq!(sorted(&outcome.err()), texts("stderr"));
    });
}

#[test]
fn unknown_log_priority_is_refused() {
    everywhere(&[], "wrong", |outcome| assert_eq!(outcome.err(), ""));
}

/// Gives a command a `/dev` of its own, with all that programs look for and the socket `$0/log`.
const DEV: &str = r#"
set -e
mkdir "$0/dev"
mount -t tmpfs -o mode=755 none "$0/dev"
for name in null zero full random urandom tty log; do touch "$0/dev/$name"; done
for name in null zero full random urandom tty; do mount --bind "/dev/$name" "$0/dev/$name"; done
mkdir "$0/dev/pts" "$0/dev/shm"
mount --rbind /dev/pts "$0/dev/pts"
mount --rbind /dev/shm "$0/dev/shm"
ln -s pts/ptmx "$0/dev/ptmx"
ln -s /proc/self/fd "$0/dev/fd"
if [ -S "$0/log" ]; then mount --bind "$0/log" "$0/dev/log"; else rm "$0/dev/log"; fi
mount --move "$0/dev" /dev
exec "$@""#;

/// Runs a mode of `pmix_log` with each libpmix, on one node and on two; with the lines that a
/// daemon which reads the system's log gets, unless there is `no_daemon`.
fn with_a_log(no_daemon: bool, mode: &str, check: impl Fn(&Outcome, Vec<String>)) {
    if !rustix::process::getuid().is_root() {
        return skip("a log of the system: mounts one, which needs root");
    }
    for client in versions() {
        for nodes in NODES {
            let dir = tempfile::tempdir().unwrap();
            let log = UnixDatagram::bind(dir.path().join("log")).unwrap();
            log.set_read_timeout(Some(Duration::from_millis(1)))
                .unwrap();
            if no_daemon {
                std::fs::remove_file(dir.path().join("log")).unwrap();
            }
            let options = [&["--libpmix", client.path()], nodes].concat();
            let run = client.run(4, &options, "pmix_log", &[mode]);
            let prefix = [
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                DEV,
            ];
            let prefix = prefix.into_iter().chain(dir.path().to_str());
            let outcome = run.under(prefix).env("TZ", "UTC").run().expect(0);
            // Everything was sent before the run ended.
            let mut lines = Vec::new();
            let mut buffer = [0; 8192];
            while let Ok(len) = log.recv(&mut buffer) {
                lines.push(String::from_utf8(buffer[..len].to_vec()).unwrap());
            }
            lines.sort_unstable();
            check(&outcome, lines);
        }
    }
}

/// Returns the text before and after the launcher's process id.
fn around_pid(line: &str) -> (&str, &str) {
    let (before, rest) = line.split_once(" wireup[").unwrap();
    let (pid, behind) = rest.split_once("]: ").unwrap();
    pid.parse::<u32>().unwrap();
    (before, behind)
}

#[test]
fn host_log_has_text_once_with_rank_and_priority() {
    with_a_log(false, "local", |outcome, lines| {
        assert_eq!(lines.len(), 4, "{lines:?}");
        for line in &lines {
            let (head, message) = around_pid(line);
            assert!(head.starts_with("<11>"), "{line}");
            // `rank 3 of JOB: rank 3`
            assert_eq!(
                message.split_once(" of ").unwrap().0,
                message.rsplit_once(": ").unwrap().1
            );
        }
        assert_eq!(outcome.err(), "");
    });
}

#[test]
fn system_log_has_text_with_given_priority_and_time() {
    with_a_log(false, "global", |outcome, lines| {
        let (with, without): (Vec<_>, Vec<_>) = lines
            .iter()
            .map(|line| around_pid(line))
            .partition(|(head, _)| *head == "<84>Jan  2 00:00:00");
        assert_eq!((with.len(), without.len()), (4, 4), "{lines:?}");
        assert!(
            without.iter().all(|(head, _)| head.starts_with("<11>")),
            "{lines:?}"
        );
        assert_eq!(outcome.err(), "");
    });
}

#[test]
fn log_once_text_is_in_system_log_once_and_nowhere_else() {
    with_a_log(false, "system", |outcome, lines| {
        assert!(
            matches!(&lines[..], [line] if line.ends_with(": the same")),
            "{lines:?}"
        );
        assert_eq!(outcome.err(), "");
    });
}

#[test]
fn missing_system_log_is_warned_once_and_job_continues() {
    with_a_log(true, "local", |outcome, _| {
        outcome.expect_one_line(&[
            "warning: ",
            "cannot write a text of ",
            "to the system's log (/dev/log): No such file",
        ]);
    });
}
