//! Requests of processes for nodes and slots: decided here, or by the allocator beside the launch.

mod allocator;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::Controller;
use crate::backend::backend_message::ToBackend;
use crate::backend::outside_allocator::{Outside, ToAllocator};
use crate::plan::allocation_table::{Field, Ground, Holdings, Reserved, Room, WantedAllocation};
use wireup_core::job::allocation::{
    Allocation, AllocationFailure, AllocationFailureKind as Kind, AllocationRequest,
    AllocationResult, Directive, Share,
};
use wireup_core::job::ids::{GlobalRank, JobNumber, NodeId};
use wireup_core::node::event::{AllocationTicket, ToNode};

/// A waiter for an answer: a node, and its ticket for the request.
type Asker = (NodeId, AllocationTicket);

/// A request that the allocator has not answered.
#[derive(Debug)]
struct Pending {
    asker: Asker,
    by: GlobalRank,
    directive: Directive,
    wanted: WantedAllocation,
    /// When the request times out.
    until: Option<Duration>,
}

/// The allocations of a launch.
#[derive(Debug)]
pub(super) struct Allotments {
    holdings: Holdings,
    outside: Option<Outside>,
    last: u64,
    pending: BTreeMap<u64, Pending>,
}

impl Allotments {
    /// Where an allocator listens, if there is one.
    pub(super) fn new(allocator: Option<PathBuf>) -> Self {
        Self {
            holdings: Holdings::default(),
            outside: allocator.map(Outside::new),
            last: 0,
            pending: BTreeMap::new(),
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let pending = self.pending.values();
        pending.filter_map(|pending| pending.until).min()
    }
}

fn refuse<T>(kind: Kind, text: impl ToString) -> Result<T, AllocationFailure> {
    let text = text.to_string();
    Err(AllocationFailure { kind, text })
}

impl Controller {
    /// A process requests nodes or slots.
    pub(super) fn allocation_wanted(
        &mut self,
        asker: Asker,
        by: GlobalRank,
        request: &AllocationRequest,
    ) {
        match self.decide(asker, by, request) {
            Ok(None) => {}
            Ok(Some(allocation)) => self.answer_allocation(asker, by, Ok(allocation)),
            Err(failure) => self.answer_allocation(asker, by, Err(failure)),
        }
    }

    /// The grant, or `None` while the allocator decides.
    fn decide(
        &mut self,
        asker: Asker,
        by: GlobalRank,
        request: &AllocationRequest,
    ) -> Result<Option<Allocation>, AllocationFailure> {
        if self.supervisor.is_ending() {
            return refuse(Kind::Canceled, "the launch is being ended");
        }
        let wanted = WantedAllocation::of(&request.infos)?;
        if self.allotments.outside.is_none() {
            wanted.is_known()?;
            let given = self.decide_here(by, request.directive, &wanted)?;
            return Ok(Some(given));
        }
        if request.directive == Directive::Cancel {
            return self.withdraw(by, &wanted).map(Some);
        }
        if request.directive == Directive::Release && wanted.id.is_none() {
            // Slots in use cannot be released, whatever the allocator decides.
            let rooms = self.rooms();
            self.field(by, rooms, &wanted)
                .and_then(|field| wanted.choose(&field))?;
        }
        self.ask_allocator(asker, by, request, wanted)?;
        Ok(None)
    }

    fn decide_here(
        &mut self,
        by: GlobalRank,
        directive: Directive,
        wanted: &WantedAllocation,
    ) -> Result<Allocation, AllocationFailure> {
        let (owner, _) = self.jobs.identity(by);
        let rooms = self.rooms();
        let mut holdings = std::mem::take(&mut self.allotments.holdings);
        let field = self.field(by, rooms, wanted);
        let given = field.and_then(|field| holdings.decide(directive, wanted, owner, &field));
        self.allotments.holdings = holdings;
        given
    }

