//! The backends of several hosts, led over the local agent's socket.

mod conclusions;
mod file_transfer;
mod grow;
mod launch_opening;
mod lost_nodes;
mod stdin_reader;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use self::file_transfer::Sending;
use self::stdin_reader::Input;
use crate::backend::Backend;
use crate::backend::admission::admits;
use crate::backend::backend_message::{FromBackend, ToBackend};
use crate::backend::guard::Guard;
use crate::backend::job_label::{JobLabel, JobStage};
use crate::backend::launch_entry::EntryAgent;
use crate::backend::link_message::Carried;
use crate::backend::local::RankIo;
use crate::backend::wait_report::Awaited;
use crate::failure::RunFailure;
use crate::plan::launch_names::own_host;
use crate::plan::{Plan, SpawnedJob, StagedFiles};
use crate::report::singleton_detection::MpiProcess;
use crate::sys::local_link::LinkEnd;
use crate::sys::poll::{Poll, Ready, Source};
use crate::sys::process_state::Surroundings;
use wireup_core::fleet::Fleet;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{GlobalRank, JobNumber, NodeId};
use wireup_core::job::outcome::{Cause, PmiState};
use wireup_core::job::roster::Roster;
use wireup_core::link::control::{FromAgent, LaunchEnd, ToAgent};
use wireup_core::link::decode;
use wireup_core::link::frame::{Address, Class};
use wireup_core::link::message::Envelope;
use wireup_core::node::event::FromNode;
use wireup_core::node::{HEAD, JobContext};
use wireup_core::record::Stream;
use wireup_core::step::alike::Alike;
use wireup_core::supervisor::Waiting;
use wireup_core::supervisor::first_failure::{AcrossHosts, may_follow};

/// See the module.
pub(crate) struct RemoteBackend {
    /// Of the first job, which has what holds for the whole launch.
    plan: Arc<Plan>,
    jobs: Roster<Arc<JobContext>>,
    label: JobLabel,
    origin: Instant,
    poll: Poll,
    wake: Arc<OwnedFd>,
    link: LinkEnd,
    /// After the link, whose end it waits for.
    _entry: Option<EntryAgent>,
    /// Why the link is of no use any more.
    cut: Option<String>,
    fleet: Fleet,
    /// What each rank had done, as far as it is known.
    states: Vec<Option<Arc<PmiState>>>,
    told: VecDeque<FromBackend>,
    /// What may follow from what another host has not told yet.
    failures: AcrossHosts<FromBackend>,
    /// The ranks that the nodes check for waiting ranks, those not sent to them yet, and those that
    /// are waited for.
    asked: Awaited,
    to_ask: Awaited,
    waits: Awaited,
    input: Option<Input>,
    /// Running spawned jobs, for nodes that join.
    living: BTreeMap<JobNumber, Box<SpawnedJob>>,
    /// What goes along with the first job, until it has gone.
    staged_files: Vec<StagedFiles>,
    /// What is sent to the hosts that lack it.
    sending: Option<Sending>,
}

impl RemoteBackend {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn send(&mut self, to: Address, message: &Carried) {
        if self.cut.is_none() {
            self.link.send(to, Class::Carried, message, &self.poll);
        }
    }

    fn read_link(&mut self, event: Ready) {
        if event.writable {
            self.link.writable(&self.poll);
        }
        if !event.readable || self.cut.is_some() {
            return;
        }
        let mut messages = Vec::new();
        let result = self.link.receive(&self.poll, &mut messages);
        for (envelope, body) in messages {
            self.take(envelope, &body);
        }
        if let Err(error) = result {
            self.lose_link(&format!("host {}: {error}", own_host()));
        }
    }

    fn take(&mut self, envelope: Envelope, body: &[u8]) {
        if envelope.class == Class::Control {
            return match decode(body) {
                Ok(FromAgent::Refused { reason }) => self.lose_link(&reason),
                Ok(FromAgent::Unreachable { nodes, reason, .. }) => {
                    self.lose_branch(&nodes, &reason)
                }
                Ok(FromAgent::Returned(returned)) => self.returned(returned),
                Ok(FromAgent::Nodes(_)) => {}
                Err(error) => self.lose_link(&format!("the agent sent garbage: {error}")),
            };
        }
        let Address::Node(node) = envelope.from else {
            return;
        };
        if node.index() >= self.fleet.len() {
            return;
        }
        match decode(body) {
            Ok(Carried::Told(told)) => {
                for one in told {
                    self.take_told_by(node, one);
                }
            }
            Ok(Carried::Lacks(files)) => self.lacks(node, &files),
            Ok(Carried::Taken { bytes }) => self.took(node, bytes),
            Ok(Carried::Refused(refusal)) => {
                self.stop_staging(&[node]);
                self.conclude(|fleet, _, out| fleet.refused(node, refusal, out));
            }
            Ok(Carried::InputTaken { open }) => self.input_taken(node, open),
            Ok(Carried::InputRead) => self.input_read(),
            Ok(_) => {}
            Err(error) => {
                self.lose_nodes(&[node], &format!("it sent garbage: {error}"));
            }
        }
    }

