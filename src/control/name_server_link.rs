//! Connection of a launch to the name server of its user's launches, made when a node sends the first
//! message to it.
//!
//! Messages are kept until the name server has answered: it may be about to exit when a launch
//! connects.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

use super::guard_state::GuardState;
use super::launch_context::LaunchContext;
use super::launch_service::LaunchService;
use super::name_scope::{NameServerLoss, name_scope, open_link, refusal};
use super::name_store_link::{STORE, names_backend, persist_names, start_store};
use crate::backend::local_agent;
use crate::backend::name_server_process::{self, NameServerEndpoint};
use crate::backend::step_messages::LauncherToStep;
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::Nspace;
use wireup_core::job::name_store_kind::NameStoreKind;
use wireup_core::link::decode;
use wireup_core::link::frame::{FrameAddress, FrameClass};
use wireup_core::name_server::message::{NameServerCommand, NameServerReport};
use wireup_core::node::HEAD;
use wireup_core::node::event::NodeCommand;
use wireup_sys::local_link::LocalLink;
use wireup_sys::poll::PollEvent;

/// Time in which a name server must answer after the connection was made.
const PATIENCE: Duration = Duration::from_secs(10);

/// Timeout of the confirmation that a launch leaves the name server.
const FAREWELL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Time another launch may take to answer before that is reported.
const PEER_PATIENCE: Duration = Duration::from_secs(10);

/// Number of times that a launch looks for another name server when the one it found has exited.
const ATTEMPTS: u32 = 8;

/// The connections to the name server and to the name store process.
#[derive(Default)]
pub(super) struct NameServerLink {
    link: Option<LocalLink>,
    /// Connection to the name store process, and the kind of store.
    pub(super) store: Option<(LocalLink, NameStoreKind)>,
    /// Number of name servers that were lost.
    epoch: u32,
    /// Messages to a name server that has not answered yet.
    unheard: Vec<NameServerCommand>,
    /// Time by which the name server must answer; `None` after its answer.
    silent_until: Option<Duration>,
    attempts: u32,
    /// Job of another launch that was sent a message and has not answered, and the time at which that is reported. Only
    /// with a name store, by which launches find each other that have no name server in common.
    silent_peer: Option<(Nspace, Duration)>,
    /// Whether the warning about such a job was printed.
    silent_peer_reported: bool,
    /// Whether the warning about lost names was printed.
    loss_reported: bool,
}

impl LaunchService for NameServerLink {
    fn next_deadline(&self) -> Option<Duration> {
        let link = self.link.as_ref().and_then(LocalLink::next_deadline);
        let store = self.store.as_ref();
        let store = store.and_then(|(store, _)| store.next_deadline());
        let links = [link, store].map(|at| at.map(|at| at.0));
        let peer = self.silent_peer.as_ref().map(|(_, at)| *at);
        let others = [self.silent_until, peer];
        links.into_iter().chain(others).flatten().min()
    }

    /// Gives up a name server or a name store process that does not answer.
    fn tick(&mut self, cx: &mut LaunchContext, now: Duration) {
        self.report_silent_peer(cx, now);
        if self.silent_until.is_some_and(|until| until <= now) {
            let seconds = PATIENCE.as_secs();
            return self.lose(cx, &NameServerLoss::NoAnswer(seconds));
        }
        let poll = &cx.events.poll;
        let link = self.link.as_mut();
        if let Some(silent) = link.and_then(|link| link.check_liveness(Moment(now), poll)) {
            self.lose(cx, &NameServerLoss::Silent(silent));
        }
        let poll = &cx.events.poll;
        if let Some((link, backend)) = &mut self.store
            && let Some(silent) = link.check_liveness(Moment(now), poll)
        {
            let lost =
                NameServerLoss::Store(backend.clone(), NameServerLoss::Silent(silent).into());
            self.lose(cx, &lost);
        }
    }
}

