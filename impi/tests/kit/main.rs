//! The conformance kit on our own parts.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

mod faults;
mod servers;

use std::fs;
use std::process::{Command, Output, Stdio};

use wireup_test_support::Owned;

const IMPI: &str = env!("CARGO_BIN_EXE_wireup-impi");

/// Two processes of the check program.
const TWO: &str = r#"for rank in 0 1; do PMI_RANK=$rank "$0" play "$@" & all="$all $!"; done
    for one in $all; do wait $one || exit 1; done"#;

fn impi(arguments: &[&str]) -> Output {
    let mut command = Command::new(IMPI);
    command
        .args(arguments)
        .env_remove("IMPI_AUTH_KEY")
        .env_remove("WIREUP_IMPI_TOKEN");
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

#[test]
fn check_client_passes_for_wireup_client() {
    let agent = [
        IMPI, "agent", "{server}", "--client", "{client}", "-n", "2", "--",
    ];
    for client in ["0", "2"] {
        let options = ["check-client", "--clients", "3", "--client", client, "--"];
        let output = impi(&[&options[..], &agent, &["bash", "-c", TWO, IMPI]].concat());
        let stdout = text(&output.stdout);
        assert!(output.status.success(), "{stdout}{}", text(&output.stderr));
        assert!(!stdout.contains("not ok"), "{stdout}");
        for rule in [
            "LongSum [3.7.2]",
            "Window [3.6]",
            "CancelReply [3.7.4]",
            "FiniAfterChannels [2.4]",
            "the check program: probe",
            "the check program: cancel",
            "the check program: gather",
            "the check program: alltoall",
            "the check program: gatherv",
            "the check program: scatterv",
            "the check program: allgatherv",
            "the check program: alltoallv",
            "the check program: scan",
        ] {
            let line = stdout.lines().find(|line| line.contains(rule)).unwrap();
            assert!(line.starts_with("ok") && !line.contains("SKIP"), "{line}");
        }
    }
}

#[test]
fn check_client_fails_for_processes_with_other_role() {
    let agent = [
        IMPI, "agent", "{server}", "--client", "{client}", "-n", "2", "--",
    ];
    let words = [
        &["check-client", "--timeout", "20", "--"][..],
        &agent,
        &["false"],
    ]
    .concat();
    let output = impi(&words);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.contains("not ok 1 - the check program"), "{stdout}");
}

#[test]
fn check_client_names_part_that_client_does_not_pass() {
    let agent = [
        IMPI, "agent", "{server}", "--client", "{client}", "-n", "2", "--",
    ];
    let program = ["bash", "-c", TWO, IMPI, "--no-probe", "--no-gather"];
    // With the program of the client without probe and gather, the kit waits for a message to probe.
    let options = ["check-client", "--timeout", "5", "--"];
    let words = [&options[..], &agent, &program].concat();
    let output = impi(&words);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    for line in [
        "ok 4 - the check program: synchronous send",
        "not ok 5 - the check program: probe\n# 0 of 2 processes of the kit have passed",
        "ok 6 - the check program: cancel # SKIP probe has not passed",
    ] {
        assert!(stdout.contains(line), "{stdout}");
    }
    let options = ["check-client", "--no-probe", "--no-gather", "--"];
    let output = impi(&[&options[..], &agent, &program].concat());
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", text(&output.stderr));
    for part in ["probe", "cancel", "gather", "alltoallv", "scan"] {
        let line = format!("the check program: {part} # SKIP left out");
        assert!(stdout.contains(&line), "{stdout}");
    }
}

#[test]
fn check_client_passes_at_ipv6() {
    let agent = [
        IMPI, "agent", "{server}", "--client", "{client}", "-n", "2", "--",
    ];
    let options = ["check-client", "--address", "::1", "--"];
    let output = impi(&[&options[..], &agent, &["bash", "-c", TWO, IMPI]].concat());
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", text(&output.stderr));
    assert!(!stdout.contains("not ok"), "{stdout}");
}

#[test]
fn job_through_proxy_is_recorded_and_explained() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("job.impi");
    let start = |arguments: &[&str]| {
        let mut command = Command::new(IMPI);
        command.args(arguments).env("IMPI_AUTH_KEY", "77");
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        Owned(command.spawn().unwrap())
    };
    let mut server = start(&["server", "2", "--address", "127.0.0.1"]);
    let address = server.first_line();
    let mut proxy = start(&["proxy", &address, "--record", record.to_str().unwrap()]);
    let front = proxy.first_line();
    let clients = ["0", "1"].map(|client| {
        let agent = ["agent", &front, "--client", client, "-n", "2", "--"];
        start(&[&agent[..], &["bash", "-c", TWO, IMPI]].concat())
    });
    for client in clients {
        assert_eq!(client.end(), Some(0));
    }
    assert_eq!(server.end(), Some(0));
    assert_eq!(proxy.end(), Some(0));
    let output = impi(&["decode", "--program", record.to_str().unwrap()]);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}");
    assert!(
        !stdout.contains("violation") && !stdout.contains("finding"),
        "{stdout}"
    );
    for words in [
        "[2.3.3] the server chooses IMPI_AUTH_KEY",
        "[2.3.8] the host that connects is host 1",
        "[3.7.2] DATASYNC 0 -> 2: 65536 of 1048576 bytes, tag 12",
        "[3.8] FINI",
        "[2.3.7] FINI: client 1 has finished",
    ] {
        assert!(stdout.contains(words), "{words}: {stdout}");
    }
    // A packet of a type that no version has: the first with 64 KiB, which may be recorded together with what was sent before.
    let lines = fs::read_to_string(&record).unwrap();
    let broken = lines.replacen("0000000100010000", "0000000900010000", 1);
    assert_ne!(lines, broken);
    fs::write(&record, broken).unwrap();
    let output = impi(&["decode", "--findings", record.to_str().unwrap()]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.starts_with("violation PacketType [3.5]"), "{stdout}");
}

#[test]
fn invalid_record_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let name = file.to_str().unwrap();
    let cut = "wireup-impi-record 1\n0.1 0 open server\n0.2 0 > 415";
    for (content, why) in [
        (&b"\xff\xfe\n"[..], "valid UTF-8"),
        (b"", "its first line must be"),
        (cut.as_bytes(), "invalid line of a record"),
    ] {
        fs::write(&file, content).unwrap();
        let output = impi(&["decode", name]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let begin = format!("wireup impi: {name}: ");
        assert!(
            stderr.starts_with(&begin) && stderr.contains(why),
            "{stderr}"
        );
    }
}

#[test]
fn check_program_is_printed() {
    let output = impi(&["check-client", "--print-program"]);
    assert!(text(&output.stdout).contains("MPI_Finalize();"));
}
