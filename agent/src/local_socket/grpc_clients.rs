//! Clients of gRPC on the Unix socket.

use std::io;

use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tonic::transport::server::Connected;

use crate::caller_identity::LocalCaller;
use crate::permit_counts::CountedPermit;
use crate::stream::{read_through, write_through};

/// A connection of a user of this machine.
#[derive(Debug)]
pub struct LocalClient {
    stream: UnixStream,
    caller: LocalCaller,
    _slot: Option<CountedPermit<u32>>,
}

/// Queue for accepted connections.
pub type Clients = mpsc::Sender<io::Result<LocalClient>>;

impl LocalClient {
    /// Makes a connection of this user, which takes one of the user's places as long as it lasts.
    pub(super) fn new(stream: UnixStream, uid: u32, slot: Option<CountedPermit<u32>>) -> Self {
        Self {
            stream,
            caller: LocalCaller { uid },
            _slot: slot,
        }
    }
}

impl Connected for LocalClient {
    type ConnectInfo = LocalCaller;

    fn connect_info(&self) -> LocalCaller {
        self.caller
    }
}

read_through!(LocalClient, stream);
write_through!(LocalClient, stream);
