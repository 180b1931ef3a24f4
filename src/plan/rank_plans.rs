//! Converts the plan into commands for the starting threads and the sidecars.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::plan::directory::NodeDirectories;
use crate::plan::{HostPlan, rank_env};
use crate::start_ranks::{AppExec, ExecSpec};
use wireup_core::failure::CommandError;
use wireup_core::job::ids::{AppNum, NodeId, Nspace, Rank};
use wireup_core::job::rank_set::RankChoice;
use wireup_core::job::spec::MemBind;
use wireup_core::node::HEAD;
use wireup_core::pmix::job_info::{self, PmixJobInfo};
use wireup_core::pmix::keys;
use wireup_core::pmix::sidecar_protocol::{ClientRegistration, Init, SidecarCommand};
use wireup_core::pmix::value::{Array, Info, PmixProc, PmixRank, Text, Value};
use wireup_core::topology::{CpuSet, ObjectType};

/// Arguments of execve and settings of all ranks of an application context. `nofile` is the limit of descriptors to restore.
pub(crate) fn app_exec(
    plan: &HostPlan,
    number: AppNum,
    own_names: &HashSet<&OsStr>,
    nofile: libc::rlimit,
) -> Result<AppExec, CommandError> {
    let app = &plan.apps[number.index()];
    let argv = app.program.argv(app.args.iter().cloned());
    let invalid = || {
        CommandError::system(
            "cannot execute the program",
            "an argument contains a NUL byte",
        )
    };
    let argv = argv.ok_or_else(invalid)?;
    let cwd = app
        .cwd
        .as_ref()
        .map(|dir| CString::new(dir.as_os_str().as_bytes()));
    let code = libc::RLIMIT_NOFILE as i32;
    let mut settings = app.settings.clone();
    if !settings.limits.iter().any(|(known, _)| *known == code) {
        settings.limits.push((code, nofile));
    }
    Ok(AppExec {
        executed: ExecSpec {
            program: app.program.exec_path(),
            argv,
        },
        env: rank_env::app_variables(plan, number, own_names),
        cwd: cwd
            .transpose()
            .map_err(|error| CommandError::system("--wdir", error))?,
        settings,
    })
}

/// Command that a rank executes in place of its program, if it runs under a wrapper.
pub(crate) fn wrapper(plan: &HostPlan, rank: Rank) -> Option<ExecSpec> {
    let app = &plan.apps[plan.app_of(rank)];
    let wrapper = app.wrapper.as_ref().filter(|wrapper| wrapper.wraps(rank))?;
    let argv = wrapper.argv(&plan.fields(rank), &app.program, &app.args);
    Some(ExecSpec {
        program: wrapper.program.exec_path(),
        argv: argv.expect("patterns were checked, and arguments of a process have no NUL byte"),
    })
}

/// CPUs to which a rank is bound, 64 in each word; empty if it is not bound.
pub(crate) fn cpus(plan: &HostPlan, rank: Rank) -> Vec<u64> {
    let bound = plan
        .binding
        .as_ref()
        .and_then(|binding| binding.cpus_of(rank));
    bound.map_or_else(Vec::new, |cpus| cpus.words().to_vec())
}

/// CPUs of the bound ranks of a node in the form of PMIx. Rule: without the prefix `hwloc:`, because Open MPI passes the text
/// to hwloc unchanged.
fn cpusets(plan: &HostPlan, node: NodeId) -> BTreeMap<Rank, Text> {
    let Some(binding) = &plan.binding else {
        return BTreeMap::new();
    };
    let ranks = plan.job.process_map.ranks_on(node);
    let bound = ranks.filter_map(|rank| Some((rank, binding.cpus_of(rank)?)));
    bound
        .map(|(rank, cpus)| (rank, Text::new(cpus.to_string().into_bytes())))
        .collect()
}

/// Memory policy of a rank and the NUMA nodes of the policy, 64 in each word; `None` without a policy.
pub(crate) fn memory(plan: &HostPlan, rank: Rank) -> Option<(i32, Vec<u64>)> {
    let binding = plan.binding.as_ref()?;
    let (how, nodes) = binding.memory_of(rank)?;
    let policy = match how {
        MemBind::None => return None,
        MemBind::Local => libc::MPOL_BIND,
        MemBind::Prefer => libc::MPOL_PREFERRED,
        MemBind::Interleave => libc::MPOL_INTERLEAVE,
    };
    let parts = binding.topology.parts(ObjectType::Numa);
    let nodes = nodes.into_iter().map(|number| &parts[number as usize]);
    let nodes: CpuSet = nodes.filter_map(|node| node.os_index).collect();
    Some((policy, nodes.words().to_vec()))
}

/// Nspace and rank of a node's PMIx server.
pub(crate) fn server_name(plan: &HostPlan, node: NodeId) -> (Nspace, Rank) {
    let name = format!("{}-host", plan.job.nspace);
    let own = Nspace::new(&name).expect("an nspace with a short ASCII suffix");
    (own, Rank(node.0))
}

