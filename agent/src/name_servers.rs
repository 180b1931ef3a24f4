//! Name servers for the launches of this machine that share names with others: in this agent, or in the agent that a
//! network of agents uses for it.
//!
//! ```text
//! launch ─ Unix socket ─▶ agent ══ gRPC, Peer.Meet ══▶ the first of --names that can be reached
//! launch ─ Unix socket ──────────────────────────────▶ the same agent
//! ```
//! An agent asserts the user of each launch that it forwards, as for opening launches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use prost::bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::sleep_until;
use tokio_stream::Stream;
use tracing::{debug, warn};

use crate::budget::{BudgetAccount, BudgetExceeded, Budgets, ByteReservation};
use crate::launch::frame_router::{RoutedFrame, frames_to_launcher};
use crate::launch::queue::{LinkQueue, LinkQueueReceiver, queue};
use crate::peer::peer_error::MessageError;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::UserId;
use wireup_core::link::agent_protocol::NodeAddress;
use wireup_core::link::{DecodeError, decode, encode};
use wireup_core::name_server::message::NameServerCommand;
use wireup_core::name_server::{ClientId, NameServer, Reply};
use wireup_core::names::BYTES_MAX;

/// Longest message of a launch in bytes: the store's limit plus overhead.
const MESSAGE_MAX: usize = BYTES_MAX + 64 * 1024 * 1024;

/// A user, and the name by which some of the user's launches meet; empty for the others.
pub type NameServerKey = (u32, String);

/// The rendezvous of all users, as far as they are here.
#[derive(Debug)]
pub struct NameServers {
    /// The name servers of a network of agents, in order of preference; this agent if empty.
    pub names: Vec<NodeAddress>,
    origin: Instant,
    budgets: Arc<Budgets>,
    state: Mutex<NameServerState>,
    /// Signals a deadline that is earlier than the one that is waited for.
    sooner: Notify,
}

#[derive(Debug, Default)]
struct NameServerState {
    users: BTreeMap<NameServerKey, UserNameServer>,
    launches: BTreeMap<ClientId, LinkQueue<RoutedFrame>>,
    last_id: u64,
    /// The deadline that is waited for.
    awaited: Option<Moment>,
}

/// The rendezvous of a user.
#[derive(Debug)]
struct UserNameServer {
    rendezvous: NameServer,
    /// Bytes of the user's budget that the name server holds.
    reservation: ByteReservation,
}

