//! Which CPUs ranks are bound to.

use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::LayoutArgs;
use crate::cli::value_error::ValueError;
use crate::failure::CommandError;
use wireup_core::job::rankfile::RankfileCpus;
use wireup_core::job::spec::{BindTo, BindingSpec, MapBy, MapWithinHost, MemBind};
use wireup_core::topology::{CPUS_MAX, CpuSet, ObjectType};

/// `--map-by`: over nodes and within a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Mapping {
    pub(super) nodes: MapBy,
    pub(super) within: MapWithinHost,
    pub(super) per_node: Option<u32>,
}

impl FromStr for Mapping {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let within = |within| Self {
            within,
            ..Self::default()
        };
        if let Some(rest) = text.strip_prefix("ppr:") {
            let (count, unit) = rest.split_once(':').ok_or(ValueError::Mapping)?;
            let count: u32 = count.parse().map_err(|_| ValueError::Mapping)?;
            return match (count, unit, ObjectType::named(unit)) {
                (0, ..) => Err(ValueError::Mapping),
                (_, "node", _) => Ok(Self {
                    per_node: Some(count),
                    ..Self::default()
                }),
                (_, _, Some(level)) => Ok(within(MapWithinHost::Each(count, level))),
                _ => Err(ValueError::Mapping),
            };
        }
        match (text, ObjectType::named(text)) {
            ("slot", _) => Ok(Self::default()),
            ("node", _) => Ok(Self {
                nodes: MapBy::Node,
                ..Self::default()
            }),
            (_, Some(level)) => Ok(within(MapWithinHost::Over(level))),
            _ => Err(ValueError::Mapping),
        }
    }
}

/// `--bind-to`.
#[derive(Clone, PartialEq, Eq, Debug)]
struct To(BindTo);

impl FromStr for To {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if let Some(list) = text.strip_prefix("cpu-list:") {
            let sets = list.split(',').map(cpus).collect::<Option<Vec<_>>>();
            let sets = sets.map(|sets| Self(BindTo::List(sets)));
            return sets.ok_or(ValueError::CpuList);
        }
        match (text, ObjectType::named(text)) {
            ("none", _) => Ok(Self(BindTo::None)),
            (_, Some(level)) => Ok(Self(BindTo::Level(level))),
            _ => Err(ValueError::BindTo),
        }
    }
}

/// The CPUs of one rank: `3`, `0-3`, `0+2+4-5`.
fn cpus(text: &str) -> Option<CpuSet> {
    let mut all = CpuSet::default();
    for part in text.split('+') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CPUS_MAX {
            return None;
        }
        (first..=last).for_each(|cpu| all.insert(cpu));
    }
    Some(all)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Memory {
    None,
    Local,
    Prefer,
    Interleave,
}

/// Binding of the ranks.
#[derive(Debug, Args)]
#[command(next_help_heading = "Binding")]
pub(crate) struct BindingArgs {
    /// Bind each rank to a part of its host: hwthread, core, l2, l3, numa or package; or to the CPUs of a list, the first
    /// entry for the first rank of a host: cpu-list:0-3,4-7,8+10. hwloc has to be installed on the hosts [default: none,
    /// or what --map-by spreads ranks over; docs/binding.md]
    #[arg(long, value_name = "none|UNIT|cpu-list:LIST")]
    bind_to: Option<To>,

    /// Where the memory of bound ranks comes from: local, only from the NUMA nodes near their CPUs; prefer, from the first
    /// of these as long as it has any; interleave, from these in turn
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = Memory::None, hide_short_help = true)]
    mem_bind: Memory,

    /// Set OMP_NUM_THREADS and OMP_PLACES for the cores of each bound rank, unless you have set one of them
    #[arg(long, hide_short_help = true)]
    openmp: bool,

    /// Give each rank N GPUs, the nearest to its CPUs that are free: CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES and
    /// ZE_AFFINITY_MASK, unless you have set them. hwloc has to be installed on the hosts, with its part for PCI
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), hide_short_help = true)]
    gpus_per_rank: Option<u32>,

    /// Show each host as a picture with its ranks, and the CPUs of each
    #[arg(long)]
    report_bindings: bool,
}

