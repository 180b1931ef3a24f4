//! Chooses the slots of an allocation, and those that a release returns. No I/O.

use super::{AllocationAttributes, NodeShares, NodeSlots, refuse};
use wireup_core::job::allocation::{AllocationFailure, AllocationFailureKind as Kind};
use wireup_core::job::hosts::compress;
use wireup_core::job::ids::NodeId;

/// Nodes of a launch, as a request finds them.
#[derive(Clone, Debug)]
pub(crate) struct AllocationCandidates<'a> {
    pub(crate) rooms: Vec<NodeSlots>,
    pub(crate) names: &'a [String],
    /// Nodes that the request names, with the number of slots on each; empty if it names none.
    pub(crate) named: Vec<(NodeId, Option<u32>)>,
}

/// Node that may become a part of an allocation.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    node: NodeId,
    /// Number of free slots; `None` if the node's number of slots is unknown, so that only the whole node can be used.
    free: Option<u32>,
    /// `Some` if the whole node is free, with the number of its slots if that is known.
    whole: Option<Option<u32>>,
    /// Number of slots that the request names with the node.
    limit: Option<u32>,
}

impl Candidate {
    /// Whether the node has this number of free slots.
    fn has(&self, slots: u32) -> bool {
        self.free.is_some_and(|free| free >= slots)
    }
}

impl AllocationCandidates<'_> {
    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |(node, limit): (NodeId, Option<u32>)| {
            let NodeSlots { slots, used_slots } = self.rooms[node.index()];
            let left = |slots: u32| used_slots.map_or(0, |used| slots.saturating_sub(used));
            Candidate {
                node,
                free: slots.map(left).map(|free| free.min(limit.unwrap_or(free))),
                whole: (used_slots == Some(0) && slots != Some(0)).then_some(slots),
                limit,
            }
        };
        if self.named.is_empty() {
            let all = (0..).map(NodeId).take(self.rooms.len());
            return all.map(|node| candidate((node, None))).collect();
        }
        self.named.iter().copied().map(candidate).collect()
    }

    /// Text with the free slots of the nodes, such as `2 on n1, 0 on n[2-3]`.
    fn candidates_text(&self, candidates: &[Candidate]) -> String {
        let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
        for candidate in candidates {
            let free = match (candidate.free, candidate.whole) {
                (Some(free), _) => free.to_string(),
                (None, Some(_)) => "all".to_owned(),
                (None, None) => "none".to_owned(),
            };
            let name = &self.names[candidate.node.index()];
            match groups.iter_mut().find(|(known, _)| *known == free) {
                Some((_, names)) => names.push(name),
                None => groups.push((free, vec![name])),
            }
        }
        let group = |(free, names): &(String, Vec<&str>)| format!("{free} on {}", compress(names));
        groups.iter().map(group).collect::<Vec<_>>().join(", ")
    }
}

impl AllocationAttributes {
    /// Chooses the requested number of free slots.
    ///
    /// # Errors
    /// [`AllocationFailure`] if too few slots are free, with their number, or if the request has no number.
    pub(crate) fn choose(
        &self,
        field: &AllocationCandidates<'_>,
    ) -> Result<NodeShares, AllocationFailure> {
        let candidates = field.candidates();
        let lacks = |what: String| {
            let there = field.candidates_text(&candidates);
            let problem = format!(
                "{what} requested, but there are not enough free slots ({there}); start the launch \
                 with more hosts or slots"
            );
            refuse(Kind::NoResources, problem)
        };
        let chosen = if !self.slots_of.is_empty() {
            let each = self.slots_of.iter().copied();
            let what = || format!("{:?} slots on different nodes are", self.slots_of);
            one_each(&candidates, each).ok_or_else(|| lacks(what()))?
        } else if let (Some(slots), Some(nodes)) = (self.slots, self.nodes) {
            if slots < nodes {
                let problem = format!("{slots} slots cannot be on {nodes} nodes");
                return Err(refuse(Kind::BadRequest, problem));
            }
            let each = (0..nodes).map(|at| slots / nodes + u32::from(at < slots % nodes));
            let what = || format!("{slots} slots on {nodes} nodes are");
            one_each(&candidates, each).ok_or_else(|| lacks(what()))?
        } else if let Some(slots) = self.slots {
            let what = || match slots {
                1 => "1 slot is".to_owned(),
                _ => format!("{slots} slots are"),
            };
            filled(&candidates, slots).ok_or_else(|| lacks(what()))?
        } else {
            let named = (!field.named.is_empty()).then_some(field.named.len());
            let Some(nodes) = self.nodes.map(|nodes| nodes as usize).or(named) else {
                let problem = "no size given: use a number of nodes (PMIX_ALLOC_NUM_NODES), of slots \
                               (PMIX_ALLOC_NUM_CPUS), or a list of nodes (PMIX_ALLOC_NODE_LIST)";
                return Err(refuse(Kind::BadRequest, problem));
            };
            let what = || match nodes {
                1 => "a whole node is".to_owned(),
                _ => format!("{nodes} whole nodes are"),
            };
            whole(&candidates, nodes).ok_or_else(|| lacks(what()))?
        };
        Ok(chosen)
    }

