//! A launch in the Trace Event Format, which Perfetto and Chromium's `about:tracing` read.
//!
//! Hosts are its processes and ranks its threads. Source: the format's description, "JSON Object Format",
//! "Complete Events", "Instant Events" and "Metadata Events".

use serde_json::{Value, json};

use super::Timeline;
use crate::wording::counted;

/// The thread of a host on which its fences are shown.
const FENCES: u64 = 0;

pub fn trace(timeline: &Timeline) -> Value {
    let mut events = Vec::new();
    for (node, host) in &timeline.hosts {
        events.push(
            json!({"ph": "M", "pid": node, "name": "process_name", "args": {"name": host.name}}),
        );
        events.push(name(*node, FENCES, "fences"));
        if let Some(at) = host.joined {
            events.push(json!({"ph": "i", "pid": node, "tid": FENCES, "ts": at, "s": "p", "name": "joined"}));
        }
    }
    let end = timeline.end();
    for (tid, rank) in (1_u64..).zip(timeline.ranks.values()) {
        events.push(name(rank.node, tid, &format!("rank {}", rank.name)));
        let states = [
            ("loads", rank.started, rank.loaded),
            ("runs", rank.loaded, rank.finalized),
            ("ends", rank.finalized, rank.exited),
        ];
        for (state, from, to) in states {
            let Some(from) = from else { continue };
            // A state that was skipped is a part of the one before.
            let until = to.or(rank.finalized).or(rank.exited).unwrap_or(end);
            if until <= from {
                continue;
            }
            events.push(json!({
                "ph": "X", "pid": rank.node, "tid": tid, "ts": from,
                "dur": until - from, "name": state,
                "args": {"pid": rank.pid, "code": rank.how.code, "signal": rank.how.signal},
            }));
        }
    }
    for passed in &timeline.fences {
        let took = passed.fence.spread_us.saturating_add(passed.fence.own_us);
        for late in &passed.fence.last_nodes {
            // What this node has waited: the first one has waited longest.
            let waited = took.saturating_sub(late.behind_us);
            events.push(json!({
                "ph": "X", "pid": late.node, "tid": FENCES,
                "ts": passed.released.saturating_sub(waited), "dur": waited,
                "name": passed.fence.kind,
                "args": {
                    "participants": passed.fence.participants, "generation": passed.fence.generation,
                    "ranks": passed.fence.ranks, "nodes": passed.fence.nodes,
                },
            }));
        }
    }
    for spawn in &timeline.spawns {
        events.push(json!({
            "ph": "i", "pid": 0, "tid": FENCES, "ts": spawn.at, "s": "g",
            "name": format!("spawn of {}", counted(spawn.job.size, "rank")),
        }));
    }
    json!({"displayTimeUnit": "ms", "otherData": {"job": timeline.job}, "traceEvents": events})
}

fn name(node: u32, tid: u64, name: &str) -> Value {
    json!({"ph": "M", "pid": node, "tid": tid, "name": "thread_name", "args": {"name": name}})
}
