//! Requests of processes for nodes and slots: decided here, or by the allocator beside the launch.

mod allocator;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::Controller;
use crate::backend::allocator_client::{AllocatorClient, ToAllocator};
use crate::backend::step_messages::LauncherToStep;
use crate::plan::allocation_table::{
    AllocationAttributes, AllocationCandidates, AllocationUsage, NodeSlots, SlotUsage,
};
use wireup_core::job::allocation::{
    Allocation, AllocationFailure, AllocationFailureKind as Kind, AllocationRequest,
    AllocationResult, Directive, NodeShare,
};
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::job_table::KnownRank;
use wireup_core::node::event::{AllocationRequestId, NodeCommand};

/// A waiter for an answer: a node, and its ticket for the request.
type AllocationReplyTarget = (NodeId, AllocationRequestId);

/// A request that the allocator has not answered.
#[derive(Debug)]
struct PendingAllocation {
    reply_to: AllocationReplyTarget,
    requester: KnownRank,
    directive: Directive,
    attributes: AllocationAttributes,
    /// When the request times out.
    deadline: Option<Duration>,
}

/// The allocations of a launch.
#[derive(Debug)]
pub(super) struct AllocationState {
    outside: Option<AllocatorClient>,
    last_number: u64,
    pending: BTreeMap<u64, PendingAllocation>,
}

impl AllocationState {
    /// Where an allocator listens, if there is one.
    pub(super) fn new(allocator: Option<PathBuf>) -> Self {
        Self {
            outside: allocator.map(AllocatorClient::new),
            last_number: 0,
            pending: BTreeMap::new(),
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let pending = self.pending.values();
        pending.filter_map(|pending| pending.deadline).min()
    }
}

fn refuse<T>(kind: Kind, text: impl ToString) -> Result<T, AllocationFailure> {
    let text = text.to_string();
    Err(AllocationFailure { kind, text })
}

impl Controller {
    /// A process requests nodes or slots.
    pub(super) fn on_allocation_request(
        &mut self,
        reply_to: AllocationReplyTarget,
        requester: KnownRank,
        request: &AllocationRequest,
    ) {
        match self.decide(reply_to, requester, request) {
            Ok(None) => {}
            Ok(Some(allocation)) => self.answer_allocation(reply_to, requester, Ok(allocation)),
            Err(failure) => self.answer_allocation(reply_to, requester, Err(failure)),
        }
    }

    /// The grant, or `None` while the allocator decides.
    fn decide(
        &mut self,
        reply_to: AllocationReplyTarget,
        requester: KnownRank,
        request: &AllocationRequest,
    ) -> Result<Option<Allocation>, AllocationFailure> {
        if self.cx.supervisor.is_ending() {
            return refuse(Kind::Canceled, "the launch is being ended");
        }
        let wanted = AllocationAttributes::from_infos(&request.infos)?;
        if self.allocations.outside.is_none() {
            wanted.is_known()?;
            let given = self.decide_here(requester, request.directive, &wanted)?;
            return Ok(Some(given));
        }
        if request.directive == Directive::Cancel {
            return self.withdraw(requester, &wanted).map(Some);
        }
        if request.directive == Directive::Release && wanted.id.is_none() {
            // Slots in use cannot be released, whatever the allocator decides.
            let rooms = self.rooms();
            self.field(requester, rooms, &wanted)
                .and_then(|field| wanted.choose(&field))?;
        }
        self.request_from_allocator(reply_to, requester, request, wanted)?;
        Ok(None)
    }

    fn decide_here(
        &mut self,
        requester: KnownRank,
        directive: Directive,
        attributes: &AllocationAttributes,
    ) -> Result<Allocation, AllocationFailure> {
        let rooms = self.rooms();
        let mut holdings = std::mem::take(&mut self.cx.allocations);
        let field = self.field(requester, rooms, attributes);
        let given =
            field.and_then(|field| holdings.decide(directive, attributes, requester.job(), &field));
        self.cx.allocations = holdings;
        given
    }

