//! The hosts of the ranks, and how they are contacted.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};

use crate::backend::local_agent;
use crate::cli::node_status::own_node;
use crate::failure::CommandError;
use crate::plan::batch_systems::{BatchAllocation, BatchEnvironment};
use crate::plan::host_lookup::{self, HostWait};
use crate::plan::{batch_systems, hostfile};
use crate::sys::own_host;
use crate::sys::pidfd::wait_for;
use wireup_core::duration::duration;
use wireup_core::job::builds::BuildMismatchPolicy;
use wireup_core::job::hosts::lookup::HostSource;
use wireup_core::job::hosts::{self, HostList, HostSpec};
use wireup_core::job::ids::UserId;
use wireup_core::job::spec::{AgentLaunchCommand, AgentTreeSpec};
use wireup_core::link::routing_tree::{STAR_LIMIT, WIDTH};

/// The hosts of the ranks, and how they are contacted.
#[derive(Debug, Args)]
#[command(next_help_heading = "Hosts")]
pub(crate) struct HostsArgs {
    /// Run on these hosts, in this order, through their agents: NAME[:SLOTS][@ADDRESS[:PORT]]
    /// separated by commas; node[01-16,20]:8 is a range; dns:NAME[:SLOTS] are those that a name of DNS stands for,
    /// etcd:LABELS[:SLOTS] those that agents have registered with these labels
    #[arg(long, value_name = "LIST", conflicts_with_all = ["hostfile", "virtual_nodes"])]
    hosts: Vec<HostSource>,

    /// Read the hosts from a file, one per line, in the formats of MPICH, Open MPI and batch
    /// systems
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(conflicts_with = "virtual_nodes")]
    hostfile: Option<PathBuf>,

    /// Start agents for this launch alone with this command, to which that of the agent is added. {host} stands for
    /// the name of a host: the command is executed for each; {hosts} for those of all, with commas; ssh is short for
    /// 'ssh {host}'
    #[arg(
        long,
        value_name = "COMMAND",
        overrides_with = "agent",
        hide_short_help = true
    )]
    launch_agents: Option<String>,

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
    engine: BatchSystemArg,

    /// Use only the first K of the hosts; of hosts that are looked up, wait for K
    #[arg(
        long,
        value_name = "K",
        hide_short_help = true,
        conflicts_with = "virtual_nodes"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,

    /// Wait this long until as many hosts are found as are needed, where they are looked up (dns:, etcd:);
    /// 0: do not wait
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60", hide_short_help = true)]
    #[arg(allow_negative_numbers = true)]
    wait_hosts: Duration,

    /// Name the hosts whose program or MPI library is of another build, before the start: warn, fail (start nothing),
    /// or off
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value_t,
        hide_short_help = true
    )]
    same_build: Same,

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

/// Hosts whose agents run, for commands that are no launch.
#[derive(Debug, Default, Args)]
pub(crate) struct HostsListArgs {
    /// Ask the agents of these hosts; see `wireup run --help`
    #[arg(long, value_name = "LIST", conflicts_with = "hostfile")]
    hosts: Vec<HostSource>,

    /// Ask the agents of the hosts in this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    hostfile: Option<PathBuf>,

    /// Socket of the agent of this machine [default: that of your own agent or of the system's]
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    agent: Option<PathBuf>,
}

impl HostsListArgs {
    /// Whether the line has one of these.
    pub(crate) fn are_given(&self) -> bool {
        !self.hosts.is_empty() || self.hostfile.is_some() || self.agent.is_some()
    }

    /// Whether hosts are named.
    pub(crate) fn has_hosts(&self) -> bool {
        !self.hosts.is_empty() || self.hostfile.is_some()
    }

    /// The socket that the user names.
    pub(crate) fn agent(&self) -> Option<&Path> {
        self.agent.as_deref()
    }

    /// The hosts, looked up or their file read; none if none are named.
    ///
    /// # Errors
    /// As [`listed`].
    pub(crate) fn resolve(self) -> Result<Vec<HostSpec>, CommandError> {
        let own = || own_node(self.agent.as_deref());
        let at_once = |_| HostWait {
            count: 1,
            limit: Duration::ZERO,
        };
        let file = self.hostfile.as_deref();
        let hosts = listed(self.hosts, file, at_once, true, own, |_: &str| false)?;
        check_resolvable(&hosts, file)?;
        Ok(hosts)
    }
}

/// What to do about other builds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
enum Same {
    #[default]
    Warn,
    Fail,
    Off,
}

impl From<Same> for BuildMismatchPolicy {
    fn from(same: Same) -> Self {
        match same {
            Same::Warn => Self::Warn,
            Same::Fail => Self::Fail,
            Same::Off => Self::Off,
        }
    }
}

