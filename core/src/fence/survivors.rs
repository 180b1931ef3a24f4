//! Fences that complete without lost nodes and dead processes.
//!
//! The nodes of a fence that are not lost form the tree. When another one is lost, every fence in which it takes part
//! gets a new tree, and all nodes report again; a report names the lost nodes that the sender leaves out. A receiver
//! that knows of fewer treats them as lost too. One that knows of more drops the report, since the sender will learn of
//! them and report again.
//!
//! The lost node may have released some nodes before. Each node therefore keeps the results of the last fences of a
//! series. It reports them to its parent in the new tree, and to nodes that report a fence that has ended here. No node
//! is farther behind than the number of fences that its processes have pending at once, since a fence needs all living
//! processes.
//!
//! A node without a living participant would never arrive. After the death of a process, the nodes above send it
//! [`FenceMessage::CheckParticipants`], and its core arrives without data.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::fence_messages::{FenceAction, FenceFailure, FenceMessage, FenceRelease, FenceResult};
use super::instance::FencePhase;
use super::{
    FenceArrival, FenceContext, FenceContribution, FenceEngine, FenceId, FenceSeries, NodeSet,
    lost_of,
};
use crate::job::ids::NodeId;

/// Number of results that are kept of each series. PMI and MPIs have one pending fence of a series; programs that
/// overlap PMIx fences have some.
const KEPT: usize = 8;

/// Result of a fence at this node.
struct CompletedFence {
    nodes: NodeSet,
    result: FenceResult,
}

/// Deaths of processes, and the last results of each series.
#[derive(Default)]
pub(super) struct SurvivorState {
    /// Whether some process has died.
    deaths: bool,
    completed_fences: BTreeMap<FenceSeries, BTreeMap<u64, CompletedFence>>,
}

impl SurvivorState {
    /// Keeps how a fence has ended, if it is one of the last of its series.
    pub(super) fn store_completed_fence(
        &mut self,
        id: &FenceId,
        nodes: &NodeSet,
        result: &FenceResult,
    ) {
        let ends = self.completed_fences.entry(id.series.clone()).or_default();
        let fence = CompletedFence {
            nodes: nodes.clone(),
            result: result.clone(),
        };
        ends.insert(id.generation, fence);
        if ends.len() > KEPT {
            ends.pop_first();
        }
    }
}

impl<T> FenceEngine<T> {
    /// Removes a lost node from the trees of its fences; the others continue without it.
    pub(super) fn exclude_nodes(
        &mut self,
        node: NodeId,
        reason: &Arc<str>,
        cx: &mut FenceContext<'_, T>,
    ) {
        let Some(survivors) = &mut self.survivors else {
            return;
        };
        survivors.deaths = true;
        let mut ended: Vec<(NodeSet, FenceMessage)> = Vec::new();
        for (series, ends) in &survivors.completed_fences {
            for (&generation, fence) in ends.iter().filter(|(_, end)| end.nodes.contains(node)) {
                let series = series.clone();
                let id = FenceId { series, generation };
                let message = FenceMessage::from_result(id, &fence.nodes, &fence.result);
                ended.push((fence.nodes.clone(), message));
            }
        }
        for (nodes, message) in ended {
            if let Some(parent) = self.place(&nodes).and_then(|place| place.parent()) {
                self.send(parent, message, cx);
            }
        }
        let with = self.rounds.iter();
        let with = with.filter(|(_, round)| round.place.nodes().contains(node));
        let with: Vec<(FenceId, NodeSet, FencePhase)> = with
            .map(|(id, round)| (id.clone(), round.place.nodes().clone(), round.phase))
            .collect();
        for (id, nodes, phase) in with {
            let place = self.place(&nodes);
            match (place, self.rounds.get_mut(&id)) {
                // The node that was to report the reason may be the lost one.
                (Some(_), Some(_)) if phase == FencePhase::Doomed => {
                    let reason = Arc::clone(reason);
                    self.end(&id, Err(FenceFailure::PeerLost { node, reason }), cx);
                }
                (Some(place), Some(round)) => {
                    round.replant(place);
                    self.advance(&id, cx);
                }
                _ => {}
            }
        }
    }

