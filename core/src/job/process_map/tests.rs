use super::*;

/// A mapping of whatever length.
fn mapping(map: &ProcessMap) -> String {
    map.process_mapping(usize::MAX).unwrap()
}

fn map(blocks: &[(u32, u32)]) -> ProcessMap {
    ProcessMap::from_runs(blocks.iter().map(|&(node, count)| (NodeId(node), count)))
}

#[test]
fn process_mapping_covers_block_cyclic_and_uneven_layouts() {
    let mapped = |blocks| mapping(&map(blocks));
    assert_eq!(mapped(&[(0, 4)]), "(vector,(0,1,4))");
    assert_eq!(mapped(&[(0, 2), (1, 2)]), "(vector,(0,2,2))");
    assert_eq!(
        mapped(&[(0, 1), (1, 1), (0, 1), (1, 1)]),
        "(vector,(0,2,1),(0,2,1))"
    );
    assert_eq!(
        mapped(&[(0, 3), (1, 2), (2, 2)]),
        "(vector,(0,1,3),(1,2,2))"
    );
    assert_eq!(mapped(&[(0, 2), (0, 1)]), "(vector,(0,1,3))");
    assert_eq!(
        mapped(&[(3, 2), (1, 2), (0, 2), (2, 0)]),
        "(vector,(0,3,2))"
    );
}

#[test]
fn mapped_number_matches_process_mapping() {
    // Nodes are numbered in the order in which ranks meet them: 3, 1, 0.
    let map = map(&[(3, 2), (1, 2), (0, 2), (2, 0)]);
    let numbers = [3, 1, 0, 2, 9].map(|node| map.mapped_number(NodeId(node)));
    assert_eq!(numbers, [Some(0), Some(1), Some(2), None, None]);
}

#[test]
fn regular_layouts_of_large_machines_fit_smallest_buffer() {
    const NODES: u32 = 4096;
    const RANKS: u32 = 100_000;
    let by_turns = |slots: &dyn Fn(u32) -> u32| {
        let rounds = (0..).flat_map(|round| (0..NODES).map(move |node| (round, node)));
        let taken = rounds.filter(|(round, node)| *round < slots(*node));
        let blocks = taken.map(|(_, node)| (NodeId(node), 1));
        ProcessMap::from_runs(blocks.take(RANKS as usize))
    };
    let in_blocks = |slots: &dyn Fn(u32) -> u32| {
        let mut left = RANKS;
        ProcessMap::from_runs((0..NODES).map(|node| {
            let count = slots(node).min(left);
            left -= count;
            (NodeId(node), count)
        }))
    };
    let two_kinds = |node| if node < 1000 { 64 } else { 16 };
    let mixed = |node| 24 + node % 3;
    for (map, length) in [
        (in_blocks(&|_| 25), Some(20)),
        (in_blocks(&|_| 32), Some(20)),
        (in_blocks(&two_kinds), Some(35)),
        (in_blocks(&mixed), None),
        (by_turns(&|_| 25), Some(283)),
        (by_turns(&two_kinds), Some(568)),
        (by_turns(&mixed), None),
    ] {
        let text = map.process_mapping(673);
        assert_eq!(text.as_ref().map(String::len), length, "{text:?}");
    }
}

#[test]
fn every_rank_is_found_on_node_that_lists_it() {
    let map = map(&[(0, 2), (1, 1), (0, 3), (2, 0), (1, 2)]);
    assert_eq!((map.size(), map.nodes()), (8, 3));
    let mut count = 0;
    for node in map.node_ids() {
        for (position, rank) in map.ranks_on(node).enumerate() {
            let local = LocalRank(position as u32);
            assert_eq!(map.node_of(rank), Some(node));
            assert_eq!(map.local_rank(rank), Some(local));
            assert_eq!(map.rank_at(node, local), Some(rank));
            count += 1;
        }
        assert_eq!(map.rank_at(node, LocalRank(map.local_size(node))), None);
    }
    assert_eq!(count, 8);
    assert_eq!(map.node_of(Rank(8)), None);
}

/// The number of each rank's node, from PMI's form, as clients read it: a block gives `each` ranks to one
/// node after the other.
fn expanded(text: &str) -> Vec<u32> {
    let blocks = text
        .strip_prefix("(vector")
        .and_then(|t| t.strip_suffix(')'));
    let mut nodes = Vec::new();
    for block in blocks.unwrap().split(",(").skip(1) {
        let numbers: Vec<u32> = block
            .trim_end_matches(')')
            .split(',')
            .map(|number| number.parse().unwrap())
            .collect();
        let [first, count, each] = numbers[..] else {
            panic!("three numbers in {block}");
        };
        for node in first..first + count {
            nodes.extend(std::iter::repeat_n(node, each as usize));
        }
    }
    nodes
}

