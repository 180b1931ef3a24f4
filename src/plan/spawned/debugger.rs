//! What debuggers want of a spawned job: ranks that stop, and daemons of theirs beside the processes of
//! another job. No I/O.

use std::collections::BTreeMap;

use super::spawn_infos::SpawnAttributes;
use super::{AppPlacementRequest, refuse, text};
use crate::plan::planned_jobs::Jobs;
use wireup_core::job::debug::DebugDirectives;
use wireup_core::job::ids::{NodeId, Rank};
use wireup_core::job::proc::RankOrWildcard;
use wireup_core::job::rank_set::{RankChoice, RankSet};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind, SpawnInfo};

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

/// The nodes of daemons of a debugger with their numbers, where the processes that they debug decide
/// that; the others are only kept to the nodes of these.
///
/// # Errors
/// [`SpawnFailure`] for processes that there are not, and for contradictions.
pub(super) fn place_daemons(
    job: &SpawnAttributes,
    jobs: &Jobs,
    app_requests: &mut [AppPlacementRequest<'_>],
) -> Result<Option<Vec<(NodeId, u32)>>, SpawnFailure> {
    for (.., wanted) in app_requests.iter_mut() {
        wanted.oversubscribe = true;
    }
    let (each, key) = match (job.daemons_per_node, job.daemons_per_proc) {
        (Some(_), Some(_)) => {
            let problem = "daemons are counted by node or by process";
            return Err(text("pmix.dbg.dpnd", problem));
        }
        (Some(number), None) => (Some((number, false)), "pmix.dbg.dpnd"),
        (None, Some(number)) => (Some((number, true)), "pmix.dbg.dpproc"),
        // As many as fit, with that on each node. One for each process is the standard's default.
        (None, None) => match app_requests {
            [(app, wishes, _)] if app.count == 0 => {
                let by_target = job.target.is_some().then_some((1, true));
                let each = wishes.per_node.map(|n| (n, false)).or(by_target);
                (each, "pmix.ppr")
            }
            _ => (None, ""),
        },
    };
    let Some(target) = &job.target else {
        return match each {
            Some(_) => Err(text(key, "needs PMIX_DEBUG_TARGET")),
            None => Ok(None),
        };
    };
    let mut jobs = jobs.jobs().map(|(_, plan)| &plan.job);
    let Some(found) = jobs.find(|job| job.nspace == target.0) else {
        let problem = format!("{} is no job of this launch", target.0);
        return Err(refuse(
            SpawnFailureKind::BadRequest,
            format!("info key pmix.dbg.tgt: {problem}"),
        ));
    };
    let mut there = BTreeMap::<NodeId, u32>::new();
    for node in found.process_map.node_ids() {
        let meant = found
            .process_map
            .ranks_on(node)
            .filter(|rank| match target.1 {
                RankOrWildcard::Wildcard => true,
                RankOrWildcard::One(one) => one == *rank,
            });
        let count = meant.count() as u32;
        if count > 0 {
            there.insert(node, count);
        }
    }
    if there.is_empty() {
        let problem = format!("{} has no such process", target.0);
        return Err(text("pmix.dbg.tgt", problem));
    }
    let Some((number, by_process)) = each else {
        for (_, wishes, wanted) in app_requests {
            if wishes.hosts.is_empty() && wishes.hostfiles.is_empty() {
                wanted.nodes.retain(|(node, _)| there.contains_key(node));
            }
        }
        return Ok(None);
    };
    if app_requests.len() != 1 {
        return Err(text(key, "is for one program"));
    }
    let daemons = |count: u32| number.saturating_mul(if by_process { count } else { 1 });
    Ok(Some(
        there
            .into_iter()
            .map(|(node, count)| (node, daemons(count)))
            .collect(),
    ))
}
