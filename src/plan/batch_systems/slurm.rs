//! Finds allocations of Slurm.
//!
//! Rule: Slurm describes an allocation in `SLURM_JOB_NODELIST` and `SLURM_TASKS_PER_NODE`, where `2(x3),1` is a number
//! for each node. Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES.

use super::{BatchAllocation, BatchAllocationError};
use wireup_core::job::hosts;
use wireup_core::job::spec::AgentLaunchCommand;

const NAME: &str = "Slurm";

/// Command that starts agents on all nodes of a job at once.
/// Rule: each component of a heterogeneous job needs its own `srun`, which passes its standard input to one component
/// only. Seen with Slurm 22.05.
const SRUN: [&str; 13] = [
    "srun",
    "--overlap",
    "--nodes={count}",
    "--ntasks={count}",
    "--ntasks-per-node=1",
    "--nodelist={hosts}",
    "--mpi=none",
    "--cpu-bind=none",
    "--mem=0",
    "--kill-on-bad-exit=0",
    "--no-kill",
    "--wait=0",
    "--quiet",
];

/// Command that prints the addresses of nodes, whose names need not be resolvable (`NodeAddr` in slurm.conf).
const ADDRESSES: [&str; 4] = ["scontrol", "--oneliner", "show", "node"];

/// Variables of a job's script that `srun` would use as options of its step.
const WITHOUT: [&str; 9] = [
    "SLURM_CPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_HINT",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_OVERCOMMIT",
];