    /// Handles a report of a node, if the node may send it.
    fn take_told_by(&mut self, node: NodeId, told: FromBackend) {
        if !admits(&self.jobs, node, &told) {
            return;
        }
        if self.fleet.is_joining(node) && !self.joining_told(node, &told) {
            return;
        }
        match told {
            FromBackend::Ready => {
                if !self.fleet.is_ready(node) && !self.fleet.is_joining(node) {
                    self.tell(FromBackend::NodeReady { node });
                }
                return self.conclude(|fleet, _, out| fleet.ready(node, out));
            }
            FromBackend::AllStarted { job } => {
                return self.conclude(|fleet, _, out| fleet.started(node, job, out));
            }
            FromBackend::Over => return self.conclude(|fleet, _, out| fleet.node_over(node, out)),
            // It keeps the names.
            FromBackend::Node {
                said: FromNode::Rendezvous { .. },
                ..
            } if node != HEAD => return,
            FromBackend::Output {
                stream, ref bytes, ..
            } => {
                let bytes = bytes.len() as u32;
                self.conclude(|fleet, _, out| fleet.output(node, stream, bytes, out));
            }
            FromBackend::NotStarted { rank, .. } | FromBackend::Gone { rank } => {
                self.fleet.rank_done(rank);
            }
            FromBackend::Ended { rank, .. } => self.fleet.rank_ended(rank),
            FromBackend::Judged {
                rank, ref state, ..
            } => {
                self.fleet.rank_done(rank);
                self.keep_state(rank, &Arc::new(state.clone()));
            }
            FromBackend::Alike(Alike::Ended {
                ref state,
                ref ranks,
                ..
            }) => {
                let state = Arc::new(state.clone());
                for (rank, _) in ranks {
                    self.fleet.rank_done(*rank);
                    self.keep_state(*rank, &state);
                }
            }
            FromBackend::Failed {
                ref cause,
                state: Some(ref state),
            } => {
                if let Some(rank) = cause.rank() {
                    self.keep_state(rank, &Arc::new(state.clone()));
                }
            }
            FromBackend::Waits(awaited) => {
                self.waits.extend(awaited);
                return;
            }
            _ => {}
        }
        match self.may_follow(&told) {
            true => {
                let now = self.now();
                self.failures.withhold(node, told, now);
            }
            false => self.tell(told),
        }
    }

    /// Whether something is likely to be the consequence of the end of a rank on another host.
    fn may_follow(&self, told: &FromBackend) -> bool {
        let follows = match told {
            FromBackend::Judged { end, state, .. }
            | FromBackend::Alike(Alike::Ended { end, state, .. }) => may_follow(Ok((*end, state))),
            FromBackend::Failed { cause, .. } => may_follow(Err(cause)),
            _ => false,
        };
        follows && !self.fleet.is_ending() && self.fleet.len() > 1
    }

    fn keep_state(&mut self, rank: GlobalRank, state: &Arc<PmiState>) {
        let at = rank.index();
        if self.states.len() <= at {
            self.states.resize(at + 1, None);
        }
        self.states[at] = Some(Arc::clone(state));
    }

    fn tell(&mut self, told: FromBackend) {
        self.told.push_back(told);
    }

    fn tell_held(&mut self) {
        self.told.extend(self.failures.settle());
    }

    /// Sends the nodes the ranks to check that they do not have yet.
    fn ask(&mut self) {
        if !self.to_ask.is_empty() {
            let order = ToBackend::Ask(std::mem::take(&mut self.to_ask));
            self.send(Address::EveryNode, &Carried::Order(order));
        }
    }
}

impl Backend for RemoteBackend {
    fn poll(&mut self) -> &mut Poll {
        &mut self.poll
    }

    fn wake(&self) -> &Arc<OwnedFd> {
        &self.wake
    }

    fn guard(&mut self) -> Option<&mut Guard> {
        None
    }

    fn dismiss_guard(&mut self) {}

    fn prepare(&mut self, _surroundings: &Surroundings) -> Result<(), RunFailure> {
        self.open();
        Ok(())
    }

    fn start(&mut self, _io: RankIo, _surroundings: &Surroundings) -> Result<(), RunFailure> {
        self.send(Address::EveryNode, &Carried::Start);
        Ok(())
    }

