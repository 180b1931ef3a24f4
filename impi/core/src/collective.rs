//! Collectives as data: for each operation the steps of each process.
//!
//! The global phase, between the *masters* (the lowest rank of each client), is prescribed; the local phases are each
//! client's own affair and use a context of their own here. Barrier is the specification's (4.10); Bcast and Reduce are
//! LAM/MPI 7.1.4's; of the others the text has no algorithm and LAM none either: those are wireup's, in two variants
//! that the prose of the protocol's authors asks for: `long` moves data no more often than it must, the other takes few
//! messages one after the other. Gatherv, Scatterv and Alltoallv have the `long` one only: a process does not know the
//! lengths of the other blocks, so all could not choose the same.
//! Sends do not wait: a process goes on to its next step, and waits for its sends at the end.

mod exchanges;
#[cfg(test)]
mod tests;

use crate::world::ImpiJob;

/// Tags. Source: LAM/MPI 7.1.4; the names are the specification's.
pub mod tags {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const BARRIER: i32 = 110;
    pub const BCAST: i32 = 120;
    pub const GATHER: i32 = 130;
    pub const GATHERV: i32 = 140;
    pub const SCATTER: i32 = 150;
    pub const SCATTERV: i32 = 160;
    pub const ALLTOALL: i32 = 170;
    pub const ALLTOALLV: i32 = 180;
    pub const REDUCE: i32 = 190;
    pub const SCAN: i32 = 200;
}

/// Destination of a message of a collective.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CollectiveChannel {
    /// The communicator's context for collectives: its own plus 1.
    Collective,
    /// The communicator's own context: where LAM sends the messages of Reduce.
    PointToPoint,
    /// Memory of one client.
    Local,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "MPI's names")]
pub enum Operation {
    Barrier,
    Bcast { root: usize },
    Reduce { root: usize, commutative: bool },
    Allreduce { commutative: bool },
    Scan,
    Gather { root: usize },
    Scatter { root: usize },
    Allgather,
    Alltoall,
    Gatherv { root: usize },
    Scatterv { root: usize },
    Allgatherv,
    Alltoallv,
}

/// Combination of a received block with the receiver's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockMerge {
    /// Replaces the own block.
    Replace,
    /// Computes `received op own`.
    Before,
}

/// A step of one process. Blocks are numbered: see [`Operation::blocks`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CollectiveStep {
    /// One message with these blocks, one behind the other.
    Send {
        /// Rank in the world.
        to: usize,
        tag: i32,
        channel: CollectiveChannel,
        /// Blocks in the message.
        blocks: Vec<usize>,
    },
    /// Receives the message of that sender.
    Receive {
        /// Rank in the world.
        from: usize,
        tag: i32,
        channel: CollectiveChannel,
        /// Blocks in the message.
        blocks: Vec<usize>,
        /// Combination of the message with the own blocks.
        join: BlockMerge,
    },
    /// A block becomes a copy of another.
    Copy {
        /// Index of the source block.
        from: usize,
        to: usize,
    },
    /// A block becomes `other op block`.
    Combine {
        /// Index of the other block.
        from: usize,
        to: usize,
    },
}

/// The clients of a world, and the values that select a variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// First rank and size of each client, without gaps.
    clients: Vec<(usize, usize)>,
    /// Number of masters up to which the linear form is used, inclusive. LAM compares the number of masters; the text
    /// of the specification has hosts.
    pub max_linear: usize,
    /// Context for the messages of Reduce.
    pub reduce: CollectiveChannel,
}

impl Operation {
    /// Returns the number of blocks of a process. A barrier has none. Operations with one value have two: 0 is the
    /// value and 1 is scratch. Otherwise block `r` is process `r`'s, and in an all-to-all exchange block `s * n + d`
    /// goes from `s` to `d`.
    pub fn blocks(self, size: usize) -> usize {
        match self {
            Self::Barrier => 0,
            Self::Bcast { .. } | Self::Reduce { .. } | Self::Allreduce { .. } | Self::Scan => 2,
            Self::Gather { .. }
            | Self::Gatherv { .. }
            | Self::Scatter { .. }
            | Self::Scatterv { .. }
            | Self::Allgather
            | Self::Allgatherv => size,
            Self::Alltoall | Self::Alltoallv => size * size,
        }
    }
}

impl Topology {
    /// Clients of these sizes.
    pub fn new(
        sizes: impl IntoIterator<Item = usize>,
        max_linear: usize,
        reduce: CollectiveChannel,
    ) -> Self {
        let mut first = 0;
        let clients = sizes.into_iter().map(|size| {
            first += size;
            (first - size, size)
        });
        Self {
            clients: clients.collect(),
            max_linear,
            reduce,
        }
    }

