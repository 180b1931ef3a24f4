//! Hosts that join and leave the launch.
//!
//! ```text
//!         asked to join          ready                  removed              its ranks have ended
//! outside ────────────▶ joining ──────▶ in the launch ────────▶ leaving ────────────────────────▶ outside
//!                          └─ cannot join: outside
//! ```
//! - Until hosts have joined or failed, nothing is placed on them, and other requests with new hosts wait.
//! - Nothing is placed on a host that leaves ([`AllocationTable::leaving`](crate::plan::allocation_table::AllocationTable)).
//!   It keeps its number, which no other host gets; a host that joins again has a new one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::allocation_requests::{answer_allocation, hosts_to_join, settle_joined_hosts};
use super::launch_context::LaunchContext;
use super::launch_effect::LaunchEffect;
use super::launch_service::LaunchService;
use super::queued_spawn::QueuedSpawn;
use super::resize_request::{ResizeReport, ResizeRequest, ResizeResult, ResizeSource};
use super::spawn_answers::{hosts_failure, refuse_spawn, requester_plan, too_late};
use super::spawn_line::SpawnLine;
use super::wait_questions::WaitQuestions;
use super::{status_records, supervision};
use crate::backend::step_links::StepLinks;
use crate::backend::step_messages::NodeRefusal;
use crate::plan::host_growth::with_hosts;
use crate::plan::{HostPlan, SpawnPlanner};
use wireup_core::job::allocation::{
    Allocation, AllocationFailure, AllocationFailureKind as Kind, NodeShare,
};
use wireup_core::job::hosts::{HostList, HostSpec, compress};
use wireup_core::job::ids::NodeId;
use wireup_core::job::job_control::{JobControlAction, JobControlRequest};
use wireup_core::job::job_table::KnownRank;
use wireup_core::record::ResizeCommand;
use wireup_core::wording::counted;

/// A change of the launch's hosts that is not complete.
#[derive(Debug)]
struct PendingResize {
    source: ResizeSource,
    deadline: Option<Duration>,
    /// Whether hosts are joining for it.
    joins: bool,
    /// Nodes that leave as soon as possible.
    leaving: BTreeSet<NodeId>,
    report: ResizeReport,
    failure: Option<AllocationFailure>,
}

/// Hosts that are joining, and the requests that wait for them; hosts that are leaving.
#[derive(Debug, Default)]
pub(super) struct LaunchHosts {
    /// Plan that includes the joining hosts.
    plan: Option<Arc<HostPlan>>,
    /// Hosts that have neither joined nor failed.
    joining: BTreeSet<NodeId>,
    /// Hosts of the same request that could not join.
    failed: Vec<(NodeId, NodeRefusal)>,
    /// Spawn that needs these hosts, and later spawns with new hosts.
    line: SpawnLine,
    pending_resizes: Vec<PendingResize>,
    /// Requests with new hosts that wait until others have joined.
    waiting_resizes: Vec<ResizeRequest>,
}

impl LaunchService for LaunchHosts {
    fn next_deadline(&self) -> Option<Duration> {
        let pending = self.pending_resizes.iter().map(|pending| pending.deadline);
        let waiting = self.waiting_resizes.iter().map(|request| request.deadline);
        let resizes = pending.chain(waiting).flatten();
        resizes.chain(self.line.next_deadline()).min()
    }

    /// Refuses requests that have waited too long, and lets hosts leave whose ranks have ended.
    fn tick(&mut self, cx: &mut LaunchContext, now: Duration) {
        for spawn in self.line.take_late(now) {
            let (limit, _) = spawn.limit.unwrap_or_default();
            refuse_spawn(cx, spawn, too_late(limit));
        }
        let is_ending = cx.supervisor.is_ending() || cx.supervisor.is_over();
        let is_late = |deadline: Option<Duration>| deadline.is_some_and(|at| at <= now);
        let failure = || match is_ending {
            true => ending(),
            false => AllocationFailure::new(
                Kind::TimedOut,
                "the hosts did not join or leave in the time that the request allows",
            ),
        };
        for pending in self
            .pending_resizes
            .extract_if(.., |pending| is_ending || is_late(pending.deadline))
        {
            answer_resize(cx, &pending.source, Err(failure()));
        }
        for request in self
            .waiting_resizes
            .extract_if(.., |request| is_ending || is_late(request.deadline))
        {
            answer_resize(cx, &request.source, Err(failure()));
        }
        if !is_ending && let StepLinks::Hosts(hosts) = &mut cx.steps {
            for node in cx.allocations.leaving() {
                hosts.release(node);
            }
        }
    }
}