    fn dispatch(&mut self, event: Ready) -> io::Result<()> {
        match event.token.source {
            Source::Link => self.read_link(event),
            Source::Wake => {
                let mut count = [0; 8];
                let _ = rustix::io::read(&self.wake, &mut count);
            }
            Source::Input => self.read_input(),
            _ => {}
        }
        Ok(())
    }

    fn tick(&mut self) -> io::Result<()> {
        let now = self.now();
        self.told.extend(self.failures.due(now));
        self.conclude(|fleet, jobs, out| fleet.tick(jobs, now, out));
        self.ask();
        if let Some(silent) = self.link.look(Moment(now), &self.poll) {
            let own = own_host();
            self.lose_link(&format!("the agent of {own}{silent}; was it stopped?"));
        }
        Ok(())
    }

    fn next_deadline(&self) -> Option<Duration> {
        let held = self.failures.next_deadline();
        let ask = (!self.to_ask.is_empty()).then_some(Duration::ZERO);
        let agent = self.link.next_deadline().map(|at| at.0);
        let limits = [held, self.fleet.next_deadline(), ask, agent];
        limits.into_iter().flatten().min()
    }

    fn take_told(&mut self) -> Option<FromBackend> {
        self.told.pop_front()
    }

    fn order(&mut self, order: ToBackend) {
        if matches!(order, ToBackend::Ending | ToBackend::Finish { .. }) {
            self.label.turn(JobStage::Ending);
        }
        match order {
            ToBackend::Ending if !self.fleet.end() => return,
            ToBackend::Ending => self.tell_held(),
            ToBackend::JobOver(job) => {
                self.living.remove(&job);
            }
            ToBackend::Signal(libc::SIGKILL) => {
                let now = self.now();
                self.fleet.kill(now);
            }
            ToBackend::Finish { .. } => {
                let (grace, now) = (self.plan.spec.ending.grace, self.now());
                self.conclude(|fleet, _, out| fleet.finish(grace, now, out));
            }
            _ => {}
        }
        let to = match &order {
            ToBackend::Node(node, _) => Address::Node(*node),
            _ => Address::EveryNode,
        };
        self.send(to, &Carried::Order(order));
    }

    fn add_job(&mut self, job: Box<SpawnedJob>, _plan: &Arc<Plan>) {
        let number = self.jobs.add(Arc::clone(&job.job));
        self.fleet.add_job(number, self.jobs.size());
        let message = Carried::AddJob(job);
        self.send(Address::EveryNode, &message);
        if let Carried::AddJob(mut job) = message {
            job.unload();
            self.living.insert(number, job);
        }
    }

    fn grow(&mut self, plan: &Arc<Plan>) {
        self.invite(plan);
    }

    fn grown(&mut self, plan: &Arc<Plan>) {
        self.tell_of_joined(plan);
    }

    fn pause(&mut self, stream: Stream, paused: bool) -> io::Result<()> {
        self.conclude(|fleet, _, out| fleet.pause(stream, paused, out));
        Ok(())
    }

    fn waits(&mut self, waiting: Waiting) -> bool {
        if !self.asked.contains(waiting) {
            self.asked.insert(waiting);
            self.to_ask.insert(waiting);
        }
        self.waits.contains(waiting)
    }

    fn explain(&self, cause: &Cause) -> Option<Cause> {
        self.cut_off(cause)
    }

    fn look(&mut self, app: u32, ranks: &[GlobalRank]) -> Option<MpiProcess> {
        let mut by_node: BTreeMap<NodeId, Vec<GlobalRank>> = BTreeMap::new();
        for rank in ranks {
            if let Some(node) = self.jobs.node_of(*rank) {
                by_node.entry(node).or_default().push(*rank);
            }
        }
        for (node, ranks) in by_node {
            let order = Carried::Order(ToBackend::Look { app, ranks });
            self.send(Address::Node(node), &order);
        }
        None
    }

    fn judge_now(&mut self) {
        self.tell_held();
    }

    fn pmi_state(&self, rank: GlobalRank) -> PmiState {
        let state = self.states.get(rank.index()).and_then(Option::as_ref);
        state
            .map(|state| PmiState::clone(state))
            .unwrap_or_default()
    }

    /// Hosts report how a rank ended. They are asked for dumps at the end ([`Look::Dump`](super::inspection::Look)).
    fn dumped(&self, _rank: GlobalRank) -> Option<String> {
        None
    }

    fn report_end(&mut self, end: LaunchEnd) {
        let end = ToAgent::Ended(end);
        self.link
            .send(Address::EveryNode, Class::Control, &end, &self.poll);
    }

    fn late(&self) -> Vec<NodeId> {
        let all = self.plan.job.ranks.node_ids();
        all.filter(|node| !self.fleet.has_answered(*node)).collect()
    }

    fn reap_orphans(&mut self) {}

    fn signal_rank(&self, _rank: GlobalRank, _signal: Signal) {}
}
