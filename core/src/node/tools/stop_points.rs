//! Ranks that wait for a debugger, counted over all nodes.
//!
//! Each node counts its own ranks (`PMIX_READY_FOR_DEBUG`) and reports to all when the last of them
//! waits; when all nodes have done so, every server raises the event once, for its tools. The release is
//! an event like any other, carried to all nodes.
//!
//! Rule: up to 4.2 libpmix's server counts by itself, and reports all ranks of a node at once; later ones
//! report each rank. Source: docs/pmix-calls.md#stopped-ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::job::debug::DebugDirectives;
use crate::job::ids::{JobIndex, NodeId, NodeRank, Rank};
use crate::job::rank_set::RankChoice;
use crate::node::context::NodeContext;
use crate::node::context::job_context::JobContext;
use crate::node::context::sidecar_monitor::SidecarState;
use crate::node::context::upcalls::custom_range;
use crate::node::event::Notification;
use crate::pmix::keys;
use crate::pmix::sidecar_protocol::SidecarCommand;
use crate::pmix::value::{DataRange, Info, PmixProc, PmixRank, Status, Value, find};

/// Name that libpmix gives to `PMIx_Init` as a stop point.
const IN_INIT: &str = "pmix-init";

/// The place before a program begins.
const ON_EXEC: &str = "exec";

const ALL: &RankChoice = &RankChoice::All;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum StopPoint {
    Exec,
    Init,
    App,
}

impl StopPoint {
    fn from_infos(infos: &[Info]) -> Self {
        match find(infos, keys::BREAKPOINT) {
            Some(Value::String(text)) if *text == IN_INIT => Self::Init,
            Some(Value::String(text)) if *text == ON_EXEC => Self::Exec,
            _ => Self::App,
        }
    }

    /// Returns the ranks that must wait at the stop point.
    fn choice(self, debug: &DebugDirectives) -> &RankChoice {
        let choice = match self {
            Self::Exec => &debug.on_exec,
            Self::Init => &debug.in_init,
            Self::App => &debug.in_app,
        };
        choice.as_ref().unwrap_or(ALL)
    }
}

/// A node's part in counting.
#[derive(Debug, Default)]
pub(in crate::node) struct StoppedRanks {
    /// Ranks of this node.
    ranks: BTreeMap<(JobIndex, StopPoint), BTreeSet<Rank>>,
    /// Nodes on which all ranks wait that must.
    nodes: BTreeMap<(JobIndex, StopPoint), BTreeSet<NodeId>>,
    /// Jobs with certain ranks that wait at a place of the program's own, all of which did: 4.2 reports more
    /// then, which are none.
    settled: BTreeSet<JobIndex>,
    /// Ranks of this node that wait in PMIx.
    pmix_waiters: BTreeSet<(JobIndex, Rank)>,
    /// Events for jobs whose ranks all waited before a server could notify tools.
    earlier: Vec<Notification>,
}

impl StoppedRanks {
    /// Notes the start of a rank of this node that is stopped at exec.
    pub(in crate::node) fn started_stopped(&mut self, at: NodeRank, cx: &mut NodeContext) {
        let name = cx.name_of(cx.process(at));
        let job = cx.find_job(name.nspace.as_str());
        let stops = job.and_then(|(_, job)| job.context.debug.on_exec.as_ref());
        if stops.is_some_and(|stops| stops.holds(name.rank)) {
            let source = PmixProc::from(&name);
            let place = Info::new(keys::BREAKPOINT, Value::String(ON_EXEC.into()));
            self.rank_stopped(&source, &[place], cx);
        }
    }

    /// Handles the stop of a rank of this node, or of all ranks of a job.
    pub(in crate::node) fn rank_stopped(
        &mut self,
        source: &PmixProc,
        infos: &[Info],
        cx: &mut NodeContext,
    ) {
        let Some((job, member)) = cx.find_pmix_job(&source.nspace) else {
            return;
        };
        let context = Arc::clone(&member.context);
        let place = StopPoint::from_infos(infos);
        let choice = place.choice(&context.debug);
        let here: BTreeSet<Rank> = context.process_map.ranks_on(cx.node).collect();
        let (awaited, others): (BTreeSet<Rank>, BTreeSet<Rank>) =
            here.iter().partition(|rank| choice.holds(**rank));
        let settled = self.settled.contains(&job);
        let counted = self.ranks.entry((job, place)).or_default();
        let waits: BTreeSet<Rank> = match (source.rank.rank(), place) {
            (Some(rank), _) => here.get(&rank).copied().into_iter().collect(),
            (None, StopPoint::App) if settled => return,
            // 4.2 counts at a program's own place only if all ranks must wait there.
            (None, StopPoint::App) if context.debug.in_app.as_ref() != Some(ALL) => awaited
                .difference(counted)
                .next()
                .copied()
                .into_iter()
                .collect(),
            (None, _) => here,
        };
        counted.extend(waits.intersection(&awaited));
        if place != StopPoint::Exec {
            let held = waits.intersection(&awaited).map(|rank| (job, *rank));
            self.pmix_waiters.extend(held);
        }
        let all_wait = !awaited.is_empty() && *counted == awaited;
        if place == StopPoint::Init {
            for rank in waits.intersection(&others) {
                self.release(&context, *rank, cx);
            }
        }
        if !all_wait {
            return;
        }
        self.ranks.remove(&(job, place));
        if place == StopPoint::App && matches!(context.debug.in_app, Some(RankChoice::Only(_))) {
            self.settled.insert(job);
        }
        let place = find(infos, keys::BREAKPOINT).cloned();
        let place = place.map(|place| Info::new(keys::BREAKPOINT, place));
        let event = Arc::new(Notification {
            code: Status::READY_FOR_DEBUG,
            source: PmixProc::new(&context.nspace, PmixRank::WILDCARD),
            range: DataRange::SESSION,
            infos: place.into_iter().collect(),
        });
        cx.broadcast_event(&event);
        self.node_stopped(cx.node, &event, cx);
    }