    /// By node: living processes that count, and those that ever were.
    pub(super) fn census(&self, counts: impl Fn(GlobalRank) -> bool) -> (Vec<u32>, Vec<u32>) {
        let nodes = self.jobs.nodes() as usize;
        let (mut live, mut ever) = (vec![0; nodes], vec![0; nodes]);
        for (process, life) in (0..).map(GlobalRank).zip(&self.lives) {
            let node = self.jobs.home_of(process).index();
            ever[node] += 1;
            let in_slot = !life.is_over() && counts(process) && !self.is_daemon(process);
            live[node] += u32::from(in_slot);
        }
        (live, ever)
    }

    /// The reserved slots, and how many of them running processes use.
    pub(super) fn reserved(&self, counts: impl Fn(GlobalRank) -> bool) -> Vec<Reserved<'_>> {
        let nodes = self.jobs.nodes() as usize;
        let mut inside: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (job, id) in self.family.in_allocations() {
            let live = inside.entry(id).or_insert_with(|| vec![0; nodes]);
            for process in self.jobs.processes_of(job) {
                let node = self.jobs.home_of(process).index();
                let lives = !self.lives[process.index()].is_over();
                live[node] += u32::from(lives && counts(process));
            }
        }
        let live = |id: &str| inside.get(id).cloned().unwrap_or_else(|| vec![0; nodes]);
        self.allotments.holdings.reserved(live)
    }

    fn rooms(&self) -> Vec<Room> {
        let (live, _) = self.census(|_| true);
        let reserved = self.reserved(|_| true);
        let ground = Ground {
            live: &live,
            reserved: &reserved,
        };
        let room = |node| Room {
            slots: self.plan.slots_of(node).0,
            taken: ground
                .taken(node)
                .filter(|_| !self.plan.absent.contains(&node)),
        };
        self.plan.job.ranks.node_ids().map(room).collect()
    }

    fn field(
        &self,
        by: GlobalRank,
        rooms: Vec<Room>,
        wanted: &WantedAllocation,
    ) -> Result<Field<'_>, AllocationFailure> {
        let named = match wanted.hosts.is_empty() {
            true => Vec::new(),
            false => {
                let here = self.jobs.home_of(by);
                let found = self.plan.nodes_named(here, wanted.hosts.clone());
                found.or_else(|failure| refuse(Kind::NoResources, failure.text))?
            }
        };
        Ok(Field {
            rooms,
            names: &self.plan.node_names,
            named,
        })
    }

    fn shares(&self, shares: impl Iterator<Item = (NodeId, Option<u32>)>) -> Vec<Share> {
        let share = |(node, slots): (NodeId, Option<u32>)| Share {
            name: self.plan.node_names[node.index()].clone(),
            slots,
        };
        shares.map(share).collect()
    }

    fn answer_allocation(
        &mut self,
        (node, ticket): Asker,
        by: GlobalRank,
        result: AllocationResult,
    ) {
        let name = self.jobs.name_of(by);
        match &result {
            Ok(allocation) if self.wants_details() => {
                let share = |share: &Share| match share.slots {
                    Some(slots) => format!("{slots} on {}", share.name),
                    None => share.name.clone(),
                };
                let shares: Vec<_> = allocation.shares.iter().map(share).collect();
                let id = allocation.id.as_deref().unwrap_or("of the launch");
                let text = format!("{name}: allocation {id}: {}", shares.join(", "));
                self.detail(&text);
            }
            Ok(_) => {}
            Err(failure) => {
                let text = format!("{name} gets no allocation: {}", failure.text);
                match failure.kind {
                    // Programs that take all they can get repeat their requests.
                    Kind::NoResources | Kind::NotFound | Kind::Canceled | Kind::TimedOut => {
                        self.detail(&text);
                    }
                    Kind::BadRequest | Kind::NotSupported | Kind::Unreachable => self.warn(&text),
                }
            }
        }
        let said = ToNode::Allocated { ticket, result };
        self.backend.order(ToBackend::Node(node, said));
    }

    /// All processes of a job have ended: their allocations are free.
    pub(super) fn allocations_end(&mut self, job: JobNumber) {
        for id in self.allotments.holdings.owner_gone(job) {
            self.mention(&ToAllocator::Ended { id: &id });
        }
    }
}
