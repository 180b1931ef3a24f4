//! State machine of the end of a launch on this host: stops the sidecars, ends remaining processes, drains the pipes and
//! removes the launch's files, while the event loop continues.

use std::time::Duration;

use rustix::process::Signal;

use super::pipes::RankOutputReader;
use super::registered_resources::RegisteredResources;
use super::step_context::StepContext;
use super::{raw, sidecars};
use crate::backend::step_messages::StepToLauncher;
use crate::plan::packed_files::UnpackedFiles;
use crate::stdio::rank_files;
use wireup_core::job::spec::GRACE;
use wireup_core::node::{HEAD, NodeCore};
use wireup_core::queries::JobEnd;
use wireup_sys::procfs::Process;
use wireup_sys::{leftovers, sysv};

/// Time that killed processes have to end before the launch ends without them: a process that the system cannot end, or
/// that now belongs to another user, must not block the launcher forever.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Interval between checks of remaining processes during their time to end.
const LOOK: Duration = Duration::from_millis(20);

/// Time for which the end of the launch waits until tools have the output and the results of jobs.
const TELL_LIMIT: Duration = Duration::from_secs(1);

/// Current phase of the shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ShutdownPhase {
    /// Reads the output for tools from the pipes, and notifies tools of the ends of jobs.
    Telling,
    /// The sidecars were asked to stop; node cores give up a sidecar that does not.
    Stopping,
    Killed,
    /// Reads the rest of the output from the pipes.
    Draining,
    /// Waits for remaining processes, then sends them SIGTERM, then SIGKILL.
    Leftovers,
    /// Reads output that is still in the pipes after all writers have ended.
    LastDraining,
    /// The shutdown is complete.
    Over,
}

/// Next action of the dispatcher for the end of the launch.
pub(super) enum ShutdownOrder {
    /// Wait for the next event or deadline.
    Wait,
    /// Call [`Shutdown::run`] again at once: a phase has ended.
    NextPhase,
    /// Read the pipes that are not paused.
    ReadPipes,
    /// Pass the results of jobs to the node cores.
    ReportEnds(Vec<JobEnd>),
    /// Ask the sidecars to stop, and continue.
    StopSidecars,
}

/// State of the end of a launch on this host.
#[derive(Debug)]
pub(super) struct Shutdown {
    phase: ShutdownPhase,
    /// Start of the current phase.
    started_at: Duration,
    /// Time of the next check, if no event comes before.
    next: Option<Duration>,
    /// Number of the user's interrupts in this phase.
    hurried: u32,
    /// Whether the user interrupted any phase: then the launch does not wait for readers of its output.
    impatient: bool,
    /// Number of the user's interrupts in this phase when leftovers got SIGTERM; a later interrupt kills them.
    terminated: Option<u32>,
    /// Whether the launch has failed.
    abnormal: bool,
    /// Results of jobs that were not passed to tools yet.
    ends: Vec<JobEnd>,
}

impl Shutdown {
    /// Creates the state when all ranks have ended, or are treated as ended. `concerns_tools`: whether tools must be notified;
    /// otherwise the sidecars have been asked to stop.
    pub(super) fn new(
        now: Duration,
        concerns_tools: bool,
        abnormal: bool,
        ends: Vec<JobEnd>,
    ) -> Self {
        let phase = match concerns_tools {
            true => ShutdownPhase::Telling,
            false => ShutdownPhase::Stopping,
        };
        Self {
            phase,
            started_at: now,
            next: Some(now),
            hurried: 0,
            impatient: false,
            terminated: None,
            abnormal,
            ends,
        }
    }

