//! Communication between the launcher and the external allocator.

use super::{
    AllocationReplyTarget, AllocationRequests, PendingAllocation, answer_allocation, decide_here,
    refuse, rooms, shares,
};
use crate::backend::allocator_client::{
    AllocatorError, AllocatorGrant, AllocatorRequest, FromAllocator, Hello, ToAllocator,
};
use crate::control::launch_context::LaunchContext;
use crate::plan::SpawnPlanner;
use crate::plan::allocation_table::AllocationAttributes;
use crate::plan::planned_jobs::Plans;
use wireup_core::job::allocation::{
    Allocation, AllocationFailure, AllocationFailureKind as Kind, AllocationRequest, Directive,
    NodeShare,
};
use wireup_core::job::hosts;
use wireup_core::job::ids::NodeId;
use wireup_core::job::job_table::KnownRank;
use wireup_sys::poll::PollEvent;

impl AllocationRequests {
    /// Sends a request to the allocator, which may answer at any time.
    pub(super) fn request(
        &mut self,
        cx: &mut LaunchContext,
        reply_to: AllocationReplyTarget,
        requester: KnownRank,
        request: &AllocationRequest,
        attributes: AllocationAttributes,
    ) -> Result<(), AllocationFailure> {
        self.last_number += 1;
        let number = self.last_number;
        let (plan, rank) = cx.jobs.plan_of(requester);
        let merged = match attributes.hosts.is_empty() {
            true => Vec::new(),
            false => hosts::merge(attributes.hosts.clone())
                .or_else(|problem| refuse(Kind::BadRequest, problem))?,
        };
        let free = (0..).map(NodeId).zip(rooms(cx));
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
        let nodes = cx.plan.present();
        let nodes = nodes.map(|node| (node, SpawnPlanner::new(&cx.plan).slots_of(node)));
        let launch = cx.plan.launch.nspace.as_str();
        let hello = Hello::new(launch, cx.plan.job.uid, shares(cx, nodes));
        let message = ToAllocator::Request(AllocatorRequest {
            number,
            directive: request.directive,
            nspace: plan.job.nspace.as_str(),
            rank,
            id: attributes.id.as_deref(),
            req_id: attributes.req_id.as_deref(),
            nodes: attributes.nodes,
            slots: attributes.slots,
            slots_of: &attributes.slots_of,
            hosts: merged
                .into_iter()
                .map(|host| NodeShare {
                    name: host.name,
                    slots: host.slots,
                })
                .collect(),
            seconds: attributes.seconds,
            infos: attributes
                .unknown_infos
                .iter()
                .map(|info| (&info.key[..], &info.value[..]))
                .collect(),
            free: shares(cx, free),
        });
        let result = match &mut self.outside {
            Some(outside) => outside.send_message(&message, &hello, &cx.events.poll),
            None => Err(AllocatorError::None),
        };
        result.or_else(|problem| refuse(Kind::Unreachable, problem))?;
        let pending = PendingAllocation {
            reply_to,
            requester,
            directive: request.directive,
            attributes,
            deadline: request.timeout.map(|timeout| cx.now() + timeout),
        };
        self.pending.insert(number, pending);
        Ok(())
    }

    /// Cancels the pending request of the requester's job that has the same PMIX_ALLOC_REQ_ID.
    pub(super) fn withdraw(
        &mut self,
        cx: &mut LaunchContext,
        requester: KnownRank,
        attributes: &AllocationAttributes,
    ) -> Result<Allocation, AllocationFailure> {
        let is_meant = |pending: &PendingAllocation| {
            pending.attributes.req_id == attributes.req_id
                && pending.requester.job() == requester.job()
        };
        let mut pending = self.pending.iter();
        let found = pending.find(|(_, pending)| is_meant(pending));
        match found.map(|(number, _)| *number) {
            Some(number) => {
                self.cancel(cx, number, Kind::Canceled, "the request was canceled");
                Ok(Allocation {
                    req_id: attributes.req_id.clone(),
                    ..Allocation::default()
                })
            }
            None => {
                let problem = "no pending request of this job has this PMIX_ALLOC_REQ_ID; cancel a \
                               request with the id that it was made with";
                refuse(Kind::NotFound, problem)
            }
        }
    }

    pub(super) fn cancel(&mut self, cx: &mut LaunchContext, number: u64, kind: Kind, text: &str) {
        if let Some(pending) = self.pending.remove(&number) {
            self.notify(cx, &ToAllocator::Cancel { number });
            let failure = refuse(kind, text);
            answer_allocation(cx, pending.reply_to, pending.requester, failure);
        }
    }

    /// Sends the allocator a notice.
    pub(super) fn notify(&mut self, cx: &mut LaunchContext, message: &ToAllocator<'_>) {
        if let Some(outside) = &mut self.outside {
            outside.mention(message, &cx.events.poll);
        }
    }

