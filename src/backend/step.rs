//! `wireup step`: step daemon, which serves one node of a launch on several hosts.
//!
//! `wireup steps` ([`privileged_helper`]) forks it for the node's agent, or the agent starts it with one end of a socket as
//! descriptor 3. It runs as the job's user. It computes its plan from the job's description, passes the launcher's orders
//! to its backend, and forwards the backend's reports and the messages between nodes. When the agent or the launcher is
//! lost, it ends the ranks by itself; its guard removes the rest.

#[allow(unsafe_code, reason = "copies of a process that has one thread")]
mod privileged_helper;
mod rank_signals;
mod receive_files;
mod stdin_feeder;
mod step_cgroups;
mod step_commands;
#[allow(unsafe_code, reason = "descriptors that come with the process")]
mod step_start;

use std::ffi::CStr;
use std::io::Write as _;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getppid};
use rustix::thread::set_name;
use tracing::info_span;

use self::rank_signals::{RankSignals, SignalPath};
use self::receive_files::{IncomingFiles, bring};
use self::stdin_feeder::StdinFeeder;
use self::step_start::{StepStart, begin, make_backend, take_link};
use crate::backend::grant_holder::GrantWatcher;
use crate::backend::guard::Guard;
use crate::backend::job_label::{JobLabel, JobStage};
use crate::backend::local::{LocalStep, RankIo};
use crate::backend::step_messages::{LauncherToStep, NodeRefusal, NodeStage, StepToLauncher};
use crate::plan::{HostPlan, SpawnedJobPlan, Variable, program_builds};
use wireup_core::failure::CommandError;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_core::job::outcome::FailureCause;
use wireup_core::link::frame::{FrameAddress, FrameClass};
use wireup_core::link::reassembly::{Envelope, gathered};
use wireup_core::output_credit::window;
use wireup_core::record::Stream;
use wireup_core::step::report_batch::together;
use wireup_core::step::{OrphanAction, StepState};
use wireup_sys::descriptors;
use wireup_sys::inherited_state::InheritedState;
use wireup_sys::interfaces;
use wireup_sys::local_link::LocalLink;
use wireup_sys::log;
use wireup_sys::poll::{Poll, PollEvent, PollSource, PollToken};
use wireup_sys::signals::{Signals, ignore_file_size_signal, ignored_at_start, name};

/// Process name of a step.
pub const NAME: &CStr = c"wireup-step";

/// Descriptor of the link to the agent.
pub const LINK_FD: RawFd = 3;

/// Time limit for the agent to read the last messages of a step.
const LAST_WORDS: Duration = Duration::from_secs(5);

type Messages = Vec<(Envelope, Vec<u8>)>;

/// State of a step daemon.
struct StepDaemon {
    local: LocalStep,
    guard: Option<Guard>,
    link: LocalLink,
    signals: Signals,
    rank_signals: RankSignals,
    surroundings: InheritedState,
    plan: Arc<HostPlan>,
    label: JobLabel,
    /// Nodes below this one in the routing tree of the launch, without those that joined later.
    children: Vec<NodeId>,
    origin: Instant,
    state: StepState,
    stdin_feeder: StdinFeeder,
    /// Job that will be spawned, and its files that arrive before the rest is prepared.
    incoming: Option<(IncomingFiles, Box<SpawnedJobPlan>)>,
    /// Reports not yet sent to the launcher.
    unsent_reports: Vec<StepToLauncher>,
    job_ended: bool,
    /// Grant holder that revokes the launch's fabric grant if the launcher is lost.
    watch: Option<GrantWatcher>,
}

/// Runs a step and returns its exit code.
///
/// # Errors
/// [`CommandError`] if there is no agent to report to, or the step itself failed.
pub fn run() -> Result<u8, CommandError> {
    show_name()?;
    run_on(take_link()?, std::env::vars_os().collect())
}

