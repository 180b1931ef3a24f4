//! The life of the node's sidecar: its timeouts, and the effect of its failure.
//!
//! ```text
//! Starting ──job registered──▶ Ready ──job over──▶ Stopping ──process gone──▶ Ended
//!    └─ it fails, breaks the protocol, keeps silent ─┴──▶ Broken ─────────────▲
//! ```
//! The controller, which knows all nodes, decides the effect of a lost sidecar on the job: other
//! nodes may still need the data of ranks that have finished here.

mod silence;

use std::time::Duration;

use crate::groups::GroupEngine;
use crate::job::clock::Moment;
use crate::job::ids::JobNumber;
use crate::job::patience::Patience;
use crate::job::shortage;
use crate::link::liveness::SILENCE;
use crate::node::event::{Action, Report, SidecarEnd};
use crate::node::{NodeCore, PmixState};
use crate::pmix::control::{Control, ControlReply, Failed, StartupStage};
use crate::pmix::sidecar::{RequestId, SidecarEvent};
use crate::pmix::wire::WireError;

/// From the start of the process until the job is registered. Loading libraries from a cold
/// network file system takes seconds.
const START_LIMIT: Duration = Duration::from_secs(30);
/// More of it for each node of the job, since virtual nodes start on one machine.
const START_LIMIT_PER_NODE: Duration = Duration::from_millis(250);
/// From the request to stop until the process is gone.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// From the end of a socket until the process is gone. A process that dies closes its sockets
/// first, and its exit status says more. It may need two seconds for an orderly end.
const CLOSED_LIMIT: Duration = Duration::from_secs(3);

/// What to do when both sides do not speak the same language.
const UNINTELLIGIBLE: &str = "; use wireup together with the wireup-pmix-host it was built with";

/// Where the sidecar is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SidecarState {
    /// The job needs none.
    Absent,
    /// Started, the job not yet registered.
    Starting,
    /// Serving.
    Ready,
    /// Asked to stop.
    Stopping,
    /// Given up and to be killed.
    Broken,
    /// Gone.
    Ended,
}

/// The sidecar as its node sees it.
#[derive(Debug)]
pub(super) struct SidecarLife {
    pub(super) state: SidecarState,
    loaded: bool,
    /// It said that it has stopped its server.
    stopped: bool,
    /// One of its sockets has ended.
    closed: bool,
    /// Until when something must have happened.
    patience: Option<Patience>,
    /// When to probe it next.
    probe_at: Option<Moment>,
    /// The probe whose answer `patience` waits for.
    probe: Option<RequestId>,
    /// How long it may be silent.
    silence: Duration,
    /// Since when it has not answered.
    silent_since: Moment,
    /// A probe made because a rank ended badly, and how long that end waits for it.
    doubt: Option<(RequestId, Moment)>,
    /// So often in a row it was seen to be stopped while it started.
    seen_stopped: u32,
    /// It was started for tools: no rank that was there before needs it.
    for_tools: bool,
    /// Another one may serve in its place: it was ready once, or was killed while it started.
    replaceable: bool,
}

impl SidecarLife {
    pub(super) fn new(needed: bool) -> Self {
        Self {
            state: if needed {
                SidecarState::Starting
            } else {
                SidecarState::Absent
            },
            loaded: false,
            stopped: false,
            closed: false,
            patience: None,
            probe_at: None,
            probe: None,
            silence: SILENCE,
            silent_since: Moment::default(),
            doubt: None,
            seen_stopped: 0,
            for_tools: false,
            replaceable: false,
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let patience = self.patience.map(|patience| patience.next());
        let doubt = self.doubt.map(|(_, until)| until);
        [patience, self.probe_at, doubt].into_iter().flatten().min()
    }

    /// Whether it serves.
    pub(super) fn is_ready(&self) -> bool {
        self.state == SidecarState::Ready
    }

    /// Whether the job has one.
    pub(super) fn is_offered(&self) -> bool {
        self.state != SidecarState::Absent
    }

    /// Whether it is listened to.
    fn is_heard(&self) -> bool {
        self.is_needed() || self.state == SidecarState::Stopping
    }

    /// Whether ranks are to use it, or do.
    fn is_needed(&self) -> bool {
        matches!(self.state, SidecarState::Starting | SidecarState::Ready)
    }

    /// Nothing more is expected of it.
    fn settle(&mut self, state: SidecarState) {
        *self = Self {
            state,
            silence: self.silence,
            for_tools: self.for_tools,
            replaceable: self.replaceable,
            ..Self::new(true)
        };
    }
}

impl NodeCore {
    /// Makes the sidecar's first requests, which need what only the driver knows (directories,
    /// users). They may wait in its socket while it still loads its libraries.
    pub fn start_sidecar(&mut self, requests: &[Control]) {
        let now = self.cx.now;
        let nodes = self.cx.jobs.nodes();
        let limit = START_LIMIT + START_LIMIT_PER_NODE * nodes;
        self.cx.sidecar.patience = Some(Patience::new(limit, now));
        for request in requests {
            self.cx.control(request);
        }
    }

