//! Lines about failures: each names the failed thing and the remedy.

use std::path::Path;

use rustix::io::Errno;

use crate::plan::HostPlan;
use crate::plan::planned_jobs::{Jobs, Plans};
use crate::report::late_fence::{self, PidOf};
use crate::report::process_names::{pid_text, with_more};
use crate::start_ranks::RankStartError;
use wireup_core::job::ids::{GlobalRank, Rank};
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::{
    EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_WIREUP, FailureCause, PmiState, RankEnd, signal_name,
};
use wireup_core::job::shortage;
use wireup_core::wording::counted;
use wireup_sys::spawn::{SpawnError, SpawnStage};

mod node_failures;

/// Ranks that had not exited: their number, and the first of them with the state of their PMI or PMIx
/// connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemainingRanks {
    pub(crate) count: usize,
    pub(crate) named: Vec<(KnownRank, PmiState)>,
}

pub use node_failures::by_node;

/// Returns the failure cause of a job of which a rank could not be started.
pub fn start_failure(
    plan: &HostPlan,
    process: GlobalRank,
    rank: Rank,
    error: RankStartError,
) -> FailureCause {
    let app = &plan.apps[plan.app_of(rank)];
    let wrapper = app.wrapper.as_ref().filter(|wrapper| wrapper.wraps(rank));
    let program = wrapper.map_or(&app.program, |wrapper| &wrapper.program);
    let program = program.path().display();
    let code = match error {
        RankStartError::Spawn(SpawnStage::Exec, Errno::NOENT) => EXIT_NOT_FOUND,
        RankStartError::Spawn(SpawnStage::Exec, _) => EXIT_NOT_EXECUTABLE,
        _ => EXIT_WIREUP,
    };
    let error = match error {
        RankStartError::Skipped => "the job had failed before".to_owned(),
        RankStartError::Descriptors(errno) => out_of_descriptors(errno),
        RankStartError::Spawn(SpawnStage::Exec, Errno::NOENT) => {
            format!("{program} cannot be executed: it or its interpreter is gone")
        }
        RankStartError::Spawn(SpawnStage::Exec, Errno::TOOBIG) => {
            format!("{program} cannot be executed: arguments and environment are too long")
        }
        RankStartError::Spawn(SpawnStage::Exec, errno) => {
            format!("{program} cannot be executed: {errno}")
        }
        RankStartError::Spawn(SpawnStage::Clone, Errno::AGAIN) => NO_PROCESSES.to_owned(),
        RankStartError::Spawn(SpawnStage::Clone, Errno::MFILE | Errno::NFILE) => {
            out_of_descriptors(Errno::MFILE)
        }
        RankStartError::Spawn(SpawnStage::Directory, errno) => {
            let wdir = app.cwd.as_deref().unwrap_or_else(|| Path::new(""));
            let wdir = wdir.display();
            format!("cannot enter the working directory {wdir}: {errno}")
        }
        RankStartError::Spawn(SpawnStage::Binding, errno) => format!(
            "cannot be bound to its CPUs: {errno}; they have been taken from this host's control group or switched off since the start"
        ),
        RankStartError::Spawn(SpawnStage::Memory, errno) => format!(
            "cannot be given memory of these NUMA nodes (--mem-bind): {errno}; the control group may exclude them, or the kernel has no NUMA"
        ),
        RankStartError::Spawn(SpawnStage::Stop, errno) => format!(
            "cannot be stopped before main: {errno}; the system or the container does not permit ptrace(2)"
        ),
        RankStartError::Spawn(step, errno) => {
            format!("preparing the process failed ({step:?}): {errno}")
        }
    };
    FailureCause::NotStarted {
        rank: process,
        error,
        code,
    }
}

const NO_PROCESSES: &str = "no more processes are allowed; raise the limit (ulimit -u, or the pids \
                            limit of the cgroup) or start fewer ranks";

/// Reason why a sidecar could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SidecarStartError {
    #[error(
        "{program} cannot be executed: {errno}; name the wireup-pmix-host of this wireup with --libpmix host="
    )]
    Exec { program: String, errno: Errno },
    #[error("{NO_PROCESSES}")]
    NoProcesses,
    #[error(
        "no more descriptors ({0}); a rank needs four, raise the hard limit (ulimit -Hn) or start fewer ranks"
    )]
    NoDescriptors(Errno),
    #[error("preparing the PMIx server's process failed ({:?}): {}", .0.step, .0.errno)]
    Prepare(SpawnError),
}

