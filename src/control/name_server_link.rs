//! The launch's connection to where the launches of its user meet: made when the first node has
//! a message for it.
//!
//! Messages are kept until the other side has answered: a name server may be on its
//! way out when a launch comes.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::Controller;
use super::guard_state::GuardState;
use crate::backend::local_agent;
use crate::backend::name_server_process::{self, NameServerEndpoint};
use crate::backend::step_messages::LauncherToStep;
use crate::failure::AnyError;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::Nspace;
use wireup_core::job::name_store_kind::{InvalidNameStore, NameStoreKind};
use wireup_core::link::agent_protocol::{AgentReport, AgentRequest, VERSION};
use wireup_core::link::frame::{FrameAddress, FrameClass};
use wireup_core::link::liveness::SILENCE;
use wireup_core::link::{DecodeError, decode};
use wireup_core::name_server::MEET_MAX;
use wireup_core::name_server::message::{NameServerCommand, NameServerReport};
use wireup_core::node::HEAD;
use wireup_core::node::event::NodeCommand;
use wireup_sys::local_link::{LocalLink, PeerSilent};
use wireup_sys::poll::{PollEvent, PollSource, PollToken};

/// How long a rendezvous may take to show that it is there.
const PATIENCE: Duration = Duration::from_secs(10);

/// Timeout of the confirmation that a launch leaves.
const FAREWELL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Time another launch may take to answer before that is reported.
const PEER_PATIENCE: Duration = Duration::from_secs(10);

/// So often a launch looks for another rendezvous when the one it found ended.
const ATTEMPTS: u32 = 8;

/// The variable with the default of `--meet`.
const VARIABLE: &str = "WIREUP_MEET";

/// The number of the connection of a name store, among those of [`PollSource::Rendezvous`].
pub(super) const STORE: u32 = 1;

/// Why a launch has no rendezvous, or none any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum NameServerLoss {
    #[error("it cannot be started: {0}")]
    NotStarted(io::Error),
    #[error(transparent)]
    Socket(#[from] Errno),
    #[error("{VARIABLE} is no name: it has at most {MEET_MAX} bytes, in UTF-8")]
    NoName,
    /// The agent's reason.
    #[error("{0}")]
    Refused(String),
    #[error("it sent a message that this wireup does not know")]
    Unintelligible,
    #[error("it sent garbage: {0}")]
    Garbage(DecodeError),
    #[error("it has ended")]
    Ended,
    /// Seconds.
    #[error("it does not answer within {0} s")]
    NoAnswer(u64),
    #[error("it{0}")]
    Silent(PeerSilent),
    /// The variable with it.
    #[error("{0}: {1}")]
    Backend(&'static str, InvalidNameStore),
    #[error("the process for --names {0} cannot be started: {1}")]
    NoStore(NameStoreKind, AnyError),
    /// The process that keeps names elsewhere.
    #[error("--names {0}: {1}")]
    Store(NameStoreKind, Box<NameServerLoss>),
}

/// See the module.
#[derive(Default)]
pub(super) struct NameServerLink {
    link: Option<LocalLink>,
    /// The process that keeps names elsewhere, and where.
    pub(super) store: Option<(LocalLink, NameStoreKind)>,
    /// Those that were lost.
    epoch: u32,
    /// Messages to a name server that has not answered yet.
    unheard: Vec<NameServerCommand>,
    /// Until when it may.
    silent_until: Option<Duration>,
    attempts: u32,
    /// Job of another launch that has been sent something and has not answered, and when that is reported. Only with
    /// a store for names, by which launches find each other that have no name server in common.
    silent_peer: Option<(Nspace, Duration)>,
    /// Whether the warning about such a job was printed.
    silent_peer_reported: bool,
    /// That names are lost has been said.
    loss_reported: bool,
}

impl NameServerLink {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let link = self.link.as_ref().and_then(LocalLink::next_deadline);
        let store = self.store.as_ref();
        let store = store.and_then(|(store, _)| store.next_deadline());
        let links = [link, store].map(|at| at.map(|at| at.0));
        let peer = self.silent_peer.as_ref().map(|(_, at)| *at);
        let others = [self.silent_until, peer];
        links.into_iter().chain(others).flatten().min()
    }
}

/// Why the other end does not serve this launch, which is all that it says of the connection itself.
pub(super) fn refusal(body: &[u8]) -> NameServerLoss {
    match decode(body) {
        Ok(AgentReport::Refused { reason }) => NameServerLoss::Refused(reason),
        _ => NameServerLoss::Unintelligible,
    }
}

