//! The ranks' processes: from the report of a starting thread to the judgement of their end.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::process::kill_process_group;
use tracing::{debug, debug_span, trace};

use super::{LocalBackend, Part, RankSlot, raw};
use crate::backend::message::FromBackend;
use crate::plan::jobs::Plans;
use crate::report::failures;
use crate::stdio::stdin;
use crate::sys::channel::{Backlog, Channel, Received};
use crate::sys::poll::{Source, Token};
use crate::sys::procfs;
use crate::sys::spawn::{self, ExitStatus};
use crate::sys::start_ranks::{PACE, Process, StartError};
use wireup_core::job::ids::{GlobalRank, JobNumber};
use wireup_core::job::outcome::{Cause, RankEnd, judge};
use wireup_core::node::event::Event;
use wireup_core::supervisor::Waiting;

/// How long a rank may run after it closed its PMI connection before that counts as a failure.
const CLOSED_GRACE: Duration = Duration::from_secs(1);

/// How long the end of a rank may take from its beginning until it is reported.
const EXIT_LIMIT: Duration = Duration::from_secs(1);

impl LocalBackend {
    pub(super) fn take_results(&mut self) -> std::io::Result<()> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut count);
        let mut sessions = Vec::new();
        while let Ok((rank, result)) = self.results.try_recv() {
            let (job, local) = self.jobs.identity(rank);
            if let Some(job) = self.jobs.get_mut(job) {
                job.unreported -= 1;
            }
            match result {
                Ok(process) => {
                    sessions.push(process.child.pid);
                    self.add_rank(rank, process)?;
                }
                Err(error) => {
                    *self.slot_mut(rank) = RankSlot::Over;
                    self.owed.remove(&rank);
                    let failed = error != StartError::Skipped;
                    let plan = self.jobs.plan_of(rank).0;
                    let cause = failed.then(|| failures::start_failure(plan, (rank, local), error));
                    self.tell(FromBackend::NotStarted { rank, cause });
                }
            }
        }
        self.guard_sessions(sessions);
        self.tell_started()?;
        let starting = self.jobs.jobs().any(|(_, job)| job.starter.is_some());
        if starting && self.killed {
            self.kill_stopped_starts();
        }
        self.look = starting.then(|| self.now() + PACE);
        Ok(())
    }

    /// Reports jobs whose local ranks have all been started.
    fn tell_started(&mut self) -> std::io::Result<()> {
        for number in (0..self.jobs.count()).map(JobNumber) {
            let job = self.jobs.get_mut(number).expect("below their number");
            if job.starter.take_if(|_| job.unreported == 0).is_none() {
                continue;
            }
            self.all_started(number)?;
        }
        for (node, event) in self.starts_known() {
            self.feed(node, event);
        }
        Ok(())
    }

    /// The start of every rank of a job here has been reported, or there is none.
    pub(super) fn all_started(&mut self, job: JobNumber) -> std::io::Result<()> {
        if job == JobNumber(0) {
            self.start_stdin()?;
        }
        if let Some(known) = self.jobs.get_mut(job)
            && !std::mem::replace(&mut known.told, true)
        {
            self.tell(FromBackend::AllStarted { job });
        }
        self.reap_orphans();
        Ok(())
    }

    fn add_rank(&mut self, rank: GlobalRank, process: Process) -> std::io::Result<()> {
        let Process {
            child,
            pmi,
            stdout,
            stderr,
            stdin,
        } = process;
        self.owned.insert(raw(child.pid));
        let pid = raw(child.pid);
        self.tell(FromBackend::Started { rank, pid });
        self.tell_early(rank);
        self.poll
            .add(&child.pidfd, Token::new(Source::RankExit, rank.0))?;
        let token = Token::new(Source::Pmi, rank.0);
        let pmi = pmi
            .map(|fd| Channel::new(fd, token, Backlog::Holds, &self.poll))
            .transpose()?;
        for (source, pipe) in [(Source::Stdout, stdout), (Source::Stderr, stderr)] {
            if let Some(pipe) = pipe {
                let seat = self.part.seat(&self.jobs, rank);
                self.pipes.add(&self.poll, source, (rank, seat), pipe)?;
            }
        }
        let (job, _) = self.jobs.identity(rank);
        match stdin {
            Some(pipe) if job == JobNumber(0) => self.stdin_pipes.push((rank, child.pid, pipe)),
            Some(pipe) => self.pushed.add(&self.poll, rank, pipe)?,
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
        let (job, number) = self.jobs.identity(rank);
        let span =
            debug_span!(parent: &self.node(node).span, "rank", job = job.0, rank = number.0, pid);
        *self.slot_mut(rank) = RankSlot::Running { child, pmi, span };
        self.pay(rank);
        let (node, local) = self.place(rank);
        let pid = pid.unsigned_abs();
        self.feed(node, Event::RankStarted { rank: local, pid });
        Ok(())
    }

    fn start_stdin(&mut self) -> std::io::Result<()> {
        if self.stdin_pipes.is_empty() || self.part != Part::Whole {
            return Ok(());
        }
        let readers = std::mem::take(&mut self.stdin_pipes);
        let readers = readers.into_iter().map(|(_, pid, pipe)| (pid, pipe));
        stdin::start(
            std::io::stdin().as_fd().try_clone_to_owned()?,
            readers.collect(),
        )
    }

    /// The writing ends of pipes that feed ranks, which others fill.
    pub(crate) fn take_stdin(&mut self) -> Vec<(GlobalRank, OwnedFd)> {
        let pipes = std::mem::take(&mut self.stdin_pipes).into_iter();
        pipes.map(|(rank, _, pipe)| (rank, pipe)).collect()
    }

    /// Whether every rank here has ended, or was never started.
    pub(crate) fn ranks_are_over(&self) -> bool {
        let over = |slot: &RankSlot| matches!(slot, RankSlot::Over);
        self.ranks.iter().all(over) && self.unjudged.is_empty()
    }

    /// All ranks are skipped: the job failed before they could be started.
    pub(super) fn skip_ranks(&mut self) {
        for rank in self.part.processes(&self.jobs) {
            *self.slot_mut(rank) = RankSlot::Over;
            self.tell(FromBackend::NotStarted { rank, cause: None });
        }
        if let Some(job) = self.jobs.get_mut(JobNumber(0)) {
            job.unreported = 0;
        }
    }

    /// Reads a rank's PMI socket once; false when nothing more is to come now.
    pub(super) fn read_pmi(&mut self, rank: GlobalRank) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let seat = self.part.seat(&self.jobs, rank);
        let RankSlot::Running { pmi, span, .. } = &mut self.ranks[seat] else {
            self.buffer = buffer;
            return false;
        };
        let received = pmi
            .as_ref()
            .map_or(Received::Nothing, |c| c.receive(&mut buffer));
        if received == Received::End
            && let Some(channel) = pmi
        {
            // The rank closed its end or died; its process shows which, after a moment.
            // Nothing is closed here: MPICH 5 crashes when it loses its server.
            let _ = self.poll.remove(channel.as_fd());
            self.closed
                .insert(rank, self.started.elapsed() + CLOSED_GRACE);
        }
        if let Received::Bytes(count) = received {
            trace!(parent: &*span, said = %buffer[..count].escape_ascii(), "PMI");
            let (node, local) = self.place(rank);
            self.feed(
                node,
                Event::PmiReceived {
                    rank: local,
                    bytes: &buffer[..count],
                },
            );
        }
        self.buffer = buffer;
        matches!(received, Received::Bytes(_))
    }

    /// Reads what PMI ranks have said so far: a rank may exit because another one aborted, and be
    /// seen first. MPICH 5 continues after its abort until it is killed. With PMIx the rank that
    /// aborts waits for our answer, so its abort is always heard before what follows from it.
    fn hear_everybody(&mut self) {
        for rank in self.part.processes(&self.jobs) {
            // Once: a rank that is alive may write for ever, and its abort is a single request.
            self.read_pmi(rank);
        }
    }

    /// Fails the job, unless it is an abort that may be the consequence of another rank's end. Open
    /// MPI's ranks abort when they lose a peer, and a peer that ends closes its connections a moment
    /// before its end is reported.
    pub(super) fn fail_unless_consequence(&mut self, cause: Cause) {
        match cause {
            Cause::Aborted { rank, .. } if self.plan.offer.pmix && self.another_exits(rank) => {
                let until = self.now() + EXIT_LIMIT;
                self.held.get_or_insert((cause, until));
            }
            cause => self.fail(cause),
        }
    }

    /// Judges an abort that was held back, once no other rank is about to end.
    pub(super) fn judge_held(&mut self, now: Duration) {
        let Some((cause, until)) = self.held.take() else {
            return;
        };
        let other = cause.rank().is_some_and(|rank| self.another_exits(rank));
        if other && now < until && !self.ending {
            self.held = Some((cause, until));
        } else {
            self.fail(cause);
        }
    }

    /// Whether a rank other than this one has begun to end.
    fn another_exits(&self, rank: GlobalRank) -> bool {
        let own = self.part.holds(self.place(rank).0);
        let own = own.then(|| self.part.seat(&self.jobs, rank));
        let mut others = self
            .ranks
            .iter()
            .enumerate()
            .filter(|(seat, _)| Some(*seat) != own);
        others.any(|(_, slot)| match slot {
            RankSlot::Running { child, .. } => procfs::is_exiting(raw(child.pid)),
            RankSlot::Planned | RankSlot::Over => false,
        })
    }

    /// A rank that runs on without its PMI connection in the middle of a session will never reach
    /// what the others wait for.
    pub(super) fn judge_closed(&mut self, now: Duration) {
        let due: Vec<GlobalRank> = self
            .closed
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(rank, _)| *rank)
            .collect();
        for rank in due {
            self.closed.remove(&rank);
            let (node, local) = self.place(rank);
            let (job, _) = self.jobs.identity(rank);
            if !matches!(self.slot(rank), RankSlot::Running { .. }) {
                continue;
            }
            let state = self.node(node).core.pmi_state(local);
            if state.active {
                let error = "closed its PMI connection before finalize".to_owned();
                self.fail(Cause::Misbehaved { rank, error });
            } else if !self.plan.offer.pmix {
                let error = "closed its PMI connection while other ranks wait for it";
                let (waiting, error) = match state.contacted {
                    true => (Waiting::For(rank), error.to_owned()),
                    false => (Waiting::Session(job), format!("{error} in MPI_Init")),
                };
                let cause = Cause::Misbehaved { rank, error };
                self.tell(FromBackend::Left { waiting, cause });
            }
        }
    }

    /// A rank's process ended: first everything it said is heard, then its end is judged.
    pub(super) fn rank_exit(&mut self, rank: GlobalRank) {
        while self.read_pmi(rank) {}
        let (node, local) = self.place(rank);
        while self.read_host(node, Source::Upcall) {}
        let RankSlot::Running { child, pmi, span } =
            std::mem::replace(self.slot_mut(rank), RankSlot::Over)
        else {
            return;
        };
        // Both fail for a descriptor that is not watched any more, such as a closed socket.
        let _ = self.poll.remove(&child.pidfd);
        let _ = pmi.map(|channel| self.poll.remove(&channel));
        let status = spawn::wait(&child.pidfd).map(|status| match status {
            ExitStatus::Code(code) => RankEnd::Code(code),
            ExitStatus::Signal { number, dumped } => {
                if dumped {
                    self.dumped.insert(rank);
                }
                RankEnd::Signal(number)
            }
        });
        let known = status.ok();
        debug!(parent: &span, end = ?known, "the process has ended");
        drop(span);
        self.end_input(rank);
        self.tell(FromBackend::Ended { rank, end: known });
        let end = status.unwrap_or_else(|errno| {
            // No other code reaps ranks; if it did, the status is lost and not guessed.
            let error = format!("its exit status was lost: {errno}");
            self.fail(Cause::Misbehaved { rank, error });
            RankEnd::Code(0)
        });
        self.owned.remove(&raw(child.pid));
        drop(child);
        // A signal is an independent cause, and makes others abort; an exit code may follow from an
        // abort.
        if matches!(end, RankEnd::Code(code) if code != 0) && !self.ending {
            self.hear_everybody();
        }
        let state = self.node(node).core.pmi_state(local);
        if self.plan.offer.pmix && !self.ending && judge(rank, end, &state).is_some() {
            // Maybe it only lost its PMIx server, or is the first of many that did.
            let first = self.dying.0.remove(&rank) && matches!(end, RankEnd::Signal(_));
            let code = |(_, end): &(_, RankEnd)| matches!(end, RankEnd::Code(_));
            let at = self.unjudged.iter().position(code).filter(|_| first);
            let at = at.unwrap_or(self.unjudged.len());
            self.unjudged.insert(at, (rank, end));
            if matches!(end, RankEnd::Code(_)) && self.dying.0.is_empty() {
                self.look_for_the_dying();
            }
            self.doubt_hosts();
        } else {
            self.dying.0.remove(&rank);
            self.judge_rank(rank, end);
        }
        self.reap_orphans();
    }

    /// Whether the kernel dumped a rank's memory when it was killed.
    pub(crate) fn has_dumped(&self, rank: GlobalRank) -> bool {
        self.dumped.contains(&rank)
    }

    /// A rank that exits because of a broken connection may be reaped before the rank that caused
    /// it: a process closes its descriptors before it can be reaped, and on a busy machine others
    /// run in between.
    fn look_for_the_dying(&mut self) {
        let dying = self.part.processes(&self.jobs).into_iter();
        let dying = dying.filter(|rank| match self.slot(*rank) {
            RankSlot::Running { child, .. } => procfs::is_exiting(raw(child.pid)),
            RankSlot::Planned | RankSlot::Over => false,
        });
        self.dying = (dying.collect(), self.now() + EXIT_LIMIT);
    }

    /// Judges the ranks whose ends were held back, after every sidecar has answered a probe, or its
    /// loss has become the cause.
    pub(super) fn judge_waiting(&mut self) {
        if self.dying.1 <= self.now() {
            self.dying.0.clear();
        }
        if !self.unjudged.is_empty() && self.dying.0.is_empty() && !self.hosts_in_doubt() {
            self.judge_now();
        }
    }

    /// Judges the ranks whose ends were held back.
    pub(crate) fn judge_now(&mut self) {
        for (rank, end) in std::mem::take(&mut self.unjudged) {
            self.judge_rank(rank, end);
        }
    }

    fn judge_rank(&mut self, rank: GlobalRank, end: RankEnd) {
        let (node, local) = self.place(rank);
        let state = self.node(node).core.pmi_state(local);
        self.tell(FromBackend::Judged { rank, end, state });
        self.feed(node, Event::RankEnded { rank: local, end });
    }
}
