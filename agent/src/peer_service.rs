//! Service Peer: other agents bring launches here and ask how this one is.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use prost::bytes::{Bytes, BytesMut};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::PROGRAM_VERSION;
use crate::budget::{Budgets, ByteReservation};
use crate::caller_identity::RemoteCaller;
use crate::identity::Role;
use crate::launch::descriptor::{LaunchDescriptor, LaunchDescriptorError};
use crate::launch::frame_router::{Neighbour, RouterEvent, TreePosition};
use crate::launch::joining_nodes::GrowthAssembler;
use crate::launch::launch_members::OPENING_MAX;
use crate::launch::launch_registry::LaunchRefusal;
use crate::launch::queue::queue;
use crate::launch_task::{LaunchSource, run_launch};
use crate::name_servers::{self, GuestError};
use crate::peer::peer_error::MessageError;
use crate::peer::{cause, packet};
use crate::proto::v1;
use crate::proto::v1::peer_server::Peer as Service;
use crate::state::Agent;
use wireup_core::job::ids::NodeId;
use wireup_core::link::agent_protocol::VERSION;
use wireup_core::name_server::MEET_MAX;

#[derive(Debug)]
pub struct PeerService(pub Arc<Agent>);

#[tonic::async_trait]
impl Service for PeerService {
    type JoinStream = Pin<Box<dyn Stream<Item = Result<v1::PeerUp, Status>> + Send>>;

    async fn join(
        &self,
        request: Request<Streaming<v1::PeerDown>>,
    ) -> Result<Response<Self::JoinStream>, Status> {
        let caller = calling_node(&request)?;
        let mut stream = request.into_inner();
        let agent = &self.0;
        let (opening, node) = opening(&agent.budgets, &mut stream).await?;
        let member = opening.member(node);
        if member.name != agent.name {
            return Err(Status::invalid_argument(format!(
                "this is node {}, not {}; correct the address {} in the host list",
                agent.name, member.name, member.address
            )));
        }
        if let Some(parent) = opening.tree().parent(node) {
            let parent = &opening.member(parent).name;
            if *parent != caller {
                return Err(Status::permission_denied(format!(
                    "launch {} must come to {} from {parent}, not from {}",
                    opening.launch, agent.name, caller
                )));
            }
        }
        let user = agent
            .user(opening.uid)
            .await
            .map_err(|error| Status::permission_denied(error.to_string()))?;
        let place = TreePosition::Member(node);
        let seat = agent
            .registry
            .enter(&opening.launch, opening.token, opening.uid, place)
            .map_err(|refusal| refused(&refusal))?;

        let (up, queued) = queue(&seat.account);
        let message = Some(v1::peer_up::Message::Welcome(v1::Welcome {
            version: VERSION,
            agent: PROGRAM_VERSION.to_owned(),
            boot: agent.boot_id.clone(),
        }));
        up.push(v1::PeerUp { message }, 0)
            .expect("the queue is empty");
        let above = LaunchSource::Agent {
            name: caller.clone(),
            queue: up,
            events: events(stream, caller, GrowthAssembler::new(&seat.account)).boxed(),
        };
        let launch = run_launch(agent.clone(), opening, user, place, above, seat);
        agent.frames.spawn(launch);
        Ok(Response::new(queued.map(Ok).boxed()))
    }

    type MeetStream = Pin<Box<dyn Stream<Item = Result<v1::Frame, Status>> + Send>>;

    async fn meet(
        &self,
        request: Request<Streaming<v1::MeetRequest>>,
    ) -> Result<Response<Self::MeetStream>, Status> {
        let caller = calling_node(&request)?;
        let mut stream = request.into_inner();
        let message = stream.message().await?.and_then(|request| request.message);
        let Some(v1::meet_request::Message::Hello(hello)) = message else {
            return Err(Status::invalid_argument(
                "the stream does not start with a MeetHello",
            ));
        };
        same_version(hello.version, Some(&hello.agent))?;
        if hello.name.len() > MEET_MAX {
            return Err(Status::invalid_argument(format!(
                "the name scope (--meet) has more than {MEET_MAX} bytes"
            )));
        }
        // Nothing can run here for an unknown user.
        self.0
            .served_users
            .check(hello.uid)
            .map_err(|error| Status::permission_denied(error.to_string()))?;
        let frames = stream.map(|request| match request.map(|request| request.message) {
            Ok(Some(v1::meet_request::Message::Frame(frame))) => Ok(packet(frame)?),
            Ok(_) => Err(MessageError::Unknown.into()),
            Err(status) => Err(GuestError::Lost(cause(&status))),
        });
        let answers = name_servers::serve(
            &self.0.name_servers,
            (hello.uid, hello.name),
            caller,
            frames,
        );
        Ok(Response::new(
            answers.map(|packet| Ok(packet.into())).boxed(),
        ))
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let agent = &self.0;
        let caller = caller(&request)?;
        same_version(request.get_ref().version, None)?;
        Ok(Response::new(v1::StatusResponse {
            name: agent.name.clone(),
            address: agent.advertised(Some(caller.local_address)),
            version: PROGRAM_VERSION.to_owned(),
            launches: agent.count_launches(),
            draining: agent.registry.draining(),
            boot: agent.boot_id.clone(),
            capabilities: agent.capability_probe.capabilities().await.map(Into::into),
        }))
    }
}

