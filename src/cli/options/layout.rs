//! Where the ranks live.

use clap::{Args, ValueEnum};

use crate::job::spec::{LayoutSpec, MapBy};

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
    /// Allow more ranks than usable cores
    #[arg(long)]
    oversubscribe: bool,

    /// Act as this many nodes: names, PMIx servers and node-local memory of their own
    #[arg(long, value_name = "K", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    virtual_nodes: u32,

    /// Most ranks on a node [default: as even as possible]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    ppn: Option<u32>,

    /// In which order nodes get ranks
    #[arg(long, value_enum, value_name = "slot|node", default_value_t = Order::Slot)]
    map_by: Order,
}

impl From<LayoutArgs> for LayoutSpec {
    fn from(args: LayoutArgs) -> Self {
        Self {
            virtual_nodes: args.virtual_nodes,
            ppn: args.ppn,
            map_by: match args.map_by {
                Order::Slot => MapBy::Slot,
                Order::Node => MapBy::Node,
            },
            oversubscribe: args.oversubscribe,
        }
    }
}
