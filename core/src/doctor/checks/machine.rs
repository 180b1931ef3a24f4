//! Memory, processors, the kernel and the directories of one host.

use crate::doctor::facts::{Directory, HostFacts};
use crate::doctor::report::size;
use crate::doctor::{CheckResult, LaunchNeeds};
use crate::wording::{counted, verb_ending};

/// Shared memory of a rank: Open MPI's transport has a segment of this size for each (`btl_vader_segment_size`,
/// `btl_sm_segment_size`), and the others have less.
const SHM: u64 = 32 << 20;
/// Memory of a rank that has initialized its MPI.
const RANK: u64 = 32 << 20;
/// Free space for sockets, staged files and session directories.
const TMP: u64 = 16 << 20;
/// Minimum number of free files in the temporary directory.
const TMP_FILES: u64 = 256;
/// A path of a Unix socket has 107 bytes, of which Open MPI and libpmix use up to this many below the directory.
const TMP_PATH: usize = 107 - 60;
/// Share of processor time from which on the hypervisor slows ranks that wait for each other.
const STEAL: f64 = 0.1;
/// The oldest kernel with all that a launch uses.
const KERNEL: (u32, u32) = (5, 11);

fn setting<'a>(host: &'a HostFacts, name: &str) -> Option<&'a str> {
    host.kernel.settings.get(name).map(String::as_str)
}

pub(super) fn shm(host: &HostFacts, needs: &LaunchNeeds) -> Option<CheckResult> {
    let free = host.shm.free?;
    let ranks = needs.ranks_on(host);
    let required = SHM * ranks;
    (free < required).then_some(())?;
    let text = format!(
        "/dev/shm has {} free of {}; an MPI needs up to {} for {}",
        size(free),
        size(host.shm.size),
        size(required),
        counted(ranks, "rank"),
    );
    match free < required / 2 {
        true => CheckResult::problem(text),
        false => CheckResult::warning(text),
    }
}

pub(super) fn shm_access(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    CheckResult::problem(format!("/dev/shm: {}", host.shm.problem.as_ref()?))
}

pub(super) fn stale_shm(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let left = &host.leftovers;
    (left.files > 0).then_some(())?;
    CheckResult::warning(format!(
        "{} of an MPI in /dev/shm that no process uses, {}",
        files(left.files),
        size(left.file_bytes)
    ))
}

fn files(count: u64) -> String {
    match count {
        1 => "a file".to_owned(),
        _ => format!("{count} files"),
    }
}

pub(super) fn sysv_shm(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let left = &host.leftovers;
    (left.segments > 0).then_some(())?;
    CheckResult::warning(format!(
        "{} of System V that no process has attached, {}",
        counted(left.segments, "segment"),
        size(left.segment_bytes)
    ))
}

pub(super) fn memory(host: &HostFacts, needs: &LaunchNeeds) -> Option<CheckResult> {
    let available = host.memory.available;
    (available > 0).then_some(())?;
    let amount = format!("{} of memory available", size(available));
    too_little_memory(available, &amount, needs.ranks_on(host))
}

pub(super) fn cgroup_memory(host: &HostFacts, needs: &LaunchNeeds) -> Option<CheckResult> {
    let left = host.memory.cgroup?;
    let amount = format!("the cgroup permits {} more memory", size(left));
    too_little_memory(left, &amount, needs.ranks_on(host))
}

/// Checks that ranks have enough of a memory; `amount` is the text about what there is.
fn too_little_memory(bytes: u64, amount: &str, ranks: u64) -> Option<CheckResult> {
    let required = RANK * ranks;
    (bytes < required).then_some(())?;
    CheckResult::problem(format!(
        "{amount}; {} need{} at least {}",
        counted(ranks, "rank"),
        verb_ending(ranks == 1),
        size(required)
    ))
}

pub(super) fn huge_pages(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let memory = &host.memory;
    (memory.huge_pages > 0).then_some(())?;
    if memory.huge_pages_free == 0 {
        return CheckResult::warning(format!("all {} huge pages are in use", memory.huge_pages));
    }
    (!memory.huge_pages_mounted).then_some(())?;
    CheckResult::warning(format!(
        "{} huge pages are reserved, and no hugetlbfs is mounted",
        memory.huge_pages
    ))
}

pub(super) fn overcommit(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    (setting(host, "vm/overcommit_memory")? == "2").then_some(())?;
    CheckResult::warning(
        "the kernel refuses reservations of unused memory, of which MPIs make many (vm.overcommit_memory=2)",
    )
}

pub(super) fn cpus(host: &HostFacts, needs: &LaunchNeeds) -> Option<CheckResult> {
    let cpus = &host.cpus;
    let (usable, ranks) = (u64::from(cpus.usable()), needs.ranks_on(host));
    if ranks > usable {
        return CheckResult::warning(format!(
            "{ranks} ranks on {}: ranks that wait for a message delay the others",
            counted(usable, "processor")
        ));
    }
    (usable < u64::from(cpus.online)).then_some(())?;
    let why = match cpus.quota {
        Some(quota) if quota < cpus.allowed => "the cgroup's quota",
        _ => "the affinity",
    };
    CheckResult::warning(format!(
        "{why} permits {usable} of {} processors",
        cpus.online
    ))
}