    /// Makes the clients of a world.
    pub fn from_job(world: &ImpiJob, reduce: CollectiveChannel) -> Self {
        let sizes = world.clients.iter().map(|client| client.size);
        Self::new(sizes, world.limits.max_linear as usize, reduce)
    }

    /// Returns the number of processes.
    pub fn size(&self) -> usize {
        self.clients.last().map_or(0, |(first, size)| first + size)
    }

    /// Returns the steps of a process; `long` is true if the data of any process has at least `IMPI_C_COLL_XSIZE` bytes.
    pub fn steps(&self, operation: Operation, long: bool, me: usize) -> Vec<CollectiveStep> {
        match operation {
            Operation::Barrier => self.barrier(me),
            Operation::Bcast { root } => self.bcast(root, &[0], me),
            Operation::Reduce { root, commutative } => self.reduce(root, commutative, me),
            Operation::Allreduce { commutative } => {
                let mut steps = self.reduce(0, commutative, me);
                steps.extend(self.bcast(0, &[0], me));
                steps
            }
            Operation::Scan if long => self.scan_chain(me),
            Operation::Scan => self.scan_by_clients(me),
            Operation::Gather { root } if long => self.gather_directly(root, tags::GATHER, me),
            Operation::Gather { root } => self.gather_by_masters(root, tags::GATHER, me),
            Operation::Gatherv { root } => self.gather_directly(root, tags::GATHERV, me),
            Operation::Scatter { root } if long => self.scatter_directly(root, tags::SCATTER, me),
            Operation::Scatter { root } => self.scatter_by_masters(root, me),
            Operation::Scatterv { root } => self.scatter_directly(root, tags::SCATTERV, me),
            Operation::Allgather => self.allgather(long, tags::GATHER, me),
            Operation::Allgatherv => self.allgather(long, tags::GATHERV, me),
            Operation::Alltoall if long => self.alltoall_directly(tags::ALLTOALL, me),
            Operation::Alltoall => self.alltoall_by_masters(me),
            Operation::Alltoallv => self.alltoall_directly(tags::ALLTOALLV, me),
        }
    }

    fn masters(&self) -> usize {
        self.clients.len()
    }

    fn master(&self, client: usize) -> usize {
        self.clients[client].0
    }

    fn client(&self, rank: usize) -> usize {
        self.clients
            .partition_point(|(first, size)| first + size <= rank)
    }

    fn members(&self, client: usize) -> std::ops::Range<usize> {
        let (first, size) = self.clients[client];
        first..first + size
    }

    fn is_linear(&self) -> bool {
        self.masters() <= self.max_linear
    }

    /// Returns the process that represents a client; the root represents its own.
    fn standing(&self, client: usize, root: usize) -> usize {
        if client == self.client(root) {
            root
        } else {
            self.master(client)
        }
    }
}

fn send(to: usize, tag: i32, channel: CollectiveChannel, blocks: &[usize]) -> CollectiveStep {
    CollectiveStep::Send {
        to,
        tag,
        channel,
        blocks: blocks.to_vec(),
    }
}

fn receive(
    from: usize,
    tag: i32,
    channel: CollectiveChannel,
    blocks: &[usize],
    join: BlockMerge,
) -> CollectiveStep {
    CollectiveStep::Receive {
        from,
        tag,
        channel,
        blocks: blocks.to_vec(),
        join,
    }
}

/// A process that stands for its client, and the clients whose data passes between it and the next one towards the root.
type Branch = (usize, Vec<usize>);

/// Neighbours of a client's master in the tree: it receives from the children in order, and then sends to the parent.
#[derive(Debug, Default)]
struct TreeNeighbours {
    children: Vec<Branch>,
    /// None for the root. The clients are those of the teller.
    parent: Option<Branch>,
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
    fn fan_in(&self, root: usize, client: usize) -> TreeNeighbours {
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

    fn barrier(&self, me: usize) -> Vec<CollectiveStep> {
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

    fn bcast(&self, root: usize, blocks: &[usize], me: usize) -> Vec<CollectiveStep> {
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

/// The value, and a second one.
const VALUE: &[usize] = &[0];
const OTHER: &[usize] = &[1];

impl Topology {
    fn reduce(&self, root: usize, commutative: bool, me: usize) -> Vec<CollectiveStep> {
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
    fn scan_chain(&self, me: usize) -> Vec<CollectiveStep> {
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
    fn scan_by_clients(&self, me: usize) -> Vec<CollectiveStep> {
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
