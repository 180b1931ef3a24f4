//! Variables that wireup itself adds to the ranks' environments.

use std::collections::HashSet;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::plan::directory::NodeDirectories;
use crate::plan::{ALLOCATION, HostPlan, LAUNCH, node_grant};
use crate::start_ranks::PMI_FD;
use wireup_core::job::hosts::compress;
use wireup_core::job::ids::{AppNum, JobIndex, NodeId, Rank};
use wireup_core::job::trace_context::TRACEPARENT;
use wireup_core::pmix::sidecar_protocol::ForkEnv;
use wireup_core::pmix::value::Text;
use wireup_sys::leftovers::JOB;

mod bound;
mod mpi_settings;
mod sidecar_variables;
mod slurm_variables;

pub use sidecar_variables::sidecar_variables;

/// Makes `NAME=value` for execve; `None` if the name or the value contains a NUL byte.
pub(crate) fn entry(name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Option<CString> {
    let (name, value) = (name.as_ref().as_bytes(), value.as_ref().as_bytes());
    CString::new([name, b"=", value].concat()).ok()
}

/// Names in parts of an environment, without those that users may set.
pub fn names<'a>(env: impl IntoIterator<Item = &'a CString>) -> HashSet<&'a OsStr> {
    env.into_iter()
        .filter_map(|entry| entry.to_bytes().split(|byte| *byte == b'=').next())
        .map(OsStr::from_bytes)
        .filter(|name| !PLACE.iter().chain(&bound::NAMES).any(|place| name == place))
        .collect()
}

/// Variables of each rank that users may set themselves: ranks under the names of other launchers, for scripts that use
/// these.
const PLACE: [&str; 6] = [
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_NODE_RANK",
];

/// Variable with the provider that libfabric uses.
const PROVIDER: &str = "FI_PROVIDER";

/// Returns the variables of ranks in `variables` that keep the user's values.
pub fn preset_variables(variables: &[(OsString, OsString)]) -> Vec<&'static str> {
    let is_set = |name: &&str| variables.iter().any(|(known, _)| known == name);
    PLACE.into_iter().chain([PROVIDER]).filter(is_set).collect()
}

/// Variables of all ranks of a job.
pub fn job_variables(plan: &HostPlan) -> Vec<CString> {
    let job = plan.job.nspace.as_str();
    let size = plan.job.process_map.size().to_string();
    let mut env = Vec::new();
    let mut add = |name: &str, value: &dyn AsRef<OsStr>| env.extend(entry(name, value.as_ref()));
    add(JOB, &plan.launch.nspace.as_str());
    add("WIREUP_SIZE", &size);
    add("WIREUP_NPROCS", &size);
    add("WIREUP_UNIVERSE_SIZE", &plan.job.universe_size.to_string());
    let nodes = plan.present_names();
    add("WIREUP_NNODES", &nodes.len().to_string());
    add("WIREUP_NODELIST", &node_list(&nodes));
    add(LAUNCH, &plan.names.launch);
    if let Some(allocation) = &plan.names.allocation {
        add(ALLOCATION, allocation);
    }
    if plan.offer.pmi {
        add("PMI_SIZE", &size);
        add("PMI_JOBID", &job);
        add("PMI_FD", &PMI_FD.to_string());
        let is_spawned = u8::from(plan.job.requester.parent().is_some());
        add("PMI_SPAWNED", &is_spawned.to_string());
    }
    if plan.offer.pmix {
        // Without a variable of a known launcher, Open MPI 4.1 starts as an MPI singleton. This one
        // means "started directly, do not bind", which is true. Source: docs/pmix-server.md#open-mpi-4.
        add("JSM_JSRUN_PORT", &"wireup");
    }
    if plan.spec.interface.slurm_env {
        env.extend(entries(slurm_variables::job_variables(plan)));
    }
    env
}

/// Variable with a directory for the files of a rank, which is removed with the launch.
pub fn tmpdir(path: &Path) -> Option<CString> {
    entry("WIREUP_TMPDIR", path)
}

/// Variable that distinguishes ranks of a spawned job from those of the initial job, whose name they
/// have too.
pub const SPAWNED_JOB: &str = "WIREUP_SPAWNED_JOB";

/// Variable with the index of a spawned job; `None` for the initial job.
pub fn spawned_variable(job: JobIndex) -> Option<CString> {
    let number = (!job.is_initial()).then(|| job.to_string());
    number.and_then(|number| entry(SPAWNED_JOB, number))
}

/// Makes `NAME=value` of variables, without those that contain a NUL byte.
fn entries(set: Vec<(&str, String)>) -> impl Iterator<Item = CString> {
    set.into_iter()
        .filter_map(|(name, value)| entry(name, value))
}

/// Length in bytes beyond which a list of names is compressed, well below the maximum length of a variable.
/// Source: `MAX_ARG_STRLEN`, execve(2).
const NODE_LIST_MAX: usize = 64 * 1024;

/// List of names separated by commas; compressed if it is too long.
fn node_list(names: &[&str]) -> String {
    let length: usize = names.iter().map(|name| name.len() + 1).sum();
    match length > NODE_LIST_MAX {
        true => compress(names),
        false => names.join(","),
    }
}

/// Variable of an app that wireup sets even if the user has.
const APPNUM: &str = "WIREUP_APPNUM";

