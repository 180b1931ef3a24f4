//! Messages between a launch and the name server.

use serde::{Deserialize, Serialize};

use crate::job::ids::Nspace;
use crate::job::octets;
use crate::names::name_server_requests::{NameServerReply, NameServerRequest};

/// Message from a launch to the name server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NameServerCommand {
    /// For the shared store.
    Store(NameServerRequest),
    /// Pass a message on to the launch of a job. It waits for a launch that is not connected yet.
    Relay {
        /// The jobs of the sending launch.
        sender_jobs: Vec<Nspace>,
        to: Nspace,
        /// Message, which the name server does not parse.
        #[serde(with = "octets")]
        body: Vec<u8>,
    },
}

/// Message from the name server to a launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NameServerReport {
    /// The first message: the launch is connected.
    Welcome,
    /// From the shared store.
    Store(NameServerReply),
    Relayed {
        /// One of its jobs.
        from: Nspace,
        /// Message, as in [`NameServerCommand::Relay`].
        #[serde(with = "octets")]
        body: Vec<u8>,
    },
    /// From a process that keeps names outside of wireup, for the user: the trouble with the store.
    Trouble(String),
    /// The launch of these jobs, to which something was relayed or from which, has left.
    Gone(Vec<Nspace>),
}
