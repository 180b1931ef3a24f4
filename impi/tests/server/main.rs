//! `wireup-impi server` as clients on real sockets see it.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use wireup_test_support::eventually;

const NONE: &[u8] = b"AUTH\0\0\0\x04\0\0\0\x01";

/// A server; killed if the test fails.
struct Server {
    child: Child,
    address: SocketAddr,
    _stdout: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_at("127.0.0.1", arguments, environment)
    }

    fn start_at(at: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_wireup-impi"))
            .args(arguments)
            .args(["--address", at])
            .env_remove("IMPI_AUTH_KEY")
            .env_remove("WIREUP_IMPI_TOKEN")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line
            .trim_end()
            .parse()
            .unwrap_or_else(|_| panic!("{line:?}"));
        Self {
            child,
            address,
            _stdout: stdout,
        }
    }

    fn open(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    /// Waits for the end of the server and returns its output.
    fn end(mut self) -> (ExitStatus, String) {
        let until = Instant::now() + Duration::from_secs(20);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "the server does not end");
            std::thread::yield_now();
        };
        let mut stderr = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        (status, stderr)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn unit(command: &[u8; 4], payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [&command[..], &length.to_be_bytes(), payload].concat()
}

fn join(rank: u32) -> Vec<u8> {
    [NONE, &unit(b"IMPI", &rank.to_be_bytes())].concat()
}

fn coll(label: u32, data: &[u8]) -> Vec<u8> {
    unit(b"COLL", &[&label.to_be_bytes(), data].concat())
}

fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, bytes);
}

fn expect_end(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A connection with unread input ends with a reset.
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest, b"", "the server closes");
}

/// One session of two clients, which exchange one label.
fn session(server: &Server) {
    let mut clients = [server.open(), server.open()];
    for (rank, client) in (0..).zip(&mut clients) {
        client.write_all(&join(rank)).unwrap();
    }
    for client in &mut clients {
        expect(
            client,
            &[&[0; 8][..], &unit(b"IMPI", &2_u32.to_be_bytes())].concat(),
        );
        client.write_all(&coll(0x1100, b"abcd")).unwrap();
    }
    for client in &mut clients {
        expect(client, &coll(0x1100, b"\0\0\0\x03abcdabcd"));
        client.write_all(&unit(b"DONE", b"")).unwrap();
    }
    for client in &mut clients {
        expect(client, &unit(b"DONE", b""));
        client.write_all(&unit(b"FINI", b"")).unwrap();
    }
}

const OPEN: &[(&str, &str)] = &[("IMPI_AUTH_NONE", "")];

#[test]
fn command_line_of_specification_serves_job() {
    let server = Server::start(&["-server", "2", "-port", "0", "-auth", "1-0"], OPEN);
    session(&server);
    let (status, stderr) = server.end();
    assert!(status.success());
    assert_eq!(
        stderr.matches("without authentication").count(),
        2,
        "{stderr}"
    );
}

