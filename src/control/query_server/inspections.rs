//! Inspections of ranks on all hosts, for callers and for the launch itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::launch_context::LaunchContext;
use super::super::launch_effect::LaunchEffect;
use super::super::supervision;
use super::job_query::{JobAnswer, ProcessRecord};
use super::{QueryServer, record_of};
use crate::backend::inspection::{
    Inspection, InspectionError, InspectionKind, InspectionResult, RankInspection,
};
use crate::backend::step_messages::LauncherToStep;
use crate::report::stacks;
use wireup_core::job::ids::NodeId;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::outcome::FailureCause;

/// Timeout of the hosts' answers: more than each host gives its gdb for its ranks.
const LIMIT: Duration = Duration::from_secs(300);

/// Timeout of an inspection that needs no debugger, and is requested again and again.
const LIMIT_FOR_USAGE: Duration = Duration::from_secs(5);

/// Timeout of an inspection that the end of the job waits for.
const LIMIT_AT_END: Duration = Duration::from_secs(90);

/// Timeout of the inspection of a core dump, which the report of the rank's exit waits for.
const LIMIT_FOR_DUMP: Duration = Duration::from_secs(15);

/// Requester of an inspection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InspectionRequester {
    Caller(u32),
    /// A late fence: the stacks are printed for the user.
    LateFence,
    /// The timeout of the job, which waits for the stacks.
    Timeout,
    /// A fence timeout, which fails the job after the stacks were printed.
    FailedFence,
    /// The report of a rank's exit, which names the place in its core dump.
    Dump,
    /// The detection of ranks that may wait for each other.
    Stall,
}

impl InspectionRequester {
    /// Returns the timeout of the hosts' answers.
    fn timeout(self, look: &InspectionKind) -> Duration {
        match (self, look) {
            (_, InspectionKind::Usage) => LIMIT_FOR_USAGE,
            (Self::Caller(_) | Self::LateFence | Self::Stall, _) => LIMIT,
            (Self::Timeout | Self::FailedFence, _) => LIMIT_AT_END,
            (Self::Dump, _) => LIMIT_FOR_DUMP,
        }
    }
}

/// Inspection of ranks that is not complete.
struct PendingInspection {
    requester: InspectionRequester,
    awaited: BTreeSet<NodeId>,
    ranks: Vec<KnownRank>,
    found: BTreeMap<KnownRank, Result<InspectionResult, InspectionError>>,
    /// Ranks whose results were sent to the caller already.
    sent: BTreeSet<KnownRank>,
    deadline: Duration,
}

/// Inspections of ranks that are not complete, and the failure that waits for them.
#[derive(Default)]
pub(in crate::control) struct InspectionRequests {
    open: BTreeMap<u32, PendingInspection>,
    last_ticket: u32,
    /// Whether the stacks for the timeout of the job were requested.
    timeout_stacks_requested: bool,
    /// Fence failure that fails the job when the stacks are known.
    failure: Option<FailureCause>,
    failure_stacks_requested: bool,
}

impl InspectionRequests {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.open.values().map(|open| open.deadline).min()
    }
}

impl QueryServer {
    /// Whether the timeout of the job waits for stacks.
    pub(in crate::control) fn hold_timeout(&self) -> bool {
        let mut open = self.looks.open.values();
        open.any(|open| open.requester == InspectionRequester::Timeout)
    }

    /// Requests an inspection of the running ones among these ranks, on all hosts.
    pub(super) fn inspect_ranks(
        &mut self,
        cx: &mut LaunchContext,
        reply_to: InspectionRequester,
        ranks: Vec<KnownRank>,
        look: InspectionKind,
    ) {
        let running = |rank: &KnownRank| cx.ranks.get(*rank).runs();
        let ranks = ranks.into_iter().filter(running).collect();
        self.order_look(cx, reply_to, ranks, look);
    }