    /// A tool has come to a launch whose ranks are not offered PMIx: there is a sidecar from now on. Its
    /// requests register all jobs that have not ended, the first one first.
    pub fn start_sidecar_for_tools(&mut self, requests: &[Control]) {
        self.cx.sidecar = SidecarLife {
            for_tools: true,
            silence: self.cx.sidecar.silence,
            ..SidecarLife::new(true)
        };
        self.cx.link.renew();
        self.groups.engine.server_returned();
        self.start_sidecar(requests);
    }

    /// Whether it was started for tools and is gone, without harm to any rank, so that tools that come later may get
    /// another one. One that failed at its start would fail again, unless it was killed.
    pub fn sidecar_may_follow(&self) -> bool {
        let SidecarLife {
            state,
            for_tools,
            replaceable,
            ..
        } = self.cx.sidecar;
        state == SidecarState::Ended && for_tools && replaceable && self.ranks_are_done()
    }

    /// Gives up a sidecar that is silent for so long.
    pub fn impatient_after(mut self, silence: Duration) -> Self {
        self.cx.sidecar.silence = silence;
        self
    }

    /// Something came on one of the sidecar's sockets.
    pub(super) fn sidecar_replied(&mut self, events: Result<Vec<SidecarEvent>, WireError>) {
        if !self.cx.sidecar.is_heard() {
            return;
        }
        // Frames that were complete before an error count: a rank that finalized has finalized.
        self.sidecar_events(events.unwrap_or_default());
        if let Some(error) = self.cx.link.error() {
            let text = format!("what it sends cannot be understood: {error}{UNINTELLIGIBLE}");
            self.sidecar_broken(text);
        }
    }

    pub(super) fn control_reply(&mut self, id: RequestId, reply: ControlReply) {
        let now = self.cx.now;
        match reply {
            ControlReply::Init(Ok(())) => self.direction.server_started(&mut self.cx),
            ControlReply::RegisterJob(result) if self.collectives.registers(id) => {
                self.collectives
                    .far_registered(id, result.map(drop), &mut self.cx);
            }
            ControlReply::RegisterJob(result) if self.registers(id).is_some() => {
                self.job_registered(id, result);
            }
            ControlReply::RegisterJob(Ok(env)) => {
                self.queries.note_server(&env);
                if self.cx.sidecar.state == SidecarState::Starting {
                    self.cx.sidecar.state = SidecarState::Ready;
                    self.cx.sidecar.replaceable = true;
                    if !self.cx.sidecar.closed {
                        self.cx.sidecar.patience = None;
                        self.cx.sidecar.probe_at = Some(now + self.cx.sidecar.silence / 2);
                    }
                    self.cx.order(Action::Report(Report::SidecarReady {
                        job: JobNumber(0),
                        env,
                    }));
                    self.stopped.tell_of_earlier_stops(&mut self.cx);
                }
            }
            ControlReply::Init(Err(refusal)) | ControlReply::RegisterJob(Err(refusal)) => {
                // A known cause has its own remedy.
                let remedy = match refusal.text.contains("; ") {
                    true => "",
                    false => "; see what it prints with -vv, or try another libpmix (--libpmix)",
                };
                let text = format!("{refusal}{remedy}");
                self.sidecar_broken(text);
            }
            ControlReply::DirectModex(result) => {
                self.modex.sidecar_answered(id, result, &mut self.cx);
                self.settle();
            }
            // No process waits for the delivery of an event: its sender has continued long ago.
            ControlReply::Notify(_) => self.end_notices.answered(id),
            ControlReply::DeregisterJob(_) => {}
            ControlReply::IofDeliver(_) => self.outputs.delivered(id, &mut self.cx),
            // Its exit reports the result.
            ControlReply::Finalize(_) => self.cx.sidecar.stopped = true,
            ControlReply::Probe(_) => {
                self.end_notices.answered(id);
                self.probe_answered(id);
            }
        }
    }

