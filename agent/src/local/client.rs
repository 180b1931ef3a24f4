//! Clients of gRPC on the Unix socket.

use std::{fmt, io};

use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tonic::transport::server::Connected;

use super::Slot;
use crate::stream::{read_through, write_through};

/// A connection of a user of this machine.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    caller: LocalCaller,
    _slot: Option<Slot>,
}

/// Who is at its other end; an extension of every request that comes over it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalCaller {
    /// As the kernel said when the connection was made.
    pub uid: u32,
}

impl fmt::Display for LocalCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "local user {}", self.uid)
    }
}

/// Where those that were accepted go.
pub type Clients = mpsc::Sender<io::Result<Client>>;

impl Client {
    /// A connection of this user, which takes one of his places as long as it lasts.
    pub(super) fn new(stream: UnixStream, uid: u32, slot: Option<Slot>) -> Self {
        Self {
            stream,
            caller: LocalCaller { uid },
            _slot: slot,
        }
    }
}

impl Connected for Client {
    type ConnectInfo = LocalCaller;

    fn connect_info(&self) -> LocalCaller {
        self.caller
    }
}

read_through!(Client, stream);
write_through!(Client, stream);
