//! Looks into the ranks, on all hosts: for callers, and those that the launch takes by itself.

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

/// How long the hosts may take to answer: more than each gives its gdb for its ranks.
pub(super) const LIMIT: Duration = Duration::from_secs(300);

/// The same for what a debugger is not needed for, and is asked for again and again.
pub(super) const LIMIT_FOR_USAGE: Duration = Duration::from_secs(5);

/// The same for what the end of the job waits for.
const LIMIT_AT_END: Duration = Duration::from_secs(90);

/// The same for the dump of a rank, which the report of its end waits for.
const LIMIT_FOR_DUMP: Duration = Duration::from_secs(15);

/// Who wants to know what is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InspectionRequester {
    Caller(u32),
    /// The user, of ranks that do not come to a fence.
    LateFence,
    /// The user, at the end of the job's time, which waits for it.
    Timeout,
    /// The user, of ranks that have not come to a fence, which then fails the job.
    FailedFence,
    /// The launcher, of the rank whose end it reports.
    Dump,
    /// The launcher, of ranks that may wait for each other.
    Stall,
}

/// A look into ranks that is under way.
struct PendingInspection {
    requester: InspectionRequester,
    awaited: BTreeSet<NodeId>,
    ranks: Vec<KnownRank>,
    found: BTreeMap<KnownRank, Result<InspectionResult, InspectionError>>,
    /// Results that the caller has already.
    sent: BTreeSet<KnownRank>,
    deadline: Duration,
}

/// Looks into ranks that are under way, and what waits for them.
#[derive(Default)]
pub(in crate::control) struct InspectionRequests {
    open: BTreeMap<u32, PendingInspection>,
    last_ticket: u32,
    /// The stacks at the end of the job's time have been asked for.
    timeout_seen: bool,
    /// A fence has failed; the job does when it is known where the ranks are.
    failure: Option<FailureCause>,
    failure_seen: bool,
}

impl InspectionRequests {
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.open.values().map(|open| open.deadline).min()
    }

    /// Whether the end of the job's time waits for what is found.
    pub(in crate::control) fn hold_timeout(&self) -> bool {
        self.open
            .values()
            .any(|open| open.requester == InspectionRequester::Timeout)
    }
}

impl QueryServer {
    /// Has every host look into those of these ranks that run there.
    pub(super) fn inspect_ranks(
        &mut self,
        cx: &mut LaunchContext,
        reply_to: InspectionRequester,
        ranks: Vec<KnownRank>,
        look: InspectionKind,
        limit: Duration,
    ) {
        let running = |rank: &KnownRank| cx.ranks.get(*rank).runs();
        let ranks = ranks.into_iter().filter(running).collect();
        self.order_look(cx, reply_to, ranks, look, limit);
    }

    fn order_look(
        &mut self,
        cx: &mut LaunchContext,
        reply_to: InspectionRequester,
        ranks: Vec<KnownRank>,
        look: InspectionKind,
        limit: Duration,
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
            deadline: cx.now() + limit,
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

    /// A host has reported some of its ranks.
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

    /// Sends a caller what was found in these ranks while others are inspected.
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

    /// Gives up what takes too long.
    pub(super) fn expire(&mut self, cx: &mut LaunchContext, now: Duration) {
        let open = self.looks.open.iter();
        let late = open.filter(|(_, open)| open.deadline <= now);
        for ticket in late.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
            self.finish_inspection(cx, ticket);
        }
    }

    /// All has been found that will be.
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

    /// Finds out what the kernel dumped of a rank. [`FailureFacts::dump_of`](crate::control::failure_facts::FailureFacts::dump_of) has the answer.
    pub(in crate::control) fn inspect_core_dump(
        &mut self,
        cx: &mut LaunchContext,
        rank: KnownRank,
    ) {
        self.order_look(
            cx,
            InspectionRequester::Dump,
            vec![rank],
            InspectionKind::Dump,
            LIMIT_FOR_DUMP,
        );
    }

    /// Looks at what these ranks use and where they wait, for [`LaunchEffect::StallInspected`].
    pub(in crate::control) fn inspect_stalled_ranks(
        &mut self,
        cx: &mut LaunchContext,
        ranks: Vec<KnownRank>,
    ) {
        self.inspect_ranks(
            cx,
            InspectionRequester::Stall,
            ranks,
            InspectionKind::Usage,
            LIMIT_FOR_USAGE,
        );
    }

    /// A fence has waited for long: shows where the ranks are, if the user wants that.
    pub(in crate::control) fn show_stacks_of_late_fence(&mut self, cx: &mut LaunchContext) {
        if cx.plan.spec.debug.stacks {
            let ranks = cx.jobs.all_ranks().collect();
            let look = InspectionKind::Stacks {
                python: false,
                path: None,
            };
            self.inspect_ranks(cx, InspectionRequester::LateFence, ranks, look, LIMIT);
        }
    }

    /// Whether the user wants to see where the ranks are before the job fails by this. Then it fails later.
    pub(in crate::control) fn shows_stacks_before(
        &mut self,
        cx: &mut LaunchContext,
        cause: &FailureCause,
    ) -> bool {
        let late = matches!(cause, FailureCause::FenceTimeout(_));
        if !late || !cx.plan.spec.debug.stacks || cx.supervisor.is_ending() {
            return false;
        }
        if !std::mem::replace(&mut self.looks.failure_seen, true) {
            self.looks.failure = Some(cause.clone());
            let ranks = cx.jobs.all_ranks().collect();
            let look = InspectionKind::Stacks {
                python: false,
                path: None,
            };
            self.inspect_ranks(
                cx,
                InspectionRequester::FailedFence,
                ranks,
                look,
                LIMIT_AT_END,
            );
            return true;
        }
        self.looks.failure.is_some()
    }

    /// Whether the job's time has come and its end waits until it is known where the ranks are.
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
            && !std::mem::replace(&mut self.looks.timeout_seen, true)
        {
            let ranks = cx.jobs.all_ranks().collect();
            let look = InspectionKind::Stacks {
                python: false,
                path: None,
            };
            self.inspect_ranks(cx, InspectionRequester::Timeout, ranks, look, LIMIT_AT_END);
        }
        self.looks.hold_timeout()
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
    let seen: Vec<_> = records.iter().map(ProcessRecord::seen).collect();
    for line in stacks::lines(&seen) {
        cx.print_line(&line);
    }
}
