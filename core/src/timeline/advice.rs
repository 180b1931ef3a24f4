//! Advice to the user after a launch whose record does not have the reason of the failure.

use super::Timeline;
use crate::job::hosts::compress;

/// Kinds of causes that ranks which cannot reach each other have: their MPI gives up, or waits for ever.
const UNCONNECTED: [&str; 4] = ["rank_failed", "aborted", "fence_timeout", "timeout"];

/// Returns the command that searches for a network which connects the hosts' agents and not the ranks: MPIs make
/// connections of their own, which wireup does not see. `None` for a launch that this cannot explain.
pub(super) fn connectivity_advice(timeline: &Timeline) -> Option<String> {
    let outcome = timeline.outcome.as_ref()?;
    let cause = outcome.cause.as_ref().filter(|_| outcome.exit_code != 0)?;
    let mut ranks = timeline.ranks.values();
    let began = ranks.clone().any(|rank| rank.connected.is_some());
    let passed = ranks.any(|rank| rank.finalized.is_some());
    let unexplained = UNCONNECTED.contains(&&*cause.kind) && cause.signal.is_none();
    if !unexplained || !began || passed || timeline.hosts.len() < 2 || timeline.has_virtual_nodes()
    {
        return None;
    }
    let hosts = compress(timeline.hosts.values().map(|host| &host.name));
    let program = &timeline.apps.first()?.program;
    Some(format!(
        "If the ranks could not reach each other: wireup doctor --hosts '{hosts}' {program} names hosts that cannot \
         connect; with --run it sends messages between each pair."
    ))
}