/// First commands for a node's sidecar.
pub(crate) fn host_requests(
    plan: &HostPlan,
    node: NodeId,
    directories: &NodeDirectories,
) -> Result<[SidecarCommand; 2], CommandError> {
    // The tool of an indirect launch has given the head node's server its name.
    let director = plan.spec.debug.director.as_ref();
    let server = director.and_then(|tool| tool.server.clone());
    let (nspace, rank) = server
        .filter(|_| node == HEAD)
        .unwrap_or_else(|| server_name(plan, node));
    let init = Init {
        nspace,
        rank,
        hostname: plan.node_names[node.index()].as_str().into(),
        tmpdir: text(&directories.server),
    };
    let register = register_request(plan, node, &[], directories)?;
    Ok([SidecarCommand::Init(init), register])
}

/// Infos of a job's registration about debuggers: stop points and debugged processes.
fn for_debuggers(plan: &HostPlan) -> Vec<Info> {
    let debug = &plan.job.debug;
    let mut infos = Vec::new();
    if debug.in_init.is_some() {
        // Clients up to 5.0 ignore which ranks are named, so all wait, and the nodes release those that need not.
        let all = Value::Rank(PmixRank::WILDCARD);
        infos.push(Info::new(keys::DEBUG_STOP_IN_INIT, all));
    }
    let in_app = debug.in_app.as_ref().and_then(|choice| match choice {
        RankChoice::All => Some(Value::Rank(PmixRank::WILDCARD)),
        RankChoice::Only(ranks) => {
            let all = (0..plan.job.process_map.size()).map(Rank);
            let named = all.filter(|rank| ranks.contains(*rank));
            let procs = named.map(|rank| Value::Proc(PmixProc::new(&plan.job.nspace, rank)));
            let mut procs: Vec<Value> = procs.collect();
            match procs.len() {
                1 => match procs.pop() {
                    Some(Value::Proc(proc)) => Some(Value::Rank(proc.rank)),
                    other => other,
                },
                _ => Array::new(procs).map(Value::Array),
            }
        }
    });
    infos.extend(in_app.map(|value| Info::new(keys::DEBUG_STOP_IN_APP, value)));
    if let Some((nspace, rank)) = &debug.target {
        let target = PmixProc::new(nspace, PmixRank(rank.to_pmix()));
        infos.push(Info::new(keys::DEBUG_TARGET, Value::Proc(target)));
        infos.push(Info::new(keys::DEBUG_JOB, Value::String(nspace.into())));
    }
    infos
}

fn text(path: &Path) -> Text {
    Text::new(path.as_os_str().as_bytes())
}

/// Makes the command that registers a job with a node's sidecar. `other_procs` are the processes of other jobs on the node.
///
/// # Errors
/// [`CommandError`] for a job that PMIx cannot describe.
pub(crate) fn register_request(
    plan: &HostPlan,
    node: NodeId,
    other_procs: &[PmixProc],
    directories: &NodeDirectories,
) -> Result<SidecarCommand, CommandError> {
    let (uid, gid) = (
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    let cwd = &plan.inheritance.cwd;
    let apps: Vec<job_info::PmixAppInfo> = plan
        .apps
        .iter()
        .map(|app| job_info::PmixAppInfo {
            size: app.size,
            argv: std::iter::once(app.program.path().as_os_str())
                .chain(app.args.iter().map(|arg| arg.as_os_str()))
                .map(|arg| Text::new(arg.as_bytes()))
                .collect(),
            wdir: text(app.cwd.as_deref().unwrap_or(cwd)),
        })
        .collect();
    let info = PmixJobInfo {
        nspace: &plan.job.nspace,
        ranks: &plan.job.process_map,
        node_names: &plan.node_names,
        node,
        apps: &apps,
        universe_size: plan.job.universe_size,
        parent: plan.job.requester.spawner(),
        offset: plan.job.first_global_rank,
        before: plan
            .origin
            .as_ref()
            .map_or(&[], |origin| &origin.earlier_processes),
        other_job_procs: other_procs,
        cpusets: &cpusets(plan, node),
        tmpdir: &text(&directories.session),
        nsdir: &text(&directories.nspace),
        uid,
        gid,
    };
    let mut infos = info
        .infos()
        .map_err(|error| CommandError::system("cannot describe the job to PMIx", error))?;
    infos.extend(for_debuggers(plan));
    let allocation = plan.names.allocation.iter();
    let allocation = allocation.map(|id| Value::String(Text::new(id.as_bytes())));
    infos.extend(allocation.map(|id| Info::new(keys::ALLOC_ID, id)));
    let world = plan.spec.impi.iter();
    let pairs = world.flat_map(|world| world.pairs(usize::MAX));
    infos.extend(pairs.map(|(key, value)| Info::new(key, Value::String(value.into()))));
    let clients = plan
        .job
        .process_map
        .ranks_on(node)
        .map(|rank| ClientRegistration { rank, uid, gid })
        .collect();
    Ok(SidecarCommand::RegisterJob {
        nspace: plan.job.nspace.clone(),
        infos,
        clients,
    })
}
