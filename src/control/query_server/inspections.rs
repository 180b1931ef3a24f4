//! Looks into the ranks, on all hosts: for callers, and those that the launch takes by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::{Controller, supervision};
use super::job_query::{JobAnswer, ProcessRecord};
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

/// See the module.
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
    pub(in crate::control) fn next_deadline(&self) -> Option<Duration> {
        self.open.values().map(|open| open.deadline).min()
    }

    /// Whether the end of the job's time waits for what is found.
    pub(in crate::control) fn hold_timeout(&self) -> bool {
        self.open
            .values()
            .any(|open| open.requester == InspectionRequester::Timeout)
    }
}

impl Controller {
    /// Has every host look into those of these ranks that run there.
    pub(super) fn inspect_ranks(
        &mut self,
        reply_to: InspectionRequester,
        ranks: Vec<KnownRank>,
        look: InspectionKind,
        limit: Duration,
    ) {
        let running = |rank: &KnownRank| self.cx.ranks.get(*rank).runs();
        let ranks = ranks.into_iter().filter(running).collect();
        self.order_look(reply_to, ranks, look, limit);
    }

    fn order_look(
        &mut self,
        reply_to: InspectionRequester,
        ranks: Vec<KnownRank>,
        look: InspectionKind,
        limit: Duration,
    ) {
        let nodes = ranks
            .iter()
            .map(|rank| self.cx.plan.serving_node(rank.node()));
        let awaited: BTreeSet<NodeId> = nodes.collect();
        self.query_server.looks.last_ticket += 1;
        let ticket = self.query_server.looks.last_ticket;
        let open = PendingInspection {
            requester: reply_to,
            awaited,
            ranks: ranks.clone(),
            found: BTreeMap::new(),
            sent: BTreeSet::new(),
            deadline: self.cx.now() + limit,
        };
        self.query_server.looks.open.insert(ticket, open);
        if let InspectionRequester::Caller(number) = reply_to
            && self.takes_progress(number)
        {
            self.send_progress(number, &JobAnswer::Taken(ranks.len()));
        }
        if ranks.is_empty() {
            return self.finish_inspection(ticket);
        }
        self.cx.steps.send(LauncherToStep::Inspect(Inspection {
            ticket,
            ranks: ranks.into_iter().map(KnownRank::global).collect(),
            look,
        }));
    }

    /// A host has reported some of its ranks.
    pub(in crate::control) fn inspected(
        &mut self,
        node: NodeId,
        ticket: u32,
        findings: Vec<RankInspection<KnownRank>>,
        is_last: bool,
    ) {
        let Some(open) = self.query_server.looks.open.get_mut(&ticket) else {
            return;
        };
        let ranks: Vec<KnownRank> = findings.iter().map(|one| one.rank).collect();
        let found = findings.into_iter().map(|one| (one.rank, one.result));
        open.found.extend(found);
        if is_last {
            open.awaited.remove(&node);
        }
        if open.awaited.is_empty() {
            self.finish_inspection(ticket);
        } else if let InspectionRequester::Caller(number) = open.requester {
            self.send_found(ticket, number, &ranks);
        }
    }

    /// Sends a caller what was found in these ranks while others are inspected.
    fn send_found(&mut self, ticket: u32, number: u32, ranks: &[KnownRank]) {
        if !self.takes_progress(number) {
            return;
        }
        let Some(open) = self.query_server.looks.open.get_mut(&ticket) else {
            return;
        };
        let found = ranks
            .iter()
            .filter_map(|rank| Some((*rank, open.found.remove(rank)?)));
        let found: Vec<_> = found.collect();
        open.sent.extend(found.iter().map(|(rank, _)| *rank));
        let records = found.into_iter();
        let records = records.map(|(rank, found)| self.record_of(rank).with(found));
        let records: Vec<ProcessRecord> = records.collect();
        if !records.is_empty() {
            self.send_progress(number, &JobAnswer::Found(records));
        }
    }

    /// Gives up what takes too long.
    pub(in crate::control) fn expire_inspections(&mut self, now: Duration) {
        let open = self.query_server.looks.open.iter();
        let late = open.filter(|(_, open)| open.deadline <= now);
        for ticket in late.map(|(ticket, _)| *ticket).collect::<Vec<_>>() {
            self.finish_inspection(ticket);
        }
    }