    /// Returns the time at which something is due.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.next
    }

    /// Handles an interrupt of the user, which shortens the current wait.
    pub(super) fn hurry(&mut self) {
        self.hurried += 1;
        self.impatient = true;
    }

    /// Schedules the next check for now: after an event that the shutdown may have waited for, or to read the pipes again.
    pub(super) fn advance(&mut self) {
        self.next = Some(Duration::ZERO);
    }

    fn enter(&mut self, phase: ShutdownPhase, now: Duration) -> ShutdownOrder {
        self.phase = phase;
        self.started_at = now;
        self.next = None;
        self.hurried = 0;
        ShutdownOrder::NextPhase
    }

    /// Continues the shutdown, and returns the next action of the dispatcher. `is_drained`: whether the pipes that are not
    /// paused were read since the last action and were empty.
    pub(super) fn run(
        &mut self,
        cx: &mut StepContext,
        output: &RankOutputReader,
        is_drained: bool,
    ) -> ShutdownOrder {
        let now = cx.now();
        let any_running = sidecars::any_running(cx);
        match self.phase {
            ShutdownPhase::Telling => {
                let late = now >= self.started_at + TELL_LIMIT || self.hurried > 0;
                let any = |is: fn(&NodeCore) -> bool| cx.nodes.iter().any(|node| is(&node.core));
                if !late && !is_drained && any(NodeCore::has_readers) {
                    return ShutdownOrder::ReadPipes;
                }
                if !late && any(NodeCore::must_wait_for_tools) {
                    self.next = Some(now + LOOK);
                } else if !self.ends.is_empty() {
                    (self.started_at, self.next) = (now, Some(now));
                    return ShutdownOrder::ReportEnds(std::mem::take(&mut self.ends));
                } else {
                    // The interrupt also applies to the following phases.
                    self.phase = ShutdownPhase::Stopping;
                    (self.started_at, self.next) = (now, None);
                    return ShutdownOrder::StopSidecars;
                }
            }
            ShutdownPhase::Stopping if !any_running => {
                return self.enter(ShutdownPhase::Draining, now);
            }
            ShutdownPhase::Stopping if self.hurried > 0 => {
                for index in 0..cx.nodes.len() {
                    sidecars::kill(cx, cx.scope.node_at(index));
                }
                return self.enter(ShutdownPhase::Killed, now);
            }
            ShutdownPhase::Stopping => self.next = None,
            ShutdownPhase::Killed => match !any_running || now >= self.started_at + KILL_GRACE {
                true => return self.enter(ShutdownPhase::Draining, now),
                false => self.next = Some(self.started_at + KILL_GRACE),
            },
            ShutdownPhase::Draining | ShutdownPhase::LastDraining => {
                let paused = output.paused();
                let is_abandoned = self.hurried > 0 || self.impatient && paused;
                let open = output.open() > 0 && !is_abandoned;
                if open && paused {
                    // While readers do not take our own output, the pipes are neither empty nor read.
                    self.next = None;
                } else if open && !is_drained {
                    return ShutdownOrder::ReadPipes;
                } else if self.phase == ShutdownPhase::Draining {
                    return self.enter(ShutdownPhase::Leftovers, now);
                } else {
                    clean_up(cx, self.abnormal);
                    return self.enter(ShutdownPhase::Over, now);
                }
            }
            ShutdownPhase::Leftovers => {
                if !cx.processes.any_leftovers() || !self.end_leftovers(cx, now) {
                    return self.enter(ShutdownPhase::LastDraining, now);
                }
            }
            ShutdownPhase::Over => self.next = None,
        }
        ShutdownOrder::Wait
    }

    /// Ends processes that still run. Returns false if some do not end in time. Processes that do not descend from this process
    /// are left alone, even if they hold one of its pipes.
    fn end_leftovers(&mut self, cx: &mut StepContext, now: Duration) -> bool {
        if self.next.is_some_and(|next| now < next) && self.hurried == 0 {
            return true;
        }
        self.next = Some(now + LOOK);
        cx.reap_orphans();
        let left = cx.processes.leftovers();
        let grace = cx.plan.spec.ending.grace;
        // A terminated job has had its grace time; after a normal end, children may still write their last lines.
        let patience = match cx.ending || self.hurried > 0 {
            true => Duration::ZERO,
            false => GRACE,
        };
        let waited = now.saturating_sub(self.started_at);
        if waited >= patience + grace + KILL_GRACE {
            let text = format!("cannot end {}", names_of(&left));
            cx.report_text(text);
            return false;
        }
        if waited >= patience {
            if self.terminated.is_none()
                && (cx.plan.spec.verbose > 0 || !cx.ending)
                && !left.is_empty()
            {
                let text = format!("ending {}", names_of(&left));
                cx.report_text(text);
            }
            let interrupts = *self.terminated.get_or_insert(self.hurried);
            let signal = match waited >= patience + grace || self.hurried > interrupts {
                true => Signal::KILL,
                false => Signal::TERM,
            };
            leftovers::signal(&left, signal);
        }
        true
    }
}

/// Removes the files of the launch, whose processes have ended.
fn clean_up(cx: &mut StepContext, abnormal: bool) {
    if cx.plan.spec.verbose > 0 {
        sidecars::report_upcall_counts(cx);
    }
    cx.cleanup.remove_containers();
    let nodes = (0..cx.nodes.len()).map(|index| cx.scope.node_at(index));
    let ranks = nodes.flat_map(|node| cx.plan.job.process_map.ranks_on(node));
    if let Some(path) = rank_files::without_space(&cx.plan, ranks) {
        let text = format!(
            "--output: no space left for {}; files there may be incomplete",
            path.display()
        );
        cx.report_text(text);
    }
    if let Err(error) = cx.cleanup.remove_directory() {
        let text = format!("cannot remove the job's directory: {error}");
        cx.report_text(text);
    }
    if cx.scope.holds(HEAD)
        && let Some(file) = &cx.plan.spec.debug.rendezvous
    {
        // libpmix 4.2 leaves it.
        let _ = std::fs::remove_file(file);
    }
    let initial = cx.jobs.first_mut();
    initial.staged_files = UnpackedFiles::default();
    initial.registered = RegisteredResources::default();
    cx.cleanup.end_group();
    // Even in a successful launch, processes that were replaced by restarted ones may have been killed.
    if abnormal || cx.plan.spec.ending.restartable {
        let uid = rustix::process::getuid().as_raw();
        leftovers::remove_shared_memory(uid, cx.started_at);
        let creators = cx.processes.orphans.iter().copied();
        let creators = creators.chain(cx.ranks.pids().map(raw)).collect();
        sysv::remove_segments(uid, cx.started_at, &creators);
        let tmp = std::env::temp_dir();
        leftovers::remove_session_directories(&tmp, uid, cx.started_at, &cx.processes.orphans);
    }
    cx.report(StepToLauncher::Over);
}

/// Formats the processes that ranks have left.
fn names_of(left: &[Process]) -> String {
    let names: Vec<String> = left
        .iter()
        .take(5)
        .map(|process| format!("{} ({})", process.pid, process.name))
        .collect();
    let more = if left.len() > names.len() {
        ", …"
    } else {
        ""
    };
    format!(
        "{} left by the ranks: {}{more}",
        left.len(),
        names.join(", ")
    )
}
