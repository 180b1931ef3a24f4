//! What the launcher and the crew of a host say to each other: in memory on one machine, over a
//! link between hosts.

use super::record::Stream;
use super::supervisor::Waiting;
use crate::job::ids::{NodeId, Rank};
use crate::job::outcome::{Cause, LateFence, PmiState, RankEnd};
use crate::pmi::command::Dialect;

/// What a crew tells the launcher.
#[derive(Clone, PartialEq, Debug)]
pub enum FromCrew {
    /// A node's sidecar has loaded its libraries.
    HostLoaded {
        /// Where.
        node: NodeId,
        /// What libpmix calls itself.
        libpmix: String,
        /// What is to be known about it.
        warnings: Vec<String>,
    },
    /// Every sidecar here is ready: ranks may be started.
    Ready,
    /// A rank's process was started.
    Started {
        /// Which.
        rank: Rank,
        /// Its process.
        pid: i32,
    },
    /// A rank's process was not started: for a reason, or because the job had failed before.
    NotStarted {
        /// Which.
        rank: Rank,
        /// Why.
        cause: Option<Cause>,
    },
    /// The start of every rank here has been reported.
    AllStarted,
    /// A rank made contact with a process-management interface.
    Connected {
        /// Which.
        rank: Rank,
        /// The form of PMI it speaks, if it was PMI.
        dialect: Option<Dialect>,
    },
    /// A rank has left its process-management interface in order.
    Finalized {
        /// Which.
        rank: Rank,
    },
    /// A rank's process ended.
    Ended {
        /// Which.
        rank: Rank,
        /// How, unless the system lost that.
        end: Option<RankEnd>,
    },
    /// The end of a rank can be judged: nothing that explains it otherwise is to come.
    Judged {
        /// Which.
        rank: Rank,
        /// How it ended.
        end: RankEnd,
        /// What it had done.
        state: PmiState,
    },
    /// A rank that runs on cannot take part in anything any more.
    Left {
        /// What shows that others wait for it.
        waiting: Waiting,
        /// Why the job fails if they do.
        cause: Cause,
    },
    /// The job has failed.
    Failed {
        /// Why.
        cause: Cause,
        /// What the rank that caused it had done, if one did.
        state: Option<PmiState>,
    },
    /// A fence takes longer than expected, and goes on.
    FenceLate(LateFence),
    /// A sidecar was lost that nobody here needs any more.
    HostLostLate {
        /// Where.
        node: NodeId,
        /// Why.
        error: String,
    },
    /// What a rank printed; nothing when it has closed the stream.
    Output {
        /// Which.
        rank: Rank,
        /// Where.
        stream: Stream,
        /// As it was read.
        bytes: Vec<u8>,
    },
    /// A rank's MPI library has something for the user.
    Log {
        /// Where.
        stream: Stream,
        /// The text.
        text: Vec<u8>,
    },
    /// A line for the user.
    Tell {
        /// Without a prefix.
        text: String,
    },
    /// Nothing of the job is left on this host.
    Over,
}

/// What the launcher orders.
#[derive(Clone, PartialEq, Debug)]
pub enum ToCrew {
    /// Start none: the job has failed.
    Skip,
    /// The job is being ended: ranks that are not started yet are not to be.
    Ending,
    /// Send a signal to the process group of every living rank.
    Signal(i32),
    /// All ranks have ended: stop the sidecars, end what is left over.
    Finish {
        /// The job did not end well.
        abnormal: bool,
    },
    /// The user is impatient.
    Hurry,
}
