//! The hosts of the ranks, and how they are contacted.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};

use crate::cli::ps::nodes::own_node;
use crate::failure::RunFailure;
use crate::plan::hostfile;
use wireup_core::job::hosts::{self, HostList, HostSpec};
use wireup_core::job::spec::SpreadSpec;
use wireup_core::link::spawn_tree::{STAR_LIMIT, WIDTH};

/// The hosts of the ranks, and how they are contacted.
#[derive(Debug, Args)]
#[command(next_help_heading = "Hosts")]
pub(crate) struct HostsArgs {
    /// Run on these hosts, in this order, through their agents: NAME[:SLOTS][@ADDRESS[:PORT]]
    /// separated by commas; node[01-16,20]:8 is a range
    #[arg(long, value_name = "LIST", conflicts_with_all = ["hostfile", "virtual_nodes"])]
    hosts: Vec<HostList>,

    /// Read the hosts from a file, one per line, in the formats of MPICH, Open MPI and batch
    /// systems
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(conflicts_with = "virtual_nodes")]
    hostfile: Option<PathBuf>,

    /// Up to this number of hosts, the first contacts all others; more hosts form a tree
    #[arg(long, value_name = "N", default_value_t = STAR_LIMIT, hide_short_help = true)]
    star_limit: u32,

    /// In a tree, each host contacts at most this many others
    #[arg(long, value_name = "K", default_value_t = WIDTH, hide_short_help = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    tree_width: u32,

    /// Socket of the agent of this host [default: that of your own agent or of the system's]
    #[arg(long, value_name = "SOCKET", hide_short_help = true, value_hint = ValueHint::FilePath)]
    agent: Option<PathBuf>,
}

impl HostsArgs {
    /// Whether the line, or a defaults file, names hosts.
    pub(crate) fn are_given(&self) -> bool {
        !self.hosts.is_empty() || self.hostfile.is_some()
    }

    /// The hosts, their file read; none for this machine alone.
    ///
    /// # Errors
    /// [`RunFailure`] with the file and line that are wrong.
    pub(super) fn resolve(self) -> Result<(Vec<HostSpec>, SpreadSpec), RunFailure> {
        let spread = SpreadSpec {
            star_limit: self.star_limit,
            tree_width: self.tree_width,
            agent: self.agent,
        };
        // A launch on this machine alone needs no agent, unless one is named.
        let alone = spread.agent.is_some();
        let own = || own_node(spread.agent.as_deref());
        let hosts = listed(self.hosts, self.hostfile.as_deref(), alone, own)?;
        Ok((hosts, spread))
    }
}

/// The hosts of `--hosts` and `--hostfile`; `alone` and `own` as [`hosts::name_here`] has them.
///
/// # Errors
/// [`RunFailure`] with the option, file and line that are wrong.
pub(crate) fn listed(
    lists: Vec<HostList>,
    file: Option<&Path>,
    alone: bool,
    own: impl FnOnce() -> Option<(String, Option<String>)>,
) -> Result<Vec<HostSpec>, RunFailure> {
    if let Some(path) = file {
        let wrong =
            |text: String| RunFailure::refused(format!("--hostfile {}: {text}", path.display()));
        let mut entries = hostfile::read(path)
            .map_err(|error| RunFailure::refused(format!("--hostfile {error}")))?;
        hosts::name_here(&mut entries, alone, own);
        return hosts::merge(entries).map_err(|problem| wrong(problem.to_string()));
    }
    if lists.is_empty() {
        return Ok(Vec::new());
    }
    let mut entries: Vec<_> = lists.into_iter().flat_map(|list| list.0).collect();
    hosts::name_here(&mut entries, alone, own);
    hosts::merge(entries).map_err(|problem| RunFailure::refused(format!("--hosts: {problem}")))
}
