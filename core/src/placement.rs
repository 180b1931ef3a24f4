//! Placement of ranks on the nodes of a launch, for the job that the user starts and for spawned jobs.
//!
//! ```text
//!  PlacementRequest ──┐
//!                     ├─▶ place ─▶ Placement or PlacementError
//!  LaunchNodes ───────┘
//! ```
//! Rules, in this order:
//! 1. Nodes are filled up to their free slots, one after the other, or get one rank in turn (`--map-by node`). A node whose
//!    slots are not known counts as one slot, or as the ranks per node if these are limited.
//! 2. Nodes whose slots are not known get further ranks so that they have equal numbers of processes.
//! 3. More ranks than slots go to the nodes that have the fewest too many, in turn, if that is allowed.
//!
//! A layout ([`PlacementRequest::Runs`]) decides the node of each rank itself. Nodes of one machine are for trying a layout: the
//! user's job has the same one whatever the number of cores is ([`AppPlacement::even`]), and slots only limit it.

mod placement_error;
mod rank_distribution;
mod soft_counts;

use std::collections::BTreeMap;

pub use self::placement_error::PlacementError;
use self::rank_distribution::{even_out, in_turn};
pub use self::soft_counts::SoftCounts;
use crate::job::hosts::compress;
use crate::job::ids::NodeId;
use crate::job::process_map::{ProcessMap, RANKS_MAX};
use crate::job::spec::MapBy;

/// Numbers of consecutive ranks on nodes, in the order of ranks.
type Runs = Vec<(NodeId, u32)>;

/// Slots of a node, and how many of them are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeCapacity {
    /// Processes it should have; unknown for some hosts, which check that themselves.
    pub slots: Option<u32>,
    /// Processes it has at most, oversubscribed or not.
    pub most: Option<u32>,
    /// Number of its processes.
    pub used: u32,
}

impl NodeCapacity {
    /// A node that takes no ranks.
    pub const NONE: Self = Self {
        slots: Some(0),
        most: Some(0),
        used: 0,
    };

    /// Whether these ranks make it have more processes than slots.
    fn is_exceeded(&self, ranks: u32) -> bool {
        let processes = self.used.saturating_add(ranks);
        self.slots.is_some_and(|slots| processes > slots)
    }

    /// Returns the number of processes that the node takes, if known.
    fn limit(&self, oversubscribe: bool) -> Option<u32> {
        match (self.slots, oversubscribe) {
            // Nodes with 0 slots get no ranks.
            (Some(0), _) => Some(0),
            (Some(slots), false) => Some(slots.min(self.most.unwrap_or(u32::MAX))),
            _ => self.most,
        }
    }
}

/// One machine that is all nodes of a launch: they share its processors.
pub struct SharedMachine<'a> {
    pub processors: u32,
    /// Text about the source of a node's number of slots.
    pub slots_origin: Box<dyn Fn() -> String + 'a>,
}

/// The nodes of a launch when a job is placed.
pub struct LaunchNodes<'a> {
    pub names: &'a [String],
    /// By node: its slots and living processes.
    pub nodes: Vec<NodeCapacity>,
    /// By node: the part that the job may use, where allocations reserve slots. Otherwise the same.
    pub offered: Vec<NodeCapacity>,
    pub machine: Option<SharedMachine<'a>>,
    /// Processes of the launch, living or not.
    pub processes: u32,
}

/// The ranks of one application, or of several with the same nodes and limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppPlacement {
    pub count: u32,
    /// Acceptable numbers instead of `count`, the largest of which that fits is used.
    pub soft: Option<SoftCounts>,
    /// The nodes, in the order in which they are filled, and how many ranks each of them should have.
    pub nodes: Vec<(NodeId, Option<u32>)>,
    pub map_by: MapBy,
    /// Most of its ranks on a node, whatever the slots.
    pub per_node: Option<u32>,
    /// Whether more ranks than slots are allowed.
    pub oversubscribe: bool,
    /// All nodes get ranks, and as many each, whatever their slots are; these are a limit.
    pub even: bool,
}

/// Daemons of a debugger, on the nodes of the processes that they debug.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DaemonPlacement {
    /// Numbers of debugged processes, of the nodes that have some.
    pub debugged: BTreeMap<NodeId, u32>,
    pub count: DaemonCount,
}

/// Numbers of daemons of a debugger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DaemonCount {
    /// On each node with debugged processes.
    PerNode(u32),
    /// For each debugged process, on its node.
    PerProcess(u32),
}