/// Returns the name of the node whose agent calls.
fn calling_node<T>(request: &Request<T>) -> Result<String, Status> {
    let identity = caller(request)?.identity;
    match identity.role {
        Role::Node => Ok(identity.name),
        _ => Err(Status::permission_denied(
            "only agents of nodes may call this",
        )),
    }
}

/// Returns the identity of the caller.
fn caller<T>(request: &Request<T>) -> Result<RemoteCaller, Status> {
    let caller = request.extensions().get::<RemoteCaller>().cloned();
    caller.ok_or_else(|| Status::unauthenticated("the connection has no certificate"))
}

fn refused(refusal: &LaunchRefusal) -> Status {
    let text = refusal.to_string();
    match refusal {
        LaunchRefusal::Draining => Status::unavailable(text),
        LaunchRefusal::Spent(_) => Status::resource_exhausted(text),
        LaunchRefusal::Twice(_) => Status::already_exists(text),
        LaunchRefusal::Token(_) | LaunchRefusal::User { .. } => Status::permission_denied(text),
    }
}

/// Refuses callers of another version; `program` is their version, if known.
fn same_version(version: u32, program: Option<&str>) -> Result<(), Status> {
    if version == VERSION {
        return Ok(());
    }
    let program = program.map(|program| format!(" wireup {program}"));
    Err(Status::failed_precondition(format!(
        "it is wireup {PROGRAM_VERSION} with link version {VERSION}, but the caller{} has link version {version}; \
         install the same wireup on all nodes",
        program.unwrap_or_default()
    )))
}

/// Reads the opening of a stream: the launch, and which of its nodes this is.
async fn opening(
    budgets: &Budgets,
    stream: &mut Streaming<v1::PeerDown>,
) -> Result<(LaunchDescriptor, NodeId), Status> {
    let mut first: Option<v1::Hello> = None;
    let mut held: Option<ByteReservation> = None;
    let mut pieces = BytesMut::new();
    loop {
        let message = stream.message().await?.and_then(|down| down.message);
        let Some(v1::peer_down::Message::Hello(hello)) = message else {
            return Err(Status::invalid_argument(
                "the stream does not start with a Hello",
            ));
        };
        if first.is_none() {
            same_version(hello.version, Some(&hello.agent))?;
        }
        let (piece, more) = (hello.opening.clone(), hello.more);
        let bytes = pieces.len() + piece.len();
        if bytes > OPENING_MAX {
            return Err(invalid(&LaunchDescriptorError::Size(bytes)));
        }
        let held = held.get_or_insert_with(|| budgets.account(hello.uid).hold(0));
        held.grow(piece.len())
            .map_err(|spent| Status::resource_exhausted(spent.to_string()))?;
        let hello = first.get_or_insert(hello);
        if more {
            pieces.extend_from_slice(&piece);
            continue;
        }
        let bytes: Bytes = match pieces.is_empty() {
            true => piece,
            false => {
                pieces.extend_from_slice(&piece);
                pieces.freeze()
            }
        };
        let account = Arc::clone(held.account());
        let _turn = account.turn().await;
        // Charged again with the opening.
        held.set(0);
        let opening = LaunchDescriptor::from_parent(hello, account.count_message(bytes), &account)
            .map_err(|error| invalid(&error))?;
        return Ok((opening, NodeId(hello.node)));
    }
}

fn invalid(error: &LaunchDescriptorError) -> Status {
    Status::invalid_argument(error.to_string())
}

/// Returns the messages of the parent's stream.
fn events(
    stream: Streaming<v1::PeerDown>,
    parent: String,
    mut pieces: GrowthAssembler,
) -> impl Stream<Item = RouterEvent> + Send {
    let events = stream.filter_map(move |message| {
        let event = match message.map(|down| down.message) {
            Ok(Some(v1::peer_down::Message::Frame(frame))) => {
                packet(frame).map(|packet| Some(RouterEvent::Carried(Neighbour::Up, packet)))
            }
            Ok(Some(v1::peer_down::Message::Grow(grow))) => match pieces.push_parent_piece(&grow) {
                Ok(growth) => Ok(growth.map(RouterEvent::Grow)),
                Err(error) => Err(error.into()),
            },
            Ok(_) => Err(MessageError::Unknown),
            Err(status) => {
                let reason = format!("the agent of {parent} is lost: {}", cause(&status));
                Ok(Some(RouterEvent::UpGone { reason }))
            }
        };
        let event = event.unwrap_or_else(|error| {
            let reason = format!("invalid message from the agent of {parent}: {error}");
            Some(RouterEvent::UpGone { reason })
        });
        std::future::ready(event)
    });
    let ended = RouterEvent::UpGone {
        reason: "the parent ended the launch".to_owned(),
    };
    events.chain(futures_util::stream::iter([ended]))
}
