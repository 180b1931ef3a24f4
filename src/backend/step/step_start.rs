//! Start of a step: its link, its first messages, and a backend that has started nothing.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::getppid;

use super::{LAST_WORDS, LINK_FD, Messages, cannot_wait};
use crate::backend::cleanup_record;
use crate::backend::container;
use crate::backend::grant_holder::GrantWatcher;
use crate::backend::guard::Guard;
use crate::backend::local::{self, LocalStep};
use crate::backend::step_messages::LaunchDescription;
use crate::plan::host_scope::HostScope;
use crate::plan::node_grant::take_fabric_of_node;
use crate::plan::{HostPlan, Variable};
use wireup_core::failure::{AnyError, CommandError};
use wireup_core::job::ids::NodeId;
use wireup_core::link::agent_protocol::{StepCommand, StepReport, VERSION, version_in};
use wireup_core::link::decode;
use wireup_core::link::frame::FrameClass;
use wireup_core::link::reassembly::Envelope;
use wireup_core::link::routing_tree::RoutingTree;
use wireup_sys::inherited_state::InheritedState;
use wireup_sys::leftovers;
use wireup_sys::local_link::LocalLink;
use wireup_sys::poll::{Poll, PollSource, PollToken};
use wireup_sys::signals::Signals;

/// Error: the agent has another link version than this program.
#[derive(Debug, thiserror::Error)]
#[error("this step is a wireup with link version {VERSION}, and its agent has version {0}")]
struct OtherVersion(u32);

/// Takes the agent's socket, and moves it to a number that ranks do not use.
pub(super) fn take_link() -> Result<OwnedFd, CommandError> {
    let not_ours = |errno| {
        CommandError::request(format!(
            "`wireup step` is started by an agent, with a socket as descriptor {LINK_FD}: {errno}"
        ))
    };
    // SAFETY: the process that starts a step passes this descriptor, and nothing here has opened or
    // taken any before; if there is none, duplicating fails.
    let descriptor = unsafe { BorrowedFd::borrow_raw(LINK_FD) };
    rustix::net::sockopt::socket_type(descriptor).map_err(not_ours)?;
    let link = rustix::io::fcntl_dupfd_cloexec(descriptor, 10).map_err(not_ours)?;
    // SAFETY: it is known to be open, and no other code uses it.
    drop(unsafe { OwnedFd::from_raw_fd(LINK_FD) });
    Ok(link)
}

/// Contents of the agent's first message.
pub(super) struct StepStart {
    pub(super) node: NodeId,
    pub(super) tree: RoutingTree,
    pub(super) description: LaunchDescription,
    /// Time for which a process of the launch may be silent.
    pub(super) silence: Duration,
}

/// Error: a step does not start.
pub(super) enum StepStartError {
    /// The agent has this other link version.
    OtherVersion(u32),
    Failed(CommandError),
}

/// Waits for the agent's first message.
pub(super) fn begin(
    poll: &mut Poll,
    link: &mut LocalLink,
    backlog: &mut Messages,
) -> Result<StepStart, StepStartError> {
    let broken =
        |error: AnyError| StepStartError::Failed(CommandError::system("the agent's link", error));
    let mut ready = Vec::new();
    loop {
        poll.wait(None, &mut ready)
            .map_err(|errno| StepStartError::Failed(cannot_wait(errno)))?;
        link.receive(poll, backlog)
            .map_err(|error| broken(error.into()))?;
        let control = |(envelope, _): &(Envelope, Vec<u8>)| envelope.class == FrameClass::Control;
        let Some(at) = backlog.iter().position(control) else {
            continue;
        };
        let (_, message) = backlog.remove(at);
        match decode(&message) {
            Ok(StepCommand::Begin {
                version: VERSION,
                node,
                spread,
                description,
                silence,
                ..
            }) => {
                let description = decode(&description).map_err(|error| broken(error.into()))?;
                return Ok(StepStart {
                    node,
                    tree: spread.tree(),
                    description,
                    silence,
                });
            }
            Ok(StepCommand::Orphaned { reason }) => return Err(broken(reason.into())),
            read => {
                let version = version_in(&message).filter(|version| *version != VERSION);
                return Err(match (version, read) {
                    (Some(version), _) => StepStartError::OtherVersion(version),
                    (None, Err(error)) => broken(error.into()),
                    (None, Ok(_)) => broken("first message without a link version".into()),
                });
            }
        }
    }
}