impl DaemonPlacement {
    /// Returns the daemons of each node. Their numbers are bounded before any memory is used for them.
    fn runs(&self) -> impl Iterator<Item = (NodeId, u32)> + '_ {
        self.debugged
            .iter()
            .map(|(node, debugged)| match self.count {
                DaemonCount::PerNode(count) => (*node, count),
                DaemonCount::PerProcess(count) => (*node, count.saturating_mul(*debugged)),
            })
    }

    fn size(&self) -> u64 {
        self.runs().map(|(_, daemons)| u64::from(daemons)).sum()
    }
}

/// Ranks of a job that must be placed.
#[derive(Clone, Debug)]
pub enum PlacementRequest<'a> {
    /// Applications, whose ranks follow each other.
    Apps(Vec<&'a AppPlacement>),
    /// Daemons of a debugger, which may be more than the slots: they mostly sleep.
    Daemons(&'a DaemonPlacement),
    /// A layout of the user's.
    Runs {
        runs: Vec<(NodeId, u32)>,
        /// Ranks of the job, which the layout must have.
        size: u64,
        /// Whether more ranks than slots are allowed.
        oversubscribe: bool,
        /// No node may stay empty.
        even: bool,
    },
}

/// Nodes of a job's ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Ranks of each application.
    pub sizes: Vec<u32>,
    /// Nodes and numbers of consecutive ranks, in the order of ranks.
    pub runs: Vec<(NodeId, u32)>,
    /// Whether a node has more processes than slots.
    pub oversubscribed: bool,
}

impl Placement {
    /// Returns the process map of a launch with this number of nodes, those without ranks included.
    pub fn process_map(self, nodes: u32) -> ProcessMap {
        let last = nodes.checked_sub(1).map(|last| (NodeId(last), 0));
        ProcessMap::from_runs(self.runs.into_iter().chain(last))
    }
}

/// Places the ranks of a job.
///
/// # Errors
/// [`PlacementError`] when they do not fit.
pub fn place(
    request: &PlacementRequest<'_>,
    launch: &LaunchNodes<'_>,
) -> Result<Placement, PlacementError> {
    // Before anything is computed from the numbers, which a process chooses.
    let left = request.processes_left(launch.processes)?;
    let (sizes, runs) = match request {
        PlacementRequest::Apps(apps) => launch.place_apps(apps, left)?,
        PlacementRequest::Daemons(daemons) => {
            (vec![daemons.size() as u32], daemons.runs().collect())
        }
        PlacementRequest::Runs {
            runs,
            size,
            oversubscribe,
            even,
        } => {
            launch.check_runs(runs, *size, *oversubscribe, *even)?;
            (vec![*size as u32], runs.clone())
        }
    };
    let oversubscribed = launch.is_oversubscribed(&runs);
    Ok(Placement {
        sizes,
        runs,
        oversubscribed,
    })
}

/// Returns the number of slots to which a job with these `ranks` could grow: the known ones, and its own on nodes with
/// an unknown number; and whether it could grow further, because a node takes more than its slots or their number is
/// unknown.
pub fn universe(nodes: &[NodeCapacity], ranks: &ProcessMap, oversubscribe: bool) -> (u32, bool) {
    let limits = nodes.iter().map(|node| node.limit(oversubscribe));
    let limits: Option<Vec<u32>> = limits.collect();
    let unlimited = limits.is_none();
    let slots = limits.unwrap_or_else(|| {
        let shares = ranks.node_ids().map(|node| ranks.local_size(node).max(1));
        let known = nodes.iter().zip(shares);
        known
            .map(|(node, share)| node.slots.unwrap_or(share))
            .collect()
    });
    let slots = slots.into_iter().fold(0, u32::saturating_add);
    (slots.max(ranks.size()), unlimited)
}

impl PlacementRequest<'_> {
    /// Returns the number of processes that a launch with these `processes` may have in addition to those that are
    /// certainly requested.
    fn processes_left(&self, processes: u32) -> Result<u32, PlacementError> {
        let certain: u64 = match self {
            Self::Apps(apps) => {
                let certain = apps.iter().filter(|app| app.soft.is_none());
                certain.map(|app| u64::from(app.count)).sum()
            }
            Self::Daemons(daemons) => daemons.size(),
            Self::Runs { size, .. } => *size,
        };
        let processes = u64::from(processes) + certain;
        let left = u64::from(RANKS_MAX).checked_sub(processes);
        left.and_then(|left| u32::try_from(left).ok())
            .ok_or(PlacementError::TooMany { processes })
    }
}

