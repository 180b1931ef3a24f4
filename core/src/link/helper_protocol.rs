//! Messages from an agent to its helper, `wireup steps`. The helper forks steps and launchers, and alone keeps root's
//! rights if the agent has given them up.
//!
//! Every request has one reply. New processes are children of the agent. Descriptors accompany the messages; the
//! documentation of each message lists them in order.

use serde::{Deserialize, Serialize};

/// Request of an agent to its helper.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HelperRequest {
    /// Limits the agent, which is about to give up its rights and is not trusted from now on. Sent once, with the
    /// socket of the account process.
    Separate(HelperPolicy),
    /// Requests a step: with its end of its link, the pipe for its messages, and for root the
    /// connection of the launcher.
    Step {
        /// The user of the process.
        owner: ProcessOwner,
        /// Environment of the step, in place of the inherited one: `NAME=value`.
        environment: Vec<Vec<u8>>,
    },
    /// Requests a [launcher](super::scheduled_launcher): with its standard input, output and error, and its
    /// descriptors 3 and 4.
    Launcher {
        /// The user of the process.
        owner: ProcessOwner,
        /// Command line that the process list shows for the job.
        shown: Vec<Vec<u8>>,
        /// Environment of the launcher, in place of the inherited one: `NAME=value`.
        environment: Vec<Vec<u8>>,
    },
    /// A signal for a process that the helper has made.
    Signal {
        /// Id of the process, from [`HelperReply::Process`].
        id: u64,
        signal: i32,
    },
    /// The files of the node's certificate.
    Credentials,
}

/// The user of the requested process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ProcessOwner {
    /// The helper's own user's.
    Own,
    /// User with these numbers. Only a trusted agent may use it.
    Numbers(UserIds),
    /// User whose groups the helper looks up itself.
    User {
        uid: u32,
        /// One of his groups, if not his primary one.
        gid: Option<u32>,
    },
}

/// The numbers of a user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserIds {
    pub uid: u32,
    /// Primary group of the user.
    pub gid: u32,
    /// Supplementary groups of the user.
    pub groups: Vec<u32>,
}

/// Limits of the requests from an agent that is not trusted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HelperPolicy {
    /// The user that the agent becomes, as whom nothing else is started.
    pub agent: u32,
    /// The lowest number that a person has. Below it are accounts of the system.
    pub lowest: u32,
    /// Whether root's launches are taken from other nodes.
    pub root_launches: bool,
    /// Paths of the files of the node's certificate, as [`HelperRequest::Credentials`] gives them.
    pub credentials: Vec<Vec<u8>>,
    /// The socket of launchers.
    pub socket: SocketFile,
}

/// A socket in the file system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SocketFile {
    /// Path at which the socket was bound.
    pub path: Vec<u8>,
    pub dev: u64,
    pub ino: u64,
}

/// Reply of the helper to a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HelperReply {
    /// The process exists; its pidfd is attached. The process itself changes to its user: if it
    /// cannot, it reports the error and ends.
    Process {
        pid: i32,
        /// By which it can be signalled.
        id: u64,
    },
    Done,
    /// The existing files of the certificate are attached.
    Files {
        /// Presence of each file, in the order of [`HelperPolicy::credentials`].
        presence: Vec<bool>,
    },
    /// The request failed with this error.
    Failed {
        errno: i32,
    },
    /// The request violates the policy.
    Refused {
        reason: String,
    },
}

/// Answer of the account process for a user id, as bytes of a pipe that accompanies the id.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FoundAccount {
    Account(UserIds),
    /// Unknown user, or the account database cannot be queried.
    Nothing {
        reason: String,
    },
}
