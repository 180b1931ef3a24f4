//! Requests of processes for nodes and slots: decided here, or by the allocator beside the launch.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::Drive;
use crate::agent::event::AllocationTicket;
use crate::agent::poll::Ready;
use crate::job::allocation::{
    Allocation, AllocationFailure, AllocationFailureKind as Kind, AllocationRequest,
    AllocationResult, Directive, Share,
};
use crate::job::hosts;
use crate::job::ids::{GlobalRank, JobNumber, NodeId};
use crate::launcher::allocations::outside::{
    FromAllocator, Granted, Hello, Outside, Request, ToAllocator,
};
use crate::launcher::allocations::{Field, Ground, Holdings, Reserved, Room, Shares, Wanted};
use crate::launcher::message::ToCrew;

/// Who waits for an answer: a node, and its name for the request.
type Asker = (NodeId, AllocationTicket);

/// A request that the allocator has not answered.
#[derive(Debug)]
struct Pending {
    asker: Asker,
    by: GlobalRank,
    directive: Directive,
    wanted: Wanted,
    /// When nobody waits for it any more.
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

impl Drive {
    /// A process wants nodes or slots.
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

    /// What is given, or nothing while the allocator thinks about it.
    fn decide(
        &mut self,
        asker: Asker,
        by: GlobalRank,
        request: &AllocationRequest,
    ) -> Result<Option<Allocation>, AllocationFailure> {
        if self.supervisor.is_ending() {
            return refuse(Kind::Canceled, "the launch is being ended");
        }
        let wanted = Wanted::of(&request.infos)?;
        if self.allotments.outside.is_none() {
            wanted.is_known()?;
            let given = self.decide_here(by, request.directive, &wanted)?;
            return Ok(Some(given));
        }
        if request.directive == Directive::Cancel {
            return self.withdraw(by, &wanted).map(Some);
        }
        if request.directive == Directive::Release && wanted.id.is_none() {
            // What is in use cannot be given back, whatever the allocator thinks.
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
        wanted: &Wanted,
    ) -> Result<Allocation, AllocationFailure> {
        let (owner, _) = self.jobs.identity(by);
        let rooms = self.rooms();
        let mut holdings = std::mem::take(&mut self.allotments.holdings);
        let field = self.field(by, rooms, wanted);
        let given = field.and_then(|field| holdings.decide(directive, wanted, owner, &field));
        self.allotments.holdings = holdings;
        given
    }

    /// By node: living processes, and those that ever were.
    pub(super) fn census(&self) -> (Vec<u32>, Vec<u32>) {
        let nodes = self.jobs.nodes() as usize;
        let (mut live, mut ever) = (vec![0; nodes], vec![0; nodes]);
        for (process, life) in (0..).map(GlobalRank).zip(&self.lives) {
            let node = self.jobs.home_of(process).index();
            ever[node] += 1;
            live[node] += u32::from(life.end.is_none());
        }
        (live, ever)
    }

    /// What is set aside.
    pub(super) fn reserved(&self) -> Vec<Reserved<'_>> {
        let nodes = self.jobs.nodes() as usize;
        let mut inside: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (job, id) in self.family.in_allocations() {
            let live = inside.entry(id).or_insert_with(|| vec![0; nodes]);
            for process in self.jobs.processes_of(job) {
                let node = self.jobs.home_of(process).index();
                live[node] += u32::from(self.lives[process.index()].end.is_none());
            }
        }
        let live = |id: &str| inside.get(id).cloned().unwrap_or_else(|| vec![0; nodes]);
        self.allotments.holdings.reserved(live)
    }

    fn rooms(&self) -> Vec<Room> {
        let (live, _) = self.census();
        let reserved = self.reserved();
        let ground = Ground {
            live: &live,
            reserved: &reserved,
        };
        let room = |node| Room {
            slots: self.plan.slots_of(node).0,
            taken: ground.taken(node),
        };
        self.plan.job.ranks.node_ids().map(room).collect()
    }

