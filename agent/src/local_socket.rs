//! Callers of this machine: a Unix socket, on which the kernel gives the caller's user.
//!
//! Launchers and clients of gRPC use the same socket. HTTP/2 begins with four bytes that would be the
//! length of a frame far beyond any, so the first bytes tell which it is.
//!
//! Rule: a client's first bytes are `PRI * HTTP/2.0`. Source: RFC 9113, section 3.4.

pub mod agent_socket;
pub mod grpc_clients;

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::warn;

use self::agent_socket::Socket;
use self::grpc_clients::{Clients, LocalClient};
use crate::PROGRAM_VERSION;
use crate::budget::{BudgetAccount, BudgetExceeded, ByteReservation, PER_USER};
use crate::caller_identity::LocalCaller;
use crate::launch::descriptor::{LaunchDescriptor, LaunchDescriptorError};
use crate::launch::frame_link::{LinkError, LinkInput, LinkReader, LinkWriter, link};
use crate::launch::frame_router::TreePosition;
use crate::launch::launch_members::OPENING_MAX;
use crate::launch::launch_registry;
use crate::launch_agent_ports::{AgentStartError, START_LIMIT};
use crate::launch_task::{LaunchSource, run_launch};
use crate::name_client;
use crate::permit_counts::{CountedPermit, PermitCounts};
use crate::state::Agent;
use crate::user::{User, UserError};
use wireup_core::link::agent_protocol::{
    AgentReport, AgentRequest, NODES_MAX, NodeAddress, NodeStatus, VERSION, version_in,
};
use wireup_core::link::decode;
use wireup_core::link::liveness::LivenessMessage;
use wireup_core::name_server::MEET_MAX;

/// Timeout of a launcher's request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most agents that are asked for their state at the same time, for one request.
const ASKED_AT_ONCE: usize = 64;

/// Cost of a query about a node in bytes, with the reply.
const QUESTION: usize = 512;

/// Pause when the system has no descriptor or memory for a connection.
const RELIEF: Duration = Duration::from_millis(100);

/// Serves launchers for as long as this is polled, and passes on the others; requests are read on the runtime `requests`.
/// When `leave` is ready it closes the socket and drops `closed`; it returns when the connections that were accepted before
/// have ended.
pub async fn serve(
    agent: Arc<Agent>,
    requests: Handle,
    socket: Socket,
    clients: Clients,
    leave: impl Future<Output = ()>,
    closed: impl Sized,
) {
    let callers = PermitCounts::new();
    let mut leave = pin!(leave);
    let mut leaving = false;
    // What each that was accepted holds.
    let (accepted, mut all_ended) = mpsc::channel::<()>(1);
    loop {
        let connection = tokio::select! {
            biased;
            connection = socket.listener.accept() => connection,
            // Those first that have connected already.
            () = &mut leave, if !leaving => {
                leaving = true;
                continue;
            }
            () = std::future::ready(()), if leaving => break,
        };
        let connection = match connection {
            Ok((connection, _)) => connection,
            Err(error) => {
                warn!("cannot accept a local connection: {error}");
                tokio::time::sleep(RELIEF).await;
                continue;
            }
        };
        let uid = match connection.peer_cred() {
            Ok(credentials) => credentials.uid(),
            Err(error) => {
                warn!("refused a local connection of unknown origin: {error}");
                continue;
            }
        };
        // In the order of their arrival, which the runtime of requests does not keep.
        let slot = callers.enter(uid, PER_USER);
        let caller = caller(agent.clone(), slot, connection, uid, clients.clone());
        let accepted = accepted.clone();
        requests.spawn(async move {
            caller.await;
            drop(accepted);
        });
    }
    drop((socket, clients, closed, accepted));
    // Nothing is sent.
    all_ended.recv().await;
}

/// Serves the launcher at the other end of a connection, and nothing else.
pub async fn serve_one(agent: Arc<Agent>, connection: UnixStream, uid: u32) {
    let (clients, _) = mpsc::channel(1);
    let slot = PermitCounts::new().enter(uid, PER_USER);
    caller(agent, slot, connection, uid, clients).await;
}

