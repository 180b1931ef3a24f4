//! Barrier, Bcast, and the way in to a root: linear up to a number of masters, a binomial tree beyond.

use super::{BlockMerge, CollectiveChannel, CollectiveStep, Topology, receive, send, tags};

/// A process that stands for its client, and the clients whose data passes between it and the next one towards the root.
pub(super) type Branch = (usize, Vec<usize>);

/// Neighbours of a client's master in the tree: it receives from the children in order, and then sends to the parent.
#[derive(Debug, Default)]
pub(super) struct TreeNeighbours {
    pub(super) children: Vec<Branch>,
    /// None for the root. The clients are those of the teller.
    pub(super) parent: Option<Branch>,
}

/// Returns the least number of dimensions of a cube with `count` corners.
fn cube_dimension(count: usize) -> u32 {
    count.next_power_of_two().trailing_zeros()
}

/// Returns the highest set bit, if there is one.
fn high_bit(value: usize) -> Option<u32> {
    value.checked_ilog2()
}

impl Topology {
    pub(super) fn fan_in(&self, root: usize, client: usize) -> TreeNeighbours {
        let (count, root_client) = (self.masters(), self.client(root));
        let mut all = TreeNeighbours::default();
        if self.is_linear() {
            if client == root_client {
                let others = (0..count).filter(|other| *other != client);
                all.children = others
                    .map(|other| (self.master(other), vec![other]))
                    .collect();
            } else {
                all.parent = Some((root, vec![client]));
            }
            return all;
        }
        // Virtual numbers: the root's client is 0.
        let real = |number: usize| (number + root_client) % count;
        let rank = |number: usize| self.standing(real(number), root);
        let number = (client + count - root_client) % count;
        let below = |number: usize, mask: usize| {
            let numbers = number..(number + mask).min(count);
            numbers.map(real).collect::<Vec<_>>()
        };
        for mask in (0..cube_dimension(count)).map(|bit| 1 << bit) {
            if number & mask != 0 {
                all.parent = Some((rank(number & !mask), below(number, mask)));
                break;
            }
            let child = number | mask;
            if child < count {
                all.children.push((rank(child), below(child, mask)));
            }
        }
        all
    }

    pub(super) fn barrier(&self, me: usize) -> Vec<CollectiveStep> {
        let client = self.client(me);
        let master = self.master(client);
        let signal_in = |from| {
            receive(
                from,
                tags::BARRIER,
                CollectiveChannel::Local,
                &[],
                BlockMerge::Replace,
            )
        };
        let signal_out = |to| send(to, tags::BARRIER, CollectiveChannel::Local, &[]);
        if me != master {
            return vec![signal_out(master), signal_in(master)];
        }
        let others = || self.members(client).skip(1);
        let mut steps: Vec<CollectiveStep> = others().map(signal_in).collect();
        self.barrier_of_masters(client, &mut steps);
        steps.extend(others().map(signal_out));
        steps
    }

    fn barrier_of_masters(&self, me: usize, steps: &mut Vec<CollectiveStep>) {
        let count = self.masters();
        let rank = |master| self.master(master);
        let from = |master| {
            receive(
                rank(master),
                tags::BARRIER,
                CollectiveChannel::Collective,
                &[],
                BlockMerge::Replace,
            )
        };
        let to = |master| {
            send(
                rank(master),
                tags::BARRIER,
                CollectiveChannel::Collective,
                &[],
            )
        };
        if self.is_linear() {
            if me == 0 {
                steps.extend((1..count).map(from));
                steps.extend((1..count).map(to));
            } else {
                steps.extend([to(0), from(0)]);
            }
            return;
        }
        let high = high_bit(me);
        let first = high.map_or(0, |high| high + 1);
        let children = first..cube_dimension(count);
        let peers = |bit: u32| Some(me | 1 << bit).filter(|peer| *peer < count);
        steps.extend(children.clone().rev().filter_map(peers).map(from));
        if let Some(high) = high {
            let parent = me & !(1 << high);
            steps.extend([to(parent), from(parent)]);
        }
        steps.extend(children.filter_map(peers).map(to));
    }

    pub(super) fn bcast(&self, root: usize, blocks: &[usize], me: usize) -> Vec<CollectiveStep> {
        let client = self.client(me);
        let standing = self.standing(client, root);
        if me != standing {
            return vec![receive(
                standing,
                tags::BCAST,
                CollectiveChannel::Local,
                blocks,
                BlockMerge::Replace,
            )];
        }
        let mut steps = Vec::new();
        let from = |peer| {
            receive(
                peer,
                tags::BCAST,
                CollectiveChannel::Collective,
                blocks,
                BlockMerge::Replace,
            )
        };
        let to = |peer| send(peer, tags::BCAST, CollectiveChannel::Collective, blocks);
        let count = self.masters();
        let root_client = self.client(root);
        if self.is_linear() {
            if me == root {
                let others = (0..count).filter(|other| *other != root_client);
                steps.extend(others.map(|other| to(self.master(other))));
            } else {
                steps.push(from(root));
            }
        } else {
            let number = (client + count - root_client) % count;
            let rank = |number: usize| self.standing((number + root_client) % count, root);
            let high = high_bit(number);
            if let Some(high) = high {
                steps.push(from(rank(number & !(1 << high))));
            }
            let children = high.map_or(0, |high| high + 1)..cube_dimension(count);
            let children = children
                .map(|bit| number | 1 << bit)
                .filter(|child| *child < count);
            steps.extend(children.map(|child| to(rank(child))));
        }
        let others = self.members(client).filter(|other| *other != me);
        steps
            .extend(others.map(|other| send(other, tags::BCAST, CollectiveChannel::Local, blocks)));
        steps
    }
}
