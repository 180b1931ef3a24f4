//! Finds allocations of batch systems that list their nodes in a file or by a command, and have a command that starts a
//! process on a node and passes its standard input on.
//!
//! Rule: Grid Engine lists a node per line, `NAME SLOTS QUEUE PROCESSORS`. Source: sge_pe(5).
//! Rule: LSF lists a node once for each slot; blaunch takes the place of rsh. Source: IBM Spectrum LSF, command reference.
//! Rule: in Flux, ranks of brokers are positions in the list of hosts. Processes of a job have `FLUX_JOB_ID`; the script of
//! an instance does not. Source: flux-exec(1), flux-hostlist(1), flux-environment(7).
//! Rule: PBS lists a node once for each slot. Its command, `pbs_tmrsh`, passes no standard input and no output back: the
//! agent's executable makes the connection. Source: OpenPBS, src/cmds/pbs_tmrsh.c.

use super::{BatchAllocation, BatchAllocationError, BatchEnvironment, BatchSystemKind};
use wireup_core::executables::{AGENT, TASK_CALLER};
use wireup_core::job::hosts;
use wireup_core::job::spec::AgentLaunchCommand;

/// Batch system with its variables and commands.
pub(super) struct BatchSystem {
    pub(super) named: BatchSystemKind,
    name: &'static str,
    /// Variables that every job has.
    has: &'static [&'static str],
    /// Variable that only processes have from which no launch is started.
    lacks: Option<&'static str>,
    nodes: NodeListSource,
    /// Command that starts a process on one node, as in [`AgentLaunchCommand`].
    command: &'static [&'static str],
}

/// Source of the list of nodes.
enum NodeListSource {
    /// File that this variable names.
    File(&'static str),
    /// Output of this command.
    Output(&'static [&'static str]),
}

/// Batch systems, in the order in which they are searched.
pub(super) const ENGINES: [BatchSystem; 4] = [
    BatchSystem {
        named: BatchSystemKind::GridEngine,
        name: "Grid Engine",
        has: &["JOB_ID", "PE_HOSTFILE"],
        lacks: None,
        nodes: NodeListSource::File("PE_HOSTFILE"),
        command: &["qrsh", "-inherit", "{host}"],
    },
    BatchSystem {
        named: BatchSystemKind::Lsf,
        name: "LSF",
        has: &["LSB_JOBID", "LSB_DJOB_HOSTFILE"],
        lacks: None,
        nodes: NodeListSource::File("LSB_DJOB_HOSTFILE"),
        command: &["blaunch", "{host}"],
    },
    BatchSystem {
        named: BatchSystemKind::Pbs,
        name: "PBS",
        has: &["PBS_JOBID", "PBS_NODEFILE", "PBS_JOBCOOKIE"],
        lacks: None,
        nodes: NodeListSource::File("PBS_NODEFILE"),
        command: &[AGENT, TASK_CALLER, "{host}"],
    },
    BatchSystem {
        named: BatchSystemKind::Flux,
        name: "Flux",
        has: &["FLUX_URI"],
        lacks: Some("FLUX_JOB_ID"),
        nodes: NodeListSource::Output(&["flux", "getattr", "hostlist"]),
        command: &["flux", "exec", "--rank={part}"],
    },
];

impl BatchSystem {
    /// Finds the allocation of the batch system in which this process runs.
    ///
    /// # Errors
    /// [`BatchAllocationError`] if the list of nodes is unreadable or invalid.
    pub(super) fn find(
        &self,
        around: &BatchEnvironment<'_>,
    ) -> Result<Option<BatchAllocation>, BatchAllocationError> {
        let variable = |name: &str| (around.variable)(name).filter(|text| !text.is_empty());
        let is_here = self.has.iter().all(|name| variable(name).is_some())
            && self.lacks.is_none_or(|name| variable(name).is_none());
        if !is_here {
            return Ok(None);
        }
        let nodes = match self.nodes {
            NodeListSource::File(name) => {
                let path = variable(name).unwrap_or_default();
                let text =
                    (around.file)(&path).map_err(|error| BatchAllocationError::Unreadable {
                        engine: self.name,
                        list: format!("{name} ({path})"),
                        error,
                    })?;
                lines(&text)
            }
            NodeListSource::Output(words) => {
                let list = words.join(" ");
                let text =
                    (around.output)(words).map_err(|error| BatchAllocationError::Unreadable {
                        engine: self.name,
                        list: list.clone(),
                        error,
                    })?;
                let names =
                    hosts::expand(text.trim()).map_err(|problem| BatchAllocationError::Nodes {
                        engine: self.name,
                        list,
                        problem,
                    })?;
                names.into_iter().map(|name| (name, None)).collect()
            }
        };
        if nodes.is_empty() {
            return Ok(None);
        }
        let here = matches!(&nodes[..], [(name, _)] if short(name) == short(&around.hostname));
        let names = nodes.iter().map(|(name, _)| vec![name.clone()]).collect();
        let starter = AgentLaunchCommand {
            name: self.name.to_owned(),
            command: self.command.iter().map(|word| (*word).to_owned()).collect(),
            parts: names,
            without: Vec::new(),
            addresses: Vec::new(),
        };
        Ok(Some(BatchAllocation {
            engine: self.name,
            nodes,
            starter: (!here).then_some(starter),
        }))
    }
}

/// Host name without its domain.
fn short(name: &str) -> &str {
    name.split('.').next().unwrap_or_default()
}