impl Controller {
    /// Says something to the rendezvous of that epoch.
    pub(super) fn send_to_name_server(&mut self, epoch: u32, mut message: NameServerCommand) {
        if epoch != self.name_server.epoch {
            return;
        }
        self.persist_names(&mut message);
        if matches!(message, NameServerCommand::Store(_)) {
            match self.names_backend() {
                Ok(NameStoreKind::Agents) => {}
                Ok(backend) => return self.send_to_name_store(backend, &message),
                Err(lost) => return self.lose_rendezvous(&lost),
            }
        }
        if let NameServerCommand::Relay { to, .. } = &message
            && self.name_server.store.is_some()
            && !self.name_server.silent_peer_reported
        {
            let at = self.cx.now() + PEER_PATIENCE;
            let peer = &mut self.name_server.silent_peer;
            peer.get_or_insert_with(|| (to.clone(), at));
        }
        if self.name_server.link.is_none()
            && let Err(lost) = self.find_rendezvous()
        {
            return self.lose_rendezvous(&lost);
        }
        if let Some(link) = &mut self.name_server.link {
            send(link, &message, &self.cx.events.poll);
        }
        if self.name_server.silent_until.is_some() {
            self.name_server.unheard.push(message);
        }
    }

    /// Says something to the process that keeps names elsewhere.
    fn send_to_name_store(&mut self, backend: NameStoreKind, message: &NameServerCommand) {
        if self.name_server.store.is_none() {
            match self.start_name_store(&backend) {
                Ok(link) => self.name_server.store = Some((link, backend)),
                Err(lost) => return self.lose_rendezvous(&lost),
            }
        }
        if let Some((link, _)) = &mut self.name_server.store {
            send(link, message, &self.cx.events.poll);
        }
    }

    /// Connects to the local agent, or else to the process that is the rendezvous without one, which
    /// is started if there is none.
    fn find_rendezvous(&mut self) -> Result<(), NameServerLoss> {
        let name = self.name_scope()?;
        let given = self.cx.plan.spec.layout.spread.agent.as_deref();
        let runtime = self.cx.plan.inheritance.variable("XDG_RUNTIME_DIR");
        let socket = match local_agent::try_find(given, self.cx.plan.job.uid, runtime) {
            Some(socket) => socket,
            None => match self.find_without_agent(&name) {
                Ok(NameServerEndpoint::There(socket)) => socket,
                Ok(NameServerEndpoint::New {
                    connection,
                    listener,
                }) => {
                    let started = match &self.cx.guard {
                        GuardState::Guarding(guard) => guard.line().start_rendezvous(&listener),
                        GuardState::Elsewhere | GuardState::Dismissed { .. } => {
                            name_server_process::start(&listener)
                        }
                    };
                    started.map_err(NameServerLoss::NotStarted)?;
                    connection
                }
                Err(errno) => return Err(errno.into()),
            },
        };
        let now = Moment(self.cx.now());
        let poll = &self.cx.events.poll;
        let token = PollToken::new(PollSource::Rendezvous, 0);
        let mut link = LocalLink::new(socket, FrameAddress::Launcher, token, poll)?;
        let meet = AgentRequest::Meet {
            version: VERSION,
            name,
        };
        link.send(FrameAddress::EveryNode, FrameClass::Control, &meet, poll);
        // The first launch has made its socket.
        link.watch(SILENCE, false, now);
        for message in &self.name_server.unheard {
            send(&mut link, message, poll);
        }
        self.name_server.link = Some(link);
        self.name_server.silent_until = Some(self.cx.now() + PATIENCE);
        Ok(())
    }

    fn find_without_agent(&mut self, name: &str) -> rustix::io::Result<NameServerEndpoint> {
        let runtime = self.cx.plan.inheritance.variable("XDG_RUNTIME_DIR");
        let base = name_server_process::base(self.cx.plan.job.uid, runtime);
        let mut why = None;
        let found = name_server_process::find(name, &base, |reason| why = Some(reason.to_owned()));
        if let Some(reason) = why {
            self.cx.detail(&format!(
                "launches meet by a name that others could take, since {reason}"
            ));
        }
        found
    }

    /// By which name the launch meets others; empty for none.
    pub(super) fn name_scope(&self) -> Result<String, NameServerLoss> {
        if let Some(name) = &self.cx.plan.spec.interface.meet {
            return Ok(name.clone());
        }
        let name = self.cx.plan.inheritance.variable(VARIABLE);
        let name = name.unwrap_or_default().to_str();
        let name = name.filter(|name| name.len() <= MEET_MAX);
        name.map(str::to_owned).ok_or(NameServerLoss::NoName)
    }

