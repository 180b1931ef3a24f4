//! The controller of a running job: one loop that handles the backends' reports, decides the
//! reaction, and prints output.

mod allocations;
mod directed;
pub(crate) mod events;
pub(crate) mod finish;
mod growth;
mod mpir;
pub(crate) mod orders;
mod progress;
mod pty;
mod rendezvous;
pub(crate) mod requests;
pub mod run;
mod signals;
pub(crate) mod singletons;
mod slurm_job;
mod spawn;
pub(crate) mod status;
pub(crate) mod waiting_spawns;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use allocations::Allotments;
use growth::Growth;
use rendezvous::NameServerLink;
use requests::Requests;
use singletons::Alone;
use spawn::Family;
use waiting_spawns::Crowd;

use crate::backend::Backend;
use crate::backend::message::{NodeRefusal, ToBackend};
use crate::control::orders::Orders;
use crate::plan::Plan;
use crate::plan::job_names::JobNames;
use crate::plan::jobs::Jobs;
use crate::report::failures::Unended;
use crate::report::progress::Progress;
use crate::report::status::{Kept, Status};
use crate::stdio::pty::Pty;
use crate::stdio::streams::Streams;
use crate::sys::out_of_memory::Counter;
use crate::sys::poll::{Ready, Source, Token};
use crate::sys::signals::Signals;
use crate::sys::syslog::Syslog;
use wireup_core::job::ids::{GlobalRank, JobNumber, NodeId, Rank};
use wireup_core::job::log::Channel;
use wireup_core::job::outcome::{Cause, PmiState, RankEnd};
use wireup_core::job::rank_set::RankSet;
use wireup_core::logged::Logged;
use wireup_core::record::{FenceObserver, JobState, Stream};
use wireup_core::supervisor::{Supervisor, SupervisorOrder};

/// Known facts about one rank's process.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankLife {
    /// Its process, once it was started.
    pub(crate) pid: Option<i32>,
    /// When the loop heard of it.
    pub(crate) start: Duration,
    /// When the loop heard of its end, and how it ended, unless the system lost that.
    pub(crate) end: Option<(Duration, Option<RankEnd>)>,
    /// It was ever in contact with a process-management interface.
    pub(crate) connected: bool,
    /// Why it did not end in order, if it did not: a kind of the status stream.
    pub(crate) fate: Option<&'static str>,
}

impl RankLife {
    fn runs(&self) -> bool {
        self.pid.is_some() && self.end.is_none()
    }

    /// It has a slot no more: it has ended, or was never started.
    fn is_over(&self) -> bool {
        self.end.is_some() || self.fate.is_some()
    }
}

/// What a node's sidecar said about itself.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// What libpmix calls itself.
    pub(crate) libpmix: String,
    /// Its warning, if any.
    pub(crate) warnings: Vec<String>,
}

/// A job from the start of its processes to the end of the last one.
pub(crate) struct Controller {
    /// Of the first job, which has what holds for the whole launch.
    pub(crate) plan: Arc<Plan>,
    pub(crate) jobs: Jobs,
    pub(crate) started: Instant,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) signals: Signals,
    pub(crate) streams: Streams,
    pub(crate) supervisor: Supervisor,
    /// The terminal of the rank that has one.
    pty: Option<Pty>,
    /// When the user's terminal is left as it was found, once its rank has ended.
    terminal_until: Option<Duration>,
    /// Known facts about every rank's process, by rank, for reports.
    pub(crate) lives: Vec<RankLife>,
    /// Every sidecar is ready to have its ranks started.
    pub(crate) hosts_ready: bool,
    /// By node: the libpmix that its sidecar has loaded.
    pub(crate) loaded: Vec<Option<Loaded>>,
    /// The start of every rank has been reported.
    all_reported: bool,
    /// Nodes that cannot take part.
    pub(crate) refused: Vec<(NodeId, NodeRefusal)>,
    /// Nothing of the job is left.
    pub(crate) over: bool,
    /// The status stream, if there is one.
    pub(crate) status: Option<Status>,
    /// The status stream as what is made of it at the end needs it.
    kept: Option<Kept>,
    /// Puts together what nodes report of fences.
    fences: FenceObserver,
    /// The last job state in it.
    phase_told: JobState,
    /// Ranks that were ever in contact with a process-management interface.
    connected: u32,
    /// The names of its jobs.
    names: JobNames,
    /// Jobs that were spawned.
    family: Family,
    /// Hosts that are to join.
    growth: Growth,
    /// Spawns that wait for slots.
    crowd: Crowd,
    /// The process that sent the first signal that asked for the job's end, in words.
    pub(crate) ended_by: Option<String>,
    /// Ranks that had not ended when the job began to be ended.
    pub(crate) unended: Unended,
    /// How many processes the out-of-memory killer had ended when all ranks had been started.
    pub(crate) memory: Option<Counter>,
    /// Looks out for ranks that never will be.
    alone: Alone,
    /// The progress line.
    progress: Progress,
    /// Whether it knows that the job is being ended.
    end_expected: bool,
    ready: Vec<Ready>,
    /// That a rank speaks another form of PMI than expected has been said.
    dialect_told: bool,
    /// Where orders come from, until they end.
    orders: Option<Orders>,
    /// That a fence takes long has been said.
    late_told: bool,
    /// Texts logged with `PMIX_LOG_ONCE`.
    logged: Logged<Channel>,
    /// The log of this host's system.
    syslog: Syslog,
    /// Signals that asked the launcher to end when it was ending, or no rank ran.
    pub(crate) interrupts: u32,
    /// The way to the rendezvous of the user's launches.
    name_server: NameServerLink,
    /// What processes have set aside.
    allotments: Allotments,
    /// Nodes to whose servers PMIx tools are attached.
    tools: BTreeSet<NodeId>,
    /// To the tool that has started the launcher.
    director: Option<File>,
    /// What others ask about the launch.
    requests: Requests,
}

