//! Rank proxy: a process of the launch with a rank's PMI socket and variables. It listens for the rank's client, which others
//! start (`wireup serve`), and relays its bytes.
//!
//! To the launch it is a rank like any other: placement, barriers, failures and the end need no special rules, on one
//! host or many. [`rank_variables`] computes the variables of the client; `rank_port` admits the client, by the rules of core's
//! `pmi::tcp_handshake`; `socket_relay` relays bytes; `pmix_port` does both for PMIx; `notices` serves the client's second
//! connection, and `multiplexed_connection` a client that speaks for several ranks; `tls_port` has TLS served in front of the port.
//! The proxy exits when the client has ended: the server judges that by the client's last requests, as it does with the exit of
//! a rank. [`mpich_singleton`] works the other way round: it connects to a process that was started without a
//! launcher. [`openmpi_singleton`] does that for Open MPI; `singleton_end` ends the program of either with its launch.

pub mod mpich_singleton;
mod multiplexed_connection;
mod node_socket;
mod notices;
pub mod openmpi_singleton;
mod pending_handover;
mod pmix_port;
mod rank_port;
pub mod rank_variables;
mod refused_connections;
mod singleton_end;
pub mod socket_relay;
mod task_socket;
mod tls_port;

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Signal;

use multiplexed_connection::{MultiplexedConnection, MultiplexedEnd};
use node_socket::NodeSocketNames;
use notices::NoticeSubscribers;
use pending_handover::{HandoverStatus, PendingHandover};
use pmix_port::PmixPort;
use rank_port::{AcceptedConnection, ClientListener, RankPort, Refusal};
use rank_variables::{RankEndpoint, RankEnvironment, server_address};
use refused_connections::RefusalLines;
use socket_relay::{RelayStatus, SocketRelay};
use task_socket::TaskSocket;
use tls_port::TlsPort;
use wireup_core::failure::{AnyError, CommandError, about};
use wireup_core::job::ids::{Nspace, Rank};
use wireup_core::pmi::challenge::{AuthKey, ClientAuth};
use wireup_core::pmi::client_handover::ClientHandover;
use wireup_core::wording::without_error_codes;
use wireup_sys::inherited_fd;
use wireup_sys::poll::wait_for_events;
use wireup_sys::signals::{Signals, ignored_at_start};

/// Authentication that the port requires of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortAuth {
    /// The client must answer a challenge with an HMAC.
    Challenge,
    /// The client must answer a challenge, with an HMAC or the hash of PMI-2's draft.
    ChallengeSha256,
    /// The client must speak TLS, with the certificate of its rank.
    Tls,
    /// No authentication, on any interface.
    None,
}

impl PortAuth {
    /// The values of `wireup serve --pmi-port-auth`.
    pub const NAMES: [(&str, Self); 4] = [
        ("challenge", Self::Challenge),
        ("challenge-sha256", Self::ChallengeSha256),
        ("tls", Self::Tls),
        ("none", Self::None),
    ];
}

/// Settings of the rank proxies of a launch.
#[derive(Debug)]
pub struct Settings {
    /// Address of the interface on which the ports are opened.
    pub listen: IpAddr,
    /// Port of rank 0; each rank has the next one. Any free port without it.
    pub first_port: Option<u16>,
    /// Choice of the user. Without it, clients must authenticate unless only this host can connect.
    pub auth: Option<PortAuth>,
    /// Directory on this host for a file with the rank's variables.
    pub env_dir: Option<PathBuf>,
    /// Beginning of the names of sockets at which tasks get their variables.
    pub task_socket: Option<String>,
    /// Whether the variables are printed as JSON.
    pub json: bool,
    /// Whether another client may follow one that disconnected without a finalize.
    pub restartable: bool,
    /// Executable that serves TLS.
    pub tls_program: PathBuf,
}

/// Variables with a rank's place.
const RANK: &str = "WIREUP_RANK";
const SIZE: &str = "WIREUP_SIZE";
const HOST: &str = "WIREUP_HOST";
const MACHINE: &str = "WIREUP_MACHINE";
const NODE: &str = "WIREUP_NODE";
const JOB: &str = "WIREUP_JOB_ID";

