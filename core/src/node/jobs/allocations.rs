//! Processes that request or release nodes and slots: upcalls become requests to the launcher,
//! and its answers theirs.

use std::collections::BTreeMap;

use crate::job::allocation::{
    Allocation, AllocationFailureKind, AllocationRequest, AllocationResult, Directive,
};
use crate::node::context::NodeContext;
use crate::node::event::{AllocationRequestId, NodeReport};
use crate::node::jobs::spawns::to_spawn_info;
use crate::node::node_service::NodeService;
use crate::pmix::keys;
use crate::pmix::sidecar_link::UpcallId;
use crate::pmix::upcall::UpcallAnswer;
use crate::pmix::value::{Info, PmixProc, Status, Value};

/// The requests of this node that the launcher has not answered.
#[derive(Debug, Default)]
pub(in crate::node) struct PendingAllocations {
    last_id: u64,
    waiting: BTreeMap<AllocationRequestId, UpcallId>,
}

impl PendingAllocations {
    /// Sends a `PMIx_Allocation_request` to the launcher, or answers an invalid one with an error.
    pub(in crate::node) fn allocate(
        &mut self,
        id: UpcallId,
        proc: &PmixProc,
        directive: u8,
        infos: &[Info],
        cx: &mut NodeContext,
    ) {
        let Some(directive) = Directive::from_pmix(directive) else {
            return cx.answer_status(id, Status::ERR_NOT_SUPPORTED);
        };
        self.request_allocation(id, proc, directive, infos, cx);
    }

    /// Requests nodes and slots for a process.
    pub(in crate::node) fn request_allocation(
        &mut self,
        id: UpcallId,
        proc: &PmixProc,
        directive: Directive,
        infos: &[Info],
        cx: &mut NodeContext,
    ) {
        let Some(requester) = cx.find_process(proc) else {
            return cx.answer_status(id, Status::ERR_NOT_FOUND);
        };
        self.last_id += 1;
        let ticket = AllocationRequestId(self.last_id);
        self.waiting.insert(ticket, id);
        let request = Box::new(AllocationRequest {
            directive,
            infos: infos.iter().map(to_spawn_info).collect(),
            timeout: crate::node::context::upcalls::timeout(infos),
        });
        cx.report_to_launcher(NodeReport::Allocate {
            ticket,
            requester,
            request,
        });
    }

    /// Answers a process with the launcher's reply.
    pub(in crate::node) fn allocated(
        &mut self,
        ticket: AllocationRequestId,
        result: &AllocationResult,
        cx: &mut NodeContext,
    ) {
        if let Some(id) = self.waiting.remove(&ticket) {
            let answer = match result {
                Ok(allocation) => {
                    UpcallAnswer::Infos(Status::SUCCESS, allocation_infos(allocation))
                }
                Err(failure) => UpcallAnswer::Status(status(failure.kind)),
            };
            cx.answer(id, &answer);
        }
    }
}

impl NodeService for PendingAllocations {
    /// Refuses all pending requests at the end of the launch.
    fn tear_down(&mut self, cx: &mut NodeContext) {
        for (_, id) in std::mem::take(&mut self.waiting) {
            cx.answer_status(id, status(AllocationFailureKind::Canceled));
        }
    }
}

/// Returns the infos that describe an allocation in PMIx.
fn allocation_infos(allocation: &Allocation) -> Vec<Info> {
    let text = |key, text: &String| Info::new(key, Value::String(text.as_str().into()));
    let own = |key, value: &Option<String>| value.as_ref().map(|value| text(key, value));
    let mut infos = Vec::new();
    infos.extend(own(keys::ALLOC_ID, &allocation.id));
    infos.extend(own(keys::ALLOC_REQ_ID, &allocation.req_id));
    let shares = &allocation.shares;
    let names: Vec<_> = shares.iter().map(|share| share.name.as_str()).collect();
    infos.push(Info::new(
        keys::ALLOC_NUM_NODES,
        Value::Uint64(shares.len() as u64),
    ));
    infos.push(text(keys::ALLOC_NODE_LIST, &names.join(",")));
    let slots: Option<Vec<u32>> = shares.iter().map(|share| share.slots).collect();
    if let Some(slots) = slots {
        let all = slots.iter().map(|slots| u64::from(*slots)).sum();
        let each: Vec<_> = slots.iter().map(ToString::to_string).collect();
        infos.push(Info::new(keys::ALLOC_NUM_CPUS, Value::Uint64(all)));
        infos.push(text(keys::ALLOC_NUM_CPU_LIST, &each.join(",")));
    }
    if let Some(seconds) = allocation.seconds {
        let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
        infos.push(Info::new(keys::ALLOC_TIME, Value::Uint32(seconds)));
    }
    infos
}

/// Returns the PMIx status for a failed request.
fn status(kind: AllocationFailureKind) -> Status {
    match kind {
        AllocationFailureKind::NoResources => Status::ERR_OUT_OF_RESOURCE,
        AllocationFailureKind::NotFound => Status::ERR_NOT_FOUND,
        AllocationFailureKind::BadRequest => Status::ERR_BAD_PARAM,
        AllocationFailureKind::NotSupported => Status::ERR_NOT_SUPPORTED,
        AllocationFailureKind::TimedOut => Status::ERR_TIMEOUT,
        AllocationFailureKind::Unreachable => Status::ERR_UNREACH,
        AllocationFailureKind::Canceled => Status::ERR_JOB_CANCELED,
    }
}
