//! Batch systems: the nodes of an allocation, and the command that starts agents on them.

mod batch_table;
mod slurm;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;

use wireup_core::job::hosts::{HostList, HostSpec, HostsProblem, compress};
use wireup_core::job::spec::AgentLaunchCommand;

/// Why an allocation cannot be used.
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
        "{host} is no node of the allocation of {engine} ({nodes}); where agents run, add --engine none"
    )]
    Outside {
        host: String,
        engine: &'static str,
        nodes: String,
    },
}

/// What allocations are found in.
pub(crate) struct BatchEnvironment<'a> {
    /// A variable of the environment.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// The text of a file.
    pub(crate) file: &'a dyn Fn(&str) -> io::Result<String>,
    /// What a command prints.
    pub(crate) output: &'a dyn Fn(&[&str]) -> io::Result<String>,
    /// The name of this machine.
    pub(crate) hostname: String,
}

/// An allocation in which this process runs.
#[derive(Debug)]
pub(crate) struct BatchAllocation {
    engine: &'static str,
    /// Their names, and slots where these are known.
    nodes: Vec<(String, Option<u32>)>,
    /// None where the allocation is this machine alone.
    starter: Option<AgentLaunchCommand>,
}

/// A batch system that `--engine` names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BatchSystemKind {
    Slurm,
    GridEngine,
    Lsf,
    Pbs,
    Flux,
}

/// Variables of jobs with the name of their allocation, each with a second one that such a job has too.
///
/// Source: sbatch(1); sge_pe(5) and qsub(1); IBM Spectrum LSF, environment variables; qsub(1) of OpenPBS.
const ALLOCATION_VARIABLES: [(&str, &str); 4] = [
    ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"),
    ("PBS_JOBID", "PBS_NODEFILE"),
    ("LSB_JOBID", "LSB_HOSTS"),
    ("JOB_ID", "QUEUE"),
];

/// The name that a batch system gives the allocation in which this process runs.
pub(crate) fn allocation_name<'a>(
    variable: impl Fn(&str) -> Option<&'a OsStr>,
) -> Option<&'a OsStr> {
    let has = |name: &str| variable(name).filter(|value| !value.is_empty());
    let mut known = ALLOCATION_VARIABLES.into_iter();
    known.find_map(|(name, second)| has(second).and_then(|_| has(name)))
}

/// The allocation in which this process runs: of that batch system, or of the first that there is.
///
/// # Errors
/// [`BatchAllocationError`] if its description is not as documented.
pub(crate) fn find(
    named: Option<BatchSystemKind>,
    around: &BatchEnvironment<'_>,
) -> Result<Option<BatchAllocation>, BatchAllocationError> {
    if (around.variable)("WIREUP_RANK").is_some() {
        return Ok(None);
    }
    let all = [
        BatchSystemKind::Slurm,
        BatchSystemKind::GridEngine,
        BatchSystemKind::Lsf,
        BatchSystemKind::Pbs,
        BatchSystemKind::Flux,
    ];
    for engine in all {
        if named.is_some_and(|named| named != engine) {
            continue;
        }
        let found = match engine {
            BatchSystemKind::Slurm => slurm::find(around.variable)?,
            _ => batch_table::find(engine, around)?,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

impl BatchAllocation {
    /// All its nodes; this machine under its own name where it is the only one.
    ///
    /// # Errors
    /// [`BatchAllocationError`] for a name that none can be.
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

    /// Gives the hosts of a list, which are nodes of the allocation, the slots that the list does not give.
    ///
    /// # Errors
    /// [`BatchAllocationError::Outside`] for a host that is none of them.
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

    /// The same hosts under the name that this machine has for itself, where it is the whole allocation.
    pub(crate) fn local_host_list(&self, hosts: &[HostSpec]) -> Option<HostList> {
        let [host] = hosts else { return None };
        let slots = host.slots.filter(|_| self.starter.is_none())?;
        format!("localhost:{slots}").parse().ok()
    }

    /// What starts agents on these of its nodes; none where it is this machine alone.
    pub(crate) fn starter(self, hosts: &[HostSpec]) -> Option<AgentLaunchCommand> {
        let mut starter = self.starter?;
        let wanted: BTreeSet<&str> = hosts.iter().map(|host| &*host.name).collect();
        for part in &mut starter.parts {
            part.retain(|name| wanted.contains(&**name));
        }
        Some(starter)
    }
}
