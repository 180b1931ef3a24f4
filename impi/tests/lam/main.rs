//! LAM/MPI 7.1.4, the MPI that speaks IMPI itself, with itself and with our processes, over our server.
//!
//! Needs root, for namespaces, and what `scripts/setup` builds.

#![allow(clippy::unwrap_used)] // what is not as expected fails the test

#[macro_use(test)]
extern crate wireup_test_support;

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

use wireup_impi_core::endpoint::Completion;
use wireup_impi_io::agent::process_handshake::{AGENT, TICKET_VARIABLE};
use wireup_impi_io::peer::{ElementType, Operator, Peer};
use wireup_test_support::{Owned, mpi, skip, wireup};

mod cancel;
mod collectives;
mod in_c;
#[path = "../library/mod.rs"]
mod library;
mod parts;

const NOBODY: u32 = 65534;
const INT: ElementType = ElementType::Int32;

fn lam() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let mpis =
        std::env::var("WIREUP_MPI_DIR").unwrap_or_else(|_| format!("/var/tmp/wireup-mpi-{user}"));
    PathBuf::from(mpis).join("lam")
}

fn main() -> ExitCode {
    wireup_test_support::main()
}

/// Runs a job of these clients, if there is what it needs.
fn checked(clients: &[&str], mode: &str) {
    let others = clients
        .iter()
        .filter(|name| !["lam", "ours"].contains(name));
    if others.map(|name| mpi(name)).all(|found| found.is_some()) {
        prepared(|lam, dir| job(lam, dir, clients, mode));
    }
}

/// Runs something with LAM and a directory that has the programs, if there is what it needs.
fn prepared(run: impl FnOnce(&Path, &Path)) {
    // One job at a time: LAM keeps files for each name of a host.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let lam = lam();
    if !lam.join(".installed").exists() || !rustix::process::getuid().is_root() {
        let lam = lam.display();
        return skip(&format!(
            "needs root, and LAM/MPI in {lam}, which scripts/setup builds"
        ));
    }
    let dir = tempfile::Builder::new()
        .prefix("wireup-lam-")
        .tempdir_in("/var/tmp")
        .unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = package.join("tests/lam");
    let own = ["ring.c", "cancel.c", "collectives.c"].map(|name| source.join(name));
    for program in own.into_iter().chain([package.join("kit/check.c")]) {
        let compiled = Command::new(lam.join("bin/mpicc"))
            .env("PATH", path(&lam))
            .args(["-std=gnu89", "-w", "-o"])
            .arg(dir.path().join(program.file_stem().unwrap()))
            .arg(&program)
            .status();
        assert!(compiled.unwrap().success());
    }
    fs::copy(source.join("job"), dir.path().join("job")).unwrap();
    run(&lam, dir.path());
}

#[test]
fn lam_with_lam() {
    checked(&["lam", "lam"], "PLAIN");
}

#[test]
fn lam_runs_with_wireup_processes_in_its_byte_order() {
    checked(&["lam", "ours"], "PLAIN");
}

#[test]
fn lam_with_our_processes_in_external32() {
    checked(&["lam", "ours"], "SWAPPED");
}

#[test]
fn lam_above_our_processes() {
    checked(&["ours", "lam"], "PLAIN");
}

#[test]
fn lam_with_two_of_ours() {
    checked(&["lam", "ours", "ours"], "SWAPPED");
}

/// Ranks of other MPIs under `wireup run`, which use them inside, and libwireup_impi with LAM and each other.
#[test]
fn lam_mpich_and_open_mpi_in_one_job() {
    checked(&["lam", "mpich5", "openmpi5"], "SWAPPED");
}

#[test]
fn lam_reduces_with_mpich() {
    checked(&["lam", "mpich5"], "PLAIN");
}

fn path(lam: &Path) -> String {
    format!(
        "{}:{}",
        lam.join("bin").display(),
        std::env::var("PATH").unwrap()
    )
}

/// A client that runs, and who it is.
struct Client {
    child: Owned,
    name: String,
    /// Whether the processes are threads of the test.
    ours: bool,
    /// Line that each of the two processes prints at its end, unless they are threads.
    says: String,
}