impl LaunchNodes<'_> {
    /// Numbers of ranks of the applications, and the nodes of all of them in the order of ranks.
    ///
    /// Gives applications with a choice of numbers the processes that the others leave: `left` of the launch at most.
    fn place_apps(
        &self,
        apps: &[&AppPlacement],
        mut left: u32,
    ) -> Result<(Vec<u32>, Runs), PlacementError> {
        let mut offered = self.offered.clone();
        let mut placed = vec![(0, Vec::new()); apps.len()];
        let mut before: Option<(&AppPlacement, (NodeId, u32))> = None;
        for with_choice in [false, true] {
            let all = apps.iter().copied().zip(&mut placed);
            for (app, (size, runs)) in all.filter(|(app, _)| app.soft.is_some() == with_choice) {
                *size = app.size(&offered, &mut left)?;
                *runs = app.place(*size, before, &mut offered, self)?;
                let last = runs.iter().rfind(|(_, ranks)| *ranks > 0);
                before = last.map(|last| (app, *last));
            }
        }
        let (sizes, runs): (Vec<_>, Vec<_>) = placed.into_iter().unzip();
        Ok((sizes, runs.into_iter().flatten().collect()))
    }

    /// Refuses a layout that does not fit.
    fn check_runs(
        &self,
        runs: &[(NodeId, u32)],
        size: u64,
        oversubscribe: bool,
        even: bool,
    ) -> Result<(), PlacementError> {
        let mut shares = vec![0_u64; self.nodes.len()];
        for (node, ranks) in runs {
            let share = shares.get_mut(node.index());
            *share.ok_or_else(|| PlacementError::NoSuchNode {
                node: *node,
                nodes: u32::try_from(self.nodes.len()).unwrap_or(u32::MAX),
            })? += u64::from(*ranks);
        }
        let ranks = shares.iter().sum();
        if ranks != size {
            return Err(PlacementError::OtherSize { ranks, size });
        }
        if even && let Some(empty) = shares.iter().position(|share| *share == 0) {
            return Err(PlacementError::EmptyNode(empty));
        }
        // None of them is more than `size`, which has been checked.
        let shares = (0..).map(NodeId).zip(shares);
        let shares = shares.map(|(node, share)| (node, share as u32));
        match oversubscribe {
            true => Ok(()),
            false => self.check_nodes(shares, |_| "give that node fewer ranks".to_owned()),
        }
    }

    /// Refuses more ranks on a node than it has slots; `remedy` is the advice for a number of slots.
    fn check_nodes(
        &self,
        shares: impl Iterator<Item = (NodeId, u32)>,
        remedy: impl Fn(u32) -> String,
    ) -> Result<(), PlacementError> {
        for (node, ranks) in shares {
            let capacity = &self.offered[node.index()];
            if capacity.is_exceeded(ranks) {
                let node = match self.nodes.len() {
                    1 => String::new(),
                    _ => format!("on {}, ", self.names[node.index()]),
                };
                let origin = self.machine.as_ref().map(|machine| {
                    let origin = (machine.slots_origin)();
                    format!(" ({origin})")
                });
                let slots = capacity.slots.unwrap_or(0);
                return Err(PlacementError::NodeSlots {
                    node,
                    ranks,
                    slots,
                    origin: origin.unwrap_or_default(),
                    remedy: remedy(slots),
                });
            }
        }
        Ok(())
    }

    /// Whether a node has more processes than slots with these ranks.
    fn is_oversubscribed(&self, runs: &[(NodeId, u32)]) -> bool {
        let mut nodes = self.nodes.clone();
        for (node, ranks) in runs {
            nodes[node.index()].used += ranks;
        }
        match &self.machine {
            Some(machine) => {
                let processes: u32 = nodes.iter().map(|node| node.used).sum();
                processes > machine.processors
            }
            None => nodes.iter().any(|node| node.is_exceeded(0)),
        }
    }

    /// Groups of nodes of one text, as `1 of 4 on n[1-2]; 2 on n3`.
    fn grouped(&self, nodes: impl Iterator<Item = (NodeId, String)>) -> String {
        let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
        for (node, text) in nodes {
            let name = &self.names[node.index()];
            match groups.iter_mut().find(|(known, _)| *known == text) {
                Some((_, names)) => names.push(name),
                None => groups.push((text, vec![name])),
            }
        }
        let group = |(text, names): &(String, Vec<&str>)| format!("{text} on {}", compress(names));
        groups.iter().map(group).collect::<Vec<_>>().join("; ")
    }
}

