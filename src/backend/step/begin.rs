//! The beginning of a step: its link, its first messages, and a backend that has started nothing.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::getppid;

use super::{LAST_WORDS, LINK_FD, Messages, cannot_wait};
use crate::backend::cleanup_record;
use crate::backend::container;
use crate::backend::fabric_grant::Watch;
use crate::backend::guard::Guard;
use crate::backend::link_message::Description;
use crate::backend::local::{self, LocalBackend, Part};
use crate::failure::{AnyError, RunFailure};
use crate::plan::{Plan, Variable};
use crate::sys::leftovers;
use crate::sys::local_link::LinkEnd;
use crate::sys::poll::{Poll, Source, Token};
use crate::sys::process_state::Surroundings;
use crate::sys::signals::Signals;
use wireup_core::job::ids::NodeId;
use wireup_core::link::control::{FromStep, ToStep, VERSION, version_in};
use wireup_core::link::decode;
use wireup_core::link::frame::{Address, Class};
use wireup_core::link::message::Envelope;
use wireup_core::link::spawn_tree::Tree;

#[derive(Debug, thiserror::Error)]
#[error("`wireup step` is started by an agent, with a socket as descriptor {LINK_FD}: {0}")]
struct NotByAgent(rustix::io::Errno);

/// The link version of the agent is not this program's.
#[derive(Debug, thiserror::Error)]
#[error("this step is a wireup with link version {VERSION}, and its agent has version {0}")]
struct OtherVersion(u32);

/// The agent's socket, away from the numbers that ranks get.
pub(super) fn take_link() -> Result<OwnedFd, RunFailure> {
    let not_ours = |errno| RunFailure::request(NotByAgent(errno));
    // SAFETY: the process that starts a step passes this descriptor, and nothing here has opened or
    // taken any before; if there is none, duplicating fails.
    let given = unsafe { BorrowedFd::borrow_raw(LINK_FD) };
    rustix::net::sockopt::socket_type(given).map_err(not_ours)?;
    let link = rustix::io::fcntl_dupfd_cloexec(given, 10).map_err(not_ours)?;
    // SAFETY: it is known to be open, and no other code uses it.
    drop(unsafe { OwnedFd::from_raw_fd(LINK_FD) });
    Ok(link)
}

/// The contents of the agent's first message.
pub(super) struct Begun {
    pub(super) node: NodeId,
    pub(super) tree: Tree,
    pub(super) description: Description,
    /// How long a process of the launch may be silent here.
    pub(super) silence: Duration,
}

/// Why a step does not begin.
pub(super) enum NotBegun {
    /// The agent has this link version.
    OtherVersion(u32),
    Failed(RunFailure),
}

/// Waits for the agent's first message.
pub(super) fn begin(
    poll: &mut Poll,
    link: &mut LinkEnd,
    backlog: &mut Messages,
) -> Result<Begun, NotBegun> {
    let broken = |error: AnyError| NotBegun::Failed(RunFailure::system("the agent's link", error));
    let mut ready = Vec::new();
    loop {
        poll.wait(None, &mut ready)
            .map_err(|errno| NotBegun::Failed(cannot_wait(errno)))?;
        link.receive(poll, backlog)
            .map_err(|error| broken(error.into()))?;
        let control = |(envelope, _): &(Envelope, Vec<u8>)| envelope.class == Class::Control;
        let Some(at) = backlog.iter().position(control) else {
            continue;
        };
        let (_, message) = backlog.remove(at);
        match decode(&message) {
            Ok(ToStep::Begin {
                version: VERSION,
                node,
                spread,
                description,
                silence,
                ..
            }) => {
                let description = decode(&description).map_err(|error| broken(error.into()))?;
                return Ok(Begun {
                    node,
                    tree: spread.tree(),
                    description,
                    silence,
                });
            }
            Ok(ToStep::Orphaned { reason }) => return Err(broken(reason.into())),
            read => {
                let version = version_in(&message).filter(|version| *version != VERSION);
                return Err(match (version, read) {
                    (Some(version), _) => NotBegun::OtherVersion(version),
                    (None, Err(error)) => broken(error.into()),
                    (None, Ok(_)) => broken("a first message of no version".into()),
                });
            }
        }
    }
}

