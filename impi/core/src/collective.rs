//! Collectives as data: for each operation the steps of each process.
//!
//! The global phase, between the *masters* (the lowest rank of each client), is prescribed; the local phases are each
//! client's own affair and use a context of their own here. Barrier is the specification's (4.10); Bcast and Reduce are
//! LAM/MPI 7.1.4's; of the others the text has no algorithm and LAM none either: those are wireup's, in two variants
//! that the prose of the protocol's authors asks for: `long` moves data no more often than it must, the other takes few
//! messages one after the other.
//! Sends do not wait: a process goes on to its next step, and waits for its sends at the end.

mod exchanges;
mod reductions;
#[cfg(test)]
mod tests;
mod trees;

use crate::world::ImpiJob;

/// Tags. Source: LAM/MPI 7.1.4; the names are the specification's.
pub mod tags {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const BARRIER: i32 = 110;
    pub const BCAST: i32 = 120;
    pub const GATHER: i32 = 130;
    pub const SCATTER: i32 = 150;
    pub const ALLTOALL: i32 = 170;
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
            Self::Gather { .. } | Self::Scatter { .. } | Self::Allgather => size,
            Self::Alltoall => size * size,
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

    /// Returns the steps of a process; `long` is true if a process's data has at least `IMPI_C_COLL_XSIZE` bytes.
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
            Operation::Gather { root } if long => self.gather_directly(root, me),
            Operation::Gather { root } => self.gather_by_masters(root, me),
            Operation::Scatter { root } if long => self.scatter_directly(root, me),
            Operation::Scatter { root } => self.scatter_by_masters(root, me),
            Operation::Allgather if long => self.allgather_by_masters(me),
            Operation::Allgather => {
                let all: Vec<usize> = (0..self.size()).collect();
                let mut steps = self.gather_by_masters(0, me);
                steps.extend(self.bcast(0, &all, me));
                steps
            }
            Operation::Alltoall if long => self.alltoall_directly(me),
            Operation::Alltoall => self.alltoall_by_masters(me),
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
