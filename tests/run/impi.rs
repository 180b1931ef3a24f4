//! `wireup run --impi`: launches as clients of an Interoperable MPI job.

mod demonstration;
mod suites;
mod unchanged;

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread::spawn;

use crate::common::{Owned, Run, mpi};

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

const KEY: (&str, &str) = ("IMPI_AUTH_KEY", "5678");

/// The rendezvous server of that many clients, and its address.
fn server(clients: u32) -> (Owned, String) {
    server_with(clients, &[])
}

fn server_with(clients: u32, options: &[&str]) -> (Owned, String) {
    server_at("127.0.0.1", clients, options)
}

/// Starts the server at an address of this machine.
fn server_at(address: &str, clients: u32, options: &[&str]) -> (Owned, String) {
    let mut command = Command::new(WIREUP);
    command
        .args(["impi", "server", &clients.to_string(), "--address", address])
        .args(options)
        .env(KEY.0, KEY.1);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Owned(command.spawn().unwrap());
    let address = server.first_line();
    (server, address)
}

fn client(server: &str, number: u32, ranks: u32, script: &str) -> Run {
    let option = format!("{server},client={number}");
    let args = ["--oversubscribe", "--impi", &option, "sh", "-c", script];
    Run::ranks(ranks, args).env(KEY.0, KEY.1)
}

#[test]
fn launches_join_one_impi_world_and_ranks_do_not_see_key() {
    let (server, address) = server(2);
    let script = "echo $IMPI_WORLD_FIRST $IMPI_WORLD_SIZE [$IMPI_AUTH_KEY]";
    let first = client(&address, 0, 2, script).start();
    let second = client(&address, 1, 3, script).run().expect_quiet_success();
    let first = first.finish().expect_quiet_success();
    assert_eq!(first.sorted_lines(), ["0 5 []"; 2]);
    assert_eq!(second.sorted_lines(), ["2 5 []"; 3]);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn launches_join_impi_world_at_ipv6() {
    let (server, address) = server_at("::1", 2, &[]);
    assert!(address.starts_with("[::1]:"), "{address}");
    let clients = [0, 1].map(|number| {
        let option = format!("{address},client={number}");
        let run = Run::ranks(2, ["--oversubscribe", "--impi", &option]);
        run.more([WIREUP, "impi", "play"]).env(KEY.0, KEY.1).start()
    });
    for client in clients {
        client.finish().expect_quiet_success();
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn launch_that_fails_before_join_reports_it_and_other_ends() {
    let (server, address) = server(2);
    let other = client(&address, 0, 1, "true").start();
    let failed = client(&address, 1, 1, "exit 3").run().expect(3);
    assert!(
        failed
            .err()
            .contains("failed before all of its processes had joined"),
        "{}",
        failed.err()
    );
    let other = other.finish().expect(1);
    assert!(
        other.err().contains("host 1 of client 1:"),
        "{}",
        other.err()
    );
    assert_eq!(server.end(), Some(1));
}

#[test]
fn launch_uses_tls_with_impi_server_of_known_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["key.pem", "cert.pem"].map(|name| dir.path().join(name));
    let [key, certificate] = files.each_ref().map(|file| file.to_str().unwrap());
    let words = "req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=server -days 2 \
                 -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE";
    let mut openssl = Command::new("openssl");
    openssl.args(words.split_whitespace());
    let output = openssl.args(["-keyout", key, "-out", certificate]);
    let output = output.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let (server, address) = server_with(1, &["--tls-cert", certificate, "--tls-key", key]);
    let plain = client(&address, 0, 1, "true").run().expect(125);
    assert!(
        plain.err().contains("; check the authentication key"),
        "{}",
        plain.err()
    );
    let option = format!("{address},client=0,tls-ca={certificate}");
    let run = Run::ranks(2, ["--oversubscribe", "--impi", &option]);
    let run = run.more(["sh", "-c", "echo $IMPI_WORLD_SIZE"]);
    let known = run.env(KEY.0, KEY.1).run().expect_quiet_success();
    assert_eq!(known.sorted_lines(), ["2"; 2]);
    assert_eq!(server.end(), Some(0));
}

/// Stands before a server as one with too many connections does: closes this number of them, and carries the next.
fn crowded(server: String, closed: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    spawn(move || {
        for _ in 0..closed {
            drop(listener.accept().unwrap());
        }
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(server).unwrap();
        let ends = [(&client, &server), (&server, &client)];
        for (from, to) in ends.map(|(from, to)| (from.try_clone(), to.try_clone())) {
            let (mut from, mut to) = (from.unwrap(), to.unwrap());
            spawn(move || {
                // Either end may be the first to end.
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

#[test]
fn client_closed_by_full_impi_server_retries_and_joins() {
    let (server, address) = server(1);
    let client = client(&crowded(address, 2), 0, 2, "echo $IMPI_WORLD_SIZE");
    let joined = client.run().expect_quiet_success();
    assert_eq!(joined.sorted_lines(), ["2"; 2]);
    assert_eq!(server.end(), Some(0));
}

/// Runs two ranks as the only client of a print server; returns the lines that the server prints.
fn lines_of_print_server(program: &[&str], code: i32) -> String {
    let errors = tempfile::NamedTempFile::new().unwrap();
    let mut server = Command::new(WIREUP);
    server.args(["impi", "-server", "1", "-print-server", "--address", "::1"]);
    server
        .env(KEY.0, KEY.1)
        .stdout(Stdio::piped())
        .stderr(errors.reopen().unwrap());
    let mut server = Owned(server.spawn().unwrap());
    let option = format!("{},client=0,print", server.first_line());
    let run = Run::ranks(2, ["--oversubscribe", "--impi", &option]).more(program);
    run.env(KEY.0, KEY.1).run().expect(code);
    assert_eq!(server.end(), Some(1));
    std::fs::read_to_string(errors.path()).unwrap()
}

#[test]
fn print_server_prints_errors_of_client_that_uses_it() {
    let lines = lines_of_print_server(&["sh", "-c", "exit 3"], 3);
    let line = "wireup impi: client 0: the launch failed before all of its processes had joined\n";
    assert!(lines.contains(line), "{lines}");
}

#[test]
fn print_server_prints_abort_of_unchanged_program() {
    let Some(mpi) = mpi("mpich5") else { return };
    let program = mpi.program("abort");
    let lines = lines_of_print_server(&[program.to_str().unwrap(), "1", "3"], 3);
    let line = "wireup impi: client 0: process 1: called MPI_Abort with code 3\n";
    assert!(lines.contains(line), "{lines}");
}

#[test]
fn server_that_does_not_print_is_named_with_remedy() {
    let (server, address) = server(1);
    let option = format!("{address},client=0,print");
    let run = Run::ranks(1, ["--oversubscribe", "--impi", &option, "true"]);
    let failed = run.env(KEY.0, KEY.1).run().expect(125);
    let words = "is not a print server: start it with `wireup impi server --print-server`";
    assert!(failed.err().contains(words), "{}", failed.err());
    drop(server);
}

#[test]
fn missing_impi_server_is_named() {
    let outcome = client("127.0.0.1:1", 0, 1, "true").run();
    assert!(
        outcome.err().contains("server 127.0.0.1:1"),
        "{}",
        outcome.err()
    );
    outcome.expect(125);
}