/// The batch system whose allocation is used.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
enum BatchSystemArg {
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
    /// How it is named, if it is.
    fn named(self) -> Option<(batch_systems::BatchSystemKind, &'static str)> {
        Some(match self {
            Self::Auto | Self::None => return None,
            Self::Slurm => (
                batch_systems::BatchSystemKind::Slurm,
                "--engine slurm: this is no allocation of Slurm, or a step with several tasks; use salloc, sbatch or srun -n 1",
            ),
            Self::Gridengine => (
                batch_systems::BatchSystemKind::GridEngine,
                "--engine gridengine: this is no job in a parallel environment of Grid Engine; use qsub -pe",
            ),
            Self::Lsf => (
                batch_systems::BatchSystemKind::Lsf,
                "--engine lsf: this is no job of LSF; use bsub -n",
            ),
            Self::Pbs => (
                batch_systems::BatchSystemKind::Pbs,
                "--engine pbs: this is no job of PBS; use qsub -l select",
            ),
            Self::Flux => (
                batch_systems::BatchSystemKind::Flux,
                "--engine flux: this is no script of an instance of Flux; use flux alloc or flux batch",
            ),
        })
    }
}

/// How long a batch system may take to list its nodes.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a batch system's command prints.
fn output(words: &[&str]) -> io::Result<String> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    if !wait_for(&child, PATIENCE) {
        // It may have ended at this moment; either way it is collected.
        let _ = child.kill();
        let _ = child.wait();
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    let output = child.wait_with_output()?;
    match output.status.success() {
        true => String::from_utf8(output.stdout).map_err(io::Error::other),
        false => Err(io::Error::other(output.status.to_string())),
    }
}

impl HostsArgs {
    /// Whether the line, or a defaults file, names hosts.
    pub(crate) fn are_given(&self) -> bool {
        !self.hosts.is_empty() || self.hostfile.is_some()
    }

    /// The hosts, looked up or their file read; none for this machine alone. `needed` gives the number of hosts to wait
    /// for, by the slots of each, if the line does not say; `others` are the hosts if neither the line nor a batch system
    /// names any.
    ///
    /// # Errors
    /// [`CommandError`] with the file and line that are wrong.
    pub(super) fn resolve(
        mut self,
        is_virtual: bool,
        needed: impl Fn(Option<u32>) -> u32,
        other_lists: Option<HostList>,
    ) -> Result<(Vec<HostSpec>, AgentTreeSpec), CommandError> {
        let given = self.are_given();
        let mut allocation = None;
        let by_default = self.launch_agents_by_default;
        let asked = self.launch_agents.as_deref().filter(|_| !by_default);
        if !is_virtual && self.agent.is_none() && asked.is_none() {
            allocation = self.allocation(given)?;
        }
        // Agents that run on this machine are used for it too.
        let needs_none = asked.is_none() && self.agent.is_none() && allocation.is_none();
        let is_own = |name: &str| needs_none && own_host::is_own(name) && !has_agent();
        if let (Some(found), false) = (&allocation, given) {
            let hosts = found.hosts().map_err(CommandError::request)?;
            self.hosts = vec![HostSource::List(hosts)];
        } else if let (Some(others), false) = (other_lists, given) {
            self.hosts = vec![HostSource::List(others)];
        }
        let mut spread = AgentTreeSpec {
            star_limit: self.star_limit,
            tree_width: self.tree_width,
            agent: self.agent,
            starter: None,
            same_build: self.same_build.into(),
        };
        // A launch on this machine alone needs no agent, unless one is named.
        let alone = spread.agent.is_some();
        let own = || own_node(spread.agent.as_deref());
        let (nodes, limit) = (self.nodes, self.wait_hosts);
        let awaited = |slots| HostWait {
            count: nodes.unwrap_or_else(|| needed(slots)),
            limit,
        };
        let is_lookup = |source: &HostSource| matches!(source, HostSource::Lookup(_));
        // Agents that are found there run.
        let are_looked_up = self.hosts.iter().any(is_lookup);
        let file = self.hostfile.as_deref();
        let mut hosts = listed(self.hosts, file, awaited, alone, own, is_own)?;
        if given {
            // Hosts with an address of their own have agents that run.
            let of_agents = |host: &HostSpec| host.is_here() || host.has_own_address();
            allocation = allocation.filter(|_| !hosts.iter().any(of_agents));
            if let Some(found) = &allocation {
                found.within(&mut hosts).map_err(CommandError::request)?;
                if let Some(here) = found.local_host_list(&hosts) {
                    let here = vec![HostSource::List(here)];
                    hosts = listed(here, None, awaited, alone, own, is_own)?;
                }
            }
        }
        if let Some(wanted) = self.nodes {
            let there = hosts.len().max(1);
            if wanted as usize > there {
                let plural = if there == 1 { "" } else { "s" };
                return Err(CommandError::request(format!(
                    "--nodes {wanted}: this launch has {there} host{plural}; name more (--hosts)"
                )));
            }
            hosts.truncate(wanted as usize);
        }
        spread.starter = allocation.and_then(|found| found.starter(&hosts));
        if spread.starter.is_none() {
            check_resolvable(&hosts, file)?;
            let needs_agents = !are_looked_up
                && !hosts.iter().all(HostSpec::is_here)
                && !hosts.iter().any(HostSpec::has_own_address);
            let command = self.launch_agents.as_deref();
            if let Some(command) = command.filter(|_| !by_default || needs_agents) {
                spread.starter = Some(by_command(command, &hosts)?);
            }
        }
        Ok((hosts, spread))
    }

