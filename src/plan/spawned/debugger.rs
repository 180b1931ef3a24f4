//! Directives of debuggers for a spawned job: stop points of ranks, and debugger daemons on the nodes of
//! another job's processes. No I/O.

use std::collections::BTreeMap;

use super::spawn_infos::SpawnAttributes;
use super::{AppPlacementRequest, restrict_to_nodes, text};
use crate::plan::planned_jobs::Jobs;
use wireup_core::job::debug::DebugDirectives;
use wireup_core::job::ids::{NodeId, Nspace, Rank};
use wireup_core::job::proc::RankOrWildcard;
use wireup_core::job::rank_set::{RankChoice, RankSet};
use wireup_core::job::spawn::{SpawnFailure, SpawnInfo};
use wireup_core::placement::{DaemonCount, DaemonPlacement};

/// Directives of the tool of an indirect launch for the initial job, which has `size` ranks.
///
/// # Errors
/// [`SpawnFailure`] for ranks that the job does not have, and for required infos that are not supported.
pub(crate) fn directed(infos: &[SpawnInfo], size: u32) -> Result<DebugDirectives, SpawnFailure> {
    debugged(&SpawnAttributes::from_infos(infos)?, &[], &[size])
}

/// Directives for a job of applications of these sizes.
///
/// # Errors
/// [`SpawnFailure`] for ranks that the job does not have.
pub(super) fn debugged(
    job: &SpawnAttributes,
    app_requests: &[AppPlacementRequest<'_>],
    sizes: &[u32],
) -> Result<DebugDirectives, SpawnFailure> {
    let of = |key, field: fn(&SpawnAttributes) -> &Option<RankChoice>| {
        let size = sizes.iter().sum();
        if let Some(RankChoice::Only(ranks)) = field(job)
            && let Some(rank) = ranks.beyond(&(0..size))
        {
            let last = size.saturating_sub(1);
            let problem = format!("no rank {rank}; the job has ranks 0 to {last}");
            return Err(text(key, problem));
        }
        Ok(field(job)
            .clone()
            .or_else(|| app_rank_choice(app_requests, sizes, field)))
    };
    Ok(DebugDirectives {
        on_exec: of("pmix.dbg.exec", |wishes| &wishes.on_exec)?,
        in_init: of("pmix.dbg.init", |wishes| &wishes.in_init)?,
        in_app: of("pmix.dbg.notify", |wishes| &wishes.in_app)?,
        daemons: job.is_debugger(),
        target: job.target.clone(),
    })
}

/// Ranks that the infos of single programs name.
fn app_rank_choice(
    app_requests: &[AppPlacementRequest<'_>],
    sizes: &[u32],
    field: fn(&SpawnAttributes) -> &Option<RankChoice>,
) -> Option<RankChoice> {
    let mut first = 0;
    let mut ranks = Vec::new();
    for ((_, wishes, _), size) in app_requests.iter().zip(sizes) {
        let own = (first..first + size).map(Rank);
        if let Some(choice) = field(wishes) {
            ranks.extend(own.filter(|rank| choice.holds(*rank)));
        }
        first += size;
    }
    match first > 0 && ranks.len() == first as usize {
        true => Some(RankChoice::All),
        false => RankSet::from_ranks(&ranks).map(RankChoice::Only),
    }
}

/// Placement of a debugger's daemons if their number depends on the debugged processes. Other daemons are only restricted
/// to the nodes of the debugged processes.
///
/// # Errors
/// [`SpawnFailure`] for processes that do not exist, and for contradictions.
pub(super) fn daemon_placement(
    job: &SpawnAttributes,
    jobs: &Jobs,
    app_requests: &mut [AppPlacementRequest<'_>],
) -> Result<Option<DaemonPlacement>, SpawnFailure> {
    for (.., placement) in app_requests.iter_mut() {
        placement.oversubscribe = true;
    }
    let (count, key) = match (job.daemons_per_node, job.daemons_per_proc) {
        (Some(_), Some(_)) => {
            let problem = "contradicts pmix.dbg.dpproc; omit one of them";
            return Err(text("pmix.dbg.dpnd", problem));
        }
        (Some(number), None) => (Some(DaemonCount::PerNode(number)), "pmix.dbg.dpnd"),
        (None, Some(number)) => (Some(DaemonCount::PerProcess(number)), "pmix.dbg.dpproc"),
        // A request for 0 processes gets the number per node, by default one for each debugged process (PMIx standard).
        (None, None) => match app_requests {
            [(app, wishes, _)] if app.count == 0 => {
                let by_target = job.target.is_some().then_some(DaemonCount::PerProcess(1));
                let count = wishes.per_node.map(DaemonCount::PerNode).or(by_target);
                (count, "pmix.ppr")
            }
            _ => (None, ""),
        },
    };
    let Some(target) = &job.target else {
        return match count {
            Some(_) => Err(text(key, "requires PMIX_DEBUG_TARGET")),
            None => Ok(None),
        };
    };
    let debugged = debugged_by_node(target, jobs)?;
    let Some(count) = count else {
        restrict_to_nodes(app_requests, |node| debugged.contains_key(node));
        return Ok(None);
    };
    match app_requests.len() {
        1 => Ok(Some(DaemonPlacement { debugged, count })),
        _ => Err(text(key, "the job must have only one program")),
    }
}

/// Number of debugged processes on each node that has any.
fn debugged_by_node(
    target: &(Nspace, RankOrWildcard),
    jobs: &Jobs,
) -> Result<BTreeMap<NodeId, u32>, SpawnFailure> {
    let (nspace, rank) = target;
    let mut jobs = jobs.jobs().map(|(_, plan)| &plan.job);
    let Some(found) = jobs.find(|job| job.nspace == *nspace) else {
        let problem = format!("no job {nspace} in this launch");
        return Err(text("pmix.dbg.tgt", problem));
    };
    let ranks = &found.process_map;
    let is_debugged = |one: &Rank| match rank {
        RankOrWildcard::Wildcard => true,
        RankOrWildcard::One(debugged) => debugged == one,
    };
    let by_node = ranks.node_ids().map(|node| {
        let debugged = ranks.ranks_on(node).filter(is_debugged);
        (node, debugged.count() as u32)
    });
    let by_node: BTreeMap<_, _> = by_node.filter(|(_, count)| *count > 0).collect();
    match by_node.is_empty() {
        true => Err(text(
            "pmix.dbg.tgt",
            format!("no such process in job {nspace}"),
        )),
        false => Ok(by_node),
    }
}
