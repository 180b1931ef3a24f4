//! The life of a running job: one loop that owns all its state, reads every descriptor, feeds the
//! nodes' cores and carries out what they and the supervisor order.

mod alone;
mod hosts;
mod nodes;
mod progress;
mod pty;
mod ranks;
mod signals;
mod status;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::finish;
use super::guard::Guard;
use super::plan::Plan;
use super::progress::Progress;
use super::pty::Pty;
use super::record::JobState;
use super::signals::Signals;
use super::status::Status;
use super::streams::Streams;
use super::supervisor::{Order, Supervisor, Waiting};
use crate::agent::channel::Channel;
use crate::agent::event::{Event, PeerMessage};
use crate::agent::poll::{Poll, Ready, Source};
use crate::agent::spawn::Child;
use crate::agent::start::{Started, Starter};
use crate::job::ids::{LocalRank, NodeId, Rank};
use crate::job::outcome::{Cause, RankEnd};

use alone::Alone;
pub(super) use nodes::Node;

/// Bytes read from a socket at a time.
const CHUNK: usize = 64 * 1024;

/// One rank as the loop sees it.
#[derive(Debug, Default)]
enum RankSlot {
    /// Not started yet.
    #[default]
    Planned,
    /// Its process runs.
    Running { child: Child, pmi: Option<Channel> },
    /// Its process ended, or it was never started.
    Over,
}

/// What is known of the process of one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Life {
    /// Its process, once it was started.
    pub(super) pid: Option<Pid>,
    /// When the loop heard of it.
    pub(super) start: Duration,
    /// When the loop heard of its end, and how it ended, unless the system lost that.
    pub(super) end: Option<(Duration, Option<RankEnd>)>,
    /// It was ever in contact with a process-management interface.
    pub(super) connected: bool,
}

/// A job from the start of its processes to the end of the last one.
pub(super) struct Drive {
    pub(super) plan: Arc<Plan>,
    pub(super) started: Instant,
    pub(super) poll: Poll,
    pub(super) signals: Signals,
    pub(super) wake: Arc<OwnedFd>,
    pub(super) results: Receiver<Started>,
    pub(super) nodes: Vec<Node>,
    pub(super) streams: Streams,
    pub(super) supervisor: Supervisor,
    pub(super) guard: Option<Guard>,
    pub(super) starter: Option<Starter>,
    /// The terminal of the rank that has one.
    pty: Option<Pty>,
    /// When the user's terminal is left as it was found, once its rank has ended.
    terminal_until: Option<Duration>,
    ranks: Vec<RankSlot>,
    /// What is known of every rank's process, by rank; kept for reports.
    pub(super) lives: Vec<Life>,
    /// The status stream, if somebody reads one.
    pub(super) status: Option<Status>,
    /// What it said last about the job.
    phase_told: JobState,
    /// Ranks that were ever in contact with a process-management interface.
    connected: u32,
    /// Looks out for ranks that never will be.
    alone: Alone,
    /// What is shown of what is waited for.
    progress: Progress,
    /// Whether it knows that the job is being ended.
    end_expected: bool,
    /// Writing ends of pipes that feed ranks' standard input.
    pub(super) stdin_pipes: Vec<(Pid, OwnedFd)>,
    /// Ranks that closed their PMI socket, and when they will be judged if they still run then.
    closed: BTreeMap<Rank, Duration>,
    /// Ranks that ended badly while it is not known whether their PMIx server lives.
    unjudged: Vec<(Rank, RankEnd)>,
    /// An abort that may follow from the end of a rank that is not reported yet, and until when
    /// that is waited for.
    held: Option<(Cause, Duration)>,
    /// Ranks whose start has not been reported yet.
    unreported: u32,
    /// Processes whose exit has an owner.
    owned: BTreeSet<i32>,
    peers: VecDeque<(NodeId, NodeId, PeerMessage)>,
    buffer: Vec<u8>,
    ready: Vec<Ready>,
    killed: bool,
    /// That a rank speaks another form of PMI than expected has been said.
    dialect_told: bool,
    /// That a fence takes long has been said.
    late_told: bool,
    /// Signals that asked the launcher to end.
    pub(super) interrupts: u32,
    /// Processes of the job that lost their parent and were collected here; the first ones.
    pub(super) orphans: BTreeSet<i32>,
    /// Children the launcher had before it started any.
    strangers: BTreeSet<i32>,
}

