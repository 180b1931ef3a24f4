//! Facts that explain a failure of the launch, collected before its report.

use crate::backend::inspection::Dump;
use crate::report::failures::RemainingRanks;
use wireup_core::job::job_table::KnownRank;
use wireup_sys::out_of_memory::OomCounter;

/// Facts for the line about a failure.
#[derive(Default)]
pub(super) struct FailureFacts {
    /// The process that sent the first signal that asked for the job's end, in words.
    pub(super) signal_sender: Option<String>,
    /// Ranks that had not ended when the end of the job began.
    pub(super) remaining_ranks: RemainingRanks,
    /// Processes that the out-of-memory killer had ended when all ranks had been started.
    pub(super) oom_counter: Option<OomCounter>,
    /// The rank whose dump was looked for, and the dump if there is one.
    pub(super) dump: Option<(KnownRank, Option<Dump>)>,
}

impl FailureFacts {
    /// The dump of a rank, or that there is none, once that is known.
    pub(super) fn dump_of(&self, rank: KnownRank) -> Option<Option<&Dump>> {
        let (of, dump) = self.dump.as_ref()?;
        (*of == rank).then_some(dump.as_ref())
    }
}