    /// Requests the stacks of all running ranks.
    fn inspect_all_stacks(&mut self, cx: &mut LaunchContext, reply_to: InspectionRequester) {
        let ranks = cx.jobs.all_ranks().collect();
        let (python, path) = (false, None);
        let look = InspectionKind::Stacks { python, path };
        self.inspect_ranks(cx, reply_to, ranks, look);
    }

    fn order_look(
        &mut self,
        cx: &mut LaunchContext,
        reply_to: InspectionRequester,
        ranks: Vec<KnownRank>,
        look: InspectionKind,
    ) {
        let nodes = ranks.iter().map(|rank| cx.plan.serving_node(rank.node()));
        let awaited: BTreeSet<NodeId> = nodes.collect();
        self.looks.last_ticket += 1;
        let ticket = self.looks.last_ticket;
        let open = PendingInspection {
            requester: reply_to,
            awaited,
            ranks: ranks.clone(),
            found: BTreeMap::new(),
            sent: BTreeSet::new(),
            deadline: cx.now() + reply_to.timeout(&look),
        };
        self.looks.open.insert(ticket, open);
        if let InspectionRequester::Caller(number) = reply_to
            && self.takes_progress(number)
        {
            self.send_progress(cx, number, &JobAnswer::Taken(ranks.len()));
        }
        if ranks.is_empty() {
            return self.finish_inspection(cx, ticket);
        }
        cx.steps.send(LauncherToStep::Inspect(Inspection {
            ticket,
            ranks: ranks.into_iter().map(KnownRank::global).collect(),
            look,
        }));
    }

    /// Handles a host's results for some of its ranks.
    pub(in crate::control) fn on_inspected(
        &mut self,
        cx: &mut LaunchContext,
        node: NodeId,
        ticket: u32,
        findings: Vec<RankInspection<KnownRank>>,
        is_last: bool,
    ) {
        let Some(open) = self.looks.open.get_mut(&ticket) else {
            return;
        };
        let ranks: Vec<KnownRank> = findings.iter().map(|one| one.rank).collect();
        let found = findings.into_iter().map(|one| (one.rank, one.result));
        open.found.extend(found);
        if is_last {
            open.awaited.remove(&node);
        }
        if open.awaited.is_empty() {
            self.finish_inspection(cx, ticket);
        } else if let InspectionRequester::Caller(number) = open.requester {
            self.send_found(cx, ticket, number, &ranks);
        }
    }

    /// Sends a caller the results for these ranks while others are inspected.
    fn send_found(
        &mut self,
        cx: &mut LaunchContext,
        ticket: u32,
        number: u32,
        ranks: &[KnownRank],
    ) {
        if !self.takes_progress(number) {
            return;
        }
        let Some(open) = self.looks.open.get_mut(&ticket) else {
            return;
        };
        let found = ranks
            .iter()
            .filter_map(|rank| Some((*rank, open.found.remove(rank)?)));
        let found: Vec<_> = found.collect();
        open.sent.extend(found.iter().map(|(rank, _)| *rank));
        let records = found.into_iter();
        let records = records.map(|(rank, found)| record_of(cx, rank).with(found));
        let records: Vec<ProcessRecord> = records.collect();
        if !records.is_empty() {
            self.send_progress(cx, number, &JobAnswer::Found(records));
        }
    }

