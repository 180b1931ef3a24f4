//! Resource limits that ranks inherit.

use crate::doctor::facts::{DeviceNodeKind, HostFacts};
use crate::doctor::report::size;
use crate::doctor::{CheckResult, LaunchNeeds};

/// Bytes that libraries of fast networks register before the first message.
const LOCKED: u64 = 64 << 20;
/// Files of a process before it has connections: libraries, pipes, shared memory.
const FILES: u64 = 64;
/// Threads of a rank: its own, and those of its MPI and PMIx libraries.
const THREADS: u64 = 4;
/// Threads that the launch itself has on a host.
const LAUNCH_THREADS: u64 = 16;
/// The least stack with which MPI programs in Fortran were seen to start.
const STACK: u64 = 1 << 20;

pub(super) fn memlock(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let limit = *host.limits.get("memlock")?;
    let fabric = host
        .devices
        .iter()
        .any(|it| it.kind == DeviceNodeKind::Fabric);
    (fabric && limit < LOCKED).then_some(())?;
    CheckResult::problem(format!(
        "only {} may be locked in memory; the fast network needs an unlimited size",
        size(limit)
    ))
}

/// Checks the limit of open files. A rank may have a connection to each other one.
pub(super) fn nofile(host: &HostFacts, needs: &LaunchNeeds) -> Option<CheckResult> {
    let limit = *host.limits.get("nofile")?;
    let required = FILES + needs.ranks_everywhere(host);
    (limit < required).then_some(())?;
    CheckResult::problem(format!("{limit} open files; a rank may need {required}"))
}

pub(super) fn nproc(host: &HostFacts, needs: &LaunchNeeds) -> Option<CheckResult> {
    let limit = *host.limits.get("nproc")?;
    // The kernel does not apply it to root.
    (host.user.uid != 0).then_some(())?;
    let required = LAUNCH_THREADS + THREADS * needs.ranks_on(host);
    (limit < host.kernel.threads + required).then_some(())?;
    CheckResult::problem(format!(
        "{limit} processes and threads of this user, of which {} run; the ranks need about {required} more",
        host.kernel.threads
    ))
}

pub(super) fn cgroup_processes(host: &HostFacts, needs: &LaunchNeeds) -> Option<CheckResult> {
    let left = host.memory.cgroup_processes?;
    let required = LAUNCH_THREADS + THREADS * needs.ranks_on(host);
    (left < required).then_some(())?;
    CheckResult::problem(format!(
        "the cgroup permits {left} more processes and threads; the ranks need about {required}"
    ))
}

pub(super) fn address_space(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let limited = ["as", "data"].map(|name| Some((name, *host.limits.get(name)?)));
    let (name, limit) = limited.into_iter().flatten().next()?;
    let what = match name {
        "as" => "address space",
        _ => "data",
    };
    CheckResult::warning(format!(
        "{} of {what} for each process; MPIs map much memory that they do not use",
        size(limit)
    ))
}

pub(super) fn stack(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let limit = *host.limits.get("stack")?;
    (limit < STACK).then_some(())?;
    CheckResult::problem(format!("a stack of {}", size(limit)))
}

pub(super) fn file_size(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let limit = *host.limits.get("fsize")?;
    CheckResult::problem(format!(
        "files of at most {}; shared memory uses files too",
        size(limit)
    ))
}

pub(super) fn cpu_time(host: &HostFacts, _: &LaunchNeeds) -> Option<CheckResult> {
    let limit = *host.limits.get("cpu")?;
    CheckResult::warning(format!(
        "ranks are killed after {limit} s of processor time, which they also use while they wait"
    ))
}
