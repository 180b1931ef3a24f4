//! Table of the launch's processes for debuggers (the MPIR proctable).

use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::launch_context::LaunchContext;
use crate::backend::step_messages::LauncherToStep;
use crate::control::mpir;
use crate::plan::HostPlan;
use crate::plan::planned_jobs::Plans;
use wireup_core::job::ids::{GlobalRank, JobIndex, Rank};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::rank_set::RankSet;
use wireup_core::node::HEAD;
use wireup_core::node::event::NodeCommand;

/// Updates the proctable when all processes of a job have been started, and gives a debugger that
/// controls the launcher the time to attach.
pub(super) fn show_to_debuggers(cx: &mut LaunchContext, job: JobIndex) {
    let daemons = |job: JobIndex| {
        let job = cx.jobs.get(job);
        job.is_some_and(|plan| plan.job.debug.daemons)
    };
    // A debugger does not debug its own daemons.
    if daemons(job) {
        return;
    }
    let single_host = cx.plan.single_host.as_deref();
    // Debuggers number processes by their position, so processes that do not run have an entry too.
    let all = cx.jobs.all_ranks();
    let processes: Vec<KnownRank> = all.filter(|process| !daemons(process.job())).collect();
    let programs: Vec<Cow<'_, Path>> = processes
        .iter()
        .map(|process| {
            let (plan, rank) = cx.jobs.plan_of(*process);
            executable(plan, rank)
        })
        .collect();
    let processes = processes.iter().zip(&programs).map(|(process, program)| {
        let host = single_host.unwrap_or_else(|| cx.jobs.host_of(*process));
        let pid = cx.ranks.get(*process).pid.unwrap_or(0);
        (host, program.as_os_str().as_bytes(), pid)
    });
    mpir::show(processes);
    mpir::stop_here();
    if job.is_initial() {
        release_stopped(cx);
        if cx.plan.spec.debug.director.is_some() {
            let launched = LauncherToStep::Node(HEAD, NodeCommand::LaunchComplete);
            cx.steps.send(launched);
        }
    }
}

/// Continues the ranks that were stopped for the debugger, and names those that stay stopped.
fn release_stopped(cx: &mut LaunchContext) {
    let debug = &cx.plan.spec.debug;
    let ranks = (0..cx.plan.job.process_map.size()).map(Rank);
    let (stay, go): (Vec<Rank>, Vec<Rank>) = ranks
        .filter(|rank| debug.stops(*rank))
        .partition(|rank| debug.stays_stopped(*rank));
    if !go.is_empty() {
        // In the initial job, ranks and global ranks are equal.
        let ranks = go.into_iter().map(|rank| GlobalRank(rank.0)).collect();
        let signal = libc::SIGCONT;
        cx.steps.send(LauncherToStep::SignalRanks { signal, ranks });
    }
    if let Some(stay) = RankSet::from_ranks(&stay) {
        let pid = std::process::id();
        let text = format!(
            "stopped before main: ranks {stay}; to continue them, use `wireup kill -s CONT {pid}`"
        );
        cx.print_line(&text);
    }
}

/// Returns the absolute path of the program that a rank executes.
pub(super) fn executable(plan: &HostPlan, rank: Rank) -> Cow<'_, Path> {
    let app = &plan.apps[plan.app_of(rank)];
    let wrapper = app.wrapper.as_ref().filter(|wrapper| wrapper.wraps(rank));
    let program = wrapper.map_or(&app.program, |wrapper| &wrapper.program);
    if program.path().is_absolute() {
        return Cow::Borrowed(program.path());
    }
    let cwd = app.cwd.as_deref().unwrap_or(&plan.inheritance.cwd);
    Cow::Owned(cwd.join(program.path()))
}
