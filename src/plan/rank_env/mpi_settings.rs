//! Chooses settings of MPI libraries for a job, unless the user has set them. They are hints, not part of a protocol.

use std::ffi::OsStr;
use std::net::IpAddr;

use crate::plan::HostPlan;
use wireup_sys::interfaces;

/// Settings for more ranks than cores: a waiting rank yields its core to one with work.
/// Measured: docs/mpi-settings.md#oversubscription.
///
/// Intel MPI calls `sched_yield` between polls, as it does under its own launcher; MPICH from 5.0 on does so in the loops of its shared-memory
/// collectives.
const YIELD_PMI: [(&str, &str); 2] = [
    ("I_MPI_THREAD_YIELD", "2"),
    ("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1"),
];
/// Settings with which MPICH from 5.0 on sleeps after this number of polls without progress. Between nodes some of
/// its spawns hang with them under every launcher, so only jobs that stay on one node get them.
const THROTTLE: [(&str, &str); 2] = [
    ("MPIR_CVAR_CH4_PROGRESS_THROTTLE", "1"),
    ("MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT", "32"),
];
/// Setting with which Open MPI yields the CPU between polls.
const YIELD_OPEN_MPI: (&str, &str) = ("OMPI_MCA_mpi_yield_when_idle", "1");

/// Chooses the settings for a job.
pub(super) fn job_settings(plan: &HostPlan) -> Vec<(&'static str, &'static str)> {
    let mut settings = Vec::new();
    if plan.oversubscribed && (plan.offer.pmi || plan.offer.pmix) {
        settings.extend(YIELD_PMI);
        if plan.job.process_map.nodes() == 1 && !plan.can_grow() {
            settings.extend(THROTTLE);
        }
    }
    if plan.oversubscribed && plan.offer.pmix {
        settings.push(YIELD_OPEN_MPI);
    }
    if plan.offer.pmix && plan.job.process_map.nodes() > 1 && only_loopback() {
        // Open MPI's TCP transport does not use the loopback by default, and no other interface connects the nodes.
        settings.push(("OMPI_MCA_btl_tcp_if_include", "lo"));
    }
    if plan.offer.pmi && plan.offer.pmix {
        // MPICH 5 fails if both interfaces are offered and this is not set.
        settings.push(("MPIR_CVAR_PMI_VERSION", "1"));
    }
    settings
}

/// Whether a variable of the user makes the setting `name` unnecessary.
pub(super) fn is_decided_by(name: &str, variable: &OsStr) -> bool {
    if variable == name {
        return true;
    }
    match (name, name.strip_prefix("MPIR_CVAR_")) {
        // Open MPI refuses both lists together.
        ("OMPI_MCA_btl_tcp_if_include", _) => variable == "OMPI_MCA_btl_tcp_if_exclude",
        // MPICH reads a setting under these names too.
        (_, Some(rest)) => ["MPIR_PARAM_", "MPICH_"].iter().any(|prefix| {
            let suffix = variable.to_str().and_then(|v| v.strip_prefix(prefix));
            suffix == Some(rest)
        }),
        _ => false,
    }
}

/// Whether no network interface but the loopback is up and has an address that others could reach.
///
/// Reads the kernel's list, because `/sys/class/net` shows the interfaces of the network namespace in which
/// sysfs was mounted, possibly another one.
fn only_loopback() -> bool {
    // After an error the common case is assumed.
    interfaces::addresses().is_ok_and(|addresses| {
        !addresses
            .iter()
            .any(|address| address.up && !address.loopback && !is_link_local(address.ip))
    })
}

/// Whether an address is link-local: every interface that is up has one, even without a connection.
fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_is_decided_by_user_under_any_of_its_names() {
        let by = |name, variable: &str| is_decided_by(name, OsStr::new(variable));
        let heavy = "MPIR_CVAR_ENABLE_HEAVY_YIELD";
        for variable in [
            heavy,
            "MPIR_PARAM_ENABLE_HEAVY_YIELD",
            "MPICH_ENABLE_HEAVY_YIELD",
        ] {
            assert!(by(heavy, variable), "{variable}");
        }
        assert!(!by(heavy, "MPIR_CVAR_ENABLE_HEAVY"));
        assert!(!by("I_MPI_THREAD_YIELD", "MPICH_THREAD_YIELD"));
        let include = "OMPI_MCA_btl_tcp_if_include";
        assert!(by(include, "OMPI_MCA_btl_tcp_if_exclude"));
    }
}
