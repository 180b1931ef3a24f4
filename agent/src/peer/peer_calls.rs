//! Calls to other agents: to take part in a launch, and to report their state.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::timeout;
use tokio_stream::Stream;
use tonic::Response;
use tonic::transport::Channel;

use super::packet;
use super::peer_connection::{ConnectionUse, Peers, RESTART};
use super::peer_error::{MessageError, PeerError};
use super::reboot::LostChild;
use crate::PROGRAM_VERSION;
use crate::budget::BudgetAccount;
use crate::launch::descriptor::LaunchDescriptor;
use crate::launch::frame_router::{Neighbour, RouterEvent, frame_bodies};
use crate::launch::queue::{LinkQueue, Resend, queue};
use crate::proto::v1;
use crate::proto::v1::peer_client::PeerClient;
use wireup_core::job::ids::NodeId;
use wireup_core::link::agent_protocol::{NodeAddress, NodeStatus, VERSION};

/// Timeout of an agent's state report.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit of a connection and that answer together; `wireup ps --nodes` waits 30 s for all.
const STATUS_LIMIT: Duration = Duration::from_secs(20);

impl Peers {
    /// Makes a node's agent take part in a launch: returns a queue for messages to it, and the events from it, which
    /// end with [`RouterEvent::ChildGone`].
    pub fn join(
        self: &Arc<Self>,
        opening: &LaunchDescriptor,
        node: NodeId,
        account: &Arc<BudgetAccount>,
    ) -> (
        LinkQueue<v1::PeerDown>,
        impl Stream<Item = RouterEvent> + Send + use<>,
    ) {
        let (queue, queued) = queue(account);
        for (hello, bytes) in hellos(opening, node) {
            let message = Some(v1::peer_down::Message::Hello(hello));
            queue
                .push(v1::PeerDown { message }, bytes)
                .expect("an opening is smaller than what may wait");
        }
        let (peers, member) = (self.clone(), opening.member(node).clone());
        let account = Arc::clone(account);
        let events = async move {
            let sent = Resend::new(queued);
            let join = |mut client: PeerClient<Channel>| {
                let attempt = sent.attempt();
                async move { client.join(attempt).await }
            };
            match peers.call(&member, &account, RESTART, join).await {
                Ok((stream, line)) => {
                    sent.accept();
                    events(stream, node, line, peers, account).left_stream()
                }
                Err(error) => {
                    let gone = RouterEvent::ChildGone {
                        child: node,
                        reason: error.to_string(),
                    };
                    stream::iter([gone]).right_stream()
                }
            }
        };
        (queue, events.flatten_stream())
    }

    /// Asks an agent how it is.
    pub async fn status(&self, member: &NodeAddress, account: &Arc<BudgetAccount>) -> NodeStatus {
        let request = v1::StatusRequest { version: VERSION };
        let mut status = NodeStatus {
            name: member.name.clone(),
            queried_address: member.address.clone(),
            ..NodeStatus::default()
        };
        // Only the answer is limited: a connection has separate limits, and may have to wait for the user's turn.
        let ask = |mut client: PeerClient<Channel>| async move {
            match timeout(STATUS_TIMEOUT, client.status(request)).await {
                Ok(answer) => answer.map(|answer| answer.map(Some)),
                Err(_) => Ok(Response::new(None)),
            }
        };
        let call = self.call(member, account, Duration::ZERO, ask);
        let late = |limit: Duration| Some(format!("no reply within {} s", limit.as_secs()));
        match timeout(STATUS_LIMIT, call).await {
            Ok(Ok((Some(answer), _))) => {
                status.advertised = answer.address;
                status.version = answer.version;
                status.launches = answer.launches;
                status.draining = answer.draining;
                status.capabilities = answer.capabilities.map(Into::into);
            }
            Ok(Ok((None, _))) => status.problem = late(STATUS_TIMEOUT),
            Ok(Err(error)) => status.problem = Some(error.to_string()),
            Err(_) => status.problem = late(STATUS_LIMIT),
        }
        status
    }
}

/// Returns the messages that open a stream, and the bytes of each.
fn hellos(opening: &LaunchDescriptor, node: NodeId) -> impl Iterator<Item = (v1::Hello, usize)> {
    let mut first = Some(v1::Hello {
        version: VERSION,
        agent: PROGRAM_VERSION.to_owned(),
        launch: opening.launch.clone(),
        token: opening.token.to_bytes(),
        uid: opening.uid,
        node: node.0,
        ..Default::default()
    });
    frame_bodies(opening.bytes.clone()).map(move |(opening, more)| {
        let bytes = opening.len();
        let hello = v1::Hello {
            opening,
            more,
            ..first.take().unwrap_or_default()
        };
        (hello, bytes)
    })
}

/// Returns the messages of a child's stream; the connection is kept for it.
fn events(
    stream: tonic::Streaming<v1::PeerUp>,
    child: NodeId,
    line: ConnectionUse,
    peers: Arc<Peers>,
    account: Arc<BudgetAccount>,
) -> impl Stream<Item = RouterEvent> + Send {
    let line = Arc::new(line);
    let ended = RouterEvent::ChildGone {
        child,
        reason: PeerError::Left(line.member().name.clone()).to_string(),
    };
    let from = Arc::clone(&line);
    let mut boot = String::new();
    let events = stream.filter_map(move |message| {
        let event = match message {
            Ok(message) => {
                if let Some(v1::peer_up::Message::Welcome(welcome)) = &message.message {
                    boot.clone_from(&welcome.boot);
                }
                event(message, child).map_err(|error| from.misunderstood(error))
            }
            Err(status) => Err(from.failed(&status)),
        };
        let event = event.map_err(|loss| (loss, boot.clone()));
        std::future::ready(event.transpose())
    });
    let events = events.flat_map(move |event| match event {
        Ok(event) => stream::iter([event]).left_stream(),
        Err((loss, boot)) => {
            let lost = LostChild {
                child,
                boot,
                line: line.clone(),
                peers: peers.clone(),
                account: account.clone(),
            };
            lost.events(loss).right_stream()
        }
    });
    events.chain(stream::iter([ended]))
}

fn event(message: v1::PeerUp, child: NodeId) -> Result<Option<RouterEvent>, MessageError> {
    match message.message {
        Some(v1::peer_up::Message::Frame(frame)) => {
            packet(frame).map(|packet| Some(RouterEvent::Carried(Neighbour::Child(child), packet)))
        }
        Some(v1::peer_up::Message::Unreachable(lost)) => {
            Ok(Some(RouterEvent::Reported(child, lost.into())))
        }
        Some(v1::peer_up::Message::Returned(returned)) => {
            Ok(Some(RouterEvent::ReportedBack(child, returned.into())))
        }
        Some(v1::peer_up::Message::Welcome(welcome)) if welcome.version == VERSION => Ok(None),
        Some(v1::peer_up::Message::Welcome(welcome)) => Err(MessageError::Version {
            program: welcome.agent,
            version: welcome.version,
        }),
        None => Err(MessageError::Unknown),
    }
}