    /// Handles the release of processes that wait in PMIx: those of the custom range, or all.
    pub(in crate::node) fn rank_released(&mut self, infos: &[Info], cx: &mut NodeContext) {
        if find(infos, keys::EVENT_CUSTOM_RANGE).is_none() {
            return self.pmix_waiters.clear();
        }
        for proc in custom_range(infos).unwrap_or_default() {
            let Some((job, _)) = cx.find_pmix_job(&proc.nspace) else {
                continue;
            };
            let rank = proc.rank.rank();
            let meant =
                |of: JobIndex, held: Rank| of == job && rank.is_none_or(|rank| rank == held);
            self.pmix_waiters.retain(|(of, held)| !meant(*of, *held));
        }
    }

    /// Whether ranks of this node wait in PMIx for a debugger.
    pub(in crate::node) fn has_stopped_ranks(&self, cx: &NodeContext) -> bool {
        let mut held = self.pmix_waiters.iter();
        held.any(|(job, rank)| !cx.exited.contains(&cx.jobs.global(*job, *rank)))
    }

    /// Releases all ranks that wait in PMIx.
    pub(in crate::node) fn release_stopped_ranks(&mut self, cx: &mut NodeContext) {
        for (job, rank) in std::mem::take(&mut self.pmix_waiters) {
            let context = Arc::clone(cx.job(job));
            self.release(&context, rank, cx);
        }
    }

    /// Releases a rank that waits in `PMIx_Init` although it must not: up to 5.0 all clients of a job wait if one does.
    fn release(&mut self, context: &JobContext, rank: Rank, cx: &mut NodeContext) {
        // The source is not the server, whose own events come back, and not the rank, which gets none of its own.
        let source = format!("{}-debugger", cx.launch().nspace);
        let whom = Value::Proc(PmixProc::new(&context.nspace, rank));
        let control = SidecarCommand::Notify {
            code: Status::DEBUGGER_RELEASE,
            source: PmixProc::new(source, Rank(0)),
            range: DataRange::CUSTOM,
            infos: vec![
                Info::new(keys::EVENT_CUSTOM_RANGE, whom),
                Info::new(keys::EVENT_NON_DEFAULT, Value::Bool(true)),
            ],
        };
        cx.control(&control);
    }

    /// Notes that all ranks of a job on a node wait that must.
    pub(in crate::node) fn node_stopped(
        &mut self,
        node: NodeId,
        event: &Notification,
        cx: &mut NodeContext,
    ) {
        let Some((job, member)) = cx.find_pmix_job(&event.source.nspace) else {
            return;
        };
        let context = Arc::clone(&member.context);
        let place = StopPoint::from_infos(&event.infos);
        let choice = place.choice(&context.debug);
        let awaited = |node: &NodeId| {
            let mut ranks = context.process_map.ranks_on(*node);
            ranks.any(|rank| choice.holds(rank))
        };
        let hosting: BTreeSet<NodeId> = context.process_map.node_ids().filter(awaited).collect();
        let nodes = self.nodes.entry((job, place)).or_default();
        if hosting.contains(&node) {
            nodes.insert(node);
        }
        if *nodes != hosting {
            return;
        }
        self.nodes.remove(&(job, place));
        // No process is named as affected: debuggers register for the event of their server.
        let name = Value::String((&context.nspace).into());
        let mut infos = event.infos.clone();
        infos.push(Info::new(keys::NSPACE, name));
        infos.push(Info::new(keys::EVENT_NON_DEFAULT, Value::Bool(true)));
        let event = Notification {
            code: event.code,
            source: PmixProc::new(&context.nspace, Rank(0)),
            range: DataRange::SESSION,
            infos,
        };
        match cx.sidecar.state {
            SidecarState::Ready => drop(cx.notify_now(&event)),
            SidecarState::Absent | SidecarState::Starting => self.earlier.push(event),
            SidecarState::Stopping | SidecarState::Broken | SidecarState::Ended => {}
        }
    }

    /// Notifies the tools of jobs that had stopped before the server was ready.
    pub(in crate::node) fn report_earlier_stops(&mut self, cx: &mut NodeContext) {
        for event in std::mem::take(&mut self.earlier) {
            cx.notify_now(&event);
        }
    }
}

#[cfg(test)]
mod tests;