/// Forks steps for an agent, and runs the step in each fork. Returns the exit code.
///
/// # Errors
/// [`CommandError`] when there is no agent, or those of [`run`].
pub fn serve() -> Result<u8, CommandError> {
    match privileged_helper::serve()? {
        Some((link, variables)) => run_on(link, variables),
        None => Ok(0),
    }
}

/// Sets the process name by which steps are found: the command line of a forked step is the helper's.
fn show_name() -> Result<(), CommandError> {
    set_name(NAME).map_err(|errno| CommandError::system("cannot set the process's name", errno))
}

fn run_on(socket: OwnedFd, variables: Vec<Variable>) -> Result<u8, CommandError> {
    ignore_file_size_signal();
    let ignored = ignored_at_start();
    descriptors::reserve_low()
        .map_err(|error| CommandError::system("cannot reserve descriptors", error))?;
    let mut surroundings = InheritedState::take(ignored);
    let mut poll = Poll::new().map_err(cannot_wait)?;
    let token = PollToken::new(PollSource::Link, 0);
    let mut link =
        LocalLink::new(socket, FrameAddress::EveryNode, token, &poll).map_err(cannot_wait)?;
    let mut backlog = Messages::new();
    let begun = begin(&mut poll, &mut link, &mut backlog);
    let StepStart {
        node,
        tree,
        mut description,
        silence,
    } = match begun {
        Ok(begun) => begun,
        Err(not) => return Err(not.report_to_agent(link)),
    };
    if let Some(filter) = &description.spec.log {
        // The launcher has checked the filter.
        let _ = log::start(filter);
    }
    let span = info_span!("launch", id = %description.decided.job.nspace);
    let _launch = span.enter();
    link.set_own(FrameAddress::Node(node));
    let label = JobLabel::show(&description.decided, Some(node));
    if description.spec.status.live {
        let stage = NodeStage::Joined;
        let reports: Vec<StepToLauncher> = vec![StepToLauncher::Reached { node, stage }];
        link.send(FrameAddress::Launcher, FrameClass::Carried, &reports, &poll);
    }
    let brought = bring(&mut poll, &mut link, &mut backlog, node, &mut description);
    let backend = brought.and_then(|()| {
        make_backend(
            poll,
            node,
            description,
            silence,
            variables,
            &mut surroundings,
        )
    });
    match backend {
        Ok(backend) => {
            let (plan, origin) = (backend.plan, backend.started);
            link.watch(silence, true, Moment(origin.elapsed()));
            let window = window(plan.job.process_map.nodes());
            let builds = program_builds::builds_of(&plan, Some(node));
            let builds = (!builds.is_empty()).then_some(StepToLauncher::Builds { node, builds });
            let several = plan.job.process_map.nodes() > 1;
            let network = several.then(interfaces::network).flatten();
            let network = network.map(|network| StepToLauncher::Network { node, network });
            let unsent_reports = builds.into_iter().chain(network).collect();
            let mut step = StepDaemon {
                local: backend.local,
                guard: Some(backend.guard),
                link,
                signals: backend.signals,
                rank_signals: RankSignals::default(),
                surroundings,
                children: tree.first_children(node).collect(),
                plan,
                label,
                origin,
                state: StepState::new(window),
                stdin_feeder: StdinFeeder::default(),
                incoming: None,
                unsent_reports,
                job_ended: false,
                watch: backend.watch,
            };
            step.run_job(backlog)
        }
        Err(failure) => {
            let refusal: Vec<StepToLauncher> = vec![StepToLauncher::Refused(NodeRefusal {
                code: failure.code(),
                message: failure.to_string(),
            })];
            link.last_word(FrameClass::Carried, &refusal, LAST_WORDS);
            Ok(0)
        }
    }
}

/// Writes a line to the agent's log. Without an agent it has no reader; that must not end the step before it has ended its
/// ranks.
fn log_line(text: &str) {
    let _ = writeln!(std::io::stderr(), "wireup step: {text}");
}

fn cannot_wait(error: rustix::io::Errno) -> CommandError {
    CommandError::system("cannot wait for events", error)
}

