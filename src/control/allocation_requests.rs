//! Requests of processes for nodes and slots, decided by the launcher or by the external allocator.

mod allocator;

pub(super) use allocator::{hosts_to_join, settle_joined_hosts};

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::launch_context::LaunchContext;
use super::launch_effect::LaunchEffect;
use super::launch_service::LaunchService;
use super::resize_request::{ResizeRequest, ResizeSource};
use crate::backend::allocator_client::{AllocatorClient, ToAllocator};
use crate::backend::step_messages::LauncherToStep;
use crate::plan::SpawnPlanner;
use crate::plan::allocation_table::{
    AllocationAttributes, AllocationCandidates, AllocationUsage, NodeSlots, SlotUsage,
};
use wireup_core::job::allocation::{
    Allocation, AllocationFailure, AllocationFailureKind as Kind, AllocationRequest,
    AllocationResult, Directive, NodeShare,
};
use wireup_core::job::hosts::HostEntry;
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::job_table::KnownRank;
use wireup_core::node::event::{AllocationRequestId, NodeCommand};

/// Destination of an answer: the node that sent the request, and its id of the request.
type AllocationReplyTarget = (NodeId, AllocationRequestId);

/// A request that the allocator has not answered.
#[derive(Debug)]
struct PendingAllocation {
    reply_to: AllocationReplyTarget,
    requester: KnownRank,
    directive: Directive,
    attributes: AllocationAttributes,
    /// Time at which the request times out, since the start of the launch; `None` without a timeout.
    deadline: Option<Duration>,
}

/// The allocations of a launch.
#[derive(Debug)]
pub(super) struct AllocationRequests {
    outside: Option<AllocatorClient>,
    last_number: u64,
    pending: BTreeMap<u64, PendingAllocation>,
}

impl LaunchService for AllocationRequests {
    fn next_deadline(&self) -> Option<Duration> {
        let pending = self.pending.values();
        pending.filter_map(|pending| pending.deadline).min()
    }

    /// Cancels requests whose deadline has passed.
    fn tick(&mut self, cx: &mut LaunchContext, now: Duration) {
        let is_late = |pending: &PendingAllocation| pending.deadline.is_some_and(|at| at <= now);
        let late = self.pending.iter().filter(|(_, pending)| is_late(pending));
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        for number in late {
            let text = "the allocator has not answered in the time the request allows";
            self.cancel(cx, number, Kind::TimedOut, text);
        }
    }
}

fn refuse<T>(kind: Kind, text: impl ToString) -> Result<T, AllocationFailure> {
    Err(AllocationFailure::new(kind, text.to_string()))
}

impl AllocationRequests {
    /// Creates the service. `allocator` is the path of the external allocator's socket (`--allocator`).
    pub(super) fn new(allocator: Option<PathBuf>) -> Self {
        Self {
            outside: allocator.map(AllocatorClient::new),
            last_number: 0,
            pending: BTreeMap::new(),
        }
    }

    /// Decides a request of a process, or sends it to the external allocator, which answers later.
    pub(super) fn on_request(
        &mut self,
        cx: &mut LaunchContext,
        reply_to: AllocationReplyTarget,
        requester: KnownRank,
        request: &AllocationRequest,
    ) {
        let result = self.decide(cx, reply_to, requester, request);
        if let Some(result) = result.transpose() {
            answer_allocation(cx, reply_to, requester, result);
        }
    }

    /// Returns the grant, or `None` while the allocator decides.
    fn decide(
        &mut self,
        cx: &mut LaunchContext,
        reply_to: AllocationReplyTarget,
        requester: KnownRank,
        request: &AllocationRequest,
    ) -> Result<Option<Allocation>, AllocationFailure> {
        if cx.supervisor.is_ending() {
            return refuse(Kind::Canceled, "the launch is being ended");
        }
        let attributes = AllocationAttributes::from_infos(&request.infos)?;
        if self.outside.is_none() {
            attributes.is_known()?;
            if let Some(resize) = resize_of(cx, reply_to, requester, request, &attributes)? {
                cx.effects.push(LaunchEffect::Resize(resize));
                return Ok(None);
            }
            let allocation = decide_here(cx, requester, request.directive, &attributes)?;
            return Ok(Some(allocation));
        }
        if request.directive == Directive::Cancel {
            return self.withdraw(cx, requester, &attributes).map(Some);
        }
        if request.directive == Directive::Release && attributes.id.is_none() {
            // Slots in use cannot be released, whatever the allocator decides.
            let field = candidates(cx, requester, rooms(cx), &attributes)?;
            attributes.choose(&field)?;
        }
        self.request(cx, reply_to, requester, request, attributes)?;
        Ok(None)
    }

    /// Frees the allocations of a job whose processes have all exited.
    pub(super) fn on_job_ended(&mut self, cx: &mut LaunchContext, job: JobIndex) {
        for id in cx.allocations.owner_gone(job) {
            self.notify(cx, &ToAllocator::Ended { id: &id });
        }
    }
}

