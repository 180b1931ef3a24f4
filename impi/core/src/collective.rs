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

use std::ops::Range;

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

    fn members(&self, client: usize) -> Range<usize> {
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

/// Messages of one process in a collective.
struct CollectiveMessages {
    me: usize,
    /// Ranks of the process's client.
    client: Range<usize>,
    tag: i32,
    /// Channel to processes of the same client.
    local: CollectiveChannel,
    /// Channel to processes of other clients.
    remote: CollectiveChannel,
}

impl CollectiveMessages {
    /// Returns the other processes of the client.
    fn other_members(&self) -> impl Iterator<Item = usize> {
        let others = self.client.clone();
        others.filter(move |other| *other != self.me)
    }

    fn channel(&self, peer: usize) -> CollectiveChannel {
        if self.client.contains(&peer) {
            self.local
        } else {
            self.remote
        }
    }

    fn send(&self, to: usize, blocks: &[usize]) -> CollectiveStep {
        CollectiveStep::Send {
            to,
            tag: self.tag,
            channel: self.channel(to),
            blocks: blocks.to_vec(),
        }
    }

    /// Receives blocks that replace the own ones.
    fn receive(&self, from: usize, blocks: &[usize]) -> CollectiveStep {
        CollectiveStep::Receive {
            from,
            tag: self.tag,
            channel: self.channel(from),
            blocks: blocks.to_vec(),
            join: BlockMerge::Replace,
        }
    }

    /// Receives a block and computes `received op own`.
    fn combine(&self, from: usize, block: usize) -> CollectiveStep {
        CollectiveStep::Receive {
            from,
            tag: self.tag,
            channel: self.channel(from),
            blocks: vec![block],
            join: BlockMerge::Before,
        }
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

impl Topology {
    fn messages(&self, me: usize, tag: i32) -> CollectiveMessages {
        CollectiveMessages {
            me,
            client: self.members(self.client(me)),
            tag,
            local: CollectiveChannel::Local,
            remote: CollectiveChannel::Collective,
        }
    }

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

    /// Returns the processes from which a client's master receives, and to which it then sends in order. None for the root.
    fn fan_out(&self, root: usize, client: usize) -> (Option<usize>, Vec<usize>) {
        let (count, root_client) = (self.masters(), self.client(root));
        if self.is_linear() {
            if client != root_client {
                return (Some(root), Vec::new());
            }
            let others = (0..count).filter(|other| *other != client);
            return (None, others.map(|other| self.master(other)).collect());
        }
        let rank = |number: usize| self.standing((number + root_client) % count, root);
        let number = (client + count - root_client) % count;
        let high_bit = number.checked_ilog2();
        let children = (high_bit.map_or(0, |high| high + 1)..cube_dimension(count))
            .map(|bit| number | 1 << bit)
            .filter(|child| *child < count);
        let parent = high_bit.map(|high| rank(number & !(1 << high)));
        (parent, children.map(rank).collect())
    }

    fn barrier(&self, me: usize) -> Vec<CollectiveStep> {
        let messages = self.messages(me, tags::BARRIER);
        let signal_in = |from| messages.receive(from, &[]);
        let signal_out = |to| messages.send(to, &[]);
        let client = self.client(me);
        let master = self.master(client);
        if me != master {
            return vec![signal_out(master), signal_in(master)];
        }
        let (parent, children) = self.fan_out(0, client);
        let mut arrivals = children.clone();
        if !self.is_linear() {
            arrivals.reverse();
        }
        let mut steps: Vec<CollectiveStep> = messages.other_members().map(signal_in).collect();
        steps.extend(arrivals.into_iter().map(signal_in));
        steps.extend(parent.map(signal_out));
        steps.extend(parent.map(signal_in));
        steps.extend(children.into_iter().map(signal_out));
        steps.extend(messages.other_members().map(signal_out));
        steps
    }

    fn bcast(&self, root: usize, blocks: &[usize], me: usize) -> Vec<CollectiveStep> {
        let messages = self.messages(me, tags::BCAST);
        let client = self.client(me);
        let standing = self.standing(client, root);
        if me != standing {
            return vec![messages.receive(standing, blocks)];
        }
        let (parent, children) = self.fan_out(root, client);
        let mut steps = Vec::new();
        steps.extend(parent.map(|peer| messages.receive(peer, blocks)));
        let receivers = children.into_iter().chain(messages.other_members());
        steps.extend(receivers.map(|peer| messages.send(peer, blocks)));
        steps
    }

    fn reduce(&self, root: usize, commutative: bool, me: usize) -> Vec<CollectiveStep> {
        if !commutative {
            return self.reduce_in_order(root, me);
        }
        let messages = CollectiveMessages {
            remote: self.reduce,
            ..self.messages(me, tags::REDUCE)
        };
        let client = self.client(me);
        let standing = self.standing(client, root);
        if me != standing {
            return vec![messages.send(standing, &[VALUE])];
        }
        let masters = self.fan_in(root, client);
        let children = masters.children.into_iter().map(|(child, _)| child);
        let senders = messages.other_members().chain(children);
        let mut steps: Vec<CollectiveStep> =
            senders.map(|peer| messages.combine(peer, VALUE)).collect();
        if let Some((parent, _)) = masters.parent {
            steps.push(messages.send(parent, &[VALUE]));
        }
        steps
    }

    /// Sends all blocks to the root, which combines from the last process to the first.
    fn reduce_in_order(&self, root: usize, me: usize) -> Vec<CollectiveStep> {
        let messages = CollectiveMessages {
            local: self.reduce,
            remote: self.reduce,
            ..self.messages(me, tags::REDUCE)
        };
        if me != root {
            return vec![messages.send(root, &[VALUE])];
        }
        let last = self.size() - 1;
        let own = |peer: usize| peer == root;
        let mut steps = Vec::new();
        steps.push(if own(last) {
            CollectiveStep::Copy { from: 0, to: 1 }
        } else {
            messages.receive(last, &[OTHER])
        });
        for peer in (0..last).rev() {
            steps.push(if own(peer) {
                CollectiveStep::Combine { from: 0, to: 1 }
            } else {
                messages.combine(peer, OTHER)
            });
        }
        steps.push(CollectiveStep::Copy { from: 1, to: 0 });
        steps
    }

    /// Combines along one chain over all processes.
    fn scan_chain(&self, me: usize) -> Vec<CollectiveStep> {
        let messages = self.messages(me, tags::SCAN);
        let mut steps = Vec::new();
        if me > 0 {
            steps.push(messages.combine(me - 1, VALUE));
        }
        if me + 1 < self.size() {
            steps.push(messages.send(me + 1, &[VALUE]));
        }
        steps
    }

    /// Combines along a chain in each client at once; then the combination before a client goes along the clients' last
    /// processes, each of which passes it to its own processes.
    fn scan_by_clients(&self, me: usize) -> Vec<CollectiveStep> {
        let messages = self.messages(me, tags::SCAN);
        let client = self.client(me);
        let last_member = |client: usize| self.members(client).end - 1;
        let last = last_member(client);
        let mut steps = Vec::new();
        if me > self.master(client) {
            steps.push(messages.combine(me - 1, VALUE));
        }
        if me < last {
            steps.push(messages.send(me + 1, &[VALUE]));
        }
        if client > 0 {
            if me < last {
                steps.push(messages.receive(last, &[OTHER]));
            } else {
                steps.push(messages.receive(last_member(client - 1), &[OTHER]));
            }
            steps.push(CollectiveStep::Combine { from: 1, to: 0 });
            if me == last {
                let others = messages.other_members();
                steps.extend(others.map(|other| messages.send(other, &[OTHER])));
            }
        }
        if me == last && client + 1 < self.masters() {
            steps.push(messages.send(last_member(client + 1), &[VALUE]));
        }
        steps
    }
}

/// Block of the value, and of a second one.
const VALUE: usize = 0;
const OTHER: usize = 1;
