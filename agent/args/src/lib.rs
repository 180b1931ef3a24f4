//! Command lines of `wireup-agent`, and answers to wrong command lines.
//!
//! `wireup` has these commands in its help, manual pages and completions. It checks a line and becomes `wireup-agent`, which
//! parses the line again.

#![forbid(unsafe_code)]

pub mod agent_args;
pub mod pki_args;
pub mod usage_errors;

use clap::Subcommand;

/// Commands that `wireup-agent` carries out: it has TLS, gRPC and a runtime, without which `wireup run` starts faster.
#[derive(Debug, Subcommand)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one of it, which is taken apart at once"
)]
pub enum AgentSubcommand {
    /// Serve this node: launches of its users, and of other nodes
    Agent(agent_args::AgentArgs),
    /// Make, renew and show the certificates of agents
    Pki(pki_args::PkiArgs),
}
