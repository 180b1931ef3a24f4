//! What infos ask for of the CPUs of a spawned job's ranks. No I/O.
//!
//! Rule: values are those of Open MPI's and PRRTE's options; ranks are numbered as they are placed, so an order of ranks
//! is honoured if it is that, and refused otherwise.

use super::info_values::{number, truth};
use crate::plan::spawned::text;
use wireup_core::job::spawn::{SpawnFailure, SpawnInfo};
use wireup_core::job::spec::{BindTo, BindingSpec, MapBy, MapWithinHost};
use wireup_core::topology::ObjectType;

/// See the module. What is absent is as for the first job.
#[derive(Clone, Default, PartialEq, Debug)]
pub(in crate::plan::spawned) struct BindingAttributes {
    pub(super) map: Option<MapWithinHost>,
    to: Option<BindTo>,
    pub(super) cpus_per_rank: Option<u32>,
    /// The order in which ranks shall be numbered, and the info that says so.
    order: Option<(MapBy, SpawnInfo)>,
    report: Option<bool>,
}

impl BindingAttributes {
    /// With the whole job's as defaults.
    pub(super) fn with_defaults(self, job: &Self) -> Self {
        Self {
            map: self.map.or(job.map),
            to: self.to.or_else(|| job.to.clone()),
            cpus_per_rank: self.cpus_per_rank.or(job.cpus_per_rank),
            order: self.order.or_else(|| job.order.clone()),
            report: self.report.or(job.report),
        }
    }

    /// The binding of the job, where the first job's is `first` and nodes are given ranks so.
    ///
    /// # Errors
    /// [`SpawnFailure`] for an order of ranks that is not that of their places.
    pub(in crate::plan::spawned) fn spec(
        &self,
        first: &BindingSpec,
        by: MapBy,
    ) -> Result<BindingSpec, SpawnFailure> {
        if let Some((order, info)) = self.order.as_ref().filter(|(order, _)| *order != by) {
            let placed = match by {
                MapBy::Slot => "slot",
                MapBy::Node => "node",
            };
            let other = match order {
                MapBy::Slot => "slot",
                MapBy::Node => "node",
            };
            let problem = format!(
                "ranks are numbered as they are placed, by {placed}; leave it out, or map by {other}"
            );
            return Err(text(&info.key, problem));
        }
        let mut spec = first.clone();
        if let BindTo::Slots(..) = spec.to {
            // A rankfile has lines for the first job alone.
            spec.to = BindTo::None;
        }
        spec.cpus_per_rank = self.cpus_per_rank.unwrap_or(spec.cpus_per_rank);
        if let Some(map) = self.map {
            spec.map = map;
            spec.to = BindTo::implied(map, spec.cpus_per_rank);
        }
        if let Some(to) = &self.to {
            spec.to = to.clone();
        }
        if spec.to == BindTo::None {
            // It follows the CPUs of bound ranks.
            spec.memory = Default::default();
            spec.openmp = false;
        }
        spec.report |= self.report.unwrap_or(false);
        Ok(spec)
    }

    /// `UNIT[:MODIFIER[,MODIFIER]...]`.
    pub(super) fn bind_to(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        let value = info.value.to_ascii_lowercase();
        let (to, modifiers) = value.split_once(':').unwrap_or((&value, ""));
        let known = [
            "",
            "if-supported",
            "overload-allowed",
            "no-overload",
            "report",
        ];
        let unknown = modifiers.split(',').find(|word| !known.contains(word));
        self.to = match (to, ObjectType::named(to), unknown) {
            ("", _, None) => return Ok(()),
            ("none", _, None) => Some(BindTo::None),
            (_, Some(level), None) => Some(BindTo::Level(level)),
            _ => {
                let problem = format!(
                    "{:?} is not offered; none, hwthread, core, l2cache, l3cache, numa and package are",
                    info.value
                );
                return Err(text(&info.key, problem));
            }
        };
        if modifiers.contains("report") {
            self.report.get_or_insert(true);
        }
        Ok(())
    }

    /// `slot`, `fill` or `node`.
    pub(super) fn rank_by(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        let value = info.value.to_ascii_lowercase();
        self.order = match value.as_str() {
            "" => return Ok(()),
            "slot" | "fill" => Some((MapBy::Slot, info.clone())),
            "node" => Some((MapBy::Node, info.clone())),
            _ => {
                let problem = format!("{:?} is not offered; slot, fill and node are", info.value);
                return Err(text(&info.key, problem));
            }
        };
        Ok(())
    }

    /// Units of each rank.
    pub(super) fn cpus(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        self.cpus_per_rank = Some(number(info)?);
        Ok(())
    }

    pub(super) fn report(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        self.report = Some(truth(info)?);
        Ok(())
    }
}
