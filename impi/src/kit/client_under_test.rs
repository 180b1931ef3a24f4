//! Plays the server and the other clients for one client under test, and judges its messages.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wireup_impi_core::auth::{Method, Secrets};
use wireup_impi_core::kit::conformance_rules::{CheckedBy, Level, Rule};
use wireup_impi_core::kit::conversation_record::RecordedEvent;
use wireup_impi_core::kit::{Finding, Observer, Party};
use wireup_impi_core::server;

use super::check_program::{PARTS, ProgramScope, play};
use super::recorder::Recorder;
use super::recording_proxy;
use super::tap::CheckOutcome;
use crate::agent::process_handshake::{AGENT, TICKET_VARIABLE};
use crate::agent::{self, Events};
use crate::peer::Peer;
use crate::rendezvous;

/// Settings of a test of a client.
#[derive(Clone, Debug)]
pub struct ClientTestSettings {
    /// All clients, that under test included.
    pub clients: u32,
    /// Rank of the client under test.
    pub client: u32,
    /// Processes of each other client.
    pub procs: usize,
    /// Address of the server and of the other clients; each has its own if this is loopback.
    pub address: IpAddr,
    /// Whether the client under test is LAM: byte order, and context of Reduce.
    pub lam: bool,
    /// Parts of the program.
    pub scope: ProgramScope,
    /// Within which all must be over.
    pub timeout: Duration,
    /// Secrets that prove that a client belongs to the job.
    pub secrets: Secrets,
    /// Starts the client; `{server}` and `{client}` stand for the server's address and the client's number.
    pub command: Vec<OsString>,
}