impl StepStartError {
    /// Reports different versions to the agent, which reports them to the launch. Returns the error.
    pub(super) fn report_to_agent(self, link: LocalLink) -> CommandError {
        match self {
            Self::OtherVersion(version) => {
                let own = StepReport::OtherVersion { version: VERSION };
                link.last_word(FrameClass::Control, &own, LAST_WORDS);
                CommandError::request(OtherVersion(version))
            }
            Self::Failed(failure) => failure,
        }
    }
}

/// Backend of a step with its guard and grant holder.
pub(super) struct StepBackend {
    pub(super) local: LocalStep,
    pub(super) guard: Guard,
    pub(super) signals: Signals,
    pub(super) plan: Arc<HostPlan>,
    pub(super) started: Instant,
    /// Grant holder that watches the launch's fabric grant.
    pub(super) watch: Option<GrantWatcher>,
}

/// Computes the node's plan and creates a backend that has started nothing.
pub(super) fn make_backend(
    poll: Poll,
    node: NodeId,
    description: LaunchDescription,
    silence: Duration,
    variables: Vec<Variable>,
    surroundings: &mut InheritedState,
) -> Result<StepBackend, CommandError> {
    cleanup_record::collect();
    let (started, since) = (Instant::now(), leftovers::file_time());
    let LaunchDescription {
        mut decided,
        spec,
        inheritance,
        staged_files,
    } = description;
    take_fabric_of_node(&mut decided, &spec, &variables);
    let guard = Guard::start(&decided.job.nspace, getppid())
        .map_err(|error| CommandError::system("cannot start the guard process", error))?;
    // Patterns of output files are relative to the working directory. If it is missing, the plan reports that if it matters.
    let _ = rustix::process::chdir(&inheritance.cwd);
    let inheritance = inheritance.on_node(variables);
    let limit = surroundings.nofile.rlim_max;
    let signals = Signals::take(&surroundings.ignored, false)
        .map_err(|error| CommandError::system("cannot receive signals", error));
    let cleanup = &mut |path: &Path, identity| guard.line().charge(path, identity);
    let nspace = &decided.job.nspace;
    let entered = container::enter(&spec.container, nspace, node, &inheritance.cwd, cleanup);
    let parts = entered.and_then(|entered| {
        decided.check(&spec, Some(node))?;
        let unpacked = decided.unpack(&spec.apps, &staged_files, &inheritance, node, cleanup)?;
        let inside = entered.inside();
        let plan = HostPlan::resolve(
            decided,
            spec,
            inheritance,
            node,
            &staged_files,
            limit,
            inside,
        )?;
        let watch = GrantWatcher::start(&plan, node)?;
        Ok((entered, unpacked, Arc::new(plan), signals?, watch))
    });
    let (entered, unpacked, plan, signals, watch) = match parts {
        Ok(parts) => parts,
        Err(failure) => {
            guard.dismiss();
            return Err(failure);
        }
    };
    surroundings.children.extend(entered.processes());
    surroundings
        .children
        .extend(watch.as_ref().map(GrantWatcher::pid));
    let step = poll.add_wake().map_err(cannot_wait).and_then(|wake| {
        LocalStep::new(local::LocalParts {
            plan: &plan,
            poll,
            wake,
            scope: HostScope::Node(node),
            started,
            started_at: since,
            guard: guard.line().clone(),
            namespaces: None,
            inherited_state: surroundings,
            silence,
        })
    });
    let mut local = match step {
        Ok(local) => local,
        Err(failure) => {
            guard.dismiss();
            return Err(failure);
        }
    };
    local.set_staged_files(unpacked);
    local.run_in(entered.container);
    if plan.spec.status.live && !staged_files.is_empty() {
        local.report_staged(node);
    }
    let watched = local
        .poll()
        .add(signals.as_fd(), PollToken::new(PollSource::Signals, 0))
        .map_err(cannot_wait);
    match watched.and_then(|()| local.start_sidecars(surroundings)) {
        Ok(()) => Ok(StepBackend {
            local,
            guard,
            signals,
            plan,
            started,
            watch,
        }),
        Err(failure) => {
            local.abandon();
            guard.dismiss();
            Err(failure)
        }
    }
}