/// Serves one connection of this machine; without a `slot` it is refused.
async fn caller(
    agent: Arc<Agent>,
    slot: Option<CountedPermit<u32>>,
    connection: UnixStream,
    uid: u32,
    clients: Clients,
) {
    if slot.is_some() && speaks_http(&connection).await {
        // There is no receiver when the agent is about to end.
        let _ = clients
            .send(Ok(LocalClient::new(connection, uid, slot)))
            .await;
        return;
    }
    // The duplicate proves to the helper that root asks.
    let root = match uid {
        0 => connection.as_fd().try_clone_to_owned().ok(),
        _ => None,
    };
    let frames = agent.frames.clone();
    let account = agent.budgets.account(uid);
    let link_parts = connection
        .into_std()
        .and_then(|connection| link(connection, &account));
    let (mut reader, mut writer) = match link_parts {
        Ok(link_parts) => link_parts,
        Err(error) => return warn!("cannot watch a local connection: {error}"),
    };
    if agent.launch_agents.is_some() {
        // They take longer to start than an agent that runs may be silent.
        let silence = Some(START_LIMIT);
        let _ = writer.sign(LivenessMessage::Alive { silence });
        let _ = poll_fn(|cx| Poll::Ready(writer.poll_flush(cx))).await;
    }
    let refusal = match slot {
        Some(_slot) => match read_request(&agent, &mut reader, &account, uid).await {
            Ok(Some(LocalRequest::Launch(launch))) => {
                let (opening, user) = *launch;
                let Some(reader) = moved(reader, &frames) else {
                    return;
                };
                match open(&agent, opening, user, reader, writer, root) {
                    Ok(launch) => {
                        // A panic there was reported where it was.
                        let _ = frames.spawn(launch).await;
                        return;
                    }
                    Err(back) => {
                        let reason;
                        (reason, writer) = *back;
                        reason
                    }
                }
            }
            Ok(Some(LocalRequest::NameServer(name))) => {
                if let Some(reader) = moved(reader, &frames) {
                    let meeting = name_client::serve_launch(agent, (uid, name), reader, writer);
                    let _ = frames.spawn(meeting).await;
                }
                return;
            }
            Ok(Some(LocalRequest::Nodes(members, _held))) => {
                let nodes = tokio::select! {
                    nodes = nodes(&agent, &account, members) => nodes,
                    // The caller does not wait for the answer any more, or sent an invalid message.
                    _ = reader.next() => return,
                };
                return answer(&mut writer, &AgentReport::Nodes(nodes)).await;
            }
            // It disconnected without a message, like a process that checks for an agent.
            Ok(None) => return,
            Err(reason) => reason,
        },
        None => LocalRefusal::Connections(uid),
    };
    let who = LocalCaller { uid }.to_string();
    agent.refusals.log(&who, || {
        warn!(uid, "refused a launcher: {refusal}");
    });
    let reason = refusal.to_string();
    answer(&mut writer, &AgentReport::Refused { reason }).await;
}

/// Has another thread wait for a connection.
fn moved(reader: LinkReader, thread: &Handle) -> Option<LinkReader> {
    let moved = reader.move_to(thread);
    moved
        .inspect_err(|error| warn!("cannot watch the connection of a launcher: {error}"))
        .ok()
}

/// Whether the first bytes are those of HTTP/2. They stay where they are.
async fn speaks_http(connection: &UnixStream) -> bool {
    const START: &[u8] = b"PRI ";
    let look = async {
        loop {
            connection.readable().await?;
            let mut start = [0; START.len()];
            let peek = || Ok(rustix::net::recv(connection, &mut start, RecvFlags::PEEK)?.1);
            let length = match connection.try_io(Interest::READABLE, peek) {
                Ok(length) => length,
                // It was no longer readable, or never was.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            if length == START.len() || length == 0 || !START.starts_with(&start[..length]) {
                return io::Result::Ok(start == START);
            }
            // A part of it stays readable.
            tokio::time::sleep(RELIEF).await;
        }
    };
    // A silent caller gets the answer for launchers.
    matches!(timeout(PATIENCE, look).await, Ok(Ok(true)))
}