    fn field(
        &self,
        by: GlobalRank,
        rooms: Vec<Room>,
        wanted: &Wanted,
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

    fn ask_allocator(
        &mut self,
        asker: Asker,
        by: GlobalRank,
        request: &AllocationRequest,
        wanted: Wanted,
    ) -> Result<(), AllocationFailure> {
        self.allotments.last += 1;
        let number = self.allotments.last;
        let Some(mut outside) = self.allotments.outside.take() else {
            return refuse(Kind::Unreachable, "there is no allocator");
        };
        let (plan, rank) = self.jobs.plan_of(by);
        let merged = match wanted.hosts.is_empty() {
            true => Vec::new(),
            false => hosts::merge(wanted.hosts.clone())
                .or_else(|problem| refuse(Kind::BadRequest, problem))?,
        };
        let free = (0..).map(NodeId).zip(self.rooms());
        let free = free.filter_map(|(node, room)| {
            let left = room
                .slots
                .map(|slots| slots.saturating_sub(room.taken.unwrap_or(slots)));
            match (left, room.taken) {
                (Some(0), _) => None,
                (None, taken) if taken != Some(0) => None,
                (left, _) => Some((node, left)),
            }
        });
        let nodes = self.plan.job.ranks.node_ids();
        let nodes = nodes.map(|node| (node, self.plan.slots_of(node).0));
        let launch = self.plan.launch().as_str();
        let hello = Hello::new(launch, self.plan.job.user, self.shares(nodes));
        let message = ToAllocator::Request(Request {
            number,
            directive: request.directive,
            nspace: plan.job.nspace.as_str(),
            rank,
            id: wanted.id.as_deref(),
            req_id: wanted.req_id.as_deref(),
            nodes: wanted.nodes,
            slots: wanted.slots,
            slots_of: &wanted.slots_of,
            hosts: merged
                .into_iter()
                .map(|host| Share {
                    name: host.name,
                    slots: host.slots,
                })
                .collect(),
            seconds: wanted.seconds,
            infos: wanted
                .others
                .iter()
                .map(|info| (&info.key[..], &info.value[..]))
                .collect(),
            free: self.shares(free),
        });
        let said = outside.say(&message, &hello, self.hands.poll());
        self.allotments.outside = Some(outside);
        said.or_else(|problem| refuse(Kind::Unreachable, problem))?;
        let pending = Pending {
            asker,
            by,
            directive: request.directive,
            wanted,
            until: request.timeout.map(|timeout| self.now() + timeout),
        };
        self.allotments.pending.insert(number, pending);
        Ok(())
    }

    /// A process does not want any more what it, or another one of its job, has asked for.
    fn withdraw(
        &mut self,
        by: GlobalRank,
        wanted: &Wanted,
    ) -> Result<Allocation, AllocationFailure> {
        let (job, _) = self.jobs.identity(by);
        let is_meant = |pending: &Pending| {
            pending.wanted.req_id == wanted.req_id && self.jobs.identity(pending.by).0 == job
        };
        let mut pending = self.allotments.pending.iter();
        let found = pending.find(|(_, pending)| is_meant(pending));
        match found.map(|(number, _)| *number) {
            Some(number) => {
                self.give_up(number, Kind::Canceled, "it was withdrawn");
                Ok(Allocation {
                    req_id: wanted.req_id.clone(),
                    ..Allocation::default()
                })
            }
            None => {
                let problem = "there is no such request that waits for an answer; it is named with \
                               the same PMIX_ALLOC_REQ_ID";
                refuse(Kind::NotFound, problem)
            }
        }
    }

    fn give_up(&mut self, number: u64, kind: Kind, text: &str) {
        if let Some(pending) = self.allotments.pending.remove(&number) {
            self.mention(&ToAllocator::Cancel { number });
            let failure = refuse(kind, text);
            self.answer_allocation(pending.asker, pending.by, failure);
        }
    }

    fn mention(&mut self, message: &ToAllocator<'_>) {
        if let Some(outside) = &mut self.allotments.outside {
            outside.mention(message, self.hands.poll());
        }
    }

    /// The allocator has something to say, or takes more.
    pub(super) fn hear_allocator(&mut self, event: Ready) {
        let Some(outside) = &mut self.allotments.outside else {
            return;
        };
        if event.writable {
            outside.writable(self.hands.poll());
        }
        if !event.readable {
            return;
        }
        let mut said = Vec::new();
        let heard = outside.hear(&mut said);
        for message in said {
            match message {
                FromAllocator::Granted(granted) => self.granted(granted),
                FromAllocator::Refused { number, reason } => {
                    if let Some(pending) = self.allotments.pending.remove(&number) {
                        let failure = refuse(Kind::NoResources, reason);
                        self.answer_allocation(pending.asker, pending.by, failure);
                    }
                }
            }
        }
        if let Err(problem) = heard {
            self.lose_allocator(&problem);
        }
    }

    fn lose_allocator(&mut self, problem: &str) {
        let waiting = std::mem::take(&mut self.allotments.pending);
        if let Some(outside) = &self.allotments.outside
            && !waiting.is_empty()
        {
            let text = format!(
                "the allocator at {} is lost: {problem}",
                outside.path().display()
            );
            self.warn(&text);
        }
        for pending in waiting.into_values() {
            let failure = refuse(Kind::Unreachable, "the allocator is lost");
            self.answer_allocation(pending.asker, pending.by, failure);
        }
    }

    /// The allocator agrees. What it gives of the launch's own nodes is set aside.
    fn granted(&mut self, granted: Granted) {
        let Some(pending) = self.allotments.pending.remove(&granted.number) else {
            return;
        };
        let Pending {
            asker,
            by,
            directive,
            wanted,
            ..
        } = pending;
        let mut given = Allocation {
            id: granted.id.or_else(|| wanted.id.clone()),
            req_id: wanted.req_id.clone(),
            shares: granted.nodes,
            seconds: granted.seconds,
        };
        match directive {
            Directive::New | Directive::Extend => {
                if given.id.is_none() && directive == Directive::New {
                    given.id = Some(self.allotments.holdings.new_id());
                }
                if let Some(id) = given.id.clone() {
                    let own = self.own_part(&given.shares);
                    let (owner, _) = self.jobs.identity(by);
                    self.allotments.holdings.give(&id, owner, own);
                }
            }
            Directive::Release | Directive::Reacquire | Directive::Cancel => {
                let wanted = Wanted {
                    seconds: None,
                    ..wanted
                };
                // What is not of the launch is the allocator's affair.
                if let Ok(own) = self.decide_here(by, directive, &wanted)
                    && given.shares.is_empty()
                {
                    given.shares = own.shares;
                }
            }
        }
        self.answer_allocation(asker, by, Ok(given));
    }

    /// What of this are nodes of the launch.
    fn own_part(&self, shares: &[Share]) -> Shares {
        let names = || (0..).map(NodeId).zip(&self.plan.node_names);
        let own = |share: &Share| {
            let mut same = names().filter(|(_, name)| name.eq_ignore_ascii_case(&share.name));
            let (node, _) = same.next()?;
            Some((node, share.slots.or_else(|| self.plan.slots_of(node).0)))
        };
        shares.iter().filter_map(own).collect()
    }

    fn answer_allocation(
        &mut self,
        (node, ticket): Asker,
        by: GlobalRank,
        result: AllocationResult,
    ) {
        let name = self.jobs.name_of(by);
        match &result {
            Ok(allocation) if self.plan.spec.verbose > 0 => {
                let share = |share: &Share| match share.slots {
                    Some(slots) => format!("{slots} on {}", share.name),
                    None => share.name.clone(),
                };
                let shares: Vec<_> = allocation.shares.iter().map(share).collect();
                let id = allocation.id.as_deref().unwrap_or("of the launch");
                let text = format!("{name}: allocation {id}: {}", shares.join(", "));
                self.tell(&text);
            }
            Ok(_) => {}
            Err(failure) => {
                let text = format!("{name} gets no allocation: {}", failure.text);
                match failure.kind {
                    // Programs that take what they can get ask again and again.
                    Kind::NoResources | Kind::NotFound | Kind::Canceled | Kind::TimedOut => {
                        if self.plan.spec.verbose > 0 {
                            self.tell(&text);
                        }
                    }
                    Kind::BadRequest | Kind::NotSupported | Kind::Unreachable => self.warn(&text),
                }
            }
        }
        self.hands.order(ToCrew::Allocated {
            node,
            ticket,
            result,
        });
    }

    /// Nobody waits for some answers any more.
    pub(super) fn look_at_allocations(&mut self, now: Duration) {
        let pending = self.allotments.pending.iter();
        let late = pending.filter(|(_, pending)| pending.until.is_some_and(|until| until <= now));
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        for number in late {
            let text = "the allocator has not answered in the time the request allows";
            self.give_up(number, Kind::TimedOut, text);
        }
    }

    /// All processes of a job have ended: what they have asked for is free.
    pub(super) fn allocations_end(&mut self, job: JobNumber) {
        for id in self.allotments.holdings.owner_gone(job) {
            self.mention(&ToAllocator::Ended { id: &id });
        }
    }
}
