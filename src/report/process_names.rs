//! Names of processes for the user: ranks of jobs.

use std::collections::BTreeMap;

use wireup_core::job::ids::{JobIndex, Rank};
use wireup_core::job::rank_set::RankSet;

/// Job and rank in that job.
pub type RankKey = (JobIndex, Rank);

/// Returns the part of a text in brackets that names a pid: `, pid 811`; empty if there is none.
pub(crate) fn pid_text(pid: Option<i32>) -> String {
    pid.map_or_else(String::new, |pid| format!(", pid {pid}"))
}

/// Joins the names of some of `count` things, and counts the others: `n1, n2, 3 more`.
pub(crate) fn with_more(mut named: Vec<String>, count: usize) -> String {
    let more = count.saturating_sub(named.len());
    if more > 0 {
        named.push(format!("{more} more"));
    }
    named.join(", ")
}

/// Formats processes as text: `ranks 0-2,7`, `rank 1`, `ranks 0-1 of spawned job 2`.
pub fn listed(names: &[RankKey]) -> String {
    let mut by_job: BTreeMap<JobIndex, Vec<Rank>> = BTreeMap::new();
    for (job, rank) in names {
        by_job.entry(*job).or_default().push(*rank);
    }
    let words = by_job.iter().filter_map(|(job, ranks)| {
        let word = if ranks.len() == 1 { "rank" } else { "ranks" };
        let ranks = RankSet::from_ranks(ranks)?;
        Some(match job.is_initial() {
            true => format!("{word} {ranks}"),
            false => format!("{word} {ranks} of spawned job {job}"),
        })
    });
    words.collect::<Vec<_>>().join(", ")
}