/// Result of a test of a client.
#[derive(Debug)]
pub struct ClientReport {
    /// Each part of the check program by its name, as the processes of the other clients have executed it.
    pub parts: Vec<(&'static str, CheckOutcome)>,
    /// Each rule that a conversation shows, for the client under test.
    pub rules: Vec<(Rule, CheckOutcome)>,
    /// The command's end, and the other clients'.
    pub run: CheckOutcome,
}

/// Runs the client under test.
///
/// # Errors
/// When the parts around it cannot be started.
pub fn check(
    settings: &ClientTestSettings,
    mut keep: impl FnMut(&RecordedEvent) + Send + 'static,
) -> io::Result<ClientReport> {
    let listener = rendezvous::bind(settings.address, 0..=0)?;
    let server = listener.local_addr()?.to_string();
    let config = server::ServerSettings {
        count: settings.clients,
        sessions: Some(1),
        preference: Method::ALL.to_vec(),
        secrets: settings.secrets.clone(),
        greeting_timeout: settings.timeout,
        startup_timeout: Some(settings.timeout),
        is_print_server: false,
    };
    // Reports about clients come from the rules.
    let _server = std::thread::spawn(move || {
        rendezvous::serve(&listener, config, None, None, &mut io::sink())
    });
    let observer = Arc::new(Mutex::new(Observer::new(true)));
    let watch = Arc::clone(&observer);
    let recorder = Recorder::new(Box::new(move |event| {
        keep(&event);
        let mut observer = watch.lock().unwrap_or_else(PoisonError::into_inner);
        drop(observer.event(&event));
    }));
    let front = TcpListener::bind((settings.address, 0))?;
    let address = front.local_addr()?.to_string();
    let here = settings.address;
    let proxy = std::thread::spawn(move || recording_proxy::run(&front, &server, here, recorder));
    let progress = PartProgress::default();
    let others: Vec<JoinHandle<Result<(), String>>> = (0..settings.clients)
        .filter(|client| *client != settings.client)
        .map(|client| {
            let (settings, address) = (settings.clone(), address.clone());
            let progress = progress.clone();
            std::thread::spawn(move || run_client(&settings, client, address, &progress))
        })
        .collect();
    let run = run(settings, &address, others);
    // After the clients' end the proxy has ended too, except for the rest of its record.
    let until = Instant::now() + Duration::from_secs(10);
    while !proxy.is_finished() && Instant::now() < until {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
    observer.finish();
    Ok(ClientReport {
        parts: progress.outcomes(settings),
        rules: judge(&observer, Party::Client(settings.client)),
        run,
    })
}

/// Processes of the kit that have passed each part of the program.
#[derive(Clone, Default)]
struct PartProgress(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl PartProgress {
    fn add(&self, part: &'static str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(part).or_default() += 1;
    }

    /// Returns the outcome of each part: of those that not all processes have passed, only the first counts.
    fn outcomes(&self, settings: &ClientTestSettings) -> Vec<(&'static str, CheckOutcome)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = (settings.clients as usize - 1) * settings.procs;
        let mut failed = None;
        let parts = PARTS.into_iter().map(|(part, is_in, _)| {
            let count = counts.get(part).copied().unwrap_or(0);
            let outcome = if !is_in(settings.scope) {
                CheckOutcome::Skipped("left out".into())
            } else if count == all {
                CheckOutcome::Passed
            } else if let Some(failed) = failed {
                CheckOutcome::Skipped(format!("{failed} has not passed"))
            } else {
                failed = Some(part);
                let reached = format!("{count} of {all} processes of the kit have passed");
                CheckOutcome::Failed(reached)
            };
            (part, outcome)
        });
        parts.collect()
    }
}

fn judge(observer: &Observer, party: Party) -> Vec<(Rule, CheckOutcome)> {
    let findings = observer.findings();
    let applied_rules = observer.applied_rules(party);
    // The others are the server's to keep.
    let rules = Rule::ALL
        .iter()
        .copied()
        .filter(|rule| rule.by() == CheckedBy::Conversation || applied_rules.contains(rule));
    rules
        .map(|rule| {
            let mine = |finding: &&Finding| finding.party == party && finding.rule == rule;
            let words: Vec<String> = findings
                .iter()
                .filter(mine)
                .map(ToString::to_string)
                .collect();
            let outcome = match rule.level() {
                _ if !applied_rules.contains(&rule) => {
                    CheckOutcome::Skipped("the client did not do this".into())
                }
                _ if words.is_empty() => CheckOutcome::Passed,
                Level::Must => CheckOutcome::Failed(words.join("\n")),
                Level::Should | Level::Finding => CheckOutcome::Differs(words.join("; ")),
            };
            (rule, outcome)
        })
        .collect()
}

/// Starts the command, and waits for it and for the other clients.
fn run(
    settings: &ClientTestSettings,
    server: &str,
    other_clients: Vec<JoinHandle<Result<(), String>>>,
) -> CheckOutcome {
    let mut child = match start(settings, server) {
        Ok(child) => child,
        Err(error) => return CheckOutcome::Failed(format!("cannot start the command: {error}")),
    };
    let until = Instant::now() + settings.timeout;
    let mut words = Vec::new();
    match super::wait_until(&mut child, until) {
        Ok(Some(status)) if status.success() => {}
        Ok(Some(status)) => words.push(format!("the command ended with {status}")),
        Ok(None) => words.push(match super::end_group(&mut child) {
            Ok(()) => format!("the command did not end within {:?}", settings.timeout),
            Err(error) => format!("the command: {error}"),
        }),
        Err(error) => words.push(format!("the command: {error}")),
    }
    // The event for which the kit itself waits may never come.
    let until = until.max(Instant::now() + Duration::from_secs(10));
    for other in other_clients {
        while !other.is_finished() && Instant::now() < until {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        if !other.is_finished() {
            words.push("a client of the kit did not end".into());
            continue;
        }
        match other.join() {
            Ok(Ok(())) => {}
            Ok(Err(what)) => words.push(format!("a client of the kit: {what}")),
            Err(_) => words.push("a client of the kit failed".into()),
        }
    }
    if words.is_empty() {
        CheckOutcome::Passed
    } else {
        CheckOutcome::Failed(words.join("\n"))
    }
}

fn start(settings: &ClientTestSettings, server: &str) -> io::Result<Child> {
    let client = settings.client.to_string();
    let mut words = settings.command.iter().map(|word| match word.to_str() {
        Some(word) => word
            .replace("{server}", server)
            .replace("{client}", &client)
            .into(),
        None => word.clone(),
    });
    let program = words.next().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    if settings.secrets.key.is_none() && settings.secrets.token.is_none() {
        command.env("IMPI_AUTH_NONE", "");
    }
    // Standard output has the results.
    command
        .args(words)
        .stdout(io::stderr())
        .process_group(0)
        .spawn()
}

/// Runs a client with its processes.
fn run_client(
    settings: &ClientTestSettings,
    client: u32,
    server: String,
    progress: &PartProgress,
) -> Result<(), String> {
    let address = match settings.address {
        // Clients such as LAM know hosts by their addresses.
        IpAddr::V4(address) if address.is_loopback() => {
            Ipv4Addr::new(127, 0, 0, 11 + u8::try_from(client).unwrap_or(0)).into()
        }
        address => address,
    };
    let joined = agent::join(agent::LaunchSettings {
        server,
        client,
        procs: settings.procs,
        address,
        data_length: 65_536,
        ack_mark: 10,
        high_water: 20,
        crossover_size: -1,
        max_linear: -1,
        lam: settings.lam,
        is_printing: false,
        secrets: settings.secrets.clone(),
        tls: None,
    })
    .map_err(|error| error.to_string())?;
    let variables = joined.environment();
    let of = |name: &str| {
        let variable = variables.iter().find(|(known, _)| *known == name);
        variable.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let (agent, ticket) = (of(AGENT), of(TICKET_VARIABLE));
    let events = Events::default();
    let over = events.launch_over();
    let (procs, scope, progress) = (settings.procs, settings.scope, progress.clone());
    let processes = std::thread::spawn(move || {
        let process = |index| {
            let progress = progress.clone();
            let peer = Peer::connect(&agent, &ticket, index).map_err(|error| error.to_string())?;
            play(peer, scope, |part| progress.add(part)).map_err(|error| error.to_string())
        };
        let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..u32::try_from(procs).unwrap_or(0))
                .map(|index| scope.spawn(move || process(index)))
                .collect();
            let joined = running.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err("a process has failed".into()))
            });
            joined.collect()
        });
        let result = results.into_iter().collect::<Result<Vec<()>, String>>();
        over.report(result.is_err());
        result.map(drop)
    });
    let served = joined
        .serve(&events, settings.timeout)
        .map_err(|error| error.to_string());
    let played = processes
        .join()
        .unwrap_or_else(|_| Err("the processes have failed".into()));
    served.and(played)
}
