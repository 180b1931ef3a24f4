//! Placement of the ranks.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use wireup_core::failure::CommandError;
use wireup_core::job::pset::ProcessSet;
use wireup_core::job::spec::{AgentTreeSpec, LayoutRuns, LayoutSpec, MapWithinHost, Mapping};

/// Placement of the ranks.
#[derive(Debug, Args)]
#[command(next_help_heading = "Placement")]
pub(crate) struct LayoutArgs {
    /// Allow more ranks than usable cores, or than slots of a host
    #[arg(long)]
    oversubscribe: bool,

    /// Act as this number of nodes, each with its own name, PMIx server and node-local memory
    #[arg(long, value_name = "K", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    virtual_nodes: u32,

    /// Maximum number of ranks on a node [default: evenly distributed; on hosts with slots, their
    /// number]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    ppn: Option<u32>,

    /// Count N CPUs for each rank: slots that are given, or this machine's CPUs, are divided by N; and where ranks are
    /// bound, each gets N cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), hide_short_help = true)]
    cpus_per_rank: Option<u32>,

    /// Order in which ranks are placed: slot fills node after node, node takes nodes in turn; and within a host, which
    /// binds them (--bind-to): core, hwthread, l2, l3, numa or package spreads them evenly over these, ppr:N:UNIT puts N
    /// on each (ppr:N:node is --ppn N)
    #[arg(long, value_name = "slot|node|UNIT|ppr:N:UNIT", default_value = "slot")]
    map_by: Mapping,

    /// Give these numbers of ranks to these nodes, in the order of ranks: 0*2,1*2,0*1 are two ranks
    /// on the first node, two on the second, one more on the first
    #[arg(long, value_name = "NODE*RANKS,...", hide_short_help = true)]
    #[arg(conflicts_with_all = ["ppn", "map_by"])]
    layout: Option<LayoutRuns>,

    /// Read from a file on which host each rank runs, and on which cores: a line rank N=HOST slot=CORES for each as Open
    /// MPI has it, or the host of each rank in order as Slurm has it. If no hosts are named, they are those of the file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, hide_short_help = true)]
    #[arg(conflicts_with_all = ["ppn", "map_by", "layout", "cpus_per_rank"])]
    pub(in crate::cli) rankfile: Option<PathBuf>,

    /// Name some ranks for MPI sessions, as in io=0,2-4; each program's ranks are app0, app1, ...
    #[arg(long = "pset", value_name = "NAME=RANKS")]
    pub(crate) psets: Vec<ProcessSet>,
}

impl LayoutArgs {
    /// Returns the mapping of ranks within a host, and the number of CPUs of each.
    pub(in crate::cli) fn within(&self) -> (MapWithinHost, u32) {
        (self.map_by.within, self.cpus_per_rank.unwrap_or(1))
    }

    /// The layout without what a rankfile or a look-up gives: hosts, their agents, and slots of this machine.
    ///
    /// # Errors
    /// [`CommandError`] for options that contradict each other.
    pub(crate) fn layout(&self, spread: AgentTreeSpec) -> Result<LayoutSpec, CommandError> {
        let ppn = match (self.map_by.per_node, self.ppn) {
            (Some(_), Some(_)) => {
                return Err(CommandError::request(
                    "--map-by ppr:N:node and --ppn mean the same; write one of them",
                ));
            }
            (per_node, ppn) => per_node.or(ppn),
        };
        Ok(LayoutSpec {
            hosts: Vec::new(),
            spread,
            virtual_nodes: self.virtual_nodes,
            ppn,
            map_by: self.map_by.nodes,
            runs: self.layout.clone().map_or_else(Vec::new, |runs| runs.0),
            slots: None,
            oversubscribe: self.oversubscribe,
        })
    }
}
