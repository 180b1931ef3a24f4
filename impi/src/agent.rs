//! The agent of a launch: its client of the server ([`JoinedMember`]), and the hosts of its processes
//! ([`ListeningHost`]).
//!
//! The order: the hosts listen, the client joins the job at the server, the hosts connect with those of other clients,
//! admit the processes and forward packets. At the end the hosts send FINI to each other; then the client sends it to
//! the server. A launch on one machine has both in one process ([`join`]), one on several a process for each host.
//! Source: IMPI 2.3.8, 2.4.

mod host_connect;
mod invitation;
mod launch_host;
mod member;
mod outboxes;
mod pending_connections;
pub mod process_handshake;
mod service;
mod world_environment;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use wireup_impi_core::auth::Secrets;
use wireup_impi_core::startup::StartupError;

pub use invitation::HostInvitation;
pub use launch_host::ListeningHost;
pub use member::{JoinedMember, PublishedHost};
pub use service::{ConnectedHost, Events};

/// Settings of a launch that joins an IMPI job.
#[derive(Clone, Debug)]
pub struct LaunchSettings {
    /// `HOST:PORT` of the server.
    pub server: String,
    /// Rank of this client.
    pub client: u32,
    /// Processes of the launch on its one host.
    pub procs: usize,
    /// Address of that, to which other hosts connect and from which it connects.
    pub address: IpAddr,
    /// Most data of a packet.
    pub data_length: u32,
    /// Number of packets between acks.
    pub ack_mark: u32,
    /// Maximum number of unacknowledged packets.
    pub high_water: u32,
    /// Bytes from which collectives are long; -1 for the default.
    pub crossover_size: i32,
    /// Masters up to which collectives are linear; -1 for the default.
    pub max_linear: i32,
    /// Whether another client is LAM: Reduce on its context, data in its byte order.
    pub lam: bool,
    /// Secrets that prove that the launch belongs to the job.
    pub secrets: Secrets,
    /// Whether lines and errors go to the server, which must be a print server.
    pub is_printing: bool,
    /// TLS towards the server.
    pub tls: Option<Arc<rustls::ClientConfig>>,
}

/// Reason for which the launch did not join, or its part of the job broke.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The conversation with the server.
    #[error("server {server}: {error}")]
    Server {
        /// Address of the server.
        server: String,
        /// Error in the start-up.
        error: StartupError,
    },
    /// The server does not print lines.
    #[error(
        "server {0} is not a print server: start it with `wireup impi server --print-server`, or leave `print` out"
    )]
    PrintServer(String),
    /// Error of a connection.
    #[error("{subject}: {error}")]
    Io {
        subject: String,
        /// Error of the system.
        error: io::Error,
    },
    /// Protocol violation or loss of another host or of a process.
    #[error("{0}")]
    Broken(String),
}

impl AgentError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io {
            subject: what,
            error,
        }
    }
}

/// A client of one host that has joined, with its channels; the processes may start.
#[derive(Debug)]
pub struct JoinedClient {
    member: JoinedMember,
    host: ConnectedHost,
    door: SocketAddr,
}

/// Joins the job with one host: returns when all clients have, and all hosts are connected.
///
/// # Errors
/// When it cannot.
pub fn join(settings: LaunchSettings) -> Result<JoinedClient, AgentError> {
    let host = ListeningHost::listen(settings.address)?;
    let place = PublishedHost {
        address: host.place()?,
        procs: settings.procs,
    };
    let door = host.door()?;
    let member = JoinedMember::join(settings, &[place])?;
    let host = host.connect(member.invitation(), 0)?;
    Ok(JoinedClient { member, host, door })
}

impl JoinedClient {
    /// Returns the variables for the processes' environment.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut variables = self.member.environment();
        variables.push((process_handshake::AGENT, self.door.to_string()));
        variables
    }

    /// Serves as [`ConnectedHost::serve`] does; then the server is notified of the client's end.
    ///
    /// # Errors
    /// Those of [`ConnectedHost::serve`].
    pub fn serve(mut self, events: &Events, patience: Duration) -> Result<(), AgentError> {
        let member = &mut self.member;
        let served = self
            .host
            .serve(events, patience, &mut |line| member.print(line));
        match &served {
            Ok(()) => self.member.leave(),
            Err(error) => self.member.report(&error.to_string()),
        }
        served
    }
}
