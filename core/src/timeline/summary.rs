//! The critical path of a launch, as data and in a few lines.

use std::fmt::Write;

use serde::Serialize;

use super::{RankTimes, Timeline};
use crate::job::ids::JobNumber;
use crate::wording::counted;

/// Parts of the time of a launch.
#[derive(Debug, Serialize)]
pub struct Breakdown {
    /// The critical path; each part begins where the one before ended.
    pub parts: Vec<PathPart>,
    /// Sentences about fences and shares.
    pub remarks: Vec<String>,
}

/// A part of the critical path.
#[derive(Debug, Serialize)]
pub struct PathPart {
    /// Length of the part in microseconds.
    pub took: u64,
    /// Rounded down, so that the parts do not exceed the whole.
    pub percent: u64,
    pub text: String,
    pub owner: Owner,
    /// When it ended.
    #[serde(skip)]
    until: u64,
}

/// The side that a part of the time is counted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    Wireup,
    Program,
}

/// The breakdown as text, at most ten lines.
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

/// Each part of the critical path with its time and share, and the side that needed it.
pub fn breakdown(timeline: &Timeline) -> Breakdown {
    let mut parts = path(timeline);
    // A record that was cut off may know the end of a part and of no rank.
    let until = parts.iter().map(|part| part.until).max();
    let total = timeline.end().max(until.unwrap_or_default()).max(1);
    let (mut from, mut own) = (0, 0);
    for part in &mut parts {
        part.took = part.until.saturating_sub(from);
        part.percent = percent(part.took, total);
        from = from.max(part.until);
        if part.owner == Owner::Wireup {
            own += part.took;
        }
    }
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
    own = (own + fences).min(total);
    remarks.push(format!(
        "wireup's share is {} %, that of the programs and their MPI {} %",
        percent(own, total),
        100 - percent(own, total)
    ));
    Breakdown { parts, remarks }
}

/// The parts in their order, without their lengths.
fn path(timeline: &Timeline) -> Vec<PathPart> {
    let last = |is_counted: fn(JobNumber) -> bool, time: fn(&RankTimes) -> Option<u64>| {
        let ranks = timeline.ranks.iter();
        ranks
            .filter(|(speaker, _)| is_counted(speaker.job))
            .filter_map(|(_, rank)| Some((time(rank)?, rank)))
            .max_by_key(|(at, _)| *at)
    };
    let is_initial = |job: JobNumber| job == JobNumber(0);
    let named = |rank: &RankTimes| format!("rank {} on {}", rank.name, timeline.host(rank.node));
    let mut parts = Vec::new();
    let mut step = |until, owner, text: String| {
        parts.push(PathPart {
            took: 0,
            percent: 0,
            text,
            owner,
            until,
        });
    };
    if let Some(planned) = timeline.planned {
        step(planned, Owner::Wireup, "the plan was made".into());
    }
    let joined = timeline
        .hosts
        .values()
        .filter_map(|host| Some((host.joined?, host)));
    if let Some((at, host)) = joined.max_by_key(|(at, _)| *at) {
        step(
            at,
            Owner::Wireup,
            format!("hosts joined, {} last", host.name),
        );
    }
    if let Some((at, rank)) = last(is_initial, |rank| rank.started) {
        let text = format!("processes were started, {} last", named(rank));
        step(at, Owner::Wireup, text);
    }
    if let Some((at, rank)) = last(is_initial, |rank| rank.connected) {
        let text = format!(
            "programs were loaded and contacted PMI, {} last",
            named(rank)
        );
        step(at, Owner::Program, text);
    }
    // Spawned jobs run until their last rank ends, which may be long after the initial job.
    if let Some((at, rank)) = last(|_| true, |rank| rank.ended) {
        step(
            at,
            Owner::Program,
            format!("ranks ran, {} was the last to end", named(rank)),
        );
    }
    step(
        timeline.end(),
        Owner::Wireup,
        "the launch was cleaned up".into(),
    );
    parts
}

/// Rounded down, so that the parts do not exceed the whole.
fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100) / whole
}

/// Microseconds in a unit that leaves three or four digits.
fn time(us: u64) -> String {
    match us {
        0..1000 => format!("{us} µs"),
        1000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}
