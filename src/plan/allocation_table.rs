//! Allocations within a launch: reserved slots on its nodes. No I/O.
//!
//! Rule: an allocation is a name for slots of the launch's nodes. Only jobs that are spawned into
//! it use them; for other jobs these slots are in use. An allocation ends when it is released or when the
//! job of the requesting process ends; processes that run there continue. A launch may also release
//! slots of its own, which stay unused until it reacquires them. Only the allocator (`--allocator`) provides nodes outside
//! the launch.

mod allocation_attributes;
mod choice;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use allocation_attributes::AllocationAttributes;
pub(crate) use choice::AllocationCandidates;
use wireup_core::job::allocation::{
    Allocation, AllocationFailure, AllocationFailureKind as Kind, Directive, NodeShare,
};
use wireup_core::job::ids::{JobIndex, NodeId};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};

/// Slots by node; `None` is a whole node, whose number of slots is unknown.
pub type NodeShares = BTreeMap<NodeId, Option<u32>>;

/// Reserved slots of an allocation, and the processes on them.
#[derive(Clone, Debug)]
pub struct AllocationUsage<'a> {
    /// Name of the allocation; empty for slots that the launch has released.
    pub id: &'a str,
    pub shares: &'a NodeShares,
    /// Number of living processes of jobs that were spawned into the allocation, by node.
    pub live: Vec<u32>,
}

impl AllocationUsage<'_> {
    /// Number of slots of a node that are in use for jobs outside the allocation; `None` for the whole node.
    fn reserved_slots(&self, node: NodeId) -> Option<u32> {
        let live = self.live.get(node.index()).copied().unwrap_or(0);
        match self.shares.get(&node) {
            Some(None) => None,
            Some(Some(slots)) => Some(live.max(*slots)),
            None => Some(live),
        }
    }
}

/// Living processes and reserved slots on the nodes of a launch.
#[derive(Clone, Copy, Debug)]
pub struct SlotUsage<'a> {
    /// Number of living processes by node.
    pub live: &'a [u32],
    /// Reserved slots of each allocation.
    pub reserved: &'a [AllocationUsage<'a>],
}

impl<'a> SlotUsage<'a> {
    /// Finds an allocation by its name.
    ///
    /// # Errors
    /// [`SpawnFailure`] if no allocation has the name; the text has the names of all allocations.
    pub fn find(&self, id: &str) -> Result<&'a AllocationUsage<'a>, SpawnFailure> {
        let mut found = self.reserved.iter();
        found
            .find(|one| one.id == id && !id.is_empty())
            .ok_or_else(|| SpawnFailure {
                kind: SpawnFailureKind::BadRequest,
                text: unknown(id, self.reserved.iter().map(|one| one.id)),
            })
    }

    /// Number of slots of a node that are in use or reserved; `None` if the whole node is reserved.
    pub fn used_slots(&self, node: NodeId) -> Option<u32> {
        let live = |live: &[u32]| live.get(node.index()).copied().unwrap_or(0);
        let inside: u32 = self.reserved.iter().map(|one| live(&one.live)).sum();
        let outside = live(self.live).saturating_sub(inside);
        let reserved = self.reserved.iter().map(|one| one.reserved_slots(node));
        reserved
            .sum::<Option<u32>>()
            .map(|reserved| reserved + outside)
    }
}

/// Slots of one node, as a request for an allocation finds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeSlots {
    /// Number of all slots, if it is known.
    pub(crate) slots: Option<u32>,
    /// Number of slots in use or reserved, as returned by [`SlotUsage::used_slots`].
    pub(crate) used_slots: Option<u32>,
}

/// Allocation within the launch, with its owner.
#[derive(Debug)]
struct LaunchAllocation {
    id: String,
    owner: JobIndex,
    shares: NodeShares,
    /// Shares that the allocator gave on hosts that are not in the launch.
    elsewhere: Vec<NodeShare>,
    /// Nodes that joined the launch for this allocation; only its jobs use them.
    joined: BTreeSet<NodeId>,
}

/// All allocations of a launch, oldest first.
#[derive(Debug, Default)]
pub(crate) struct AllocationTable {
    last_id: u32,
    allocations: Vec<LaunchAllocation>,
    /// Slots that the launch has released.
    released_shares: NodeShares,
    /// Nodes that leave the launch as soon as their ranks have ended, whole.
    leaving: NodeShares,
}

pub(super) fn refuse(kind: Kind, text: impl ToString) -> AllocationFailure {
    AllocationFailure::new(kind, text.to_string())
}