/// The parts from which the controller is built.
pub(crate) struct ControllerParts {
    pub(crate) plan: Arc<Plan>,
    pub(crate) started: Instant,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) signals: Signals,
    pub(crate) streams: Streams,
    pub(crate) status: Option<Status>,
    /// When the run started.
    pub(crate) since: SystemTime,
}

impl Controller {
    /// A job without started ranks.
    pub(crate) fn new(parts: ControllerParts) -> Self {
        let size = parts.plan.job.ranks.size();
        let nodes = parts.plan.node_names.len();
        Self {
            supervisor: Supervisor::new(size, &parts.plan.spec.ending),
            lives: vec![RankLife::default(); size as usize],
            hosts_ready: false,
            loaded: vec![None; nodes],
            all_reported: false,
            refused: Vec::new(),
            over: false,
            status: parts.status,
            kept: Kept::of(&parts.plan.spec.status, parts.since),
            fences: FenceObserver::default(),
            phase_told: JobState::Planned,
            connected: 0,
            names: JobNames::of(&parts.plan.job.nspace),
            family: Family::new(size),
            growth: Growth::default(),
            crowd: Crowd::default(),
            ended_by: None,
            unended: Unended::default(),
            memory: None,
            alone: Alone::new(parts.plan.apps.len()),
            end_expected: false,
            progress: Progress::new(parts.streams.on_terminal(), parts.plan.spec.verbose > 0),
            ready: Vec::new(),
            dialect_told: false,
            orders: None,
            late_told: false,
            logged: Logged::default(),
            syslog: Syslog::default(),
            interrupts: 0,
            name_server: NameServerLink::default(),
            allotments: Allotments::new(parts.plan.spec.interface.allocator.clone()),
            tools: BTreeSet::new(),
            director: None,
            requests: Requests::default(),
            pty: None,
            terminal_until: None,
            jobs: Jobs::new(Arc::clone(&parts.plan)),
            plan: parts.plan,
            started: parts.started,
            backend: parts.backend,
            signals: parts.signals,
            streams: parts.streams,
        }
    }

    /// Takes orders from now on.
    ///
    /// # Errors
    /// When the descriptor cannot be waited for.
    pub(crate) fn obey(&mut self, orders: Orders) -> rustix::io::Result<()> {
        let token = Token::new(Source::Orders, 0);
        self.backend.poll().add(orders.as_fd(), token)?;
        self.orders = Some(orders);
        Ok(())
    }

    /// Time since the start of the run.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Runs the loop until `done` returns true.
    ///
    /// # Errors
    /// When waiting itself fails, or a thread that writes output cannot be started.
    pub(crate) fn run_until(&mut self, done: impl Fn(&Self) -> bool) -> std::io::Result<()> {
        self.hear()?;
        while !done(self) {
            let now = self.now();
            self.turn(self.next_deadline().map(|at| at.saturating_sub(now)))?;
        }
        Ok(())
    }

    /// Runs the loop until `done` returns true or the deadline has passed.
    ///
    /// # Errors
    /// As [`Controller::run_until`].
    pub(crate) fn run_until_or(
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

    /// Deals with everything that is ready now.
    fn turn(&mut self, timeout: Option<Duration>) -> std::io::Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        self.backend.poll().wait(timeout, &mut ready)?;
        let woken = self.now();
        // Ends first: reports of others about a dead rank are consequences of its death.
        ready.sort_by_key(|event| event.token.source != Source::RankExit);
        for event in &ready {
            match event.token.source {
                Source::Signals => self.take_signals(),
                Source::Orders => self.take_orders(),
                Source::Director => self.director_gone(),
                Source::Wake => self.look_at_terminal(),
                Source::Rendezvous => self.hear_rendezvous(*event),
                Source::Requests => self.hear_request(*event),
                Source::Allocator => self.hear_allocator(*event),
                _ => {}
            }
            self.backend.dispatch(*event)?;
            self.hear()?;
        }
        self.tick(woken)?;
        self.ready = ready;
        Ok(())
    }