/// Ranks that a node still takes.
#[derive(Clone, Copy, Debug)]
struct FreeCapacity {
    /// Number of them without oversubscription.
    free: u32,
    /// Number of them with it, if that is allowed; not less than `free`.
    most: u32,
}

impl AppPlacement {
    /// Slots of a node on which the distribution depends.
    fn distribution_slots(&self, capacity: &NodeCapacity) -> Option<u32> {
        capacity.slots.filter(|_| !self.even)
    }

    fn free_capacities(&self, offered: &[NodeCapacity]) -> Vec<FreeCapacity> {
        let per_node = self.per_node.unwrap_or(u32::MAX);
        let free_capacity = |(node, limit): &(NodeId, Option<u32>)| {
            let capacity = &offered[node.index()];
            let slots = self.distribution_slots(capacity);
            let left = |limit: Option<u32>| {
                limit.map_or(u32::MAX, |limit| limit.saturating_sub(capacity.used))
            };
            let free = left(slots)
                .min(left(capacity.most))
                .min(limit.unwrap_or(u32::MAX))
                .min(per_node);
            let most = match (self.oversubscribe, slots) {
                (false, _) => free,
                // Nodes with 0 slots get no ranks.
                (true, Some(0)) => 0,
                (true, _) => left(capacity.most).min(per_node),
            };
            FreeCapacity { free, most }
        };
        self.nodes.iter().map(free_capacity).collect()
    }

    /// Returns the number of ranks; one with a choice takes them from `left` of the launch.
    fn size(&self, offered: &[NodeCapacity], left: &mut u32) -> Result<u32, PlacementError> {
        let Some(soft) = &self.soft else {
            return Ok(self.count);
        };
        let largest = soft.largest(self.count);
        let largest = largest.ok_or(PlacementError::NoSoftCount)?;
        let capacities = self.free_capacities(offered);
        let most = capacities.iter().map(|capacity| capacity.most);
        let room = most.fold(0, u32::saturating_add).min(self.count).min(*left);
        // If nothing fits, the message gives the largest number.
        let size = soft.largest(room).unwrap_or(largest);
        let processes = u64::from(RANKS_MAX - *left) + u64::from(size);
        let rest = left.checked_sub(size);
        *left = rest.ok_or(PlacementError::TooMany { processes })?;
        Ok(size)
    }

    /// Returns the index of the first node for an application that follows one with the same request. `last` is that
    /// one's last node with its ranks: this node, or the next one if ranks go to nodes in turn or the node has no more
    /// of its `capacities`.
    fn next_start(&self, last: (NodeId, u32), capacities: &[FreeCapacity]) -> usize {
        let (node, ranks) = last;
        let Some(at) = self.nodes.iter().position(|(on, _)| *on == node) else {
            return 0;
        };
        let (_, limit) = self.nodes[at];
        let most = limit.into_iter().chain(self.per_node).min();
        let is_full = capacities[at].free == 0 || most.is_some_and(|most| ranks >= most);
        match self.map_by == MapBy::Node || is_full {
            true => (at + 1) % self.nodes.len(),
            false => at,
        }
    }

    /// Gives `count` ranks to nodes, in the order of ranks, and takes them from `offered`. They begin where the application
    /// `before` ended with its last ranks, if that requested the same nodes.
    fn place(
        &self,
        count: u32,
        before: Option<(&Self, (NodeId, u32))>,
        offered: &mut [NodeCapacity],
        launch: &LaunchNodes<'_>,
    ) -> Result<Runs, PlacementError> {
        let capacities = self.free_capacities(offered);
        self.check(count, &capacities, offered, launch)?;
        let begin = before
            .filter(|(app, _)| app.nodes == self.nodes)
            .map_or(0, |(app, last)| app.next_start(last, &capacities));
        let order: Vec<usize> = (begin..self.nodes.len()).chain(0..begin).collect();
        let shares = self.shares(count, &order, &capacities, offered);
        if let Some(per_node) = self.per_node
            && self.even
            && shares.contains(&0)
        {
            let ranks = count;
            return Err(PlacementError::EmptyNodes { ranks, per_node });
        }
        let shares = order.iter().map(|at| (self.nodes[*at].0, shares[*at]));
        let shares: Runs = shares.collect();
        if self.even && !self.oversubscribe {
            let nodes = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
            launch.check_nodes(shares.iter().copied(), |slots| match self.per_node {
                Some(_) => format!("--ppn {slots}"),
                None => format!("-n {}", slots.saturating_mul(nodes)),
            })?;
        }
        for (node, share) in &shares {
            offered[node.index()].used += share;
        }
        Ok(match self.map_by {
            MapBy::Slot => shares,
            MapBy::Node => in_turn(shares),
        })
    }