/// Serves one rank until its client has ended. Returns the exit code, which is 0 unless a signal ended the proxy.
///
/// # Errors
/// [`CommandError`] if this process was not started by a launch as a rank, or cannot listen.
pub fn serve(settings: &Settings) -> Result<u8, CommandError> {
    let signals = Signals::take(&ignored_at_start(), false);
    let signals = signals.map_err(|error| CommandError::system("cannot take signals", error))?;
    let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
    let node = number(NODE).zip(set(JOB));
    let names = node.map(|(node, job)| NodeSocketNames::new(&job, node));
    let (Some(rank), Some(size), Some(names)) = (number(RANK), number(SIZE), names) else {
        let text = "this part of `wireup serve` is started by a launch";
        return Err(CommandError::request(text.to_owned()));
    };
    let rank = Rank(rank);
    let listens = |error| CommandError::system(format!("rank {rank} cannot listen"), error);
    let mut stand_in = RankProxy::new(settings, rank, size, names, signals).map_err(listens)?;
    let writes =
        |error| CommandError::system(format!("cannot write the variables of rank {rank}"), error);
    stand_in.publish(settings).map_err(writes)?;
    stand_in.run()
}

/// Returns `N` random bytes.
fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}

/// Proxy of one rank.
struct RankProxy {
    rank: Rank,
    signals: Signals,
    key: AuthKey,
    /// Port of the rank, and the socket to the server while there is no client.
    pmi: Option<(RankPort, Option<OwnedFd>)>,
    /// HOST:PORT of the port.
    address: Option<String>,
    /// Process in front of the port, and the certificate with its key.
    tls: Option<(TlsPort, String)>,
    pmix: Option<PmixPort>,
    client: Option<SocketRelay>,
    /// Connection of a daemon that speaks for several ranks; `client` is then its part for this rank.
    multiplexed: Option<MultiplexedConnection>,
    names: NodeSocketNames,
    /// Data that the next client needs, if several may follow each other.
    succession: Option<ClientHandover>,
    /// Handover to the next client: the last one has disconnected, and the server has not answered yet.
    interval: Option<PendingHandover>,
    /// Whether the PMI client has ended.
    served: bool,
    task: Option<TaskSocket>,
    notices: NoticeSubscribers,
    refusals: RefusalLines,
}

impl RankProxy {
    fn new(
        settings: &Settings,
        rank: Rank,
        size: u32,
        names: NodeSocketNames,
        signals: Signals,
    ) -> io::Result<Self> {
        let key = AuthKey::new(random()?);
        let required = match settings.auth {
            Some(auth) => auth != PortAuth::None,
            None => !settings.listen.is_loopback(),
        };
        let server = env::var("PMI_FD")
            .ok()
            .and_then(|number| number.parse().ok());
        let server = server.map(inherited_fd::socket).transpose()?;
        let (mut address, mut tls) = (None, None);
        let pmi = match server {
            None => None,
            Some(server) => {
                let first = settings.first_port;
                let port = first.map_or(Some(0), |first| {
                    u16::try_from(rank.0).ok()?.checked_add(first)
                });
                let none = || {
                    let first = first.unwrap_or_default();
                    io::Error::other(format!("--pmi-port {first} leaves no port for it"))
                };
                let at = SocketAddr::new(settings.listen, port.ok_or_else(none)?);
                let listener = TcpListener::bind(at).map_err(|error| about(&at, &error))?;
                listener.set_nonblocking(true)?;
                let bound = listener.local_addr()?;
                address = Some(match bound.ip() {
                    ip if ip.is_unspecified() => format!("{}:{}", reached_as(), bound.port()),
                    _ => bound.to_string(),
                });
                let key = key.clone();
                let job = env::var("PMI_JOBID").ok();
                let job = job.and_then(|job| Nspace::new(&job).ok());
                let proof = ClientAuth {
                    key,
                    required,
                    has_draft_type: settings.auth == Some(PortAuth::ChallengeSha256),
                };
                let node_listener = names.listen(rank)?;
                let listener = match settings.auth {
                    Some(PortAuth::Tls) => {
                        let name = names.tls_name(rank);
                        let clients = node_socket::listen(&name)?;
                        let started = TlsPort::start(&settings.tls_program, listener, &name, rank);
                        tls = Some(started.map_err(io::Error::other)?);
                        ClientListener::Tls(clients)
                    }
                    _ => ClientListener::Tcp(listener),
                };
                let entrance = RankPort::new(listener, node_listener, rank, size, job, proof);
                Some((entrance, Some(server)))
            }
        };
        let pmix = env::vars().find_map(|(name, value)| server_address(&name, &value));
        if pmi.is_none() && pmix.is_none() {
            return Err(io::Error::other("the launch offers neither PMI nor PMIx"));
        }
        Ok(Self {
            rank,
            signals,
            key,
            pmi,
            address,
            tls,
            pmix: pmix.map(PmixPort::new).transpose()?,
            client: None,
            multiplexed: None,
            names,
            succession: settings.restartable.then(ClientHandover::default),
            interval: None,
            served: false,
            task: None,
            notices: NoticeSubscribers::default(),
            refusals: RefusalLines::default(),
        })
    }