/// What the loop is made of, beside what it makes itself.
pub(super) struct Parts {
    pub(super) plan: Arc<Plan>,
    pub(super) started: Instant,
    pub(super) poll: Poll,
    pub(super) signals: Signals,
    pub(super) wake: Arc<OwnedFd>,
    pub(super) results: Receiver<Started>,
    pub(super) nodes: Vec<Node>,
    pub(super) streams: Streams,
    pub(super) status: Option<Status>,
    pub(super) guard: Guard,
    pub(super) strangers: BTreeSet<i32>,
}

impl Drive {
    /// A job none of whose ranks has been started.
    pub(super) fn new(parts: Parts) -> Self {
        let size = parts.plan.job.ranks.size();
        Self {
            supervisor: Supervisor::new(size, &parts.plan.spec.ending),
            ranks: (0..size).map(|_| RankSlot::Planned).collect(),
            lives: vec![Life::default(); size as usize],
            status: parts.status,
            phase_told: JobState::Planned,
            connected: 0,
            alone: Alone::new(parts.plan.apps.len()),
            end_expected: false,
            progress: Progress::new(parts.streams.on_terminal(), parts.plan.spec.verbose > 0),
            stdin_pipes: Vec::new(),
            closed: BTreeMap::new(),
            unjudged: Vec::new(),
            held: None,
            unreported: size,
            owned: BTreeSet::new(),
            peers: VecDeque::new(),
            buffer: Vec::with_capacity(CHUNK),
            ready: Vec::new(),
            killed: false,
            dialect_told: false,
            late_told: false,
            interrupts: 0,
            orphans: BTreeSet::new(),
            starter: None,
            pty: None,
            terminal_until: None,
            plan: parts.plan,
            started: parts.started,
            poll: parts.poll,
            signals: parts.signals,
            wake: parts.wake,
            results: parts.results,
            nodes: parts.nodes,
            streams: parts.streams,
            guard: Some(parts.guard),
            strangers: parts.strangers,
        }
    }

