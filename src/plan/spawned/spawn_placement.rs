//! Which nodes take the ranks of a spawned job. No I/O.

use crate::plan::host_capacity::distribute_round_robin;
use crate::plan::placement::in_turn;
use crate::plan::reasons::plural;
use wireup_core::job::hosts::compress;
use wireup_core::job::ids::NodeId;
use wireup_core::job::spec::MapBy;

/// What a node has for processes of the launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NodeCapacity {
    /// Processes it should have; not known of some hosts, which see to it themselves.
    pub(super) slots: Option<u32>,
    /// Processes it has at most, oversubscribed or not.
    pub(super) most: Option<u32>,
    /// Processes it has.
    pub(super) used: u32,
}

impl NodeCapacity {
    /// A node that is not for these processes.
    pub(super) const NONE: Self = Self {
        slots: Some(0),
        most: Some(0),
        used: 0,
    };
}

/// The request for the ranks of one application context.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PlacementRequest {
    /// The nodes, in the order in which they are filled, and how many it should be on each of them.
    pub(super) nodes: Vec<(NodeId, Option<u32>)>,
    /// The order of ranks.
    pub(super) map_by: MapBy,
    /// Most of them on a node, whatever the slots.
    pub(super) per_node: Option<u32>,
    /// More of them than slots are fine.
    pub(super) oversubscribe: bool,
}

/// A number of processes that has no place.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum PlacementError {
    /// More than `per_node` allows.
    #[error(
        "{count} processes with at most {per_node} on a node need {} nodes, and there {}",
        .count.div_ceil(*per_node), is_or_are(*.nodes)
    )]
    PerNode {
        count: u32,
        per_node: u32,
        nodes: usize,
    },
    /// More than are free.
    #[error(
        "{count} process{} not fit in {free} free slot{} ({of}); start the launch with \
         --oversubscribe or with more slots",
        if *.count == 1 { " does" } else { "es do" }, plural(*.free)
    )]
    Slots { count: u32, free: u32, of: String },
    /// More than the nodes ever take.
    #[error(
        "{count} more process{} are too many for the nodes even when oversubscribed: they take \
         {most}; raise max_slots",
        if *.count == 1 { "" } else { "es" }
    )]
    Most { count: u32, most: u32 },
}

fn is_or_are(nodes: usize) -> String {
    match nodes {
        1 => "is 1".to_owned(),
        _ => format!("are {nodes}"),
    }
}

/// What one node takes of these ranks.
#[derive(Clone, Copy, Debug)]
struct RankCapacity {
    free: u32,
    most: u32,
}

/// Gives each rank to the place with the least load, the first of these in the order of `loads`,
/// until none are `left` or no node has fewer than its `limit`. Returns the ranks without a place.
///
/// The time does not depend on the number of ranks: processes request any number.
fn even_out(
    shares: &mut [u32],
    left: u32,
    loads: impl Iterator<Item = (u32, usize)>,
    limit: impl Fn(usize) -> u32,
) -> u32 {
    let room = |at: usize| u64::from(limit(at).saturating_sub(shares[at]));
    let places: Vec<_> = loads
        .map(|(load, at)| (u64::from(load), room(at), at))
        .collect();
    // Ranks that bring a place up to a load.
    let up_to = |level: u64, (load, room, _): &(u64, u64, usize)| {
        let missing = level.saturating_sub(*load);
        missing.min(*room)
    };
    let all_up_to = |level| -> u64 { places.iter().map(|place| up_to(level, place)).sum() };
    let mut left = u64::from(left);
    // The highest load that all places can have, as far as they have room.
    let (mut level, mut above) = (0, 1 << 33);
    while level + 1 < above {
        let middle = (level + above) / 2;
        match all_up_to(middle) <= left {
            true => level = middle,
            false => above = middle,
        }
    }
    left -= all_up_to(level);
    for place in &places {
        let mut share = up_to(level, place);
        if left > 0 && share < up_to(level + 1, place) {
            share += 1;
            left -= 1;
        }
        shares[place.2] += u32::try_from(share).expect("not more than the limit");
    }
    u32::try_from(left).expect("not more than before")
}

