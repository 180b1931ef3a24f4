//! Options for the binding of ranks to CPUs.

use clap::Args;

use super::{LayoutArgs, choice};
use wireup_core::failure::CommandError;
use wireup_core::job::rankfile::RankfileCpus;
use wireup_core::job::spec::{BindTo, BindingSpec, MapWithinHost, MemBind};

/// Binding of the ranks.
#[derive(Debug, Args)]
#[command(next_help_heading = "Binding")]
pub(crate) struct BindingArgs {
    /// Bind each rank to a part of its host: hwthread, core, l2, l3, numa or package; or to the CPUs of a list, the first
    /// entry for the first rank of a host: cpu-list:0-3,4-7,8+10. hwloc has to be installed on the hosts [default: none,
    /// or what --map-by spreads ranks over; docs/binding.md]
    #[arg(long, value_name = "none|UNIT|cpu-list:LIST")]
    bind_to: Option<BindTo>,

    /// Where the memory of bound ranks comes from: local, only from the NUMA nodes near their CPUs; prefer, from the first
    /// of these as long as it has any; interleave, from these in turn
    #[arg(
        long,
        value_name = "WHERE",
        default_value = "none",
        hide_short_help = true
    )]
    #[arg(value_parser = choice(&MemBind::NAMES))]
    mem_bind: MemBind,

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
            (to, _) if slots.is_some() => {
                let bound = BindTo::from_rankfile(to.as_ref(), slots.unwrap_or_default());
                bound.map_err(|error| CommandError::request(format!("--bind-to: {error}")))?
            }
            (Some(BindTo::List(_)), true) => {
                return Err(CommandError::request(
                    "--bind-to cpu-list defines the CPUs of each rank; leave --map-by out",
                ));
            }
            (Some(to), _) => to,
            (None, _) => BindTo::implied(map, cpus_per_rank),
        };
        let needs_cpus = [
            (self.mem_bind != MemBind::None, "--mem-bind"),
            (self.openmp, "--openmp"),
        ];
        let needing = needs_cpus
            .iter()
            .find(|(is_set, _)| *is_set && to == BindTo::None);
        if let Some((_, option)) = needing {
            return Err(CommandError::request(format!(
                "{option} follows the CPUs of each rank; write --bind-to too"
            )));
        }
        Ok(BindingSpec {
            to,
            map,
            cpus_per_rank,
            memory: self.mem_bind,
            openmp: self.openmp,
            gpus_per_rank: self.gpus_per_rank,
            report: self.report_bindings,
        })
    }
}