    /// Completes the inspections whose deadline has passed.
    pub(super) fn expire(&mut self, cx: &mut LaunchContext, now: Duration) {
        let open = self.looks.open.iter();
        let late = open.filter(|(_, open)| open.deadline <= now);
        for ticket in late.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
            self.finish_inspection(cx, ticket);
        }
    }

    /// Completes an inspection with the results that are there.
    fn finish_inspection(&mut self, cx: &mut LaunchContext, ticket: u32) {
        let Some(open) = self.looks.open.remove(&ticket) else {
            return;
        };
        match open.requester {
            InspectionRequester::Caller(number) => {
                let records = records_of(cx, open);
                self.answer(cx, number, &JobAnswer::Processes(records));
            }
            InspectionRequester::Dump => {
                let dump = open.found.into_values().find_map(|found| match found {
                    Ok(InspectionResult::Dump(dump)) => Some(dump),
                    Ok(
                        InspectionResult::Stack(_)
                        | InspectionResult::Core(_)
                        | InspectionResult::Usage(_),
                    )
                    | Err(_) => None,
                });
                cx.failure_facts.dump = open.ranks.first().map(|rank| (*rank, dump));
            }
            InspectionRequester::LateFence | InspectionRequester::Timeout => show_stacks(cx, open),
            InspectionRequester::Stall => cx.effects.push(LaunchEffect::StallInspected {
                ranks: open.ranks,
                found: open.found,
            }),
            InspectionRequester::FailedFence => {
                show_stacks(cx, open);
                if let Some(cause) = self.looks.failure.take() {
                    supervision::fail(cx, cause);
                }
            }
        }
    }

    /// Requests the core dump of a rank. The answer is in
    /// [`FailureFacts::dump_of`](crate::control::failure_facts::FailureFacts::dump_of).
    pub(in crate::control) fn inspect_core_dump(
        &mut self,
        cx: &mut LaunchContext,
        rank: KnownRank,
    ) {
        let requester = InspectionRequester::Dump;
        self.order_look(cx, requester, vec![rank], InspectionKind::Dump);
    }

    /// Inspects what these ranks use and where they wait, for [`LaunchEffect::StallInspected`].
    pub(in crate::control) fn inspect_stalled_ranks(
        &mut self,
        cx: &mut LaunchContext,
        ranks: Vec<KnownRank>,
    ) {
        let requester = InspectionRequester::Stall;
        self.inspect_ranks(cx, requester, ranks, InspectionKind::Usage);
    }

    /// Prints the stacks of all ranks in a late fence, if the user chose that (`--stacks`).
    pub(in crate::control) fn show_stacks_of_late_fence(&mut self, cx: &mut LaunchContext) {
        if cx.plan.spec.debug.stacks {
            self.inspect_all_stacks(cx, InspectionRequester::LateFence);
        }
    }

    /// Whether the stacks are printed before the job fails by this cause (`--stacks`). The job fails later then.
    pub(in crate::control) fn shows_stacks_before(
        &mut self,
        cx: &mut LaunchContext,
        cause: &FailureCause,
    ) -> bool {
        let late = matches!(cause, FailureCause::FenceTimeout(_));
        if !late || !cx.plan.spec.debug.stacks || cx.supervisor.is_ending() {
            return false;
        }
        if !std::mem::replace(&mut self.looks.failure_stacks_requested, true) {
            self.looks.failure = Some(cause.clone());
            self.inspect_all_stacks(cx, InspectionRequester::FailedFence);
            return true;
        }
        self.looks.failure.is_some()
    }

    /// Whether the timeout of the job has passed, and its end waits for the stacks.
    pub(in crate::control) fn waits_for_stacks(
        &mut self,
        cx: &mut LaunchContext,
        now: Duration,
    ) -> bool {
        let spec = &cx.plan.spec;
        let due = spec.ending.timeout.is_some_and(|timeout| now >= timeout);
        if spec.debug.stacks
            && due
            && !cx.supervisor.is_ending()
            && !std::mem::replace(&mut self.looks.timeout_stacks_requested, true)
        {
            self.inspect_all_stacks(cx, InspectionRequester::Timeout);
        }
        self.hold_timeout()
    }
}

fn records_of(cx: &LaunchContext, mut open: PendingInspection) -> Vec<ProcessRecord> {
    let ranks = open.ranks.iter().filter(|rank| !open.sent.contains(rank));
    let records = ranks.map(|rank| {
        let silent = Err(InspectionError::HostSilent);
        let found = open.found.remove(rank).unwrap_or(silent);
        record_of(cx, *rank).with(found)
    });
    records.collect()
}

fn show_stacks(cx: &mut LaunchContext, open: PendingInspection) {
    let records = records_of(cx, open);
    let stacks: Vec<_> = records.iter().map(ProcessRecord::stack).collect();
    for line in stacks::lines(&stacks) {
        cx.print_line(&line);
    }
}
