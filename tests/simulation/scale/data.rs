//! A fence in which each node brings data that all get, with the fence engines alone: their data is shared, so that
//! thousands of nodes fit into one process.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use super::costs::Costs;
use wireup_core::fence::{
    FenceAction, FenceContribution, FenceEngine, FenceEvent, FenceLimits, FenceMessage,
    FenceOperation, FenceSeries, NodeSet, Participants,
};
use wireup_core::job::clock::Moment;
use wireup_core::job::ids::{NodeId, Nspace};
use wireup_core::link::frame::BODY_MAX;
use wireup_core::link::routing_tree::{RoutingTree, TreeShape};

/// Length of a message without its data, in bytes.
const HEAD: usize = 64;

fn bytes(message: &FenceMessage) -> usize {
    let data = match message {
        FenceMessage::Arrive { contribution, .. } => contribution.data.len(),
        FenceMessage::Release { released, .. } => released.data.len(),
        _ => 0,
    };
    data + HEAD
}

/// Returns the time at which each node has the data that the root sends to all. Each agent forwards one frame after the
/// other: nodes whose agents have more children delay all below them.
fn passed_on(tree: RoutingTree, sent: Duration, bytes: usize, costs: Costs) -> Vec<Duration> {
    let nodes = tree.nodes() as usize;
    // The first frame's arrival, and how long the others take.
    let mut got = vec![(sent, Duration::ZERO); nodes];
    let frame = costs.on_a_link(bytes.min(BODY_MAX));
    for node in 0..nodes {
        let (first, slowest) = got[node];
        let children: Vec<NodeId> = tree.children(NodeId(node as u32)).collect();
        let slowest = slowest.max(costs.on_a_link(bytes * children.len()));
        for (number, child) in (1..).zip(children) {
            let first = first + (costs.remote + frame) * number + costs.latency + costs.remote;
            got[child.index()] = (first, slowest);
        }
    }
    got.into_iter().map(|(first, rest)| first + rest).collect()
}

/// Returns the time at which the last node has the data of all.
pub(super) fn fence(nodes: u32, shape: TreeShape, data: usize, costs: Costs) -> Duration {
    let engine = |node| FenceEngine::new(NodeId(node), shape, FenceLimits::default());
    let mut engines: Vec<FenceEngine<()>> = (0..nodes).map(engine).collect();
    engines
        .iter_mut()
        .for_each(|engine| engine.set_launch_nodes(nodes));
    let nspace = Nspace::new("wireup-1f0c-6b2a").expect("a fine name");
    let series = FenceSeries {
        kind: FenceOperation::Pmix,
        participants: Participants::whole_job(nspace),
    };
    let all = NodeSet::new((0..nodes).map(NodeId)).expect("one at least");
    let mut inputs = BTreeMap::new();
    let mut order = BinaryHeap::new();
    let mut last = 0;
    for node in (0..nodes).map(NodeId) {
        let input = FenceEvent::Arrive {
            series: series.clone(),
            nodes: all.clone(),
            contribution: FenceContribution {
                data: vec![7; data].into(),
                collect: true,
                status: 0,
            },
            timeout: None,
            ticket: (),
        };
        inputs.insert(last, (node, input));
        order.push(Reverse((Duration::ZERO, last)));
        last += 1;
    }
    // Until when a node, its link outwards, and its link inwards are busy.
    let mut busy = vec![[Duration::ZERO; 3]; nodes as usize];
    let hop = costs.local * 2 + costs.remote;
    let (mut end, mut released) = (Duration::ZERO, 0);
    while let Some(Reverse((at, number))) = order.pop() {
        let (node, input) = inputs.remove(&number).expect("each comes once");
        let mut now = at.max(busy[node.index()][0]);
        if matches!(input, FenceEvent::Message { .. }) {
            now += hop;
        }
        let mut out = Vec::new();
        engines[node.index()].handle(input, Moment(now), &mut out);
        for output in out {
            match output {
                FenceAction::Send { to, message } => {
                    now += hop;
                    let time = costs.on_a_link(bytes(&message));
                    let sent = now.max(busy[node.index()][1]) + time;
                    busy[node.index()][1] = sent;
                    let there = (sent + costs.latency).max(busy[to.index()][2] + time);
                    busy[to.index()][2] = there;
                    inputs.insert(
                        last,
                        (
                            to,
                            FenceEvent::Message {
                                from: node,
                                message,
                            },
                        ),
                    );
                    order.push(Reverse((there, last)));
                    last += 1;
                }
                FenceAction::SendAll(message) => {
                    let sent = now + costs.local + costs.remote;
                    let there = passed_on(shape.build_tree(nodes), sent, bytes(&message), costs);
                    for (to, there) in (0..nodes).map(NodeId).zip(there).skip(1) {
                        let message = message.clone();
                        inputs.insert(
                            last,
                            (
                                to,
                                FenceEvent::Message {
                                    from: node,
                                    message,
                                },
                            ),
                        );
                        order.push(Reverse((there, last)));
                        last += 1;
                    }
                }
                FenceAction::Complete { result, .. } => {
                    let all = result.expect("nothing fails").data.len();
                    assert_eq!(all, data * nodes as usize);
                    end = end.max(now);
                    released += 1;
                }
                FenceAction::Describe { .. }
                | FenceAction::Passed { .. }
                | FenceAction::Waits { .. } => {
                    panic!("it has no deadline")
                }
            }
        }
        busy[node.index()][0] = now;
    }
    assert_eq!(released, nodes);
    end
}
