//! Binding of ranks to CPUs and memory, as the user specifies it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::job::rankfile::RankfileCpus;
use crate::topology::{CpuSet, ObjectType};

/// CPUs to which the ranks of a host are bound.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum BindTo {
    /// All CPUs of the launcher or its step; ranks are not bound.
    #[default]
    None,
    /// The part of the host in which they are mapped.
    Level(ObjectType),
    /// CPU sets that the ranks get in turn; never empty.
    List(Vec<CpuSet>),
    /// CPUs from a rankfile for each rank of the job. The numbers in the file count parts of this type: cores or
    /// hardware threads.
    Slots(ObjectType, Vec<Vec<RankfileCpus>>),
}

/// Parts of a host to which its ranks are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum MapWithinHost {
    /// To one core after the other, or to hardware threads where these are bound to.
    #[default]
    InOrder,
    /// Spread evenly over the parts of this level, neighbours in the same part.
    Over(ObjectType),
    /// This number to each part of this level.
    Each(u32, ObjectType),
}

/// The memory of bound ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum MemBind {
    /// Policy of the system: memory near the CPU that first uses it.
    #[default]
    None,
    /// Only of the NUMA nodes that are near the rank's CPUs.
    Local,
    /// The first of these NUMA nodes as long as it has memory.
    Prefer,
    /// All of these NUMA nodes in turn, page by page.
    Interleave,
}

/// The binding of ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BindingSpec {
    pub to: BindTo,
    pub map: MapWithinHost,
    /// Cores of each rank, or hardware threads where these are bound to; at least 1.
    pub cpus_per_rank: u32,
    pub memory: MemBind,
    /// Whether ranks get `OMP_NUM_THREADS` and places for their CPUs.
    pub openmp: bool,
    /// GPUs of each rank; nothing if none are given out.
    pub gpus_per_rank: Option<u32>,
    /// Whether the user is shown the bindings.
    pub report: bool,
}

impl Default for BindingSpec {
    fn default() -> Self {
        Self {
            to: BindTo::None,
            map: MapWithinHost::InOrder,
            cpus_per_rank: 1,
            memory: MemBind::None,
            openmp: false,
            gpus_per_rank: None,
            report: false,
        }
    }
}

impl BindTo {
    /// Returns the default binding for a mapping: the part over which ranks are mapped.
    pub fn implied(map: MapWithinHost, cpus_per_rank: u32) -> Self {
        match map {
            MapWithinHost::InOrder => Self::None,
            // Several cores of a part are not the whole part.
            MapWithinHost::Over(level) | MapWithinHost::Each(_, level) if cpus_per_rank > 1 => {
                Self::Level(level.min(ObjectType::Core))
            }
            MapWithinHost::Over(level) | MapWithinHost::Each(_, level) => Self::Level(level),
        }
    }
}

impl BindingSpec {
    /// Whether ranks are bound to CPUs.
    pub fn binds(&self) -> bool {
        self.to != BindTo::None
    }

    /// Returns the option for this binding, for messages.
    pub fn option(&self) -> String {
        match &self.to {
            BindTo::None => "--gpus-per-rank".to_owned(),
            BindTo::Slots(..) => "--rankfile".to_owned(),
            to => format!("--bind-to {to}"),
        }
    }

    /// Whether the topology of a host is needed.
    pub fn asks(&self) -> bool {
        self.binds() || self.gpus_per_rank.is_some()
    }
}

impl fmt::Display for BindTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Level(level) => level.fmt(f),
            Self::List(_) => f.write_str("cpu-list"),
            Self::Slots(..) => f.write_str("rankfile"),
        }
    }
}

impl fmt::Display for MapWithinHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InOrder => f.write_str("slot"),
            Self::Over(level) => level.fmt(f),
            Self::Each(count, level) => write!(f, "ppr:{count}:{level}"),
        }
    }
}