    /// All has been found that will be.
    fn finish_inspection(&mut self, ticket: u32) {
        let Some(open) = self.query_server.looks.open.remove(&ticket) else {
            return;
        };
        match open.requester {
            InspectionRequester::Caller(number) => {
                let records = self.records_of(open);
                self.answer(number, &JobAnswer::Processes(records));
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
                self.cx.failure_facts.dump = open.ranks.first().map(|rank| (*rank, dump));
            }
            InspectionRequester::LateFence | InspectionRequester::Timeout => self.show_stacks(open),
            InspectionRequester::Stall => self.judge_stall(&open.ranks, open.found),
            InspectionRequester::FailedFence => {
                self.show_stacks(open);
                if let Some(cause) = self.query_server.looks.failure.take() {
                    supervision::fail(&mut self.cx, cause);
                }
            }
        }
    }

    fn records_of(&self, mut open: PendingInspection) -> Vec<ProcessRecord> {
        let ranks = open.ranks.iter().filter(|rank| !open.sent.contains(rank));
        let records = ranks.map(|rank| {
            let silent = Err(InspectionError::HostSilent);
            let found = open.found.remove(rank).unwrap_or(silent);
            self.record_of(*rank).with(found)
        });
        records.collect()
    }

    fn show_stacks(&mut self, open: PendingInspection) {
        let records = self.records_of(open);
        let seen: Vec<_> = records.iter().map(ProcessRecord::seen).collect();
        for line in stacks::lines(&seen) {
            self.cx.print_line(&line);
        }
    }

    /// Finds out what the kernel dumped of a rank. [`FailureFacts::dump_of`](crate::control::failure_facts::FailureFacts::dump_of) has the answer.
    pub(in crate::control) fn inspect_core_dump(&mut self, rank: KnownRank) {
        self.order_look(
            InspectionRequester::Dump,
            vec![rank],
            InspectionKind::Dump,
            LIMIT_FOR_DUMP,
        );
    }

    /// Looks at what these ranks use and where they wait, for [`Controller::judge_stall`].
    pub(in crate::control) fn inspect_stalled_ranks(&mut self, ranks: Vec<KnownRank>) {
        self.inspect_ranks(
            InspectionRequester::Stall,
            ranks,
            InspectionKind::Usage,
            LIMIT_FOR_USAGE,
        );
    }

    /// A fence has waited for long: shows where the ranks are, if the user wants that.
    pub(in crate::control) fn show_stacks_of_late_fence(&mut self) {
        if self.cx.plan.spec.debug.stacks {
            let ranks = self.cx.jobs.all_ranks().collect();
            let look = InspectionKind::Stacks {
                python: false,
                path: None,
            };
            self.inspect_ranks(InspectionRequester::LateFence, ranks, look, LIMIT);
        }
    }

    /// Whether the user wants to see where the ranks are before the job fails by this. Then it fails later.
    pub(in crate::control) fn shows_stacks_before(&mut self, cause: &FailureCause) -> bool {
        let late = matches!(cause, FailureCause::FenceTimeout(_));
        if !late || !self.cx.plan.spec.debug.stacks || self.cx.supervisor.is_ending() {
            return false;
        }
        if !std::mem::replace(&mut self.query_server.looks.failure_seen, true) {
            self.query_server.looks.failure = Some(cause.clone());
            let ranks = self.cx.jobs.all_ranks().collect();
            let look = InspectionKind::Stacks {
                python: false,
                path: None,
            };
            self.inspect_ranks(InspectionRequester::FailedFence, ranks, look, LIMIT_AT_END);
            return true;
        }
        self.query_server.looks.failure.is_some()
    }

    /// Whether the job's time has come and its end waits until it is known where the ranks are.
    pub(in crate::control) fn waits_for_stacks(&mut self, now: Duration) -> bool {
        let spec = &self.cx.plan.spec;
        let due = spec.ending.timeout.is_some_and(|timeout| now >= timeout);
        if spec.debug.stacks
            && due
            && !self.cx.supervisor.is_ending()
            && !std::mem::replace(&mut self.query_server.looks.timeout_seen, true)
        {
            let ranks = self.cx.jobs.all_ranks().collect();
            let look = InspectionKind::Stacks {
                python: false,
                path: None,
            };
            self.inspect_ranks(InspectionRequester::Timeout, ranks, look, LIMIT_AT_END);
        }
        self.query_server.looks.hold_timeout()
    }
}
