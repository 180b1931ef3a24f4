//! Fabric grant of a launch on one node: checks its devices, and makes the variables of its ranks.

use std::path::Path;

use zeroize::Zeroizing;

use super::{HostPlan, JobPlan, Variable};
use wireup_core::fabric::grant::{
    self, FabricDeviceError, FabricGrant, FabricGrantError, Variables, device_number,
};
use wireup_core::failure::{CommandError, RequestError};
use wireup_core::job::ids::NodeId;
use wireup_core::job::spec::{FabricSource, JobSpec};
use wireup_sys::device_files::openable;

/// Directory of the device files.
const DEV: &str = "/dev";

/// Host that cannot use Slingshot.
#[derive(Debug, thiserror::Error)]
enum HostFabricError {
    #[error("--fabric cxi: {0}")]
    Device(#[from] FabricDeviceError),
    /// Neither the launcher nor this host has a fabric grant.
    #[error("--fabric cxi: {0}")]
    None(FabricGrantError),
    #[error("--fabric cxi: cannot open /dev/{name}: {errno}")]
    Refused {
        name: String,
        errno: rustix::io::Errno,
    },
}

impl RequestError for HostFabricError {}

/// Names of this host's fabric devices, ordered by number.
fn devices(dev: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dev).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut numbered: Vec<(u32, String)> = names
        .filter_map(|name| Some((device_number(&name)?, name)))
        .collect();
    numbered.sort();
    numbered.into_iter().map(|(_, name)| name).collect()
}

/// Reads the fabric grant in the environment of this process.
pub(crate) fn grant_from_environment(plan: &HostPlan) -> Result<FabricGrant, FabricGrantError> {
    grant_from_variables(&plan.inheritance.vars)
}

/// Checks that this host has fabric devices and this user may open them.
///
/// # Errors
/// [`CommandError`] otherwise.
pub(crate) fn check_fabric_devices() -> Result<(), CommandError> {
    let names = devices(Path::new(DEV));
    if names.is_empty() {
        return Err(HostFabricError::from(FabricDeviceError::NoDevice).into());
    }
    for name in names {
        if let Err(errno) = openable(&Path::new(DEV).join(&name)) {
            return Err(HostFabricError::Refused { name, errno }.into());
        }
    }
    Ok(())
}

/// Checks that the ranks of this host, if it has any, can use the fabric grant.
///
/// # Errors
/// [`CommandError`]; its text is the same on every host with this problem.
pub(crate) fn check_fabric(plan: &HostPlan) -> Result<(), CommandError> {
    let Some(scope) = plan.scope else {
        return Ok(());
    };
    let node = scope.node_at(0);
    let source = plan.spec.fabric.as_ref().map(|fabric| &fabric.source);
    let lenient = matches!(source, None | Some(FabricSource::Request));
    if lenient || plan.job.process_map.local_size(node) == 0 {
        return Ok(());
    }
    let Some(grant) = &plan.fabric_grant else {
        return Err(HostFabricError::None(FabricGrantError::None).into());
    };
    check_fabric_devices()?;
    let host = &plan.node_names[node.index()];
    let variables = grant.variables(host, &devices(Path::new(DEV)));
    variables.map_err(HostFabricError::from)?;
    Ok(())
}

/// Variables of the fabric grant for the ranks of a node.
pub(crate) fn fabric_variables(plan: &HostPlan, node: NodeId) -> Variables {
    let Some(grant) = &plan.fabric_grant else {
        return Vec::new();
    };
    let host = &plan.node_names[node.index()];
    let variables = grant.variables(host, &devices(Path::new(DEV)));
    // A node that had no ranks was not checked, but processes may be spawned there.
    variables.unwrap_or_else(|_| grant.common())
}

/// Uses the fabric grant in the environment of a node, if it has one: CXI services belong to a host.
pub(crate) fn take_fabric_of_node(job: &mut JobPlan, spec: &JobSpec, own: &[Variable]) {
    let source = spec.fabric.as_ref().map(|fabric| &fabric.source);
    let local = matches!(source, Some(FabricSource::Environment));
    if local
        && grant::is_in(own)
        && let Ok(found) = grant_from_variables(own)
    {
        job.launch_mut().fabric_grant = Some(found.into());
    }
}

fn grant_from_variables(variables: &[Variable]) -> Result<FabricGrant, FabricGrantError> {
    let variables = variables.iter();
    FabricGrant::from_environment(
        variables.map(|(name, value)| (name.as_os_str(), value.as_os_str())),
    )
}

/// Makes `NAME=value` for execve, without other copies of the value in memory.
pub(super) fn entry((name, value): &(&'static str, Zeroizing<String>)) -> Vec<u8> {
    let mut entry = Vec::with_capacity(name.len() + value.len() + 2);
    entry.extend_from_slice(name.as_bytes());
    entry.push(b'=');
    entry.extend_from_slice(value.as_bytes());
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_ordered_by_number() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cxi10", "cxi2", "cxi", "cxi_ss", "null", "cxi0"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(devices(dir.path()), ["cxi0", "cxi2", "cxi10"]);
    }
}
