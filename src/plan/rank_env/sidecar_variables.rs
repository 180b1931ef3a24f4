//! The environment of the sidecars.

use std::ffi::CString;
use std::path::Path;

use super::entry;
use crate::inspect::{libpmix, relocated};
use crate::log;
use crate::plan::{HostPlan, environment};
use crate::sys::devices;
use crate::sys::leftovers::JOB;
use wireup_core::job::spec::EnvInheritance;

/// Variables for libpmix, unless the user has set them.
///
/// libpmix discovers the machine's topology when it starts, and hwloc's work then includes parts
/// that ranks do not use: graphics devices, whose plugins load large libraries, a second XML
/// reader, and cpuid on each CPU in turn beside the kernel's list. They are disabled. Measured:
/// docs/pmix-server.md#server. (hwloc ignores the names of components that it does not have.)
///
/// The log of the system is the launcher's business: libpmix would write to it as well.
const DEFAULTS: [(&str, &str); 3] = [
    (
        "HWLOC_PLUGINS_BLACKLIST",
        "hwloc_opencl.so,hwloc_gl.so,hwloc_xml_libxml.so",
    ),
    ("PMIX_MCA_plog", "^syslog"),
    // Pieces of output that libpmix caches without a subscriber, for later ones: a million by
    // default, and 0 is no limit. A client that subscribes to all output includes its own, which
    // he never gets.
    ("PMIX_MCA_pmix_max_iof_cache", "1"),
];

/// Components of hwloc that are left out.
const COMPONENTS: &str = "HWLOC_COMPONENTS";

/// Descriptions of a machine in place of this one: hwloc ignores them where [`COMPONENTS`] is set.
const DESCRIPTIONS: [&str; 3] = ["HWLOC_XMLFILE", "HWLOC_SYNTHETIC", "HWLOC_FSROOT"];

/// The disabled components: PCI too, if there is no device that should be near a core. In a virtual
/// machine each word of a device's configuration is a question to the host, some 4 ms in all for
/// six devices.
fn components() -> &'static str {
    match devices::without_near_and_far(Path::new(devices::SYS)) {
        true => "-x86,-pci,-linuxpci",
        false => "-x86",
    }
}

/// Of small jobs, where a rank's questions to the server cost less than setting up memory that
/// server and ranks share. Measured: docs/pmix-server.md#data-store.
const ASKED_FOR: (&str, &str) = ("PMIX_MCA_gds", "hash");

/// Whether a variable of the sidecar is a setting of ours for libpmix.
pub fn is_sidecar_default(name: &[u8], value: &[u8]) -> bool {
    let ours = DEFAULTS.iter().chain([&ASKED_FOR]);
    ours.into_iter()
        .any(|(ours, setting)| name == ours.as_bytes() && value == setting.as_bytes())
}

/// The largest job for which requests are faster than shared memory, with this release of libpmix.
fn small(version: Option<libpmix::PmixRelease>) -> u32 {
    match version {
        Some(version) if version.major >= 5 => 128,
        Some(_) => 16,
        None => 0,
    }
}

/// The launcher's own environment without what would make libpmix take itself for a rank of an outer
/// job, and with settings for the server. `libpmix` is the library it will load.
pub fn sidecar_variables(plan: &HostPlan, libpmix: &libpmix::LibpmixChoice) -> Vec<CString> {
    let base = environment::base(&plan.inheritance.vars, &EnvInheritance::All, &[]);
    let given = |name: &str| base.variables.iter().any(|(given, _)| given == name);
    let asked_for = plan.job.process_map.size() <= small(libpmix.version);
    let described = DESCRIPTIONS.into_iter().any(given);
    let settings = DEFAULTS
        .into_iter()
        .chain((!described).then(|| (COMPONENTS, components())))
        .chain(asked_for.then_some(ASKED_FOR))
        .filter(|(name, _)| !given(name));
    let inherited = base
        .variables
        .iter()
        .filter(|(name, _)| name != log::VARIABLE);
    let mut env: Vec<CString> = inherited
        .filter_map(|(name, value)| entry(name, value))
        .collect();
    env.extend(entry(JOB, plan.launch().as_str()));
    let filter = plan.spec.log.as_ref();
    env.extend(filter.and_then(|filter| entry(log::VARIABLE, filter)));
    env.extend(settings.filter_map(|(name, value)| entry(name, value)));
    if !given(relocated::OPENPMIX)
        && let Some(prefix) = relocated::openpmix(&libpmix.path)
    {
        env.extend(entry(relocated::OPENPMIX, prefix));
    }
    env
}
