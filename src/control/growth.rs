//! Hosts that join the launch for a spawn. Until they have joined or failed, nothing is placed on
//! them, and other spawns with new hosts wait.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::spawn_line::SpawnLine;
use super::spawn_requests::{QueuedSpawn, SpawnReplyTarget};
use super::{Controller, status};
use crate::backend::step_links::StepLinks;
use crate::backend::step_messages::NodeRefusal;
use crate::failure::CommandError;
use crate::plan::HostPlan;
use crate::report::failures::by_node;
use wireup_core::job::hosts::{HostSpec, compress};
use wireup_core::job::ids::NodeId;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind, SpawnRequest, SpawnRequester};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct GrowthState {
    /// The plan with the hosts that are to join.
    plan: Option<Arc<HostPlan>>,
    /// Those of which it is not known whether they do.
    joining: BTreeSet<NodeId>,
    /// Those of the same request that could not.
    failed: Vec<(NodeId, NodeRefusal)>,
    /// The spawn that needs them, and others with new hosts.
    pub(super) line: SpawnLine,
}

impl Controller {
    /// A spawn request, perhaps with hosts that must join first.
    pub(super) fn on_spawn_request(
        &mut self,
        asker: SpawnReplyTarget,
        by: SpawnRequester<KnownRank>,
        request: Box<SpawnRequest>,
    ) {
        let limit = self.cx.plan.spawn_limit(&request);
        let limit = limit.map(|limit| (limit, self.cx.now() + limit));
        self.process_spawn(QueuedSpawn {
            reply_to: asker,
            requester: by,
            request,
            limit,
            prepared_nodes: BTreeSet::new(),
            prepared_as: None,
        });
    }

    /// Decides about a spawn, unless it has to wait for hosts.
    fn process_spawn(&mut self, wanting: QueuedSpawn) {
        let added = match self.cx.supervisor.is_ending() {
            true => Ok(Vec::new()),
            false => {
                let allocated = |id: &str| self.allocation_hosts_to_join(id);
                let by = self.requester(wanting.reply_to, &wanting.requester);
                self.cx.plan.added_hosts(by, &wanting.request, allocated)
            }
        };
        match added {
            Err(failure) => self.refuse_spawn(wanting, failure),
            Ok(hosts) if hosts.is_empty() => self.decide_spawn(wanting, None),
            Ok(_) if self.growth.plan.is_some() => self.growth.line.waiting.push_back(wanting),
            Ok(hosts) => {
                self.growth.line.owner = Some(wanting);
                self.add_hosts(&hosts);
            }
        }
    }

    fn add_hosts(&mut self, hosts: &[HostSpec]) {
        let mut all = self.cx.plan.spec.layout.hosts.clone();
        let first = all.len() as u32;
        all.extend_from_slice(hosts);
        let last = all.len() as u32;
        if self.cx.wants_details() {
            let names: Vec<_> = hosts.iter().map(|host| &*host.name).collect();
            let text = format!("{} asked to join the launch", compress(&names));
            self.cx.detail(&text);
        }
        let plan = Arc::new(self.cx.plan.with_hosts(&all, &self.cx.plan.absent));
        self.growth.joining = (first..last).map(NodeId).collect();
        self.sidecars.resize(all.len(), None);
        // On one machine the plan refuses other hosts.
        if let StepLinks::Hosts(hosts) = &mut self.cx.steps {
            hosts.invite(&plan);
        }
        self.growth.plan = Some(plan);
    }

    /// A host has joined, or cannot.
    pub(super) fn host_joined(&mut self, node: NodeId, refusal: Option<NodeRefusal>) {
        if !self.growth.joining.remove(&node) {
            return;
        }
        match (refusal, self.growth.plan.clone()) {
            (Some(refusal), _) => self.growth.failed.push((node, refusal)),
            (None, Some(plan)) => {
                status::record_node(&mut self.cx, &plan, node);
                if let Some(questions) = self.waits.all_questions() {
                    self.cx.steps.send(questions);
                }
            }
            (None, None) => {}
        }
        if !self.growth.joining.is_empty() {
            return;
        }
        let Some(plan) = self.growth.plan.take() else {
            return;
        };
        let failed = std::mem::take(&mut self.growth.failed);
        let failure = hosts_failure(&failed, &plan.node_names);
        let mut absent = plan.absent.clone();
        absent.extend(failed.iter().map(|(node, _)| *node));
        self.cx.plan = Arc::new(plan.with_hosts(&plan.spec.layout.hosts, &absent));
        self.cx.jobs.replace_first(Arc::clone(&self.cx.plan));
        if let StepLinks::Hosts(hosts) = &mut self.cx.steps {
            hosts.finish_join(&self.cx.plan);
        }
        self.settle_allocations();
        match (self.growth.line.owner.take(), failure) {
            (None, _) => {}
            (Some(wanting), None) => self.decide_spawn(wanting, None),
            (Some(wanting), Some(failure)) => self.refuse_spawn(wanting, failure),
        }
        for wanting in std::mem::take(&mut self.growth.line.waiting) {
            self.process_spawn(wanting);
        }
    }
}

/// The failure of a spawn for which some hosts could not join, or be prepared.
pub(super) fn hosts_failure(
    failed: &[(NodeId, NodeRefusal)],
    names: &[String],
) -> Option<SpawnFailure> {
    let refused = failed.iter().map(|(node, refusal)| {
        let failure = CommandError::Reported {
            code: refusal.code,
            message: refusal.message.clone(),
        };
        (*node, failure)
    });
    let texts = by_node(refused.collect(), names).into_iter();
    let texts: Vec<_> = texts.map(|failure| failure.to_string()).collect();
    (!texts.is_empty()).then(|| SpawnFailure {
        kind: SpawnFailureKind::Failed,
        text: texts.join("; "),
    })
}
