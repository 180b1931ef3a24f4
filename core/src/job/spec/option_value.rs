//! The values of options that keys of a spawn request take too.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::str::FromStr;

use super::{BindTo, EnvInheritance, MapBy, MapWithinHost, MemBind};
use crate::job::ids::NodeId;
use crate::job::rankfile::{RankfileCpus, cpu_range};
use crate::topology::{CpuSet, ObjectType};

/// A value that its option does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionValueError {
    #[error("give an octal number from 0 to 777")]
    Umask,
    #[error("give names separated by commas")]
    NoNames,
    #[error(
        "give slot, node, hwthread, core, l2, l3, numa, package, or ppr:N: and one of these for N ranks on each"
    )]
    Mapping,
    #[error("give none, hwthread, core, l2, l3, numa, package, or cpu-list: and a list of CPUs")]
    BindTo,
    #[error("give the CPUs of each rank, separated by commas, such as 0,1 or 0-3,4-7 or 0+2,1+3")]
    CpuList,
    #[error("give none, local, prefer or interleave")]
    MemBind,
    #[error("give NODE*RANKS separated by commas; nodes are counted from 0")]
    Layout,
    #[error(
        "the rankfile sets the CPUs of ranks; omit the binding, or use core or hwthread (the unit of its numbers), or none"
    )]
    BindToOfRankfile,
}

