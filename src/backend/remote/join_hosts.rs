//! Hosts that join and leave a running launch.
//!
//! ```text
//!  launcher                    root's agent              step that joins
//!     │ ── Grow ──────────────────▶ │ ── starts it ────────▶ │
//!     │ ── AddJob, PastJob … ─────────────────────────────▶ │  all jobs of the launch
//!     │ ◀───────────────────────────────────────── Ready ── │
//!     │ ── Start ─────────────────────────────────────────▶ │  it has no ranks of the initial job
//!     │ ── NodesChanged ─── to all steps                      they accept the node from now on
//! ```
//! No messages are exchanged with the node before: it has no processes of the launch, and the steps do not know it.
//!
//! ```text
//!  launcher                    agent above                   step that leaves
//!     │ ── Finish ────────────────────────────────────────▶ │  it has no ranks that run
//!     │ ◀────────────────────────────────────────── Over ── │  and ends
//!     │ ◀── Unreachable ─────────── │ ── closes the link, unless other nodes are reached over it
//!     │ ── NodesChanged ─── to all steps                      they answer requests that need the node with an error
//! ```

use std::sync::Arc;

use super::RemoteBackend;
use super::members;
use crate::backend::step_messages::{KnownReport, LauncherToStep, NodeRefusal, StepToLauncher};
use crate::plan::HostPlan;
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::outcome::{EXIT_WIREUP, FailureCause};
use wireup_core::link::agent_protocol::AgentRequest;
use wireup_core::link::frame::FrameAddress;
use wireup_core::node_tracker::KnownNode;
use wireup_core::output_credit::window;

impl RemoteBackend {
    /// Asks hosts to join: those at the end of the new plan of the initial job.
    pub(crate) fn invite(&mut self, plan: &Arc<HostPlan>) {
        let first = self.fleet.len();
        self.adopt(plan);
        let hosts = &plan.spec.layout.hosts;
        self.fleet.add_nodes(hosts.len());
        let grow = AgentRequest::Grow {
            members: members(&hosts[first..]),
            // The initial job has no ranks on these hosts.
            description: self.description(Vec::new()),
        };
        if self.link_error.is_none() {
            self.send_to_agent(&grow);
        }
        let jobs = (1..self.jobs.count()).map(JobIndex);
        let known = jobs.filter_map(|number| match self.running_jobs.get(&number) {
            Some(job) => Some(LauncherToStep::AddJob {
                job: job.clone(),
                plan: None,
            }),
            None => self.jobs.get(number).cloned().map(LauncherToStep::PastJob),
        });
        let known: Vec<LauncherToStep> = known.collect();
        for node in (first..hosts.len()).map(|node| NodeId(node as u32)) {
            for job in &known {
                self.send(FrameAddress::Node(node), job);
            }
        }
    }

    fn adopt(&mut self, plan: &Arc<HostPlan>) {
        self.plan = Arc::clone(plan);
        self.jobs.replace_first(Arc::clone(&plan.job));
        self.fleet.set_window(window(plan.job.process_map.nodes()));
    }

    /// Whether a report of a node that has not joined yet is accepted. A report that would fail the launch only fails the
    /// joining of the node, and its step is ended.
    pub(super) fn take_joining_report(&mut self, node: KnownNode, report: &KnownReport) -> bool {
        let refused = self.fleet.is_refused(node);
        match report {
            StepToLauncher::Over
            | StepToLauncher::AllStarted { .. }
            | StepToLauncher::SidecarLoaded { .. }
            | StepToLauncher::Tell { .. } => true,
            StepToLauncher::Ready => !refused,
            StepToLauncher::Failed { cause, .. } if !refused => {
                let message = match cause {
                    FailureCause::SidecarFailed { error, .. } => {
                        format!("PMIx server: {error}")
                    }
                    FailureCause::NodeFailed { error, .. } => error.clone(),
                    _ => "failed before it joined".to_owned(),
                };
                let code = EXIT_WIREUP;
                let refusal = NodeRefusal { code, message };
                self.conclude(|fleet, _, out| fleet.not_joined(node, refusal, out));
                for order in [
                    LauncherToStep::Ending,
                    LauncherToStep::Skip,
                    LauncherToStep::Finish {
                        abnormal: true,
                        ends: Vec::new(),
                    },
                ] {
                    self.send(FrameAddress::Node(node.id()), &order);
                }
                false
            }
            _ => false,
        }
    }

    /// Announces that hosts have joined, failed to join or, `departed`, left. `all` is the plan with those that are still joining,
    /// `announced` the one without them.
    pub(crate) fn change_nodes(
        &mut self,
        all: &Arc<HostPlan>,
        announced: &Arc<HostPlan>,
        departed: Vec<NodeId>,
    ) {
        self.adopt(all);
        self.label.renew(&announced.job_plan, None);
        let changed = LauncherToStep::NodesChanged {
            hosts: announced.spec.layout.hosts.clone(),
            absent: announced.absent.clone(),
            departed,
        };
        self.send(FrameAddress::EveryNode, &changed);
    }

    /// Ends the step of a node that is to leave, if all its ranks have ended and nothing is prepared for others.
    pub(crate) fn release(&mut self, node: NodeId) {
        if !self.preparing.contains(&node) && self.fleet.release(node, &self.jobs) {
            let finish = LauncherToStep::Finish {
                abnormal: false,
                ends: Vec::new(),
            };
            self.send(FrameAddress::Node(node), &finish);
        }
    }
}
