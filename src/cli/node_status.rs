//! The state of nodes as their agents report it, through the agent of this machine.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::lookup_progress::LookupProgress;
use crate::backend::local_agent;
use wireup_core::failure::{AnyError, CommandError};
use wireup_core::job::hosts::HostSpec;
use wireup_core::job::ids::UserId;
use wireup_core::link::agent_protocol::{
    AgentReport, AgentRequest, NodeAddress, NodeStatus, VERSION,
};
use wireup_core::link::decode;
use wireup_core::link::frame::{FrameAddress, FrameClass, FrameReader};
use wireup_core::link::reassembly::{Envelope, Reassembly, write};

/// Time limit of the agent's reply; the agent waits a few seconds for every other one.
const LIMIT: Duration = Duration::from_secs(30);

/// Connects to an agent of this machine that this user can use, and does not wait for one that is being restarted.
pub(super) fn own_agent(agent: Option<&Path>) -> Option<OwnedFd> {
    let user = UserId(rustix::process::geteuid().as_raw());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR");
    local_agent::try_find(agent, user, runtime.as_deref())
}

/// Returns the name and address of this machine's agent; without an agent, the host name.
pub(super) fn own_node(
    agent: Option<&Path>,
    progress: LookupProgress,
) -> Option<(String, Option<String>)> {
    let nodes =
        own_agent(agent).and_then(|socket| query_over_socket(socket, Vec::new(), progress).ok());
    match nodes.and_then(|nodes| nodes.into_iter().next()) {
        Some(NodeStatus {
            name, advertised, ..
        }) => Some((name, Some(advertised).filter(|at| !at.is_empty()))),
        None => {
            let own = rustix::system::uname();
            let own = own.nodename().to_str().ok()?;
            Some((own.to_owned(), None))
        }
    }
}

/// Queries the state of these hosts through the agent of this machine; that of the agent itself if none are given.
///
/// # Errors
/// When the agent does not run, refuses or does not reply.
pub(super) fn query_nodes(
    agent: Option<&Path>,
    hosts: &[HostSpec],
) -> Result<Vec<NodeStatus>, CommandError> {
    let members = hosts.iter().map(NodeAddress::from);
    let user = UserId(rustix::process::geteuid().as_raw());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR");
    let socket = local_agent::find(agent, user, runtime.as_deref())?;
    query_over_socket(socket, members.collect(), LookupProgress::default())
}

fn query_over_socket(
    socket: OwnedFd,
    members: Vec<NodeAddress>,
    progress: LookupProgress,
) -> Result<Vec<NodeStatus>, CommandError> {
    let mut socket = UnixStream::from(socket);
    // A limit that has passed is no shortage, though the system's words for both are the same.
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock => CommandError::request(format!(
            "the agent of this machine does not answer within {} s; was it stopped?",
            LIMIT.as_secs()
        )),
        _ => CommandError::system("the agent does not answer", error),
    };
    let envelope = Envelope {
        to: FrameAddress::EveryNode,
        from: FrameAddress::Launcher,
        class: FrameClass::Control,
    };
    let request = AgentRequest::Nodes {
        version: VERSION,
        members,
    };
    let mut bytes = Vec::new();
    write(envelope, &request, &mut bytes);
    socket.set_nonblocking(false).map_err(failed)?;
    socket.set_read_timeout(Some(LIMIT)).map_err(failed)?;
    socket.set_write_timeout(Some(LIMIT)).map_err(failed)?;
    // An agent that refuses may have closed the connection; its answer can still be read.
    let sent = socket.write_all(&bytes);
    let answer = progress.wait("the agent of this machine", &[socket.as_fd()], Some(LIMIT));
    if matches!(answer, Ok(false)) {
        return Err(failed(ErrorKind::WouldBlock.into()));
    }
    let mut reader = FrameReader::default();
    let mut parts = Reassembly::default();
    let mut chunk = [0; 16 * 1024];
    let garbled = |what: AnyError| CommandError::system("the agent sent garbage", what);
    loop {
        while let Some(frame) = reader.next_frame().map_err(|error| garbled(error.into()))? {
            let message = parts.take(frame).map_err(|error| garbled(error.into()))?;
            match message.map(|(_, body)| decode(&body)) {
                None => {}
                Some(Ok(AgentReport::Nodes(nodes))) => return Ok(nodes),
                Some(Ok(AgentReport::Refused { reason })) => {
                    return Err(CommandError::request(reason));
                }
                Some(Ok(AgentReport::Unreachable(_) | AgentReport::Returned(_))) => {
                    return Err(garbled("about a launch".into()));
                }
                Some(Err(error)) => return Err(garbled(error.into())),
            }
        }
        match socket.read(&mut chunk) {
            Ok(0) => {
                sent.map_err(failed)?;
                return Err(failed(ErrorKind::UnexpectedEof.into()));
            }
            Ok(count) => reader.push(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
}
