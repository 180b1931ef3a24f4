//! Jobs through `wireup impi proxy`, explained by `wireup impi decode`; and what their clients consist of.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use wireup_test_support::Owned;

use super::lam_command;

/// One of our commands, on this machine.
fn impi(arguments: &[&str]) -> Owned {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wireup-impi"));
    command
        .args(arguments)
        .env("IMPI_AUTH_KEY", "5678")
        .env_remove("IMPI_AUTH_NONE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    Owned(command.spawn().unwrap())
}

/// The rendezvous server, and its address.
pub(super) fn server(clients: usize) -> (Owned, String) {
    let clients = clients.to_string();
    let mut server = impi(&["server", &clients, "--address", "127.0.0.1"]);
    let address = server.first_line();
    (server, address)
}

/// The agent of two processes, and what they find in their environment once all clients have joined.
pub(super) struct Agent(Owned);

impl Agent {
    pub(super) fn start(number: usize, address: &str, server: &str, options: &[&str]) -> Self {
        let number = number.to_string();
        let words = [
            "agent",
            server,
            "--client",
            &number,
            "-n",
            "2",
            "--address",
            address,
        ];
        Self(impi(&[&words[..], options].concat()))
    }

    pub(super) fn variables(&mut self) -> BTreeMap<String, String> {
        self.0.variables()
    }

    pub(super) fn end(mut self) {
        drop(self.0.0.stdin.take());
        assert_eq!(self.0.end(), Some(0));
    }
}

/// A client of LAM, of that many processes.
pub(super) struct Lam(Owned);

impl Lam {
    pub(super) fn start(
        (lam, dir): (&Path, &Path),
        (number, address, procs): (usize, &str, usize),
        server: &str,
        words: &[&str],
    ) -> Self {
        let mut command = lam_command(lam, dir, (number, address), server, words);
        command
            .env("LAM_PROCS", procs.to_string())
            .env("IMPI_AUTH_KEY", "5678")
            .env_remove("IMPI_AUTH_NONE")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Self(Owned(command.spawn().unwrap()))
    }

    /// Waits for the successful end of the client and returns the output of its processes.
    pub(super) fn end(mut self) -> String {
        let mut text = String::new();
        let mut stdout = self.0.0.stdout.take().unwrap();
        stdout.read_to_string(&mut text).unwrap();
        assert_eq!(self.0.end(), Some(0), "{text}");
        text
    }
}

/// A server, and a proxy before it.
pub(super) struct Recorded {
    server: Owned,
    proxy: Owned,
    /// Address at which clients connect.
    pub(super) front: String,
    record: PathBuf,
}

impl Recorded {
    pub(super) fn start(dir: &Path, clients: usize) -> Self {
        let (server, address) = server(clients);
        let record = dir.join("job.impi");
        let mut proxy = impi(&["proxy", &address, "--record", record.to_str().unwrap()]);
        Self {
            front: proxy.first_line(),
            server,
            proxy,
            record,
        }
    }

    /// The address that a client announces: behind the proxy each has its own.
    pub(super) fn address(number: usize) -> String {
        format!("127.0.0.{}", 2 + number)
    }

    /// Returns the findings after all clients have ended. Every must has to be kept.
    pub(super) fn end(self) -> Vec<String> {
        assert_eq!(self.server.end(), Some(0));
        assert_eq!(self.proxy.end(), Some(0));
        let output = Command::new(env!("CARGO_BIN_EXE_wireup-impi"))
            .arg("decode")
            .arg(&self.record)
            .output()
            .unwrap();
        let results = String::from_utf8(output.stdout).unwrap();
        let broken = results.lines().filter(|line| line.starts_with("violation"));
        assert!(output.status.success(), "{:#?}", broken.collect::<Vec<_>>());
        results.lines().map(str::to_owned).collect()
    }
}
