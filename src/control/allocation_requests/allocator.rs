//! Communication between the launcher and the external allocator.

use std::time::Duration;

use super::{AllocationReplyTarget, Controller, PendingAllocation, refuse};
use crate::backend::allocator_client::{
    AllocatorError, AllocatorGrant, AllocatorRequest, FromAllocator, Hello, ToAllocator,
};
use crate::plan::allocation_table::{AllocationAttributes, NodeShares};
use crate::plan::planned_jobs::Plans;
use wireup_core::job::allocation::{
    Allocation, AllocationFailure, AllocationFailureKind as Kind, AllocationRequest, Directive,
    NodeShare,
};
use wireup_core::job::hosts;
use wireup_core::job::ids::NodeId;
use wireup_core::job::job_table::KnownRank;
use wireup_sys::poll::PollEvent;

impl Controller {
    /// Asks the allocator, which answers when it likes.
    pub(super) fn request_from_allocator(
        &mut self,
        asker: AllocationReplyTarget,
        by: KnownRank,
        request: &AllocationRequest,
        wanted: AllocationAttributes,
    ) -> Result<(), AllocationFailure> {
        self.allocations.last_number += 1;
        let number = self.allocations.last_number;
        let (plan, rank) = self.cx.jobs.plan_of(by);
        let merged = match wanted.hosts.is_empty() {
            true => Vec::new(),
            false => hosts::merge(wanted.hosts.clone())
                .or_else(|problem| refuse(Kind::BadRequest, problem))?,
        };
        let free = (0..).map(NodeId).zip(self.rooms());
        let free = free.filter_map(|(node, room)| {
            let left = room
                .slots
                .map(|slots| slots.saturating_sub(room.used_slots.unwrap_or(slots)));
            match (left, room.used_slots) {
                (Some(0), _) => None,
                (None, taken) if taken != Some(0) => None,
                (left, _) => Some((node, left)),
            }
        });
        let nodes = self.cx.plan.present();
        let nodes = nodes.map(|node| (node, self.cx.plan.slots_of(node)));
        let launch = self.cx.plan.launch.nspace.as_str();
        let hello = Hello::new(launch, self.cx.plan.job.uid, self.shares(nodes));
        let message = ToAllocator::Request(AllocatorRequest {
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
                .map(|host| NodeShare {
                    name: host.name,
                    slots: host.slots,
                })
                .collect(),
            seconds: wanted.seconds,
            infos: wanted
                .unknown_infos
                .iter()
                .map(|info| (&info.key[..], &info.value[..]))
                .collect(),
            free: self.shares(free),
        });
        let said = match self.allocations.outside.take() {
            Some(mut outside) => {
                let said = outside.send_message(&message, &hello, &self.cx.events.poll);
                self.allocations.outside = Some(outside);
                said
            }
            None => Err(AllocatorError::None),
        };
        said.or_else(|problem| refuse(Kind::Unreachable, problem.to_string()))?;
        let pending = PendingAllocation {
            reply_to: asker,
            requester: by,
            directive: request.directive,
            attributes: wanted,
            deadline: request.timeout.map(|timeout| self.cx.now() + timeout),
        };
        self.allocations.pending.insert(number, pending);
        Ok(())
    }

