//! What debuggers want of a spawned job: ranks that stop, and daemons of theirs beside the processes of
//! another job. No I/O.

use std::collections::BTreeMap;

use super::spawn_infos::SpawnAttributes;
use super::{AppPlacementRequest, text};
use crate::plan::planned_jobs::Jobs;
use wireup_core::job::debug::DebugDirectives;
use wireup_core::job::ids::{NodeId, Nspace, Rank};
use wireup_core::job::proc::RankOrWildcard;
use wireup_core::job::rank_set::{RankChoice, RankSet};
use wireup_core::job::spawn::{SpawnFailure, SpawnInfo};
use wireup_core::placement::{DaemonCount, DaemonPlacement};

/// What a tool wants of the first job of a launch that it directs, which has `size` ranks.
///
/// # Errors
/// [`SpawnFailure`] for ranks that it does not have, and for what cannot be honoured and has to be.
pub(crate) fn directed(infos: &[SpawnInfo], size: u32) -> Result<DebugDirectives, SpawnFailure> {
    debugged(&SpawnAttributes::from_infos(infos)?, &[], &[size])
}

/// The wishes about a job of applications of these sizes.
///
/// # Errors
/// [`SpawnFailure`] for ranks that it does not have.
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
            return Err(text(key, format!("rank {rank} is none of 0 to {last}")));
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

/// The ranks that the wishes about single programs name.
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

/// The placement of daemons of a debugger, where the processes that they debug decide that; the others are only kept to
/// the nodes of these.
///
/// # Errors
/// [`SpawnFailure`] for processes that there are not, and for contradictions.
pub(super) fn daemon_placement(
    job: &SpawnAttributes,
    jobs: &Jobs,
    app_requests: &mut [AppPlacementRequest<'_>],
) -> Result<Option<DaemonPlacement>, SpawnFailure> {
    for (.., wanted) in app_requests.iter_mut() {
        wanted.oversubscribe = true;
    }
    let (count, key) = match (job.daemons_per_node, job.daemons_per_proc) {
        (Some(_), Some(_)) => {
            let problem = "daemons are counted by node or by process";
            return Err(text("pmix.dbg.dpnd", problem));
        }
        (Some(number), None) => (Some(DaemonCount::PerNode(number)), "pmix.dbg.dpnd"),
        (None, Some(number)) => (Some(DaemonCount::PerProcess(number)), "pmix.dbg.dpproc"),
        // As many as fit, with that on each node. One for each process is the standard's default.
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
            Some(_) => Err(text(key, "needs PMIX_DEBUG_TARGET")),
            None => Ok(None),
        };
    };
    let debugged = debugged_by_node(target, jobs)?;
    let Some(count) = count else {
        for (_, wishes, wanted) in app_requests {
            if wishes.hosts.is_empty() && wishes.hostfiles.is_empty() {
                wanted.nodes.retain(|(node, _)| debugged.contains_key(node));
            }
        }
        return Ok(None);
    };
    match app_requests.len() {
        1 => Ok(Some(DaemonPlacement { debugged, count })),
        _ => Err(text(key, "is for one program")),
    }
}

/// Numbers of the processes that daemons debug, of the nodes that have some.
fn debugged_by_node(
    target: &(Nspace, RankOrWildcard),
    jobs: &Jobs,
) -> Result<BTreeMap<NodeId, u32>, SpawnFailure> {
    let (nspace, rank) = target;
    let mut jobs = jobs.jobs().map(|(_, plan)| &plan.job);
    let Some(found) = jobs.find(|job| job.nspace == *nspace) else {
        return Err(text(
            "pmix.dbg.tgt",
            format!("{nspace} is no job of this launch"),
        ));
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
            format!("{nspace} has no such process"),
        )),
        false => Ok(by_node),
    }
}
