//! Reads infos about the binding of a spawned job's ranks. No I/O.
//!
//! Rule: values are those of Open MPI's and PRRTE's options. Ranks are numbered in the order of placement; an info with
//! another order is refused.

use super::info_values::value_error;
use crate::plan::spawned::text;
use wireup_core::job::rankfile::RankfileCpus;
use wireup_core::job::spawn::{SpawnFailure, SpawnInfo};
use wireup_core::job::spec::{BindTo, BindingSpec, MapBy, MapWithinHost, MemBind};

/// Binding that a request names; absent values are those of the initial job.
#[derive(Clone, Default, PartialEq, Debug)]
pub(in crate::plan::spawned) struct BindingAttributes {
    pub(super) map: Option<MapWithinHost>,
    to: Option<BindTo>,
    pub(super) cpus_per_rank: Option<u32>,
    /// Requested order of the rank numbers, with the info that requests it.
    order: Option<(MapBy, SpawnInfo)>,
    pub(super) memory: Option<MemBind>,
    pub(super) openmp: Option<bool>,
    pub(super) gpus_per_rank: Option<u32>,
    pub(super) report: Option<bool>,
}

impl BindingAttributes {
    /// Binding of the job; `first` is that of the initial job, `map_by` the order of placement, `slots` the CPUs of a
    /// rankfile.
    ///
    /// # Errors
    /// [`SpawnFailure`] for an order of rank numbers that differs from the order of placement.
    pub(in crate::plan::spawned) fn spec(
        &self,
        first: &BindingSpec,
        map_by: MapBy,
        slots: Option<Vec<Vec<RankfileCpus>>>,
    ) -> Result<BindingSpec, SpawnFailure> {
        if let Some((order, info)) = self.order.as_ref().filter(|(order, _)| *order != map_by) {
            let placed = match map_by {
                MapBy::Slot => "slot",
                MapBy::Node => "node",
            };
            let other = match order {
                MapBy::Slot => "slot",
                MapBy::Node => "node",
            };
            let problem = format!(
                "ranks are numbered in the order of placement, by {placed}; omit the key, or map by {other}"
            );
            return Err(text(&info.key, problem));
        }
        let mut spec = first.clone();
        if let BindTo::Slots(..) = spec.to {
            // The rankfile of the launch has lines for the initial job alone.
            spec.to = BindTo::None;
        }
        spec.cpus_per_rank = self.cpus_per_rank.unwrap_or(spec.cpus_per_rank);
        if let Some(map) = self.map {
            spec.map = map;
            spec.to = BindTo::implied(map, spec.cpus_per_rank);
        }
        match slots {
            Some(slots) => {
                spec.map = MapWithinHost::InOrder;
                let to = BindTo::from_rankfile(self.to.as_ref(), slots);
                spec.to = to.map_err(|error| text("rankfile", error))?;
            }
            None => spec.to = self.to.clone().unwrap_or(spec.to),
        }
        if spec.to == BindTo::None {
            let needing = [
                (self.memory.unwrap_or_default() != MemBind::None, "mem_bind"),
                (self.openmp == Some(true), "openmp"),
            ];
            if let Some((_, key)) = needing.iter().find(|(is_set, _)| *is_set) {
                return Err(text(key, "requires bound ranks; give bind_to too"));
            }
        }
        // Memory policy and OpenMP variables depend on the CPUs of bound ranks.
        let bound = spec.to != BindTo::None;
        spec.memory = self.memory.unwrap_or(spec.memory);
        spec.openmp = self.openmp.unwrap_or(spec.openmp) && bound;
        if !bound {
            spec.memory = MemBind::None;
        }
        spec.gpus_per_rank = self.gpus_per_rank.or(spec.gpus_per_rank);
        spec.report |= self.report.unwrap_or(false);
        Ok(spec)
    }

    /// Reads `UNIT[:MODIFIER[,MODIFIER]...]`, or `cpu-list:LIST`.
    pub(super) fn bind_to(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        let value = info.value.to_ascii_lowercase();
        let is_list = value.starts_with("cpu-list:");
        let parts = value.split_once(':').filter(|_| !is_list);
        let (to, modifiers) = parts.unwrap_or((&value, ""));
        for word in modifiers.split(',') {
            match word {
                "" | "if-supported" | "overload-allowed" | "no-overload" => {}
                "report" => self.report = self.report.or(Some(true)),
                _ => {
                    let problem =
                        format!("unsupported modifier {word:?} of {:?}; omit it", info.value);
                    return Err(text(&info.key, problem));
                }
            }
        }
        if !to.is_empty() {
            self.to = Some(to.parse().map_err(|error| value_error(info, error))?);
        }
        Ok(())
    }

    /// Reads `slot`, `fill` or `node`.
    pub(super) fn rank_by(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        let value = info.value.to_ascii_lowercase();
        self.order = match value.as_str() {
            "" => return Ok(()),
            "slot" | "fill" => Some((MapBy::Slot, info.clone())),
            "node" => Some((MapBy::Node, info.clone())),
            _ => {
                let problem = format!("unsupported {:?}; use slot, fill or node", info.value);
                return Err(text(&info.key, problem));
            }
        };
        Ok(())
    }
}
