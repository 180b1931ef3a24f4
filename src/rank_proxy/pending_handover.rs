//! Handover between two clients of a rank (`wireup serve --restartable`): notifies the server of the first one's end, and
//! drops what the server still sends to it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::io::{Errno, read};

use super::socket_relay::{SocketRelay, send_queued};
use wireup_core::pmi::client_handover::ClientHandover;

/// Socket to the server, and the data for the next client.
pub(super) type FreeServerEnd = (OwnedFd, ClientHandover);

/// Progress of a handover.
#[derive(Debug)]
pub(super) enum HandoverStatus {
    Waits(PendingHandover),
    Over(FreeServerEnd),
    /// The server has closed its socket.
    Closed,
}

/// Handover that is not complete.
#[derive(Debug)]
pub(super) struct PendingHandover {
    server: OwnedFd,
    succession: ClientHandover,
    outgoing: Vec<u8>,
}

impl PendingHandover {
    /// Starts a handover after the end of a client; `None` if no other client can follow it.
    pub(super) fn from_ended_client(client: SocketRelay) -> Option<Self> {
        let (server, mut outgoing, succession) = client.into_server();
        let mut succession = succession?;
        outgoing.extend_from_slice(succession.client_gone()?);
        Some(Self {
            server,
            succession,
            outgoing,
        })
    }

    /// Returns the descriptor and events to poll.
    pub(super) fn interest(&self) -> (BorrowedFd<'_>, PollFlags) {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !self.outgoing.is_empty());
        (self.server.as_fd(), flags)
    }

    /// Sends and reads as much as possible.
    pub(super) fn advance(mut self) -> HandoverStatus {
        if send_queued(&self.server, &mut self.outgoing).is_err() {
            return HandoverStatus::Closed;
        }
        let mut buffer = [0; 16 * 1024];
        while self.succession.is_between() {
            match read(&self.server, &mut buffer) {
                Ok(0) => return HandoverStatus::Closed,
                Ok(count) => {
                    self.succession.from_server(&buffer[..count]);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return HandoverStatus::Waits(self),
                Err(_) => return HandoverStatus::Closed,
            }
        }
        HandoverStatus::Over((self.server, self.succession))
    }
}