#[test]
fn reader_of_one_line_does_not_end_server() {
    let mut server = Server::start(&["-server", "1"], OPEN);
    // As in `hostport=$(impirun -server 1 | head -1)`; its standard error is not read either.
    drop(server.child.stderr.take());
    let mut client = server.open();
    client
        .write_all(&[&join(0)[..], &unit(b"DONE", b"")].concat())
        .unwrap();
    expect(
        &mut client,
        &[
            &[0; 8][..],
            &unit(b"IMPI", &1_u32.to_be_bytes()),
            &unit(b"DONE", b""),
        ]
        .concat(),
    );
    client.write_all(&unit(b"FINI", b"")).unwrap();
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn thousand_sessions_leave_nothing() {
    let mut server = Server::start(&["server", "2", "--sessions", "1000"], OPEN);
    // Its 2,000 warnings are not read.
    drop(server.child.stderr.take());
    let descriptors = || {
        std::fs::read_dir(format!("/proc/{}/fd", server.child.id()))
            .unwrap()
            .count()
    };
    session(&server);
    let before = descriptors();
    for _ in 1..999 {
        session(&server);
    }
    // Those of the last session may still be open.
    assert!(
        descriptors() <= before + 2,
        "{} descriptors, {before} before",
        descriptors()
    );
    session(&server);
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn garbage_and_slow_clients_delay_no_others() {
    let server = Server::start(&["server", "2", "--join-timeout", "2"], OPEN);
    let mut scanner = server.open();
    scanner.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    expect_end(&mut scanner);
    let mut slow = server.open();
    slow.write_all(b"AUTH").unwrap();
    let silent = server.open();
    let mut rank = server.open();
    rank.write_all(&join(9)).unwrap();
    expect(&mut rank, &[0; 8]);
    expect_end(&mut rank);
    session(&server);
    let (status, stderr) = server.end();
    assert!(status.success(), "{stderr}");
    assert!(stderr.contains("the first command is not AUTH"), "{stderr}");
    assert!(
        stderr.contains("rank out of range: the job has 2 clients"),
        "{stderr}"
    );
    drop((slow, silent));
}

#[test]
fn unusable_listen_address_is_named() {
    let server = Command::new(env!("CARGO_BIN_EXE_wireup-impi"))
        // For documentation (RFC 5737).
        .args(["server", "2", "--address", "203.0.113.9", "--port", "5678"])
        .envs(OPEN.iter().copied())
        .output()
        .unwrap();
    assert_eq!(server.status.code(), Some(1));
    let stderr = String::from_utf8(server.stderr).unwrap();
    let words = "cannot listen at 203.0.113.9, port 5678: ";
    assert!(stderr.contains(words), "{stderr}");
}

/// Runs a server whose clients are in a file, on other hosts by `rsh`.
fn with_file(lines: &str, rsh: &str) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("clients");
    std::fs::write(&file, lines).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_wireup-impi"))
        .args(["-server", "2", "-file", file.to_str().unwrap()])
        .args(["--address", "127.0.0.1", "--rsh", rsh])
        .env_remove("IMPI_AUTH_NONE")
        .env("IMPI_AUTH_KEY", "77")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn server_starts_clients_of_file() {
    let lines = "# of one job\n\n\
        localhost -client 0 $hostport -n 1 -- sh -c 'echo first $IMPI_WORLD_FIRST of $IMPI_WORLD_SIZE'\n\
        bar -client 1 $hostport -n 2 -- sh -c 'echo first $IMPI_WORLD_FIRST at $OTHER'\n";
    // A remote shell does not pass the variables of its caller on.
    let (code, out, stderr) = with_file(lines, "env -u IMPI_AUTH_KEY OTHER={host}");
    assert_eq!(code, Some(0), "{stderr}");
    let (address, out) = out.split_once('\n').unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    assert!(out.contains("first 0 of 3\n"), "{out}");
    assert!(out.contains("first 1 at bar\n"), "{out}");
    let failing = lines.replace("$OTHER", "$OTHER; exit 3");
    let (code, _, stderr) = with_file(&failing, "env OTHER={host}");
    assert_eq!(code, Some(1));
    let why = "wireup impi: client 1 on bar: exit status: 1";
    assert!(stderr.contains(why), "{stderr}");
}

#[test]
fn client_that_does_not_start_ends_server_of_file() {
    let lines = "bar -client 0 $hostport -n 1 -- true\n\
        localhost -client 1 $hostport -n 1 -- true\n";
    let (code, _, stderr) = with_file(lines, "false");
    assert_eq!(code, Some(1));
    assert!(
        stderr.contains("wireup impi: client 0 on bar: exit status: 1"),
        "{stderr}"
    );
    let (code, _, stderr) = with_file(lines, "/no/rsh");
    assert_eq!(code, Some(1));
    assert!(
        stderr.contains("wireup impi: client 0 on bar: No such file"),
        "{stderr}"
    );
}

#[test]
fn unusable_file_of_clients_is_named() {
    for (lines, why) in [
        (
            "bar -client 2 $hostport",
            "/clients: line 1: client 2 of 2: clients count from 0",
        ),
        (
            "bar -client 0 $hostport",
            "/clients: no line for client 1: 2 clients need one each",
        ),
    ] {
        let (code, out, stderr) = with_file(lines, "false");
        assert_eq!((code, &*out), (Some(1), ""));
        assert!(stderr.contains(why), "{stderr}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_wireup-impi"))
        .args(["-server", "2", "-file", "/no/file"])
        .envs(OPEN.iter().copied())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("/no/file: No such file"), "{stderr}");
}

#[test]
fn server_at_ipv6_serves_job() {
    let server = Server::start_at("::1", &["server", "2"], OPEN);
    assert!(server.address.is_ipv6());
    session(&server);
    let (status, stderr) = server.end();
    assert!(status.success(), "{stderr}");
    // An address of the family is printed for the unspecified one.
    let server = Server::start_at("::", &["server", "2"], OPEN);
    assert!(server.address.is_ipv6(), "{}", server.address);
    session(&server);
    assert!(server.end().0.success());
}

/// Clock ticks for which a process has run.
fn ticks(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields = fields.split(' ').skip(11).take(2);
    fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn server_serves_job_while_strangers_hold_descriptors() {
    let server = Server::start(&["server", "2"], OPEN);
    let pid = Pid::from_child(&server.child);
    let limit = Rlimit {
        current: Some(20),
        maximum: Some(20),
    };
    prlimit(Some(pid), Resource::Nofile, limit).unwrap();
    let strangers: Vec<TcpStream> = (0..30).map(|_| server.open()).collect();
    eventually("a second without work", || {
        let before = ticks(pid);
        std::thread::park_timeout(Duration::from_secs(1));
        (ticks(pid) <= before + 1).then_some(())
    });
    session(&server);
    drop(strangers);
    let (status, stderr) = server.end();
    assert!(status.success(), "{stderr}");
    let dropped = stderr
        .matches("and a newer connection needs its place")
        .count();
    assert!((1..=20).contains(&dropped), "{stderr}");
}

#[test]
fn silent_client_is_given_up() {
    let server = Server::start(
        &["server", "2", "--join-timeout", "3", "--timeout", "4"],
        OPEN,
    );
    let mut slow = server.open();
    slow.write_all(b"AUT").unwrap();
    expect_end(&mut slow);
    let mut first = server.open();
    first.write_all(&join(0)).unwrap();
    expect(&mut first, &[0; 8]);
    expect_end(&mut first);
    let (status, stderr) = server.end();
    assert!(!status.success());
    assert!(stderr.contains("did not join in time"), "{stderr}");
    assert!(
        stderr.contains("start-up timed out; clients not joined or not finished: [0, 1]"),
        "{stderr}"
    );
}

#[test]
fn lost_client_is_named_in_each_phase() {
    // Before AUTH, after it, after IMPI, after COLL, after DONE, while the job runs.
    let steps: [Vec<u8>; 5] = [
        NONE.to_vec(),
        unit(b"IMPI", &1_u32.to_be_bytes()),
        coll(1, b""),
        unit(b"DONE", b""),
        Vec::new(),
    ];
    for phase in 0..=steps.len() {
        // A client that is lost before it joins may come again: only the time ends the start-up.
        let timeout = if phase < 2 { "2" } else { "30" };
        let server = Server::start(&["server", "2", "--timeout", timeout], OPEN);
        let mut other = server.open();
        other
            .write_all(&[&join(0)[..], &coll(1, b""), &unit(b"DONE", b"")].concat())
            .unwrap();
        expect(&mut other, &[0; 8]);
        let mut dying = server.open();
        for step in &steps[..phase] {
            dying.write_all(step).unwrap();
        }
        if phase >= 4 {
            // From DONE on the others go on.
            let mut reply = [&[0; 8][..], &unit(b"IMPI", &2_u32.to_be_bytes())].concat();
            reply.extend([coll(1, b"\0\0\0\x03"), unit(b"DONE", b"")].concat());
            expect(&mut dying, &reply);
            expect(&mut other, &reply[8..]);
            other.write_all(&unit(b"FINI", b"")).unwrap();
        }
        drop(dying);
        let (status, stderr) = server.end();
        assert_eq!(status.code(), Some(1), "phase {phase}: {stderr}");
        let words = if phase < 2 {
            "clients not joined or not finished: [1]"
        } else {
            "client 1 (127.0.0.1:"
        };
        assert!(stderr.contains(words), "phase {phase}: {stderr}");
    }
}

#[test]
fn server_without_auth_method_does_not_start() {
    for (arguments, key, words) in [
        (
            &["-server", "2"][..],
            "",
            "no authentication methods available for negotiation",
        ),
        (
            &["-server", "2", "-auth", "0"],
            "5",
            "no authentication methods available for negotiation",
        ),
        (
            &["-server", "2"],
            "0x5",
            "invalid IMPI_AUTH_KEY: use a decimal number",
        ),
        (&["-server", "33"], "5", "33 is not in 1..=32"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_wireup-impi"))
            .args(arguments)
            .env_remove("IMPI_AUTH_NONE")
            .env("IMPI_AUTH_KEY", key)
            .output()
            .unwrap();
        assert!(!output.status.success());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(words), "{stderr}");
        assert_eq!(output.stdout, b"");
    }
}

#[test]
fn wrong_key_closes_connection() {
    let server = Server::start(&["server", "1"], &[("IMPI_AUTH_KEY", "5678")]);
    for (key, right) in [(1234_u64, false), (5678, true)] {
        let mut client = server.open();
        client.write_all(b"AUTH\0\0\0\x04\0\0\0\x03").unwrap();
        expect(&mut client, &[0, 0, 0, 1, 0, 0, 0, 0]);
        client.write_all(&key.to_be_bytes()).unwrap();
        if !right {
            expect_end(&mut client);
            continue;
        }
        client
            .write_all(
                &[
                    unit(b"IMPI", &[0; 4]),
                    unit(b"DONE", b""),
                    unit(b"FINI", b""),
                ]
                .concat(),
            )
            .unwrap();
        expect(&mut client, &unit(b"IMPI", &1_u32.to_be_bytes()));
    }
    // FINI before the client has read DONE is not in order: the reply counts, not its reading.
    let (status, stderr) = server.end();
    assert!(status.success(), "{stderr}");
    assert!(stderr.contains("wrong key or token"), "{stderr}");
    assert!(
        !stderr.contains("5678") && !stderr.contains("1234"),
        "{stderr}"
    );
}