    /// The batch system's allocation, if there is one. One that is described wrongly is an error where it decides.
    fn allocation(&self, given: bool) -> Result<Option<BatchAllocation>, CommandError> {
        if self.engine == BatchSystemArg::None {
            return Ok(None);
        }
        let own = rustix::system::uname();
        let around = BatchEnvironment {
            variable: &|name| std::env::var(name).ok(),
            file: &|path| std::fs::read_to_string(path),
            output: &output,
            hostname: own.nodename().to_string_lossy().into_owned(),
        };
        let named = self.engine.named();
        match (
            batch_systems::find(named.map(|(engine, _)| engine), &around),
            named,
        ) {
            (Ok(None), Some((_, problem))) => Err(CommandError::request(problem.to_owned())),
            (Err(_), None) if given => Ok(None),
            (found, _) => found.map_err(CommandError::request),
        }
    }
}

/// Whether an agent that this user can use runs on this machine.
fn has_agent() -> bool {
    let user = UserId(rustix::process::geteuid().as_raw());
    let runtime = std::env::var_os("XDG_RUNTIME_DIR");
    local_agent::try_find(None, user, runtime.as_deref()).is_some()
}

/// Refuses names of hosts that resolvers read as an address.
///
/// # Errors
/// [`CommandError`] with the option.
fn check_resolvable(hosts: &[HostSpec], file: Option<&Path>) -> Result<(), CommandError> {
    let checked = hosts.iter().try_for_each(HostSpec::check_resolvable);
    checked.map_err(|problem| {
        CommandError::request(match file {
            Some(path) => format!("--hostfile {}: {problem}", path.display()),
            None => format!("--hosts: {problem}"),
        })
    })
}

/// Agents that a command starts on these hosts.
fn by_command(command: &str, hosts: &[HostSpec]) -> Result<AgentLaunchCommand, CommandError> {
    let command = match command {
        "ssh" => "ssh {host}",
        command => command,
    };
    let words: Vec<String> = command
        .split_ascii_whitespace()
        .map(str::to_owned)
        .collect();
    let names = ["{host}", "{hosts}"];
    if !names.iter().any(|name| command.contains(name)) || hosts.is_empty() {
        return Err(CommandError::request(
            "--launch-agents needs {host} or {hosts} in its command, or the word ssh, and --hosts or --hostfile"
                .to_owned(),
        ));
    }
    let names = hosts.iter().map(|host| host.name.clone()).collect();
    Ok(AgentLaunchCommand::new("--launch-agents", words, names))
}

/// The hosts of `--hosts` and `--hostfile`; `awaited` gives the wait for looked-up hosts, by the slots of each, `alone` and
/// `hostname` as [`hosts::name_here`] has them, `is_own` as [`hosts::call_localhost`] has it.
///
/// # Errors
/// [`CommandError`] with the option, file and line that are wrong.
pub(crate) fn listed(
    sources: Vec<HostSource>,
    file: Option<&Path>,
    awaited: impl Fn(Option<u32>) -> HostWait,
    must_rename_single: bool,
    own_host: impl FnOnce() -> Option<(String, Option<String>)>,
    is_own: impl Fn(&str) -> bool,
) -> Result<Vec<HostSpec>, CommandError> {
    if let Some(path) = file {
        let wrong =
            |text: String| CommandError::request(format!("--hostfile {}: {text}", path.display()));
        let mut entries = hostfile::read(path)
            .map_err(|error| CommandError::request(format!("--hostfile {error}")))?;
        hosts::call_localhost(&mut entries, is_own);
        hosts::name_here(&mut entries, must_rename_single, own_host);
        return hosts::merge(entries).map_err(|problem| wrong(problem.to_string()));
    }
    if sources.is_empty() {
        return Ok(Vec::new());
    }
    let mut entries = Vec::new();
    for source in sources {
        match source {
            HostSource::List(list) => entries.extend(list.0),
            HostSource::Lookup(lookup) => {
                entries.extend(host_lookup::find(&lookup, awaited(lookup.slots()))?);
            }
        }
    }
    hosts::call_localhost(&mut entries, is_own);
    hosts::name_here(&mut entries, must_rename_single, own_host);
    hosts::merge(entries).map_err(|problem| CommandError::request(format!("--hosts: {problem}")))
}
