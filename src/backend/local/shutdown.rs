//! The end of a job on this host: sidecars are stopped, what still runs is ended, the pipes are
//! drained, and the job's files are removed. A state machine, since the loop continues meanwhile.

use std::time::Duration;

use rustix::process::Signal;

use super::LocalBackend;
use crate::backend::step_messages::StepToLauncher;
use crate::plan::packed_files::UnpackedFiles;
use crate::stdio::rank_files;
use crate::sys::procfs::Process;
use crate::sys::{leftovers, sysv};
use wireup_core::job::spec::GRACE;
use wireup_core::node::event::NodeEvent;
use wireup_core::node::{HEAD, NodeCore};
use wireup_core::pmix::upcall::UpcallKind;
use wireup_core::queries::JobEnd;

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
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.next
    }

    fn enter(&mut self, phase: ShutdownPhase, now: Duration) {
        self.phase = phase;
        self.started_at = now;
        self.next = None;
        self.hurried = 0;
    }
}

impl LocalBackend {
    /// All ranks have ended, or are treated as if they had.
    pub(super) fn finish(&mut self, abnormal: bool, ends: Vec<JobEnd>) {
        self.end_inspections();
        self.forget_tools();
        self.first_input.settle();
        let now = self.now();
        let concerned = self.nodes.iter().any(|node| node.core.concerns_tools());
        let phase = match concerned {
            true => ShutdownPhase::Telling,
            false => self.stop_sidecars(),
        };
        self.end = Some(Shutdown {
            phase,
            started_at: now,
            next: Some(now),
            hurried: 0,
            impatient: false,
            terminated: None,
            abnormal,
            ends,
        });
    }

    fn stop_sidecars(&mut self) -> ShutdownPhase {
        for index in 0..self.nodes.len() {
            self.handle_event(self.scope.node_at(index), NodeEvent::LaunchEnded);
        }
        ShutdownPhase::Stopping
    }

    /// The user interrupts the current wait.
    pub(super) fn hurry(&mut self) {
        if let Some(end) = &mut self.end {
            end.hurried += 1;
            end.impatient = true;
        }
        self.advance_shutdown();
    }

    /// Something the end may have waited for has happened.
    pub(super) fn advance_shutdown(&mut self) {
        if let Some(end) = &mut self.end {
            end.next = Some(Duration::ZERO);
        }
    }

    /// Does what can be done now.
    ///
    /// # Errors
    /// When a pipe cannot be unwatched.
    pub(super) fn run_shutdown(&mut self) -> std::io::Result<()> {
        while let Some(mut end) = self.end.take() {
            let before = end.phase;
            let result = self.step_to_end(&mut end);
            let after = end.phase;
            self.end = Some(end);
            result?;
            if after == before {
                break;
            }
        }
        Ok(())
    }

    fn step_to_end(&mut self, end: &mut Shutdown) -> std::io::Result<()> {
        let now = self.now();
        let running =
            |node: &super::LocalNode| node.sidecar.as_ref().is_some_and(|s| !s.exit_collected);
        let any_running = self.nodes.iter().any(running);
        match end.phase {
            ShutdownPhase::Telling => {
                let late = now >= end.started_at + TELL_LIMIT || end.hurried > 0;
                let any = |is: fn(&NodeCore) -> bool| self.nodes.iter().any(|node| is(&node.core));
                let (read, wait) = (
                    any(NodeCore::has_readers),
                    any(NodeCore::must_wait_for_tools),
                );
                if !late && read && self.read_pipes()? {
                    end.next = Some(now);
                } else if !late && wait {
                    end.next = Some(now + LOOK);
                } else if !end.ends.is_empty() {
                    let ends = std::mem::take(&mut end.ends);
                    for index in 0..self.nodes.len() {
                        self.handle_event(self.scope.node_at(index), NodeEvent::JobsEnded(&ends));
                    }
                    end.started_at = now;
                    end.next = Some(now);
                } else {
                    // An interrupt was meant for what follows too.
                    (end.phase, end.started_at, end.next) = (self.stop_sidecars(), now, None);
                }
            }
            ShutdownPhase::Stopping if !any_running => end.enter(ShutdownPhase::Draining, now),
            ShutdownPhase::Stopping if end.hurried > 0 => {
                for index in 0..self.nodes.len() {
                    self.kill_sidecar(self.scope.node_at(index));
                }
                end.enter(ShutdownPhase::Killed, now);
            }
            ShutdownPhase::Stopping => end.next = None,
            ShutdownPhase::Killed => match !any_running || now >= end.started_at + KILL_GRACE {
                true => end.enter(ShutdownPhase::Draining, now),
                false => end.next = Some(end.started_at + KILL_GRACE),
            },
            ShutdownPhase::Draining | ShutdownPhase::LastDraining => {
                let paused = self.pipes.paused();
                let given_up = end.hurried > 0 || end.impatient && paused;
                let open = self.pipes.open() > 0 && !given_up;
                if open && paused {
                    // While our own output is not taken, the pipes are not empty and not read
                    // either.
                    end.next = None;
                } else if open && self.read_pipes()? {
                    end.next = Some(now);
                } else if end.phase == ShutdownPhase::Draining {
                    end.enter(ShutdownPhase::Leftovers, now);
                } else {
                    self.clean_up(end.abnormal);
                    end.enter(ShutdownPhase::Over, now);
                }
            }
            ShutdownPhase::Leftovers => {
                if !self.any_leftovers() || !self.end_leftovers(end, now) {
                    end.enter(ShutdownPhase::LastDraining, now);
                }
            }
            ShutdownPhase::Over => end.next = None,
        }
        Ok(())
    }

