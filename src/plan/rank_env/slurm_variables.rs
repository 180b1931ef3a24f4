//! Variables that `srun` sets for ranks (`--slurm-env`), for scripts and programs
//! that use these. MPI libraries read them too: docs/environment.md#slurm-names.
//!
//! Source: srun(1), "OUTPUT ENVIRONMENT VARIABLES".

use crate::plan::HostPlan;
use wireup_core::job::hosts::compress;
use wireup_core::job::ids::{NodeId, Rank};

/// Name and value of a variable.
type Set = (&'static str, String);

/// Variables of all ranks of a job.
pub(super) fn job_variables(plan: &HostPlan) -> Vec<Set> {
    let ranks = &plan.job.process_map;
    let (size, nodes) = (ranks.size().to_string(), ranks.nodes().to_string());
    let list = compress(&plan.node_names);
    let mut set = vec![
        ("SLURM_NPROCS", size.clone()),
        ("SLURM_NTASKS", size),
        ("SLURM_NNODES", nodes.clone()),
        ("SLURM_JOB_NUM_NODES", nodes),
        ("SLURM_NODELIST", list.clone()),
        ("SLURM_JOB_NODELIST", list),
        (
            "SLURM_TASKS_PER_NODE",
            tasks_per_node(ranks.node_ids().map(|node| ranks.local_size(node))),
        ),
    ];
    // Programs expect a number.
    let allocation = plan.names.allocation.as_ref().and_then(|id| id.to_str());
    if let Some(id) = allocation.filter(|id| id.parse::<u64>().is_ok()) {
        set.push(("SLURM_JOB_ID", id.to_owned()));
        set.push(("SLURM_JOBID", id.to_owned()));
    }
    set
}

/// Variables of the ranks of a node.
pub(super) fn node_variables(plan: &HostPlan, node: NodeId) -> Vec<Set> {
    vec![
        ("SLURM_NODEID", node.to_string()),
        ("SLURMD_NODENAME", plan.node_names[node.index()].clone()),
    ]
}

/// Variables of one rank.
pub(super) fn rank_variables(plan: &HostPlan, rank: Rank) -> Vec<Set> {
    let local = plan.job.process_map.local_rank(rank).unwrap_or_default();
    vec![
        ("SLURM_PROCID", rank.to_string()),
        ("SLURM_LOCALID", local.to_string()),
    ]
}

/// List of the numbers of ranks: `2(x3),1` for three nodes with two ranks and one with one.
fn tasks_per_node(numbers: impl Iterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((known, times)) if *known == number => *times += 1,
            _ => runs.push((number, 1)),
        }
    }
    let run = |(number, times): &(u32, u32)| match times {
        1 => number.to_string(),
        _ => format!("{number}(x{times})"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_tasks_per_node_are_compressed() {
        let compressed = |numbers: &[u32]| tasks_per_node(numbers.iter().copied());
        assert_eq!(compressed(&[2, 2, 2, 1]), "2(x3),1");
        assert_eq!(compressed(&[4]), "4");
        assert_eq!(compressed(&[1, 0, 1, 1]), "1,0,1(x2)");
    }
}
