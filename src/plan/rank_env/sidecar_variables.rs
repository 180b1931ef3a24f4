//! Environment of the sidecars.

use std::ffi::CString;
use std::path::Path;

use super::entry;
use crate::inspect::{libpmix, relocated};
use crate::plan::{HostPlan, environment};
use wireup_core::job::spec::EnvInheritance;
use wireup_core::pmix::release::PmixRelease;
use wireup_core::pmix::server_settings;
use wireup_sys::devices;
use wireup_sys::leftovers::JOB;
use wireup_sys::log;

/// Variable with the components that hwloc must not use.
const COMPONENTS: &str = "HWLOC_COMPONENTS";

/// Variables that replace the topology of this machine by another; hwloc ignores them if [`COMPONENTS`] is set.
const DESCRIPTIONS: [&str; 3] = ["HWLOC_XMLFILE", "HWLOC_SYNTHETIC", "HWLOC_FSROOT"];

/// Disabled components: PCI is one of them if no device should be near a core. In a virtual
/// machine the hypervisor handles each read of a device's configuration, which takes about 4 ms for
/// six devices.
fn components() -> &'static str {
    match devices::without_near_and_far(Path::new(devices::SYS)) {
        true => "-x86,-pci,-linuxpci",
        false => "-x86",
    }
}

/// Maximum size of jobs for which requests are faster than shared memory, with this release of libpmix.
fn small(version: Option<PmixRelease>) -> u32 {
    match version {
        Some(version) if version.major >= 5 => 128,
        Some(_) => 16,
        None => 0,
    }
}

/// Variables of a sidecar: the launcher's own without those of an outer job, with which libpmix would start as a rank of that
/// job, and settings of the PMIx server. `libpmix` is the library that the sidecar loads.
pub fn sidecar_variables(plan: &HostPlan, libpmix: &libpmix::LibpmixChoice) -> Vec<CString> {
    let base = environment::base(&plan.inheritance.vars, &EnvInheritance::All, &[]);
    let is_set = |name: &str| base.variables.iter().any(|(variable, _)| variable == name);
    let is_small = plan.job.process_map.size() <= small(libpmix.version);
    let described = DESCRIPTIONS.into_iter().any(is_set);
    let settings = server_settings::ALWAYS
        .into_iter()
        .chain((!described).then(|| (COMPONENTS, components())))
        .chain(is_small.then_some(server_settings::SMALL_JOBS))
        .filter(|(name, _)| !is_set(name));
    let inherited = base
        .variables
        .iter()
        .filter(|(name, _)| name != log::VARIABLE);
    let mut env: Vec<CString> = inherited
        .filter_map(|(name, value)| entry(name, value))
        .collect();
    env.extend(entry(JOB, plan.launch.nspace.as_str()));
    let filter = plan.spec.log.as_ref();
    env.extend(filter.and_then(|filter| entry(log::VARIABLE, filter)));
    env.extend(settings.filter_map(|(name, value)| entry(name, value)));
    if !is_set(relocated::OPENPMIX)
        && let Some(prefix) = relocated::openpmix(&libpmix.path)
    {
        env.extend(entry(relocated::OPENPMIX, prefix));
    }
    env
}