/// Variables of all ranks of an application context: the user's without those in `own`,
/// which wireup sets itself (of two variables with one name most programs read the first, some the last), and
/// settings that the user has not made.
pub fn app_variables(plan: &HostPlan, app: AppNum, own: &HashSet<&OsStr>) -> Vec<CString> {
    let variables = &plan.apps[app.index()].env;
    let mut env: Vec<CString> = variables
        .iter()
        .filter(|(name, _)| name != APPNUM && !own.contains(name.as_os_str()))
        .filter_map(|(name, value)| entry(name, value))
        .collect();
    env.extend(entry(APPNUM, app.to_string()));
    let open = |name: &str| {
        !variables
            .iter()
            .any(|(variable, _)| mpi_settings::is_decided_by(name, variable))
    };
    let sizes = || plan.apps.iter().map(|app| app.size);
    let firsts = sizes().scan(0, |first, size| {
        Some(std::mem::replace(first, *first + size))
    });
    let size = plan.job.process_map.size().to_string();
    // Not OMPI_UNIVERSE_SIZE: with it, Open MPI 4's mpirun refuses to run inside a rank.
    let open_mpi = [
        ("OMPI_COMM_WORLD_SIZE", size),
        ("OMPI_NUM_APP_CTX", plan.apps.len().to_string()),
        ("OMPI_APP_CTX_NUM_PROCS", words(sizes())),
        ("OMPI_FIRST_RANKS", words(firsts)),
    ];
    let settings = mpi_settings::job_settings(plan);
    let settings = settings.iter().map(|(name, value)| (*name, *value));
    env.extend(
        open_mpi
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .chain(settings)
            .filter(|(name, _)| open(name))
            .filter_map(|(name, value)| entry(name, value)),
    );
    env
}

/// Settings of MPI libraries that wireup chooses for at least one program, because the user has not.
pub fn choices(plan: &HostPlan) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
    mpi_settings::job_settings(plan)
        .into_iter()
        .filter(|(name, _)| {
            plan.apps.iter().any(|app| {
                let decides = |(variable, _): &(OsString, OsString)| {
                    mpi_settings::is_decided_by(name, variable)
                };
                !app.env.iter().any(decides)
            })
        })
}

/// List of numbers separated by blanks.
fn words(numbers: impl Iterator<Item = u32>) -> String {
    let words: Vec<String> = numbers.map(|number| number.to_string()).collect();
    words.join(" ")
}

/// Variables of the ranks of one node. With PMIx they include the sidecar's, and directories for shared memory if virtual nodes
/// have no host names of their own (`own_name`).
pub fn node_variables(
    plan: &HostPlan,
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
    let number = node.to_string();
    env.extend(entry("WIREUP_NODE", &number));
    env.extend(entry("WIREUP_NODE_RANK", &number));
    env.extend(entry("WIREUP_HOST", &plan.node_names[node.index()]));
    if let Some(machine) = &plan.single_host
        && plan.job.process_map.nodes() > 1
    {
        // The names of virtual nodes are not resolvable outside the launch.
        env.extend(entry("WIREUP_MACHINE", machine));
    }
    let local = plan.job.process_map.local_size(node).to_string();
    env.extend(entry("WIREUP_LOCAL_SIZE", local));
    for set in &node_grant::fabric_variables(plan, node) {
        env.extend(CString::new(node_grant::entry(set)).ok());
    }
    if plan.spec.interface.slurm_env {
        env.extend(entries(slurm_variables::node_variables(plan, node)));
    }
    if let Some(directories) = directories
        && plan.job.process_map.nodes() > 1
        && !own_name
    {
        // The host name in the names of Open MPI's files is the same for two virtual nodes, which would share them.
        for transport in ["vader", "sm"] {
            let variable = format!("OMPI_MCA_btl_{transport}_backing_directory");
            env.extend(entry(variable, &directories.shared));
        }
    }
    env
}

/// Variables of one rank alone.
pub fn rank_variables(
    plan: &HostPlan,
    job: JobIndex,
    rank: Rank,
    fork_env: Option<&ForkEnv>,
) -> Vec<CString> {
    let ranks = &plan.job.process_map;
    let number = rank.to_string();
    let local = ranks.local_rank(rank).unwrap_or_default().to_string();
    let node = ranks.node_of(rank).unwrap_or_default();
    let local_size = ranks.local_size(node).to_string();
    let own = fork_env.and_then(|env| env.clients.iter().find(|(client, _)| *client == rank));
    let mut env: Vec<CString> = own
        .into_iter()
        .flat_map(|(_, variables)| variables)
        .filter_map(text_entry)
        .collect();
    env.extend(entry("WIREUP_RANK", &number));
    env.extend(entry("WIREUP_LOCAL_RANK", &local));
    if let Some(context) = &plan.spec.status.spans {
        let parent = context.traceparent(job, rank);
        env.extend(entry(TRACEPARENT, parent.to_string()));
    }
    if plan.offer.pmi {
        env.extend(entry("PMI_RANK", &number));
    }
    if plan.spec.interface.slurm_env {
        env.extend(entries(slurm_variables::rank_variables(plan, rank)));
    }
    if let Some(world) = &plan.spec.impi {
        for (name, value) in world.rank_values(rank) {
            env.extend(entry(name, value.to_string()));
        }
    }
    env.extend(entries(bound::binding_variables(plan, rank)));
    let before = plan.earlier_processes(Some(node));
    let on_node = before + ranks.local_rank(rank).unwrap_or_default().0;
    let on_node = on_node.to_string();
    let place = [&local, &local_size, &number, &local, &local_size, &on_node];
    let preset_vars = &plan.apps[plan.app_of(rank)].preset_rank_vars;
    for (name, value) in PLACE.into_iter().zip(place) {
        if !preset_vars.contains(&name) {
            env.extend(entry(name, value));
        }
    }
    if plan.fabric_grant.is_some() && !preset_vars.contains(&PROVIDER) {
        env.extend(entry(PROVIDER, "cxi"));
    }
    env
}

fn text_entry((name, value): &(Text, Text)) -> Option<CString> {
    entry(
        OsStr::from_bytes(name.as_bytes()),
        OsStr::from_bytes(value.as_bytes()),
    )
}
