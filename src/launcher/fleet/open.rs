//! The way to the local agent, and the request with which a launch begins.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

use super::{Fleet, NodeState, Stage};
use crate::agent::link_end::LinkEnd;
use crate::agent::poll::{Poll, Source, Token};
use crate::job::ids::UserId;
use crate::job::outcome::EXIT_WIREUP;
use crate::launcher::carried::Description;
use crate::launcher::plan::Plan;
use crate::launcher::run::RunFailure;
use crate::link::control::{Member, Spread, ToAgent, VERSION};
use crate::link::encode;
use crate::link::frame::{Address, Class};
use crate::link::socket;

impl Fleet {
    /// Connects to the local agent.
    ///
    /// # Errors
    /// [`RunFailure`] when there is none.
    pub(in crate::launcher) fn connect(
        plan: &Arc<Plan>,
        origin: Instant,
    ) -> Result<Self, RunFailure> {
        let socket = find_agent(plan)?;
        let own = |errno| RunFailure::own("cannot wait for events", errno);
        let poll = Poll::new().map_err(own)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(own)?;
        let wake = Arc::new(wake);
        poll.add(&wake, Token::new(Source::Wake, 0)).map_err(own)?;
        let token = Token::new(Source::Link, 0);
        let link = LinkEnd::new(socket, Address::Launcher, token, &poll).map_err(own)?;
        let ranks = &plan.job.ranks;
        Ok(Self {
            origin,
            poll,
            wake,
            link,
            cut: None,
            nodes: vec![NodeState::default(); ranks.nodes() as usize],
            ranks: vec![Stage::Alive; ranks.size() as usize],
            states: Default::default(),
            told: Default::default(),
            held: Default::default(),
            paused: [false; 2],
            waits: Default::default(),
            input: None,
            decided: false,
            ending: false,
            end_at: None,
            plan: Arc::clone(plan),
        })
    }

    /// Asks the agent for the launch.
    pub(super) fn open(&mut self) {
        let plan = &self.plan;
        let description = Description {
            decided: plan.decided.clone(),
            spec: plan.spec.clone(),
            inheritance: plan.inheritance.travelling(),
        };
        let members = plan.spec.layout.hosts.iter().map(|host| Member {
            name: host.name.clone(),
            address: host.address.clone(),
        });
        let spread = &plan.spec.layout.spread;
        let open = ToAgent::Open {
            version: VERSION,
            launch: plan.job.nspace.as_str().to_owned(),
            scheduled: plan.names.scheduled(&plan.job.nspace),
            spread: Spread {
                members: members.collect(),
                star_limit: spread.star_limit,
                width: spread.tree_width,
            },
            description: encode(&description),
        };
        self.link
            .send(Address::EveryNode, Class::Control, &open, &self.poll);
    }
}

/// Why nobody is asked at a path.
#[derive(Debug, thiserror::Error)]
enum NoAgent {
    #[error("{path}: {errno}")]
    Connect { path: String, errno: Errno },
    #[error("no {0}")]
    Absent(String),
    #[error("who listens at {path} is user {user}, neither you nor root")]
    Stranger { path: String, user: u32 },
}

/// Who is told everything about the job, environment included, must be trusted: where one looks for
/// an agent, in `/tmp` say, somebody else may have made a socket. Whom the user names is his choice.
fn find_agent(plan: &Plan) -> Result<OwnedFd, RunFailure> {
    let given = plan.spec.layout.spread.agent.clone();
    let user = plan.job.user;
    let (candidates, trusted) = match given {
        Some(path) => (vec![path], true),
        None => {
            let runtime = plan.inheritance.variable("XDG_RUNTIME_DIR");
            (socket::candidates(user, runtime), false)
        }
    };
    let mut failures = Vec::new();
    for path in &candidates {
        let connected = connect_to(path).and_then(|socket| match trusted {
            true => Ok(socket),
            false => known(socket, path, user),
        });
        match connected {
            Ok(socket) => return Ok(socket),
            Err(failure) => failures.push(failure.to_string()),
        }
    }
    Err(RunFailure {
        code: EXIT_WIREUP,
        message: format!(
            "no agent serves this machine ({}); start one with `wireup agent`, or name its socket \
             with --agent",
            failures.join(", ")
        ),
    })
}

/// The socket, if root or the user himself listens there.
fn known(socket: OwnedFd, path: &Path, user: UserId) -> Result<OwnedFd, NoAgent> {
    let path = path.display().to_string();
    match sockopt::socket_peercred(&socket) {
        Ok(peer) if [0, user.0].contains(&peer.uid.as_raw()) => Ok(socket),
        Ok(peer) => Err(NoAgent::Stranger {
            path,
            user: peer.uid.as_raw(),
        }),
        Err(errno) => Err(NoAgent::Connect { path, errno }),
    }
}

fn connect_to(path: &Path) -> Result<OwnedFd, NoAgent> {
    let failed = |errno| {
        let path = path.display().to_string();
        match errno {
            Errno::NOENT => NoAgent::Absent(path),
            errno => NoAgent::Connect { path, errno },
        }
    };
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    connect(&socket, &address).map_err(failed)?;
    Ok(socket)
}
