//! Plays clients for a server under test: each check is one session.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wireup_impi_core::kit::conformance_rules::{Level, Rule};
use wireup_impi_core::kit::server_checks::{Access, Check, STARTS, Step, checks};

use super::tap::CheckOutcome;
use wireup_core::wording::without_error_codes;

/// Time for which a server is observed that must not send anything.
const QUIET: Duration = Duration::from_millis(300);

/// Time after the first byte of a unit that is sent in pieces.
const ALONE: Duration = Duration::from_millis(100);

/// The server under test.
#[derive(Clone, Debug)]
pub enum Target {
    /// Address at which the server listens, for one session after the other.
    Address(String),
    /// This starts it, for one session.
    Command(Vec<OsString>),
}

/// Settings of a test of a server.
#[derive(Clone, Debug)]
pub struct ServerTestSettings {
    pub target: Target,
    pub clients: usize,
    pub access: Access,
    /// Within which the server must answer.
    pub timeout: Duration,
}

/// Makes the checks, and passes each result to `report`.
///
/// # Errors
/// When `report` fails.
pub fn check(
    settings: &ServerTestSettings,
    mut report: impl FnMut(Rule, &CheckOutcome) -> io::Result<()>,
) -> io::Result<()> {
    for check in checks(settings.clients, settings.access) {
        let outcome = match (&settings.target, check.rule) {
            (Target::Address(_), Rule::ServerExits | Rule::LostReported) => needs_command(),
            (Target::Address(address), rule) => outcome(rule, play(settings, &check, address)),
            (Target::Command(words), rule) => outcome(rule, launch(settings, &check, words)),
        };
        report(check.rule, &outcome)?;
    }
    for rule in STARTS {
        let outcome = match &settings.target {
            Target::Address(_) => needs_command(),
            Target::Command(_) if rule == Rule::AuthNoneWarning && !settings.access.none => {
                CheckOutcome::Skipped("IMPI_AUTH_NONE is not set".into())
            }
            Target::Command(words) => outcome(rule, start(rule, settings, words)),
        };
        report(rule, &outcome)?;
    }
    Ok(())
}

fn needs_command() -> CheckOutcome {
    CheckOutcome::Skipped("this check needs the command that starts the server".into())
}

fn outcome(rule: Rule, result: Result<(), String>) -> CheckOutcome {
    let Err(error) = result else {
        return CheckOutcome::Passed;
    };
    let error = without_error_codes(&error).into_owned();
    match rule.level() {
        Level::Must => CheckOutcome::Failed(error),
        _ => CheckOutcome::Differs(error),
    }
}

/// Checks the start and the output of a server.
fn start(rule: Rule, settings: &ServerTestSettings, words: &[OsString]) -> Result<(), String> {
    let (holds, what) = match rule {
        Rule::AddressLine => {
            let server = Running::start(words, settings, true)?;
            let line = server.line.trim_end_matches('\n');
            let what = format!("the first line is {line:?}");
            (line.parse::<SocketAddrV4>().is_ok(), what)
        }
        Rule::OneLine => {
            let output = session(settings, words, settings.access)?;
            (
                output.out.is_empty(),
                format!("it also wrote {:?}", output.out),
            )
        }
        Rule::AuthNoneWarning => {
            let open = Access {
                key: None,
                ..settings.access
            };
            let output = session(settings, words, open)?;
            let what = "no message has the address of the client".into();
            ((output.err + &output.out).contains("127.0.0.1"), what)
        }
        _ => {
            let server = Running::start(words, settings, false)?;
            let output = server.end(settings.timeout)?;
            (!output.status.success(), "it ends with success".into())
        }
    };
    if holds { Ok(()) } else { Err(what) }
}

fn session(
    settings: &ServerTestSettings,
    words: &[OsString],
    access: Access,
) -> Result<ServerOutput, String> {
    let whole = checks(settings.clients, access);
    let whole = whole.iter().find(|check| check.rule == Rule::ImpiSize);
    let whole = whole.ok_or("no such check")?;
    let server = Running::start(words, settings, true)?;
    play(settings, whole, server.line.trim())?;
    server.end(settings.timeout)
}

fn launch(settings: &ServerTestSettings, check: &Check, words: &[OsString]) -> Result<(), String> {
    let server = Running::start(words, settings, true)?;
    play(settings, check, server.line.trim())?;
    let output = server.end(settings.timeout)?;
    match check.rule {
        Rule::LostReported if output.err.is_empty() && output.out.is_empty() => {
            Err("the server reports nothing".into())
        }
        Rule::LostReported => Ok(()),
        _ if output.status.success() => Ok(()),
        _ => Err(format!(
            "the server ends with {}: {}",
            output.status, output.err
        )),
    }
}

/// A server that runs; it ends with this.
struct Running {
    child: Child,
    line: String,
    out: Option<JoinHandle<String>>,
    err: Option<JoinHandle<String>>,
}

/// Output of a server after its first line, and its exit status.
struct ServerOutput {
    status: ExitStatus,
    out: String,
    err: String,
}

