//! The identity of a connection's other end, attached to requests.

use std::fmt;
use std::net::SocketAddr;

use crate::identity::Identity;

/// The identity of the other end of a connection between hosts; an extension of every request on
/// it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteCaller {
    /// The identity in the certificate.
    pub identity: Identity,
    /// Address from which the caller connects.
    pub address: SocketAddr,
    /// The address of this node at which it calls.
    pub local_address: SocketAddr,
}

/// The identity of the other end of a local connection; an extension of every request on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalCaller {
    /// User id of the caller, from the kernel, at the start of the connection.
    pub uid: u32,
}

impl fmt::Display for LocalCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "local user {}", self.uid)
    }
}