impl PlacementRequest {
    fn rooms(&self, space: &[NodeCapacity]) -> Vec<RankCapacity> {
        let per_node = self.per_node.unwrap_or(u32::MAX);
        let room = |(node, limit): &(NodeId, Option<u32>)| {
            let NodeCapacity { slots, most, used } = space[node.index()];
            let left = |limit: Option<u32>| limit.map_or(u32::MAX, |n| n.saturating_sub(used));
            let free = left(slots)
                .min(left(most))
                .min(limit.unwrap_or(u32::MAX))
                .min(per_node);
            let most = match (self.oversubscribe, slots) {
                (false, _) => free,
                // Nodes with 0 slots get no ranks.
                (true, Some(0)) => 0,
                (true, _) => left(most).min(per_node),
            };
            RankCapacity { free, most }
        };
        self.nodes.iter().map(room).collect()
    }

    /// How many processes have a place.
    pub(super) fn room(&self, space: &[NodeCapacity]) -> u32 {
        let rooms = self.rooms(space);
        rooms
            .iter()
            .fold(0, |sum, room| sum.saturating_add(room.most))
    }

    /// Where an application begins that follows these `runs` of one with the same request: at the
    /// node where that ended, or at the next if ranks go to nodes in turn or that has no more
    /// `rooms` for them.
    fn next_start(&self, runs: &[(NodeId, u32)], rooms: &[RankCapacity]) -> usize {
        let last = runs.iter().rfind(|(_, ranks)| *ranks > 0);
        let at = last.and_then(|(node, _)| self.nodes.iter().position(|(on, _)| on == node));
        let Some((at, (_, ranks))) = at.zip(last) else {
            return 0;
        };
        let (_, limit) = self.nodes[at];
        let most = limit.into_iter().chain(self.per_node).min();
        let is_full = rooms[at].free == 0 || most.is_some_and(|most| *ranks >= most);
        match self.map_by == MapBy::Node || is_full {
            true => (at + 1) % self.nodes.len(),
            false => at,
        }
    }

