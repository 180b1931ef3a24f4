//! `wireup run --impi`: launches as clients of an Interoperable MPI job.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use crate::common::Run;

const WIREUP: &str = env!("CARGO_BIN_EXE_wireup");

const KEY: (&str, &str) = ("IMPI_AUTH_KEY", "5678");

/// The rendezvous server of two clients; killed if the test fails.
struct Server(Child);

impl Server {
    fn start() -> (Self, String) {
        let mut child = Command::new(WIREUP)
            .args(["impi", "server", "2", "--address", "127.0.0.1"])
            .env(KEY.0, KEY.1)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        (Self(child), line.trim_end().to_owned())
    }

    fn end(mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn client(server: &str, number: u32, ranks: u32, script: &str) -> Run {
    let option = format!("{server},client={number}");
    let args = ["--oversubscribe", "--impi", &option, "sh", "-c", script];
    Run::ranks(ranks, args).env(KEY.0, KEY.1)
}

#[test]
fn launches_are_clients_of_one_world_and_their_ranks_do_not_see_the_key() {
    let (server, address) = Server::start();
    let script = "echo $IMPI_WORLD_FIRST $IMPI_WORLD_SIZE [$IMPI_AUTH_KEY]";
    let first = client(&address, 0, 2, script).start();
    let second = client(&address, 1, 3, script).run().expect_quiet_success();
    let first = first.finish().expect_quiet_success();
    assert_eq!(first.sorted_lines(), ["0 5 []"; 2]);
    assert_eq!(second.sorted_lines(), ["2 5 []"; 3]);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_launch_that_fails_before_its_ranks_join_says_so_and_the_other_ends() {
    let (server, address) = Server::start();
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
    assert!(other.err().contains("host 1:"), "{}", other.err());
    assert_eq!(server.end(), Some(1));
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let outcome = client("127.0.0.1:1", 0, 1, "true").run();
    assert!(
        outcome.err().contains("server 127.0.0.1:1"),
        "{}",
        outcome.err()
    );
    outcome.expect(125);
}