impl StepDaemon {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Runs until nothing is left of the launch on this host.
    fn run_job(&mut self, backlog: Messages) -> Result<u8, CommandError> {
        let broken = |error| CommandError::system("the step failed", error);
        self.take_messages(backlog);
        self.pass_on().map_err(broken)?;
        let mut ready = Vec::new();
        while !self.job_ended {
            let deadline = [
                self.local.next_deadline(),
                self.state.next_deadline(),
                self.link.next_deadline().map(|at| at.0),
                self.stdin_feeder.next_deadline(),
            ];
            let deadline = deadline.into_iter().flatten().min();
            let timeout = deadline.map(|at| at.saturating_sub(self.now()));
            self.local
                .wait(timeout, &mut ready)
                .map_err(|error| broken(error.into()))?;
            ready.sort_by_key(|event| event.token.source != PollSource::RankExit);
            for event in &ready {
                self.dispatch(*event).map_err(broken)?;
                // The output of this pipe may use up the credit.
                self.collect_reports().map_err(broken)?;
            }
            self.local.tick().map_err(broken)?;
            self.check_agent();
            self.report_input();
            self.pass_on().map_err(broken)?;
            self.run_orphaned();
        }
        // The guard ends in the meantime, and is waited for last.
        let _dismissed = self.guard.take().map(Guard::dismiss);
        self.flush();
        if !self.state.is_orphaned()
            && let Some(watch) = self.watch.take()
        {
            watch.finish();
        }
        Ok(0)
    }

    fn dispatch(&mut self, event: PollEvent) -> std::io::Result<()> {
        match event.token.source {
            PollSource::Signals => self.take_signals(),
            PollSource::Link => {
                let mut messages = Messages::new();
                let result = self.link.turn(event, self.local.poll(), &mut messages);
                self.take_messages(messages);
                if let Err(error) = result {
                    self.orphaned(&error.to_string());
                }
            }
            PollSource::Feed => {
                self.stdin_feeder
                    .ready(GlobalRank(event.token.index), self.local.poll());
                self.report_input();
            }
            _ => self.local.dispatch(event)?,
        }
        Ok(())
    }

    /// Treats a silent agent as lost, and with it the launcher.
    fn check_agent(&mut self) {
        let now = Moment(self.now());
        if let Some(silent) = self.link.check_liveness(now, self.local.poll()) {
            self.orphaned(&format!("this host's agent{silent}"));
        }
    }

    fn take_signals(&mut self) {
        while let Some((signal, sender)) = self.signals.pending_from() {
            match signal {
                Signal::CHILD => self.local.reap_orphans(),
                Signal::TERM => {
                    self.fail(format!("its step was ended by {}", name(signal)));
                    self.orphaned("");
                }
                other => {
                    let agent = getppid().map(|pid| pid.as_raw_nonzero().get());
                    let path = match sender.map(|(pid, _)| pid) == agent {
                        true => SignalPath::Agent,
                        // Only a batch system that started the agent also signals the ranks.
                        false if self.plan.spec.layout.spread.starter.is_none() => continue,
                        false => SignalPath::Direct,
                    };
                    self.pass_signal(other.as_raw(), path);
                }
            }
        }
    }

    /// Sends a signal to the ranks, unless they have received it another way.
    fn pass_signal(&mut self, signal: i32, path: SignalPath) {
        if self.rank_signals.must_pass(signal, path, self.now()) {
            self.local.order(LauncherToStep::Signal(signal));
        }
    }

    fn fail(&mut self, error: String) {
        let node = self.local.first_node();
        let cause = FailureCause::NodeFailed { node, error };
        self.unsent_reports
            .push(StepToLauncher::Failed { cause, state: None });
        self.flush_reports();
    }

    fn start_ranks(&mut self) -> Result<(), CommandError> {
        let io = RankIo::open(&self.plan, &self.local.ranks_here())?;
        self.local.start_ranks(io, &self.surroundings)
    }