    fn next_deadline(&self) -> Option<Duration> {
        [
            self.supervisor
                .next_deadline()
                .filter(|_| !self.requests.hold_timeout()),
            self.requests.next_deadline(),
            self.streams.next_deadline(),
            self.backend.next_deadline(),
            self.alone.next_deadline(),
            self.progress.next_deadline(),
            self.terminal_until,
            self.name_server.next_deadline(),
            self.family.next_deadline(),
            self.growth.next_deadline(),
            self.crowd.next_deadline(),
            self.allotments.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// All input that was ready at `woken` has been handled.
    fn tick(&mut self, woken: Duration) -> std::io::Result<()> {
        self.backend.tick()?;
        self.hear()?;
        let now = self.now();
        self.release_terminal(now);
        self.look_at_growth(now);
        self.look_at_family(now);
        self.look_at_crowd(now);
        self.look_at_allocations(now);
        // As of then: since, the pipes may have got the ends of lines that waited.
        self.streams.tick(woken)?;
        self.regulate()?;
        self.check_status();
        self.look_for_singletons(now);
        self.show_progress(now);
        self.give_up_rendezvous(now);
        if let Some((what, errno)) = self.streams.failure() {
            let cause = Cause::OutputLost {
                error: format!("{what} cannot be written: {errno}"),
                pipe: errno == rustix::io::Errno::PIPE,
            };
            self.fail(cause);
        }
        self.look_at_requests(now);
        if self.waits_for_stacks(now) {
            return Ok(());
        }
        let mut orders = Vec::new();
        let backend = &mut self.backend;
        self.supervisor
            .tick(now, |waiting| backend.waits(waiting), &mut orders);
        self.carry_out(orders);
        Ok(())
    }

    /// Stops reading what goes where nothing is taken.
    pub(crate) fn regulate(&mut self) -> std::io::Result<()> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.backend.pause(stream, self.streams.is_full(stream))?;
        }
        Ok(())
    }

    /// The job has failed, unless it had before.
    pub(crate) fn fail(&mut self, cause: Cause) {
        // A rank whose end is held back came first.
        self.backend.judge_now();
        // What cannot be heard now is heard by the loop, which fails then.
        let _ = self.hear();
        self.fail_by(cause);
    }

    /// The same, after ends that were held back have been judged.
    fn fail_by(&mut self, cause: Cause) {
        let mut orders = Vec::new();
        self.supervisor
            .fail(cause, self.started.elapsed(), &mut orders);
        self.carry_out(orders);
    }

    fn carry_out(&mut self, orders: Vec<SupervisorOrder>) {
        // Before the signals of the end, which a rank that is being started gets once.
        if self.supervisor.is_ending() {
            self.backend.order(ToBackend::Ending);
        }
        for order in orders {
            match order {
                SupervisorOrder::Signal(signal) => {
                    self.backend.order(ToBackend::Signal(signal));
                    if signal == libc::SIGTERM {
                        self.hang_up();
                    }
                }
                SupervisorOrder::SignalRanks(signal, ranks) => {
                    self.backend.order(ToBackend::SignalRanks { signal, ranks });
                }
                SupervisorOrder::NoteAbort { by, code, ranks } => {
                    if let Some(ranks) = self.names_of(&ranks) {
                        let text = format!(
                            "{} aborted {ranks} with code {code}; the others continue",
                            self.jobs.name_of(by)
                        );
                        self.tell(&text);
                    }
                }
                SupervisorOrder::NoteInterrupt => {
                    let text = format!(
                        "interrupted; {} of {} ranks still run, interrupt again to end them",
                        self.supervisor.remaining(),
                        self.jobs.size()
                    );
                    self.tell(&text);
                }
                SupervisorOrder::NoteFailure(cause) => {
                    if let Some(line) = finish::failure_line(self, Some(&cause)) {
                        let others = match self.supervisor.remaining() {
                            0 => "",
                            _ => "; the others continue",
                        };
                        self.tell(&format!("{line}{others}"));
                    }
                }
            }
        }
        self.phase_changed();
    }

    /// What a rank has done with its process-management interfaces.
    pub(crate) fn pmi_state(&self, rank: GlobalRank) -> PmiState {
        self.backend.pmi_state(rank)
    }

    /// Some processes in words: `ranks 1,3-5`, `ranks 0-1 of spawned job 2`.
    fn names_of(&self, processes: &[GlobalRank]) -> Option<String> {
        let mut by_job: BTreeMap<JobNumber, Vec<Rank>> = BTreeMap::new();
        for process in processes {
            let (job, rank) = self.jobs.find(*process)?;
            by_job.entry(job).or_default().push(rank);
        }
        let names = by_job.into_iter().map(|(job, ranks)| {
            let ranks = RankSet::of(&ranks)?;
            Some(match job {
                JobNumber(0) => format!("ranks {ranks}"),
                job => format!("ranks {ranks} of spawned job {job}"),
            })
        });
        Some(names.collect::<Option<Vec<_>>>()?.join(" and "))
    }
}
