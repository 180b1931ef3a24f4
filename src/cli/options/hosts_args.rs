//! The hosts of the ranks, and how they are contacted.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};

use super::choice;
use crate::plan::batch_systems::BatchSystemKind;
use wireup_core::duration::duration;
use wireup_core::job::builds::BuildMismatchPolicy;
use wireup_core::job::hosts::lookup::HostSource;
use wireup_core::job::spec::{AgentTreeSpec, STAR_LIMIT, TREE_WIDTH};

/// The hosts of the ranks, and how they are contacted.
#[derive(Debug, Args)]
#[command(next_help_heading = "Hosts")]
pub(crate) struct HostsArgs {
    /// Run on these hosts, in this order, through their agents: NAME[:SLOTS][@ADDRESS[:PORT]]
    /// separated by commas; node[01-16,20]:8 is a range; dns:NAME[:SLOTS] are those that a name of DNS stands for,
    /// etcd:LABELS[:SLOTS] those that agents have registered with these labels
    #[arg(long, value_name = "LIST", conflicts_with_all = ["hostfile", "virtual_nodes"])]
    pub(in crate::cli) hosts: Vec<HostSource>,

    /// Read the hosts from a file, one per line, in the formats of MPICH, Open MPI and batch
    /// systems
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(conflicts_with = "virtual_nodes")]
    pub(in crate::cli) hostfile: Option<PathBuf>,

    /// Start agents for this launch alone with this command, to which that of the agent is added. {host} stands for
    /// the name of a host: the command is executed for each; {hosts} for those of all, with commas; ssh is short for
    /// 'ssh {host}'
    #[arg(
        long,
        value_name = "COMMAND",
        overrides_with = "agent",
        hide_short_help = true
    )]
    pub(in crate::cli) launch_agents: Option<String>,

    /// Whether that command comes from a defaults file.
    #[arg(skip)]
    pub(crate) launch_agents_by_default: bool,

    /// The batch system whose allocation is used: auto, slurm, gridengine, lsf, pbs, flux, or none
    #[arg(
        long,
        value_enum,
        value_name = "NAME",
        default_value_t,
        hide_short_help = true
    )]
    pub(in crate::cli) engine: BatchSystemArg,

    /// Use only the first K of the hosts; of hosts that are looked up, wait for K
    #[arg(
        long,
        value_name = "K",
        hide_short_help = true,
        conflicts_with = "virtual_nodes"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(in crate::cli) nodes: Option<u32>,

    /// Wait this long until as many hosts are found as are needed, where they are looked up (dns:, etcd:);
    /// 0: do not wait
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60", hide_short_help = true)]
    #[arg(allow_negative_numbers = true)]
    pub(in crate::cli) wait_hosts: Duration,

    /// Name the hosts whose program or MPI library is of another build, before the start: warn, fail (start nothing),
    /// or off
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "warn",
        hide_short_help = true
    )]
    #[arg(value_parser = choice(&BuildMismatchPolicy::NAMES))]
    same_build: BuildMismatchPolicy,

    /// Let each host contact at most this many others [default: the first contacts all others of up to 32 hosts; 4 each
    /// of more]
    #[arg(long, value_name = "K", hide_short_help = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    tree_width: Option<u32>,

    /// Old spelling of `--tree-width` with at least as many as there are hosts
    #[arg(long, hide = true, value_name = "N")]
    star_limit: Option<u32>,

    /// Socket of the agent of this host [default: that of your own agent or of the system's]
    #[arg(long, value_name = "SOCKET", hide_short_help = true, value_hint = ValueHint::FilePath)]
    pub(in crate::cli) agent: Option<PathBuf>,
}

/// Hosts whose agents run, for commands that are no launch.
#[derive(Debug, Default, Args)]
pub(crate) struct HostsListArgs {
    /// Ask the agents of these hosts; see `wireup run --help`
    #[arg(long, value_name = "LIST", conflicts_with = "hostfile")]
    pub(in crate::cli) hosts: Vec<HostSource>,

    /// Ask the agents of the hosts in this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(in crate::cli) hostfile: Option<PathBuf>,

    /// Socket of the agent of this machine [default: that of your own agent or of the system's]
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub(in crate::cli) agent: Option<PathBuf>,
}

impl HostsListArgs {
    /// Whether the line has one of these options.
    pub(crate) fn has_options(&self) -> bool {
        self.has_hosts() || self.agent.is_some()
    }

    /// Whether hosts are named.
    pub(crate) fn has_hosts(&self) -> bool {
        !self.hosts.is_empty() || self.hostfile.is_some()
    }
}

/// The batch system whose allocation is used.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub(in crate::cli) enum BatchSystemArg {
    /// that which the environment describes
    #[default]
    Auto,
    Slurm,
    Gridengine,
    Lsf,
    Pbs,
    Flux,
    None,
}

impl BatchSystemArg {
    /// Returns the named batch system, and the error if this process is not in one of its jobs.
    pub(in crate::cli) fn named(self) -> Option<(BatchSystemKind, &'static str)> {
        Some(match self {
            Self::Auto | Self::None => return None,
            Self::Slurm => (
                BatchSystemKind::Slurm,
                "--engine slurm: not in an allocation of Slurm, or in a step with several tasks; use salloc, sbatch or srun -n 1",
            ),
            Self::Gridengine => (
                BatchSystemKind::GridEngine,
                "--engine gridengine: not in a job in a parallel environment of Grid Engine; use qsub -pe",
            ),
            Self::Lsf => (
                BatchSystemKind::Lsf,
                "--engine lsf: not in a job of LSF; use bsub -n",
            ),
            Self::Pbs => (
                BatchSystemKind::Pbs,
                "--engine pbs: not in a job of PBS; use qsub -l select",
            ),
            Self::Flux => (
                BatchSystemKind::Flux,
                "--engine flux: not in an instance of Flux; use flux alloc or flux batch",
            ),
        })
    }
}

impl HostsArgs {
    /// Whether the line, or a defaults file, names hosts.
    pub(crate) fn has_hosts(&self) -> bool {
        !self.hosts.is_empty() || self.hostfile.is_some()
    }

    /// Returns the routing tree of the hosts, without the command that starts agents.
    pub(crate) fn agent_tree(&self) -> AgentTreeSpec {
        // A width holds for few hosts too.
        let star_limit = self.star_limit.or_else(|| self.tree_width.and(Some(1)));
        AgentTreeSpec {
            star_limit: star_limit.unwrap_or(STAR_LIMIT),
            tree_width: self.tree_width.unwrap_or(TREE_WIDTH),
            agent: self.agent.clone(),
            starter: None,
            same_build: self.same_build,
        }
    }
}