    /// By node: living processes that count, and those that ever were.
    pub(super) fn census(&self, counts: impl Fn(KnownRank) -> bool) -> (Vec<u32>, Vec<u32>) {
        let nodes = self.cx.jobs.nodes() as usize;
        let (mut live, mut ever) = (vec![0; nodes], vec![0; nodes]);
        for process in self.cx.jobs.all_ranks() {
            let node = process.node().index();
            ever[node] += 1;
            let in_slot = !self.cx.ranks.get(process).is_over()
                && counts(process)
                && !self.cx.is_daemon(process);
            live[node] += u32::from(in_slot);
        }
        (live, ever)
    }

    /// The reserved slots, and how many of them running processes use.
    pub(super) fn reserved(&self, counts: impl Fn(KnownRank) -> bool) -> Vec<AllocationUsage<'_>> {
        let nodes = self.cx.jobs.nodes() as usize;
        let mut inside: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (job, id) in self.cx.job_tree.in_allocations() {
            let live = inside.entry(id).or_insert_with(|| vec![0; nodes]);
            for process in self.cx.jobs.ranks_of_job(job) {
                let node = process.node().index();
                let lives = !self.cx.ranks.get(process).is_over();
                live[node] += u32::from(lives && counts(process));
            }
        }
        let live = |id: &str| inside.get(id).cloned().unwrap_or_else(|| vec![0; nodes]);
        self.cx.allocations.reserved(live)
    }

    fn rooms(&self) -> Vec<NodeSlots> {
        let (live, _) = self.census(|_| true);
        let reserved = self.reserved(|_| true);
        let ground = SlotUsage {
            live: &live,
            reserved: &reserved,
        };
        let room = |node| NodeSlots {
            slots: self.cx.plan.slots_of(node),
            used_slots: ground
                .used_slots(node)
                .filter(|_| !self.cx.plan.absent.contains(&node)),
        };
        self.cx.plan.job.process_map.node_ids().map(room).collect()
    }

    fn field(
        &self,
        requester: KnownRank,
        rooms: Vec<NodeSlots>,
        attributes: &AllocationAttributes,
    ) -> Result<AllocationCandidates<'_>, AllocationFailure> {
        let named = match attributes.hosts.is_empty() {
            true => Vec::new(),
            false => {
                let found = self
                    .cx
                    .plan
                    .nodes_named(requester.node(), attributes.hosts.clone());
                found.or_else(|failure| refuse(Kind::NoResources, failure.text))?
            }
        };
        Ok(AllocationCandidates {
            rooms,
            names: &self.cx.plan.node_names,
            named,
        })
    }

    fn shares(&self, shares: impl Iterator<Item = (NodeId, Option<u32>)>) -> Vec<NodeShare> {
        let share = |(node, slots): (NodeId, Option<u32>)| NodeShare {
            name: self.cx.plan.node_name(node).to_owned(),
            slots,
        };
        shares.map(share).collect()
    }

    fn answer_allocation(
        &mut self,
        (node, ticket): AllocationReplyTarget,
        requester: KnownRank,
        result: AllocationResult,
    ) {
        let name = requester;
        match &result {
            Ok(allocation) if self.cx.wants_details() => {
                let share = |share: &NodeShare| match share.slots {
                    Some(slots) => format!("{slots} on {}", share.name),
                    None => share.name.clone(),
                };
                let shares: Vec<_> = allocation.shares.iter().map(share).collect();
                let id = allocation.id.as_deref().unwrap_or("of the launch");
                let text = format!("{name}: allocation {id}: {}", shares.join(", "));
                self.cx.detail(&text);
            }
            Ok(_) => {}
            Err(failure) => {
                let text = format!("{name} gets no allocation: {}", failure.text);
                match failure.kind {
                    // Programs that take all they can get repeat their requests.
                    Kind::NoResources | Kind::NotFound | Kind::Canceled | Kind::TimedOut => {
                        self.cx.detail(&text);
                    }
                    Kind::BadRequest | Kind::NotSupported | Kind::Unreachable => {
                        self.cx.warn(&text)
                    }
                }
            }
        }
        let said = NodeCommand::Allocated { ticket, result };
        self.cx.steps.send(LauncherToStep::Node(node, said));
    }

    /// All processes of a job have ended: their allocations are free.
    pub(super) fn allocations_end(&mut self, job: JobIndex) {
        for id in self.cx.allocations.owner_gone(job) {
            self.notify_allocator(&ToAllocator::Ended { id: &id });
        }
    }
}
