//! Connections to other agents.
//!
//! There is one for each agent, shared by the launches that need it and kept for a while after the
//! last: launches come in rows. It is watched: silence ends it, and with it all its streams.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, stream};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, OwnedSemaphorePermit};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::peer_error::{MessageError, PeerError};
use super::{MESSAGE_MAX, cause};
use crate::budget::{BudgetAccount, LOOKUPS};
use crate::launch::descriptor::LaunchDescriptor;
use crate::proto::v1::peer_client::PeerClient;
use crate::tls::{ConnectError, Heartbeat, TlsConfigs, channel, dial};
use wireup_core::job::ids::NodeId;
use wireup_core::link::agent_protocol::NodeAddress;

/// Time for which an unused connection is kept.
const LINGER: Duration = Duration::from_secs(10);

/// Maximum number of connection attempts for one use, if existing connections are lost.
const ATTEMPTS: usize = 3;

/// Time that an agent which is restarted may take from its end to the start of the next one.
pub(crate) const RESTART: Duration = Duration::from_secs(3);

/// First and longest pause before another connection is tried within [`RESTART`]; each is twice the one before.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// Timeout of a name lookup.
const LOOKUP: Duration = Duration::from_secs(15);

/// The other agents this one talks to.
#[derive(Debug)]
pub struct Peers {
    tls: Arc<TlsConfigs>,
    heartbeat: Heartbeat,
    /// Runtime on which connections are made and served.
    network: Handle,
    open: Mutex<ConnectionCache>,
}

#[derive(Debug, Default)]
struct ConnectionCache {
    connections: BTreeMap<(String, String), Weak<PeerConnection>>,
    /// From this number on, closed ones are removed.
    full: usize,
}

/// A connection to be made, or made; ended with its last user.
#[derive(Debug)]
pub(crate) struct PeerConnection {
    member: NodeAddress,
    /// Addresses of the agent, looked up by the first user.
    found: OnceCell<Result<Vec<SocketAddr>, PeerError>>,
    /// Made by its first user; all that wait for it get the same failure.
    channel: OnceCell<Result<OpenChannel, PeerError>>,
    /// Whether the connection was lost or could not be made.
    broken: AtomicBool,
}

#[derive(Debug)]
struct OpenChannel {
    channel: Channel,
    life: Weak<()>,
}

/// One use of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionUse(Arc<PeerConnection>);

/// The look-up results of some agents.
#[derive(Debug, Default)]
pub(crate) struct ResolvedPeers {
    /// Connections with the addresses that were found, which are to be kept until they are made.
    pub(crate) connections: BTreeMap<NodeId, Arc<PeerConnection>>,
    /// Errors of the agents that cannot be reached.
    pub(crate) missing: BTreeMap<NodeId, PeerError>,
}

impl Peers {
    /// Makes a set without connections; connections are made and served on that runtime.
    pub fn new(tls: Arc<TlsConfigs>, heartbeat: Heartbeat, network: Handle) -> Self {
        Self {
            tls,
            heartbeat,
            network,
            open: Mutex::default(),
        }
    }

    /// Returns the longest time for making a connection.
    pub(super) fn connecting(&self) -> Duration {
        self.heartbeat.connect + self.heartbeat.handshake
    }

    /// Returns the expiry of the certificate with which connections are made.
    pub fn certificate_expiry(&self) -> SystemTime {
        self.tls.not_after()
    }

    /// Looks up the addresses of these nodes' agents, in parallel, if connections are needed.
    pub(crate) async fn find(
        &self,
        opening: &LaunchDescriptor,
        nodes: &[NodeId],
        account: &Arc<BudgetAccount>,
    ) -> ResolvedPeers {
        let connections = nodes
            .iter()
            .map(|node| (*node, self.connection(opening.member(*node))));
        let connections: Vec<_> = connections.collect();
        let looking = connections
            .into_iter()
            .map(|(node, connection)| async move {
                let found = self.found(&connection, account).await;
                (node, found.err(), connection)
            });
        let mut looking = stream::iter(looking).buffer_unordered(LOOKUPS);
        let mut peers = ResolvedPeers::default();
        while let Some((node, error, connection)) = looking.next().await {
            peers.missing.extend(error.map(|error| (node, error)));
            peers.connections.insert(node, connection);
        }
        peers
    }