fn job(lam: &Path, dir: &Path, clients: &[&str], mode: &str) {
    let server = env!("CARGO_BIN_EXE_wireup-impi");
    let server = Command::new(server)
        .args([
            "-server",
            &clients.len().to_string(),
            "--address",
            "127.0.0.1",
            "--timeout",
            "60",
        ])
        .env("IMPI_AUTH_KEY", "5678")
        .env_remove("IMPI_AUTH_NONE")
        .stdout(Stdio::piped())
        .spawn();
    let mut server = Owned(server.unwrap());
    let address = server.first_line();
    let address = address.as_str();
    let size = 2 * clients.len();
    let start = |(number, kind): (usize, &&str)| {
        let place = (number, number + 1 == clients.len());
        match *kind {
            "lam" => start_lam(lam, dir, place, address, (mode, size)),
            "ours" => start_ours(place, address, mode),
            other => start_mpi(other, place, address, (mode, size)),
        }
    };
    let mut running: Vec<Client> = clients.iter().enumerate().map(start).collect();
    std::thread::scope(|scope| {
        for client in running.iter_mut().filter(|client| client.ours) {
            let variables = client.child.variables();
            let agent = &variables[AGENT];
            let ticket = &variables[TICKET_VARIABLE];
            for index in 0..2 {
                let (agent, ticket) = (agent.clone(), ticket.clone());
                scope.spawn(move || {
                    ring(
                        Peer::connect(&agent, &ticket, index).unwrap(),
                        mode == "SWAPPED",
                    )
                });
            }
        }
    });
    for mut client in running {
        drop(client.child.0.stdin.take());
        let mut output = String::new();
        if let Some(mut stdout) = client.child.0.stdout.take() {
            stdout.read_to_string(&mut output).unwrap();
        }
        let status = client.child.0.wait().unwrap();
        assert!(
            status.success(),
            "{} ends with {status}: {output}",
            client.name
        );
        assert!(
            client.ours || output.matches(&client.says).count() == 2,
            "{}: {output}",
            client.name
        );
    }
    // It has seen every client end in order.
    assert_eq!(server.end(), Some(0));
}

/// LAM knows other hosts by the addresses they connect from, and connects from 127.0.0.1 itself: only the last, to which
/// no host connects, announces that.
fn address_of(number: usize, last: bool) -> String {
    if last {
        "127.0.0.1".into()
    } else {
        format!("127.0.0.{}", 2 + number)
    }
}

fn start_lam(
    lam: &Path,
    dir: &Path,
    (number, last): (usize, bool),
    server: &str,
    (mode, size): (&str, usize),
) -> Client {
    let address = address_of(number, last);
    let ring = dir.join("ring");
    let words = [ring.to_str().unwrap(), mode];
    let child = lam_command(lam, dir, (number, &address), server, &words)
        .env("IMPI_AUTH_KEY", "5678")
        .env_remove("IMPI_AUTH_NONE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Client {
        child: Owned(child),
        name: format!("client {number}, LAM"),
        ours: false,
        says: format!("of {size} is done"),
    }
}

/// Starts a client of two processes, in namespaces of its own, which end with it.
fn lam_command(
    lam: &Path,
    dir: &Path,
    (number, address): (usize, &str),
    server: &str,
    program: &[&str],
) -> Command {
    let own = tempfile::Builder::new().tempdir_in(dir).unwrap().keep();
    let host = format!("lam{number}");
    fs::write(own.join("hosts"), format!("{address} {host}\n")).unwrap();
    chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    let script = r#"hostname "$1"; mount --bind "$2/hosts" /etc/hosts; shift 2
        exec setpriv --reuid 65534 --regid 65534 --clear-groups timeout 100 "$@""#;
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--uts",
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
        ])
        .args(["bash", "-c", script, "bash", &host])
        .arg(&own)
        .arg(dir.join("job"))
        .args([&number.to_string(), address, server])
        .arg(&own)
        .args(program)
        .env("PATH", path(lam));
    command
}

/// Returns the lines of `wireup impi check-client` on LAM that name a broken rule.
fn differences(
    lam: &Path,
    dir: &Path,
    (client, address): (usize, &str),
) -> (Option<i32>, Vec<String>) {
    let check = dir.join("check");
    let words = [check.to_str().unwrap(), "NO-PROBE", "NO-GATHER"];
    let command = lam_command(lam, dir, (client, address), "{server}", &words);
    let output = Command::new(env!("CARGO_BIN_EXE_wireup-impi"))
        .args([
            "check-client",
            "--lam",
            "--client",
            &client.to_string(),
            "--",
        ])
        .arg(command.get_program())
        .args(command.get_args())
        .env("PATH", path(lam))
        .env_remove("IMPI_AUTH_KEY")
        .output()
        .unwrap();
    let results = String::from_utf8(output.stdout).unwrap();
    let failed = results.lines().filter(|line| line.starts_with("not ok"));
    let failed = failed
        .map(|line| line.split_once(" - ").unwrap().1.to_owned())
        .collect();
    (output.status.code(), failed)
}

