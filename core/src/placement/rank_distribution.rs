//! Distribution of a number of ranks over nodes with limits.

use crate::job::ids::NodeId;

/// Gives each of `rank_count` ranks to the node with the least load, the first of these in the order of `loads`, until no rank is left or
/// no node has fewer than its `limit`. Returns the ranks without a node. `loads` are those before, with the index of the
/// node in `shares`.
///
/// The time does not depend on the number of ranks: processes request any number.
pub(super) fn even_out(
    shares: &mut [u32],
    rank_count: u32,
    loads: impl Iterator<Item = (u32, usize)>,
    limit: impl Fn(usize) -> u32,
) -> u32 {
    let room = |at: usize| u64::from(limit(at).saturating_sub(shares[at]));
    let nodes: Vec<_> = loads
        .map(|(load, at)| (u64::from(load), room(at), at))
        .collect();
    // Ranks that bring a node up to a load.
    let up_to = |level: u64, (load, room, _): &(u64, u64, usize)| {
        let missing = level.saturating_sub(*load);
        missing.min(*room)
    };
    let all_up_to = |level| -> u64 { nodes.iter().map(|node| up_to(level, node)).sum() };
    let mut left = u64::from(rank_count);
    // The highest load that all nodes can have, as far as they have room.
    let (mut level, mut above) = (0, 1 << 33);
    while level + 1 < above {
        let middle = (level + above) / 2;
        match all_up_to(middle) <= left {
            true => level = middle,
            false => above = middle,
        }
    }
    left -= all_up_to(level);
    for node in &nodes {
        let mut share = up_to(level, node);
        if left > 0 && share < up_to(level + 1, node) {
            share += 1;
            left -= 1;
        }
        shares[node.2] += u32::try_from(share).expect("not more than the limit");
    }
    u32::try_from(left).expect("not more than before")
}

/// Distributes one rank to each node that has some left, again and again, as runs of ranks. The runs begin with an
/// empty one for each node.
pub(super) fn in_turn(mut shares: Vec<(NodeId, u32)>) -> Vec<(NodeId, u32)> {
    let mut runs: Vec<_> = shares.iter().map(|(node, _)| (*node, 0)).collect();
    while !shares.is_empty() {
        shares.retain(|(_, left)| *left > 0);
        for (node, left) in &mut shares {
            *left -= 1;
            runs.push((*node, 1));
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Placement of one rank after the other.
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
            let nodes = loads.iter().copied().zip(0..);
            let rest = even_out(&mut divided, left, nodes, |at| limits[at]);
            assert_eq!(rest, counted(&mut expected, left, &loads, &limits));
            assert_eq!(divided, expected, "{loads:?} {limits:?} {left}");
        }
    }
}
