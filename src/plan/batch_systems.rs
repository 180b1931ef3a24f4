//! Finds the nodes of a batch allocation, and the command that starts agents on them.

mod batch_table;
mod slurm;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;

use batch_table::ENGINES;
use wireup_core::job::hosts::{HostList, HostSpec, HostsProblem, compress};
use wireup_core::job::spec::AgentLaunchCommand;

/// Batch allocation that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BatchAllocationError {
    #[error("{engine}'s {list}: {problem}; name the hosts (--hosts)")]
    Nodes {
        engine: &'static str,
        list: String,
        problem: HostsProblem,
    },
    #[error(
        "Slurm's {name}={text} does not have a number for each of {nodes} nodes; name the hosts (--hosts)"
    )]
    Slots {
        name: &'static str,
        text: String,
        nodes: usize,
    },
    #[error("{engine}'s {list}: {error}; name the hosts (--hosts)")]
    Unreadable {
        engine: &'static str,
        list: String,
        error: io::Error,
    },
    #[error(
        "host {host} is not in the {engine} allocation ({nodes}); if agents run there, add --engine none"
    )]
    Outside {
        host: String,
        engine: &'static str,
        nodes: String,
    },
}

/// Access to the variables, files and commands that describe batch allocations.
pub(crate) struct BatchEnvironment<'a> {
    /// Returns the value of an environment variable.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// Reads the text of a file.
    pub(crate) file: &'a dyn Fn(&str) -> io::Result<String>,
    /// Executes a command and returns its standard output.
    pub(crate) output: &'a dyn Fn(&[&str]) -> io::Result<String>,
    /// Host name of this machine.
    pub(crate) hostname: String,
}

/// Batch allocation in which this process runs.
#[derive(Debug)]
pub(crate) struct BatchAllocation {
    engine: &'static str,
    /// Names of the nodes, and their slots if these are known.
    nodes: Vec<(String, Option<u32>)>,
    /// Command that starts agents; `None` if the allocation is this machine alone.
    starter: Option<AgentLaunchCommand>,
}

/// Batch system that `--engine` names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BatchSystemKind {
    Slurm,
    GridEngine,
    Lsf,
    Pbs,
    Flux,
}

/// Variables with the name of a batch allocation, each with a second variable that jobs of the batch system have too.
///
/// Source: sbatch(1); sge_pe(5) and qsub(1); IBM Spectrum LSF, environment variables; qsub(1) of OpenPBS.
const ALLOCATION_VARIABLES: [(&str, &str); 4] = [
    ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"),
    ("PBS_JOBID", "PBS_NODEFILE"),
    ("LSB_JOBID", "LSB_HOSTS"),
    ("JOB_ID", "QUEUE"),
];

/// Name of the batch allocation in which this process runs.
pub(crate) fn allocation_name<'a>(
    variable: impl Fn(&str) -> Option<&'a OsStr>,
) -> Option<&'a OsStr> {
    let has = |name: &str| variable(name).filter(|value| !value.is_empty());
    let mut known = ALLOCATION_VARIABLES.into_iter();
    known.find_map(|(name, second)| has(second).and_then(|_| has(name)))
}

/// Finds the allocation in which this process runs: of the named batch system, or of the first with one.
///
/// # Errors
/// [`BatchAllocationError`] if the batch system's description of the allocation is not as documented.
pub(crate) fn find(
    named: Option<BatchSystemKind>,
    around: &BatchEnvironment<'_>,
) -> Result<Option<BatchAllocation>, BatchAllocationError> {
    if (around.variable)("WIREUP_RANK").is_some() {
        return Ok(None);
    }
    let is_meant = |kind: BatchSystemKind| named.is_none_or(|named| named == kind);
    if is_meant(BatchSystemKind::Slurm)
        && let Some(found) = slurm::find(around.variable)?
    {
        return Ok(Some(found));
    }
    for system in ENGINES.iter().filter(|system| is_meant(system.named)) {
        if let Some(found) = system.find(around)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

impl BatchAllocation {
    /// All nodes of the allocation; `localhost` if this machine is the only one.
    ///
    /// # Errors
    /// [`BatchAllocationError`] for an invalid host name.
    pub(crate) fn hosts(&self) -> Result<HostList, BatchAllocationError> {
        let written = |(name, slots): &(String, Option<u32>)| {
            let name = match self.starter {
                Some(_) => name,
                None => "localhost",
            };
            match slots {
                Some(slots) => format!("{name}:{slots}"),
                None => name.to_owned(),
            }
        };
        let text: Vec<String> = self.nodes.iter().map(written).collect();
        text.join(",")
            .parse()
            .map_err(|problem| BatchAllocationError::Nodes {
                engine: self.engine,
                list: "list of nodes".to_owned(),
                problem,
            })
    }

    /// Fills in missing numbers of slots in a list of hosts of the allocation.
    ///
    /// # Errors
    /// [`BatchAllocationError::Outside`] for a host that is not in the allocation.
    pub(crate) fn within(&self, hosts: &mut [HostSpec]) -> Result<(), BatchAllocationError> {
        for host in hosts {
            let node = self.nodes.iter().find(|(name, _)| *name == host.name);
            let Some((_, slots)) = node else {
                return Err(BatchAllocationError::Outside {
                    host: host.name.clone(),
                    engine: self.engine,
                    nodes: compress(self.nodes.iter().map(|(name, _)| name)),
                });
            };
            host.slots = host.slots.or(*slots);
        }
        Ok(())
    }

    /// List with `localhost` in place of the hosts, if the allocation is this machine alone.
    pub(crate) fn local_host_list(&self, hosts: &[HostSpec]) -> Option<HostList> {
        let [host] = hosts else { return None };
        let slots = host.slots.filter(|_| self.starter.is_none())?;
        format!("localhost:{slots}").parse().ok()
    }

    /// Command that starts agents on these nodes of the allocation; `None` if the allocation is this machine alone.
    pub(crate) fn starter(self, hosts: &[HostSpec]) -> Option<AgentLaunchCommand> {
        let mut starter = self.starter?;
        let names: BTreeSet<&str> = hosts.iter().map(|host| &*host.name).collect();
        for part in &mut starter.parts {
            part.retain(|name| names.contains(&**name));
        }
        Some(starter)
    }
}