proptest::proptest! {
    #[test]
    fn process_mapping_parses_to_same_map(
        blocks in proptest::collection::vec((0..6_u32, 0..5_u32), 0..24),
        rounds in 1..4_usize,
        from in 0..3_usize,
    ) {
        // Rounds over nodes are kept in another way than what repeats nothing.
        let before = blocks[..from.min(blocks.len())].to_vec();
        let blocks = [before, blocks.repeat(rounds)].concat();
        let map = map(&blocks);
        let nodes = blocks.iter().flat_map(|(node, count)| {
            std::iter::repeat_n(*node, *count as usize)
        });
        let nodes: Vec<u32> = nodes.collect();
        let text = mapping(&map);
        let mut met = Vec::new();
        let renamed: Vec<u32> = nodes.iter().map(|node| {
            met.iter().position(|other| other == node).unwrap_or_else(|| {
                met.push(*node);
                met.len() - 1
            }) as u32
        }).collect();
        proptest::prop_assert_eq!(&expanded(&text), &renamed);
        proptest::prop_assert_eq!(map.process_mapping(text.len()), Some(text.clone()));
        proptest::prop_assert_eq!(map.process_mapping(text.len() - 1), None);
        // And every way to ask says the same.
        proptest::prop_assert_eq!(map.size() as usize, nodes.len());
        for (rank, node) in nodes.iter().enumerate() {
            let rank = Rank(rank as u32);
            let node = NodeId(*node);
            proptest::prop_assert_eq!(map.node_of(rank), Some(node));
            let local = map.local_rank(rank).unwrap();
            let before = nodes[..rank.index()].iter().filter(|other| **other == node.0);
            proptest::prop_assert_eq!(local.index(), before.count());
            proptest::prop_assert_eq!(map.rank_at(node, local), Some(rank));
            let all = nodes.iter().filter(|other| **other == node.0).count();
            proptest::prop_assert_eq!(map.local_size(node) as usize, all);
        }
        proptest::prop_assert_eq!(map.node_of(Rank(map.size())), None);
    }
}

#[test]
fn regular_layout_of_any_size_is_few_numbers() {
    let (ranks, nodes) = (100_000, 4096);
    let each = |node| ranks / nodes + u32::from(node < ranks % nodes);
    let block = ProcessMap::from_runs((0..nodes).map(|node| (NodeId(node), each(node))));
    let cyclic = ProcessMap::from_runs((0..ranks).map(|rank| (NodeId(rank % nodes), 1)));
    for map in [block, cyclic] {
        assert_eq!((map.size(), map.nodes()), (ranks, nodes));
        assert_eq!(map.0.sweeps.len(), 2);
        let written = crate::link::encode(&map);
        assert!(written.len() < 30, "{}", written.len());
        assert_eq!(crate::link::decode(&written), Ok(map));
    }
}

#[test]
fn invalid_process_map_is_refused() {
    let read = |nodes, sweeps: &[[u32; 4]]| {
        let sweeps = sweeps.iter().map(|[node, nodes, each, rounds]| MapSegment {
            node: NodeId(*node),
            nodes: *nodes,
            each: *each,
            rounds: *rounds,
        });
        let sweeps = sweeps.collect();
        ProcessMap::try_from(ProcessMapWire { nodes, sweeps }).map(|map| map.size())
    };
    assert_eq!(read(3, &[[0, 2, 3, 4], [1, 2, 1, 1]]), Ok(26));
    assert_eq!(read(9, &[]), Ok(0));
    for (nodes, sweep) in [
        (2, [0, 3, 1, 1]),
        (2, [2, 1, 1, 1]),
        (2, [u32::MAX, 1, 1, 1]),
        (2, [0, 0, 1, 1]),
        (2, [0, 1, 0, 1]),
        (2, [0, 1, 1, 0]),
        (2, [0, 1, RANKS_MAX + 1, 1]),
        (2, [0, 2, u32::MAX, u32::MAX]),
        (NODES_MAX + 1, [0, 1, 1, 1]),
    ] {
        assert_eq!(read(nodes, &[sweep]), Err(ProcessMapError), "{sweep:?}");
    }
    let half = [0, 1, RANKS_MAX / 2 + 1, 1];
    assert_eq!(read(1, &[half, half]), Err(ProcessMapError));
}