    /// Makes a call. An agent that is restarted ends its connections, those that are kept included: a call that is lost
    /// before it is answered is made again over another connection, which is tried for `restart`.
    pub(crate) async fn call<T, F>(
        &self,
        member: &NodeAddress,
        account: &Arc<BudgetAccount>,
        restart: Duration,
        call: impl Fn(PeerClient<Channel>) -> F,
    ) -> Result<(T, ConnectionUse), PeerError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let started = Instant::now();
        let (mut losses, mut lost) = (0, None);
        let [mut pause, longest] = PAUSES;
        loop {
            match self.line(member, account).await {
                Ok(line) => match call(line.client()).await {
                    Ok(response) => return Ok((response.into_inner(), line)),
                    Err(status) => {
                        let error = line.failed(&status);
                        losses += 1;
                        if !error.may_be_restart() || losses == ATTEMPTS {
                            return Err(error);
                        }
                        lost = Some(error);
                    }
                },
                Err(error) => {
                    if !error.may_be_restart() || started.elapsed() + pause > restart {
                        return Err(lost.unwrap_or(error));
                    }
                    sleep(pause).await;
                    pause = longest.min(pause * 2);
                }
            }
        }
    }

    /// Returns a connection that works as far as this agent knows.
    pub(crate) async fn line(
        &self,
        member: &NodeAddress,
        account: &Arc<BudgetAccount>,
    ) -> Result<ConnectionUse, PeerError> {
        for _ in 0..ATTEMPTS {
            let connection = self.connection(member);
            if !connection.channel.initialized() {
                let found = self.found(&connection, account).await?;
                // Before another task waits for it.
                let _one = account.dial().await;
                let make = || self.make(member, found);
                connection.channel.get_or_init(make).await;
            }
            let channel = connection.channel.get();
            let channel = channel.expect("it was made, or could not be");
            let alive = channel
                .as_ref()
                .is_ok_and(|channel| channel.life.strong_count() > 0);
            if alive {
                return Ok(ConnectionUse(connection));
            }
            connection.broken.store(true, Ordering::Relaxed);
            if let Err(error) = channel {
                return Err(error.clone());
            }
        }
        Err(PeerError::Unsteady(member.clone()))
    }

    /// Returns the connection to an agent that others use already, or one to be made.
    fn connection(&self, member: &NodeAddress) -> Arc<PeerConnection> {
        let key = (member.name.clone(), member.address.clone());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let known = open.connections.get(&key).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| !known.broken.load(Ordering::Relaxed)) {
            return known;
        }
        // Seldom enough that it costs each of them little.
        if open.connections.len() >= open.full {
            open.connections
                .retain(|_, connection| connection.strong_count() > 0);
            open.full = 2 * open.connections.len() + 16;
        }
        let connection = Arc::new(PeerConnection {
            member: member.clone(),
            found: OnceCell::new(),
            channel: OnceCell::new(),
            broken: AtomicBool::new(false),
        });
        open.connections.insert(key, Arc::downgrade(&connection));
        connection
    }

    /// Returns the addresses of a connection.
    async fn found(
        &self,
        connection: &PeerConnection,
        account: &Arc<BudgetAccount>,
    ) -> Result<Vec<SocketAddr>, PeerError> {
        let address = &connection.member.address;
        let found = match (connection.found.get(), address.parse()) {
            (Some(found), _) => found,
            (None, Ok(address)) => {
                let known = || std::future::ready(Ok(vec![address]));
                connection.found.get_or_init(known).await
            }
            (None, Err(_)) => {
                // Before another task waits for it.
                let one = account.lookup().await;
                let look = || self.look_up(&connection.member, one);
                connection.found.get_or_init(look).await
            }
        };
        if found.is_err() {
            connection.broken.store(true, Ordering::Relaxed);
        }
        found.clone()
    }

    async fn look_up(
        &self,
        member: &NodeAddress,
        one: OwnedSemaphorePermit,
    ) -> Result<Vec<SocketAddr>, PeerError> {
        let address = member.address.clone();
        let looking = self.network.spawn_blocking(move || {
            // Nothing ends a look-up but itself.
            let _one = one;
            address.to_socket_addrs().map(Iterator::collect)
        });
        let found = match timeout(LOOKUP, looking).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => Err(io::Error::other(error)),
            Err(_) => {
                let limit = LOOKUP.as_secs();
                Err(io::Error::other(format!("no reply within {limit} s")))
            }
        };
        found.map_err(|error| unreachable(member, ConnectError::unknown(&member.address, error)))
    }

    async fn make(
        &self,
        member: &NodeAddress,
        found: Vec<SocketAddr>,
    ) -> Result<OpenChannel, PeerError> {
        let (tls, heartbeat) = (Arc::clone(&self.tls), self.heartbeat);
        let NodeAddress { name, address } = member.clone();
        let making = self.network.spawn(async move {
            let stream = dial(&tls, &name, &address, &found, heartbeat).await?;
            let life = stream.life();
            // Its agent may have made room for the next one, which then has the address.
            let again = move || {
                let (tls, name, address, found) =
                    (tls.clone(), name.clone(), address.clone(), found.clone());
                async move { dial(&tls, &name, &address, &found, heartbeat).await }
            };
            let channel = channel(stream, again, heartbeat).await?;
            Ok(OpenChannel { channel, life })
        });
        match making.await {
            Ok(channel) => channel.map_err(|error| unreachable(member, error)),
            Err(_) => Err(PeerError::Ends),
        }
    }
}

