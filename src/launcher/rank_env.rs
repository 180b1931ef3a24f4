//! The variables wireup itself adds to the ranks' environments.

use std::collections::HashSet;
use std::ffi::{CString, OsStr, OsString};
use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use super::directory::NodeDirectories;
use super::environment;
use super::plan::Plan;
use super::relocated;
use crate::agent::leftovers::JOB;
use crate::agent::start::PMI_FD;
use crate::job::ids::{NodeId, Rank};
use crate::pmix::control::ForkEnv;
use crate::pmix::value::Text;

/// `NAME=value` for execve; `None` for bytes that no variable can have.
fn entry(name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Option<CString> {
    let (name, value) = (name.as_ref().as_bytes(), value.as_ref().as_bytes());
    CString::new([name, b"=", value].concat()).ok()
}

/// The environment of the sidecars: the launcher's own without what would make libpmix take itself
/// for a rank of an outer job.
///
/// libpmix looks at the machine's topology when it starts, and a part of what hwloc does then tells
/// nothing that ranks use: graphics devices, whose plugins pull in large libraries, a second XML
/// reader, and what cpuid says on each CPU in turn beside what the kernel lists. It is left out
/// unless the user has chosen himself. Measured: docs/shim.md#server.
///
/// `libpmix` is the library it will load.
pub fn of_sidecar(plan: &Plan, libpmix: &Path) -> Vec<CString> {
    const HWLOC: [(&str, &str); 2] = [
        (
            "HWLOC_PLUGINS_BLACKLIST",
            "hwloc_opencl.so,hwloc_gl.so,hwloc_xml_libxml.so",
        ),
        ("HWLOC_COMPONENTS", "-x86"),
    ];
    let base = environment::base(std::env::vars_os(), &[]);
    let given = |name: &str| base.variables.iter().any(|(given, _)| given == name);
    let hwloc = HWLOC.iter().filter(|(name, _)| !given(name));
    let hwloc: Vec<CString> = hwloc
        .filter_map(|(name, value)| entry(name, value))
        .collect();
    let mut env = of_app(&base.variables, &HashSet::new());
    env.extend(entry(JOB, plan.job.nspace.as_str()));
    env.extend(hwloc);
    if !given(relocated::OPENPMIX)
        && let Some(prefix) = relocated::openpmix(libpmix)
    {
        env.extend(entry(relocated::OPENPMIX, prefix));
    }
    env
}

/// The environment of an application context, without the names in `own`, which wireup sets
/// itself: most programs see the first of two equal names, some the last.
pub fn of_app(variables: &[(OsString, OsString)], own: &HashSet<&OsStr>) -> Vec<CString> {
    variables
        .iter()
        .filter(|(name, _)| !own.contains(name.as_os_str()))
        .filter_map(|(name, value)| entry(name, value))
        .collect()
}

/// The names in parts of an environment.
pub fn names<'a>(env: impl IntoIterator<Item = &'a CString>) -> HashSet<&'a OsStr> {
    env.into_iter()
        .filter_map(|entry| entry.to_bytes().split(|byte| *byte == b'=').next())
        .map(OsStr::from_bytes)
        .collect()
}

/// Whether no network interface but the loopback is up and has an address that others could reach.
///
/// Asked of the kernel: `/sys/class/net` shows the interfaces of the network namespace in which
/// sysfs was mounted, which need not be ours.
fn only_loopback() -> bool {
    // Without an answer there is no reason to believe in a special case.
    getifaddrs().is_ok_and(|addresses| {
        !addresses
            .filter(|address| address.flags.contains(InterfaceFlags::IFF_UP))
            .filter(|address| !address.flags.contains(InterfaceFlags::IFF_LOOPBACK))
            .filter_map(|address| address.address)
            .any(|address| {
                let v6 = address.as_sockaddr_in6().map(|v6| v6.ip());
                address.as_sockaddr_in().is_some() || v6.is_some_and(|ip| !is_link_local(ip))
            })
    })
}