impl NotBegun {
    /// Tells the agent, which reports it to the launch, if the versions differ.
    pub(super) fn tell(self, link: LinkEnd) -> RunFailure {
        match self {
            Self::OtherVersion(version) => {
                let own = FromStep::OtherVersion { version: VERSION };
                link.last_word(Address::Launcher, Class::Control, &own, LAST_WORDS);
                RunFailure::request(OtherVersion(version))
            }
            Self::Failed(failure) => failure,
        }
    }
}

/// What a step leads.
pub(super) struct Backend {
    pub(super) local: LocalBackend,
    pub(super) signals: Signals,
    pub(super) plan: Arc<Plan>,
    pub(super) started: Instant,
    /// Of the launch's credential.
    pub(super) watch: Option<Watch>,
}

/// Makes the node's plan and a backend that has started nothing.
pub(super) fn make_backend(
    poll: Poll,
    node: NodeId,
    description: Description,
    silence: Duration,
    variables: Vec<Variable>,
    surroundings: &mut Surroundings,
) -> Result<Backend, RunFailure> {
    cleanup_record::collect();
    let (started, since) = (Instant::now(), leftovers::file_time());
    let Description {
        mut decided,
        spec,
        inheritance,
        staged_files,
    } = description;
    decided.take_fabric_of_node(&spec, &variables);
    let mut guard = Guard::start(&decided.job.nspace, getppid())
        .map_err(|error| RunFailure::system("cannot start the guard process", error))?;
    // Patterns of output files are relative to it. If it is missing, the plan reports it if that
    // matters.
    let _ = rustix::process::chdir(&inheritance.cwd);
    let inheritance = inheritance.on_node(variables);
    let limit = surroundings.nofile.rlim_max;
    let signals = Signals::take(&surroundings.ignored, false)
        .map_err(|error| RunFailure::system("cannot receive signals", error));
    let tell = &mut |path: &Path, identity| guard.charge(path, identity);
    let nspace = &decided.job.nspace;
    let entered = container::enter(&spec.container, nspace, node, &inheritance.cwd, tell);
    let made = entered.and_then(|entered| {
        let unpacked = decided.unpack(&spec, &staged_files, &inheritance, node, tell)?;
        let inside = entered.inside();
        let plan = Plan::resolve(
            decided,
            spec,
            inheritance,
            node,
            &staged_files,
            limit,
            inside,
        )?;
        let watch = Watch::start(&plan, node)?;
        Ok((entered, unpacked, Arc::new(plan), signals?, watch))
    });
    let (entered, unpacked, plan, signals, watch) = match made {
        Ok(made) => made,
        Err(failure) => {
            guard.dismiss();
            return Err(failure);
        }
    };
    surroundings.children.extend(entered.processes());
    surroundings.children.extend(watch.as_ref().map(Watch::pid));
    let mut local = LocalBackend::new(local::LocalParts {
        plan: &plan,
        poll,
        part: Part::Node(node),
        started,
        since,
        guard,
        namespaces: None,
        surroundings,
        silence,
    })?;
    local.keep(unpacked);
    local.run_in(entered.container);
    if plan.spec.status.live && !staged_files.is_empty() {
        local.report_staged(node);
    }
    let watched = local
        .poll
        .add(signals.as_fd(), Token::new(Source::Signals, 0))
        .map_err(cannot_wait);
    match watched.and_then(|()| local.start_sidecars(surroundings)) {
        Ok(()) => Ok(Backend {
            local,
            signals,
            plan,
            started,
            watch,
        }),
        Err(failure) => {
            local.abandon();
            Err(failure)
        }
    }
}
