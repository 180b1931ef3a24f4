//! Variables with the bound CPUs and GPUs of a rank.

use crate::plan::HostPlan;
use wireup_core::binding::GpuVendor;
use wireup_core::job::ids::Rank;
use wireup_core::topology::CpuSet;

/// Names of these variables, which users may set themselves.
pub(super) const NAMES: [&str; 9] = [
    "OMP_NUM_THREADS",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "ZE_ENABLE_PCI_ID_DEVICE_ORDER",
];

/// Variables of a rank. If the user has set one for CPUs, or one for GPUs, the others of that kind are not set.
pub(super) fn binding_variables(plan: &HostPlan, rank: Rank) -> Vec<(&'static str, String)> {
    let Some(binding) = &plan.binding else {
        return Vec::new();
    };
    let variables = &plan.apps[plan.app_of(rank)].env;
    let has_any = |names: &[&str]| {
        variables
            .iter()
            .any(|(known, _)| names.iter().any(|name| known == name))
    };
    let mut env = Vec::new();
    if plan.spec.binding.openmp
        && let Some(cpus) = binding.cpus_of(rank)
        && !has_any(&["OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND"])
    {
        let cores = binding.cores_within(cpus);
        let place = |core: &CpuSet| {
            let cpus: Vec<String> = core.iter().map(|cpu| cpu.to_string()).collect();
            format!("{{{}}}", cpus.join(","))
        };
        let places: Vec<String> = cores.iter().map(place).collect();
        env.push(("OMP_NUM_THREADS", cores.len().to_string()));
        env.push(("OMP_PLACES", places.join(",")));
        env.push(("OMP_PROC_BIND", "close".to_owned()));
    }
    if let Some(gpus @ [first, ..]) = binding.gpus_of(rank) {
        let numbers: Vec<String> = gpus.iter().map(|gpu| gpu.number.to_string()).collect();
        let variables = first.maker.variables(&numbers.join(","));
        let names: Vec<&str> = variables.iter().map(|(name, _)| *name).collect();
        let by_hip = first.maker == GpuVendor::Amd && has_any(&["HIP_VISIBLE_DEVICES"]);
        if !has_any(&names) && !by_hip {
            env.extend(variables);
        }
    }
    env
}
