//! What ranks run in.

use clap::builder::{OsStringValueParser, TypedValueParser as _};
use clap::{Args, ValueHint};

use wireup_core::job::spec::{ContainerSpec, Uenv};

/// Images that ranks run in.
#[derive(Debug, Args)]
#[command(next_help_heading = "Images")]
pub(crate) struct ContainerArgs {
    /// Mount this squashfs image for the ranks, and for no other process of their hosts; once more for another image
    /// [default directory: /user-environment; docs/containers.md]
    #[arg(long = "uenv", value_name = "FILE[:DIRECTORY]", value_hint = ValueHint::FilePath)]
    #[arg(value_parser = OsStringValueParser::new().try_map(|text| Uenv::parse(&text)))]
    uenvs: Vec<Uenv>,
}

impl From<ContainerArgs> for ContainerSpec {
    fn from(args: ContainerArgs) -> Self {
        Self { uenvs: args.uenvs }
    }
}
