//! A client of the job: the conversation with the server, for all hosts of a launch.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use wireup_impi_core::command::Command;
use wireup_impi_core::hexadecimal::hex;
use wireup_impi_core::packet::{ProcId, host_bytes};
use wireup_impi_core::server::MAX_PRINT;
use wireup_impi_core::startup::{Startup, StartupError};
use wireup_impi_core::world::{ClientOffer, HostOffer, ImpiJob, encode};

use super::invitation::HostInvitation;
use super::{AgentError, LaunchSettings, process_handshake, world_environment};
use crate::stream::{ServerStream, pause};

/// Times to wait before further tries when the server closes a connection and has sent nothing.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(3),
];

/// A host of a launch, as the other clients get to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublishedHost {
    /// Address at which the host listens for other hosts.
    pub address: SocketAddr,
    /// Number of the host's processes.
    pub procs: usize,
}

/// A client that has joined.
#[derive(Debug)]
pub struct JoinedMember {
    pub world: ImpiJob,
    settings: LaunchSettings,
    server: ServerStream,
    ticket: process_handshake::ProcessTicket,
    values: Vec<u8>,
}

impl JoinedMember {
    /// Joins with these hosts, which listen: returns when all clients have.
    ///
    /// # Errors
    /// When it cannot.
    pub fn join(settings: LaunchSettings, places: &[PublishedHost]) -> Result<Self, AgentError> {
        let mut pauses = PAUSES.iter();
        let (server, startup, world) = loop {
            let mut answered = false;
            match join_job(&settings, places, &mut answered) {
                // Too many others had connected.
                Err(AgentError::Server {
                    error: StartupError::Ended(_),
                    ..
                }) if !answered && let Some(time) = pauses.next() => pause(*time),
                other => break other?,
            }
        };
        if settings.is_printing && !startup.has_print_server() {
            return Err(AgentError::PrintServer(settings.server));
        }
        let (clients, collected) = startup.collected();
        Ok(Self {
            values: encode(clients, collected),
            ticket: process_handshake::ticket().map_err(AgentError::io("random bytes"))?,
            world,
            server,
            settings,
        })
    }

    /// Returns the invitation for a host of this client.
    pub fn invitation(&self) -> HostInvitation {
        HostInvitation {
            client: self.settings.client,
            lam: self.settings.lam,
            ticket: self.ticket,
            values: self.values.clone(),
        }
    }

    /// Returns the variables for the processes' environment, without the addresses of their hosts.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut variables =
            world_environment::variables(&self.world, self.settings.client as usize);
        variables.push((process_handshake::TICKET_VARIABLE, hex(&self.ticket)));
        variables
    }

    /// Prints a line of a process: at the server, or here if that does not print.
    pub fn print(&mut self, line: &str) {
        if !self.send_line(line) {
            eprintln!("wireup impi: {line}");
        }
    }

    /// Reports an error to a print server, besides the report here.
    pub fn report(&mut self, error: &str) {
        self.send_line(error);
    }

    /// Sends a line to the print server; returns false if there is none, or it cannot be reached.
    fn send_line(&mut self, line: &str) -> bool {
        let end = line.floor_char_boundary(MAX_PRINT);
        let unit = Command::Print.unit(&line.as_bytes()[..end]);
        let mut send = || {
            let server = self.server.stream();
            server.write_all(&unit)?;
            server.flush()
        };
        self.settings.is_printing && send().is_ok()
    }

    /// Leaves the job: all processes have finished, and all channels are closed.
    pub fn leave(mut self) {
        // A write to a server that has ended may succeed.
        let result = is_there(self.server.socket())
            .and_then(|()| self.server.stream().write_all(&Command::Fini.unit(&[])))
            .and_then(|()| self.server.stream().flush());
        // That the server is gone by now does no harm to the job.
        if let Err(error) = result {
            let server = &self.settings.server;
            eprintln!("wireup impi: warning: server {server}: {error}");
        }
    }
}

/// Makes one attempt to join the job: talks to the server until all clients have joined. `answered` is set if the
/// server sent anything.
fn join_job(
    settings: &LaunchSettings,
    places: &[PublishedHost],
    answered: &mut bool,
) -> Result<(ServerStream, Startup, ImpiJob), AgentError> {
    let server = settings.server.as_str();
    let to_server = || AgentError::io(format!("server {server}"));
    let connection = ServerStream::connect(server, settings.tls.clone());
    let mut connection = connection.map_err(to_server())?;
    let stream = connection.stream();
    let mut startup = Startup::new(
        settings.secrets.clone(),
        settings.client,
        offer(settings, places),
    );
    if settings.is_printing {
        startup = startup.with_print_request();
    }
    let broken = |error| AgentError::Server {
        server: server.to_owned(),
        error,
    };
    let mut piece = vec![0; 64 * 1024];
    let world = loop {
        let sent = stream.write_all(&startup.take_out());
        let count = match sent.and_then(|()| stream.read(&mut piece)) {
            Ok(count) => count,
            // A server that closes with input unread resets the connection.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionReset
                        | io::ErrorKind::BrokenPipe
                        // Over TLS, the end of a connection without a notice of its end.
                        | io::ErrorKind::UnexpectedEof
                ) =>
            {
                0
            }
            Err(error) => return Err(to_server()(error)),
        };
        if count == 0 {
            return Err(broken(StartupError::Ended(startup.phase())));
        }
        *answered = true;
        if let Some(world) = startup.received(&piece[..count]).map_err(broken)? {
            break world;
        }
    };
    Ok((connection, startup, world))
}

/// Whether the other end has not closed the connection.
fn is_there(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false)?;
    match peeked {
        Ok(0) => Err(io::Error::other("it ended before the job")),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

fn offer(settings: &LaunchSettings, places: &[PublishedHost]) -> ClientOffer {
    // Numbers that no two clients share, also where they share an address; LAM announces process ids, which are below.
    let mut pids = i64::from(settings.client + 1) << 23..;
    let hosts = places.iter().map(|place| {
        let host = host_bytes(place.address.ip());
        let pids = pids.by_ref().take(place.procs);
        HostOffer {
            address: host,
            port: place.address.port(),
            ack_mark: settings.ack_mark,
            high_water: settings.high_water,
            procs: pids.map(|pid| ProcId { host, pid }).collect(),
        }
    });
    ClientOffer {
        hosts: hosts.collect(),
        versions: vec![(0, 0)],
        data_length: settings.data_length,
        tag_upper_bound: i32::MAX,
        crossover_size: settings.crossover_size,
        max_linear: settings.max_linear,
    }
}