    /// Prints, writes or offers the variables that the client needs.
    fn publish(&mut self, settings: &Settings) -> io::Result<()> {
        let rank = self.rank;
        let address = self.address.clone();
        let mut tls_file = None;
        if let (Some((_, pem)), Some(dir)) = (&self.tls, &settings.env_dir) {
            let name = format!("rank-{rank}.pem");
            let file = dir.join(&name);
            write_private(dir, &name, pem).map_err(|error| about(&file.display(), &error))?;
            tls_file = Some(file);
        }
        let served = RankEndpoint {
            rank,
            pmi: address.map(|address| (address, self.key.clone())),
            tls_file,
            pmix: self.pmix.as_ref().map(PmixPort::port).transpose()?,
        };
        let own = env::vars_os()
            .filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
        let environment = RankEnvironment::new(own, &served);
        if let Some(dir) = &settings.env_dir {
            let name = format!("rank-{rank}.env");
            write_private(dir, &name, &environment.lines())
                .map_err(|error| about(&dir.join(name).display(), &error))?;
        }
        if let Some(name) = &settings.task_socket {
            let task = TaskSocket::new(name, rank, environment.lines());
            self.task = Some(task.map_err(|error| about(&name, &error))?);
        }
        let mut out = io::stdout().lock();
        if settings.json {
            writeln!(out, "{}", environment.json(rank, &node_name()))?;
        } else if settings.env_dir.is_none() && settings.task_socket.is_none() {
            writeln!(out, "# rank {rank}\n{}", environment.lines())?;
        }
        out.flush()
    }

    fn run(mut self) -> Result<u8, CommandError> {
        loop {
            self.wait()
                .map_err(|error| CommandError::system("cannot wait", error))?;
            while let Some(signal) = self.signals.pending() {
                match signal {
                    Signal::TERM
                    | Signal::INT
                    | Signal::HUP
                    | Signal::QUIT
                    | Signal::ABORT
                    | Signal::ALARM
                    | Signal::XCPU => {
                        self.notices.send("cmd=abort reason=the_job_ends");
                        self.end_task();
                        return Ok(128u8.wrapping_add(signal.as_raw() as u8));
                    }
                    Signal::USR1 => self.notices.send("cmd=checkpoint"),
                    _ => {}
                }
            }
            self.advance();
            let tls = self.tls.as_mut();
            if tls.is_some_and(|(process, _)| process.has_ended()) {
                let text = "the process for TLS has ended";
                return Err(CommandError::system("cannot serve", io::Error::other(text)));
            }
            let pmix = self.pmix.as_ref();
            let over = match &self.task {
                Some(task) => task.has_ended,
                None => self.served || pmix.is_some_and(PmixPort::is_over),
            };
            let is_idle = self.client.is_none() && self.multiplexed.is_none();
            if over && is_idle && !pmix.is_some_and(PmixPort::is_used) {
                return Ok(0);
            }
        }
    }

    /// Closes the connections, and ends the task that was started as this rank.
    fn end_task(&mut self) {
        if let Some(task) = &self.task {
            (self.client, self.multiplexed, self.pmix) = (None, None, None);
            task.end();
        }
    }

    /// Accepts connections and relays bytes, as far as possible. The end of a client is handled before the next one.
    fn advance(&mut self) {
        let rank = self.rank;
        // The connections that the task has made are accepted below.
        if let Some(task) = &mut self.task {
            task.advance();
        }
        self.carry();
        if let Some((entrance, server)) = &mut self.pmi
            && self.interval.is_none()
        {
            let mut print = refusal_printer(rank, &mut self.refusals);
            while let Some(arrival) = entrance.arrival(Instant::now(), &mut print) {
                match arrival {
                    AcceptedConnection::Client {
                        stream,
                        received,
                        greeted,
                        is_multiplexed: false,
                    } => {
                        if let Some(server) = server.take() {
                            let carrier = SocketRelay::new(stream, server);
                            let carrier = carrier.followed(self.succession.take());
                            let carrier = carrier.begun(received);
                            self.client = Some(match greeted {
                                true => carrier.without_greeting(),
                                false => carrier,
                            });
                        }
                    }
                    AcceptedConnection::Client {
                        stream, received, ..
                    } => match multiplex(stream, &received, self.names.clone(), rank) {
                        Ok((connection, own)) => {
                            if let Some(server) = server.take() {
                                let carrier = SocketRelay::new(own, server);
                                self.client = Some(carrier.followed(self.succession.take()));
                                self.multiplexed = Some(connection);
                            }
                        }
                        Err(error) => {
                            eprintln!("wireup: rank {rank}: {error}");
                            entrance.reopen();
                        }
                    },
                    AcceptedConnection::Listener { stream, signal } => {
                        let from = stream.peer_addr();
                        let added = self.notices.add(stream, signal);
                        if let (Err(refusal), Ok(from)) = (added, from) {
                            print(from, refusal);
                        }
                    }
                }
            }
        }
        self.notices.sweep();
        self.carry();
        if let Some(pmix) = &mut self.pmix {
            pmix.advance(refusal_printer(rank, &mut self.refusals));
        }
    }

