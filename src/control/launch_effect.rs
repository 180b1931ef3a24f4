//! Work that a service, or the supervisor, leaves for another part of the launcher.

use std::collections::BTreeMap;

use super::queued_spawn::QueuedSpawn;
use super::resize_request::{ResizeRequest, ResizeResult};
use crate::backend::inspection::{InspectionError, InspectionResult};
use wireup_core::job::ids::JobIndex;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::FailureCause;

/// Work for another part of the launcher; executed in the order in which it was left.
pub(super) enum LaunchEffect {
    /// The end of the launch has begun.
    EndBegun,
    /// Hang up the terminal of a rank, as if its user had disconnected.
    HangUp,
    /// The job has failed, unless it failed before.
    Fail(FailureCause),
    /// A spawn was requested; it may need hosts that must join first.
    RequestSpawn(QueuedSpawn),
    /// The hosts of a spawn have joined.
    DecideSpawn(QueuedSpawn),
    /// Hosts are to join or to leave.
    Resize(ResizeRequest),
    /// Result of a change of the hosts for another command, by the number of its connection.
    Resized(u32, ResizeResult),
    /// All processes of a job have ended.
    JobEnded(JobIndex),
    /// Ranks may not reach each other: warn of an address that several hosts have.
    NameSharedAddress,
    /// Ranks may wait for each other: inspect what they use and where they wait.
    InspectStalled(Vec<KnownRank>),
    /// Result of the inspection that [`InspectStalled`](Self::InspectStalled) requested.
    StallInspected {
        ranks: Vec<KnownRank>,
        found: BTreeMap<KnownRank, Result<InspectionResult, InspectionError>>,
    },
}