/// Nodes of a file, in the order in which they first occur. A line without a number is one slot.
fn lines(text: &str) -> Vec<(String, Option<u32>)> {
    let mut nodes: Vec<(String, Option<u32>)> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(name) = words.next() else { continue };
        let slots = words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
        match nodes.iter_mut().find(|(known, _)| known == name) {
            Some((_, Some(sum))) => *sum = sum.saturating_add(slots),
            _ => nodes.push((name.to_owned(), Some(slots))),
        }
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use wireup_core::job::hosts::HostList;

    fn found(
        named: BatchSystemKind,
        variables: &[(&str, &str)],
        text: &str,
    ) -> Result<Option<BatchAllocation>, BatchAllocationError> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let file = |path: &str| match path {
            "/list" => Ok(text.to_owned()),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        let output = |words: &[&str]| match words {
            ["flux", "getattr", "hostlist"] => Ok(text.to_owned()),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        let around = BatchEnvironment {
            variable: &variable,
            file: &file,
            output: &output,
            hostname: "n1.example".to_owned(),
        };
        crate::plan::batch_systems::find(Some(named), &around)
    }

    const GRID: [(&str, &str); 2] = [("JOB_ID", "7"), ("PE_HOSTFILE", "/list")];

    #[test]
    fn nodes_and_slots_come_from_host_list() {
        let text = "n1 2 all.q@n1 UNDEFINED\nn2 4 all.q@n2 <NULL>\nn1 1 b.q@n1 UNDEFINED\n";
        let all = found(BatchSystemKind::GridEngine, &GRID, text)
            .unwrap()
            .unwrap();
        assert_eq!(all.hosts().unwrap(), "n1:3,n2:4".parse().unwrap());
        let starter = all.starter.unwrap();
        assert_eq!(starter.command_for(1), ["qrsh", "-inherit", "n2"]);
        let lsf = [("LSB_JOBID", "7"), ("LSB_DJOB_HOSTFILE", "/list")];
        let all = found(BatchSystemKind::Lsf, &lsf, "n1\nn1\nn2\n")
            .unwrap()
            .unwrap();
        assert_eq!(all.hosts().unwrap(), "n1:2,n2:1".parse().unwrap());
        assert_eq!(all.starter.unwrap().command_for(0), ["blaunch", "n1"]);
        let pbs = [
            ("PBS_JOBID", "7.n1"),
            ("PBS_NODEFILE", "/list"),
            ("PBS_JOBCOOKIE", "0123456789ABCDEF"),
        ];
        let all = found(BatchSystemKind::Pbs, &pbs, "n1\nn1\nn2\n")
            .unwrap()
            .unwrap();
        assert_eq!(all.hosts().unwrap(), "n1:2,n2:1".parse().unwrap());
        let command = all.starter.unwrap().command_for(1);
        assert_eq!(command, ["wireup-agent", "tm-caller", "n2"]);
        let flux = [("FLUX_URI", "local:///run/flux/local")];
        let all = found(BatchSystemKind::Flux, &flux, "n[1-3]\n")
            .unwrap()
            .unwrap();
        assert_eq!(all.hosts().unwrap(), "n1,n2,n3".parse().unwrap());
        let command = all.starter.unwrap().command_for(2);
        assert_eq!(command, ["flux", "exec", "--rank=2"]);
    }

    #[test]
    fn batch_job_on_this_machine_alone_needs_no_agent() {
        let all = found(BatchSystemKind::GridEngine, &GRID, "n1.example 4 q U").unwrap();
        let all = all.unwrap();
        assert_eq!(all.hosts().unwrap(), "localhost:4".parse().unwrap());
        assert!(all.starter.is_none());
        let HostList(entries) = "n1.example:2".parse().unwrap();
        let here = all.local_host_list(&hosts::merge(entries).unwrap());
        assert_eq!(here, Some("localhost:2".parse().unwrap()));
    }

    #[test]
    fn incomplete_environment_of_batch_job_is_ignored() {
        assert!(
            found(BatchSystemKind::GridEngine, &GRID[..1], "")
                .unwrap()
                .is_none()
        );
        let task = [("FLUX_URI", "x"), ("FLUX_JOB_ID", "f")];
        assert!(found(BatchSystemKind::Flux, &task, "n1").unwrap().is_none());
        let error = found(
            BatchSystemKind::GridEngine,
            &[("JOB_ID", "7"), ("PE_HOSTFILE", "/no")],
            "",
        );
        let text = error.unwrap_err().to_string();
        assert!(text.contains("Grid Engine's PE_HOSTFILE (/no)"), "{text}");
    }

    #[test]
    fn only_nodes_of_allocation_can_be_named() {
        let hosts = |text: &str| {
            let HostList(entries) = text.parse().unwrap();
            hosts::merge(entries).unwrap()
        };
        let all = || {
            found(BatchSystemKind::GridEngine, &GRID, "n1 2\nn2 4\nn3 4\n")
                .unwrap()
                .unwrap()
        };
        let mut some = hosts("n3,n1:1");
        all().within(&mut some).unwrap();
        assert_eq!((some[0].slots, some[1].slots), (Some(4), Some(1)));
        let parts = all().starter(&some).unwrap().parts;
        assert_eq!(parts, [vec!["n1"], vec![], vec!["n3"]]);
        let error = all().within(&mut hosts("n1,n9")).unwrap_err().to_string();
        let expected = "host n9 is not in the Grid Engine allocation (n[1-3])";
        assert!(error.starts_with(expected), "{error}");
    }
}
