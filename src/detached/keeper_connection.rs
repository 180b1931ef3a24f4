//! A connection between an attach server and a client, which never blocks. Each message is preceded by its length in four
//! bytes, the lowest first.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::rank_proxy::socket_relay::send_queued;
use wireup_core::link::{decode, encode};

/// Maximum number of bytes read at once.
const READ: usize = 64 << 10;

/// Maximum bytes of a message.
const MESSAGE_MAX: usize = 64 << 10;

/// Error: the received bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the other end may have another version of wireup")]
pub(super) struct InvalidMessage;

/// Connection, with the bytes that are not decoded or not sent yet.
#[derive(Debug)]
pub(super) struct AttachConnection {
    socket: OwnedFd,
    received: Vec<u8>,
    to_send: Vec<u8>,
}

impl AttachConnection {
    /// Takes a socket that does not block.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            received: Vec::new(),
            to_send: Vec::new(),
        }
    }

    /// Number of bytes that are not sent yet.
    pub(super) fn queued(&self) -> usize {
        self.to_send.len()
    }

    pub(super) fn queue(&mut self, message: &impl Serialize) {
        let body = encode(message);
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        self.to_send.extend_from_slice(&length.to_le_bytes());
        self.to_send.extend_from_slice(&body);
    }

    /// Sends as much as the socket takes; false when the other end has disconnected.
    pub(super) fn flush(&mut self) -> bool {
        send_queued(&self.socket, &mut self.to_send).is_ok()
    }

    /// Queues a message and sends as much as the socket takes; false when the other end has disconnected.
    pub(super) fn send(&mut self, message: &impl Serialize) -> bool {
        self.queue(message);
        self.flush()
    }

    /// Reads once; false when the other end has disconnected.
    pub(super) fn read(&mut self) -> bool {
        let mut bytes = vec![0; READ];
        match recv(&self.socket, &mut bytes, RecvFlags::empty()) {
            Ok((0, _)) => false,
            Ok((count, _)) => {
                self.received.extend_from_slice(&bytes[..count]);
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }

    /// Returns the next message, if all of it was read.
    ///
    /// # Errors
    /// [`InvalidMessage`]; the connection cannot be used any more.
    pub(super) fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, InvalidMessage> {
        let Some((length, rest)) = self.received.split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_MAX {
            return Err(InvalidMessage);
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = decode(body).map_err(|_| InvalidMessage)?;
        self.received.drain(..size_of::<u32>() + length);
        Ok(Some(message))
    }
}

impl AsFd for AttachConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::super::attach_messages::AttachRequest;
    use super::*;

    fn pair() -> (UnixStream, AttachConnection) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (ours, AttachConnection::new(theirs.into()))
    }

    #[test]
    fn messages_arrive_whole_in_pieces_of_any_size() {
        let sent = [
            AttachRequest::Attach,
            AttachRequest::Input(b"a\n".to_vec()),
            AttachRequest::Input(Vec::new()),
            AttachRequest::Shown(1 << 40),
        ];
        let (_other, mut sender) = pair();
        sent.iter().for_each(|message| sender.queue(message));
        for size in 1..=sender.to_send.len() {
            let (mut ours, mut connection) = pair();
            let mut got: Vec<AttachRequest> = Vec::new();
            for piece in sender.to_send.chunks(size) {
                ours.write_all(piece).unwrap();
                assert!(connection.read());
                while let Some(message) = connection.next().unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got, sent);
            drop(ours);
            assert!(!connection.read());
        }
    }

    #[test]
    fn invalid_message_is_refused_before_buffering() {
        for bad in [
            &b"\xff\xff\xff\xff"[..],
            b"\x01\0\0\0\xff",
            b"\x02\0\0\0\0\0",
        ] {
            let (mut ours, mut connection) = pair();
            ours.write_all(bad).unwrap();
            assert!(connection.read());
            assert_eq!(
                connection.next::<AttachRequest>(),
                Err(InvalidMessage),
                "{bad:?}"
            );
        }
    }
}
