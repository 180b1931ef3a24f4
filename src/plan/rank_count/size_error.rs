//! Errors of numbers of ranks, and of options that name ranks.

use super::DESCRIPTORS_BASE;
use wireup_core::failure::RequestError;
use wireup_core::job::ids::Rank;
use wireup_sys::machine_slots::SlotCalculation;

/// Request that contradicts the number of ranks, `size` being that of the job.
#[derive(Debug, thiserror::Error)]
pub(in crate::plan) enum SizeError {
    #[error(
        "{ranks} ranks do not fit in {slots}; use --oversubscribe, or name the host as NAME:SLOTS"
    )]
    Host { ranks: u32, slots: SlotCalculation },
    #[error(
        "{ranks} ranks need {needed} descriptors ({per_rank} each and {DESCRIPTORS_BASE} more), but the limit is {allowed}; \
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
        /// Option with its value.
        option: String,
        size: u32,
    },
    #[error(
        "--pty {0} is supported only for ranks of this machine; omit it with --hosts and --hostfile"
    )]
    TerminalElsewhere(Rank),
    #[error("--pty {0} uses standard output, to which --json writes too; give --json a file")]
    TerminalAndRecords(Rank),
}

impl RequestError for SizeError {}
