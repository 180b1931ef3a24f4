//! Core dumps of ranks, and the MPI library that their processes have loaded.

use std::path::PathBuf;

use super::raw;
use super::step_context::StepContext;
use crate::inspect::core_file;
use crate::plan::planned_jobs::Plans as _;
use crate::report::running_ranks;
use crate::report::singleton_detection::MpiProcess;
use wireup_core::job::ids::GlobalRank;
use wireup_sys::core_dump::{self, CoreDump, DumpedProcess};

/// Returns the core dump that the kernel made of a killed local rank, and the rank's program.
pub(super) fn dump_of(cx: &StepContext, rank: GlobalRank) -> Option<(CoreDump, PathBuf)> {
    if !cx.scope.holds(cx.jobs.node_of(rank)?) {
        return None;
    }
    let (pid, signal) = cx.slot(rank).dump()?;
    let known = cx.look_up(rank);
    let (plan, local) = cx.jobs.plan_of(known);
    let app = &plan.apps[plan.app_of(local)];
    let directory = app.cwd.as_deref().unwrap_or(&plan.inheritance.cwd);
    let program = app.program.path();
    let dumped = DumpedProcess {
        pid: raw(pid),
        signal,
        program,
        directory,
        host: cx.jobs.host_of(known),
    };
    let found = core_dump::find(&dumped, core_file::program);
    let program = directory.join(&found.program);
    Some((found, program))
}

/// Searches the processes of these ranks for one that has loaded an MPI library.
pub(super) fn find_mpi(cx: &StepContext, ranks: &[GlobalRank]) -> Option<MpiProcess> {
    let pids = ranks.iter().filter_map(|rank| cx.slot(*rank).running_pid());
    pids.map(raw).find_map(running_ranks::find_mpi)
}
