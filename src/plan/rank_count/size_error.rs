//! Why a number of ranks, or an option that names ranks, is refused.

use super::DESCRIPTORS_BASE;
use crate::failure::RequestError;
use crate::plan::machine_slots::{SlotCalculation, SlotsError};
use wireup_core::job::ids::Rank;
use wireup_core::wording::{counted, verb_ending};

/// A request that the ranks of the job do not fit. `size` is the number of ranks of the job.
#[derive(Debug, thiserror::Error)]
pub(in crate::plan) enum SizeError {
    #[error("{0} ranks are more than this program can count")]
    TooMany(u64),
    #[error("--virtual-nodes {nodes} needs at least one rank per node, there {}", are_ranks(*.size))]
    FewerThanNodes { nodes: u32, size: u32 },
    #[error("{size} ranks with --ppn {ppn} need {} nodes, there {}; raise --ppn or --virtual-nodes",
        size.div_ceil(*ppn), is_or_are(*.nodes))]
    TooFewNodes { size: u32, ppn: u32, nodes: u32 },
    #[error("{} with --ppn {ppn} leave{} nodes empty; {} enough", counted(*.size, "rank"), verb_ending(*.size == 1), enough(size.div_ceil(*ppn)))]
    EmptyNodes { size: u32, ppn: u32 },
    #[error(
        "{ranks} ranks do not fit in the {} named for this machine or left by --cpus-per-rank; use --oversubscribe, or name more",
        counted(*.slots, "slot")
    )]
    NamedSlots { ranks: u32, slots: u32 },
    #[error(transparent)]
    Slots(#[from] SlotsError),
    #[error("on each virtual node, {} ranks do not fit in {}; use --oversubscribe, or {fits}", .full.ranks, .full.slots)]
    VirtualNode {
        full: SlotsError,
        /// The option that fits, with its value.
        fits: String,
    },
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

fn are_ranks(size: u32) -> String {
    let verb = if size == 1 { "is" } else { "are" };
    format!("{verb} {}", counted(size, "rank"))
}

fn enough(nodes: u32) -> String {
    let verb = if nodes == 1 { "is" } else { "are" };
    format!("{} {verb}", counted(nodes, "virtual node"))
}

fn is_or_are(nodes: u32) -> String {
    match nodes {
        1 => "is 1".to_owned(),
        _ => format!("are {nodes}"),
    }
}