    /// Whether this node leaves out the same lost nodes as the sender of a report. It first treats the nodes that only
    /// the sender knew as lost.
    pub(super) fn agree_on_lost(
        &mut self,
        nodes: &NodeSet,
        lost_nodes: &[NodeId],
        cx: &mut FenceContext<'_, T>,
    ) -> bool {
        if self.survivors.is_none() {
            return lost_nodes.is_empty();
        }
        for node in lost_nodes.iter().filter(|node| nodes.contains(**node)) {
            self.peer_lost(*node, Arc::from("other nodes lost it"), cx);
        }
        lost_of(&self.lost_nodes, nodes) == lost_nodes
    }

    /// Handles a release from any node: the parent, a former parent, or a node below that had it from a lost one.
    pub(super) fn released_by_any(
        &mut self,
        id: FenceId,
        released: FenceRelease,
        cx: &mut FenceContext<'_, T>,
    ) {
        if let Some(place) = self.rounds.get(&id).map(|round| round.place.clone()) {
            return self.decide(&id, &place, Ok(released), cx);
        }
        // No local participant lives, or it would have arrived. Other nodes may still report to this one.
        let here = NodeSet::new([self.node]);
        if let (Some(survivors), Some(nodes)) = (&mut self.survivors, here) {
            survivors.store_completed_fence(&id, &nodes, &Ok(released));
            self.book.end(&id, None);
        }
    }

    /// Sends the result of an ended fence to a node that has not received it.
    pub(super) fn resend_result(
        &self,
        to: NodeId,
        message: &FenceMessage,
        cx: &mut FenceContext<'_, T>,
    ) {
        let FenceMessage::Arrive {
            id,
            lost_nodes: lost,
            ..
        } = message
        else {
            return;
        };
        let survivors = self.survivors.as_ref().filter(|_| !lost.is_empty());
        let ends = survivors.and_then(|survivors| survivors.completed_fences.get(&id.series));
        if let Some(fence) = ends.and_then(|ends| ends.get(&id.generation)) {
            let message = FenceMessage::from_result(id.clone(), &fence.nodes, &fence.result);
            self.send(to, message, cx);
        }
    }

    /// Arrives for a fence without a living local participant, and for the earlier ones of its series.
    pub(super) fn vacant(&mut self, id: &FenceId, cx: &mut FenceContext<'_, T>) {
        let Some(round) = self.rounds.get(id) else {
            return;
        };
        let nodes = round.place.nodes().clone();
        while let Some(next) = self.book.next(id.series.clone())
            && next.generation <= id.generation
        {
            let offer = FenceArrival {
                nodes: nodes.clone(),
                contribution: FenceContribution {
                    data: Arc::from([]),
                    collect: false,
                    status: 0,
                },
                timeout: None,
                waited: Duration::ZERO,
            };
            self.arrive(id.series.clone(), offer, None, cx);
        }
    }

    /// Handles the death of a process.
    pub(super) fn process_died(&mut self, cx: &mut FenceContext<'_, T>) {
        let Some(survivors) = &mut self.survivors else {
            return;
        };
        survivors.deaths = true;
        let open: Vec<(FenceId, bool)> = self
            .rounds
            .iter()
            .map(|(id, round)| (id.clone(), round.collects()))
            .collect();
        for (id, collect) in open {
            self.check_participants(&id, collect, cx);
        }
    }

    /// Asks the awaited nodes of an incomplete fence once whether their participants live, after the death of a
    /// process.
    pub(super) fn check_participants_once(&mut self, id: &FenceId, cx: &mut FenceContext<'_, T>) {
        let deaths = self.survivors.as_ref().is_some_and(|known| known.deaths);
        let round = self.rounds.get(id).filter(|round| deaths && !round.looked);
        if let Some(collect) = round.map(super::FenceInstance::collects) {
            self.check_participants(id, collect, cx);
        }
    }

    /// Asks all nodes that have not arrived, here and below, whether their participants live.
    pub(super) fn check_participants(
        &mut self,
        id: &FenceId,
        collect: bool,
        cx: &mut FenceContext<'_, T>,
    ) {
        let survives = self.survivors.is_some();
        let Some(round) = self.rounds.get_mut(id).filter(|_| survives) else {
            return;
        };
        if round.phase != FencePhase::Collecting {
            return;
        }
        round.looked = true;
        let (own, children) = (!round.has_arrived(), round.missing_children());
        let nodes = round.place.nodes().clone();
        for child in children {
            let message = FenceMessage::CheckParticipants {
                id: id.clone(),
                nodes: nodes.clone(),
                collect,
            };
            self.send(child, message, cx);
        }
        if own {
            let id = id.clone();
            cx.order(FenceAction::Describe { id, collect });
        }
    }
}
