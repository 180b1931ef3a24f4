//! Hosts that join the launch for a spawn. Until they have joined or failed, nothing is placed on
//! them, and other spawns with new hosts wait.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::allocation_requests::{hosts_to_join, settle_joined_hosts};
use super::launch_context::LaunchContext;
use super::launch_effect::LaunchEffect;
use super::launch_service::LaunchService;
use super::queued_spawn::QueuedSpawn;
use super::spawn_answers::{hosts_failure, refuse_spawn, requester_plan, too_late};
use super::spawn_line::SpawnLine;
use super::status_records;
use super::wait_questions::WaitQuestions;
use crate::backend::step_links::StepLinks;
use crate::backend::step_messages::NodeRefusal;
use crate::plan::host_growth::with_hosts;
use crate::plan::{HostPlan, SpawnPlanner};
use wireup_core::job::hosts::{HostSpec, compress};
use wireup_core::job::ids::NodeId;

/// Hosts that are joining, and the spawns that wait for them.
#[derive(Debug, Default)]
pub(super) struct HostJoins {
    /// Plan that includes the joining hosts.
    plan: Option<Arc<HostPlan>>,
    /// Hosts that have neither joined nor failed.
    joining: BTreeSet<NodeId>,
    /// Hosts of the same request that could not join.
    failed: Vec<(NodeId, NodeRefusal)>,
    /// Spawn that needs these hosts, and later spawns with new hosts.
    line: SpawnLine,
}

impl LaunchService for HostJoins {
    fn next_deadline(&self) -> Option<Duration> {
        self.line.next_deadline()
    }

    /// Refuses spawns that have waited too long.
    fn tick(&mut self, cx: &mut LaunchContext, now: Duration) {
        for spawn in self.line.take_late(now) {
            let (limit, _) = spawn.limit.unwrap_or_default();
            refuse_spawn(cx, spawn, too_late(limit));
        }
    }
}

impl HostJoins {
    /// Returns a spawn that needs no new host. Other spawns wait until their hosts have joined.
    pub(super) fn admit(
        &mut self,
        cx: &mut LaunchContext,
        spawn: QueuedSpawn,
    ) -> Option<QueuedSpawn> {
        let added = match cx.supervisor.is_ending() {
            true => Ok(Vec::new()),
            false => {
                let allocated = |id: &str| hosts_to_join(cx, id);
                let by = requester_plan(cx, &spawn.source);
                SpawnPlanner::new(&cx.plan).added_hosts(by, &spawn.request, allocated)
            }
        };
        match added {
            Err(failure) => refuse_spawn(cx, spawn, failure),
            Ok(hosts) if hosts.is_empty() => return Some(spawn),
            Ok(_) if self.plan.is_some() => self.line.waiting.push_back(spawn),
            Ok(hosts) => {
                self.line.owner = Some(spawn);
                self.add_hosts(cx, &hosts);
            }
        }
        None
    }

    fn add_hosts(&mut self, cx: &mut LaunchContext, hosts: &[HostSpec]) {
        let mut all = cx.plan.spec.layout.hosts.clone();
        let first = all.len() as u32;
        all.extend_from_slice(hosts);
        let last = all.len() as u32;
        if cx.wants_details() {
            let names: Vec<_> = hosts.iter().map(|host| &*host.name).collect();
            let text = format!("{} asked to join the launch", compress(&names));
            cx.detail(&text);
        }
        let plan = Arc::new(with_hosts(&cx.plan, &all, &cx.plan.absent));
        self.joining = (first..last).map(NodeId).collect();
        // On one machine the plan refuses other hosts.
        if let StepLinks::Hosts(hosts) = &mut cx.steps {
            hosts.invite(&plan);
        }
        self.plan = Some(plan);
    }

    /// Handles a host that has joined or failed to join. After the last one, the waiting spawns continue.
    pub(super) fn on_host_joined(
        &mut self,
        cx: &mut LaunchContext,
        waits: &WaitQuestions,
        node: NodeId,
        refusal: Option<NodeRefusal>,
    ) {
        if !self.joining.remove(&node) {
            return;
        }
        match (refusal, self.plan.clone()) {
            (Some(refusal), _) => self.failed.push((node, refusal)),
            (None, Some(plan)) => {
                status_records::record_node(cx, &plan, node);
                if let Some(questions) = waits.all_questions() {
                    cx.steps.send(questions);
                }
            }
            (None, None) => {}
        }
        if !self.joining.is_empty() {
            return;
        }
        let Some(plan) = self.plan.take() else {
            return;
        };
        let failed = std::mem::take(&mut self.failed);
        let failure = hosts_failure(&failed, &plan.node_names);
        let mut absent = plan.absent.clone();
        absent.extend(failed.iter().map(|(node, _)| *node));
        cx.plan = Arc::new(with_hosts(&plan, &plan.spec.layout.hosts, &absent));
        cx.jobs.replace_first(Arc::clone(&cx.plan));
        if let StepLinks::Hosts(hosts) = &mut cx.steps {
            hosts.finish_join(&cx.plan);
        }
        settle_joined_hosts(cx);
        match (self.line.owner.take(), failure) {
            (None, _) => {}
            (Some(spawn), None) => cx.effects.push(LaunchEffect::DecideSpawn(spawn)),
            (Some(spawn), Some(failure)) => refuse_spawn(cx, spawn, failure),
        }
        let waiting = std::mem::take(&mut self.line.waiting);
        let waiting = waiting.into_iter().map(LaunchEffect::RequestSpawn);
        cx.effects.extend(waiting);
    }
}