fn read(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // The bytes before an error are the whole input.
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Running {
    /// Starts it with or without methods of authentication. Without, there is no line to wait for.
    fn start(
        words: &[OsString],
        settings: &ServerTestSettings,
        enabled: bool,
    ) -> Result<Self, String> {
        let (program, arguments) = words.split_first().ok_or("no command given")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        for name in ["IMPI_AUTH_NONE", "IMPI_AUTH_KEY", "WIREUP_IMPI_TOKEN"] {
            command.env_remove(name);
        }
        if let Some(key) = settings.access.key.filter(|_| enabled) {
            command.env("IMPI_AUTH_KEY", key.to_string());
        }
        if settings.access.none && enabled {
            command.env("IMPI_AUTH_NONE", "");
        }
        let mut child = command
            .spawn()
            .map_err(|error| format!("{}: {error}", program.to_string_lossy()))?;
        let err = child.stderr.take().map(read);
        let mut line = String::new();
        let mut out = child.stdout.take().map(BufReader::new);
        if let Some(out) = out.as_mut().filter(|_| enabled) {
            out.read_line(&mut line)
                .map_err(|error| error.to_string())?;
        }
        Ok(Self {
            child,
            line,
            out: out.map(read),
            err,
        })
    }

    fn end(mut self, timeout: Duration) -> Result<ServerOutput, String> {
        let status = super::wait_until(&mut self.child, Instant::now() + timeout);
        let status = status.map_err(|error| error.to_string())?;
        let status = status.ok_or_else(|| format!("the server did not end within {timeout:?}"))?;
        let text = |thread: Option<JoinHandle<String>>| {
            thread
                .and_then(|thread| thread.join().ok())
                .unwrap_or_default()
        };
        Ok(ServerOutput {
            status,
            out: text(self.out.take()),
            err: text(self.err.take()),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // What a script has started ends with it.
        if let Ok(None) = self.child.try_wait() {
            let _ = super::end_group(&mut self.child);
        }
    }
}

/// Plays the clients of one check.
fn play(settings: &ServerTestSettings, check: &Check, address: &str) -> Result<(), String> {
    let mut clients: BTreeMap<usize, TcpStream> = BTreeMap::new();
    for step in &check.steps {
        let (Step::Open(client)
        | Step::Send(client, _)
        | Step::Dribble(client, _)
        | Step::Expect(client, _)
        | Step::Quiet(client)
        | Step::Closed(client)
        | Step::Leave(client)) = step;
        let wrong = |what: String| format!("client {client}: {what}");
        if let Step::Open(_) = step {
            let stream = TcpStream::connect(address).map_err(|error| wrong(error.to_string()))?;
            stream
                .set_nodelay(true)
                .map_err(|error| wrong(error.to_string()))?;
            clients.insert(*client, stream);
            continue;
        }
        if let Step::Leave(_) = step {
            clients.remove(client);
            continue;
        }
        let stream = clients.get_mut(client).ok_or("a client is not connected")?;
        take(stream, step, settings.timeout).map_err(wrong)?;
    }
    Ok(())
}

fn take(stream: &mut TcpStream, step: &Step, timeout: Duration) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    match step {
        Step::Send(_, bytes) => stream.write_all(bytes).map_err(text),
        Step::Dribble(_, bytes) => {
            // The first byte alone, so that it is read alone, and the others as the network has them.
            let (first, others) = bytes.split_at(1.min(bytes.len()));
            stream.write_all(first).map_err(text)?;
            stream.set_read_timeout(Some(ALONE)).map_err(text)?;
            if let Ok(count @ 1..) = stream.peek(&mut [0]) {
                return Err(format!("{count} byte arrived before the unit was complete"));
            }
            others
                .chunks(1)
                .try_for_each(|byte| stream.write_all(byte))
                .map_err(text)
        }
        Step::Expect(_, expected) => {
            stream.set_read_timeout(Some(timeout)).map_err(text)?;
            let mut received = Vec::new();
            // A difference is known before all of the unit has arrived.
            while received.len() < expected.len() && expected.starts_with(&received) {
                let mut piece = vec![0; expected.len() - received.len()];
                match stream.read(&mut piece) {
                    Ok(count @ 1..) => received.extend(&piece[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    _ => break,
                }
            }
            (received == *expected)
                .then_some(())
                .ok_or_else(|| format!("{received:02x?} arrived instead of {expected:02x?}"))
        }
        Step::Quiet(_) => {
            stream.set_read_timeout(Some(QUIET)).map_err(text)?;
            match stream.peek(&mut [0]) {
                Ok(count @ 1..) => Err(format!(
                    "{count} byte arrived too early, or was not expected"
                )),
                _ => Ok(()),
            }
        }
        Step::Closed(_) => {
            stream.set_read_timeout(Some(timeout)).map_err(text)?;
            match stream.read(&mut [0]) {
                Ok(0) => Ok(()),
                Ok(_) => Err("the server answered".into()),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
                Err(_) => Err("the server did not close the connection".into()),
            }
        }
        Step::Open(_) | Step::Leave(_) => Ok(()),
    }
}
