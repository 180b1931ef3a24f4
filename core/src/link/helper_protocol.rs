//! Messages from an agent to its helper, `wireup steps`: the process that forks steps and launchers
//! started, and which alone keeps root's rights where the agent has given them up.
//!
//! Every order has one answer. New processes are children of the agent. Descriptors accompany the messages; which ones,
//! and in which order, is said at each.

use serde::{Deserialize, Serialize};

/// What the helper is to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HelperRequest {
    /// From now on the agent is not trusted: it is about to give up its rights. Sent once, with the
    /// socket of the process that knows accounts.
    Separate(HelperPolicy),
    /// Requests a step: with its end of its link, the pipe for its messages, and for root the
    /// connection of the launcher.
    Step {
        /// The user of the process.
        owner: ProcessOwner,
        /// Its environment, in place of what there is: `NAME=value`.
        environment: Vec<Vec<u8>>,
    },
    /// Requests a [launcher](super::scheduled_launcher): with its standard input, output and error, and its
    /// descriptors 3 and 4.
    Launcher {
        /// The user of the process.
        owner: ProcessOwner,
        /// What the process list shows of its job.
        shown: Vec<Vec<u8>>,
        /// Its environment, as that of a step.
        environment: Vec<Vec<u8>>,
    },
    /// A signal for a process that the helper has made.
    Signal {
        /// Which, as it was answered.
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
    /// That of these numbers. Of a believed agent only.
    Numbers(UserIds),
    /// A user whose groups the helper looks up itself.
    User {
        /// User.
        uid: u32,
        /// One of his groups, if not his primary one.
        gid: Option<u32>,
    },
}

/// The numbers of a user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserIds {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What holds for an agent that is not believed.
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
    /// Where it was put.
    pub path: Vec<u8>,
    pub dev: u64,
    pub ino: u64,
}

/// What became of an order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum HelperReply {
    /// The process exists; its pidfd is attached. The process itself changes to its user: if it
    /// cannot, it reports the error and ends.
    Made {
        pid: i32,
        /// By which it can be signalled.
        id: u64,
    },
    Done,
    /// The files of the certificate that are there come with it.
    Files {
        /// Which are, in the order of [`HelperPolicy::credentials`].
        presence: Vec<bool>,
    },
    /// It cannot be done.
    Failed {
        errno: i32,
    },
    /// It is not done.
    Refused {
        reason: String,
    },
}

/// The answer of the account process for a user id, as bytes of a pipe that comes with the id.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FoundAccount {
    Account(UserIds),
    /// There is none, or the database cannot be asked.
    Nothing {
        reason: String,
    },
}