impl SidecarStartError {
    /// Returns the reason why `program` was not started.
    pub fn new(program: &Path, error: SpawnError) -> Self {
        match (error.step, error.errno) {
            (SpawnStage::Exec, errno) => Self::Exec {
                program: program.display().to_string(),
                errno,
            },
            (SpawnStage::Clone, Errno::AGAIN) => Self::NoProcesses,
            (SpawnStage::Clone, errno @ (Errno::MFILE | Errno::NFILE))
            | (SpawnStage::Descriptors, errno) => Self::NoDescriptors(errno),
            _ => Self::Prepare(error),
        }
    }
}

fn out_of_descriptors(errno: Errno) -> String {
    SidecarStartError::NoDescriptors(errno).to_string()
}

/// Describes the exit of a sidecar that nothing ordered, with the last line that it `printed` and a remedy. `greeted` is
/// whether it had sent its first message.
pub fn sidecar_end(end: RankEnd, greeted: bool, printed: &[u8]) -> String {
    let mut text = format!("its process {}", words(end));
    let printed = String::from_utf8_lossy(printed);
    if let Some(last) = printed.lines().rfind(|line| !line.trim().is_empty()) {
        text.push_str("; its last words: ");
        text.extend(plain(last).take(LAST_WORDS_MAX));
    }
    text.push_str(match end {
        RankEnd::Code(_) if !greeted => {
            "; name the wireup-pmix-host of this wireup (--libpmix host=), or another libpmix \
             (--libpmix)"
        }
        RankEnd::Signal(libc::SIGKILL) => {
            "; if that was not a user, look for the out-of-memory killer in the kernel's log"
        }
        RankEnd::Signal(libc::SIGTERM | libc::SIGINT | libc::SIGHUP) => "",
        RankEnd::Signal(libc::SIGXFSZ) => shortage::LARGER_FILES,
        _ => "; try another libpmix (--libpmix)",
    });
    text
}

/// Returns the warning about a sidecar that was lost after its ranks had finished, or that they had never used. The job has
/// not failed.
pub fn sidecar_lost_late(name: &str, error: &str) -> String {
    let error: String = plain(error).collect();
    format!("warning: the PMIx server of {name} failed when no rank needed it: {error}")
}

/// Maximum number of characters from a line that a sidecar printed.
const LAST_WORDS_MAX: usize = 200;

/// Replaces control characters in a foreign text, for one of wireup's lines.
fn plain(text: &str) -> impl Iterator<Item = char> {
    let printable = |c: char| if c.is_control() { ' ' } else { c };
    text.trim().chars().map(printable)
}

fn words(end: RankEnd) -> String {
    match end {
        RankEnd::Code(_) => end.to_string(),
        RankEnd::Signal(_) => format!("was {end}"),
    }
}

/// Describes the progress of a rank in terms of its program.
fn stage(state: &PmiState) -> &'static str {
    let waits = ["in barrier", "in fence", "in a ring"];
    match (state.contacted, state.active) {
        (false, _) => "before MPI_Init",
        (true, true) if waits.iter().any(|wait| state.last_activity.contains(wait)) => {
            "waiting for other ranks"
        }
        (true, true) => "after MPI_Init",
        (true, false) if state.last_activity.contains("finalized") => "after MPI_Finalize",
        // The PMIx client of an exited process is no longer active.
        (true, false) if state.last_activity.contains("connected") => "after MPI_Init",
        (true, false) => "in MPI_Init",
    }
}

/// Describes the ranks that had not exited when the end of the job began, as the end of the line about it.
pub(crate) fn unended(
    jobs: &Jobs,
    unended: &RemainingRanks,
    failed_action: &str,
    pid_of: PidOf<'_>,
) -> String {
    if unended.count == 0 {
        return String::new();
    }
    let named = unended
        .named
        .iter()
        .map(|(rank, state)| {
            let host = jobs.host_of(*rank);
            let pid = pid_text(pid_of(*rank));
            format!("{rank} ({host}{pid}, {})", stage(state))
        })
        .collect();
    let named = with_more(named, unended.count);
    let ranks = counted(unended.count, "rank");
    format!("; {ranks} {failed_action}: {named}")
}

