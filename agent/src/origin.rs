//! Who is at the other end of a connection, as requests know it.

use std::fmt;
use std::net::SocketAddr;

use crate::identity::Identity;

/// Who is at the other end of a connection between hosts; an extension of every request that comes over it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Whose certificate was shown.
    pub identity: Identity,
    /// Where it calls from.
    pub address: SocketAddr,
    /// The address of this node at which it calls.
    pub here: SocketAddr,
}

/// Who is at the other end of a connection of this machine; an extension of every request that comes over it.
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
