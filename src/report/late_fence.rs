//! Texts about a fence in which ranks are missing. No I/O.

use std::time::Duration;

use crate::plan::planned_jobs::{Jobs, Plans};
use crate::report::process_names::{pid_text, with_more};
use wireup_core::job::ids::NodeId;
use wireup_core::job::job_table::KnownRank;
use wireup_core::job::missing_ranks::{MissingRankInfo, NAMED_MAX, NodeSample};
use wireup_core::job::outcome::{FenceKind, LateFence};
use wireup_core::wording;

/// Function that returns the pid of a rank, if it has one.
pub type PidOf<'a> = &'a dyn Fn(KnownRank) -> Option<i32>;

/// Returns the failure of the job: "PMI fence timeout: 2 of 64 ranks missing: rank 17 (n3, pid 811, connected,
/// last put 58 s ago), …".
pub fn timeout(jobs: &Jobs, late: &LateFence, pid_of: PidOf<'_>) -> String {
    format!(
        "{} timeout: {}; others waited {} (--fence-timeout)",
        name(late.kind),
        missing(jobs, late, pid_of),
        time(late.waited)
    )
}

/// Returns the warning about a fence that continues.
pub fn note(jobs: &Jobs, late: &LateFence, pid_of: PidOf<'_>) -> String {
    format!(
        "waiting for {} in a {}: {}; --fence-timeout SECONDS makes that a failure",
        time(late.waited),
        name(late.kind),
        missing(jobs, late, pid_of)
    )
}

fn name(kind: FenceKind) -> &'static str {
    match kind {
        FenceKind::Pmi => "PMI fence",
        FenceKind::Pmix => "PMIx fence",
    }
}

fn time(time: Duration) -> String {
    format!("{} s", time.as_secs_f64().round())
}

fn missing(jobs: &Jobs, late: &LateFence, pid_of: PidOf<'_>) -> String {
    let absences = &late.absences;
    let host = |node: NodeId| jobs.first().node_name(node).to_owned();
    let mut parts = Vec::new();
    if absences.ranks > 0 {
        let named = absences.named.iter().take(NAMED_MAX);
        let named = named.filter_map(|absent| rank(jobs, absent, pid_of));
        let (missing, all) = (absences.ranks, late.ranks);
        let named = with_more(named.collect(), missing as usize);
        parts.push(format!(
            "{missing} of {} missing: {named}",
            wording::counted(all, "rank")
        ));
    }
    let some = |nodes: &NodeSample| {
        let named = nodes.named.iter().take(NAMED_MAX);
        with_more(
            named.map(|node| host(*node)).collect(),
            nodes.count as usize,
        )
    };
    if absences.nodes.count > 0 {
        let count = match absences.nodes.named[..] {
            [node] if absences.nodes.count == 1 => match jobs.local_size(node) {
                1 => "the rank".to_owned(),
                here => format!("some of the {here} ranks"),
            },
            _ => "some ranks".to_owned(),
        };
        let nodes = some(&absences.nodes);
        parts.push(format!(
            "{count} on {nodes} missing (libpmix reports no more)"
        ));
    }
    if absences.silent.count > 0 {
        parts.push(format!("no answer from {}", some(&absences.silent)));
    }
    match parts.is_empty() {
        true => "all ranks have arrived meanwhile".to_owned(),
        false => parts.join("; "),
    }
}

fn rank(jobs: &Jobs, absent: &MissingRankInfo, pid_of: PidOf<'_>) -> Option<String> {
    let known = jobs.look_up(absent.rank)?;
    let (host, pid) = (jobs.host_of(known), pid_text(pid_of(known)));
    let idle = absent.idle.map(|idle| format!(" {} ago", time(idle)));
    let idle = idle.unwrap_or_default();
    Some(format!(
        "{known} ({host}{pid}, {}{idle})",
        absent.last_request
    ))
}