    /// The connection is ready.
    pub(super) fn on_name_server_ready(&mut self, event: PollEvent) {
        if event.token.index == STORE {
            return self.on_name_store_ready(event);
        }
        let Some(link) = &mut self.name_server.link else {
            return;
        };
        let mut messages = Vec::new();
        let result = link.turn(event, &self.cx.events.poll, &mut messages);
        for (envelope, body) in messages {
            if envelope.class == FrameClass::Control {
                return self.lose_rendezvous(&refusal(&body));
            }
            match decode(&body) {
                Ok(NameServerReport::Welcome) => {
                    self.name_server.silent_until = None;
                    self.name_server.attempts = 0;
                    self.name_server.unheard = Vec::new();
                }
                Ok(message) => {
                    if let NameServerReport::Relayed { .. } | NameServerReport::Gone(_) = &message {
                        self.name_server.silent_peer = None;
                    }
                    let said = NodeCommand::Rendezvous(message);
                    self.cx.steps.send(LauncherToStep::Node(HEAD, said));
                }
                Err(error) => return self.lose_rendezvous(&NameServerLoss::Garbage(error)),
            }
        }
        if result.is_ok() {
            return;
        }
        let came_late =
            self.name_server.silent_until.is_some() && self.name_server.attempts < ATTEMPTS;
        if !came_late {
            return self.lose_rendezvous(&NameServerLoss::Ended);
        }
        self.name_server.link = None;
        self.name_server.attempts += 1;
        if let Err(lost) = self.find_rendezvous() {
            self.lose_rendezvous(&lost);
        }
    }

    /// Warns of a job that was found by its name and does not answer: its launch may have another name server.
    fn report_silent_peer(&mut self, now: Duration) {
        let due = |(_, at): &mut (Nspace, Duration)| *at <= now;
        let Some((job, _)) = self.name_server.silent_peer.take_if(due) else {
            return;
        };
        let Some((_, store)) = &self.name_server.store else {
            return;
        };
        let text = format!(
            "no answer from job {job} of another launch for {} s: PMIx, which Open MPI connects by, needs a name server that both \
             launches use, in addition to --names {store}; start both on one host, or set the same `names` for the agents of \
             their hosts",
            PEER_PATIENCE.as_secs()
        );
        self.name_server.silent_peer_reported = true;
        self.cx.warn(&text);
    }

    /// A name server that does not answer is not used.
    pub(super) fn expire_name_server(&mut self, now: Duration) {
        self.report_silent_peer(now);
        if self
            .name_server
            .silent_until
            .is_some_and(|until| until <= now)
        {
            let seconds = PATIENCE.as_secs();
            return self.lose_rendezvous(&NameServerLoss::NoAnswer(seconds));
        }
        let poll = &self.cx.events.poll;
        let link = self.name_server.link.as_mut();
        if let Some(silent) = link.and_then(|link| link.check_liveness(Moment(now), poll)) {
            self.lose_rendezvous(&NameServerLoss::Silent(silent));
        }
        let poll = &self.cx.events.poll;
        if let Some((link, backend)) = &mut self.name_server.store
            && let Some(silent) = link.check_liveness(Moment(now), poll)
        {
            let lost =
                NameServerLoss::Store(backend.clone(), NameServerLoss::Silent(silent).into());
            self.lose_rendezvous(&lost);
        }
    }

    /// Leaves the rendezvous, which may end with that, and waits until it has heard of it.
    pub(crate) fn leave_rendezvous(&mut self) {
        let store = self.name_server.store.take().map(|(link, _)| link);
        for link in self.name_server.link.take().into_iter().chain(store) {
            // What cannot be shut down has ended already.
            if shutdown(&link, Shutdown::Write).is_ok() {
                let mut closed = [PollFd::new(&link, PollFlags::empty())];
                let _ = poll(&mut closed, Some(&FAREWELL));
            }
            let _ = self.cx.events.poll.remove(&link);
        }
    }

    pub(super) fn lose_rendezvous(&mut self, lost: &NameServerLoss) {
        let store = self.name_server.store.take().map(|(link, _)| link);
        for link in self.name_server.link.take().into_iter().chain(store) {
            // Its end may have taken it out already.
            let _ = self.cx.events.poll.remove(&link);
        }
        self.name_server.epoch += 1;
        self.name_server.unheard = Vec::new();
        self.name_server.silent_until = None;
        self.name_server.silent_peer = None;
        self.name_server.attempts = 0;
        self.cx
            .steps
            .send(LauncherToStep::Node(HEAD, NodeCommand::NameServerLost));
        if !std::mem::replace(&mut self.name_server.loss_reported, true)
            && !self.cx.supervisor.is_over()
        {
            self.cx.warn(&match lost {
                NameServerLoss::Store(..)
                | NameServerLoss::NoStore(..)
                | NameServerLoss::Backend(..) => {
                    format!("names cannot be published and looked up: {lost}")
                }
                lost => format!(
                    "the rendezvous of your launches is lost ({lost}); names that were published \
                     there are gone"
                ),
            });
        }
    }
}

fn send(link: &mut LocalLink, message: &NameServerCommand, poll: &wireup_sys::poll::Poll) {
    link.send(FrameAddress::EveryNode, FrameClass::Carried, message, poll);
}
