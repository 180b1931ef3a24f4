//! A launch as spans of OpenTelemetry: the launch, its phases, its ranks and its fences.

use serde::{Deserialize, Serialize};

use super::{RankTimes, Timeline};
use crate::job::trace_context::{SpanId, TraceContext};

/// Ranks and fences that have spans; of more, the first ones have.
const MOST: usize = 4096;

/// Spans of a launch, as the launcher hands them to the process that sends them.
#[derive(Debug, Serialize, Deserialize)]
pub struct ExportedSpans {
    pub trace: [u8; 16],
    /// The span outside of the launch in which it was started.
    pub parent: Option<SpanId>,
    /// Start of the run, in microseconds since 1970.
    pub began_us: u64,
    pub spans: Vec<Span>,
}

/// Span in the terms of OpenTelemetry.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Span {
    pub id: SpanId,
    pub parent: Option<SpanId>,
    pub name: String,
    /// In microseconds since the start of the run.
    pub from: u64,
    pub to: u64,
    pub attributes: Vec<(String, SpanAttribute)>,
    /// Error text of a failed launch, phase, rank or fence.
    pub error: Option<String>,
}

/// A value of an attribute.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SpanAttribute {
    Number(i64),
    Text(String),
}

impl From<u64> for SpanAttribute {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<u32> for SpanAttribute {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<i32> for SpanAttribute {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

impl From<&str> for SpanAttribute {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Returns the spans of a launch.
pub fn spans(timeline: &Timeline, context: &TraceContext) -> Vec<Span> {
    let end = timeline.end();
    let mut spans = vec![launch(timeline, context, end)];
    let mut number = 0;
    let mut add = |name: String, (from, to): (u64, u64), attributes| {
        number += 1;
        spans.push(Span {
            id: context.numbered_span(number),
            parent: Some(context.launch),
            name,
            from,
            to: to.max(from),
            attributes,
            error: None,
        });
    };
    let last = |time: fn(&RankTimes) -> Option<u64>| timeline.ranks.values().filter_map(time).max();
    let started = last(|rank| rank.started);
    let connected = last(|rank| rank.connected);
    let joined = timeline.hosts.values().filter_map(|host| host.joined).max();
    let planned = timeline.planned.unwrap_or(0);
    add("plan".into(), (0, planned), Vec::new());
    if let Some(joined) = joined {
        add("hosts join".into(), (planned, joined), Vec::new());
    }
    if let Some(started) = started {
        let from = joined.unwrap_or(planned);
        add("start".into(), (from, started), Vec::new());
        if let Some(connected) = connected {
            add("init".into(), (started, connected), Vec::new());
        }
    }
    for passed in timeline.fences.iter().take(MOST) {
        let fence = &passed.fence;
        let took = fence.spread_us.saturating_add(fence.own_us);
        let mut attributes = vec![
            named("wireup.fence.generation", fence.generation),
            named("wireup.fence.ranks", fence.ranks),
            named("wireup.fence.hosts", fence.nodes),
            named("wireup.fence.spread_us", fence.spread_us),
            named("wireup.fence.own_us", fence.own_us),
        ];
        if let Some(last) = fence.last_nodes.first() {
            attributes.push(named("wireup.fence.last_host", &*last.host));
        }
        let from = passed.released.saturating_sub(took);
        let name = format!("fence {}", fence.kind);
        add(name, (from, passed.released), attributes);
    }
    for (speaker, rank) in timeline.ranks.iter().take(MOST) {
        let Some(from) = rank.started else { continue };
        let mut attributes = vec![
            named("wireup.rank", rank.name.as_str()),
            named("host.name", timeline.host(rank.node)),
        ];
        attributes.extend(rank.pid.map(|pid| named("process.pid", pid)));
        if let Some(code) = rank.how.code {
            attributes.push(named("process.exit.code", u32::from(code)));
        }
        if let Some(usage) = rank.usage {
            let cpu = u64::try_from(usage.cpu().as_micros()).unwrap_or(u64::MAX);
            attributes.push(named("wireup.cpu_us", cpu));
            attributes.extend(usage.rss_max.map(|bytes| named("wireup.rss_max", bytes)));
        }
        spans.push(Span {
            id: context.rank_span(speaker.job, speaker.rank),
            parent: Some(context.launch),
            name: format!("rank {}", rank.name),
            from,
            to: rank.exited.unwrap_or(end).max(from),
            attributes,
            error: rank.cause.clone(),
        });
    }
    spans
}

fn launch(timeline: &Timeline, context: &TraceContext, end: u64) -> Span {
    let mut attributes = vec![
        named("wireup.ranks", timeline.size),
        named("wireup.hosts", timeline.hosts.len() as u64),
    ];
    if let Some(app) = timeline.apps.first() {
        attributes.push(named("process.executable.path", app.program.as_str()));
    }
    let outcome = timeline.outcome.as_ref();
    let code = outcome.map(|outcome| u32::from(outcome.exit_code));
    attributes.extend(code.map(|code| named("process.exit.code", code)));
    // A cause without effect on the exit code is no failure.
    let failed = outcome.filter(|outcome| outcome.exit_code != 0);
    let cause = failed.and_then(|outcome| outcome.cause.as_ref());
    Span {
        id: context.launch,
        parent: context.parent,
        name: "wireup run".into(),
        from: 0,
        to: end,
        attributes,
        error: cause.map(|cause| cause.message.clone()),
    }
}

fn named(name: &str, value: impl Into<SpanAttribute>) -> (String, SpanAttribute) {
    (name.to_owned(), value.into())
}
