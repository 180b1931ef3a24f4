//! Work that a service, or the supervisor, leaves for another part of the launcher.

use std::collections::BTreeMap;

use super::queued_spawn::QueuedSpawn;
use crate::backend::inspection::{InspectionError, InspectionResult};
use wireup_core::job::ids::JobIndex;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::FailureCause;

/// Work for another part of the launcher, in the order in which it was left.
pub(super) enum LaunchEffect {
    /// The end of the launch has begun.
    EndBegun,
    /// The rank with a terminal is to be hung up, like one whose user has gone.
    HangUp,
    /// The job has failed, unless it has before.
    Fail(FailureCause),
    /// A spawn was requested, which may need hosts that must join first.
    RequestSpawn(QueuedSpawn),
    /// The hosts of a spawn have joined.
    DecideSpawn(QueuedSpawn),
    /// All processes of a job have ended.
    JobEnded(JobIndex),
    /// Ranks do not reach each other: an address that several hosts have is named.
    NameSharedAddress,
    /// These ranks may wait for each other: a look is taken at what they use and where they wait.
    InspectStalled(Vec<KnownRank>),
    /// The look that [`InspectStalled`](Self::InspectStalled) asked for is over.
    StallInspected {
        ranks: Vec<KnownRank>,
        found: BTreeMap<KnownRank, Result<InspectionResult, InspectionError>>,
    },
}
