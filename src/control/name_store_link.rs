//! The process that keeps this launch's names outside of wireup (`--names`): started with the first request that other launches
//! may have to do with, it takes the place of the rendezvous for names. Launches meet at the rendezvous all the same.

use std::time::Duration;

use super::Controller;
use super::name_server_link::{Lost, STORE, refusal};
use crate::backend::backend_message::ToBackend;
use crate::backend::name_store_process;
use crate::sys::local_link::LinkEnd;
use crate::sys::poll::{Ready, Source, Token};
use wireup_core::job::clock::Moment;
use wireup_core::job::name_backend::NameBackend;
use wireup_core::link::control::{ToAgent, VERSION};
use wireup_core::link::decode;
use wireup_core::link::frame::{Address, Class};
use wireup_core::link::liveness::SILENCE;
use wireup_core::names::request::{NameRequest, Persistence};
use wireup_core::names::shared::ToShared;
use wireup_core::node::HEAD;
use wireup_core::node::event::ToNode;
use wireup_core::rendezvous::message::{FromRendezvous, ToRendezvous};

/// The variable with the default of `--names`.
const VARIABLE: &str = "WIREUP_NAMES";

impl Controller {
    /// Which store keeps names.
    pub(super) fn names_backend(&self) -> Result<NameBackend, Lost> {
        if let Some(backend) = &self.plan.spec.interface.names {
            return Ok(backend.clone());
        }
        match self.plan.inheritance.variable(VARIABLE) {
            None => Ok(NameBackend::Agents),
            Some(text) => {
                let parsed = text.to_string_lossy().parse();
                parsed.map_err(|error| Lost::Backend(VARIABLE, error))
            }
        }
    }

    /// Has names stay after their publishers, if the user wants that (`--keep-names`).
    pub(super) fn keep_names(&self, message: &mut ToRendezvous) {
        let Some(seconds) = self.plan.spec.interface.keep_names else {
            return;
        };
        if let ToRendezvous::Store(ToShared::Ask { request, .. } | ToShared::Keep { request, .. }) =
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
    pub(super) fn start_name_store(&mut self, backend: &NameBackend) -> Result<LinkEnd, Lost> {
        let name = self.meeting_name()?;
        let variables = &self.plan.inheritance.vars;
        let started = name_store_process::start(backend, &name, variables);
        let own = started.map_err(|error| Lost::NoStore(backend.clone(), error))?;
        let now = Moment(self.now());
        let poll = self.backend.poll();
        let token = Token::new(Source::Rendezvous, STORE);
        let mut link = LinkEnd::new(own, Address::Launcher, token, poll)?;
        let meet = ToAgent::Meet {
            version: VERSION,
            name,
        };
        link.send(Address::EveryNode, Class::Control, &meet, poll);
        link.watch(SILENCE, false, now);
        Ok(link)
    }

    /// The connection to the process that keeps names elsewhere is ready.
    pub(super) fn hear_store(&mut self, event: Ready) {
        let Some((link, backend)) = &mut self.name_server.store else {
            return;
        };
        let backend = backend.clone();
        let mut messages = Vec::new();
        let result = link.turn(event, self.backend.poll(), &mut messages);
        let mut lost = result.err().map(|_| Lost::Ended);
        for (envelope, body) in messages {
            match (envelope.class, decode(&body)) {
                (Class::Control, _) => {
                    lost = Some(refusal(&body));
                    break;
                }
                (_, Ok(FromRendezvous::Welcome)) => {}
                (_, Ok(FromRendezvous::Trouble(text))) => {
                    self.warn(&format!("--names {backend}: {text}"));
                }
                (_, Ok(message)) => {
                    let said = ToNode::Rendezvous(message);
                    self.backend.order(ToBackend::Node(HEAD, said));
                }
                (_, Err(error)) => lost = Some(Lost::Garbage(error)),
            }
        }
        if let Some(lost) = lost {
            self.lose_rendezvous(&Lost::Store(backend, lost.into()));
        }
    }
}