    /// Relays the client's bytes. When it has disconnected, the server is notified before another client is accepted.
    fn carry(&mut self) {
        let rank = self.rank;
        if let Some(Err(end)) = self
            .multiplexed
            .as_mut()
            .map(MultiplexedConnection::advance)
        {
            self.multiplexed = None;
            if !matches!(end, MultiplexedEnd::Closed) {
                eprintln!("wireup: rank {rank}: {end}");
            }
        }
        if let Some(mut client) = self.client.take() {
            if client.carry(|_, _| {}) == RelayStatus::On {
                self.client = Some(client);
                return;
            }
            self.interval = PendingHandover::from_ended_client(client);
            self.served = self.interval.is_none();
        }
        match self.interval.take().map(PendingHandover::advance) {
            None => {}
            Some(HandoverStatus::Waits(interval)) => self.interval = Some(interval),
            Some(HandoverStatus::Closed) => self.served = true,
            Some(HandoverStatus::Over((server, succession))) => {
                eprintln!("wireup: rank {rank}: client disconnected; waiting for a new process");
                self.succession = Some(succession);
                if let Some((entrance, free)) = &mut self.pmi {
                    entrance.reopen();
                    *free = Some(server);
                }
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        let mut sources: Vec<(BorrowedFd<'_>, PollFlags)> =
            vec![(self.signals.as_fd(), PollFlags::IN)];
        if let Some((entrance, _)) = self.pmi.as_ref().filter(|_| self.interval.is_none()) {
            sources.extend(entrance.sources().map(|fd| (fd, PollFlags::IN)));
        }
        let tls = self.tls.iter().map(|(process, _)| process.interest());
        sources.extend(tls.map(|fd| (fd, PollFlags::IN)));
        let task = self.task.iter().filter_map(TaskSocket::interest);
        sources.extend(task.map(|fd| (fd, PollFlags::IN)));
        sources.extend(self.notices.sources().map(|fd| (fd, PollFlags::IN)));
        sources.extend(self.client.iter().flat_map(SocketRelay::interests));
        let multiplexed = self.multiplexed.iter();
        sources.extend(multiplexed.flat_map(MultiplexedConnection::interests));
        sources.extend(self.interval.iter().map(PendingHandover::interest));
        sources.extend(self.pmix.iter().flat_map(PmixPort::interests));
        let mut ready: Vec<PollFd<'_>> = sources
            .into_iter()
            .map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags))
            .collect();
        let until = self
            .pmi
            .as_ref()
            .and_then(|(entrance, _)| entrance.deadline());
        let most = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            // Rounded up, so that the wait does not end too early and repeat.
            Timespec {
                tv_sec: left.as_secs() as i64 + 1,
                tv_nsec: 0,
            }
        });
        Ok(wait_for_events(&mut ready, most.as_ref())?)
    }
}

/// Starts the connection of a daemon. Returns also the end of a socket pair that stands for the client of this rank.
fn multiplex(
    stream: OwnedFd,
    received: &[u8],
    names: NodeSocketNames,
    rank: Rank,
) -> Result<(MultiplexedConnection, OwnedFd), AnyError> {
    let (own, client) = UnixStream::pair()?;
    own.set_nonblocking(true)?;
    client.set_nonblocking(true)?;
    let connection = MultiplexedConnection::new(stream, received, names, rank, own.into())?;
    Ok((connection, client.into()))
}

/// Returns a function that prints refusals, as far as these are not too many.
fn refusal_printer(rank: Rank, refusals: &mut RefusalLines) -> impl FnMut(SocketAddr, Refusal) {
    move |from, refusal| {
        for line in refusals.add(from, &refusal, Instant::now()) {
            eprintln!("wireup: rank {rank}: {}", without_error_codes(&line));
        }
    }
}

/// Returns the name of this rank's node.
fn node_name() -> String {
    let own = || {
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned()
    };
    set(HOST).unwrap_or_else(own)
}

/// Returns the name by which others reach this host. The name of a virtual node exists for its ranks only.
fn reached_as() -> String {
    set(MACHINE).unwrap_or_else(node_name)
}

/// Returns a variable that is set and not empty.
fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Writes a file that only this user can read. The file is complete as soon as it exists.
fn write_private(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let (partial, whole) = (dir.join(format!(".{name}.part")), dir.join(name));
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)?;
    file.write_all(text.as_bytes())?;
    fs::rename(partial, whole)
}
