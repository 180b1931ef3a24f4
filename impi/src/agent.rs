//! The agent of a launch: its client towards the server, and the one host of its processes.
//!
//! The order: listen, talk to the server, connect with all hosts, let the processes in, forward packets, and at the
//! end FINI to each host and to the server. Source: IMPI 2.3.8, 2.4.

pub mod dance;
mod environment;
pub mod greeting;
mod service;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use wireup_impi_core::auth::Secrets;
use wireup_impi_core::command::Command;
use wireup_impi_core::external32::Representation;
use wireup_impi_core::packet::ProcId;
use wireup_impi_core::startup::{Startup, StartupError};
use wireup_impi_core::world::{HostOffer, Offer, World, encode};

use crate::stream::ServerStream;
pub use service::Events;

/// What a launch brings into the world.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `HOST:PORT` of the server.
    pub server: String,
    /// Rank of this client.
    pub client: u32,
    /// Processes of the launch.
    pub procs: usize,
    /// Address that other hosts connect to, and from which this one connects.
    pub address: IpAddr,
    /// Most data of a packet.
    pub data_length: u32,
    /// Packets between acks.
    pub ack_mark: u32,
    /// Packets without ack.
    pub high_water: u32,
    /// Bytes from which collectives are long; -1 for the default.
    pub crossover_size: i32,
    /// Masters up to which collectives are linear; -1 for the default.
    pub max_linear: i32,
    /// Whether another client is LAM: Reduce on its context, data in its byte order.
    pub lam: bool,
    /// What proves that the launch belongs to the job.
    pub secrets: Secrets,
    /// TLS towards the server.
    pub tls: Option<Arc<rustls::ClientConfig>>,
}

/// Why the launch did not join, or its part of the job broke.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The conversation with the server.
    #[error("server {server}: {error}")]
    Server {
        /// Where it is.
        server: String,
        /// What it did.
        error: StartupError,
    },
    /// A connection.
    #[error("{what}: {error}")]
    Io {
        what: String,
        /// What is wrong with it.
        error: io::Error,
    },
    /// What another host or a process did.
    #[error("{0}")]
    Broken(String),
}

impl AgentError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }
}

/// A client that has joined, with its channels; the processes may start.
#[derive(Debug)]
pub struct Joined {
    pub world: World,
    settings: Settings,
    server: ServerStream,
    channels: Vec<(usize, std::net::TcpStream)>,
    door: TcpListener,
    ticket: [u8; greeting::TICKET],
    values: Vec<u8>,
}

/// Joins the job: returns when all clients have, and all hosts are connected.
///
/// # Errors
/// When it cannot.
pub fn join(settings: Settings) -> Result<Joined, AgentError> {
    let at = settings.address;
    let listen =
        |what: &str| TcpListener::bind((at, 0)).map_err(AgentError::io(format!("{what} at {at}")));
    let hosts = listen("listening for hosts")?;
    let door = listen("listening for processes")?;
    let port = hosts
        .local_addr()
        .map_err(AgentError::io("listening"))?
        .port();
    let server = settings.server.as_str();
    let to_server = || AgentError::io(format!("server {server}"));
    let mut stream = ServerStream::connect(server, settings.tls.clone()).map_err(to_server())?;
    let mut startup = Startup::new(
        settings.secrets.clone(),
        settings.client,
        offer(&settings, port),
    );
    let broken = |error| AgentError::Server {
        server: server.to_owned(),
        error,
    };
    let mut piece = vec![0; 64 * 1024];
    let world = loop {
        stream.write_all(&startup.take_out()).map_err(to_server())?;
        let count = match stream.read(&mut piece) {
            Ok(count) => count,
            // A server that closes with input unread resets the connection.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
            Err(error) => return Err(to_server()(error)),
        };
        if count == 0 {
            return Err(broken(StartupError::Ended(startup.phase())));
        }
        if let Some(world) = startup.received(&piece[..count]).map_err(broken)? {
            break world;
        }
    };
    let me = first_host(&world, settings.client);
    let channels = dance::connect_all(&world, me, &hosts, at)?;
    let (clients, collected) = startup.collected();
    Ok(Joined {
        values: encode(clients, collected),
        ticket: greeting::ticket().map_err(AgentError::io("random bytes"))?,
        world,
        server: stream,
        channels,
        door,
        settings,
    })
}