/// Checks the load: if it exceeds half of the processors, ranks wait for other work.
pub(super) fn load(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let half = f64::from(host.cpus.online) / 2.0;
    (host.cpus.online > 0 && host.cpus.load > half + 1.0).then_some(())?;
    CheckResult::warning(format!(
        "a load of {:.0} on {} processors",
        host.cpus.load, host.cpus.online
    ))
}

/// Checks the time that the hypervisor gave to others while processors here had work.
pub(super) fn steal(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let share = host.cpus.steal?;
    (share >= STEAL).then_some(())?;
    CheckResult::warning(format!(
        "the hypervisor took {:.0} % of the processor time: ranks that wait for one without a processor wait as long",
        share * 100.0
    ))
}

pub(super) fn governor(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let governor = host.cpus.governor.as_deref()?;
    (governor == "powersave").then_some(())?;
    CheckResult::warning("the frequency governor of the processors is powersave")
}

pub(super) fn numa_balancing(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let on = setting(host, "kernel/numa_balancing")? != "0";
    (on && host.cpus.numa_nodes > 1).then_some(())?;
    CheckResult::warning(format!(
        "the kernel moves memory between {} memory nodes",
        host.cpus.numa_nodes
    ))
}

pub(super) fn kernel(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let mut numbers = host.kernel.release.split(['.', '-']);
    let mut number = || numbers.next()?.parse::<u32>().ok();
    let version = (number()?, number()?);
    (version < KERNEL).then_some(())?;
    CheckResult::problem(format!(
        "Linux {}; wireup needs {}.{}",
        host.kernel.release, KERNEL.0, KERNEL.1
    ))
}

pub(super) fn cma(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let why = host.kernel.no_cma.as_ref()?;
    CheckResult::warning(format!(
        "process_vm_readv: {why}; MPIs copy twice between ranks, and some fail"
    ))
}

pub(super) fn ptrace_scope(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let scope = setting(host, "kernel/yama/ptrace_scope")?;
    // Root's processes are exempt below 3.
    let matters = match scope {
        "0" => false,
        "1" | "2" => host.user.uid != 0,
        _ => true,
    };
    matters.then_some(())?;
    CheckResult::warning(format!(
        "ptrace_scope is {scope}: ranks may not read each other's memory, and gdb may not attach"
    ))
}

pub(super) fn autogroup(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    (setting(host, "kernel/sched_autogroup_enabled")? == "1").then_some(())?;
    CheckResult::warning(
        "the scheduler groups processes by session: nice has no effect between sessions",
    )
}

pub(super) fn hidepid(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    (host.kernel.hides_processes && host.user.uid != 0).then_some(())?;
    CheckResult::warning(
        "/proc hides processes of other users: wireup ps --all-users shows none of them",
    )
}

pub(super) fn container(host: &HostFacts, needs: &LaunchNeeds) -> Option<CheckResult> {
    let runtime = host.kernel.container.as_ref()?;
    let small = host.shm.size > 0 && host.shm.size <= 64 << 20;
    (small && needs.ranks_on(host) > 1).then_some(())?;
    CheckResult::warning(format!(
        "a container of {runtime} with its default of {} for /dev/shm",
        size(host.shm.size)
    ))
}

pub(super) fn synchronized(host: &HostFacts, needs: &LaunchNeeds) -> Option<CheckResult> {
    (needs.hosts > 1 && host.kernel.synchronized == Some(false)).then_some(())?;
    CheckResult::warning(
        "the clock is not synchronized: certificates and times of files can be wrong",
    )
}

fn refused(directory: &Directory, what: &str) -> Option<CheckResult> {
    let problem = directory.problem.as_ref()?;
    CheckResult::problem(format!("{what} {}: {problem}", directory.path))
}

pub(super) fn tmp(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let tmp = &host.tmp;
    if tmp.problem.is_some() {
        return refused(tmp, "the directory for temporary files");
    }
    let free = tmp.free?;
    if free < TMP {
        return CheckResult::problem(format!(
            "{} free in {}; sockets and staged files need {}",
            size(free),
            tmp.path,
            size(TMP)
        ));
    }
    let free = tmp.free_files?;
    (free < TMP_FILES).then_some(())?;
    CheckResult::problem(format!("room for only {free} more files in {}", tmp.path))
}

pub(super) fn tmp_path(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let length = host.tmp.path.len();
    (length > TMP_PATH).then_some(())?;
    CheckResult::warning(format!(
        "the path {} has {length} bytes; with more than {TMP_PATH} the paths of Open MPI's sockets in it are too long",
        host.tmp.path
    ))
}

pub(super) fn no_exec(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    host.tmp.no_exec.then_some(())?;
    CheckResult::warning(format!(
        "programs cannot be executed from {}",
        host.tmp.path
    ))
}

/// Checks the home directory. Some MPIs and most programs keep files there; none needs it to start.
pub(super) fn home(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let problem = host.home.problem.as_ref()?;
    CheckResult::warning(format!("the home directory {}: {problem}", host.home.path))
}

pub(super) fn directory(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    refused(&host.cwd, "the working directory")
}

pub(super) fn left_processes(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let count = host.leftovers.processes;
    (count > 0).then_some(())?;
    let s = if count == 1 { "" } else { "es" };
    CheckResult::warning(format!(
        "{count} process{s} of a job whose launcher has ended"
    ))
}
