//! Facts that explain a failure of the launch, collected before its report.

use crate::backend::inspection::Dump;
use crate::report::failures::RemainingRanks;
use wireup_core::job::job_table::KnownRank;
use wireup_sys::out_of_memory::OomCounter;

/// Facts for the line about a failure.
#[derive(Default)]
pub(super) struct FailureFacts {
    /// Description of the process that sent the first signal to end the job.
    pub(super) signal_sender: Option<String>,
    /// Ranks that had not exited when the end of the job began.
    pub(super) remaining_ranks: RemainingRanks,
    /// Count of processes that the OOM killer had killed when all ranks had been started.
    pub(super) oom_counter: Option<OomCounter>,
    /// Rank whose core dump was searched for, and the dump if one was found.
    pub(super) dump: Option<(KnownRank, Option<Dump>)>,
}

impl FailureFacts {
    /// Returns the dump of a rank: `None` before the search, `Some(None)` if none was found.
    pub(super) fn dump_of(&self, rank: KnownRank) -> Option<Option<&Dump>> {
        let (of, dump) = self.dump.as_ref()?;
        (*of == rank).then_some(dump.as_ref())
    }
}