impl Joined {
    /// What the processes find in their environment.
    ///
    /// # Errors
    /// When the system does not know where the agent listens.
    pub fn environment(&self) -> io::Result<Vec<(&'static str, String)>> {
        let door = self.door.local_addr()?;
        let mut variables = environment::of(&self.world, self.settings.client as usize);
        variables.push((greeting::AGENT, door.to_string()));
        variables.push((greeting::TICKET_VARIABLE, greeting::hex(&self.ticket)));
        Ok(variables)
    }

    /// Serves the processes until all have finished and all hosts have said FINI. [`Events::launch_over`] says that no
    /// process will come any more. Once it has, others have `patience` to end.
    ///
    /// # Errors
    /// When a process, another host or the network broke the job.
    pub fn serve(mut self, events: &Events, patience: Duration) -> Result<(), AgentError> {
        let me = first_host(&self.world, self.settings.client);
        let representation = if self.settings.lam {
            Representation::LittleEndian
        } else {
            Representation::External32
        };
        let welcome = greeting::Welcome {
            ticket: self.ticket,
            first: self.world.hosts[me].first,
            lam: self.settings.lam,
            representation,
            values: self.values,
        };
        service::serve(
            me,
            &self.world,
            self.channels,
            &self.door,
            welcome,
            events,
            patience,
        )?;
        // That the server is gone by now does no harm to the job.
        if let Err(error) = self
            .server
            .write_all(&Command::Fini.unit(&[]))
            .and_then(|()| self.server.flush())
        {
            eprintln!(
                "wireup impi: warning: server {}: {error}",
                self.settings.server
            );
        }
        Ok(())
    }
}

fn first_host(world: &World, client: u32) -> usize {
    world
        .hosts
        .partition_point(|host| host.client < client as usize)
}

/// An address as the specification has it; of IPv4 in the embedding that LAM uses.
pub fn host_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(four) => {
            let mut bytes = [0; 16];
            bytes[12..].copy_from_slice(&four.octets());
            bytes
        }
        IpAddr::V6(six) => six.octets(),
    }
}

/// The address of 16 bytes, with either embedding of IPv4.
pub fn host_address(bytes: [u8; 16]) -> IpAddr {
    let six = Ipv6Addr::from(bytes);
    let compatible = bytes[..12].iter().all(|byte| *byte == 0) && six != Ipv6Addr::LOCALHOST;
    match six.to_ipv4_mapped() {
        Some(four) => four.into(),
        None if compatible => IpAddr::from([bytes[12], bytes[13], bytes[14], bytes[15]]),
        None => six.into(),
    }
}

fn offer(settings: &Settings, port: u16) -> Offer {
    let host = host_bytes(settings.address);
    // Numbers that no two clients share, also where they share an address; LAM announces process ids, which are below.
    let first = i64::from(settings.client + 1) << 23;
    let procs = (0..settings.procs).map(|at| ProcId {
        host,
        pid: first + i64::try_from(at).unwrap_or(0),
    });
    Offer {
        versions: vec![(0, 0)],
        data_length: settings.data_length,
        tag_upper_bound: i32::MAX,
        crossover_size: settings.crossover_size,
        max_linear: settings.max_linear,
        hosts: vec![HostOffer {
            address: host,
            port,
            ack_mark: settings.ack_mark,
            high_water: settings.high_water,
            procs: procs.collect(),
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_embeddings_of_ipv4_are_read() {
        let four = IpAddr::from([127, 0, 0, 2]);
        assert_eq!(host_address(host_bytes(four)), four);
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 2];
        assert_eq!(host_address(mapped), four);
        let six: IpAddr = "fe80::1".parse().unwrap();
        assert_eq!(host_address(host_bytes(six)), six);
        let loopback = IpAddr::V6(Ipv6Addr::LOCALHOST);
        assert_eq!(host_address(host_bytes(loopback)), loopback);
    }
}