impl NameServerLink {
    /// Sends a message to the name server of that epoch; drops it if that one was lost.
    pub(super) fn send(
        &mut self,
        cx: &mut LaunchContext,
        epoch: u32,
        mut message: NameServerCommand,
    ) {
        if epoch != self.epoch {
            return;
        }
        persist_names(cx, &mut message);
        if matches!(message, NameServerCommand::Store(_)) {
            match names_backend(cx) {
                Ok(NameStoreKind::Agents) => {}
                Ok(backend) => return self.send_to_store(cx, backend, &message),
                Err(lost) => return self.lose(cx, &lost),
            }
        }
        if let NameServerCommand::Relay { to, .. } = &message
            && self.store.is_some()
            && !self.silent_peer_reported
        {
            let at = cx.now() + PEER_PATIENCE;
            let peer = &mut self.silent_peer;
            peer.get_or_insert_with(|| (to.clone(), at));
        }
        if self.link.is_none()
            && let Err(lost) = self.find_rendezvous(cx)
        {
            return self.lose(cx, &lost);
        }
        if let Some(link) = &mut self.link {
            send(link, &message, &cx.events.poll);
        }
        if self.silent_until.is_some() {
            self.unheard.push(message);
        }
    }

    /// Sends a message to the name store process, which is started if it does not run.
    fn send_to_store(
        &mut self,
        cx: &mut LaunchContext,
        backend: NameStoreKind,
        message: &NameServerCommand,
    ) {
        if self.store.is_none() {
            match start_store(cx, &backend) {
                Ok(link) => self.store = Some((link, backend)),
                Err(lost) => return self.lose(cx, &lost),
            }
        }
        if let Some((link, _)) = &mut self.store {
            send(link, message, &cx.events.poll);
        }
    }

