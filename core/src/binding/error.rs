//! Errors of the binding of ranks.

use crate::job::ids::Rank;
use crate::topology::{CpuSet, ObjectType};
use crate::wording::{counted, verb_ending};

/// Error: the host lacks the requested resources.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindingError {
    #[error("no CPU for ranks: the affinity mask and the control group have no CPU in common")]
    NoCpus,
    #[error("no {} found on this host; choose another part for --bind-to and --map-by (wireup topo shows them)", .0.noun(1))]
    NoSuchPart(ObjectType),
    #[error(
        "{} with {each} {} each need{} {needed}, but only {have} may be used{}; {}use fewer ranks, or --oversubscribe to let them share",
        counted(*ranks, "rank"), unit.noun(*each), verb_ending(*ranks == 1), room_in(*mapping_level, *unit, *room), advice(*unit, *threads, *needed)
    )]
    TooFew {
        ranks: u32,
        each: u32,
        unit: ObjectType,
        needed: u64,
        have: u64,
        /// The level over which ranks are mapped.
        mapping_level: Option<ObjectType>,
        /// Ranks for which the parts of this level have room together.
        room: usize,
        /// Hardware threads that may be used.
        threads: u64,
    },
    #[error(
        "--map-by ppr: {} with {each} {} each on a {} need{} {needed}, but only {have} of it may be used; {}use a smaller number, or --oversubscribe to let them share",
        counted(*ranks, "rank"), unit.noun(*each), level.noun(1), verb_ending(*ranks == 1), advice(*unit, *threads, *needed)
    )]
    PartTooSmall {
        /// Ranks that would be on the part.
        ranks: usize,
        each: u32,
        level: ObjectType,
        unit: ObjectType,
        needed: u64,
        have: usize,
        /// Hardware threads of the part that may be used.
        threads: u64,
    },
    #[error(
        "{ranks} ranks do not fit with {each} on each {} (--map-by ppr:{each}:{level}): only {parts} may be used; use fewer ranks, or more on each",
        level.noun(1)
    )]
    PartsFull {
        ranks: u32,
        each: u32,
        level: ObjectType,
        parts: u32,
    },
    #[error(
        "{} {} needed ({each} for each rank), but this host has only {have} that ranks can use (wireup topo shows them); use fewer ranks, or --oversubscribe to let them share",
        counted(*needed, "GPU"), if *needed == 1 { "is" } else { "are" }
    )]
    TooFewGpus { needed: u64, each: u32, have: u64 },
    #[error("CPU {cpu} is offline on this host or does not exist; ranks may use the CPUs {usable}")]
    NoSuchCpu { cpu: u32, usable: CpuSet },
    #[error("CPU {cpu} is offline on this host; ranks may use the CPUs {usable}")]
    Offline { cpu: u32, usable: CpuSet },
    #[error(
        "CPU {cpu} is not in the affinity mask or the control group of wireup on this host; ranks may use the CPUs {usable}"
    )]
    NotAllowed { cpu: u32, usable: CpuSet },
    #[error(
        "no {} {number}{}: the host has {have}, numbered from 0 (wireup topo shows them)",
        unit.noun(1), package.map_or(String::new(), |number| format!(" in package {number}"))
    )]
    NoSuchNumber {
        unit: ObjectType,
        number: u32,
        have: usize,
        /// The package of which it should be.
        package: Option<u32>,
    },
    #[error("rank {0} has no CPU that may be used; correct its line")]
    NotListed(Rank),
    #[error(
        "ranks {other} and {rank} have a CPU in common; correct their lines, or use --oversubscribe to let them share"
    )]
    Overlap { other: Rank, rank: Rank },
}

fn room_in(over: Option<ObjectType>, unit: ObjectType, room: usize) -> String {
    match over.filter(|over| *over > unit) {
        Some(over) => format!(
            ", in {} that have room for {room} of the ranks",
            over.noun(2)
        ),
        None => String::new(),
    }
}

fn advice(unit: ObjectType, threads: u64, needed: u64) -> &'static str {
    match unit == ObjectType::Core && threads >= needed {
        true => "use --bind-to hwthread, ",
        false => "",
    }
}
