//! The end of a job on this host: sidecars are stopped, what still runs is ended, the pipes are
//! drained, and the job's files are removed. A state machine, since the loop continues meanwhile.

use std::time::Duration;

use rustix::process::Signal;

use super::pipes::RankOutputReader;
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

/// How long killed processes may take to go, before the run ends without them: one that the system
/// cannot end, or that became another user's, must not hold the launcher for ever.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Interval between checks of remaining processes during their time to end.
const LOOK: Duration = Duration::from_millis(20);

/// How long the end of the launch waits for tools to get output and to be told how jobs have ended.
const TELL_LIMIT: Duration = Duration::from_secs(1);

/// The current phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ShutdownPhase {
    /// The output for tools is read from the pipes, and tools are notified of the ends of jobs.
    Telling,
    /// The sidecars were asked to stop; their nodes' cores give up one that does not.
    Stopping,
    Killed,
    /// What the pipes hold is read.
    Draining,
    /// What still runs is ended: first by itself, then by SIGTERM, then by SIGKILL.
    Leftovers,
    /// All writers of the pipes have ended; their output is still in them.
    LastDraining,
    /// Nothing is left.
    Over,
}

/// What the dispatcher has to do for the end of the launch.
pub(super) enum ShutdownOrder {
    /// Nothing until something happens, or it is time.
    Wait,
    /// Go on at once: a phase has ended.
    NextPhase,
    /// Read the pipes that are not paused.
    ReadPipes,
    /// Tell the nodes' cores how jobs have ended.
    ReportEnds(Vec<JobEnd>),
    /// Ask the sidecars to stop, and go on.
    StopSidecars,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shutdown {
    phase: ShutdownPhase,
    /// When it began.
    started_at: Duration,
    /// Time of the next check, if nothing happens before.
    next: Option<Duration>,
    /// How often the user was impatient in this phase.
    hurried: u32,
    /// The user interrupted a phase: readers that do not read output are not waited for.
    impatient: bool,
    /// Number of the user's interrupts in this phase when leftovers were first asked to end by
    /// SIGTERM: a later interrupt kills them.
    terminated: Option<u32>,
    /// The job did not end well.
    abnormal: bool,
    /// What tools are not told yet.
    ends: Vec<JobEnd>,
}

impl Shutdown {
    /// All ranks have ended, or are treated as if they had. Tools are told, if any is concerned; else the sidecars have been
    /// asked to stop.
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

    /// The user interrupts the current wait.
    pub(super) fn hurry(&mut self) {
        self.hurried += 1;
        self.impatient = true;
    }

    /// Something the end may have waited for has happened.
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

    /// The pipes held output: they are read again at once.
    pub(super) fn read_again(&mut self, now: Duration) {
        self.next = Some(now);
    }

    /// Does what can be done now, and returns what the dispatcher has to do. `is_drained`: the pipes that are not paused
    /// have been read since the last answer, and held nothing.
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
                    // An interrupt was meant for what follows too.
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
                let given_up = self.hurried > 0 || self.impatient && paused;
                let open = output.open() > 0 && !given_up;
                if open && paused {
                    // While our own output is not taken, the pipes are not empty and not read
                    // either.
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

    /// Ends processes that still run; false if that is given up. A process that does not descend
    /// from this process is none of its business, even if he holds one of its pipes.
    fn end_leftovers(&mut self, cx: &mut StepContext, now: Duration) -> bool {
        if self.next.is_some_and(|next| now < next) && self.hurried == 0 {
            return true;
        }
        self.next = Some(now + LOOK);
        cx.reap_orphans();
        let left = cx.processes.leftovers();
        let grace = cx.plan.spec.ending.grace;
        // A job that is being ended has had its grace; one that ended well may have children that
        // still write their last lines.
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

/// Removes what the job made. What descends from it has ended.
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
    cx.jobs.first_mut().staged_files = UnpackedFiles::default();
    cx.cleanup.end_group();
    // Processes that others have replaced may have been killed in a job that went well.
    if abnormal || cx.plan.spec.ending.restartable {
        let uid = rustix::process::getuid().as_raw();
        leftovers::remove_shared_memory(uid, cx.started_at);
        let creators = cx.processes.orphans().iter().copied();
        let creators = creators.chain(cx.ranks.pids().map(raw)).collect();
        sysv::remove_segments(uid, cx.started_at, &creators);
        let tmp = std::env::temp_dir();
        leftovers::remove_session_directories(&tmp, uid, cx.started_at, cx.processes.orphans());
    }
    cx.report(StepToLauncher::Over);
}

/// The processes left by the ranks, in words.
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
