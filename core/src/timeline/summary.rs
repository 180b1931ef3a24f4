//! The critical path of a launch, as data and in a few lines.

use std::cmp::Reverse;
use std::fmt::Write;

use serde::Serialize;

use super::{RankTimes, Timeline};
use crate::job::ids::JobIndex;
use crate::wording::counted;

/// Parts of the time of a launch.
#[derive(Debug, Serialize)]
pub struct Breakdown {
    /// The critical path; each part begins where the one before ended.
    pub parts: Vec<PathSegment>,
    /// Sentences about fences and shares.
    pub remarks: Vec<String>,
}

/// A part of the critical path.
#[derive(Debug, Serialize)]
pub struct PathSegment {
    /// Length of the part in microseconds.
    pub took: u64,
    /// Share of the whole; the shares of all parts sum to 100.
    pub percent: u64,
    pub text: String,
    pub kind: PartKind,
    /// End time of the part.
    #[serde(skip)]
    ended_at: u64,
}

/// Activity that a part of the time is counted for: work of wireup, or a state of the ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    Wireup,
    Loads,
    Runs,
}

/// Formats the breakdown as text, at most ten lines.
pub fn summary(timeline: &Timeline) -> Vec<String> {
    let Breakdown { parts, remarks } = breakdown(timeline);
    let title = format!(
        "timing of {}: {} on {}, {}",
        timeline.job,
        counted(timeline.size as usize, "rank"),
        counted(timeline.hosts.len(), "host"),
        time(timeline.end())
    );
    let parts = parts.into_iter().map(|part| {
        format!(
            "{:>10} {:>3} %  {}",
            time(part.took),
            part.percent,
            part.text
        )
    });
    std::iter::once(title).chain(parts).chain(remarks).collect()
}

/// Returns the parts of the critical path with their times, shares and kinds.
pub fn breakdown(timeline: &Timeline) -> Breakdown {
    let mut parts = path(timeline);
    let mut from = 0;
    for part in &mut parts {
        part.took = part.ended_at.saturating_sub(from);
        from = from.max(part.ended_at);
    }
    let total = from.max(1);
    round_shares(&mut parts, total);
    let mut remarks = Vec::new();
    let fences: u64 = timeline.fences.iter().map(|fence| fence.fence.own_us).sum();
    let waits: u64 = timeline
        .fences
        .iter()
        .map(|fence| fence.fence.spread_us)
        .sum();
    let count = timeline.fences.len() + timeline.more_fences as usize;
    if count > 0 {
        let mut line = format!(
            "{}: {} from the last entry to the release, {} from the first entry to the last",
            counted(count, "fence"),
            time(fences),
            time(waits)
        );
        if let Some(host) = timeline.slowest_host() {
            let _ = write!(
                line,
                "; the others waited {} for host {}",
                time(host.held_up),
                host.name
            );
        }
        remarks.push(line);
    }
    if !parts.is_empty() {
        // The sum of the rounded shares, so that readers who add them find the same.
        let own = parts.iter().filter(|part| part.kind == PartKind::Wireup);
        let own: u64 = own.map(|part| part.percent).sum();
        let in_fences = fences.saturating_mul(100).saturating_add(total / 2) / total;
        let own = own.saturating_add(in_fences).min(100);
        remarks.push(format!(
            "wireup's share is {own} %, that of the programs and their MPI {} %",
            100 - own
        ));
    }
    Breakdown { parts, remarks }
}

/// Returns the parts in their order, without their lengths.
fn path(timeline: &Timeline) -> Vec<PathSegment> {
    let last = |is_counted: fn(JobIndex) -> bool, time: fn(&RankTimes) -> Option<u64>| {
        let ranks = timeline.ranks.iter();
        ranks
            .filter(|(speaker, _)| is_counted(speaker.job))
            .filter_map(|(_, rank)| Some((time(rank)?, rank)))
            .max_by_key(|(at, _)| *at)
    };
    let is_initial = |job: JobIndex| job.is_initial();
    let named = |rank: &RankTimes| format!("rank {} on {}", rank.name, timeline.host(rank.node));
    let mut parts = Vec::new();
    let mut step = |until, kind, text: String| {
        parts.push(PathSegment {
            took: 0,
            percent: 0,
            text,
            kind,
            ended_at: until,
        });
    };
    if let Some(planned) = timeline.planned {
        step(planned, PartKind::Wireup, "the plan was made".into());
    }
    let joined = timeline
        .hosts
        .values()
        .filter_map(|host| Some((host.joined?, host)));
    if let Some((at, host)) = joined.max_by_key(|(at, _)| *at) {
        let text = format!("hosts joined, {} last", host.name);
        step(at, PartKind::Wireup, text);
    }
    if let Some((at, rank)) = last(is_initial, |rank| rank.started) {
        let text = format!("processes were started, {} last", named(rank));
        step(at, PartKind::Wireup, text);
    }
    if let Some((at, rank)) = last(is_initial, |rank| rank.connected) {
        let text = format!(
            "programs were loaded and contacted PMI, {} last",
            named(rank)
        );
        step(at, PartKind::Loads, text);
    }
    // Spawned jobs run until their last rank ends, which may be long after the initial job.
    if let Some((at, rank)) = last(|_| true, |rank| rank.exited) {
        let text = format!("ranks ran, {} was the last to end", named(rank));
        step(at, PartKind::Runs, text);
    }
    if let Some(outcome) = &timeline.outcome {
        let text = "the launch was cleaned up".into();
        step(outcome.at, PartKind::Wireup, text);
    }
    parts
}

/// Rounds the shares of parts that sum to `whole`: down, but up where the largest remainders are, so that they sum to 100.
fn round_shares(parts: &mut [PathSegment], whole: u64) {
    let hundredfold = |part: &PathSegment| u128::from(part.took) * 100;
    let whole = u128::from(whole);
    for part in &mut *parts {
        part.percent = (hundredfold(part) / whole) as u64;
    }
    let remainders = parts.iter().map(|part| hundredfold(part) % whole);
    let missing = remainders.sum::<u128>() / whole;
    let mut largest: Vec<&mut PathSegment> = parts.iter_mut().collect();
    largest.sort_by_key(|part| Reverse(hundredfold(part) % whole));
    for part in largest.into_iter().take(missing as usize) {
        part.percent += 1;
    }
}

/// Microseconds in a unit that leaves three or four digits.
fn time(us: u64) -> String {
    match us {
        0..1000 => format!("{us} µs"),
        1000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}
