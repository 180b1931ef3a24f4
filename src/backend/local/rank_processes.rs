//! The ranks' processes: from the report of a starting thread to the judgement of their end.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::process::kill_process_group;
use tracing::{debug, debug_span, trace};

use super::{HostScope, LocalBackend, RankProcess, raw};
use crate::backend::local::mpich_segment::SegmentWatch;
use crate::backend::step_messages::StepToLauncher;
use crate::inspect::core_file;
use crate::plan::planned_jobs::Plans;
use crate::report::failures;
use crate::start_ranks::{PACE, RankStartError, StartedProcess};
use crate::stdio::stdin;
use crate::sys::channel::{BacklogPolicy, Channel, ReadResult};
use crate::sys::core_dump::{self, CoreDump, DumpedProcess};
use crate::sys::poll::{PollSource, PollToken};
use crate::sys::spawn::{self, ExitStatus};
use wireup_core::job::ids::{GlobalRank, JobIndex};
use wireup_core::job::outcome::{FailureCause, RankEnd};
use wireup_core::node::event::NodeEvent;
use wireup_core::supervisor::first_failure;

impl LocalBackend {
    pub(super) fn take_results(&mut self) -> std::io::Result<()> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        for (report, processes) in self.containers.take_results() {
            self.preexisting_children.extend(processes);
            self.report(report);
        }
        let mut sessions = Vec::new();
        while let Ok((rank, result)) = self.start_result_rx.try_recv() {
            let known = self.look_up(rank);
            if let Some(job) = self.jobs.get_mut(known.job()) {
                job.unreported -= 1;
            }
            match result {
                Ok(process) => {
                    sessions.push(process.child.pid);
                    self.add_rank(rank, process)?;
                }
                Err(error) => {
                    *self.slot_mut(rank) = RankProcess::Over;
                    self.deferred_signals.remove(&rank);
                    let failed = error != RankStartError::Skipped;
                    let (plan, local) = self.jobs.plan_of(known);
                    let cause = failed.then(|| failures::start_failure(plan, rank, local, error));
                    self.report(StepToLauncher::NotStarted { rank, cause });
                }
            }
        }
        self.guard_sessions(sessions);
        self.report_started_jobs()?;
        let starting = self.jobs.jobs().any(|(_, job)| job.starter.is_some());
        if starting && self.killed {
            self.kill_stopped_starts();
        }
        self.next_check = starting.then(|| self.now() + PACE);
        Ok(())
    }

    /// Reports jobs whose local ranks have all been started.
    fn report_started_jobs(&mut self) -> std::io::Result<()> {
        for number in (0..self.jobs.count()).map(JobIndex) {
            let job = self.jobs.get_mut(number).expect("below their number");
            if job.starter.take_if(|_| job.unreported == 0).is_none() {
                continue;
            }
            self.all_started(number)?;
        }
        for (node, event) in self.starts_known() {
            self.handle_event(node, event);
        }
        Ok(())
    }

    /// The start of every rank of a job here has been reported, or there is none.
    pub(super) fn all_started(&mut self, job: JobIndex) -> std::io::Result<()> {
        if job.is_initial() {
            self.start_stdin()?;
        }
        if let Some(known) = self.jobs.get_mut(job)
            && !std::mem::replace(&mut known.start_reported, true)
        {
            self.report(StepToLauncher::AllStarted { job });
        }
        self.reap_orphans();
        Ok(())
    }

    fn add_rank(&mut self, rank: GlobalRank, process: StartedProcess) -> std::io::Result<()> {
        let StartedProcess {
            child,
            pmi,
            stdout,
            stderr,
            stdin,
        } = process;
        self.owned_pids.insert(raw(child.pid));
        self.rank_pids.insert(raw(child.pid));
        let pid = raw(child.pid);
        self.report(StepToLauncher::Started { rank, pid });
        self.report_started_rank(rank);
        self.poll
            .add(&child.pidfd, PollToken::new(PollSource::RankExit, rank.0))?;
        let token = PollToken::new(PollSource::Pmi, rank.0);
        let pmi = pmi
            .map(|fd| Channel::new(fd, token, BacklogPolicy::Holds, &self.poll))
            .transpose()?;
        for (source, pipe) in [(PollSource::Stdout, stdout), (PollSource::Stderr, stderr)] {
            if let Some(pipe) = pipe {
                let seat = self.scope.local_index(&self.jobs, rank);
                self.pipes.add(&self.poll, source, rank, seat, pipe)?;
            }
        }
        let known = self.look_up(rank);
        let job = known.job();
        match stdin {
            Some(pipe) if job.is_initial() => self.stdin_pipes.push((rank, child.pid, pipe)),
            Some(pipe) => self.push_pipes.add(&self.poll, rank, pipe)?,
            None => {}
        }
        let dropped = self.jobs.get(job).is_some_and(|job| job.dropped);
        if dropped {
            let _ = kill_process_group(child.pid, rustix::process::Signal::KILL);
        } else if self.ending {
            let signal = if self.killed {
                rustix::process::Signal::KILL
            } else {
                rustix::process::Signal::TERM
            };
            let _ = kill_process_group(child.pid, signal);
        }
        let (node, _) = self.place(rank);
        let number = known.rank().0;
        let span =
            debug_span!(parent: &self.node(node).span, "rank", job = job.0, rank = number, pid);
        *self.slot_mut(rank) = RankProcess::Running { child, pmi, span };
        self.send_deferred_signals(rank);
        let (node, local) = self.place(rank);
        let pid = pid.unsigned_abs();
        self.handle_event(node, NodeEvent::RankStarted { rank: local, pid });
        Ok(())
    }

    fn start_stdin(&mut self) -> std::io::Result<()> {
        if self.stdin_pipes.is_empty() || self.scope != HostScope::Whole {
            return Ok(());
        }
        let readers = std::mem::take(&mut self.stdin_pipes);
        let readers = readers.into_iter().map(|(_, pid, pipe)| (pid, pipe));
        let own = std::io::stdin().as_fd().try_clone_to_owned()?;
        self.first_input = stdin::start(own, readers.collect())?;
        Ok(())
    }

    /// The writing ends of pipes that feed ranks, which others fill.
    pub(crate) fn take_stdin(&mut self) -> Vec<(GlobalRank, OwnedFd)> {
        let pipes = std::mem::take(&mut self.stdin_pipes).into_iter();
        pipes.map(|(rank, _, pipe)| (rank, pipe)).collect()
    }

    /// Whether every rank here has ended, or was never started.
    pub(crate) fn ranks_are_over(&self) -> bool {
        let over = |slot: &RankProcess| matches!(slot, RankProcess::Over);
        self.ranks.iter().all(over) && self.failures.ends_are_judged()
    }

    /// All ranks are skipped: the job failed before they could be started.
    pub(super) fn skip_ranks(&mut self) {
        for rank in self.scope.processes(&self.jobs) {
            *self.slot_mut(rank) = RankProcess::Over;
            self.report(StepToLauncher::NotStarted { rank, cause: None });
        }
        self.jobs.first_mut().unreported = 0;
    }

    /// Finds out what kind of client sends the start of PMI, before that is read.
    fn identify_pmi_client(&mut self, rank: GlobalRank) {
        let (node, local) = self.place(rank);
        if self.node(node).core.has_pmi_session(local) {
            return;
        }
        let seat = self.scope.local_index(&self.jobs, rank);
        let RankProcess::Running { pmi: Some(pmi), .. } = &self.ranks[seat] else {
            return;
        };
        if let Some(pid) = pmi.sender() {
            let has_groups = self.group_clients.contain(pid);
            let rank = local;
            self.handle_event(node, NodeEvent::PmiClient { rank, has_groups });
        }
    }

    /// Reads a rank's PMI socket once; false when nothing more is to come now.
    pub(super) fn read_pmi(&mut self, rank: GlobalRank) -> bool {
        self.identify_pmi_client(rank);
        let mut buffer = std::mem::take(&mut self.buffer);
        let seat = self.scope.local_index(&self.jobs, rank);
        let RankProcess::Running { pmi, span, .. } = &mut self.ranks[seat] else {
            self.buffer = buffer;
            return false;
        };
        let received = pmi
            .as_ref()
            .map_or(ReadResult::Nothing, |c| c.receive(&mut buffer));
        if received == ReadResult::End
            && let Some(channel) = pmi
        {
            // The rank closed its end or died; its process shows which, after a moment.
            // Nothing is closed here: MPICH 5 crashes when it loses its server.
            let _ = self.poll.remove(channel.as_fd());
        }
        if let ReadResult::Bytes(count) = received {
            trace!(parent: &*span, said = %buffer[..count].escape_ascii(), "PMI");
        }
        if received == ReadResult::End {
            self.judge_finalized(rank);
            self.on_failure_event(first_failure::FailureEvent::Closed { rank });
        }
        if let ReadResult::Bytes(count) = received {
            let (node, local) = self.place(rank);
            self.handle_event(
                node,
                NodeEvent::PmiReceived {
                    rank: local,
                    bytes: &buffer[..count],
                },
            );
            // The library makes its segment after the request by which it is recognised.
            if self.segments.is_none() && self.node(node).core.sessions_beside(local).is_some() {
                self.segments = SegmentWatch::start().ok();
            }
        }
        self.buffer = buffer;
        matches!(received, ReadResult::Bytes(_))
    }

    /// Reads what PMI ranks have said so far: a rank may exit because another one aborted, and be
    /// seen first. MPICH 5 continues after its abort until it is killed. With PMIx the rank that
    /// aborts waits for our answer, so its abort is always heard before what follows from it.
    fn drain_pmi_sockets(&mut self) {
        for rank in self.scope.processes(&self.jobs) {
            // Once: a rank that is alive may write for ever, and its abort is a single request.
            self.read_pmi(rank);
        }
    }

    /// Treats a rank as finalized that has left `MPI_Finalize` without a finalize of PMI: MPICH sends that from
    /// an atexit handler, which `_exit(2)`, `quick_exit(3)` and `execve(2)` pass over.
    fn judge_finalized(&mut self, rank: GlobalRank) {
        let (node, local) = self.place(rank);
        let Some(beside) = self.node(node).core.sessions_beside(local) else {
            return;
        };
        let job = &self.jobs.plan_of(self.look_up(rank)).0.job;
        let Some(number) = job.process_map.mapped_number(node) else {
            return;
        };
        let segments = self.segments.as_mut();
        let sessions = segments.and_then(|watch| watch.sessions(job.nspace.as_str(), number));
        if sessions.is_some_and(|sessions| sessions <= beside) {
            self.handle_event(node, NodeEvent::PmiFinalized { rank: local });
        }
    }

    /// A rank's process ended: first everything it said is heard, then its end is judged.
    pub(super) fn rank_exit(&mut self, rank: GlobalRank) {
        while self.read_pmi(rank) {}
        let (node, _) = self.place(rank);
        while self.read_sidecar(node, PollSource::Upcall) {}
        let RankProcess::Running { child, pmi, span } =
            std::mem::replace(self.slot_mut(rank), RankProcess::Over)
        else {
            return;
        };
        // Both fail for a descriptor that is not watched any more, such as a closed socket.
        let _ = self.poll.remove(&child.pidfd);
        let _ = pmi.map(|channel| self.poll.remove(&channel));
        let waited = spawn::wait_with_usage(&child.pidfd);
        let usage = waited.as_ref().ok().map(|(_, usage)| *usage);
        let status = waited.map(|(status, _)| match status {
            ExitStatus::Code(code) => RankEnd::Code(code),
            ExitStatus::Signal { number, dumped } => {
                if dumped {
                    self.core_dumps.insert(rank, (raw(child.pid), number));
                }
                RankEnd::Signal(number)
            }
        });
        let known = status.ok();
        debug!(parent: &span, end = ?known, "the process has ended");
        drop(span);
        self.end_input(rank);
        let end = known;
        self.report(StepToLauncher::Ended { rank, end, usage });
        let end = status.unwrap_or_else(|errno| {
            // No other code reaps ranks; if it did, the status is lost and not guessed.
            let error = format!("its exit status was lost: {errno}");
            self.on_failure_event(first_failure::FailureEvent::Failed(
                FailureCause::Misbehaved { rank, error },
            ));
            RankEnd::Code(0)
        });
        self.owned_pids.remove(&raw(child.pid));
        drop(child);
        // A signal is an independent cause, and makes others abort; an exit code may follow from an
        // abort.
        if matches!(end, RankEnd::Code(code) if code != 0) && !self.ending {
            self.drain_pmi_sockets();
        }
        // A process that it has left behind may hold the connection.
        self.judge_finalized(rank);
        self.on_failure_event(first_failure::FailureEvent::RankEnded { rank, end });
        self.reap_orphans();
    }

    /// What the kernel dumped of a rank that was killed, and its program.
    pub(crate) fn dump_of(&self, rank: GlobalRank) -> Option<(CoreDump, PathBuf)> {
        let (pid, signal) = *self.core_dumps.get(&rank)?;
        let known = self.look_up(rank);
        let (plan, local) = self.jobs.plan_of(known);
        let app = &plan.apps[plan.app_of(local)];
        let directory = app.cwd.as_deref().unwrap_or(&plan.inheritance.cwd);
        let program = app.program.path();
        let dumped = DumpedProcess {
            pid,
            signal,
            program,
            directory,
            host: self.jobs.host_of(known),
        };
        let found = core_dump::find(&dumped, core_file::program);
        let program = directory.join(&found.program);
        Some((found, program))
    }
}