    /// Sends the backend's reports to the launcher and the messages of its node to other nodes.
    fn pass_on(&mut self) -> std::io::Result<()> {
        for (to, message) in gathered(self.local.take_outbound(), &self.children) {
            self.link
                .send(to, FrameClass::Carried, &message, self.local.poll());
        }
        self.collect_reports()?;
        if self.unsent_reports.is_empty() {
            return Ok(());
        }
        let now = self.now();
        if self.state.must_flush(now) {
            self.flush_reports();
        }
        Ok(())
    }

    /// Collects the backend's reports for sending.
    fn collect_reports(&mut self) -> std::io::Result<()> {
        while let Some(one) = self.local.next_report() {
            match &one {
                StepToLauncher::Output { stream, bytes, .. } => {
                    let is_spent = self.state.spend(*stream, bytes.len());
                    // Reading pauses when no credit is left.
                    if is_spent {
                        self.local.pause(*stream, true)?;
                    }
                }
                StepToLauncher::AllStarted { job } if job.is_initial() => {
                    self.label.turn(JobStage::Running);
                    self.stdin_feeder
                        .add(self.local.take_stdin(), self.local.poll());
                }
                StepToLauncher::Over => self.job_ended = true,
                _ => {}
            }
            // The last report cannot be merged with later ones.
            let last = matches!(one, StepToLauncher::Judged { .. }) && self.local.ranks_are_over();
            self.state.note(one.can_wait() && !last);
            self.unsent_reports.push(one);
        }
        Ok(())
    }

    /// Sends all collected reports to the launcher.
    fn flush_reports(&mut self) {
        self.state.reports_flushed();
        let ending = self.state.is_orphaned() || self.local.is_ending();
        let reports = together(std::mem::take(&mut self.unsent_reports), ending);
        self.report_to_launcher(&reports);
    }

    fn report_input(&mut self) {
        // This report is first, since the launcher stops reading input when all ranks have.
        if self.stdin_feeder.find_first_read(self.now()) {
            self.report_to_launcher(&[StepToLauncher::InputRead]);
        }
        if let Some(open) = self.stdin_feeder.report.take() {
            self.report_to_launcher(&[StepToLauncher::InputTaken { open }]);
        }
    }

    /// Handles the loss of the launcher: ends the ranks, and then everything else.
    fn orphaned(&mut self, reason: &str) {
        let (grace, now) = (self.plan.spec.ending.grace, self.now());
        if !self.state.orphan(grace, now) {
            return;
        }
        if !reason.is_empty() {
            log_line(&format!("{} ends: {reason}", self.plan.job.nspace));
        }
        self.link.trust();
        self.label.turn(JobStage::Ending);
        self.local.order(LauncherToStep::Ending);
        self.execute(LauncherToStep::Skip);
        self.local.order(LauncherToStep::Signal(libc::SIGTERM));
        self.local.order(LauncherToStep::Signal(libc::SIGCONT));
        for stream in [Stream::Stdout, Stream::Stderr] {
            // A stream that cannot be watched is not read.
            let _ = self.local.pause(stream, false);
        }
    }

    fn run_orphaned(&mut self) {
        let (over, now) = (self.local.ranks_are_over(), self.now());
        for last in self.state.orphan_action(over, now) {
            self.local.order(match last {
                OrphanAction::Kill => LauncherToStep::Signal(libc::SIGKILL),
                OrphanAction::Finish => LauncherToStep::Finish {
                    abnormal: true,
                    ends: Vec::new(),
                },
            });
        }
    }

    /// Waits until the agent has read everything or has ended.
    fn flush(&mut self) {
        let until = self.now() + LAST_WORDS;
        let mut ready = Vec::new();
        while !self.link.is_flushed() && self.now() < until && !self.state.is_orphaned() {
            let wait = until.saturating_sub(self.now());
            if self.local.wait(Some(wait), &mut ready).is_err() {
                return;
            }
            for event in ready
                .iter()
                .filter(|event| event.token.source == PollSource::Link)
            {
                let result = self.link.turn(*event, self.local.poll(), &mut Vec::new());
                if result.is_err() {
                    return;
                }
            }
        }
    }
}