/// Reason for which a process of this machine is not served. The text follows "a launcher:".
#[derive(Debug, thiserror::Error)]
enum LocalRefusal {
    #[error("no request within {} s", PATIENCE.as_secs())]
    Late,
    #[error("user id {0} already has {PER_USER} connections to this agent")]
    Connections(u32),
    #[error(
        "invalid request, or more than {NODES_MAX} nodes; this is an agent of wireup {PROGRAM_VERSION}"
    )]
    Unreadable,
    #[error(
        "the launcher has link version {0}, and this agent (wireup {PROGRAM_VERSION}) version {VERSION}; use the \
         same wireup for both, and restart the agent after an update"
    )]
    Version(u32),
    #[error("the name scope (--meet) has more than {MEET_MAX} bytes")]
    MeetName,
    #[error("request for more nodes without an open launch")]
    GrowsNothing,
    #[error("the connection closed within the request")]
    Ended,
    #[error("not the launcher protocol: {0}")]
    Link(LinkError),
    #[error("a message arrived before a launch was opened")]
    TooEarly,
    #[error("the request is longer than {} MiB", OPENING_MAX >> 20)]
    Long,
    #[error(transparent)]
    Spent(#[from] BudgetExceeded),
    #[error(transparent)]
    User(#[from] UserError),
    #[error(transparent)]
    Agents(#[from] AgentStartError),
    #[error(transparent)]
    Opening(#[from] LaunchDescriptorError),
    #[error("the agent of {name}: {refusal}")]
    Registry {
        name: String,
        refusal: launch_registry::LaunchRefusal,
    },
}

enum LocalRequest {
    Launch(Box<(LaunchDescriptor, User)>),
    /// With their share of the user's budget.
    Nodes(Vec<NodeAddress>, ByteReservation),
    NameServer(String),
}

async fn read_request(
    agent: &Agent,
    reader: &mut LinkReader,
    account: &Arc<BudgetAccount>,
    uid: u32,
) -> Result<Option<LocalRequest>, LocalRefusal> {
    let late = |_| LocalRefusal::Late;
    timeout(PATIENCE, reader.first()).await.map_err(late)?;
    let request = {
        let _permit = account.reading().await;
        let reading = timeout(PATIENCE, first_message(reader, account)).await;
        reading.map_err(late)??
    };
    let Some((request, held)) = request else {
        return Ok(None);
    };
    let turn = account.turn().await;
    let decoded = decode::<AgentRequest>(&request);
    // Nothing else has a version, and nothing else is a first message.
    if !matches!(decoded, Ok(AgentRequest::Grow { .. })) {
        match version_in(&request) {
            Some(VERSION) => {}
            Some(version) => return Err(LocalRefusal::Version(version)),
            None => return Err(LocalRefusal::Unreadable),
        }
    }
    let request = decoded.map_err(|_| LocalRefusal::Unreadable)?;
    drop((held, turn));
    let user = agent.user(uid).await?;
    match request {
        AgentRequest::Open {
            version: _,
            launch,
            scheduled,
            mut spread,
            description,
        } => {
            if let Some(agents) = &agent.launch_agents {
                agents.reach(&mut spread.nodes).await?;
            }
            let _turn = account.turn().await;
            let opening = LaunchDescriptor::from_launcher(
                launch,
                scheduled,
                uid,
                spread,
                description,
                account,
            )?;
            Ok(Some(LocalRequest::Launch(Box::new((opening, user)))))
        }
        AgentRequest::Meet { name, .. } if name.len() > MEET_MAX => Err(LocalRefusal::MeetName),
        AgentRequest::Meet { name, .. } => Ok(Some(LocalRequest::NameServer(name))),
        AgentRequest::Nodes { members, .. } => {
            let held = account.take(members.len() * QUESTION)?;
            Ok(Some(LocalRequest::Nodes(members, held)))
        }
        AgentRequest::Grow { .. } | AgentRequest::Ended(_) => Err(LocalRefusal::GrowsNothing),
    }
}

/// Returns the first message; `None` if the connection ends without one.
async fn first_message(
    reader: &mut LinkReader,
    account: &Arc<BudgetAccount>,
) -> Result<Option<(Vec<u8>, ByteReservation)>, LocalRefusal> {
    let mut message = Vec::new();
    let mut held = account.hold(0);
    loop {
        match reader.next().await {
            None if message.is_empty() => return Ok(None),
            None => return Err(LocalRefusal::Ended),
            Some(Err(error)) => return Err(LocalRefusal::Link(error)),
            Some(Ok(LinkInput::Carried(_) | LinkInput::Sign(_))) => {
                return Err(LocalRefusal::TooEarly);
            }
            Some(Ok(LinkInput::Control { more, body })) => {
                if message.len() + body.len() > OPENING_MAX {
                    return Err(LocalRefusal::Long);
                }
                held.grow(body.len())?;
                message.extend_from_slice(&body);
                if !more {
                    return Ok(Some((message, held)));
                }
            }
        }
    }
}

/// Begins a launch, or returns the connection for the refusal.
fn open(
    agent: &Arc<Agent>,
    opening: LaunchDescriptor,
    user: User,
    reader: LinkReader,
    writer: LinkWriter,
    root: Option<OwnedFd>,
) -> Result<impl Future<Output = ()> + Send + use<>, Box<(LocalRefusal, LinkWriter)>> {
    let place = match opening.spread.nodes[0].name == agent.name {
        true => TreePosition::EntryAndRoot,
        false => TreePosition::Entry,
    };
    let (token, uid) = (opening.token, opening.uid);
    match agent.registry.enter(&opening.launch, token, uid, place) {
        Ok(seat) => {
            let above = LaunchSource::Launcher {
                reader,
                writer,
                root,
            };
            Ok(run_launch(agent.clone(), opening, user, place, above, seat))
        }
        Err(refusal) => {
            let name = agent.name.clone();
            Err(Box::new((LocalRefusal::Registry { name, refusal }, writer)))
        }
    }
}

async fn nodes(
    agent: &Agent,
    account: &Arc<BudgetAccount>,
    members: Vec<NodeAddress>,
) -> Vec<NodeStatus> {
    if members.is_empty() {
        return vec![agent.status().await];
    }
    let asking = members
        .into_iter()
        .map(|member| async move { agent.peers.status(&member, account).await });
    stream::iter(asking).buffered(ASKED_AT_ONCE).collect().await
}

async fn answer(writer: &mut LinkWriter, message: &AgentReport) {
    // A launcher that does not read is not waited for.
    let _ = timeout(PATIENCE, writer.report(message)).await;
}