    /// Time since the start of the run.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn guard_sessions(&mut self, sessions: impl IntoIterator<Item = Pid>) {
        if let Some(guard) = &mut self.guard {
            // A guard that was killed cannot take over; the run itself is not affected.
            let _ = guard.add_sessions(sessions);
        }
    }

    /// Runs the loop until `done` says so.
    ///
    /// # Errors
    /// When waiting itself fails, or a thread that writes output cannot be started.
    pub(super) fn run_until(&mut self, done: impl Fn(&Self) -> bool) -> std::io::Result<()> {
        while !done(self) {
            let now = self.now();
            self.turn(self.next_deadline().map(|at| at.saturating_sub(now)))?;
        }
        Ok(())
    }

    /// Runs the loop until `done` says so or the time has come.
    ///
    /// # Errors
    /// As [`Drive::run_until`].
    pub(super) fn run_until_or(
        &mut self,
        done: impl Fn(&Self) -> bool,
        until: Duration,
    ) -> std::io::Result<()> {
        loop {
            let now = self.now();
            if done(self) || now >= until {
                return Ok(());
            }
            let wake = self.next_deadline().map_or(until, |at| at.min(until));
            self.turn(Some(wake.saturating_sub(now)))?;
        }
    }

    /// Deals with everything that is ready now; whether there was anything.
    ///
    /// # Errors
    /// As [`Drive::run_until`].
    pub(super) fn turn(&mut self, timeout: Option<Duration>) -> std::io::Result<bool> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poll.wait(timeout, &mut ready)?;
        // Ends first: what others say about a rank that died is a consequence of its death.
        ready.sort_by_key(|event| event.token.source != Source::RankExit);
        for event in &ready {
            self.dispatch(*event)?;
        }
        self.tick()?;
        let any = !ready.is_empty();
        self.ready = ready;
        Ok(any)
    }

    fn next_deadline(&self) -> Option<Duration> {
        let closed = self.closed.values().min().copied();
        let cores = self
            .nodes
            .iter()
            .filter_map(|node| node.core.next_deadline())
            .min();
        [
            self.supervisor.next_deadline(),
            self.streams.next_deadline(),
            cores.map(|at| at.0),
            closed,
            self.alone.next_deadline(),
            self.progress.next_deadline(),
            self.held.as_ref().map(|(_, until)| *until),
            self.terminal_until,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn tick(&mut self) -> std::io::Result<()> {
        let now = self.now();
        for index in 0..self.nodes.len() {
            if self.nodes[index]
                .core
                .next_deadline()
                .is_some_and(|at| at.0 <= now)
            {
                self.feed(NodeId(index as u32), Event::Tick);
            }
        }
        self.judge_closed(now);
        self.judge_held(now);
        self.judge_waiting();
        self.release_terminal(now);
        self.streams.tick(&self.poll, now)?;
        self.check_status();
        self.look_for_singletons(now);
        self.show_progress(now);
        if let Some((what, errno)) = self.streams.failure() {
            let cause = Cause::OutputLost {
                error: format!("{what} cannot be written: {errno}"),
                pipe: errno == rustix::io::Errno::PIPE,
            };
            self.fail(cause);
        }
        let mut orders = Vec::new();
        let waiting = |waiting| {
            self.nodes.iter().any(|node| match waiting {
                Waiting::Session => node.core.any_active(),
                Waiting::For(rank) => node.core.waits_for(rank),
            })
        };
        self.supervisor.tick(now, waiting, &mut orders);
        self.carry_out(orders);
        Ok(())
    }

    fn dispatch(&mut self, event: Ready) -> std::io::Result<()> {
        let Ready {
            token,
            readable,
            writable,
        } = event;
        let node = NodeId(token.index);
        match token.source {
            Source::Signals => self.take_signals(),
            Source::Wake => self.take_results()?,
            Source::Pmi => {
                if writable
                    && let RankSlot::Running {
                        pmi: Some(channel), ..
                    } = &mut self.ranks[token.index as usize]
                {
                    channel.writable(&self.poll);
                }
                if readable {
                    self.read_pmi(Rank(token.index));
                }
            }
            Source::RankExit => self.rank_exit(Rank(token.index)),
            Source::Stdout | Source::Stderr => {
                let now = self.now();
                self.streams.readable(&self.poll, token, now)?;
            }
            Source::Control | Source::Upcall => {
                if writable && let Some(sidecar) = &mut self.nodes[node.index()].sidecar {
                    let control = token.source == Source::Control;
                    let channel = if control {
                        &mut sidecar.control
                    } else {
                        &mut sidecar.upcall
                    };
                    channel.writable(&self.poll);
                }
                if readable {
                    self.read_host(node, token.source);
                }
            }
            Source::HostOutput => self.read_host_output(node)?,
            Source::HostExit => self.host_exit(node)?,
        }
        Ok(())
    }

    /// The job has failed, unless it had before.
    pub(super) fn fail(&mut self, cause: Cause) {
        // A rank whose end waits to be judged came first, unless this is what it may have died of.
        if !matches!(cause, Cause::HostFailed { .. }) {
            self.judge_now();
        }
        let mut orders = Vec::new();
        self.supervisor
            .fail(cause, self.started.elapsed(), &mut orders);
        self.carry_out(orders);
    }

    fn carry_out(&mut self, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::Signal(signal) => {
                    self.killed |= signal == libc::SIGKILL;
                    self.signal_ranks(signal);
                    if signal == libc::SIGTERM {
                        self.hang_up();
                    }
                }
                Order::NoteInterrupt => {
                    let text = format!(
                        "interrupted; {} of {} ranks still run, interrupt again to end them",
                        self.supervisor.remaining(),
                        self.plan.job.ranks.size()
                    );
                    self.tell(&text);
                }
                Order::NoteFailure => {
                    if let Some(line) = finish::failure_line(self, self.supervisor.tolerated()) {
                        let others = match self.supervisor.remaining() {
                            0 => "",
                            _ => "; the others go on",
                        };
                        self.tell(&format!("{line}{others}"));
                    }
                }
            }
        }
        self.phase_changed();
        if self.supervisor.is_ending()
            && let Some(starter) = &self.starter
        {
            starter.stop();
        }
    }

    /// Where a rank lives.
    pub(super) fn place(&self, rank: Rank) -> (NodeId, LocalRank) {
        let ranks = &self.plan.job.ranks;
        let place = ranks.node_of(rank).zip(ranks.local_rank(rank));
        place.expect("the loop only knows ranks of the job")
    }
}

/// A process id as the system writes it.
pub(super) fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}
