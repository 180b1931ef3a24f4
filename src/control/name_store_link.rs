//! The process that keeps this launch's names outside of wireup (`--names`): started with the first request that other launches
//! may have to do with, it takes the place of the rendezvous for names. Launches meet at the rendezvous all the same.

use std::time::Duration;

use super::Controller;
use super::name_server_link::{NameServerLoss, STORE, refusal};
use crate::backend::name_store_process;
use crate::backend::step_messages::LauncherToStep;
use wireup_core::job::clock::Moment;
use wireup_core::job::name_store_kind::NameStoreKind;
use wireup_core::link::agent_protocol::{AgentRequest, VERSION};
use wireup_core::link::decode;
use wireup_core::link::frame::{FrameAddress, FrameClass};
use wireup_core::link::liveness::SILENCE;
use wireup_core::name_server::message::{NameServerCommand, NameServerReport};
use wireup_core::names::name_server_requests::NameServerRequest;
use wireup_core::names::request::{NameRequest, Persistence};
use wireup_core::node::HEAD;
use wireup_core::node::event::NodeCommand;
use wireup_sys::local_link::LocalLink;
use wireup_sys::poll::{PollEvent, PollSource, PollToken};

/// The variable with the default of `--names`.
const VARIABLE: &str = "WIREUP_NAMES";

impl Controller {
    /// Which store keeps names.
    pub(super) fn names_backend(&self) -> Result<NameStoreKind, NameServerLoss> {
        if let Some(backend) = &self.cx.plan.spec.interface.names {
            return Ok(backend.clone());
        }
        match self.cx.plan.inheritance.variable(VARIABLE) {
            None => Ok(NameStoreKind::Agents),
            Some(text) => {
                let parsed = text.to_string_lossy().parse();
                parsed.map_err(|error| NameServerLoss::Backend(VARIABLE, error))
            }
        }
    }

    /// Has names stay after their publishers, if the user wants that (`--keep-names`).
    pub(super) fn persist_names(&self, message: &mut NameServerCommand) {
        let Some(seconds) = self.cx.plan.spec.interface.keep_names else {
            return;
        };
        if let NameServerCommand::Store(NameServerRequest::Ask { request, .. } | NameServerRequest::Keep { request, .. }) =
            message
            && let NameRequest::Publish {
                persistence,
                limits,
                ..
            } = request
            // Such a value is part of a connection between jobs and no name.
            && *persistence != Persistence::FirstRead
        {
            *persistence = Persistence::Indefinite;
            let kept = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
            limits.expires = limits.expires.or(kept);
        }
    }

    /// Starts the process.
    pub(super) fn start_name_store(
        &mut self,
        backend: &NameStoreKind,
    ) -> Result<LocalLink, NameServerLoss> {
        let name = self.name_scope()?;
        let variables = &self.cx.plan.inheritance.vars;
        let started = name_store_process::start(backend, &name, variables);
        let own = started.map_err(|error| NameServerLoss::NoStore(backend.clone(), error))?;
        let now = Moment(self.cx.now());
        let poll = &self.cx.events.poll;
        let token = PollToken::new(PollSource::Rendezvous, STORE);
        let mut link = LocalLink::new(own, FrameAddress::Launcher, token, poll)?;
        let meet = AgentRequest::Meet {
            version: VERSION,
            name,
        };
        link.send(FrameAddress::EveryNode, FrameClass::Control, &meet, poll);
        link.watch(SILENCE, false, now);
        Ok(link)
    }

    /// The connection to the process that keeps names elsewhere is ready.
    pub(super) fn on_name_store_ready(&mut self, event: PollEvent) {
        let Some((link, backend)) = &mut self.name_server.store else {
            return;
        };
        let backend = backend.clone();
        let mut messages = Vec::new();
        let result = link.turn(event, &self.cx.events.poll, &mut messages);
        let mut lost = result.err().map(|_| NameServerLoss::Ended);
        for (envelope, body) in messages {
            match (envelope.class, decode(&body)) {
                (FrameClass::Control, _) => {
                    lost = Some(refusal(&body));
                    break;
                }
                (_, Ok(NameServerReport::Welcome)) => {}
                (_, Ok(NameServerReport::Trouble(text))) => {
                    self.cx.warn(&format!("--names {backend}: {text}"));
                }
                (_, Ok(message)) => {
                    let said = NodeCommand::Rendezvous(message);
                    self.cx.steps.send(LauncherToStep::Node(HEAD, said));
                }
                (_, Err(error)) => lost = Some(NameServerLoss::Garbage(error)),
            }
        }
        if let Some(lost) = lost {
            self.lose_rendezvous(&NameServerLoss::Store(backend, lost.into()));
        }
    }
}
