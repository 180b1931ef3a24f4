//! Connections to other agents.
//!
//! There is one for each agent, shared by the launches that need it and kept for a while after the
//! last: launches come in rows. It is watched: silence ends it, and with it all its streams.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OnceCell;
use tonic::Status;
use tonic::transport::Channel;
use wireup::link::control::Member;

use super::{MESSAGE_MAX, cause};
use crate::proto::v1::peer_client::PeerClient;
use crate::tls::{ConnectError, Heartbeat, Tls, channel, dial};

/// So long is a connection kept that nobody uses.
const LINGER: Duration = Duration::from_secs(10);

/// So often is a connection made for one use, if those found are lost.
const ATTEMPTS: usize = 3;

/// The other agents this one talks to.
#[derive(Debug)]
pub struct Peers {
    tls: Arc<Tls>,
    heartbeat: Heartbeat,
    open: Mutex<BTreeMap<(String, String), Weak<Connection>>>,
}

/// A connection to be made, or made; ended with its last user.
#[derive(Debug)]
struct Connection {
    member: Member,
    /// Made by its first user; whoever waits for the same learns of the same failure.
    made: OnceCell<Result<Made, String>>,
    /// It was lost, or could not be made.
    broken: AtomicBool,
}

#[derive(Debug)]
struct Made {
    channel: Channel,
    life: Weak<()>,
}

/// One use of a connection.
#[derive(Debug)]
pub(crate) struct Line(Arc<Connection>);

impl Peers {
    /// None yet.
    pub fn new(tls: Arc<Tls>, heartbeat: Heartbeat) -> Self {
        Self {
            tls,
            heartbeat,
            open: Mutex::default(),
        }
    }

    /// A connection that works as far as anybody knows; fails with one line for people.
    pub(crate) async fn line(&self, member: &Member) -> Result<Line, String> {
        for _ in 0..ATTEMPTS {
            let connection = self.connection(member);
            let made = connection.made.get_or_init(|| self.make(member)).await;
            let alive = made.as_ref().is_ok_and(|made| made.life.strong_count() > 0);
            if alive {
                return Ok(Line(connection));
            }
            connection.broken.store(true, Ordering::Relaxed);
            if let Err(reason) = made {
                return Err(reason.clone());
            }
        }
        let Member { name, address } = member;
        Err(format!(
            "the agent of {name} at {address} ends every connection at once"
        ))
    }

    /// The connection to an agent that others use already, or one to be made.
    fn connection(&self, member: &Member) -> Arc<Connection> {
        let key = (member.name.clone(), member.address.clone());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let known = open.get(&key).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| !known.broken.load(Ordering::Relaxed)) {
            return known;
        }
        open.retain(|_, connection| connection.strong_count() > 0);
        let connection = Arc::new(Connection {
            member: member.clone(),
            made: OnceCell::new(),
            broken: AtomicBool::new(false),
        });
        open.insert(key, Arc::downgrade(&connection));
        connection
    }

    async fn make(&self, member: &Member) -> Result<Made, String> {
        let Member { name, address } = member;
        let making = async {
            let stream = dial(&self.tls, name, address).await?;
            let life = stream.life();
            let channel = channel(stream, self.heartbeat).await?;
            Ok(Made { channel, life })
        };
        making.await.map_err(|error: ConnectError| {
            format!("the agent of {name} at {address} cannot be reached: {error}")
        })
    }
}

impl Line {
    /// Whom it leads to.
    pub(super) fn member(&self) -> &Member {
        &self.0.member
    }

    /// What makes calls over it.
    pub(crate) fn client(&self) -> PeerClient<Channel> {
        let made = self.0.made.get().and_then(|made| made.as_ref().ok());
        let channel = made.expect("a line has a connection").channel.clone();
        PeerClient::new(channel).max_decoding_message_size(MESSAGE_MAX)
    }

    /// Why a call failed, for people: it was refused, or the connection is lost.
    pub(crate) fn failed(&self, status: &Status) -> String {
        let Member { name, address } = self.member();
        // What the other side says has no source here.
        if std::error::Error::source(status).is_none() {
            return format!("the agent of {name} refuses: {}", status.message());
        }
        self.0.broken.store(true, Ordering::Relaxed);
        let cause = cause(status);
        format!("the connection to the agent of {name} at {address} is lost: {cause}")
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current();
        if let (false, Ok(runtime)) = (self.0.broken.load(Ordering::Relaxed), runtime) {
            let kept = self.0.clone();
            runtime.spawn(async move {
                tokio::time::sleep(LINGER).await;
                drop(kept);
            });
        }
    }
}