impl AllocationTable {
    /// Reserved slots for a [`SlotUsage`]; `live` returns the number of an allocation's processes by
    /// node.
    pub(crate) fn reserved(&self, live: impl Fn(&str) -> Vec<u32>) -> Vec<AllocationUsage<'_>> {
        let held = self
            .allocations
            .iter()
            .map(|held| (&held.id[..], &held.shares));
        let unnamed = [&self.released_shares, &self.leaving].into_iter();
        let lent = unnamed
            .filter(|shares| !shares.is_empty())
            .map(|shares| ("", shares));
        let one = |(id, shares)| AllocationUsage {
            id,
            shares,
            live: live(id),
        };
        held.chain(lent).map(one).collect()
    }

    /// Whether an allocation has this name.
    pub(crate) fn knows(&self, id: &str) -> bool {
        self.allocations.iter().any(|held| held.id == id)
    }

    /// Executes a request without an allocator, on the nodes of the launch alone. For a release, returns the released slots.
    ///
    /// # Errors
    /// [`AllocationFailure`] with the reason and the remedy.
    pub(crate) fn decide(
        &mut self,
        directive: Directive,
        attributes: &AllocationAttributes,
        owner: JobIndex,
        field: &AllocationCandidates<'_>,
    ) -> Result<Allocation, AllocationFailure> {
        let id = attributes.id.as_deref();
        if attributes.seconds.is_some() && attributes.seconds_required {
            let problem = "allocations on the launch's nodes have no time limit; a limit requires an \
                           allocator (--allocator)";
            return Err(refuse(Kind::NotSupported, problem));
        }
        let (id, shares) = match (directive, id) {
            (Directive::New, _) => {
                let shares = attributes.choose(field)?;
                let id = self.new_id();
                self.grant_slots(&id, owner, shares.clone());
                (Some(id), shares)
            }
            (Directive::Extend, Some(id)) => {
                let at = self.position(id)?;
                let more = attributes.choose(field)?;
                add(&mut self.allocations[at].shares, more);
                (Some(id.to_owned()), self.allocations[at].shares.clone())
            }
            (Directive::Extend, None) => {
                let problem = "cannot extend the launch itself; name an allocation \
                               (PMIX_ALLOC_ID), or use an allocator (--allocator)";
                return Err(refuse(Kind::NoResources, problem));
            }
            (Directive::Release, id) => {
                let part = self.release(id, attributes, field)?;
                (id.map(str::to_owned), part)
            }
            (Directive::Reacquire, None) => {
                let back = attributes.part_of(&self.released_shares, field)?;
                if back.is_empty() {
                    let problem = "cannot reacquire slots: the launch has not released any";
                    return Err(refuse(Kind::NotFound, problem));
                }
                take(&mut self.released_shares, &back);
                (None, back)
            }
            (Directive::Reacquire, Some(id)) => {
                let problem = format!(
                    "cannot reacquire allocation {id}: it ended with its release; only slots that the \
                     launch itself released can be reacquired"
                );
                return Err(refuse(Kind::NotFound, problem));
            }
            (Directive::Cancel, _) => {
                let problem = "cannot cancel the request: no such request is pending";
                return Err(refuse(Kind::NotFound, problem));
            }
        };
        Ok(described(id, attributes, &shares, field.names))
    }

    /// Releases an allocation or a part of it, or slots of the launch itself. Returns the released slots.
    fn release(
        &mut self,
        id: Option<&str>,
        attributes: &AllocationAttributes,
        field: &AllocationCandidates<'_>,
    ) -> Result<NodeShares, AllocationFailure> {
        let Some(id) = id else {
            let shares = attributes.choose(field)?;
            add(&mut self.released_shares, shares.clone());
            return Ok(shares);
        };
        let at = self.position(id)?;
        let part = attributes.part_of(&self.allocations[at].shares, field)?;
        let held = &mut self.allocations[at];
        take(&mut held.shares, &part);
        let joined = held.joined.clone();
        if held.shares.is_empty() {
            self.allocations.remove(at);
        }
        self.return_nodes(&joined, &part);
        Ok(part)
    }

    /// Reserves slots for an existing allocation, or for a new one.
    pub(crate) fn grant_slots(&mut self, id: &str, owner: JobIndex, shares: NodeShares) {
        match self.allocations.iter_mut().find(|held| held.id == id) {
            Some(held) => add(&mut held.shares, shares),
            None => self.allocations.push(LaunchAllocation {
                id: id.to_owned(),
                owner,
                shares,
                elsewhere: Vec::new(),
                joined: BTreeSet::new(),
            }),
        }
    }

    /// Adds shares of an allocation on hosts that are not in the launch.
    pub(crate) fn add_external_shares(&mut self, id: &str, more: impl Iterator<Item = NodeShare>) {
        if let Some(held) = self.allocations.iter_mut().find(|held| held.id == id) {
            held.elsewhere.extend(more);
        }
    }

    /// Shares of an allocation on hosts that are not in the launch.
    pub(crate) fn external_shares(&self, id: &str) -> &[NodeShare] {
        let held = self.allocations.iter().find(|held| held.id == id);
        held.map_or(&[], |held| &held.elsewhere)
    }

    /// Reserves the allocations' slots on hosts that have joined the launch. `share` returns the node of a
    /// host and its slots.
    pub(crate) fn settle(&mut self, share: impl Fn(&NodeShare) -> Option<(NodeId, Option<u32>)>) {
        for held in &mut self.allocations {
            let all = std::mem::take(&mut held.elsewhere);
            for one in all {
                match share(&one) {
                    Some((node, slots)) => {
                        held.joined.insert(node);
                        add(&mut held.shares, NodeShares::from([(node, slots)]));
                    }
                    None => held.elsewhere.push(one),
                }
            }
        }
    }

    /// Lets nodes leave that the allocator has taken back.
    fn return_nodes(&mut self, joined: &BTreeSet<NodeId>, gone: &NodeShares) {
        let back = gone.keys().filter(|node| joined.contains(node));
        self.leaving.extend(back.map(|node| (*node, None)));
    }

    /// Reserves a node until it has left the launch, so that no further job uses it.
    pub(crate) fn leave(&mut self, node: NodeId) {
        self.leaving.insert(node, None);
    }

    /// Nodes that leave the launch as soon as their ranks have ended.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.leaving.keys().copied()
    }

    /// Removes a node that has left the launch from all allocations.
    pub(crate) fn forget_node(&mut self, node: NodeId) {
        self.leaving.remove(&node);
        self.released_shares.remove(&node);
        for held in &mut self.allocations {
            held.shares.remove(&node);
            held.joined.remove(&node);
        }
    }

    /// Ends the allocations that processes of a job requested, and returns their names.
    pub(crate) fn owner_gone(&mut self, owner: JobIndex) -> Vec<String> {
        let all = std::mem::take(&mut self.allocations);
        let (gone, left) = all.into_iter().partition(|held| held.owner == owner);
        self.allocations = left;
        let gone: Vec<LaunchAllocation> = gone;
        for held in &gone {
            self.return_nodes(&held.joined, &held.shares);
        }
        gone.into_iter().map(|held| held.id).collect()
    }

    /// Makes a name that no allocation has had.
    pub(crate) fn new_id(&mut self) -> String {
        loop {
            self.last_id += 1;
            let id = format!("a{}", self.last_id);
            if !self.knows(&id) {
                return id;
            }
        }
    }

    fn position(&self, id: &str) -> Result<usize, AllocationFailure> {
        let found = self.allocations.iter().position(|held| held.id == id);
        found.ok_or_else(|| {
            let known = self.allocations.iter().map(|held| &held.id[..]);
            refuse(Kind::NotFound, unknown(id, known))
        })
    }
}