/// The name of a choice among all that an option has.
pub fn choice_name<T: Copy + PartialEq>(names: &[(&'static str, T)], choice: T) -> &'static str {
    let mut named = names.iter().filter(|(_, one)| *one == choice);
    named.next().map_or("", |(name, _)| *name)
}

/// `--map-by`: over nodes and within a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    pub nodes: MapBy,
    pub within: MapWithinHost,
    /// Most ranks on a node.
    pub per_node: Option<u32>,
}

impl FromStr for Mapping {
    type Err = OptionValueError;

    fn from_str(text: &str) -> Result<Self, OptionValueError> {
        let within = |within| Self {
            within,
            ..Self::default()
        };
        if let Some(rest) = text.strip_prefix("ppr:") {
            let (count, unit) = rest.split_once(':').ok_or(OptionValueError::Mapping)?;
            let count: u32 = count.parse().map_err(|_| OptionValueError::Mapping)?;
            return match (count, unit, ObjectType::named(unit)) {
                (0, ..) => Err(OptionValueError::Mapping),
                (_, "node", _) => Ok(Self {
                    per_node: Some(count),
                    ..Self::default()
                }),
                (_, _, Some(level)) => Ok(within(MapWithinHost::Each(count, level))),
                _ => Err(OptionValueError::Mapping),
            };
        }
        match (text, ObjectType::named(text)) {
            ("slot", _) => Ok(Self::default()),
            ("node", _) => Ok(Self {
                nodes: MapBy::Node,
                ..Self::default()
            }),
            (_, Some(level)) => Ok(within(MapWithinHost::Over(level))),
            _ => Err(OptionValueError::Mapping),
        }
    }
}

/// Reads a value of `--bind-to`; a rankfile is an option of its own.
impl FromStr for BindTo {
    type Err = OptionValueError;

    fn from_str(text: &str) -> Result<Self, OptionValueError> {
        if let Some(list) = text.strip_prefix("cpu-list:") {
            let sets = list.split(',').map(cpus).collect::<Option<Vec<_>>>();
            return sets.map(Self::List).ok_or(OptionValueError::CpuList);
        }
        match (text, ObjectType::named(text)) {
            ("none", _) => Ok(Self::None),
            (_, Some(level)) => Ok(Self::Level(level)),
            _ => Err(OptionValueError::BindTo),
        }
    }
}

/// Parses the CPUs of one rank: `3`, `0-3`, `0+2+4-5`.
fn cpus(text: &str) -> Option<CpuSet> {
    let mut all = CpuSet::default();
    for part in text.split('+') {
        let (first, last) = cpu_range(part)?;
        (first..=last).for_each(|cpu| all.insert(cpu));
    }
    Some(all)
}

impl MemBind {
    /// The values of `--mem-bind`.
    pub const NAMES: [(&str, Self); 4] = [
        ("none", Self::None),
        ("local", Self::Local),
        ("prefer", Self::Prefer),
        ("interleave", Self::Interleave),
    ];
}

/// Reads one of [`MemBind::NAMES`].
impl FromStr for MemBind {
    type Err = OptionValueError;

    fn from_str(text: &str) -> Result<Self, OptionValueError> {
        let mut named = Self::NAMES.iter().filter(|(name, _)| *name == text);
        let (_, found) = named.next().ok_or(OptionValueError::MemBind)?;
        Ok(*found)
    }
}

impl BindTo {
    /// Returns the binding of a rankfile that has CPUs for each rank; `binding` has the unit of their numbers, if set.
    ///
    /// # Errors
    /// [`OptionValueError::BindToOfRankfile`] for another binding.
    pub fn from_rankfile(
        binding: Option<&Self>,
        slots: Vec<Vec<RankfileCpus>>,
    ) -> Result<Self, OptionValueError> {
        match binding {
            Some(Self::None) => Ok(Self::None),
            None | Some(Self::Level(ObjectType::Core)) => Ok(Self::Slots(ObjectType::Core, slots)),
            Some(Self::Level(ObjectType::Hwthread)) => Ok(Self::Slots(ObjectType::Hwthread, slots)),
            Some(_) => Err(OptionValueError::BindToOfRankfile),
        }
    }
}

/// `--layout`: nodes and numbers of ranks, in the order of ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayoutRuns(pub Vec<(NodeId, u32)>);

impl FromStr for LayoutRuns {
    type Err = OptionValueError;

    fn from_str(text: &str) -> Result<Self, OptionValueError> {
        let run = |text: &str| {
            let (node, ranks) = text.split_once('*')?;
            let ranks = ranks.parse().ok().filter(|ranks| *ranks > 0)?;
            Some((NodeId(node.parse().ok()?), ranks))
        };
        let runs: Option<_> = text.split(',').map(run).collect();
        runs.map(Self).ok_or(OptionValueError::Layout)
    }
}

/// One value of `--env`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EnvOption {
    /// The variables that are inherited.
    Select(EnvInheritance),
    /// A variable to set or to pass on.
    Variable(OsString),
}

impl EnvOption {
    /// Reads `none`, `all`, a list of names, or one variable. Rule: no variable is called `none` or `all`, and none has a
    /// comma in its name.
    ///
    /// # Errors
    /// [`OptionValueError::NoNames`] for a list of nothing.
    pub fn parse(text: OsString) -> Result<Self, OptionValueError> {
        let bytes = text.as_bytes();
        match bytes {
            b"none" => Ok(Self::Select(EnvInheritance::None)),
            b"all" => Ok(Self::Select(EnvInheritance::All)),
            list if list.contains(&b',') && !list.contains(&b'=') => {
                let names = list.split(|byte| *byte == b',');
                let names = names.filter(|name| !name.is_empty());
                let names: Vec<OsString> = names
                    .map(|name| OsStr::from_bytes(name).to_owned())
                    .collect();
                match names.is_empty() {
                    true => Err(OptionValueError::NoNames),
                    false => Ok(Self::Select(EnvInheritance::Only(names))),
                }
            }
            _ => Ok(Self::Variable(text)),
        }
    }
}

/// Reads a file mode creation mask, in octal.
///
/// # Errors
/// [`OptionValueError::Umask`] for anything else.
pub fn parse_umask(text: &str) -> Result<u32, OptionValueError> {
    match u32::from_str_radix(text, 8) {
        Ok(mask) if mask <= 0o777 && !text.starts_with('+') => Ok(mask),
        _ => Err(OptionValueError::Umask),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_list_is_split_at_commas_unless_it_is_one_variable() {
        let read = |text: &str| EnvOption::parse(text.into());
        for text in ["A", "A=1", "A=1,2", "P*", "none=1", "alle", ""] {
            assert_eq!(read(text), Ok(EnvOption::Variable(text.into())));
        }
        assert_eq!(read("none"), Ok(EnvOption::Select(EnvInheritance::None)));
        assert_eq!(read("all"), Ok(EnvOption::Select(EnvInheritance::All)));
        let list = |names: &[&str]| EnvInheritance::Only(names.iter().map(Into::into).collect());
        assert_eq!(read("A,LC_*"), Ok(EnvOption::Select(list(&["A", "LC_*"]))));
        assert_eq!(read("A,"), Ok(EnvOption::Select(list(&["A"]))));
        assert!(read(",").is_err());
    }

    #[test]
    fn umask_is_octal() {
        assert_eq!(parse_umask("027"), Ok(0o27));
        for bad in ["", "8", "1000", "+22", "-1", "0o22", "u=rwx"] {
            assert!(parse_umask(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn mapping_is_over_nodes_and_within_them() {
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
            assert_eq!(mapping(bad), Err(OptionValueError::Mapping), "{bad}");
        }
    }

    #[test]
    fn layout_is_nodes_and_numbers_of_ranks() {
        let node = |node, ranks| (NodeId(node), ranks);
        let runs = |text: &str| text.parse::<LayoutRuns>();
        assert_eq!(runs("0*2"), Ok(LayoutRuns(vec![node(0, 2)])));
        let two = LayoutRuns(vec![node(3, 1), node(0, 20)]);
        assert_eq!(runs("3*1,0*20"), Ok(two));
        for bad in [
            "",
            "0",
            "0*",
            "*1",
            "0*0",
            "0*1,",
            "a*1",
            "-1*1",
            "0*99999999999",
        ] {
            assert!(runs(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cpu_list_has_cpus_of_each_rank() {
        let to = |text: &str| text.parse::<BindTo>();
        let sets = ["0-3", "4", "5,7-8"].map(|set| set.parse().unwrap());
        assert_eq!(to("cpu-list:0-3,4,5+7-8"), Ok(BindTo::List(sets.to_vec())));
        assert_eq!(to("package"), Ok(BindTo::Level(ObjectType::Package)));
        for bad in [
            "cpu-list:",
            "cpu-list:1,,2",
            "cpu-list:3-1",
            "cpu-list:99999",
        ] {
            assert_eq!(to(bad), Err(OptionValueError::CpuList), "{bad}");
        }
        assert_eq!(to("board"), Err(OptionValueError::BindTo));
    }
}