impl BindingArgs {
    /// Together with the placement, and the CPUs of a rankfile.
    ///
    /// # Errors
    /// [`CommandError`] for options that contradict each other.
    pub(crate) fn resolve(
        self,
        layout: &LayoutArgs,
        slots: Option<Vec<Vec<RankfileCpus>>>,
    ) -> Result<BindingSpec, CommandError> {
        let (map, cpus_per_rank) = layout.within();
        let mapped = map != MapWithinHost::InOrder;
        let to = match (self.bind_to, mapped) {
            (to, _) if slots.is_some() => rankfile_binding(to, slots.unwrap_or_default())?,
            (Some(To(BindTo::List(_))), true) => {
                return Err(CommandError::request(
                    "--bind-to cpu-list says which rank gets which CPUs; leave --map-by out",
                ));
            }
            (Some(To(to)), _) => to,
            (None, _) => BindTo::implied(map, cpus_per_rank),
        };
        let needs_cpus = [
            (self.mem_bind != Memory::None, "--mem-bind"),
            (self.openmp, "--openmp"),
        ];
        let needing = needs_cpus
            .iter()
            .find(|(given, _)| *given && to == BindTo::None);
        if let Some((_, option)) = needing {
            return Err(CommandError::request(format!(
                "{option} follows the CPUs of each rank; write --bind-to too"
            )));
        }
        Ok(BindingSpec {
            to,
            map,
            cpus_per_rank,
            memory: match self.mem_bind {
                Memory::None => MemBind::None,
                Memory::Local => MemBind::Local,
                Memory::Prefer => MemBind::Prefer,
                Memory::Interleave => MemBind::Interleave,
            },
            openmp: self.openmp,
            gpus_per_rank: self.gpus_per_rank,
            report: self.report_bindings,
        })
    }
}

/// What the ranks of a rankfile are bound to.
fn rankfile_binding(to: Option<To>, slots: Vec<Vec<RankfileCpus>>) -> Result<BindTo, CommandError> {
    match to {
        Some(To(BindTo::None)) => Ok(BindTo::None),
        None | Some(To(BindTo::Level(ObjectType::Core))) => {
            Ok(BindTo::Slots(ObjectType::Core, slots))
        }
        Some(To(BindTo::Level(ObjectType::Hwthread))) => {
            Ok(BindTo::Slots(ObjectType::Hwthread, slots))
        }
        Some(_) => Err(CommandError::request(
            "the rankfile says which CPUs ranks get; leave --bind-to out, or write core or hwthread for what its numbers count, or none",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_over_nodes_and_within_them() {
        let mapping = |text: &str| text.parse::<Mapping>();
        let within = |within| Mapping {
            within,
            ..Mapping::default()
        };
        assert_eq!(mapping("slot"), Ok(Mapping::default()));
        assert_eq!(mapping("node").map(|map| map.nodes), Ok(MapBy::Node));
        assert_eq!(mapping("ppr:3:node").map(|map| map.per_node), Ok(Some(3)));
        let over = |level| Ok(within(MapWithinHost::Over(level)));
        assert_eq!(mapping("numa"), over(ObjectType::Numa));
        assert_eq!(mapping("socket"), over(ObjectType::Package));
        let each = within(MapWithinHost::Each(2, ObjectType::L3));
        assert_eq!(mapping("ppr:2:l3cache"), Ok(each));
        for bad in [
            "",
            "ppr",
            "ppr:2",
            "ppr:0:core",
            "ppr:x:core",
            "board",
            "ppr:1:board",
        ] {
            assert_eq!(mapping(bad), Err(ValueError::Mapping), "{bad}");
        }
    }

    #[test]
    fn a_list_has_the_cpus_of_each_rank() {
        let to = |text: &str| text.parse::<To>().map(|To(to)| to);
        let sets = ["0-3", "4", "5,7-8"].map(|set| set.parse().unwrap());
        assert_eq!(to("cpu-list:0-3,4,5+7-8"), Ok(BindTo::List(sets.to_vec())));
        assert_eq!(to("package"), Ok(BindTo::Level(ObjectType::Package)));
        for bad in [
            "cpu-list:",
            "cpu-list:1,,2",
            "cpu-list:3-1",
            "cpu-list:99999",
        ] {
            assert_eq!(to(bad), Err(ValueError::CpuList), "{bad}");
        }
        assert_eq!(to("board"), Err(ValueError::BindTo));
    }
}
