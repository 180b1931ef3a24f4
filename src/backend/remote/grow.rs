//! Hosts that join a running launch.
//!
//! ```text
//!  launcher                    root's agent              step that joins
//!     │ ── Grow ──────────────────▶ │ ── starts it ────────▶ │
//!     │ ── AddJob, PastJob … ─────────────────────────────▶ │  as many jobs as the others know
//!     │ ◀───────────────────────────────────────── Ready ── │
//!     │ ── Start ─────────────────────────────────────────▶ │  of the first job it has no rank
//!     │ ── Joined ─── to all steps                            from now on they know it
//! ```
//! The node cannot be met before: nothing of the launch is there, and no step has heard of it.

use std::sync::Arc;

use super::RemoteBackend;
use super::launch_opening::members;
use crate::backend::backend_message::{FromBackend, NodeRefusal, ToBackend};
use crate::backend::link_message::Carried;
use crate::plan::Plan;
use wireup_core::job::ids::{JobNumber, NodeId};
use wireup_core::job::outcome::{Cause, EXIT_WIREUP};
use wireup_core::link::control::ToAgent;
use wireup_core::link::frame::{Address, Class};
use wireup_core::stdio_flow_control::window;

impl RemoteBackend {
    /// The first job's plan, with hosts at the end that are to join.
    pub(super) fn invite(&mut self, plan: &Arc<Plan>) {
        let first = self.fleet.len();
        self.adopt(plan);
        let hosts = &plan.spec.layout.hosts;
        self.fleet.invite(hosts.len());
        let grow = ToAgent::Grow {
            members: members(&hosts[first..]),
            // The first job has no ranks there.
            description: self.description(Vec::new()),
        };
        if self.cut.is_none() {
            self.link
                .send(Address::EveryNode, Class::Control, &grow, &self.poll);
        }
        let jobs = (1..self.jobs.count()).map(JobNumber);
        let known = jobs.filter_map(|number| match self.living.get(&number) {
            Some(job) => Some(Carried::AddJob(job.clone())),
            None => self.jobs.get(number).cloned().map(Carried::PastJob),
        });
        let known: Vec<Carried> = known.collect();
        for node in (first..hosts.len()).map(|node| NodeId(node as u32)) {
            for job in &known {
                self.send(Address::Node(node), job);
            }
        }
    }

    fn adopt(&mut self, plan: &Arc<Plan>) {
        self.plan = Arc::clone(plan);
        self.jobs.replace_first(Arc::clone(&plan.job));
        self.fleet.set_window(window(plan.job.ranks.nodes()));
    }

    /// A node is ready to have ranks.
    pub(super) fn joined(&mut self, node: NodeId) {
        self.send(Address::Node(node), &Carried::Start);
        if !self.asked.is_empty() {
            let order = ToBackend::Ask(self.asked.clone());
            self.send(Address::Node(node), &Carried::Order(order));
        }
        let refusal = None;
        self.tell(FromBackend::Joined { node, refusal });
    }

    /// Whether a report of a node that has not joined yet is accepted. A report that would fail the
    /// launch fails its joining, and ends what there is of it.
    pub(super) fn joining_told(&mut self, node: NodeId, told: &FromBackend) -> bool {
        let refused = self.fleet.is_refused(node);
        match told {
            FromBackend::Over
            | FromBackend::AllStarted { .. }
            | FromBackend::SidecarLoaded { .. }
            | FromBackend::Tell { .. } => true,
            FromBackend::Ready => !refused,
            FromBackend::Failed { cause, .. } if !refused => {
                let message = match cause {
                    Cause::SidecarFailed { error, .. } => format!("its PMIx server: {error}"),
                    Cause::NodeFailed { error, .. } => error.clone(),
                    _ => "it failed before it had joined".to_owned(),
                };
                let code = EXIT_WIREUP;
                let refusal = NodeRefusal { code, message };
                self.conclude(|fleet, _, out| fleet.not_joined(node, refusal, out));
                for order in [
                    ToBackend::Ending,
                    ToBackend::Skip,
                    ToBackend::Finish {
                        abnormal: true,
                        ends: Vec::new(),
                    },
                ] {
                    self.send(Address::Node(node), &Carried::Order(order));
                }
                false
            }
            _ => false,
        }
    }

    /// All that were to join have or have not.
    pub(super) fn tell_of_joined(&mut self, plan: &Arc<Plan>) {
        self.adopt(plan);
        self.label.renew(&plan.decided, None);
        let joined = Carried::Joined {
            hosts: plan.spec.layout.hosts.clone(),
            absent: plan.absent.clone(),
        };
        self.send(Address::EveryNode, &joined);
    }
}