#[test]
fn check_client_on_lam_finds_known_differences_only() {
    prepared(|lam, dir| {
        for (client, address) in [(0, "127.0.0.2"), (1, "127.0.0.1")] {
            let (code, found) = differences(lam, dir, (client, address));
            assert_eq!(code, Some(0), "{found:?}");
            let known = [
                ("External32 [3.1]", "was sent as [44, 33, 22, 11]"),
                ("UnusedFields [3.5]", "has a byte that is not 0"),
                ("CollectiveContext [4]", "tag 190 on context 0"),
            ];
            assert_eq!(found.len(), known.len(), "{found:#?}");
            for (line, (rule, words)) in found.iter().zip(known) {
                assert!(line.starts_with(rule) && line.contains(words), "{line}");
            }
        }
    });
}

fn start_ours((number, last): (usize, bool), server: &str, mode: &str) -> Client {
    let address = address_of(number, last);
    let mut command = Command::new(env!("CARGO_BIN_EXE_wireup-impi"));
    command.args([
        "agent",
        server,
        "--client",
        &number.to_string(),
        "-n",
        "2",
        "--address",
        &address,
    ]);
    if mode != "SWAPPED" {
        command.arg("--lam");
    }
    command
        .env("IMPI_AUTH_KEY", "5678")
        .env_remove("IMPI_AUTH_NONE");
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Client {
        child: Owned(child),
        name: format!("client {number}, ours"),
        ours: true,
        says: String::new(),
    }
}

/// Two ranks of tests/programs/impi_world.c, built with an MPI, under `wireup run`.
fn start_mpi(
    name: &str,
    (number, last): (usize, bool),
    server: &str,
    (mode, size): (&str, usize),
) -> Client {
    let mpi = mpi(name).unwrap();
    let address = address_of(number, last);
    let mut link = format!("{server},client={number},address={address}");
    if mode != "SWAPPED" {
        link.push_str(",lam");
    }
    let library = Path::new(env!("CARGO_BIN_EXE_wireup-impi")).with_file_name("libwireup_impi.so");
    let mut command = Command::new(wireup());
    command
        .args(["run", "--oversubscribe", "-n", "2", "--impi", &link])
        .arg(mpi.program("impi_world"))
        .args((mode == "SWAPPED").then_some("NO-REDUCE"))
        .envs(mpi.env.iter().map(|(name, value)| (name, value)))
        .env("WIREUP_IMPI_LIBRARY", library)
        .env("IMPI_AUTH_KEY", "5678")
        .env_remove("IMPI_AUTH_NONE");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    Client {
        child: Owned(child.unwrap()),
        name: format!("client {number}, {name}"),
        ours: false,
        says: format!(" size={size} inside={} ", 4 * number + 1),
    }
}

/// Plays the counterpart of ring.c.
fn ring(peer: Peer, swapped: bool) {
    let (rank, size) = (peer.rank(), peer.size());
    let int = |value: usize| i32::try_from(value).unwrap().to_ne_bytes();
    let send = |value: &[u8], element, to, tag| {
        let request = peer.start_send(value, element, to, tag, false).unwrap();
        peer.wait(request).unwrap();
    };
    let receive = |limit, element, from, tag| {
        let request = peer
            .start_receive(limit, element, Some(from), Some(tag))
            .unwrap();
        let Completion::Received(status, data) = peer.wait(request).unwrap() else {
            panic!()
        };
        assert_eq!((status.source, status.tag), (from, tag));
        data
    };
    if rank == 0 {
        send(&int(1), INT, 1, 5);
    }
    let value = receive(4, INT, (rank + size - 1) % size, 5);
    assert_eq!(value, int(if rank == 0 { size } else { rank }));
    if rank != 0 {
        send(&int(rank + 1), INT, (rank + 1) % size, 5);
    }
    let other = (rank + size / 2) % size;
    let data = vec![u8::try_from(rank).unwrap(); 1 << 20];
    let got = if rank < size / 2 {
        send(&data, ElementType::Byte, other, 6);
        receive(1 << 20, ElementType::Byte, other, 7)
    } else {
        let got = receive(1 << 20, ElementType::Byte, other, 6);
        send(&data, ElementType::Byte, other, 7);
        got
    };
    assert!(got.len() == 1 << 20 && got.iter().all(|byte| usize::from(*byte) == other));
    peer.barrier().unwrap();
    let mut value = int(rank);
    peer.bcast(&mut value, INT, size - 1).unwrap();
    assert_eq!(value, int(size - 1));
    if !swapped {
        let all = int(size * (size + 1) / 2);
        let mut value = int(rank + 1);
        peer.reduce(&mut value, INT, Operator::Sum, size - 1)
            .unwrap();
        assert!(rank != size - 1 || value == all);
        let mut value = int(rank + 1);
        peer.allreduce(&mut value, INT, Operator::Sum).unwrap();
        assert_eq!(value, all);
    }
    peer.close().unwrap();
}