fn ending() -> AllocationFailure {
    AllocationFailure::new(Kind::Canceled, "the launch is being ended")
}

/// Handles hosts that join.
impl LaunchHosts {
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
            Ok(_) if self.plan.is_some() => self.line.waiting.push(spawn),
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

    /// Handles a host that has joined or failed to join. After the last one, the waiting requests continue.
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
                let name = plan.node_name(node).to_owned();
                if let Some(resize) = self.pending_resizes.iter_mut().find(|one| one.joins) {
                    resize.report.joined.push(name);
                }
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
        let failed_hosts = std::mem::take(&mut self.failed);
        let failure = hosts_failure(&failed_hosts, &plan.node_names);
        let mut absent = plan.absent.clone();
        absent.extend(failed_hosts.iter().map(|(node, _)| *node));
        cx.plan = Arc::new(with_hosts(&plan, &plan.spec.layout.hosts, &absent));
        cx.jobs.replace_first(Arc::clone(&cx.plan));
        if let StepLinks::Hosts(hosts) = &mut cx.steps {
            hosts.change_nodes(&cx.plan, &cx.plan, Vec::new());
        }
        settle_joined_hosts(cx);
        if let Some(resize) = self.pending_resizes.iter_mut().find(|one| one.joins) {
            resize.joins = false;
            resize.failure = failure
                .as_ref()
                .map(|failure| AllocationFailure::new(Kind::NoResources, &*failure.text));
        }
        self.answer_complete(cx);
        match (self.line.owner.take(), failure) {
            (None, _) => {}
            (Some(spawn), None) => cx.effects.push(LaunchEffect::DecideSpawn(spawn)),
            (Some(spawn), Some(failure)) => refuse_spawn(cx, spawn, failure),
        }
        let spawns = self.line.waiting.drain(..);
        cx.effects.extend(spawns.map(LaunchEffect::RequestSpawn));
        let resizes = self.waiting_resizes.drain(..);
        cx.effects.extend(resizes.map(LaunchEffect::Resize));
    }
}

/// Handles requests of hosts to join and to leave.
impl LaunchHosts {
    /// Begins a change of the launch's hosts, or refuses it. Requests with new hosts wait while others are joining.
    pub(super) fn resize(&mut self, cx: &mut LaunchContext, request: ResizeRequest) {
        match self.begin_resize(cx, &request) {
            Ok(Some(pending)) => {
                self.pending_resizes.push(pending);
                self.answer_complete(cx);
            }
            Ok(None) => self.waiting_resizes.push(request),
            Err(failure) => answer_resize(cx, &request.source, Err(failure)),
        }
    }

    /// Returns the change that was begun; `None` if it must wait.
    fn begin_resize(
        &mut self,
        cx: &mut LaunchContext,
        request: &ResizeRequest,
    ) -> Result<Option<PendingResize>, AllocationFailure> {
        if cx.supervisor.is_ending() {
            return Err(ending());
        }
        if request.add.is_empty() && request.remove.is_empty() {
            let text = "name hosts that join or leave";
            return Err(AllocationFailure::new(Kind::BadRequest, text));
        }
        let leaving: BTreeSet<NodeId> = cx.allocations.leaving().collect();
        let added = SpawnPlanner::new(&cx.plan).hosts_to_add(&request.add, &leaving)?;
        let removed = SpawnPlanner::new(&cx.plan).nodes_to_remove(&request.remove)?;
        if !added.is_empty() && self.plan.is_some() {
            return Ok(None);
        }
        let mut pending = PendingResize {
            source: request.source.clone(),
            deadline: request.deadline,
            joins: !added.is_empty(),
            leaving: BTreeSet::new(),
            report: ResizeReport::default(),
            failure: None,
        };
        if pending.joins {
            self.add_hosts(cx, &added);
        }
        let mut ended_ranks = Vec::new();
        for node in removed {
            cx.allocations.leave(node);
            let living = cx.jobs.ranks_on_node(node);
            let living = living.filter(|rank| !cx.ranks.get(*rank).is_over());
            let living: Vec<KnownRank> = living.collect();
            match living.is_empty() || request.ends_ranks {
                true => drop(pending.leaving.insert(node)),
                false => pending.report.leaving.push(format!(
                    "{} leaves when {} there {} ended",
                    cx.plan.node_name(node),
                    counted(living.len() as u32, "rank"),
                    if living.len() == 1 { "has" } else { "have" },
                )),
            }
            ended_ranks.extend(living.into_iter().map(KnownRank::global));
        }
        if request.ends_ranks && !ended_ranks.is_empty() {
            let ranks = Some(ended_ranks).filter(|ranks| !cx.is_everybody(ranks));
            let demand = JobControlRequest {
                requester: None,
                action: JobControlAction::Terminate,
                ranks,
            };
            supervision::demand(cx, demand);
        }
        Ok(Some(pending))
    }