    /// Gives `count` ranks to nodes, in the order of ranks. They go on where the application `before` ended,
    /// if that wanted the same nodes.
    ///
    /// Nodes are filled up to their slots in order, or get a rank in turn; those with unknown slots
    /// take the rest, so that they have equal numbers of processes. What is
    /// more than all slots goes to the nodes that have the fewest too many, in turn.
    ///
    /// # Errors
    /// [`PlacementError`] when they do not fit.
    pub(super) fn place(
        &self,
        count: u32,
        before: Option<(&Self, &[(NodeId, u32)])>,
        space: &mut [NodeCapacity],
        names: &[String],
    ) -> Result<Vec<(NodeId, u32)>, PlacementError> {
        let rooms = self.rooms(space);
        let sum = |of: fn(&RankCapacity) -> u32| rooms.iter().map(of).fold(0, u32::saturating_add);
        let (free, most) = (sum(|room| room.free), sum(|room| room.most));
        if let Some(per_node) = self.per_node
            && u64::from(per_node) * (self.nodes.len() as u64) < u64::from(count)
        {
            let nodes = self.nodes.len();
            return Err(PlacementError::PerNode {
                count,
                per_node,
                nodes,
            });
        }
        if count > free && !self.oversubscribe {
            let of = self.capacity_text(&rooms, space, names);
            return Err(PlacementError::Slots { count, free, of });
        }
        if count > most {
            return Err(PlacementError::Most { count, most });
        }
        let begin = before
            .filter(|(wanted, _)| wanted.nodes == self.nodes)
            .map_or(0, |(wanted, runs)| wanted.next_start(runs, &rooms));
        let order: Vec<usize> = (begin..self.nodes.len()).chain(0..begin).collect();
        let of = |at: &usize| space[self.nodes[*at].0.index()];
        let mut shares = vec![0; self.nodes.len()];
        let mut left = count;
        match self.map_by {
            MapBy::Node => {
                let mut turns = vec![0; order.len()];
                left = distribute_round_robin(&mut turns, left, |turn| rooms[order[turn]].free);
                for (at, share) in order.iter().zip(turns) {
                    shares[*at] = share;
                }
            }
            MapBy::Slot => {
                for at in order.iter().filter(|at| of(at).slots.is_some()) {
                    shares[*at] = rooms[*at].free.min(left);
                    left -= shares[*at];
                }
                let unknown = order.iter().filter(|at| of(at).slots.is_none());
                let loads = unknown.map(|at| (of(at).used, *at));
                left = even_out(&mut shares, left, loads, |at| rooms[at].free);
            }
        }
        let excess = |at: &usize| {
            of(at)
                .slots
                .map_or(0, |slots| of(at).used.saturating_sub(slots))
        };
        // Behind the last node that was filled.
        let filled = order.iter().rposition(|at| shares[*at] > 0);
        let turns = match (self.map_by, filled) {
            (MapBy::Slot, Some(last)) => [&order[last + 1..], &order[..=last]].concat(),
            _ => order.clone(),
        };
        let excesses = turns.iter().map(|at| (excess(at), *at));
        even_out(&mut shares, left, excesses, |at| rooms[at].most);
        let shares = order.iter().map(|at| (self.nodes[*at].0, shares[*at]));
        let shares: Vec<(NodeId, u32)> = shares.collect();
        for (node, share) in &shares {
            space[node.index()].used += share;
        }
        Ok(match self.map_by {
            MapBy::Slot => shares,
            MapBy::Node => in_turn(shares),
        })
    }