    /// The sidecar reports why it cannot continue.
    pub(super) fn sidecar_gave_up(&mut self, failed: &Failed) {
        // The other stages know their own remedies.
        let remedy = match (shortage::remedy(&failed.text.to_string()), failed.stage) {
            ("", StartupStage::Link) => UNINTELLIGIBLE,
            (remedy, _) => remedy,
        };
        let text = format!("{}{remedy}", failed.text);
        self.sidecar_broken(text);
    }

    /// The sidecar has loaded its libraries.
    pub(super) fn sidecar_loaded(&mut self) {
        self.cx.sidecar.loaded = true;
    }

    /// All ranks have ended: the sidecar is asked to stop.
    pub(super) fn stop_sidecar(&mut self) {
        let now = self.cx.now;
        if self.cx.sidecar.is_needed() {
            self.cx.sidecar.settle(SidecarState::Stopping);
            self.cx.sidecar.patience = Some(Patience::new(STOP_LIMIT, now));
            self.cx.control(&Control::Finalize);
        }
    }

    /// A socket of the sidecar has ended. That is how it stops, dies, or goes wrong.
    pub(super) fn sidecar_closed(&mut self) {
        let now = self.cx.now;
        if self.cx.sidecar.is_needed() && !self.cx.sidecar.closed {
            self.cx.sidecar.closed = true;
            self.cx.sidecar.probe_at = None;
            self.cx.sidecar.patience = Some(Patience::new(CLOSED_LIMIT, now));
        }
    }

    /// The sidecar's process has ended.
    pub(super) fn sidecar_ended(&mut self, how: String, end: SidecarEnd) {
        if self.cx.sidecar.is_heard() && !(end == SidecarEnd::InOrder && self.cx.sidecar.stopped) {
            self.cx.sidecar.replaceable |= end == SidecarEnd::Killed;
            self.sidecar_lost(how);
        }
        self.cx.sidecar.settle(SidecarState::Ended);
    }

    pub(super) fn sidecar_tick(&mut self) {
        let now = self.cx.now;
        let life = &mut self.cx.sidecar;
        life.doubt = life.doubt.filter(|(_, until)| now < *until);
        if life.probe_at.is_some_and(|at| now >= at) {
            life.probe_at = None;
            life.silent_since = now;
            life.patience = Some(Patience::new(life.silence / 2, now));
            self.cx.sidecar.probe = self.cx.control(&Control::Probe);
        }
        let Some(patience) = &mut self.cx.sidecar.patience else {
            return;
        };
        let due = now >= patience.next();
        let (over, limit) = (patience.exhausted(now), patience.limit());
        match (self.cx.sidecar.state, self.cx.sidecar.closed) {
            // One that is stopped does not start any more; one that waits may wait for a file system.
            (SidecarState::Starting, false) if due && !over => self.cx.order(Action::LookAtSidecar),
            (SidecarState::Ready, false) if over => self.cx.order(Action::LookAtSidecar),
            _ if over => self.sidecar_timed_out(limit),
            _ => {}
        }
    }

    /// The sidecar cannot be used any more, though its process may still run.
    pub(super) fn sidecar_broken(&mut self, error: String) {
        if self.cx.sidecar.is_heard() {
            self.sidecar_lost(error);
            self.cx.order(Action::KillSidecar);
        }
    }

    /// Reports the loss and answers the sidecar's pending requests.
    fn sidecar_lost(&mut self, error: String) {
        self.cx.sidecar.settle(SidecarState::Broken);
        self.cx.order(Action::Report(Report::SidecarLost { error }));
        self.groups
            .with_engine(GroupEngine::server_lost, &mut self.cx);
        self.end_notices.clear();
        self.cx.lose_tools();
        self.outputs.sidecar_lost(&mut self.cx);
        self.modex.sidecar_lost(&mut self.cx);
        self.settle();
    }

    /// Whether no rank of this node needs the sidecar any more: each has finalized or ended, or was never
    /// to have one.
    pub fn ranks_are_done(&self) -> bool {
        let needs = |rank: &PmixState| match rank {
            PmixState::Absent => self.cx.sidecar.is_offered() && !self.cx.sidecar.for_tools,
            PmixState::Connected => true,
            PmixState::Finalized | PmixState::Died | PmixState::Stayed => false,
        };
        !self.cx.pmix.iter().any(needs)
    }
}

#[cfg(test)]
mod tests;
