//! Costs of a fence in messages and bytes, from 16 to 4096 nodes.
//!
//! `cargo test --release --test simulation fence_cost -- --nocapture` prints the table.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wireup_core::fence::{
    FenceAction, FenceContribution, FenceEngine, FenceEvent, FenceLimits, FenceOperation,
    FenceSeries, FenceTimeout, NodeSet, Participants, TimeoutSource,
};
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{NodeId, Nspace};
use wireup_core::link;
use wireup_core::link::routing_tree::TreeShape;
use wireup_core::node::event::PeerMessage;

/// Messages and bytes that one node sent and received.
#[derive(Clone, Copy, Default)]
struct Load {
    messages: usize,
    bytes: usize,
}

/// The loads of all nodes in one fence, and the time the engines took for it.
fn fence(nodes: u32, shape: TreeShape, data: usize) -> (Vec<Load>, Duration) {
    let engine = |node| FenceEngine::new(NodeId(node), shape, FenceLimits::default());
    let mut engines: Vec<FenceEngine<()>> = (0..nodes).map(engine).collect();
    let nspace = Nspace::new("wireup-1f0c-6b2a").expect("a fine name");
    let series = FenceSeries {
        kind: FenceOperation::PmiBarrier { tag: 0 },
        participants: Participants::whole_job(nspace),
    };
    let all = NodeSet::new((0..nodes).map(NodeId)).expect("one at least");
    let mut inputs = VecDeque::new();
    for node in (0..nodes).map(NodeId) {
        let input = FenceEvent::Arrive {
            series: series.clone(),
            nodes: all.clone(),
            contribution: FenceContribution {
                data: vec![7; data].into(),
                collect: data > 0,
                status: 0,
            },
            timeout: Some(FenceTimeout {
                after: Duration::from_secs(60),
                kind: TimeoutSource::Default,
            }),
            ticket: (),
        };
        inputs.push_back((node, input));
    }
    let mut loads = vec![Load::default(); nodes as usize];
    let mut results = Vec::new();
    let started = Instant::now();
    let mut encoding = Duration::ZERO;
    while let Some((at, input)) = inputs.pop_front() {
        let mut out = Vec::new();
        engines[at.index()].handle(input, Moment::default(), &mut out);
        for output in out {
            match output {
                FenceAction::Send { to, message } => {
                    let begun = Instant::now();
                    let bytes = link::encode(&PeerMessage::Fence(message.clone())).len();
                    encoding += begun.elapsed();
                    for node in [at, to] {
                        loads[node.index()].messages += 1;
                        loads[node.index()].bytes += bytes;
                    }
                    inputs.push_back((to, FenceEvent::Message { from: at, message }));
                }
                FenceAction::Complete { result, .. } => {
                    results.push(result.expect("nothing fails"))
                }
                FenceAction::SendAll(_)
                | FenceAction::Describe { .. }
                | FenceAction::Passed { .. }
                | FenceAction::Waits { .. } => {
                    panic!("no time has passed, and the launch is not known")
                }
            }
        }
    }
    assert_eq!(results.len(), nodes as usize);
    let whole = data * nodes as usize;
    assert!(results.iter().all(|released| released.data.len() == whole));
    let first: &Arc<[u8]> = &results[0].data;
    assert!(
        results
            .iter()
            .all(|released| Arc::ptr_eq(&released.data, first))
    );
    (loads, started.elapsed() - encoding)
}

#[test]
fn fence_costs_two_messages_per_neighbour() {
    println!(
        "nodes  data/node  messages: all  most  median  bytes: root  most  leaf  engines' time"
    );
    let shape = TreeShape::default();
    for nodes in [16, 64, 128, 129, 256, 1024, 4096] {
        for data in [0, 1024] {
            let (loads, time) = fence(nodes, shape, data);
            let all = loads.iter().map(|load| load.messages).sum::<usize>() / 2;
            let most = loads.iter().map(|load| load.messages).max().expect("nodes");
            let mut each: Vec<usize> = loads.iter().map(|load| load.messages).collect();
            each.sort_unstable();
            let (root, leaf) = (loads[0].bytes, loads[nodes as usize - 1].bytes);
            let bytes = loads.iter().map(|load| load.bytes).max().expect("nodes");
            println!(
                "{nodes:>5}  {data:>9}  {all:>13}  {most:>4}  {:>6}  {root:>11}  {bytes:>4}  {leaf:>4}  {time:?}",
                each[each.len() / 2]
            );
            assert_eq!(all, 2 * (nodes as usize - 1));
            let neighbours = match nodes <= shape.star_limit {
                true => nodes as usize - 1,
                false => shape.width as usize + 1,
            };
            assert!(most <= 2 * neighbours);
            let whole = data * nodes as usize;
            // Everything once from above, the own part once up, and little else.
            assert!(leaf <= whole + data + 150, "{leaf} bytes at a leaf");
            assert!(root <= neighbours * (whole + 150) + whole);
        }
    }
}