    /// Reads from and writes to the allocator's connection, as far as it is ready.
    pub(crate) fn on_ready(&mut self, cx: &mut LaunchContext, event: PollEvent) {
        let Some(outside) = &mut self.outside else {
            return;
        };
        if event.writable {
            outside.writable(&cx.events.poll);
        }
        if !event.readable {
            return;
        }
        let mut messages = Vec::new();
        let result = outside.drain_messages(&mut messages);
        for message in messages {
            match message {
                FromAllocator::Granted(granted) => self.granted(cx, granted),
                FromAllocator::Refused { number, reason } => {
                    if let Some(pending) = self.pending.remove(&number) {
                        let failure = refuse(Kind::NoResources, reason);
                        answer_allocation(cx, pending.reply_to, pending.requester, failure);
                    }
                }
            }
        }
        if let Err(problem) = result {
            self.lose(cx, &problem.to_string());
        }
    }

    fn lose(&mut self, cx: &mut LaunchContext, problem: &str) {
        let waiting = std::mem::take(&mut self.pending);
        if let Some(outside) = &self.outside
            && !waiting.is_empty()
        {
            let text = format!(
                "the allocator at {} is lost: {problem}",
                outside.path().display()
            );
            cx.warn(&text);
        }
        for pending in waiting.into_values() {
            let failure = refuse(Kind::Unreachable, "the allocator is lost");
            answer_allocation(cx, pending.reply_to, pending.requester, failure);
        }
    }

    /// Completes a request that the allocator granted. Slots on the launch's own nodes are reserved.
    fn granted(&mut self, cx: &mut LaunchContext, granted: AllocatorGrant) {
        let Some(pending) = self.pending.remove(&granted.number) else {
            return;
        };
        let (requester, attributes) = (pending.requester, pending.attributes);
        let mut allocation = Allocation {
            id: granted.id.or_else(|| attributes.id.clone()),
            req_id: attributes.req_id.clone(),
            shares: granted.nodes,
            seconds: granted.seconds,
        };
        match pending.directive {
            Directive::New | Directive::Extend => {
                if allocation.id.is_none() && pending.directive == Directive::New {
                    allocation.id = Some(cx.allocations.new_id());
                }
                if let Some(id) = allocation.id.clone() {
                    let shares = allocation.shares.iter();
                    let own = shares.filter_map(|share| own_share(cx, share)).collect();
                    let known = |share: &NodeShare| node_of_host(cx, &share.name).is_some();
                    let foreign = allocation.shares.iter().filter(|share| !known(share));
                    let foreign: Vec<NodeShare> = foreign.cloned().collect();
                    let holdings = &mut cx.allocations;
                    holdings.grant_slots(&id, requester.job(), own);
                    holdings.add_external_shares(&id, foreign.into_iter());
                }
            }
            directive @ (Directive::Release | Directive::Reacquire | Directive::Cancel) => {
                let attributes = AllocationAttributes {
                    seconds: None,
                    ..attributes
                };
                // Nodes outside the launch are managed by the allocator.
                if let Ok(own) = decide_here(cx, requester, directive, &attributes)
                    && allocation.shares.is_empty()
                {
                    allocation.shares = own.shares;
                }
            }
        }
        answer_allocation(cx, pending.reply_to, requester, Ok(allocation));
    }
}

/// Returns the node and the slots of a share, if it is on a node of the launch.
fn own_share(cx: &LaunchContext, share: &NodeShare) -> Option<(NodeId, Option<u32>)> {
    let node = node_of_host(cx, &share.name)?;
    let all = || SpawnPlanner::new(&cx.plan).slots_of(node);
    Some((node, share.slots.or_else(all)))
}

fn node_of_host(cx: &LaunchContext, host: &str) -> Option<NodeId> {
    let same = |node: &NodeId| cx.plan.node_name(*node).eq_ignore_ascii_case(host);
    cx.plan.present().find(same)
}

/// Returns the hosts of an allocation that have not joined the launch.
pub(in crate::control) fn hosts_to_join(cx: &LaunchContext, id: &str) -> Vec<hosts::HostEntry> {
    let shares = cx.allocations.external_shares(id).iter();
    let named = shares.filter_map(|share| {
        let list = share.name.parse::<hosts::HostList>();
        let entry = list.ok()?.0.into_iter().next()?;
        Some(entry.with_slots(share.slots))
    });
    named.collect()
}

/// Makes the slots that allocations have on newly joined hosts available to spawns.
pub(in crate::control) fn settle_joined_hosts(cx: &mut LaunchContext) {
    let mut holdings = std::mem::take(&mut cx.allocations);
    holdings.settle(|share| own_share(cx, share));
    cx.allocations = holdings;
}
