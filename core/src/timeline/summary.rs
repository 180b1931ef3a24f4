//! The critical path of a launch, in a few lines.

use std::fmt::Write;

use super::{RankTimes, Timeline};
use crate::job::ids::JobNumber;
use crate::wording::counted;

/// A part of the critical path.
struct PathPart {
    /// When it ended.
    until: u64,
    /// What it was.
    text: String,
    /// Whose time it was.
    whose: Whose,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Wireup,
    Program,
}

/// Where the time went, at most ten lines: each part of the critical path with its time and share, who was
/// last in it, and whose time it was.
pub fn summary(timeline: &Timeline) -> Vec<String> {
    let end = timeline.end();
    let total = end.max(1);
    let mut lines = vec![format!(
        "timing of {}: {} on {}, {}",
        timeline.job,
        counted(timeline.size as usize, "rank"),
        counted(timeline.hosts.len(), "host"),
        time(end)
    )];
    let (mut from, mut own) = (0, 0);
    for step in steps(timeline) {
        let took = step.until.saturating_sub(from);
        from = from.max(step.until);
        if step.whose == Whose::Wireup {
            own += took;
        }
        lines.push(format!(
            "{:>10} {:>3} %  {}",
            time(took),
            percent(took, total),
            step.text
        ));
    }
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
        lines.push(line);
    }
    own = (own + fences).min(total);
    lines.push(format!(
        "wireup's share is {} %, that of the programs and their MPI {} %",
        percent(own, total),
        100 - percent(own, total)
    ));
    lines
}

/// The parts in their order; each begins where the one before ended.
fn steps(timeline: &Timeline) -> Vec<PathPart> {
    let first = || {
        let ranks = timeline.ranks.iter();
        ranks
            .filter(|(speaker, _)| speaker.job == JobNumber(0))
            .map(|(_, rank)| rank)
    };
    let last = |time: fn(&RankTimes) -> Option<u64>| {
        first()
            .filter_map(|rank| Some((time(rank)?, rank)))
            .max_by_key(|(at, _)| *at)
    };
    let named = |rank: &RankTimes| format!("rank {} on {}", rank.name, timeline.host(rank.node));
    let mut steps = Vec::new();
    let mut step = |until, whose, text: String| steps.push(PathPart { until, text, whose });
    if let Some(planned) = timeline.planned {
        step(planned, Whose::Wireup, "the plan was made".into());
    }
    let joined = timeline
        .hosts
        .values()
        .filter_map(|host| Some((host.joined?, host)));
    if let Some((at, host)) = joined.max_by_key(|(at, _)| *at) {
        step(
            at,
            Whose::Wireup,
            format!("hosts joined, {} last", host.name),
        );
    }
    if let Some((at, rank)) = last(|rank| rank.started) {
        let text = format!("processes were started, {} last", named(rank));
        step(at, Whose::Wireup, text);
    }
    if let Some((at, rank)) = last(|rank| rank.connected) {
        let text = format!(
            "programs were loaded and contacted PMI, {} last",
            named(rank)
        );
        step(at, Whose::Program, text);
    }
    if let Some((at, rank)) = last(|rank| rank.ended) {
        step(
            at,
            Whose::Program,
            format!("ranks ran, {} was the last to end", named(rank)),
        );
    }
    step(
        timeline.end(),
        Whose::Wireup,
        "the launch was cleaned up".into(),
    );
    steps
}

/// Rounded down, so that the parts do not exceed the whole.
fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100) / whole
}

/// Microseconds in a unit that leaves three or four digits.
fn time(us: u64) -> String {
    match us {
        0..1000 => format!("{us} us"),
        1000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}