fn unreachable(member: &NodeAddress, error: ConnectError) -> PeerError {
    PeerError::Unreachable {
        member: member.clone(),
        error: Arc::new(error),
    }
}

impl ConnectionUse {
    /// Returns the agent at the other end.
    pub(super) fn member(&self) -> &NodeAddress {
        &self.0.member
    }

    /// Returns the client for calls over the connection.
    pub(crate) fn client(&self) -> PeerClient<Channel> {
        let channel = self
            .0
            .channel
            .get()
            .and_then(|channel| channel.as_ref().ok());
        let channel = channel.expect("a line has a connection").channel.clone();
        PeerClient::new(channel).max_decoding_message_size(MESSAGE_MAX)
    }

    /// Converts the status of a failed call: it was refused, or the connection is lost.
    pub(crate) fn failed(&self, status: &Status) -> PeerError {
        let member = self.member().clone();
        // The other side's error has no source here.
        if std::error::Error::source(status).is_none() {
            let message = status.message().to_owned();
            let name = member.name;
            return PeerError::Refused { name, message };
        }
        self.0.broken.store(true, Ordering::Relaxed);
        let cause = cause(status);
        PeerError::Lost { member, cause }
    }

    /// Returns the error for an invalid message of the other agent.
    pub(crate) fn misunderstood(&self, error: MessageError) -> PeerError {
        let name = self.member().name.clone();
        PeerError::Message { name, error }
    }
}

impl Drop for ConnectionUse {
    fn drop(&mut self) {
        let runtime = Handle::try_current();
        if let (false, Ok(runtime)) = (self.0.broken.load(Ordering::Relaxed), runtime) {
            let connection = self.0.clone();
            runtime.spawn(async move {
                sleep(LINGER).await;
                drop(connection);
            });
        }
    }
}
