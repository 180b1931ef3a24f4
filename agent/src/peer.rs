//! Agents among themselves: service Peer over mutual TLS.
//!
//! - [`peer_connection`]: connections to others, shared by the launches that need them
//! - [`peer_calls`]: calls to others
//! - [`peer_error`]: failed calls and invalid answers
//! - [`reboot`]: whether a host that was lost has rebooted

pub mod peer_calls;
pub mod peer_connection;
pub mod peer_error;
mod reboot;

use std::io::ErrorKind;

use tonic::Status;

use self::peer_error::MessageError;
use crate::launch::{NodeLoss, NodeReturned, RoutedFrame};
use crate::proto::v1;
use wireup_core::job::ids::NodeId;
use wireup_core::link::agent_protocol::NO_SIGN;
use wireup_core::link::frame::{BODY_MAX, FrameAddress};

/// Most bytes of a message: a frame, a piece of an opening, or the report of many lost nodes.
pub const MESSAGE_MAX: usize = 1024 * 1024;

impl From<RoutedFrame> for v1::Frame {
    fn from(packet: RoutedFrame) -> Self {
        Self {
            to: packet.to.to_u32(),
            from: packet.from.to_u32(),
            more: packet.more,
            body: packet.body,
        }
    }
}

/// Returns the packet of a frame, unless it is too long.
pub(crate) fn packet(frame: v1::Frame) -> Result<RoutedFrame, MessageError> {
    if frame.body.len() > BODY_MAX {
        return Err(MessageError::FrameLength(frame.body.len()));
    }
    Ok(RoutedFrame {
        to: FrameAddress::from_u32(frame.to),
        from: FrameAddress::from_u32(frame.from),
        more: frame.more,
        body: frame.body,
    })
}

impl From<NodeLoss> for v1::Unreachable {
    fn from(loss: NodeLoss) -> Self {
        Self {
            nodes: loss.nodes.into_iter().map(|node| node.0).collect(),
            reason: loss.reason,
            step: loss.step,
        }
    }
}

impl From<v1::Unreachable> for NodeLoss {
    fn from(lost: v1::Unreachable) -> Self {
        Self {
            nodes: lost.nodes.into_iter().map(NodeId).collect(),
            reason: lost.reason,
            step: lost.step,
        }
    }
}

impl From<NodeReturned> for v1::Returned {
    fn from(returned: NodeReturned) -> Self {
        Self {
            node: returned.node.0,
            rebooted: returned.rebooted,
        }
    }
}

impl From<v1::Returned> for NodeReturned {
    fn from(returned: v1::Returned) -> Self {
        Self {
            node: NodeId(returned.node),
            rebooted: returned.rebooted,
        }
    }
}

/// Returns the reason of a stream's end, for the user: the innermost error, which is the one that failed.
pub(crate) fn cause(status: &Status) -> String {
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(status);
    let mut found = status.message().to_owned();
    while let Some(error) = cause {
        let broken = error.downcast_ref().and_then(h2::Error::get_io);
        let text = match broken.map(std::io::Error::kind) {
            // The second is the error of a write after the end and the reset of a connection. Source: tcp_reset in Linux.
            Some(ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe) => {
                "it was killed or crashed".to_owned()
            }
            Some(ErrorKind::TimedOut) => NO_SIGN.to_owned(),
            _ => error.to_string(),
        };
        if !text.is_empty() {
            found = text;
        }
        cause = error.source();
    }
    match found.is_empty() {
        true => status.code().description().to_owned(),
        false => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failed_write_to_ended_agent_is_no_silence() {
        let (stream, other) = tokio::io::duplex(64);
        // Writes fail with a broken pipe now.
        drop(other);
        let error = h2::client::handshake(stream).await.unwrap_err();
        let status = Status::from_error(Box::new(error));
        assert_eq!(cause(&status), "it was killed or crashed");
    }
}
