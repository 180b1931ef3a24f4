//! Command line of `wireup agent`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

const AFTER_HELP: &str = "\
Examples:
  wireup agent
  wireup agent --tls ~/cluster/n1

Files:
  /etc/wireup/tls         of root's agent: ca.pem, cert.pem, key.pem, as `wireup pki issue` makes them
  ~/.config/wireup/tls    of another user's agent, or $XDG_CONFIG_HOME/wireup/tls";

/// Arguments of `wireup agent`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct AgentArgs {
    /// Directory of this node's certificate [default: /etc/wireup/tls, or ~/.config/wireup/tls]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub tls: Option<PathBuf>,
}
