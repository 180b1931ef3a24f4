//! Name store process of a launch, which stores names outside of wireup (`--names`). It is started with the first request
//! that may concern other launches, and replaces the name server for names. Launches still exchange messages through the
//! name server.

use std::time::Duration;

use super::launch_context::LaunchContext;
use super::name_scope::{NameServerLoss, name_scope, open_link};
use crate::backend::name_store_process;
use wireup_core::job::name_store_kind::NameStoreKind;
use wireup_core::name_server::message::NameServerCommand;
use wireup_core::names::name_server_requests::NameServerRequest;
use wireup_core::names::request::{NameRequest, Persistence};
use wireup_sys::local_link::LocalLink;

/// Token index of the connection to the name store process, among those of `PollSource::Rendezvous`.
pub(super) const STORE: u32 = 1;

/// Variable with the default of `--names`.
const VARIABLE: &str = "WIREUP_NAMES";

/// Returns the kind of store for the launch's names.
pub(super) fn names_backend(cx: &LaunchContext) -> Result<NameStoreKind, NameServerLoss> {
    if let Some(backend) = &cx.plan.spec.interface.names {
        return Ok(backend.clone());
    }
    match cx.plan.inheritance.variable(VARIABLE) {
        None => Ok(NameStoreKind::Agents),
        Some(text) => {
            let parsed = text.to_string_lossy().parse();
            parsed.map_err(|error| NameServerLoss::Backend(VARIABLE, error))
        }
    }
}

/// Makes a published name outlast its publisher, if the user chose that (`--names keep`).
pub(super) fn persist_names(cx: &LaunchContext, message: &mut NameServerCommand) {
    let Some(seconds) = cx.plan.spec.interface.keep_names else {
        return;
    };
    if let NameServerCommand::Store(NameServerRequest::Ask { request, .. } | NameServerRequest::Keep { request, .. }) =
        message
        && let NameRequest::Publish {
            persistence,
            limits,
            ..
        } = request
        // Such a value is part of a connection between jobs, not a name.
        && *persistence != Persistence::FirstRead
    {
        *persistence = Persistence::Indefinite;
        let lifetime = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        limits.expires = limits.expires.or(lifetime);
    }
}

/// Starts the name store process, and connects to it.
pub(super) fn start_store(
    cx: &mut LaunchContext,
    backend: &NameStoreKind,
) -> Result<LocalLink, NameServerLoss> {
    let name = name_scope(cx)?;
    let variables = &cx.plan.inheritance.vars;
    let started = name_store_process::start(backend, &name, variables);
    let own = started.map_err(|error| NameServerLoss::NoStore(backend.clone(), error))?;
    open_link(cx, own, STORE, name)
}