    /// Handles the departure of a host: its step has ended.
    pub(super) fn on_host_left(&mut self, cx: &mut LaunchContext, node: NodeId) {
        let name = cx.plan.node_name(node).to_owned();
        let mut absent = cx.plan.absent.clone();
        absent.insert(node);
        cx.plan = Arc::new(with_hosts(&cx.plan, &cx.plan.spec.layout.hosts, &absent));
        cx.jobs.replace_first(Arc::clone(&cx.plan));
        if let Some(plan) = &mut self.plan {
            *plan = Arc::new(with_hosts(plan, &plan.spec.layout.hosts, &absent));
        }
        if let StepLinks::Hosts(hosts) = &mut cx.steps {
            let adopted = self.plan.as_ref().unwrap_or(&cx.plan);
            hosts.change_nodes(adopted, &cx.plan, vec![node]);
        }
        cx.allocations.forget_node(node);
        status_records::record_node_left(cx, node, &name);
        cx.detail(&format!("{name} has left the launch"));
        for resize in &mut self.pending_resizes {
            if resize.leaving.remove(&node) {
                resize.report.departed.push(name.clone());
            }
        }
        self.answer_complete(cx);
    }

    fn answer_complete(&mut self, cx: &mut LaunchContext) {
        let is_complete = |resize: &mut PendingResize| !resize.joins && resize.leaving.is_empty();
        for mut resize in self.pending_resizes.extract_if(.., is_complete) {
            let node = |name: &String| cx.plan.node_names.iter().position(|known| known == name);
            // In the order of the nodes, not in that of their arrival.
            resize.report.joined.sort_by_key(node);
            resize.report.departed.sort_by_key(node);
            let result = resize.failure.map_or(Ok(resize.report), Err);
            answer_resize(cx, &resize.source, result);
        }
    }
}

/// Requests a change of the launch's hosts, or refuses invalid lists.
pub(super) fn request_resize(
    cx: &mut LaunchContext,
    source: ResizeSource,
    command: &ResizeCommand,
) {
    let parse = |list: &str| match list.is_empty() {
        true => Ok(Vec::new()),
        false => list.parse().map(|HostList(entries)| entries),
    };
    let lists = parse(&command.add).and_then(|add| Ok((add, parse(&command.remove)?)));
    match lists {
        Ok((add, remove)) => cx.effects.push(LaunchEffect::Resize(ResizeRequest {
            source,
            add,
            remove,
            ends_ranks: command.ends_ranks,
            deadline: None,
        })),
        Err(problem) => {
            let failure = AllocationFailure::new(Kind::BadRequest, problem.to_string());
            answer_resize(cx, &source, Err(failure));
        }
    }
}

/// Replies with the changes, or with the reason why there are none.
fn answer_resize(cx: &mut LaunchContext, source: &ResizeSource, result: ResizeResult) {
    match source {
        ResizeSource::Caller(number) => {
            cx.effects.push(LaunchEffect::Resized(*number, result));
        }
        ResizeSource::Controller(request) => {
            status_records::record_resize_reply(cx, *request, result);
        }
        ResizeSource::Rank(requester, reply_to, req_id) => {
            let result = result.map(|report| Allocation {
                id: None,
                req_id: req_id.clone(),
                shares: report
                    .joined
                    .into_iter()
                    .chain(report.departed)
                    .map(|name| NodeShare { name, slots: None })
                    .collect(),
                seconds: None,
            });
            answer_allocation(cx, *reply_to, *requester, result);
        }
    }
}
