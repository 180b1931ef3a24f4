//! The way to the local agent, and the request with which a launch begins.

use std::sync::Arc;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use super::RemoteBackend;
use super::file_transfer::Sending;
use crate::backend::job_label::JobLabel;
use crate::backend::launch_entry;
use crate::backend::link_message::Description;
use crate::backend::local_agent::find_for_launch;
use crate::failure::RunFailure;
use crate::plan::{Plan, StagedFiles};
use crate::sys::local_link::LinkEnd;
use crate::sys::poll::{Poll, Source, Token};
use wireup_core::fleet::Fleet;
use wireup_core::job::clock::Moment;
use wireup_core::job::hosts::HostSpec;
use wireup_core::job::roster::Roster;
use wireup_core::link::control::{LaunchMember, Spread, ToAgent, VERSION};
use wireup_core::link::encode;
use wireup_core::link::frame::{Address, Class};
use wireup_core::link::liveness::SILENCE;
use wireup_core::stdio_flow_control::window;
use wireup_core::supervisor::first_failure::AcrossHosts;

impl RemoteBackend {
    /// Connects to the local agent.
    ///
    /// # Errors
    /// [`RunFailure`] if there is no agent, or a file cannot be staged.
    pub(crate) fn connect(plan: &Arc<Plan>, origin: Instant) -> Result<Self, RunFailure> {
        let staged_files = plan.pack()?;
        let given = plan.spec.layout.spread.agent.as_deref();
        let runtime = plan.inheritance.variable("XDG_RUNTIME_DIR");
        let (socket, entry) = match &plan.spec.layout.spread.starter {
            Some(starter) => {
                let (socket, entry) = launch_entry::start(starter)?;
                (socket, Some(entry))
            }
            None => (find_for_launch(given, plan.job.user, runtime)?, None),
        };
        let own = |errno| RunFailure::system("cannot wait for events", errno);
        let poll = Poll::new().map_err(own)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(own)?;
        let wake = Arc::new(wake);
        poll.add(&wake, Token::new(Source::Wake, 0)).map_err(own)?;
        let token = Token::new(Source::Link, 0);
        let link = LinkEnd::new(socket, Address::Launcher, token, &poll).map_err(own)?;
        let ranks = &plan.job.ranks;
        Ok(Self {
            jobs: Roster::new(Arc::clone(&plan.job)),
            origin,
            poll,
            wake,
            link,
            _entry: entry,
            cut: None,
            fleet: Fleet::new(ranks.nodes(), ranks.size(), window(ranks.nodes())),
            states: Default::default(),
            told: Default::default(),
            failures: AcrossHosts::default(),
            asked: Default::default(),
            to_ask: Default::default(),
            waits: Default::default(),
            input: None,
            living: Default::default(),
            sending: Sending::new(&staged_files, ranks.node_ids()),
            staged_files,
            label: JobLabel::show(&plan.decided, None),
            plan: Arc::clone(plan),
        })
    }

    /// Asks the agent for the launch.
    pub(super) fn open(&mut self) {
        let staged_files = std::mem::take(&mut self.staged_files);
        let plan = &self.plan;
        let spread = &plan.spec.layout.spread;
        let open = ToAgent::Open {
            version: VERSION,
            launch: plan.job.nspace.as_str().to_owned(),
            scheduled: plan.names.scheduled(&plan.job.nspace),
            spread: Spread {
                members: members(&plan.spec.layout.hosts),
                joined: 0,
                star_limit: spread.star_limit,
                width: spread.tree_width,
            },
            description: self.description(staged_files),
        };
        self.link
            .send(Address::EveryNode, Class::Control, &open, &self.poll);
        let now = Moment(self.now());
        self.link.watch(SILENCE, true, now);
    }

    /// The current description of the launch for steps.
    pub(super) fn description(&self, staged_files: Vec<StagedFiles>) -> Vec<u8> {
        let plan = &self.plan;
        encode(&Description {
            decided: plan.decided.clone(),
            spec: plan.spec.clone(),
            inheritance: plan.inheritance.travelling(),
            staged_files,
        })
    }
}

/// Hosts as agents know them.
pub(super) fn members(hosts: &[HostSpec]) -> Vec<LaunchMember> {
    let member = |host: &HostSpec| LaunchMember {
        name: host.name.clone(),
        address: host.address.clone(),
    };
    hosts.iter().map(member).collect()
}
