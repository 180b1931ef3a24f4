//! Collects the facts of several hosts, through a launch of workers.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::protocol::{HostEndpoint, LineAssembler, WorkerCommand, WorkerMessage, WorkerReply};
use wireup_core::doctor::{Clock, DoctorHost, neighbours};
use wireup_core::failure::CommandError;
use wireup_core::job::hosts::HostSpec;
use wireup_sys::pidfd::wait_for;

/// Time in which hosts must report their facts, and check each other: name look-ups may take long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Timeout of a request for the time.
const TIME: Duration = Duration::from_secs(5);
/// Time in which the launch must end.
const END: Duration = Duration::from_secs(15);
/// Number of requests for the time; the fastest answer of each host counts.
const TIMES: u32 = 3;

/// Starts wireup from its path on this host, or as PATH finds it on the other. Its failure does not fail the launch, which would
/// end the workers on other hosts.
const SCRIPT: &str = r#"for own in "$0" "$(command -v wireup)"; do
  if [ -x "$own" ]; then
    "$own" "$@" || echo "wireup doctor there ended with status $?"
    exit 0
  fi
done
echo "no $0, and no wireup in PATH"
"#;

/// Words of the launch in front of the list of hosts.
const LAUNCH: &str =
    "run --no-config --engine none --pmi none --ppn 1 --label --stdin all --wdir / --hosts";

/// Host to check, as the user names it, with the version of its agent or the reason why that was not reached.
pub type WorkerHost = (HostSpec, Result<String, String>);

/// Collects the facts of all these hosts. `agent` is the socket of this host's agent if the user names one, `words` are
/// the arguments of a worker.
///
/// # Errors
/// If the launch cannot be started.
pub fn check_hosts(
    members: Vec<WorkerHost>,
    agent: Option<&OsString>,
    words: &[OsString],
) -> Result<Vec<DoctorHost>, CommandError> {
    let hosts = members.iter().map(|(spec, version)| DoctorHost {
        name: spec.name.clone(),
        agent: Some(version.clone()),
        facts: Err("it has not answered".to_owned()),
        clock: None,
        neighbours: Vec::new(),
        pairs: Vec::new(),
    });
    let mut hosts: Vec<DoctorHost> = hosts.collect();
    let reached = (0..members.len()).filter(|number| members[*number].1.is_ok());
    let reached: Vec<usize> = reached.collect();
    if reached.is_empty() {
        return Ok(hosts);
    }
    let list = reached.iter().map(|number| members[*number].0.entry());
    let list = list.collect::<Vec<_>>().join(",");
    let mut ask = |user: Option<User>| {
        let mut launch = WorkerLaunch::start(&list, agent, words, user)
            .map_err(|error| CommandError::system("cannot start wireup run", error))?;
        launch.question(&mut hosts, &reached);
        Ok::<_, CommandError>(launch.end())
    };
    let mut messages = ask(None)?;
    if rustix::process::geteuid().is_root() && messages.contains(ROOT_LAUNCHES) {
        let user = User::in_place_of_root();
        let number = user.uid;
        eprintln!(
            "wireup: the agents refuse launches of root; the hosts are checked as user id {number}"
        );
        messages = ask(Some(user))?;
    }
    for number in reached {
        let host = &mut hosts[number];
        if let Err(why) = &mut host.facts
            && let Some(line) = messages.lines().find(|line| line.starts_with("wireup: "))
        {
            *why = format!("{why}; {}", line.trim_start_matches("wireup: "));
        }
    }
    Ok(hosts)
}

/// Option of agents that a refusal of root's launch names.
const ROOT_LAUNCHES: &str = "--root-launches";

/// User of the workers where root's launches are refused.
#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

impl User {
    /// Returns the user who has called sudo, or else the overflow user, which has this number on every Linux.
    fn in_place_of_root() -> Self {
        let number = |name| std::env::var(name).ok()?.parse().ok();
        match (number("SUDO_UID"), number("SUDO_GID")) {
            (Some(uid @ 1..), Some(gid)) => Self { uid, gid },
            _ => Self {
                uid: 65_534,
                gid: 65_534,
            },
        }
    }
}

/// The launch of the workers.
struct WorkerLaunch {
    child: Child,
    orders: Option<ChildStdin>,
    /// Lines, each with its rank and the time of its arrival.
    lines: Receiver<(usize, String, Instant)>,
    stderr_reader: Option<std::thread::JoinHandle<String>>,
    pieces: BTreeMap<usize, LineAssembler>,
}