    /// Connects to the local agent, or without an agent to the name server process, which is started if
    /// it does not run.
    fn find_rendezvous(&mut self, cx: &mut LaunchContext) -> Result<(), NameServerLoss> {
        let name = name_scope(cx)?;
        let agent_path = cx.plan.spec.layout.spread.agent.as_deref();
        let runtime = cx.plan.inheritance.variable("XDG_RUNTIME_DIR");
        let socket = match local_agent::try_find(agent_path, cx.plan.job.uid, runtime) {
            Some(socket) => socket,
            None => match find_without_agent(cx, &name) {
                Ok(NameServerEndpoint::There(socket)) => socket,
                Ok(NameServerEndpoint::New {
                    connection,
                    listener,
                }) => {
                    let started = match &cx.guard {
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
        let mut link = open_link(cx, socket, 0, name)?;
        for message in &self.unheard {
            send(&mut link, message, &cx.events.poll);
        }
        self.link = Some(link);
        self.silent_until = Some(cx.now() + PATIENCE);
        Ok(())
    }

    /// Handles a connection that is ready to be read or written.
    pub(super) fn on_ready(&mut self, cx: &mut LaunchContext, event: PollEvent) {
        if event.token.index == STORE {
            return self.on_store_ready(cx, event);
        }
        let Some(link) = &mut self.link else {
            return;
        };
        let mut messages = Vec::new();
        let result = link.turn(event, &cx.events.poll, &mut messages);
        for (envelope, body) in messages {
            if envelope.class == FrameClass::Control {
                return self.lose(cx, &refusal(&body));
            }
            match decode(&body) {
                Ok(NameServerReport::Welcome) => {
                    self.silent_until = None;
                    self.attempts = 0;
                    self.unheard = Vec::new();
                }
                Ok(message) => {
                    if let NameServerReport::Relayed { .. } | NameServerReport::Gone(_) = &message {
                        self.silent_peer = None;
                    }
                    let command = NodeCommand::Rendezvous(message);
                    cx.steps.send(LauncherToStep::Node(HEAD, command));
                }
                Err(error) => return self.lose(cx, &NameServerLoss::Garbage(error)),
            }
        }
        if result.is_ok() {
            return;
        }
        let came_late = self.silent_until.is_some() && self.attempts < ATTEMPTS;
        if !came_late {
            return self.lose(cx, &NameServerLoss::Ended);
        }
        self.link = None;
        self.attempts += 1;
        if let Err(lost) = self.find_rendezvous(cx) {
            self.lose(cx, &lost);
        }
    }

    /// Handles the connection to the name store process, which is ready to be read or written.
    fn on_store_ready(&mut self, cx: &mut LaunchContext, event: PollEvent) {
        let Some((link, backend)) = &mut self.store else {
            return;
        };
        let backend = backend.clone();
        let mut messages = Vec::new();
        let result = link.turn(event, &cx.events.poll, &mut messages);
        let mut lost = result.err().map(|_| NameServerLoss::Ended);
        for (envelope, body) in messages {
            match (envelope.class, decode(&body)) {
                (FrameClass::Control, _) => {
                    lost = Some(refusal(&body));
                    break;
                }
                (_, Ok(NameServerReport::Welcome)) => {}
                (_, Ok(NameServerReport::Trouble(text))) => {
                    cx.warn(&format!("--names {backend}: {text}"));
                }
                (_, Ok(message)) => {
                    let command = NodeCommand::Rendezvous(message);
                    cx.steps.send(LauncherToStep::Node(HEAD, command));
                }
                (_, Err(error)) => lost = Some(NameServerLoss::Garbage(error)),
            }
        }
        if let Some(lost) = lost {
            self.lose(cx, &NameServerLoss::Store(backend, lost.into()));
        }
    }

    /// Warns of a job that was found by its name and does not answer: its launch may have another name server.
    fn report_silent_peer(&mut self, cx: &mut LaunchContext, now: Duration) {
        let due = |(_, at): &mut (Nspace, Duration)| *at <= now;
        let Some((job, _)) = self.silent_peer.take_if(due) else {
            return;
        };
        let Some((_, store)) = &self.store else {
            return;
        };
        let text = format!(
            "no answer from job {job} of another launch for {} s: PMIx, which Open MPI connects by, needs a name server that both \
             launches use, in addition to --names {store}; start both on one host, or set the same `names` for the agents of \
             their hosts",
            PEER_PATIENCE.as_secs()
        );
        self.silent_peer_reported = true;
        cx.warn(&text);
    }

    /// Leaves the name server, which may exit then, and waits for up to a second until it has closed the connection.
    pub(crate) fn leave(&mut self, cx: &mut LaunchContext) {
        let store = self.store.take().map(|(link, _)| link);
        for link in self.link.take().into_iter().chain(store) {
            // A connection that cannot be shut down has ended already.
            if shutdown(&link, Shutdown::Write).is_ok() {
                let mut closed = [PollFd::new(&link, PollFlags::empty())];
                let _ = poll(&mut closed, Some(&FAREWELL));
            }
            let _ = cx.events.poll.remove(&link);
        }
    }

    pub(super) fn lose(&mut self, cx: &mut LaunchContext, lost: &NameServerLoss) {
        let store = self.store.take().map(|(link, _)| link);
        for link in self.link.take().into_iter().chain(store) {
            // The end of a connection may have removed it already.
            let _ = cx.events.poll.remove(&link);
        }
        self.epoch += 1;
        self.unheard = Vec::new();
        self.silent_until = None;
        self.silent_peer = None;
        self.attempts = 0;
        cx.steps
            .send(LauncherToStep::Node(HEAD, NodeCommand::NameServerLost));
        if !std::mem::replace(&mut self.loss_reported, true) && !cx.supervisor.is_over() {
            cx.warn(&match lost {
                NameServerLoss::Store(..)
                | NameServerLoss::NoStore(..)
                | NameServerLoss::Backend(..) => {
                    format!("names cannot be published and looked up: {lost}")
                }
                lost => format!(
                    "the name server of your launches is lost: {lost}; names that were published there are lost"
                ),
            });
        }
    }
}

fn find_without_agent(
    cx: &mut LaunchContext,
    name: &str,
) -> rustix::io::Result<NameServerEndpoint> {
    let runtime = cx.plan.inheritance.variable("XDG_RUNTIME_DIR");
    let base = name_server_process::base(cx.plan.job.uid, runtime);
    let mut why = None;
    let found = name_server_process::find(name, &base, |reason| why = Some(reason.to_owned()));
    if let Some(reason) = why {
        cx.detail(&format!(
            "other users could take the address of the name server, since {reason}"
        ));
    }
    found
}

fn send(link: &mut LocalLink, message: &NameServerCommand, poll: &wireup_sys::poll::Poll) {
    link.send(FrameAddress::EveryNode, FrameClass::Carried, message, poll);
}
