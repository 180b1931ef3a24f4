//! Connections to other agents.
//!
//! There is one for each agent, as long as a launch needs it. It is made when it is first used, and
//! watched: silence ends it, and with it all its streams.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_stream::Stream;
use tonic::Status;
use tonic::transport::Channel;
use wireup::job::ids::NodeId;
use wireup::link::control::{Member, NodeStatus, VERSION};
use wireup::link::frame::BODY_MAX;

use super::{MESSAGE_MAX, cause, packet};
use crate::launch::opening::Opening;
use crate::launch::queue::{Queue, queue};
use crate::launch::router::{Event, Neighbour};
use crate::proto::v1;
use crate::proto::v1::peer_client::PeerClient;
use crate::tls::{ConnectError, Heartbeat, Tls, connect};

/// Version of this program, for people.
pub const PROGRAM_VERSION: &str = env!("CARGO_PKG_VERSION");

/// So long may an agent take to say how it is.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

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
    channel: OnceCell<Channel>,
    /// What was begun over it last failed: others had better make a new one.
    broken: AtomicBool,
}

impl Peers {
    /// None yet.
    pub fn new(tls: Arc<Tls>, heartbeat: Heartbeat) -> Self {
        Self {
            tls,
            heartbeat,
            open: Mutex::default(),
        }
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
            channel: OnceCell::new(),
            broken: AtomicBool::new(false),
        });
        open.insert(key, Arc::downgrade(&connection));
        connection
    }

    /// Makes a node's agent take part in a launch: a queue for what goes there, and what comes from
    /// there, which ends with [`Event::ChildGone`].
    pub fn join(
        &self,
        opening: &Opening,
        node: NodeId,
    ) -> (
        Queue<v1::PeerDown>,
        impl Stream<Item = Event> + Send + use<>,
    ) {
        let member = opening.member(node);
        let connection = self.connection(member);
        let (queue, queued) = queue();
        for (hello, bytes) in hellos(opening, node) {
            let message = v1::peer_down::Message::Hello(hello);
            queue
                .push(
                    v1::PeerDown {
                        message: Some(message),
                    },
                    bytes,
                )
                .expect("an opening is smaller than what may wait");
        }
        let (tls, heartbeat) = (self.tls.clone(), self.heartbeat);
        let events = async move {
            let result = match connection.client(&tls, heartbeat).await {
                Ok(mut client) => client
                    .join(queued)
                    .await
                    .map_err(|status| connection.failed(&status)),
                Err(reason) => Err(reason),
            };
            match result {
                Ok(response) => events(response.into_inner(), node, connection).left_stream(),
                Err(reason) => {
                    let gone = Event::ChildGone {
                        child: node,
                        reason,
                    };
                    stream::iter([gone]).right_stream()
                }
            }
        };
        (queue, events.flatten_stream())
    }

    /// Asks an agent how it is.
    pub async fn status(&self, member: &Member) -> NodeStatus {
        let connection = self.connection(member);
        let request = v1::StatusRequest { version: VERSION };
        let mut status = NodeStatus {
            name: member.name.clone(),
            address: member.address.clone(),
            version: String::new(),
            launches: 0,
            draining: false,
            problem: None,
        };
        let asking = async {
            let mut client = connection.client(&self.tls, self.heartbeat).await?;
            let answer = client.status(request).await;
            answer.map_err(|status| connection.failed(&status))
        };
        match timeout(STATUS_TIMEOUT, asking).await {
            Ok(Ok(answer)) => {
                let answer = answer.into_inner();
                status.version = answer.version;
                status.launches = answer.launches;
                status.draining = answer.draining;
            }
            Ok(Err(problem)) => status.problem = Some(problem),
            Err(_) => {
                let seconds = STATUS_TIMEOUT.as_secs();
                status.problem = Some(format!("no answer within {seconds} s"));
            }
        }
        status
    }
}

impl Connection {
    /// Makes the connection if nobody has.
    async fn client(&self, tls: &Tls, heartbeat: Heartbeat) -> Result<PeerClient<Channel>, String> {
        let Member { name, address } = &self.member;
        let channel = self
            .channel
            .get_or_try_init(|| connect(tls, name, address, heartbeat));
        let channel = channel.await.map_err(|error: ConnectError| {
            self.broken.store(true, Ordering::Relaxed);
            format!("the agent of {name} at {address} cannot be reached: {error}")
        })?;
        Ok(PeerClient::new(channel.clone()).max_decoding_message_size(MESSAGE_MAX))
    }

    /// Why a call failed, for people: it was refused, or the connection is lost.
    fn failed(&self, status: &Status) -> String {
        let Member { name, address } = &self.member;
        // What the other side says has no source here.
        if std::error::Error::source(status).is_none() {
            return format!("the agent of {name} refuses: {}", status.message());
        }
        self.broken.store(true, Ordering::Relaxed);
        let cause = cause(status);
        format!("the connection to the agent of {name} at {address} is lost: {cause}")
    }
}

/// The messages that open a stream, and the bytes of each.
fn hellos(opening: &Opening, node: NodeId) -> impl Iterator<Item = (v1::Hello, usize)> {
    let mut first = Some(v1::Hello {
        version: VERSION,
        agent: PROGRAM_VERSION.to_owned(),
        launch: opening.launch.clone(),
        token: opening.token.to_bytes(),
        uid: opening.uid,
        node: node.0,
        ..Default::default()
    });
    let mut rest = opening.bytes.clone();
    std::iter::from_fn(move || {
        if first.is_none() && rest.is_empty() {
            return None;
        }
        let piece = rest.split_to(rest.len().min(BODY_MAX));
        let bytes = piece.len();
        let hello = v1::Hello {
            opening: piece,
            more: !rest.is_empty(),
            ..first.take().unwrap_or_default()
        };
        Some((hello, bytes))
    })
}

/// What a child's stream says; the connection lives as long as it.
fn events(
    stream: tonic::Streaming<v1::PeerUp>,
    child: NodeId,
    connection: Arc<Connection>,
) -> impl Stream<Item = Event> + Send {
    let gone = move |reason| Event::ChildGone { child, reason };
    let name = connection.member.name.clone();
    let events = stream.filter_map(move |message| {
        let event = match message {
            Ok(message) => event(message, child)
                .map_err(|what| format!("the agent of {} {what}", connection.member.name)),
            Err(status) => Err(connection.failed(&status)),
        };
        std::future::ready(event.unwrap_or_else(|reason| Some(gone(reason))))
    });
    let ended = gone(format!("the agent of {name} has left the launch"));
    events.chain(stream::iter([ended]))
}

fn event(message: v1::PeerUp, child: NodeId) -> Result<Option<Event>, String> {
    match message.message {
        Some(v1::peer_up::Message::Frame(frame)) => {
            packet(frame).map(|packet| Some(Event::Carried(Neighbour::Child(child), packet)))
        }
        Some(v1::peer_up::Message::Unreachable(lost)) => {
            Ok(Some(Event::Reported(child, lost.into())))
        }
        Some(v1::peer_up::Message::Welcome(welcome)) if welcome.version == VERSION => Ok(None),
        Some(v1::peer_up::Message::Welcome(welcome)) => Err(format!(
            "does not fit: {}",
            skew(welcome.version, &welcome.agent)
        )),
        None => Err("sent a message this agent does not know".into()),
    }
}

/// How two versions that do not match are told.
pub fn skew(version: u32, program: &str) -> String {
    format!(
        "it is wireup {program} with link version {version}, this is wireup {PROGRAM_VERSION} with link \
         version {VERSION}; install the same wireup on all nodes"
    )
}