/// Finds the allocation that these variables describe; `None` in a step of several tasks, each of which would start the launch.
///
/// # Errors
/// [`BatchAllocationError`] if the variables are not as documented.
pub(super) fn find(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<BatchAllocation>, BatchAllocationError> {
    if variable("SLURM_JOB_ID").is_none() || variable("WIREUP_RANK").is_some() {
        return Ok(None);
    }
    let tasks = variable("SLURM_STEP_NUM_TASKS").filter(|_| variable("SLURM_STEP_ID").is_some());
    if tasks.is_some_and(|tasks| tasks != "1") {
        return Ok(None);
    }
    let components = variable("SLURM_HET_SIZE").and_then(|text| text.parse::<u32>().ok());
    let suffixes = match components {
        Some(count) => (0..count).map(|at| format!("_HET_GROUP_{at}")).collect(),
        None => vec![String::new()],
    };
    let (mut entries, mut parts) = (Vec::new(), Vec::new());
    for suffix in suffixes {
        let of_component = |name: &str| variable(&format!("{name}{suffix}"));
        let Some(list) = of_component("SLURM_JOB_NODELIST").filter(|list| !list.is_empty()) else {
            return Ok(None);
        };
        let names = hosts::expand(&list).map_err(|problem| BatchAllocationError::Nodes {
            engine: NAME,
            list: "SLURM_JOB_NODELIST".to_owned(),
            problem,
        })?;
        let slots = slots(
            of_component,
            variable("SLURM_STEP_ID").is_some(),
            names.len(),
        )?;
        parts.push(names.clone());
        entries.extend(names.into_iter().zip(slots));
    }
    let here = matches!(&entries[..], [(name, _)] if is_here(&variable, name));
    let mut command: Vec<String> = SRUN.map(str::to_owned).to_vec();
    match (components, variable("SLURM_JOB_ID")) {
        (Some(_), _) => command.push("--het-group={part}".to_owned()),
        // Launches that ranks start do not have the variable, so the option names the job.
        (None, Some(job)) => command.push(format!("--jobid={job}")),
        (None, None) => {}
    }
    let starter = AgentLaunchCommand {
        name: NAME.to_owned(),
        command,
        parts,
        without: WITHOUT.map(str::to_owned).to_vec(),
        addresses: ADDRESSES.map(str::to_owned).to_vec(),
    };
    Ok(Some(BatchAllocation {
        engine: NAME,
        nodes: entries
            .into_iter()
            .map(|(name, slots)| (name, Some(slots)))
            .collect(),
        starter: (!here).then_some(starter),
    }))
}

/// Whether this process runs on `node`, the only one of the job, with all CPUs of the job there: a step may have fewer.
fn is_here(variable: impl Fn(&str) -> Option<String>, node: &str) -> bool {
    let whole = match variable("SLURM_STEP_ID") {
        Some(_) => variable("SLURM_CPUS_ON_NODE") == variable("SLURM_JOB_CPUS_PER_NODE"),
        None => true,
    };
    whole && variable("SLURMD_NODENAME").is_some_and(|name| name == node)
}

/// Number of ranks for each node. In a step, the variable of tasks is that of the step, which may have other nodes; the number
/// is then computed from the CPUs of the job.
fn slots(
    variable: impl Fn(&str) -> Option<String>,
    in_step: bool,
    nodes: usize,
) -> Result<Vec<u32>, BatchAllocationError> {
    let (name, each) = match variable("SLURM_TASKS_PER_NODE") {
        Some(_) if !in_step => ("SLURM_TASKS_PER_NODE", 1),
        _ => {
            let each = variable("SLURM_CPUS_PER_TASK").and_then(|text| text.parse().ok());
            ("SLURM_JOB_CPUS_PER_NODE", each.unwrap_or(1))
        }
    };
    let text = variable(name).unwrap_or_default();
    match numbers(&text) {
        Some(all) if all.len() == nodes => Ok(all
            .into_iter()
            .map(|number| (number / each).max(1))
            .collect()),
        _ => Err(BatchAllocationError::Slots { name, text, nodes }),
    }
}

/// Expands `2(x3),1` to 2, 2, 2, 1.
fn numbers(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (number, times) = match part.split_once("(x") {
            Some((number, times)) => (number, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        let number = number.parse::<u32>().ok()?;
        all.extend(std::iter::repeat_n(number, times));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<BatchAllocation>, BatchAllocationError> {
        let job = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-3],m")];
        let all = [&job[..], variables].concat();
        find(|name| {
            let found = all.iter().rfind(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nodes_and_slots_come_from_allocation() {
        let all = found(&[("SLURM_TASKS_PER_NODE", "2(x3),1")])
            .unwrap()
            .unwrap();
        assert_eq!(all.hosts().unwrap(), "n[1-3]:2,m:1".parse().unwrap());
        let command = all.starter.unwrap().command_for(0);
        assert!(
            command.contains(&"--nodelist=n1,n2,n3,m".to_owned()),
            "{command:?}"
        );
        assert!(command.contains(&"--nodes=4".to_owned()), "{command:?}");
        let step = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_TASKS_PER_NODE", "1"),
            ("SLURM_JOB_CPUS_PER_NODE", "8(x4)"),
            ("SLURM_CPUS_PER_TASK", "4"),
        ];
        let all = found(&step).unwrap().unwrap();
        assert_eq!(all.hosts().unwrap(), "n[1-3]:2,m:2".parse().unwrap());
    }

    #[test]
    fn single_node_of_launcher_needs_no_agent() {
        let batch = [
            ("SLURM_JOB_NODELIST", "n1"),
            ("SLURM_TASKS_PER_NODE", "3"),
            ("SLURM_JOB_CPUS_PER_NODE", "6"),
            ("SLURMD_NODENAME", "n1"),
        ];
        let all = found(&batch).unwrap().unwrap();
        assert_eq!(all.hosts().unwrap(), "localhost:3".parse().unwrap());
        assert!(all.starter.is_none());
        let step = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_CPUS_ON_NODE", "2"),
        ];
        let all = found(&[&batch[..], &step].concat()).unwrap().unwrap();
        assert!(all.starter.is_some(), "{all:?}");
    }

    #[test]
    fn heterogeneous_job_is_one_launch() {
        let variables = [
            ("SLURM_HET_SIZE", "2"),
            ("SLURM_JOB_NODELIST_HET_GROUP_0", "m"),
            ("SLURM_TASKS_PER_NODE_HET_GROUP_0", "1"),
            ("SLURM_JOB_NODELIST_HET_GROUP_1", "n[1-2]"),
            ("SLURM_TASKS_PER_NODE_HET_GROUP_1", "4(x2)"),
        ];
        let all = found(&variables).unwrap().unwrap();
        assert_eq!(all.hosts().unwrap(), "m:1,n[1-2]:4".parse().unwrap());
        let command = all.starter.unwrap().command_for(1);
        assert_eq!(command.last().unwrap(), "--het-group=1");
        assert!(
            command.contains(&"--nodelist=n1,n2".to_owned()),
            "{command:?}"
        );
    }

    #[test]
    fn slurm_step_or_nested_launch_stays_on_its_machine() {
        let step = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4")];
        assert!(found(&step).unwrap().is_none());
        assert!(found(&[("WIREUP_RANK", "0")]).unwrap().is_none());
        assert!(find(|_| None).unwrap().is_none());
    }

    #[test]
    fn numbers_that_contradict_nodes_are_refused() {
        for text in ["2(x3)", "", "2(x", "a(x4)"] {
            let error = found(&[("SLURM_TASKS_PER_NODE", text)]).unwrap_err();
            assert!(error.to_string().contains("each of 4 nodes"), "{error}");
        }
    }
}