    /// Ends processes that still run; false if that is given up. A process that does not descend
    /// from this process is none of its business, even if he holds one of its pipes.
    fn end_leftovers(&mut self, end: &mut Shutdown, now: Duration) -> bool {
        if end.next.is_some_and(|next| now < next) && end.hurried == 0 {
            return true;
        }
        end.next = Some(now + LOOK);
        self.reap_orphans();
        let left = self.leftovers();
        let grace = self.plan.spec.ending.grace;
        // A job that is being ended has had its grace; one that ended well may have children that
        // still write their last lines.
        let patience = match self.ending || end.hurried > 0 {
            true => Duration::ZERO,
            false => GRACE,
        };
        let waited = now.saturating_sub(end.started_at);
        if waited >= patience + grace + KILL_GRACE {
            let text = format!("cannot end {}", names_of(&left));
            self.report(StepToLauncher::Tell { text });
            return false;
        }
        if waited >= patience {
            if end.terminated.is_none()
                && (self.plan.spec.verbose > 0 || !self.ending)
                && !left.is_empty()
            {
                let text = format!("ending {}", names_of(&left));
                self.report(StepToLauncher::Tell { text });
            }
            let interrupts = *end.terminated.get_or_insert(end.hurried);
            let signal = match waited >= patience + grace || end.hurried > interrupts {
                true => Signal::KILL,
                false => Signal::TERM,
            };
            leftovers::signal(&left, signal);
        }
        true
    }

    /// Removes what the job made. What descends from it has ended.
    fn clean_up(&mut self, abnormal: bool) {
        if self.plan.spec.verbose > 0 {
            self.report_upcall_counts();
        }
        self.containers.clear();
        self.run_in(None);
        let nodes = (0..self.nodes.len()).map(|index| self.scope.node_at(index));
        let ranks = nodes.flat_map(|node| self.plan.job.process_map.ranks_on(node));
        if let Some(path) = rank_files::without_space(&self.plan, ranks) {
            let text = format!(
                "--output: no space left for {}; files there may be incomplete",
                path.display()
            );
            self.report(StepToLauncher::Tell { text });
        }
        if let Some(directory) = self.directory.take()
            && let Err(error) = directory.remove()
        {
            let text = format!("cannot remove the job's directory: {error}");
            self.report(StepToLauncher::Tell { text });
        }
        if self.scope.holds(HEAD)
            && let Some(file) = &self.plan.spec.debug.rendezvous
        {
            // libpmix 4.2 leaves it.
            let _ = std::fs::remove_file(file);
        }
        self.set_staged_files(UnpackedFiles::default());
        self.end_group();
        // Processes that others have replaced may have been killed in a job that went well.
        if abnormal || self.plan.spec.ending.restartable {
            let uid = rustix::process::getuid().as_raw();
            leftovers::remove_shared_memory(uid, self.started_at);
            let creators = self.orphans.union(&self.rank_pids).copied().collect();
            sysv::remove_segments(uid, self.started_at, &creators);
            let tmp = std::env::temp_dir();
            leftovers::remove_session_directories(&tmp, uid, self.started_at, &self.orphans);
        }
        self.report(StepToLauncher::Over);
    }

    /// How often libpmix asked for something on each node.
    fn report_upcall_counts(&mut self) {
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            if node.sidecar.is_none() {
                continue;
            }
            let counts: Vec<String> = UpcallKind::ALL
                .into_iter()
                .map(|kind| (kind.name(), node.core.upcalls(kind)))
                .filter(|(_, count)| count.received > 0)
                .map(|(name, count)| {
                    let (received, bytes_in, bytes_out) =
                        (count.received, count.bytes_in, count.bytes_out);
                    format!("{name} {received} ({bytes_in} bytes in, {bytes_out} out)")
                })
                .collect();
            let counts = match counts.is_empty() {
                true => "none".to_owned(),
                false => counts.join(", "),
            };
            let name = &self.plan.node_names[self.scope.node_at(index).index()];
            let text = format!("upcalls of {name}: {counts}");
            self.report(StepToLauncher::Tell { text });
        }
    }
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