/// Reason for which a launch loses its name server.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The message is longer than a name server accepts.
    #[error("a message with more than {MESSAGE_MAX} bytes")]
    Long,
    /// The message cannot be decoded.
    #[error("an invalid message: {0}")]
    Unreadable(DecodeError),
    /// The user's budget is used up.
    #[error(transparent)]
    Spent(#[from] BudgetExceeded),
    /// The launch's agent sent an invalid message.
    #[error("invalid message from the agent of the launch: {0}")]
    Message(#[from] MessageError),
    /// The connection to its agent is lost.
    #[error("the agent of the launch is lost: {0}")]
    Lost(String),
}

/// A launch that is here; gone when this is dropped.
#[derive(Debug)]
pub struct ConnectedLaunch {
    name_servers: Arc<NameServers>,
    scope: NameServerKey,
    id: ClientId,
    account: Arc<BudgetAccount>,
    /// Received part of a message.
    parts: Vec<u8>,
    /// Reserved bytes of the received part.
    reservation: ByteReservation,
}

impl NameServers {
    /// Creates name servers without any launch.
    pub fn new(names: Vec<NodeAddress>, budgets: Arc<Budgets>) -> Self {
        Self {
            names,
            origin: Instant::now(),
            budgets,
            state: Mutex::default(),
            sooner: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, NameServerState> {
        // What a panic leaves half done is one user's message.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        Moment(self.origin.elapsed())
    }

    /// Connects a launch of a user; `queue` carries messages to it.
    pub fn join(
        self: &Arc<Self>,
        scope: NameServerKey,
    ) -> (ConnectedLaunch, LinkQueueReceiver<RoutedFrame>) {
        let account = self.budgets.account(scope.0);
        let (to, queued) = queue(&account);
        let mut state = self.lock();
        state.last_id += 1;
        let id = ClientId(state.last_id);
        state.launches.insert(id, to);
        drop(state);
        let launch = ConnectedLaunch {
            name_servers: self.clone(),
            scope,
            id,
            parts: Vec::new(),
            reservation: account.hold(0),
            account,
        };
        launch.act(|rendezvous, _, out| rendezvous.joined(id, out));
        (launch, queued)
    }

    /// Ends waits that time out; never returns.
    pub async fn run_timers(&self) {
        loop {
            let deadline = self.next_deadline();
            let at = deadline.map(|at| tokio::time::Instant::from_std(self.origin + at.0));
            let far = || tokio::time::Instant::now() + Duration::from_secs(24 * 3600);
            tokio::select! {
                () = self.sooner.notified() => {}
                () = sleep_until(at.unwrap_or_else(far)) => {}
            }
            let mut out = Vec::new();
            let now = self.now();
            let mut state = self.lock();
            for met in state.users.values_mut() {
                met.rendezvous.tick(now, &mut out);
            }
            state.send(out);
        }
    }

    fn next_deadline(&self) -> Option<Moment> {
        let mut state = self.lock();
        let met = state.users.values();
        let deadlines = met.filter_map(|met| met.rendezvous.next_deadline());
        state.awaited = deadlines.min();
        state.awaited
    }
}

impl NameServerState {
    fn send(&mut self, out: Vec<Reply>) {
        for (id, message) in out {
            let Some(queue) = self.launches.get(&id) else {
                continue;
            };
            let message = queue.account().count_message(Bytes::from(encode(&message)));
            let result = frames_to_launcher(message).try_for_each(|frame| {
                let length = frame.body.len();
                queue.push(frame, length)
            });
            if result.is_err() {
                // The end of its queue is the end of its connection.
                warn!("gave up a launch that does not read from its name server");
                self.launches.remove(&id);
            }
        }
    }
}

impl ConnectedLaunch {
    fn act(&self, what: impl FnOnce(&mut NameServer, Moment, &mut Vec<Reply>)) {
        let name_servers = &self.name_servers;
        let mut state = name_servers.lock();
        let of_user = || UserNameServer {
            rendezvous: NameServer::new(UserId(self.scope.0)),
            reservation: self.account.hold(0),
        };
        let UserNameServer {
            rendezvous,
            reservation: held,
        } = state
            .users
            .entry(self.scope.clone())
            .or_insert_with(of_user);
        let mut out = Vec::new();
        what(rendezvous, name_servers.now(), &mut out);
        held.set(rendezvous.bytes());
        let deadline = rendezvous.next_deadline();
        if rendezvous.is_empty() {
            state.users.remove(&self.scope);
        }
        state.send(out);
        let is_sooner = deadline.is_some_and(|at| state.awaited.is_none_or(|known| at < known));
        if is_sooner {
            name_servers.sooner.notify_one();
        }
    }

    /// Takes a part of a message, or a whole one.
    ///
    /// # Errors
    /// [`GuestError`]; the launch is left.
    pub fn take(&mut self, packet: &RoutedFrame) -> Result<(), GuestError> {
        if self.parts.len() + packet.body.len() > MESSAGE_MAX {
            return Err(GuestError::Long);
        }
        // Its next message may need as much.
        self.account.check()?;
        self.reservation.grow(packet.body.len())?;
        self.parts.extend_from_slice(&packet.body);
        if packet.more {
            return Ok(());
        }
        self.reservation.set(0);
        let message = decode::<NameServerCommand>(&std::mem::take(&mut self.parts));
        let message = message.map_err(GuestError::Unreadable)?;
        let id = self.id;
        self.act(|rendezvous, now, out| rendezvous.on_command(id, message, now, out));
        Ok(())
    }
}

impl Drop for ConnectedLaunch {
    fn drop(&mut self) {
        self.name_servers.lock().launches.remove(&self.id);
        let id = self.id;
        self.act(|rendezvous, _, out| rendezvous.on_launch_left(id, out));
    }
}

/// Serves a launch that another agent forwards: handles its messages until it ends, and returns the stream of messages
/// to it.
pub fn serve<S>(
    name_servers: &Arc<NameServers>,
    scope: NameServerKey,
    from: String,
    messages: S,
) -> impl Stream<Item = RoutedFrame> + Send + use<S>
where
    S: Stream<Item = Result<RoutedFrame, GuestError>> + Send + 'static,
{
    let uid = scope.0;
    let (mut launch, queued) = name_servers.join(scope);
    let (ended, end) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut messages = std::pin::pin!(messages);
        loop {
            match messages.next().await.map(|packet| launch.take(&packet?)) {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    debug!(uid, "a launch behind the agent of {from} leaves: {error}");
                    break;
                }
                None => break,
            }
        }
        drop(launch);
        // There is no receiver when the stream is gone.
        let _ = ended.send(());
    });
    queued.take_until(end)
}