    /// A process withdraws a request of its job.
    pub(super) fn withdraw(
        &mut self,
        requester: KnownRank,
        attributes: &AllocationAttributes,
    ) -> Result<Allocation, AllocationFailure> {
        let is_meant = |pending: &PendingAllocation| {
            pending.attributes.req_id == attributes.req_id
                && pending.requester.job() == requester.job()
        };
        let mut pending = self.allocations.pending.iter();
        let found = pending.find(|(_, pending)| is_meant(pending));
        match found.map(|(number, _)| *number) {
            Some(number) => {
                self.cancel_allocation(number, Kind::Canceled, "it was withdrawn");
                Ok(Allocation {
                    req_id: attributes.req_id.clone(),
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

    fn cancel_allocation(&mut self, number: u64, kind: Kind, text: &str) {
        if let Some(pending) = self.allocations.pending.remove(&number) {
            self.notify_allocator(&ToAllocator::Cancel { number });
            let failure = refuse(kind, text);
            self.answer_allocation(pending.reply_to, pending.requester, failure);
        }
    }

    /// Tells the allocator something that needs no answer.
    pub(super) fn notify_allocator(&mut self, message: &ToAllocator<'_>) {
        if let Some(outside) = &mut self.allocations.outside {
            outside.mention(message, &self.cx.events.poll);
        }
    }

    /// The allocator's connection is readable or writable.
    pub(crate) fn on_allocator_ready(&mut self, event: PollEvent) {
        let Some(outside) = &mut self.allocations.outside else {
            return;
        };
        if event.writable {
            outside.writable(&self.cx.events.poll);
        }
        if !event.readable {
            return;
        }
        let mut said = Vec::new();
        let heard = outside.drain_messages(&mut said);
        for message in said {
            match message {
                FromAllocator::Granted(granted) => self.granted(granted),
                FromAllocator::Refused { number, reason } => {
                    if let Some(pending) = self.allocations.pending.remove(&number) {
                        let failure = refuse(Kind::NoResources, reason);
                        self.answer_allocation(pending.reply_to, pending.requester, failure);
                    }
                }
            }
        }
        if let Err(problem) = heard {
            self.lose_allocator(&problem.to_string());
        }
    }

    fn lose_allocator(&mut self, problem: &str) {
        let waiting = std::mem::take(&mut self.allocations.pending);
        if let Some(outside) = &self.allocations.outside
            && !waiting.is_empty()
        {
            let text = format!(
                "the allocator at {} is lost: {problem}",
                outside.path().display()
            );
            self.cx.warn(&text);
        }
        for pending in waiting.into_values() {
            let failure = refuse(Kind::Unreachable, "the allocator is lost");
            self.answer_allocation(pending.reply_to, pending.requester, failure);
        }
    }

    /// The allocator grants a request. Slots on the launch's own nodes are reserved.
    fn granted(&mut self, granted: AllocatorGrant) {
        let Some(pending) = self.allocations.pending.remove(&granted.number) else {
            return;
        };
        let PendingAllocation {
            reply_to: asker,
            requester: by,
            directive,
            attributes: wanted,
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
                    given.id = Some(self.cx.allocations.new_id());
                }
                if let Some(id) = given.id.clone() {
                    let own = self.own_part(&given.shares);
                    let known = |share: &NodeShare| self.node_of_host(&share.name).is_some();
                    let foreign = given.shares.iter().filter(|share| !known(share));
                    let foreign: Vec<NodeShare> = foreign.cloned().collect();
                    let holdings = &mut self.cx.allocations;
                    holdings.grant_slots(&id, by.job(), own);
                    holdings.add_external_shares(&id, foreign.into_iter());
                }
            }
            Directive::Release | Directive::Reacquire | Directive::Cancel => {
                let wanted = AllocationAttributes {
                    seconds: None,
                    ..wanted
                };
                // Nodes outside the launch are managed by the allocator.
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
    fn own_part(&self, shares: &[NodeShare]) -> NodeShares {
        let own = shares.iter().filter_map(|share| self.own_share(share));
        own.collect()
    }

    fn own_share(&self, share: &NodeShare) -> Option<(NodeId, Option<u32>)> {
        let node = self.node_of_host(&share.name)?;
        Some((node, share.slots.or_else(|| self.cx.plan.slots_of(node))))
    }

    fn node_of_host(&self, host: &str) -> Option<NodeId> {
        let same = |node: &NodeId| self.cx.plan.node_name(*node).eq_ignore_ascii_case(host);
        self.cx.plan.present().find(same)
    }

    /// The hosts of an allocation that have not joined the launch.
    pub(crate) fn allocation_hosts_to_join(&self, id: &str) -> Vec<hosts::HostEntry> {
        let shares = self.cx.allocations.external_shares(id).iter();
        let named = shares.filter_map(|share| {
            let list = share.name.parse::<hosts::HostList>();
            let entry = list.ok()?.0.into_iter().next()?;
            Some(entry.with_slots(share.slots))
        });
        named.collect()
    }

    /// Hosts have joined: what allocations have of them can be spawned into.
    pub(crate) fn settle_allocations(&mut self) {
        let mut holdings = std::mem::take(&mut self.cx.allocations);
        holdings.settle(|share| self.own_share(share));
        self.cx.allocations = holdings;
    }

    /// Drops answers without a waiter.
    pub(crate) fn expire_allocations(&mut self, now: Duration) {
        let pending = self.allocations.pending.iter();
        let late =
            pending.filter(|(_, pending)| pending.deadline.is_some_and(|until| until <= now));
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        for number in late {
            let text = "the allocator has not answered in the time the request allows";
            self.cancel_allocation(number, Kind::TimedOut, text);
        }
    }
}