/// Returns the change of the launch's hosts that a request means: without a name and an amount, hosts that it lists join
/// with an extension, and leave with a release if they are free.
fn resize_of(
    cx: &LaunchContext,
    reply_to: AllocationReplyTarget,
    requester: KnownRank,
    request: &AllocationRequest,
    attributes: &AllocationAttributes,
) -> Result<Option<ResizeRequest>, AllocationFailure> {
    if !attributes.is_list_alone() {
        return Ok(None);
    }
    let (hosts, none) = (attributes.hosts.clone(), Vec::new());
    let (add, remove) = match request.directive {
        Directive::Extend => (hosts, none),
        Directive::Release if hosts.iter().all(HostEntry::is_whole) => {
            let field = candidates(cx, requester, rooms(cx), attributes)?;
            attributes.choose(&field)?;
            (none, hosts)
        }
        Directive::New | Directive::Release | Directive::Reacquire | Directive::Cancel => {
            return Ok(None);
        }
    };
    Ok(Some(ResizeRequest {
        source: ResizeSource::Rank(requester, reply_to, attributes.req_id.clone()),
        add,
        remove,
        ends_ranks: false,
        deadline: request.timeout.map(|timeout| cx.now() + timeout),
    }))
}

fn decide_here(
    cx: &mut LaunchContext,
    requester: KnownRank,
    directive: Directive,
    attributes: &AllocationAttributes,
) -> Result<Allocation, AllocationFailure> {
    let rooms = rooms(cx);
    let mut holdings = std::mem::take(&mut cx.allocations);
    let field = candidates(cx, requester, rooms, attributes);
    let result =
        field.and_then(|field| holdings.decide(directive, attributes, requester.job(), &field));
    cx.allocations = holdings;
    result
}

/// Counts processes by node: living ones that `counts` selects, and all that the launch ever had.
pub(super) fn census(
    cx: &LaunchContext,
    counts: impl Fn(KnownRank) -> bool,
) -> (Vec<u32>, Vec<u32>) {
    let nodes = cx.jobs.nodes() as usize;
    let (mut live, mut ever) = (vec![0; nodes], vec![0; nodes]);
    for process in cx.jobs.all_ranks() {
        let node = process.node().index();
        ever[node] += 1;
        let in_slot = !cx.ranks.get(process).is_over() && counts(process) && !cx.is_daemon(process);
        live[node] += u32::from(in_slot);
    }
    (live, ever)
}

/// Returns the reserved slots, and how many of them running processes use.
pub(super) fn reserved(
    cx: &LaunchContext,
    counts: impl Fn(KnownRank) -> bool,
) -> Vec<AllocationUsage<'_>> {
    let nodes = cx.jobs.nodes() as usize;
    let mut inside: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (job, id) in cx.job_tree.in_allocations() {
        let live = inside.entry(id).or_insert_with(|| vec![0; nodes]);
        for process in cx.jobs.ranks_of_job(job) {
            let node = process.node().index();
            let lives = !cx.ranks.get(process).is_over();
            live[node] += u32::from(lives && counts(process));
        }
    }
    let live = |id: &str| inside.get(id).cloned().unwrap_or_else(|| vec![0; nodes]);
    cx.allocations.reserved(live)
}

fn rooms(cx: &LaunchContext) -> Vec<NodeSlots> {
    let (live, _) = census(cx, |_| true);
    let reserved = reserved(cx, |_| true);
    let ground = SlotUsage {
        live: &live,
        reserved: &reserved,
    };
    let room = |node| NodeSlots {
        slots: SpawnPlanner::new(&cx.plan).slots_of(node),
        used_slots: ground
            .used_slots(node)
            .filter(|_| !cx.plan.absent.contains(&node)),
    };
    cx.plan.job.process_map.node_ids().map(room).collect()
}

fn candidates<'a>(
    cx: &'a LaunchContext,
    requester: KnownRank,
    rooms: Vec<NodeSlots>,
    attributes: &AllocationAttributes,
) -> Result<AllocationCandidates<'a>, AllocationFailure> {
    let named = match attributes.hosts.is_empty() {
        true => Vec::new(),
        false => {
            let found =
                SpawnPlanner::new(&cx.plan).nodes_named(requester.node(), attributes.hosts.clone());
            found.or_else(|failure| refuse(Kind::NoResources, failure.text))?
        }
    };
    Ok(AllocationCandidates {
        rooms,
        names: &cx.plan.node_names,
        named,
    })
}

fn shares(
    cx: &LaunchContext,
    shares: impl Iterator<Item = (NodeId, Option<u32>)>,
) -> Vec<NodeShare> {
    let share = |(node, slots): (NodeId, Option<u32>)| NodeShare {
        name: cx.plan.node_name(node).to_owned(),
        slots,
    };
    shares.map(share).collect()
}

/// Replies to a request, and notes the result.
pub(super) fn answer_allocation(
    cx: &mut LaunchContext,
    (node, ticket): AllocationReplyTarget,
    requester: KnownRank,
    result: AllocationResult,
) {
    match &result {
        Ok(allocation) if cx.wants_details() => {
            let share = |share: &NodeShare| match share.slots {
                Some(slots) => format!("{slots} on {}", share.name),
                None => share.name.clone(),
            };
            let shares: Vec<_> = allocation.shares.iter().map(share).collect();
            let id = allocation.id.as_deref().unwrap_or("of the launch");
            let text = format!("{requester}: allocation {id}: {}", shares.join(", "));
            cx.detail(&text);
        }
        Ok(_) => {}
        Err(failure) => {
            let text = format!("{requester} gets no allocation: {}", failure.text);
            match failure.kind {
                // Programs that take all they can get repeat their requests.
                Kind::NoResources | Kind::NotFound | Kind::Canceled | Kind::TimedOut => {
                    cx.detail(&text);
                }
                Kind::BadRequest | Kind::NotSupported | Kind::Unreachable => cx.warn(&text),
            }
        }
    }
    let command = NodeCommand::Allocated { ticket, result };
    cx.steps.send(LauncherToStep::Node(node, command));
}