    /// Refuses more ranks than the nodes take.
    fn check(
        &self,
        count: u32,
        capacities: &[FreeCapacity],
        offered: &[NodeCapacity],
        launch: &LaunchNodes<'_>,
    ) -> Result<(), PlacementError> {
        let (ranks, nodes) = (count, self.nodes.len());
        let used = |(node, _): &(NodeId, Option<u32>)| &offered[node.index()];
        let without_slots = |(node, _): &(NodeId, Option<u32>)| {
            self.distribution_slots(&launch.nodes[node.index()]) == Some(0)
        };
        if nodes > 0 && self.nodes.iter().all(without_slots) {
            return Err(PlacementError::NoSlots);
        }
        if self.even && nodes as u64 > u64::from(count) {
            return Err(PlacementError::FewerThanNodes { nodes, ranks });
        }
        if let Some(per_node) = self.per_node
            && u64::from(per_node) * (nodes as u64) < u64::from(count)
        {
            return Err(PlacementError::PerNode {
                ranks,
                per_node,
                nodes,
            });
        }
        let sum = |of: fn(&FreeCapacity) -> u32| {
            let numbers = capacities.iter().map(of);
            numbers.fold(0, u32::saturating_add)
        };
        let by_node = || (self.nodes.iter().zip(capacities)).map(|(node, free)| (node, *free));
        let free = sum(|capacity| capacity.free);
        if count > free && !self.oversubscribe {
            let in_use = self.nodes.iter().any(|node| used(node).used > 0);
            let text = |node, FreeCapacity { free, .. }| match used(node).slots {
                Some(slots) if in_use || slots != free => format!("{free} of {slots}"),
                _ => free.to_string(),
            };
            let texts = by_node().map(|(node, capacity)| (node.0, text(node, capacity)));
            return Err(PlacementError::Slots {
                ranks,
                free,
                in_use,
                nodes: launch.grouped(texts),
            });
        }
        let most = sum(|capacity| capacity.most);
        if count > most {
            let texts = by_node().map(|(node, capacity)| (node.0, capacity.most.to_string()));
            let nodes = launch.grouped(texts);
            return Err(PlacementError::Most { ranks, most, nodes });
        }
        Ok(())
    }

    /// Returns the number of ranks of each node, in this `order`.
    fn shares(
        &self,
        count: u32,
        order: &[usize],
        capacities: &[FreeCapacity],
        offered: &[NodeCapacity],
    ) -> Vec<u32> {
        let before = |at: usize| &offered[self.nodes[at].0.index()];
        let mut shares = vec![0; self.nodes.len()];
        let mut left = count;
        // Processes that count when ranks are shared evenly: in turn, only those of the application.
        let used = |at: usize| match self.map_by {
            MapBy::Slot => before(at).used,
            MapBy::Node => 0,
        };
        let is_open = |at: usize| {
            self.distribution_slots(before(at))
                .or(self.per_node)
                .is_none()
        };
        let slots = |at: usize| match is_open(at) {
            true => capacities[at].free.min(1_u32.saturating_sub(used(at))),
            false => capacities[at].free,
        };
        match self.map_by {
            MapBy::Slot => {
                for at in order {
                    shares[*at] = slots(*at).min(left);
                    left -= shares[*at];
                }
            }
            MapBy::Node => {
                let loads = order.iter().map(|at| (0, *at));
                left = even_out(&mut shares, left, loads, slots);
            }
        }
        let open = order.iter().filter(|at| is_open(**at));
        let loads: Vec<_> = open.map(|at| (used(*at) + shares[*at], *at)).collect();
        left = even_out(&mut shares, left, loads.into_iter(), |at| {
            capacities[at].free
        });
        let excess = |at: usize| {
            let slots = self.distribution_slots(before(at));
            slots.map_or(0, |slots| before(at).used.saturating_sub(slots))
        };
        // Behind the last node that was filled.
        let filled = order.iter().rposition(|at| shares[*at] > 0);
        let turns = match (self.map_by, filled) {
            (MapBy::Slot, Some(last)) => [&order[last + 1..], &order[..=last]].concat(),
            _ => order.to_vec(),
        };
        let excesses = turns.iter().map(|at| (excess(*at), *at));
        even_out(&mut shares, left, excesses, |at| capacities[at].most);
        shares
    }
}

#[cfg(test)]
mod tests;