    /// `1 of 4 nodes n[1-2]; 0 of 2 nodes n3`.
    fn capacity_text(
        &self,
        rooms: &[RankCapacity],
        space: &[NodeCapacity],
        names: &[String],
    ) -> String {
        let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
        for ((node, _), room) in self.nodes.iter().zip(rooms) {
            let free = room.free;
            let key = match space[node.index()].slots {
                Some(slots) => format!("{free} of {slots}"),
                None => free.to_string(),
            };
            let name = &names[node.index()];
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, names)) => names.push(name),
                None => groups.push((key, vec![name])),
            }
        }
        let group = |(free, names): &(String, Vec<&str>)| format!("{free} on {}", compress(names));
        groups.iter().map(group).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(nodes: &[(Option<u32>, u32)]) -> Vec<NodeCapacity> {
        let node = |(slots, used): &(Option<u32>, u32)| NodeCapacity {
            slots: *slots,
            most: None,
            used: *used,
        };
        nodes.iter().map(node).collect()
    }

    fn wanted(on: &[u32]) -> PlacementRequest {
        PlacementRequest {
            nodes: on.iter().map(|node| (NodeId(*node), None)).collect(),
            map_by: MapBy::Slot,
            per_node: None,
            oversubscribe: false,
        }
    }

    fn names() -> Vec<String> {
        ["n0", "n1", "n2"].map(str::to_owned).to_vec()
    }

    /// Nodes of the ranks, in order.
    fn placed(
        wanted: &PlacementRequest,
        count: u32,
        space: &mut [NodeCapacity],
    ) -> Result<Vec<u32>, String> {
        let runs = wanted
            .place(count, None, space, &names())
            .map_err(|full| full.to_string())?;
        let ranks = |(node, ranks): (NodeId, u32)| vec![node.0; ranks as usize];
        Ok(runs.into_iter().flat_map(ranks).collect())
    }

    #[test]
    fn free_slots_are_filled_in_the_order_of_nodes_or_of_the_hosts_named() {
        let mut nodes = space(&[(Some(2), 1), (Some(2), 0), (Some(2), 2)]);
        assert_eq!(
            placed(&wanted(&[0, 1, 2]), 2, &mut nodes.clone()),
            Ok(vec![0, 1])
        );
        assert_eq!(placed(&wanted(&[1, 0]), 3, &mut nodes), Ok(vec![1, 1, 0]));
        assert_eq!(
            nodes.iter().map(|node| node.used).collect::<Vec<_>>(),
            [2, 2, 2]
        );
    }

    #[test]
    fn ranks_go_round_when_mapped_by_node() {
        let mut nodes = space(&[(Some(4), 1), (Some(2), 0), (Some(2), 2)]);
        let mut by_node = wanted(&[0, 1, 2]);
        by_node.map_by = MapBy::Node;
        assert_eq!(placed(&by_node, 5, &mut nodes), Ok(vec![0, 1, 0, 1, 0]));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_arithmetic() {
        let mut nodes = space(&[(Some(2), 1), (Some(2), 1), (Some(4), 4)]);
        let refused = placed(&wanted(&[0, 1, 2]), 3, &mut nodes).unwrap_err();
        assert_eq!(
            refused,
            "3 processes do not fit in 2 free slots (1 of 2 on n[0-1]; 0 of 4 on n2); start the \
             launch with --oversubscribe or with more slots"
        );
        let mut one = wanted(&[1]);
        one.nodes[0].1 = Some(0);
        let refused = placed(&one, 1, &mut nodes).unwrap_err();
        assert!(
            refused.starts_with("1 process does not fit in 0 free slots (0 of 2 on n1)"),
            "{refused}"
        );
        let mut each = wanted(&[0, 1]);
        each.per_node = Some(1);
        each.oversubscribe = true;
        assert_eq!(
            placed(&each, 3, &mut nodes).unwrap_err(),
            "3 processes with at most 1 on a node need 3 nodes, and there are 2"
        );
    }

    #[test]
    fn oversubscribed_nodes_take_more_in_turn_up_to_their_maximum() {
        let mut nodes = space(&[(Some(1), 1), (Some(2), 1), (Some(0), 0)]);
        nodes[0].most = Some(2);
        let mut over = wanted(&[0, 1, 2]);
        over.oversubscribe = true;
        assert_eq!(placed(&over, 5, &mut nodes), Ok(vec![0, 1, 1, 1, 1]));
        let mut first = over.clone();
        first.nodes.truncate(1);
        let refused = placed(&first, 1, &mut nodes).unwrap_err();
        assert!(
            refused.ends_with("they take 0; raise max_slots"),
            "{refused}"
        );
    }

    /// Nodes of the ranks of applications with the same request, each after the one before.
    fn one_by_one(
        wanted: &PlacementRequest,
        counts: &[u32],
        space: &mut [NodeCapacity],
    ) -> Vec<u32> {
        let mut before: Option<Vec<(NodeId, u32)>> = None;
        let mut nodes = Vec::new();
        for count in counts {
            let last = before.as_ref().map(|runs| (wanted, &runs[..]));
            let runs = wanted.place(*count, last, space, &names()).unwrap();
            let ranks = |(node, ranks): &(NodeId, u32)| vec![node.0; *ranks as usize];
            nodes.extend(runs.iter().flat_map(ranks));
            before = Some(runs);
        }
        nodes
    }

    #[test]
    fn an_application_goes_on_where_the_one_before_it_ended() {
        let roomy = || space(&[(Some(4), 0), (Some(4), 0), (Some(4), 0)]);
        let mut by_node = wanted(&[0, 1, 2]);
        by_node.map_by = MapBy::Node;
        let placed = one_by_one(&by_node, &[1, 1, 2, 3], &mut roomy());
        assert_eq!(placed, [0, 1, 2, 0, 1, 2, 0]);
        let mut each = wanted(&[0, 1, 2]);
        each.per_node = Some(1);
        assert_eq!(one_by_one(&each, &[1, 2, 1], &mut roomy()), [0, 1, 2, 0]);
        let by_slot = wanted(&[0, 1, 2]);
        let placed = one_by_one(&by_slot, &[2, 3, 1], &mut roomy());
        assert_eq!(placed, [0, 0, 0, 0, 1, 1]);
        let mut over = wanted(&[0, 1, 2]);
        over.oversubscribe = true;
        let mut full = space(&[(Some(1), 1), (Some(1), 1), (Some(1), 0)]);
        let placed = one_by_one(&over, &[1, 1, 1, 1, 2], &mut full);
        assert_eq!(placed, [2, 0, 1, 2, 0, 1]);
    }

    #[test]
    fn what_is_too_much_goes_to_the_nodes_that_have_the_fewest_too_many() {
        let mut over = wanted(&[0, 1, 2]);
        over.oversubscribe = true;
        let mut nodes = space(&[(Some(1), 2), (Some(1), 2), (Some(1), 1)]);
        let placed: Vec<_> = (0..4)
            .map(|_| placed(&over, 1, &mut nodes).unwrap())
            .collect();
        assert_eq!(placed.concat(), [2, 0, 1, 2]);
    }

    #[test]
    fn even_placement_of_most_ranks_takes_no_time_per_rank() {
        let mut over = wanted(&[0, 1, 2]);
        over.oversubscribe = true;
        let mut nodes = space(&[(Some(1), 1), (None, 7), (Some(1), 3)]);
        nodes[2].most = Some(5);
        let place = |wanted: &PlacementRequest, count, nodes: &mut [NodeCapacity]| {
            wanted.place(count, None, nodes, &names())
        };
        // Hosts of unknown size take all that is left.
        let runs = place(&over, u32::MAX - 10, &mut nodes.clone()).unwrap();
        assert_eq!(runs[1], (NodeId(1), u32::MAX - 10));
        let mut known = space(&[(Some(1), 1), (Some(2), 0), (Some(1), 3)]);
        known[2].most = Some(5);
        let runs = place(&over, 2_000_000_001, &mut known).unwrap();
        let shares: Vec<u32> = runs.into_iter().map(|(_, share)| share).collect();
        assert_eq!(shares, [999_999_999, 1_000_000_000, 2]);
    }

    /// One rank after the other.
    fn counted(shares: &mut [u32], mut left: u32, loads: &[u32], limits: &[u32]) -> u32 {
        let mut loads = loads.to_vec();
        while left > 0 {
            let open = (0..loads.len()).filter(|at| shares[*at] < limits[*at]);
            let Some(least) = open.min_by_key(|at| loads[*at]) else {
                break;
            };
            shares[least] += 1;
            loads[least] += 1;
            left -= 1;
        }
        left
    }

    #[test]
    fn even_placement_by_division_equals_placement_by_counting() {
        for seed in 0..4000_u32 {
            let number = |at: u32, below: u32| (seed * 7919 + at * 104_729) % 1009 % below;
            let loads: Vec<u32> = (0..5).map(|at| number(at, 6)).collect();
            let limits: Vec<u32> = (5..10).map(|at| number(at, 8)).collect();
            let begin: Vec<u32> = (10..15).map(|at| number(at, 4)).collect();
            let left = number(15, 30);
            let (mut divided, mut expected) = (begin.clone(), begin);
            let places = loads.iter().copied().zip(0..);
            let rest = even_out(&mut divided, left, places, |at| limits[at]);
            assert_eq!(rest, counted(&mut expected, left, &loads, &limits));
            assert_eq!(divided, expected, "{loads:?} {limits:?} {left}");
        }
    }

    #[test]
    fn hosts_of_unknown_size_take_the_rest_evenly() {
        let mut nodes = space(&[(None, 3), (Some(2), 1), (None, 1)]);
        let all = wanted(&[0, 1, 2]);
        assert_eq!(placed(&all, 5, &mut nodes), Ok(vec![0, 1, 2, 2, 2]));
        assert_eq!(all.room(&nodes), u32::MAX);
    }
}
