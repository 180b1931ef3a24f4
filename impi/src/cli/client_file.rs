//! The file of `-server N -file FILE`: a line for each client, `HOST -client K $hostport ARGUMENTS`, which the server starts
//! on its host. Source: IMPI 2.2.3.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use wireup_core::shell_words::quoted;

/// Variables that admit a client.
const SECRETS: [&str; 3] = ["IMPI_AUTH_KEY", "IMPI_AUTH_NONE", "WIREUP_IMPI_TOKEN"];
/// Time for clients to end after a failed session.
const GRACE: Duration = Duration::from_secs(10);

/// A line of the file.
#[derive(PartialEq, Eq, Debug)]
struct ClientLine {
    number: usize,
    host: String,
    /// Arguments of `wireup impi`, as text for a shell.
    arguments: String,
}

/// The clients of a file, by their ranks.
#[derive(Debug)]
pub(super) struct ClientFile(BTreeMap<u32, ClientLine>);

impl ClientFile {
    /// Reads a file with one line for each of `count` clients.
    pub(super) fn read(path: &Path, count: u32) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text, count).with_context(|| path.display().to_string())
    }

    fn parse(text: &str, count: u32) -> anyhow::Result<Self> {
        let mut clients: BTreeMap<u32, ClientLine> = BTreeMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let form = || format!("line {number}: use HOST -client K $hostport ARGUMENTS");
            let (host, arguments) = line.split_once(char::is_whitespace).with_context(form)?;
            let mut words = arguments.split_whitespace();
            if host.starts_with('-') || words.next() != Some("-client") {
                bail!(form());
            }
            let client = words.next().and_then(|client| client.parse().ok());
            let client: u32 = client.with_context(form)?;
            if client >= count {
                bail!("line {number}: client {client} of {count}: clients count from 0");
            }
            if let Some(other) = clients.get(&client) {
                bail!(
                    "line {number}: client {client} is in line {} too",
                    other.number
                );
            }
            let line = ClientLine {
                number,
                host: host.to_owned(),
                arguments: arguments.trim().to_owned(),
            };
            clients.insert(client, line);
        }
        match (0..count).find(|client| !clients.contains_key(client)) {
            Some(client) => bail!("no line for client {client}: {count} clients need one each"),
            None => Ok(Self(clients)),
        }
    }

    /// Starts the clients of a server at `address`, on other hosts with the command `rsh`.
    pub(super) fn start(self, address: SocketAddr, rsh: &str) -> anyhow::Result<StartedClients> {
        let program = std::env::current_exe().context("the path of wireup-impi is unknown")?;
        let directory = std::env::current_dir().context("the working directory is unknown")?;
        let mut head = String::new();
        for name in SECRETS {
            if let Some(value) = std::env::var_os(name) {
                head += &format!("export {name}={}\n", quoted(&value));
            }
        }
        head += &format!(
            "hostport='{}'\ncd {} || exit\nexec {} ",
            address,
            quoted(directory.as_os_str()),
            quoted(program.as_os_str()),
        );
        let (exits, exit) = UnixStream::pair()?;
        let (sender, ends) = channel();
        let mut running = BTreeMap::new();
        for (client, line) in self.0 {
            let name = format!("client {client} on {}", line.host);
            let script = format!("{head}{}\n", line.arguments);
            let child = start_shell(&line.host, rsh, &script).with_context(|| name.clone())?;
            running.insert(client, Pid::from_child(&child));
            report_end(client, name, child, exit.try_clone()?, sender.clone());
        }
        Ok(StartedClients {
            exits,
            ends,
            running,
        })
    }
}

/// Starts a shell on a host. It reads its commands from the standard input, where no other process sees the secrets.
fn start_shell(host: &str, rsh: &str, script: &str) -> io::Result<Child> {
    let mut words: Vec<String> = match host {
        "localhost" => Vec::new(),
        host => rsh
            .split_whitespace()
            .map(|word| word.replace("{host}", host))
            .collect(),
    };
    words.extend(["sh".to_owned(), "-s".to_owned()]);
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // A shell that has ended already is reported by its exit code.
        let _ = input.write_all(script.as_bytes());
    }
    Ok(child)
}

/// Waits for a client in a thread, which prints a failure and reports the end.
fn report_end(
    client: u32,
    name: String,
    mut child: Child,
    exit: UnixStream,
    ends: Sender<ClientExit>,
) {
    std::thread::spawn(move || {
        let status = child.wait();
        let success = status.as_ref().is_ok_and(|status| status.success());
        if !success {
            let why = match status {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "wireup impi: {name}: {why}");
        }
        // The server may be over.
        let _ = (
            ends.send(ClientExit { client, success }),
            (&exit).write_all(&[0]),
        );
    });
}

/// End of a client's process.
#[derive(Debug)]
struct ClientExit {
    client: u32,
    success: bool,
}

/// Clients that run.
#[derive(Debug)]
pub(super) struct StartedClients {
    /// Stream that has a byte for each client that has ended.
    pub(super) exits: UnixStream,
    ends: Receiver<ClientExit>,
    running: BTreeMap<u32, Pid>,
}

impl StartedClients {
    /// Waits for the clients and returns whether all ended with success. After a session without success, clients that do not
    /// end are terminated.
    pub(super) fn wait(mut self, success: bool) -> bool {
        let deadline = (!success).then(|| Instant::now() + GRACE);
        let mut all_succeeded = true;
        while !self.running.is_empty() {
            let end = match deadline {
                None => self.ends.recv().ok(),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    self.ends.recv_timeout(left).ok()
                }
            };
            let Some(end) = end else {
                for pid in self.running.values() {
                    // It may have ended meanwhile.
                    let _ = kill_process(*pid, Signal::TERM);
                }
                return false;
            };
            self.running.remove(&end.client);
            all_succeeded &= end.success;
        }
        all_succeeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_one_line_for_each_client() {
        let text =
            "# two\n\nbar  -client 1 $hostport -n 2\n foo -client 0 $hostport -n 1 -- ./a 'b c'\n";
        let file = ClientFile::parse(text, 2).unwrap();
        let lines: Vec<_> = file
            .0
            .values()
            .map(|line| (&*line.host, &*line.arguments))
            .collect();
        let expected = [
            ("foo", "-client 0 $hostport -n 1 -- ./a 'b c'"),
            ("bar", "-client 1 $hostport -n 2"),
        ];
        assert_eq!(lines, expected);
        for (text, why) in [
            ("bar", "line 1: use HOST -client K $hostport ARGUMENTS"),
            ("bar -n 2", "line 1: use HOST -client K"),
            ("-client 0 $hostport", "line 1: use HOST -client K"),
            ("bar -client x $hostport", "line 1: use HOST -client K"),
            (
                "\nbar -client 2 $hostport",
                "line 2: client 2 of 2: clients count from 0",
            ),
            (
                "a -client 0 x\nb -client 0 x",
                "line 2: client 0 is in line 1 too",
            ),
            (
                "a -client 0 x",
                "no line for client 1: 2 clients need one each",
            ),
        ] {
            let error = ClientFile::parse(text, 2).unwrap_err().to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }
}
