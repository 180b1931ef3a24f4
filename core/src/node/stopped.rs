//! Ranks that wait for a debugger, counted over all nodes.
//!
//! Each node counts its own ranks (`PMIX_READY_FOR_DEBUG`) and reports to all when the last of them
//! waits; when all nodes have done so, every server raises the event once, for its tools. The release is
//! an event like any other, carried to all nodes.
//!
//! Rule: up to 4.2 libpmix's server counts by itself, and reports all ranks of a node at once; later ones
//! report each rank. Source: docs/shim.md#stopped-ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::NodeCore;
use crate::job::clock::Moment;
use crate::job::ids::{JobNumber, NodeId, Rank};
use crate::node::event::{Action, Notification};
use crate::node::sidecar::SidecarState;
use crate::pmix::control::Control;
use crate::pmix::keys;
use crate::pmix::value::{DataRange, Info, Proc, ProcRank, Status, Value, find};

/// A node's part in counting.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    /// Ranks of this node.
    ranks: BTreeMap<JobNumber, BTreeSet<Rank>>,
    /// Nodes on which all ranks wait.
    nodes: BTreeMap<JobNumber, BTreeSet<NodeId>>,
}

impl NodeCore {
    /// A rank of this node waits for a debugger, or all of a job do.
    pub(super) fn rank_stopped(
        &mut self,
        source: &Proc,
        infos: &[Info],
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let nspace = std::str::from_utf8(source.nspace.as_bytes());
        let Some((job, member)) = nspace.ok().and_then(|nspace| self.job_named(nspace)) else {
            return;
        };
        let nspace = member.context.nspace.clone();
        let here: BTreeSet<Rank> = member.context.ranks.ranks_on(self.node).collect();
        let waiting = self.stopped.ranks.entry(job).or_default();
        match source.rank.rank() {
            Some(rank) if here.contains(&rank) => drop(waiting.insert(rank)),
            Some(_) => {}
            None => waiting.clone_from(&here),
        }
        if *waiting != here {
            return;
        }
        self.stopped.ranks.remove(&job);
        let place = find(infos, keys::BREAKPOINT).cloned();
        let place = place.map(|place| Info::new(keys::BREAKPOINT, place));
        let event = Arc::new(Notification {
            code: Status::READY_FOR_DEBUG,
            source: Proc::new(&nspace, ProcRank::WILDCARD),
            range: DataRange::SESSION,
            infos: place.into_iter().collect(),
        });
        self.carry(&event, actions);
        self.node_stopped(self.node, &event, now, actions);
    }

    /// All ranks of a job on a node wait for a debugger.
    pub(super) fn node_stopped(
        &mut self,
        node: NodeId,
        event: &Notification,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let nspace = std::str::from_utf8(event.source.nspace.as_bytes());
        let Some((job, member)) = nspace.ok().and_then(|nspace| self.job_named(nspace)) else {
            return;
        };
        let context = Arc::clone(&member.context);
        let hosting = self.hosting(&context);
        let nodes = self.stopped.nodes.entry(job).or_default();
        if hosting.contains(&node) {
            nodes.insert(node);
        }
        if *nodes != hosting {
            return;
        }
        self.stopped.nodes.remove(&job);
        if self.host.state != SidecarState::Ready {
            return;
        }
        let whole = Proc::new(&context.nspace, ProcRank::WILDCARD);
        let mut infos = event.infos.clone();
        infos.push(Info::new(keys::EVENT_AFFECTED_PROC, Value::Proc(whole)));
        infos.push(Info::new(keys::EVENT_NON_DEFAULT, Value::Bool(true)));
        let control = Control::Notify {
            code: event.code,
            source: Proc::new(&context.nspace, Rank(0)),
            range: DataRange::SESSION,
            infos,
        };
        self.control(&control, now, actions);
    }
}

#[cfg(test)]
mod tests;
