//! Every table, executed: over 1 to 64 clients of uneven sizes, with messages that overtake those of other pairs.

use std::collections::{BTreeMap, VecDeque};

use super::*;

/// A value is the list of what was combined, in order.
type Value = Vec<usize>;
type Wires = BTreeMap<(usize, usize, i32, CollectiveChannel), VecDeque<Vec<Option<Value>>>>;

fn topology(clients: usize, max_linear: usize) -> Topology {
    Topology::new(
        (0..clients).map(|client| 1 + client * 7 % 5),
        max_linear,
        CollectiveChannel::Collective,
    )
}

/// What each process has at the end, and how many messages went between clients.
fn run(
    topology: &Topology,
    operation: Operation,
    long: bool,
    start: impl Fn(usize, usize) -> Option<Value>,
) -> (Vec<Vec<Option<Value>>>, usize) {
    let size = topology.size();
    let blocks = operation.blocks(size);
    let mut values: Vec<Vec<Option<Value>>> = (0..size)
        .map(|me| (0..blocks).map(|block| start(me, block)).collect())
        .collect();
    let mut left: Vec<VecDeque<CollectiveStep>> = (0..size)
        .map(|me| topology.steps(operation, long, me).into())
        .collect();
    let mut wires = Wires::new();
    let mut crossing = 0;
    loop {
        let mut moved = false;
        // The last processes first: an operation that relies on the order of processes fails.
        for me in (0..size).rev() {
            while let Some(step) = left[me].front() {
                if !execute(step, me, &mut values[me], &mut wires) {
                    break;
                }
                if let Some(CollectiveStep::Send { to, channel, .. }) = left[me].pop_front() {
                    let local = topology.client(me) == topology.client(to);
                    assert_eq!(
                        local && channel != topology.reduce,
                        channel == CollectiveChannel::Local
                    );
                    crossing += usize::from(!local);
                }
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    assert!(
        left.iter().all(VecDeque::is_empty),
        "{operation:?} of {} clients stops",
        topology.masters()
    );
    assert!(
        wires.values().all(VecDeque::is_empty),
        "every message is received"
    );
    (values, crossing)
}

fn execute(
    step: &CollectiveStep,
    me: usize,
    values: &mut [Option<Value>],
    wires: &mut Wires,
) -> bool {
    let joined = |first: &Option<Value>, second: &Option<Value>| match (first, second) {
        (Some(first), Some(second)) => Some([&first[..], second].concat()),
        _ => panic!("an operand is missing"),
    };
    match step {
        CollectiveStep::Send {
            to,
            tag,
            channel,
            blocks,
        } => {
            let message = blocks
                .iter()
                .map(|block| values[*block].clone())
                .inspect(|value| assert!(value.is_some()));
            wires
                .entry((me, *to, *tag, *channel))
                .or_default()
                .push_back(message.collect());
        }
        CollectiveStep::Receive {
            from,
            tag,
            channel,
            blocks,
            join,
        } => {
            let wire = wires.entry((*from, me, *tag, *channel)).or_default();
            let Some(message) = wire.pop_front() else {
                return false;
            };
            assert_eq!(message.len(), blocks.len());
            for (block, value) in blocks.iter().zip(message) {
                values[*block] = match join {
                    BlockMerge::Replace => value,
                    BlockMerge::Before => joined(&value, &values[*block]),
                };
            }
        }
        CollectiveStep::Copy { from, to } => values[*to] = values[*from].clone(),
        CollectiveStep::Combine { from, to } => values[*to] = joined(&values[*from], &values[*to]),
    }
    true
}

/// All numbers of clients, both forms between masters, and both variants.
fn each(mut check: impl FnMut(&Topology, bool)) {
    for clients in 1..=64 {
        for max_linear in [0, 4, 64] {
            for long in [false, true] {
                check(&topology(clients, max_linear), long);
            }
        }
    }
}

/// A few roots: the first, the last and one that is no master.
fn roots(size: usize) -> [usize; 3] {
    [0, size / 2, size - 1]
}

fn own(me: usize, block: usize) -> Option<Value> {
    (block == 0).then(|| vec![me])
}

#[test]
fn barrier_is_left_after_all_processes_entered() {
    each(|topology, long| {
        // A barrier carries nothing; with a value in each message its effect is that of an allreduce.
        let size = topology.size();
        let mut reached: Vec<std::collections::BTreeSet<usize>> =
            (0..size).map(|me| [me].into()).collect();
        let mut left: Vec<VecDeque<CollectiveStep>> = (0..size)
            .map(|me| topology.steps(Operation::Barrier, long, me).into())
            .collect();
        let mut wires: BTreeMap<
            (usize, usize, CollectiveChannel),
            VecDeque<std::collections::BTreeSet<usize>>,
        > = BTreeMap::new();
        while left.iter().any(|steps| !steps.is_empty()) {
            let mut moved = false;
            for me in 0..size {
                let done = match left[me].front() {
                    Some(CollectiveStep::Send { to, channel, .. }) => {
                        wires
                            .entry((me, *to, *channel))
                            .or_default()
                            .push_back(reached[me].clone());
                        true
                    }
                    Some(CollectiveStep::Receive { from, channel, .. }) => {
                        let message = wires.entry((*from, me, *channel)).or_default().pop_front();
                        message.map(|message| reached[me].extend(message)).is_some()
                    }
                    _ => false,
                };
                if done {
                    left[me].pop_front();
                    moved = true;
                }
            }
            assert!(moved, "the barrier stops");
        }
        assert!(reached.iter().all(|reached| reached.len() == size));
    });
}

#[test]
fn bcast_sends_value_of_root_once_per_client() {
    each(|topology, long| {
        for root in roots(topology.size()) {
            let start = |me, block| own(me, block).filter(|_| me == root);
            let (values, crossing) = run(topology, Operation::Bcast { root }, long, start);
            assert!(values.iter().all(|blocks| blocks[0] == Some(vec![root])));
            assert_eq!(crossing, topology.masters() - 1);
        }
    });
}

#[test]
fn reduce_and_allreduce_combine_all_in_order_where_needed() {
    each(|topology, long| {
        let all: Value = (0..topology.size()).collect();
        for root in roots(topology.size()) {
            for commutative in [true, false] {
                let operation = Operation::Reduce { root, commutative };
                let (mut values, crossing) = run(topology, operation, long, own);
                let mut result = values[root].swap_remove(0).unwrap();
                if commutative {
                    result.sort_unstable();
                    assert_eq!(crossing, topology.masters() - 1);
                }
                assert_eq!(result, all);
            }
        }
        for commutative in [true, false] {
            let (values, _) = run(topology, Operation::Allreduce { commutative }, long, own);
            for blocks in values {
                let mut result = blocks[0].clone().unwrap();
                if commutative {
                    result.sort_unstable();
                }
                assert_eq!(result, all);
            }
        }
    });
}

#[test]
fn scan_combines_values_up_to_own_rank_in_order() {
    each(|topology, long| {
        let (values, crossing) = run(topology, Operation::Scan, long, own);
        for (me, blocks) in values.iter().enumerate() {
            assert_eq!(blocks[0], Some((0..=me).collect()));
        }
        assert_eq!(crossing, topology.masters() - 1);
    });
}

#[test]
fn gather_and_scatter_move_each_block_to_its_place() {
    each(|topology, long| {
        let size = topology.size();
        for root in roots(size) {
            let start = |me, block| (me == block).then(|| vec![me]);
            for gather in [Operation::Gather { root }, Operation::Gatherv { root }] {
                let (values, _) = run(topology, gather, long, start);
                assert!((0..size).all(|block| values[root][block] == Some(vec![block])));
            }
            let start = |me, block| (me == root).then(|| vec![block]);
            for scatter in [Operation::Scatter { root }, Operation::Scatterv { root }] {
                let (values, _) = run(topology, scatter, long, start);
                assert!((0..size).all(|me| values[me][me] == Some(vec![me])));
            }
        }
    });
}

#[test]
fn allgather_and_alltoall_deliver_all_blocks() {
    // Alltoall of 64 clients has n^2 blocks in each process: fewer clients show the same.
    for clients in (1..=16).chain([31, 64]) {
        for (max_linear, long) in [(4, false), (4, true)] {
            let topology = topology(clients, max_linear);
            let size = topology.size();
            let start = |me, block| (me == block).then(|| vec![me]);
            for allgather in [Operation::Allgather, Operation::Allgatherv] {
                let (values, _) = run(&topology, allgather, long, start);
                let mut blocks = values.iter().flat_map(|blocks| blocks.iter().enumerate());
                assert!(blocks.all(|(block, value)| *value == Some(vec![block])));
            }
            if clients > 31 {
                continue;
            }
            let start = |me, block: usize| (block / size == me).then(|| vec![block]);
            for alltoall in [Operation::Alltoall, Operation::Alltoallv] {
                let (values, _) = run(&topology, alltoall, long, start);
                for (me, blocks) in values.iter().enumerate() {
                    let mut own = (0..size).map(|from| from * size + me);
                    assert!(own.all(|block| blocks[block] == Some(vec![block])));
                }
            }
        }
    }
}

#[test]
fn blocks_of_different_lengths_do_not_depend_on_form() {
    let topology = topology(6, 4);
    let operations = [
        Operation::Gatherv { root: 2 },
        Operation::Scatterv { root: 2 },
        Operation::Alltoallv,
    ];
    for operation in operations {
        for me in 0..topology.size() {
            let forms = [false, true].map(|long| topology.steps(operation, long, me));
            assert_eq!(forms[0], forms[1], "{operation:?}");
        }
    }
}

#[test]
fn variants_send_documented_numbers_of_messages() {
    let topology = topology(8, 4);
    let start = |me, block| (me == block).then(|| vec![me]);
    let (_, short) = run(&topology, Operation::Gather { root: 0 }, false, start);
    let (_, long) = run(&topology, Operation::Gather { root: 0 }, true, start);
    assert_eq!(short, 7, "one message of each other client");
    assert_eq!(
        long,
        topology.size() - topology.clients[0].1,
        "each block crosses by itself"
    );
}

/// How often each block goes from one client to another.
fn crossings(topology: &Topology, operation: Operation, long: bool) -> Vec<usize> {
    let size = topology.size();
    let mut crossings = vec![0; operation.blocks(size)];
    for me in 0..size {
        for step in topology.steps(operation, long, me) {
            if let CollectiveStep::Send { to, blocks, .. } = step
                && topology.client(me) != topology.client(to)
            {
                blocks.into_iter().for_each(|block| crossings[block] += 1);
            }
        }
    }
    crossings
}

#[test]
fn long_forms_send_minimum_between_clients() {
    // The prose: for large messages, "do not transmit data more than once if possible".
    for clients in [1, 2, 3, 4, 5, 9, 16] {
        let topology = topology(clients, 4);
        let size = topology.size();
        let away = |one: usize, other: usize| topology.client(one) != topology.client(other);
        for root in roots(size) {
            let once: Vec<usize> = (0..size).map(|block| away(block, root).into()).collect();
            assert_eq!(crossings(&topology, Operation::Gather { root }, true), once);
            assert_eq!(
                crossings(&topology, Operation::Scatter { root }, true),
                once
            );
        }
        let to_all = vec![clients - 1; size];
        assert_eq!(crossings(&topology, Operation::Allgather, true), to_all);
        let pairs = (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
        let pairs: Vec<usize> = pairs.map(|(from, to)| away(from, to).into()).collect();
        assert_eq!(crossings(&topology, Operation::Alltoall, true), pairs);
        assert_eq!(
            crossings(&topology, Operation::Scan, true),
            [clients - 1, 0]
        );
    }
}

/// The most messages one after the other between clients, if all are sent at once that can be.
fn depth(topology: &Topology, operation: Operation, long: bool) -> usize {
    let mut left: Vec<VecDeque<CollectiveStep>> = (0..topology.size())
        .map(|me| topology.steps(operation, long, me).into())
        .collect();
    let mut at = vec![0; left.len()];
    let mut wires = BTreeMap::<(usize, usize), VecDeque<usize>>::new();
    while left.iter().any(|steps| !steps.is_empty()) {
        for me in 0..left.len() {
            let done = match left[me].front() {
                Some(CollectiveStep::Send { to, channel, .. }) => {
                    // A process does one thing after the other.
                    at[me] += usize::from(*channel != CollectiveChannel::Local);
                    wires.entry((me, *to)).or_default().push_back(at[me]);
                    true
                }
                Some(CollectiveStep::Receive { from, channel, .. }) => {
                    let sent = wires.entry((*from, me)).or_default().pop_front();
                    let took = usize::from(*channel != CollectiveChannel::Local);
                    sent.map(|sent| at[me] = sent.max(at[me] + took)).is_some()
                }
                Some(_) => true,
                None => false,
            };
            if done {
                left[me].pop_front();
            }
        }
    }
    at.into_iter().max().unwrap_or(0)
}

#[test]
fn short_gather_and_scatter_use_tree_beyond_client_limit() {
    // The prose of the specification's authors: messages of short forms go beside each other, "a binary tree network for a
    // gather operation for example".
    for root in roots(topology(32, 4).size()) {
        for operation in [Operation::Gather { root }, Operation::Scatter { root }] {
            assert!(
                depth(&topology(32, 4), operation, false) <= 6,
                "{operation:?}"
            );
            let linear = depth(&topology(32, 32), operation, false);
            assert!(linear >= 31, "{operation:?}: {linear}");
        }
    }
}

#[test]
fn masters_equal_example_and_barrier_equals_lam() {
    // Ranks 0, 1 | 2, 3: what two recorded jobs of LAM sent each other.
    let topology = Topology::new([2, 2], 4, CollectiveChannel::PointToPoint);
    let global = |operation, me| {
        let steps = topology.steps(operation, false, me).into_iter();
        steps
            .filter_map(|step| match step {
                CollectiveStep::Send {
                    to, tag, channel, ..
                } if channel != CollectiveChannel::Local => Some((to, tag, channel)),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    let (collective, point) = (
        CollectiveChannel::Collective,
        CollectiveChannel::PointToPoint,
    );
    assert_eq!(global(Operation::Barrier, 0), [(2, 110, collective)]);
    assert_eq!(global(Operation::Barrier, 2), [(0, 110, collective)]);
    assert_eq!(
        global(Operation::Bcast { root: 3 }, 3),
        [(0, 120, collective)]
    );
    assert_eq!(global(Operation::Bcast { root: 3 }, 2), []);
    let allreduce = Operation::Allreduce { commutative: true };
    assert_eq!(global(allreduce, 2), [(0, 190, point)]);
    assert_eq!(global(allreduce, 0), [(2, 120, collective)]);
}