impl WorkerLaunch {
    fn start(
        hosts: &str,
        agent: Option<&OsString>,
        words: &[OsString],
        user: Option<User>,
    ) -> io::Result<Self> {
        let own = std::env::current_exe()?;
        let mut command = Command::new(&own);
        if let Some(User { uid, gid }) = user {
            // Directories of root in the environment are of no use to another user.
            command.uid(uid).gid(gid).current_dir("/");
            command.env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
        }
        command.arg0("wireup").args(LAUNCH.split(' ')).arg(hosts);
        if let Some(agent) = agent {
            command.arg("--agent").arg(agent);
        }
        command.args(["sh", "-c", SCRIPT]).arg(&own).args(words);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.stderr(Stdio::piped()).spawn()?;
        let (out, mut err) = (child.stdout.take(), child.stderr.take());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.into_iter().flat_map(|out| BufReader::new(out).lines()) {
                let Ok(line) = line else { return };
                let labelled = line
                    .strip_prefix('[')
                    .and_then(|rest| rest.split_once("] "));
                let Some((rank, text)) = labelled else {
                    continue;
                };
                if let Ok(rank) = rank.parse()
                    && sender
                        .send((rank, text.to_owned(), Instant::now()))
                        .is_err()
                {
                    return;
                }
            }
        });
        let stderr_reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(err) = &mut err {
                // Text before an error is kept.
                let _ = err.read_to_end(&mut text);
            }
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Self {
            orders: child.stdin.take(),
            child,
            lines,
            stderr_reader: Some(stderr_reader),
            pieces: BTreeMap::new(),
        })
    }

    /// Requests all data from the workers. `reached` has the host of each rank.
    fn question(&mut self, hosts: &mut [DoctorHost], reached: &[usize]) {
        let mut ports: BTreeMap<usize, u16> = BTreeMap::new();
        let mut done = 0;
        self.take_lines(Instant::now() + PATIENCE, reached.len(), |rank, line, _| {
            let Some(number) = reached.get(rank) else {
                return 0;
            };
            let host = &mut hosts[*number];
            let first = host.facts.is_err() && !ports.contains_key(number);
            match line {
                WorkerMessage::Answer(WorkerReply::Facts { facts, port }) => {
                    host.facts = Ok(*facts);
                    ports.insert(*number, port);
                }
                WorkerMessage::Answer(_) => return 0,
                WorkerMessage::Text(text) => {
                    ports.entry(*number).or_insert(0);
                    if host.facts.is_err() {
                        host.facts = Err(text);
                    }
                }
            }
            done += usize::from(first);
            usize::from(first)
        });
        let answered = reached
            .iter()
            .filter(|number| hosts[**number].facts.is_ok());
        let answered: Vec<usize> = answered.copied().collect();
        for number in 0..TIMES {
            self.time(number, hosts, reached, answered.len());
        }
        // Workers identify hosts by rank.
        let rank_of = |number: &usize| reached.iter().position(|it| it == number);
        let place = |(at, number): (usize, &usize)| {
            let facts = hosts[*number].reported_facts()?;
            let interfaces = facts.network.interfaces.iter();
            let usable = interfaces.filter(|it| it.up && !it.loopback);
            let reaches = neighbours::neighbour_indices(at, answered.len());
            Some((
                rank_of(number)?,
                HostEndpoint {
                    name: hosts[*number].name.clone(),
                    addresses: usable.flat_map(|it| it.addresses.iter().copied()).collect(),
                    port: ports.get(number).copied().unwrap_or(0),
                    reaches: reaches
                        .iter()
                        .filter_map(|at| rank_of(&answered[*at]))
                        .collect(),
                },
            ))
        };
        let places = answered.iter().enumerate().filter_map(place).collect();
        if answered.len() < 2 || !self.order(&WorkerCommand::Neighbours(places)) {
            return;
        }
        self.take_lines(
            Instant::now() + PATIENCE,
            answered.len(),
            |rank, line, _| {
                let (Some(number), WorkerMessage::Answer(WorkerReply::Neighbours(mut views))) =
                    (reached.get(rank), line)
                else {
                    return 0;
                };
                views.retain_mut(|it| match reached.get(it.host) {
                    Some(number) => {
                        it.host = *number;
                        true
                    }
                    None => false,
                });
                hosts[*number].neighbours = views;
                1
            },
        );
    }

    /// Sends one request for the time, and stores the answers.
    fn time(&mut self, number: u32, hosts: &mut [DoctorHost], reached: &[usize], count: usize) {
        let sent_at = Instant::now();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let (Ok(now), true) = (now, self.order(&WorkerCommand::Time(number))) else {
            return;
        };
        self.take_lines(sent_at + TIME, count, |rank, line, at| {
            let (
                Some(host),
                WorkerMessage::Answer(WorkerReply::Time {
                    number: of,
                    seconds,
                }),
            ) = (reached.get(rank), line)
            else {
                return 0;
            };
            let error = at.duration_since(sent_at).as_secs_f64() / 2.0;
            let clock = &mut hosts[*host].clock;
            if of == number && clock.is_none_or(|known| error < known.error) {
                let ahead = seconds - (now.as_secs_f64() + error);
                *clock = Some(Clock { ahead, error });
            }
            usize::from(of == number)
        });
    }

    /// Sends a command to all workers. Returns whether that was possible.
    fn order(&mut self, order: &WorkerCommand) -> bool {
        let mut line = serde_json::to_string(order).expect("text and numbers only");
        line.push('\n');
        let sent = self.orders.as_mut().map(|to| to.write_all(line.as_bytes()));
        sent.is_some_and(|sent| sent.is_ok())
    }

    /// Takes lines until `count` have been counted, the launch has ended, or the deadline has passed.
    fn take_lines(
        &mut self,
        deadline: Instant,
        count: usize,
        mut take: impl FnMut(usize, WorkerMessage, Instant) -> usize,
    ) {
        let mut counted = 0;
        while counted < count {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((rank, line, at)) = self.lines.recv_timeout(left) else {
                return;
            };
            if let Some(line) = self.pieces.entry(rank).or_default().take(&line) {
                counted += take(rank, line, at);
            }
        }
    }

    /// Ends the workers, and returns the text that the launcher has printed.
    fn end(mut self) -> String {
        drop(self.orders.take());
        if !wait_for(&self.child, END) {
            let pid = rustix::process::Pid::from_child(&self.child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        // The launcher ends within its grace time after the signal.
        let _ = self.child.wait();
        let reader = self.stderr_reader.take();
        let messages = reader.and_then(|reader| reader.join().ok());
        messages.unwrap_or_default()
    }
}
