//! Connects to the local agent and requests the launch.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use super::RemoteBackend;
use super::file_transfer::FileTransfer;
use crate::backend::job_label::JobLabel;
use crate::backend::launch_agent_process;
use crate::backend::local_agent::find_for_launch;
use crate::backend::step_messages::LaunchDescription;
use crate::plan::staged_files::pack_files;
use crate::plan::{HostPlan, StagedFiles};
use wireup_core::failure::CommandError;
use wireup_core::job::clock::Moment;
use wireup_core::job::hosts::HostSpec;
use wireup_core::job::job_table::JobTable;
use wireup_core::link::agent_protocol::{AgentRequest, LaunchTree, NodeAddress, VERSION};
use wireup_core::link::encode;
use wireup_core::link::frame::{FrameAddress, FrameClass};
use wireup_core::link::liveness::SILENCE;
use wireup_core::node_tracker::NodeTracker;
use wireup_core::output_credit::window;
use wireup_core::supervisor::first_failure::WithheldReports;
use wireup_sys::local_link::LocalLink;
use wireup_sys::poll::{Poll, PollSource, PollToken};

impl RemoteBackend {
    /// Connects to the local agent.
    ///
    /// # Errors
    /// [`CommandError`] if there is no agent, or a file cannot be staged.
    pub(crate) fn connect(
        plan: &Arc<HostPlan>,
        origin: Instant,
        poll: Poll,
        wake: Arc<OwnedFd>,
    ) -> Result<Self, CommandError> {
        let staged_files = pack_files(plan)?;
        let given = plan.spec.layout.spread.agent.as_deref();
        let runtime = plan.inheritance.variable("XDG_RUNTIME_DIR");
        let (socket, entry) = match &plan.spec.layout.spread.starter {
            Some(starter) => {
                let (socket, entry) = launch_agent_process::start(starter)?;
                (socket, Some(entry))
            }
            None => (find_for_launch(given, plan.job.uid, runtime)?, None),
        };
        let own = |errno| CommandError::system("cannot wait for events", errno);
        let token = PollToken::new(PollSource::Link, 0);
        let link = LocalLink::new(socket, FrameAddress::Launcher, token, &poll).map_err(own)?;
        let ranks = &plan.job.process_map;
        Ok(Self {
            jobs: JobTable::new(Arc::clone(&plan.job)),
            origin,
            poll,
            wake,
            link,
            _entry: entry,
            link_error: None,
            fleet: NodeTracker::new(ranks.nodes(), ranks.size(), window(ranks.nodes())),
            reports: Default::default(),
            failures: WithheldReports::default(),
            input: None,
            running_jobs: Default::default(),
            preparing: Default::default(),
            file_transfer: FileTransfer::new(&staged_files, ranks.node_ids()),
            staged_files,
            label: JobLabel::show(&plan.job_plan, None),
            plan: Arc::clone(plan),
        })
    }

    /// Sends the launch request to the agent.
    pub(crate) fn open(&mut self) {
        let staged_files = std::mem::take(&mut self.staged_files);
        let plan = &self.plan;
        let spread = &plan.spec.layout.spread;
        let open = AgentRequest::Open {
            version: VERSION,
            launch: plan.job.nspace.as_str().to_owned(),
            scheduled: plan.names.scheduled(&plan.job.nspace),
            spread: LaunchTree {
                nodes: members(&plan.spec.layout.hosts),
                joined: 0,
                star_limit: spread.star_limit,
                width: spread.tree_width,
            },
            description: self.description(staged_files),
        };
        self.link.send(
            FrameAddress::EveryNode,
            FrameClass::Control,
            &open,
            &self.poll,
        );
        let now = Moment(self.now());
        self.link.watch(SILENCE, true, now);
    }

    /// Encodes the current description of the launch for steps.
    pub(super) fn description(&self, staged_files: Vec<StagedFiles>) -> Vec<u8> {
        let plan = &self.plan;
        encode(&LaunchDescription {
            decided: plan.job_plan.clone(),
            spec: plan.spec.clone(),
            inheritance: plan.inheritance.travelling(),
            staged_files,
        })
    }
}

/// Converts hosts to the node addresses that agents use.
pub(super) fn members(hosts: &[HostSpec]) -> Vec<NodeAddress> {
    let member = |host: &HostSpec| NodeAddress {
        name: host.name.clone(),
        address: host.address.clone(),
    };
    hosts.iter().map(member).collect()
}
