//! Why a number of ranks, or an option that names ranks, is refused.

use super::DESCRIPTORS_BASE;
use wireup_core::failure::RequestError;
use wireup_core::job::ids::Rank;
use wireup_sys::machine_slots::SlotCalculation;

/// A request that the ranks of the job do not fit. `size` is the number of ranks of the job.
#[derive(Debug, thiserror::Error)]
pub(in crate::plan) enum SizeError {
    #[error(
        "{ranks} ranks do not fit in {slots}; use --oversubscribe, or write NAME:SLOTS where the host is named"
    )]
    Host { ranks: u32, slots: SlotCalculation },
    #[error(
        "{ranks} ranks need {needed} descriptors ({per_rank} each and {DESCRIPTORS_BASE} more), allowed are {allowed}; \
         raise the hard limit (ulimit -Hn) or start fewer ranks"
    )]
    Descriptors {
        ranks: u32,
        needed: u64,
        per_rank: u64,
        allowed: u64,
    },
    #[error("{option}: the job has the ranks 0 to {}", .size - 1)]
    NoSuchRank {
        /// The option with its value.
        option: String,
        size: u32,
    },
    #[error(
        "--pty {0} gives a terminal to a rank of this machine; leave it out with --hosts and --hostfile"
    )]
    TerminalElsewhere(Rank),
    #[error("--pty {0} needs standard output, where --json writes; name a file for that")]
    TerminalAndRecords(Rank),
}

impl RequestError for SizeError {}
