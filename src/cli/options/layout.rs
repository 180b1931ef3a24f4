//! Where the ranks live.

use clap::{Args, ValueEnum};

use super::HostsArgs;
use crate::job::pset::ProcessSet;
use crate::job::spec::{LayoutSpec, MapBy};
use crate::launcher::run::RunFailure;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    /// one node after the other
    Slot,
    /// one rank on each node in turn
    Node,
}

/// Where the ranks live.
#[derive(Debug, Args)]
#[command(next_help_heading = "Placement")]
pub(in crate::cli) struct LayoutArgs {
    /// Allow more ranks than usable cores, or than slots of a host
    #[arg(long)]
    oversubscribe: bool,

    /// Act as this many nodes: names, PMIx servers and node-local memory of their own
    #[arg(long, value_name = "K", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    virtual_nodes: u32,

    /// Most ranks on a node [default: as even as possible; on hosts with slots, as many as these]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    ppn: Option<u32>,

    /// In which order nodes get ranks
    #[arg(long, value_enum, value_name = "slot|node", default_value_t = Order::Slot)]
    map_by: Order,

    /// Name some ranks for MPI sessions, as in io=0,2-4; each program's ranks are app0, app1, ...
    #[arg(long = "pset", value_name = "NAME=RANKS")]
    pub(in crate::cli) psets: Vec<ProcessSet>,
}

impl LayoutArgs {
    /// Together with the hosts, whose file is read.
    ///
    /// # Errors
    /// [`RunFailure`] for hosts that cannot be used.
    pub(in crate::cli) fn resolve(self, hosts: HostsArgs) -> Result<LayoutSpec, RunFailure> {
        let (hosts, spread) = hosts.resolve()?;
        Ok(LayoutSpec {
            hosts,
            spread,
            virtual_nodes: self.virtual_nodes,
            ppn: self.ppn,
            map_by: match self.map_by {
                Order::Slot => MapBy::Slot,
                Order::Node => MapBy::Node,
            },
            oversubscribe: self.oversubscribe,
        })
    }
}
