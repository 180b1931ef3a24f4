//! Connections to other agents.
//!
//! There is one for each agent, as long as a launch needs it. It is made when it is first used, and
//! watched: silence ends it, and with it all its streams.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::{FutureExt, StreamExt, stream};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_stream::Stream;
use tonic::transport::{Channel, Endpoint, Uri};
use wireup::job::ids::NodeId;
use wireup::link::control::{Member, NodeStatus, VERSION};
use wireup::link::frame::BODY_MAX;

use super::{CONNECTION_WINDOW, Heartbeat, MESSAGE_MAX, STREAM_WINDOW, cause, packet};
use crate::launch::opening::Opening;
use crate::launch::queue::{Queue, Queued, queue};
use crate::launch::router::{Event, Neighbour};
use crate::proto::v1;
use crate::proto::v1::peer_client::PeerClient;
use crate::tls::Tls;

/// Version of this program, for people.
pub const PROGRAM_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The other agents this one talks to.
#[derive(Debug)]
pub struct Peers {
    tls: Arc<Tls>,
    heartbeat: Heartbeat,
    open: Mutex<BTreeMap<(String, String), Weak<Connection>>>,
}

/// A connection, ended with its last user.
#[derive(Debug)]
pub struct Connection(Channel);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("{0} cannot be reached: {1}")]
    Connect(String, io::Error),
    #[error("{0} cannot be reached: no answer within {1} s")]
    Silent(String, u64),
    #[error("{0} is not trusted: {1}")]
    Tls(String, String),
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

    fn connection(&self, member: &Member) -> Arc<Connection> {
        let key = (member.name.clone(), member.address.clone());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = open.get(&key).and_then(Weak::upgrade) {
            return connection;
        }
        open.retain(|_, connection| connection.strong_count() > 0);
        let connection = Arc::new(Connection(self.channel(member.clone())));
        open.insert(key, Arc::downgrade(&connection));
        connection
    }

    /// A channel that connects when it is used.
    fn channel(&self, member: Member) -> Channel {
        let limit = self.heartbeat.limit();
        let tls = self.tls.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let (member, tls) = (member.clone(), tls.clone());
            async move {
                timeout(limit, dial(&member, &tls))
                    .await
                    .unwrap_or_else(|_| Err(DialError::Silent(member.address, limit.as_secs())))
                    .map(TokioIo::new)
            }
        });
        // The connector encrypts, so the URI says http; where it leads to, the connector knows.
        Endpoint::from_static("http://agent")
            .http2_keep_alive_interval(self.heartbeat.interval)
            .keep_alive_timeout(self.heartbeat.timeout)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .connect_with_connector_lazy(connector)
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
                .push(v1::PeerDown { message: Some(message) }, bytes)
                .expect("an opening is smaller than what may wait");
        }
        let name = member.name.clone();
        let events = async move {
            let result = client(&connection).join(queued).await;
            match result {
                Ok(response) => {
                    let events = events(response.into_inner(), node, name);
                    // The connection lives as long as the stream.
                    events.map(move |event| (event, &connection).0).left_stream()
                }
                Err(status) => {
                    let reason = format!("the agent of {name}: {}", cause(&status));
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
        let limit = self.heartbeat.limit();
        match timeout(limit, client(&connection).status(request)).await {
            Ok(Ok(answer)) => {
                let answer = answer.into_inner();
                status.version = answer.version;
                status.launches = answer.launches;
                status.draining = answer.draining;
            }
            Ok(Err(error)) => status.problem = Some(cause(&error)),
            Err(_) => {
                let seconds = limit.as_secs();
                status.problem = Some(format!("no answer within {seconds} s"));
            }
        }
        status
    }
}

fn client(connection: &Connection) -> PeerClient<Channel> {
    PeerClient::new(connection.0.clone()).max_decoding_message_size(MESSAGE_MAX)
}

async fn dial(
    member: &Member,
    tls: &Tls,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, DialError> {
    let address = || member.address.clone();
    let tcp = TcpStream::connect(&member.address)
        .await
        .map_err(|error| DialError::Connect(address(), error))?;
    tcp.set_nodelay(true)
        .map_err(|error| DialError::Connect(address(), error))?;
    let refused = |why: String| DialError::Tls(address(), why);
    let name = ServerName::try_from(member.name.clone())
        .map_err(|_| refused(format!("{} can be no name in a certificate", member.name)))?;
    let connector = TlsConnector::from(tls.client());
    let stream = connector
        .connect(name, tcp)
        .await
        .map_err(|error| refused(error.to_string()))?;
    Tls::check_node(stream.get_ref().1, &member.name).map_err(refused)?;
    Ok(stream)
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

/// What a child's stream says.
fn events(
    stream: tonic::Streaming<v1::PeerUp>,
    child: NodeId,
    name: String,
) -> impl Stream<Item = Event> + Send {
    let gone = move |reason: String| Event::ChildGone {
        child,
        reason: format!("the agent of {name}: {reason}"),
    };
    let ended = gone.clone();
    let messages = stream.filter_map(move |message| {
        let event = message
            .map_err(|status| format!("lost: {}", cause(&status)))
            .and_then(|message| event(message, child));
        std::future::ready(event.unwrap_or_else(|reason| Some(gone(reason))))
    });
    messages.chain(stream::once(async move { ended("it left the launch".into()) }))
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
        Some(v1::peer_up::Message::Welcome(welcome)) => Err(skew(welcome.version, &welcome.agent)),
        None => Err("it sent a message this agent does not know".into()),
    }
}

/// How two versions that do not match are told.
pub fn skew(version: u32, program: &str) -> String {
    format!(
        "it is wireup {program} with link version {version}, this is wireup {PROGRAM_VERSION} with link \
         version {VERSION}; install the same wireup on all nodes"
    )
}
