//! Credentials of fast networks.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use wireup_core::job::spec::{FabricSource, FabricSpec};

/// Credentials of fast networks.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network credentials")]
pub(crate) struct FabricArgs {
    /// Give ranks credentials for Slingshot: those of the environment (cxi), or new ones of a fabric manager
    /// (cxi=https://HOST) or of a command (cxi=exec:COMMAND), which are revoked at the end. fabric.toml has the manager's
    /// token and certificates [docs/fabric.md]
    #[arg(long, value_name = "cxi[=ADDRESS|=exec:COMMAND]")]
    fabric: Option<FabricSource>,

    /// Old spelling of `token-file` in fabric.toml
    #[arg(long, hide = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    fabric_token: Option<PathBuf>,

    /// Old spelling of `cacert` in fabric.toml
    #[arg(long, hide = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    fabric_ca: Option<PathBuf>,
}

impl From<FabricArgs> for Option<FabricSpec> {
    fn from(args: FabricArgs) -> Self {
        args.fabric.map(|source| FabricSpec {
            source,
            token: args.fabric_token,
            authorities: args.fabric_ca,
        })
    }
}