/// An address every interface has that is up, also one that leads nowhere.
fn is_link_local(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

/// What all ranks of the job get.
pub fn of_job(plan: &Plan) -> Vec<CString> {
    let size = plan.job.ranks.size().to_string();
    let mut add: Vec<(&str, &str)> = vec![(JOB, plan.job.nspace.as_str()), ("WIREUP_SIZE", &size)];
    if plan.offer.pmi {
        add.push(("PMI_SIZE", &size));
        add.push(("PMI_JOBID", plan.job.nspace.as_str()));
    }
    let given = |name: &str| {
        plan.apps
            .iter()
            .any(|app| app.env.iter().any(|(given, _)| given == name))
    };
    let pmi_fd = PMI_FD.to_string();
    if plan.offer.pmi {
        add.push(("PMI_FD", &pmi_fd));
        if plan.oversubscribed {
            // Intel MPI then gives its core away while it waits; MPICH does so by itself.
            add.push(("I_MPI_THREAD_YIELD", "2"));
        }
    }
    if plan.offer.pmix {
        // Open MPI 4.1 takes itself for a singleton unless some launcher's mark is there; this one
        // means "started directly, do not bind", which holds. Source: docs/shim.md#open-mpi-4.
        add.push(("JSM_JSRUN_PORT", "wireup"));
        if plan.oversubscribed {
            add.push(("OMPI_MCA_mpi_yield_when_idle", "1"));
        }
        // Its TCP transport leaves the loopback out, and then nothing connects the nodes. It
        // refuses to have both lists.
        if plan.job.ranks.nodes() > 1 && !given("OMPI_MCA_btl_tcp_if_exclude") && only_loopback() {
            add.push(("OMPI_MCA_btl_tcp_if_include", "lo"));
        }
    }
    if plan.offer.pmi && plan.offer.pmix {
        // MPICH 5 refuses to choose when both are there.
        add.push(("MPIR_CVAR_PMI_VERSION", "1"));
    }
    add.into_iter()
        .filter(|(name, _)| {
            let setting = |start: &&str| name.starts_with(start);
            !(["OMPI_", "MPIR_", "I_MPI_"].iter().any(setting) && given(name))
        })
        .filter_map(|(name, value)| entry(name, value))
        .collect()
}

/// What the ranks of one node get: the sidecar's common variables, and where shared memory goes
/// when nodes have no names of their own.
pub fn of_node(
    plan: &Plan,
    node: NodeId,
    fork_env: Option<&ForkEnv>,
    directories: Option<&NodeDirectories>,
    own_name: bool,
) -> Vec<CString> {
    let mut env: Vec<CString> = fork_env
        .into_iter()
        .flat_map(|env| &env.common)
        .filter_map(text_entry)
        .collect();
    let name = &plan.node_names[node.index()];
    env.extend(entry("WIREUP_NODE", node.to_string()));
    env.extend(entry(
        "MPI_LOCALNRANKS",
        plan.job.ranks.local_size(node).to_string(),
    ));
    if let Some(directories) = directories
        && plan.job.ranks.nodes() > 1
        && !own_name
    {
        // Open MPI names its files after the host; two virtual nodes would share them.
        for transport in ["vader", "sm"] {
            let variable = format!("OMPI_MCA_btl_{transport}_backing_directory");
            env.extend(entry(variable, &directories.shared));
        }
    }
    env.extend(entry("WIREUP_HOST", name));
    env
}

/// What one rank gets alone.
pub fn of_rank(plan: &Plan, rank: Rank, fork_env: Option<&ForkEnv>) -> Vec<CString> {
    let number = rank.to_string();
    let local = plan
        .job
        .ranks
        .local_rank(rank)
        .map_or_else(String::new, |local| local.to_string());
    let own = fork_env.and_then(|env| env.clients.iter().find(|(client, _)| *client == rank));
    let mut env: Vec<CString> = own
        .into_iter()
        .flat_map(|(_, variables)| variables)
        .filter_map(text_entry)
        .collect();
    env.extend(entry("WIREUP_RANK", &number));
    env.extend(entry("WIREUP_LOCAL_RANK", &local));
    env.extend(entry("MPI_LOCALRANKID", &local));
    if plan.offer.pmi {
        env.extend(entry("PMI_RANK", &number));
    }
    env
}

fn text_entry((name, value): &(Text, Text)) -> Option<CString> {
    entry(
        OsStr::from_bytes(name.as_bytes()),
        OsStr::from_bytes(value.as_bytes()),
    )
}
