//! Looks up the hosts that the options name: lists, files, name services, registrations, and batch systems.

use std::cell::OnceCell;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use wireup_core::executables::{AGENT, FIND_HOSTS};

use super::lookup_progress::LookupProgress;
use super::node_status::{own_agent, own_node};
use super::options::{BatchSystemArg, HostsArgs, HostsListArgs};
use crate::inspect::agent_file;
use crate::plan::batch_systems::{self, BatchAllocation, BatchEnvironment};
use crate::plan::{hostfile, launch_names};
use wireup_core::failure::{AnyError, CommandError};
use wireup_core::job::hosts::lookup::HostWait;
use wireup_core::job::hosts::lookup::{HostLookup, HostSource};
use wireup_core::job::hosts::{self, HostEntry, HostList, HostSpec};
use wireup_core::job::spec::AgentLaunchCommand;
use wireup_core::wording::counted;
use wireup_sys::own_host;

/// Time limit of a batch system's command that lists the nodes.
const BATCH_LIMIT: Duration = Duration::from_secs(10);

impl HostsListArgs {
    /// The hosts, looked up or their file read; none if none are named.
    ///
    /// # Errors
    /// The errors of [`listed`].
    pub(super) fn resolve(self) -> Result<Vec<HostSpec>, CommandError> {
        let progress = LookupProgress::on_terminal();
        let own = || own_node(self.agent.as_deref(), progress);
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

impl HostsArgs {
    /// The hosts, looked up or their file read, none for this machine alone; and what starts agents on them, if they do
    /// not run.
    ///
    /// `is_virtual` is set if this machine acts as several nodes. `count` gives the number of hosts to wait for, by the slots
    /// of each, if the line does not give it. `by_rankfile` are the hosts if neither the line nor a batch system names any.
    ///
    /// # Errors
    /// [`CommandError`] with the file and line that are wrong.
    pub(super) fn resolve(
        &self,
        is_virtual: bool,
        count: impl Fn(Option<u32>) -> u32,
        by_rankfile: Option<HostList>,
        progress: LookupProgress,
    ) -> Result<(Vec<HostSpec>, Option<AgentLaunchCommand>), CommandError> {
        let names_hosts = self.has_hosts();
        let mut sources = self.hosts.clone();
        let mut allocation = None;
        let by_default = self.launch_agents_by_default;
        let launch_agents = self.launch_agents.as_deref().filter(|_| !by_default);
        if !is_virtual && self.agent.is_none() && launch_agents.is_none() {
            allocation = self.allocation(names_hosts, progress)?;
        }
        // Agents that run on this machine are used for it too.
        let needs_none = launch_agents.is_none() && self.agent.is_none() && allocation.is_none();
        let agent = OnceCell::new();
        let has_agent = || own_agent(None).is_some();
        let is_own =
            |name: &str| needs_none && own_host::is_own(name) && !agent.get_or_init(has_agent);
        if let (Some(found), false) = (&allocation, names_hosts) {
            let hosts = found.hosts().map_err(CommandError::request)?;
            sources = vec![HostSource::List(hosts)];
        } else if let (Some(others), false) = (by_rankfile, names_hosts) {
            sources = vec![HostSource::List(others)];
        }
        // A launch on this machine alone needs no agent, unless one is named.
        let alone = self.agent.is_some();
        let own = || own_node(self.agent.as_deref(), progress);
        let awaited = |slots| HostWait {
            count: self.nodes.unwrap_or_else(|| count(slots)),
            limit: self.wait_hosts,
        };
        let is_lookup = |source: &HostSource| matches!(source, HostSource::Lookup(_));
        // Agents that are found there run.
        let are_looked_up = sources.iter().any(is_lookup);
        let file = self.hostfile.as_deref();
        let mut hosts = listed(sources, file, awaited, alone, own, is_own)?;
        if names_hosts {
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
        if let Some(nodes) = self.nodes {
            let there = hosts.len().max(1);
            if nodes as usize > there {
                return Err(CommandError::request(format!(
                    "--nodes {nodes}: this launch has {}; name more (--hosts)",
                    counted(there, "host")
                )));
            }
            hosts.truncate(nodes as usize);
        }
        let mut starter = allocation.and_then(|found| found.starter(&hosts));
        if starter.is_none() {
            check_resolvable(&hosts, file)?;
            let needs_agents = !are_looked_up
                && !hosts.iter().all(HostSpec::is_here)
                && !hosts.iter().any(HostSpec::has_own_address);
            let command = self.launch_agents.as_deref();
            if let Some(command) = command.filter(|_| !by_default || needs_agents) {
                starter = Some(by_command(command, &hosts)?);
            }
        }
        Ok((hosts, starter))
    }

    /// The batch system's allocation, if there is one. One that is described wrongly is an error where it decides.
    fn allocation(
        &self,
        names_hosts: bool,
        progress: LookupProgress,
    ) -> Result<Option<BatchAllocation>, CommandError> {
        if self.engine == BatchSystemArg::None {
            return Ok(None);
        }
        let around = BatchEnvironment {
            variable: &|name| std::env::var(name).ok(),
            file: &|path| std::fs::read_to_string(path),
            output: &|words| batch_output(words, progress),
            hostname: launch_names::own_host(),
        };
        let named = self.engine.named();
        match (
            batch_systems::find(named.map(|(engine, _)| engine), &around),
            named,
        ) {
            (Ok(None), Some((_, problem))) => Err(CommandError::request(problem)),
            (Err(_), None) if names_hosts => Ok(None),
            (found, _) => found.map_err(CommandError::request),
        }
    }
}

/// Text that a batch system's command prints.
fn batch_output(words: &[&str], progress: LookupProgress) -> io::Result<String> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    let (status, output) =
        progress.command_output(&mut command, &words.join(" "), Some(BATCH_LIMIT))?;
    match status.success() {
        true => String::from_utf8(output).map_err(io::Error::other),
        false => Err(io::Error::other(status.to_string())),
    }
}

/// Refuses names of hosts that resolvers read as an address.
///
/// # Errors
/// [`CommandError`] with the option.
fn check_resolvable(hosts: &[HostSpec], file: Option<&Path>) -> Result<(), CommandError> {
    let checked = hosts.iter().try_for_each(HostSpec::check_resolvable);
    checked.map_err(|problem| about_hosts(file, problem))
}

/// Adds to a problem of hosts the option that named them.
fn about_hosts(file: Option<&Path>, problem: impl Display) -> CommandError {
    CommandError::request(match file {
        Some(path) => format!("--hostfile {}: {problem}", path.display()),
        None => format!("--hosts: {problem}"),
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
            "--launch-agents needs {host} or {hosts} in its command, or the word ssh, and --hosts or --hostfile",
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
fn listed(
    sources: Vec<HostSource>,
    file: Option<&Path>,
    awaited: impl Fn(Option<u32>) -> HostWait,
    must_rename_single: bool,
    own_host: impl FnOnce() -> Option<(String, Option<String>)>,
    is_own: impl Fn(&str) -> bool,
) -> Result<Vec<HostSpec>, CommandError> {
    if file.is_none() && sources.is_empty() {
        return Ok(Vec::new());
    }
    let mut entries = match file {
        Some(path) => hostfile::read(path)
            .map_err(|error| CommandError::request(format!("--hostfile {error}")))?,
        None => {
            let found = sources.into_iter().map(|source| match source {
                HostSource::List(list) => Ok(list.0),
                HostSource::Lookup(lookup) => find_hosts(&lookup, awaited(lookup.slots())),
            });
            found.collect::<Result<Vec<_>, _>>()?.concat()
        }
    };
    hosts::call_localhost(&mut entries, is_own);
    hosts::name_here(&mut entries, must_rename_single, own_host);
    hosts::merge(entries).map_err(|problem| about_hosts(file, problem))
}

/// The hosts of a look-up, once there are as many as are needed: `wireup-agent find-hosts` looks for them, which has a
/// runtime for that. It reports the wait on standard error itself.
///
/// # Errors
/// [`CommandError`] if there are fewer when the wait times out.
fn find_hosts(lookup: &HostLookup, awaited: HostWait) -> Result<Vec<HostEntry>, CommandError> {
    let program = agent_file::find(AGENT).map_err(CommandError::request)?;
    let failed = |error: AnyError| CommandError::system("cannot look hosts up", error);
    let mut command = Command::new(program);
    command.args([FIND_HOSTS, &lookup.to_string(), &awaited.count.to_string()]);
    command.arg(awaited.limit.as_millis().to_string());
    command.stderr(Stdio::inherit());
    let output = LookupProgress::default().command_output(&mut command, "hosts", None);
    let (status, output) = output.map_err(|error| failed(error.into()))?;
    let text = String::from_utf8_lossy(&output);
    match status.code() {
        Some(0) => {}
        Some(_) if !text.trim().is_empty() => {
            let reason = text.trim();
            return Err(CommandError::request(format!("--hosts {lookup}: {reason}")));
        }
        _ => {
            let ended = format!("wireup-agent ended with {status}");
            return Err(failed(io::Error::other(ended).into()));
        }
    }
    let list = text.lines().collect::<Vec<_>>().join(",");
    let list: Result<HostList, _> = list.parse();
    list.map(|list| list.0)
        .map_err(|error| failed(error.into()))
}