/// Describes the core dump of a rank and its stack; `frames` start with the outermost. Both may come from another host.
pub fn dump(text: &str, frames: &[String]) -> String {
    const MOST: usize = 8;
    let known = frames.iter().any(|frame| !frame.starts_with("??"));
    let frames = frames.iter().rev().take(MOST).filter(|_| known);
    let frames: Vec<String> = frames.map(|frame| plain(frame).collect()).collect();
    let mut line: String = plain(text).collect();
    if !frames.is_empty() {
        line.extend(["; it was in ", &frames.join(" < ")]);
    }
    line
}

/// Returns the line about a failed job; `None` if the exit code is enough.
pub fn failure(
    jobs: &Jobs,
    cause: &FailureCause,
    state: Option<&PmiState>,
    pid_of: PidOf<'_>,
) -> Option<String> {
    let rank = |rank: GlobalRank| {
        let Some(known) = jobs.look_up(rank) else {
            return format!("process {rank}");
        };
        let (plan, local) = jobs.plan_of(known);
        let program = plan.apps[plan.app_of(local)].program.path().display();
        let pid = pid_text(pid_of(known));
        format!("{known} ({program}, host {}{pid})", jobs.host_of(known))
    };
    let offer = &jobs.first().offer;
    let served = offer.pmi || offer.pmix;
    // The last protocol request is useful only to readers who know the protocol.
    let last = match state {
        Some(state)
            if jobs.first().spec.verbose > 0
                || state.last_activity.contains("broke the protocol") =>
        {
            format!("; {}", state.last_activity)
        }
        _ => String::new(),
    };
    let stage = match state {
        Some(state) if served => format!(" {}{last}", stage(state)),
        _ => String::new(),
    };
    Some(match cause {
        FailureCause::RankFailed { rank: failed, end } => {
            format!("{} {}{stage}", rank(*failed), words(*end))
        }
        FailureCause::NotFinalized { rank: failed } => format!(
            "{} exited with code 0 between MPI_Init and MPI_Finalize{last}",
            rank(*failed)
        ),
        FailureCause::NeverJoined { rank: failed } => format!(
            "{} exited without joining the job while other ranks wait for it in MPI_Init; start \
             it as a job of its own if it is not an MPI program",
            rank(*failed)
        ),
        FailureCause::ExitedEarly { rank: failed } => format!(
            "{} left the job while other ranks wait for it{last}",
            rank(*failed)
        ),
        FailureCause::Singleton { rank: alone, why } => {
            format!("{} never contacted PMI: {why} (--strict-pmi)", rank(*alone))
        }
        FailureCause::Aborted {
            rank: aborted,
            code,
            message,
        } => {
            let message: String = plain(message).collect();
            // The texts of MPICH and Open MPI if the program gave none.
            let text = if matches!(message.as_str(), "" | "abort" | "N/A") {
                String::new()
            } else {
                format!(": {message}")
            };
            format!("{} called MPI_Abort with code {code}{text}", rank(*aborted))
        }
        FailureCause::TerminatedBy { rank: by, signal } => format!(
            "{} had the job ended by signal {signal} through PMIx",
            by.map_or_else(|| "a tool".to_owned(), rank)
        ),
        FailureCause::Misbehaved {
            rank: failed,
            error,
        } => {
            format!("{} broke its protocol: {error}", rank(*failed))
        }
        FailureCause::NotStarted {
            rank: failed,
            error,
            ..
        } => {
            let name = jobs
                .look_up(*failed)
                .map_or_else(|| format!("process {failed}"), |known| known.to_string());
            format!("{name} was not started: {error}")
        }
        FailureCause::SidecarFailed { node, error } => {
            let name = jobs.first().node_name(*node);
            let error: String = plain(error).collect();
            format!("the PMIx server of {name} failed: {error}")
        }
        FailureCause::NodeFailed { node, error } => {
            let name = jobs.first().node_name(*node);
            let error: String = plain(error).collect();
            format!("host {name}: {error}")
        }
        FailureCause::LauncherIsolated { error } => plain(error).collect(),
        FailureCause::FenceFailed { error } => error.clone(),
        FailureCause::FenceTimeout(late) => late_fence::timeout(jobs, late, pid_of),
        FailureCause::Timeout(time) => {
            format!("the job did not end within {} s", time.as_secs_f64())
        }
        FailureCause::Interrupted(signal) if *signal == libc::SIGINT => "interrupted".to_owned(),
        FailureCause::Interrupted(signal) => match signal_name(*signal) {
            Some(name) => format!("ended by {name}"),
            None => format!("ended by signal {signal}"),
        },
        FailureCause::OutputLost { pipe: true, .. } => return None,
        FailureCause::OutputLost { error, .. } => error.clone(),
    })
}
