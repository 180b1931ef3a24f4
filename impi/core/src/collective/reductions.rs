//! Reduce and Scan.

use super::{BlockMerge, CollectiveChannel, CollectiveStep, Topology, receive, send, tags};

/// The value, and a second one.
const VALUE: &[usize] = &[0];
const OTHER: &[usize] = &[1];

impl Topology {
    pub(super) fn reduce(&self, root: usize, commutative: bool, me: usize) -> Vec<CollectiveStep> {
        if !commutative {
            return self.reduce_in_order(root, me);
        }
        let client = self.client(me);
        let standing = self.standing(client, root);
        if me != standing {
            return vec![send(
                standing,
                tags::REDUCE,
                CollectiveChannel::Local,
                VALUE,
            )];
        }
        let others = self.members(client).filter(|other| *other != me);
        let local = |other| {
            receive(
                other,
                tags::REDUCE,
                CollectiveChannel::Local,
                VALUE,
                BlockMerge::Before,
            )
        };
        let mut steps: Vec<CollectiveStep> = others.map(local).collect();
        let from = |peer| receive(peer, tags::REDUCE, self.reduce, VALUE, BlockMerge::Before);
        let to = |peer| send(peer, tags::REDUCE, self.reduce, VALUE);
        let masters = self.fan_in(root, client);
        steps.extend(masters.children.into_iter().map(|(child, _)| from(child)));
        steps.extend(masters.parent.map(|(parent, _)| to(parent)));
        steps
    }

    /// Sends all blocks to the root, which combines from the last process to the first.
    fn reduce_in_order(&self, root: usize, me: usize) -> Vec<CollectiveStep> {
        if me != root {
            return vec![send(root, tags::REDUCE, self.reduce, VALUE)];
        }
        let last = self.size() - 1;
        let from = |peer, join| receive(peer, tags::REDUCE, self.reduce, OTHER, join);
        let own = |peer: usize| peer == root;
        let mut steps = Vec::new();
        steps.push(if own(last) {
            CollectiveStep::Copy { from: 0, to: 1 }
        } else {
            from(last, BlockMerge::Replace)
        });
        for peer in (0..last).rev() {
            steps.push(if own(peer) {
                CollectiveStep::Combine { from: 0, to: 1 }
            } else {
                from(peer, BlockMerge::Before)
            });
        }
        steps.push(CollectiveStep::Copy { from: 1, to: 0 });
        steps
    }

    /// Combines along one chain over all processes.
    pub(super) fn scan_chain(&self, me: usize) -> Vec<CollectiveStep> {
        let channel = |one, other| {
            if self.client(one) == self.client(other) {
                CollectiveChannel::Local
            } else {
                CollectiveChannel::Collective
            }
        };
        let mut steps = Vec::new();
        if me > 0 {
            steps.push(receive(
                me - 1,
                tags::SCAN,
                channel(me - 1, me),
                VALUE,
                BlockMerge::Before,
            ));
        }
        if me + 1 < self.size() {
            steps.push(send(me + 1, tags::SCAN, channel(me, me + 1), VALUE));
        }
        steps
    }

    /// Combines along a chain in each client at once; then the combination before a client goes along the clients' last
    /// processes, each of which passes it to its own processes.
    pub(super) fn scan_by_clients(&self, me: usize) -> Vec<CollectiveStep> {
        let client = self.client(me);
        let members = self.members(client);
        let last = members.end - 1;
        let mut steps = Vec::new();
        if me > members.start {
            steps.push(receive(
                me - 1,
                tags::SCAN,
                CollectiveChannel::Local,
                VALUE,
                BlockMerge::Before,
            ));
        }
        if me < last {
            steps.push(send(me + 1, tags::SCAN, CollectiveChannel::Local, VALUE));
        }
        if client > 0 {
            let before = self.members(client - 1).end - 1;
            if me == last {
                steps.push(receive(
                    before,
                    tags::SCAN,
                    CollectiveChannel::Collective,
                    OTHER,
                    BlockMerge::Replace,
                ));
                steps.push(CollectiveStep::Combine { from: 1, to: 0 });
                let others = members.start..last;
                steps.extend(
                    others.map(|other| send(other, tags::SCAN, CollectiveChannel::Local, OTHER)),
                );
            } else {
                steps.push(receive(
                    last,
                    tags::SCAN,
                    CollectiveChannel::Local,
                    OTHER,
                    BlockMerge::Replace,
                ));
                steps.push(CollectiveStep::Combine { from: 1, to: 0 });
            }
        }
        if me == last && client + 1 < self.masters() {
            let next = self.members(client + 1).end - 1;
            steps.push(send(next, tags::SCAN, CollectiveChannel::Collective, VALUE));
        }
        steps
    }
}
