//! Where the ranks live.

use clap::Args;

use crate::job::spec::LayoutSpec;

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
}

impl From<LayoutArgs> for LayoutSpec {
    fn from(args: LayoutArgs) -> Self {
        Self {
            virtual_nodes: args.virtual_nodes,
            oversubscribe: args.oversubscribe,
        }
    }
}