/// Text about an allocation that does not exist, with the names of all allocations.
fn unknown<'a>(id: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<_> = known.filter(|known| !known.is_empty()).collect();
    match known.is_empty() {
        true => format!("no allocation {id:?}; the launch has none"),
        false => format!("no allocation {id:?}; the launch has {}", known.join(", ")),
    }
}

fn add(shares: &mut NodeShares, more: NodeShares) {
    for (node, slots) in more {
        let known = shares.entry(node).or_insert(Some(0));
        *known = known.zip(slots).map(|(one, more)| one.saturating_add(more));
    }
}

fn take(shares: &mut NodeShares, part: &NodeShares) {
    for (node, slots) in part {
        let Some(known) = shares.get_mut(node) else {
            continue;
        };
        match (known, slots) {
            (Some(known), Some(slots)) if *known > *slots => *known -= slots,
            _ => {
                shares.remove(node);
            }
        }
    }
}

fn described(
    id: Option<String>,
    attributes: &AllocationAttributes,
    shares: &NodeShares,
    names: &[String],
) -> Allocation {
    let share = |(node, slots): (&NodeId, &Option<u32>)| NodeShare {
        name: names[node.index()].clone(),
        slots: *slots,
    };
    Allocation {
        id,
        req_id: attributes.req_id.clone(),
        shares: shares.iter().map(share).collect(),
        seconds: None,
    }
}

#[cfg(test)]
mod tests;