    /// Selects a part of these slots: those of named nodes, or a number from the end; all if
    /// the request has neither.
    ///
    /// # Errors
    /// [`AllocationFailure`] if the request is for more than these slots.
    pub(super) fn part_of(
        &self,
        shares: &NodeShares,
        field: &AllocationCandidates<'_>,
    ) -> Result<NodeShares, AllocationFailure> {
        let wrong = |problem: &str| Err(refuse(Kind::BadRequest, problem));
        let counts = [
            self.nodes.is_some(),
            self.slots.is_some(),
            !self.hosts.is_empty(),
        ];
        if counts.into_iter().filter(|is_set| *is_set).count() > 1 || !self.slots_of.is_empty() {
            return wrong(
                "contradicting sizes: use only one of a number of nodes, a number of slots, or a list of nodes",
            );
        }
        if !field.named.is_empty() {
            let mut part = NodeShares::new();
            for (node, limit) in &field.named {
                let Some(own) = shares.get(node) else {
                    let name = &field.names[node.index()];
                    return wrong(&format!("no slots on node {name} to release or reacquire"));
                };
                part.insert(*node, limit.or(*own));
            }
            return Ok(part);
        }
        let backwards = || shares.iter().rev().map(|(node, slots)| (*node, *slots));
        if let Some(nodes) = self.nodes {
            return match nodes as usize > shares.len() {
                true => wrong(&format!(
                    "{nodes} nodes requested, but only {} have slots to release or reacquire",
                    shares.len()
                )),
                false => Ok(backwards().take(nodes as usize).collect()),
            };
        }
        let Some(mut left) = self.slots else {
            return Ok(shares.clone());
        };
        let mut part = NodeShares::new();
        for (node, slots) in backwards().filter_map(|(node, slots)| Some((node, slots?))) {
            let slots = slots.min(left);
            if slots > 0 {
                part.insert(node, Some(slots));
                left -= slots;
            }
        }
        match left {
            0 => Ok(part),
            _ => wrong(&format!(
                "too few slots to release or reacquire: {left} of the requested slots are missing"
            )),
        }
    }
}

/// Chooses, for each number, the first remaining node with that many free slots.
fn one_each(candidates: &[Candidate], each: impl Iterator<Item = u32>) -> Option<NodeShares> {
    let mut left = candidates.to_vec();
    let mut chosen = NodeShares::new();
    for slots in each {
        let at = left.iter().position(|candidate| candidate.has(slots))?;
        chosen.insert(left.remove(at).node, Some(slots));
    }
    Some(chosen)
}

/// Chooses free slots in the order of nodes.
fn filled(candidates: &[Candidate], slots: u32) -> Option<NodeShares> {
    let mut left = slots;
    let mut chosen = NodeShares::new();
    for candidate in candidates {
        let some = candidate.free.unwrap_or(0).min(left);
        if some > 0 {
            chosen.insert(candidate.node, Some(some));
            left -= some;
        }
    }
    (left == 0).then_some(chosen)
}

/// Chooses unused nodes, or the requested slots of named nodes.
fn whole(candidates: &[Candidate], nodes: usize) -> Option<NodeShares> {
    let one = |candidate: &Candidate| match candidate.limit {
        Some(limit) => candidate
            .has(limit)
            .then_some((candidate.node, Some(limit))),
        None => Some((candidate.node, candidate.whole?)),
    };
    let chosen: NodeShares = candidates.iter().filter_map(one).take(nodes).collect();
    (chosen.len() == nodes).then_some(chosen)
}
