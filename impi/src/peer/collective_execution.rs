//! The steps of collectives, executed.

#![allow(
    clippy::missing_errors_doc,
    reason = "all collectives fail as the barrier does"
)]

use wireup_impi_core::collective::{BlockMerge, CollectiveChannel, CollectiveStep, Operation};
use wireup_impi_core::endpoint::{Completion, Envelope, MatchSpec, RequestId};

use super::{COLLECTIVE, ElementType, LOCAL, Operator, POINT, Peer, PeerError};

fn context(channel: CollectiveChannel) -> u64 {
    match channel {
        CollectiveChannel::Collective => COLLECTIVE,
        CollectiveChannel::PointToPoint => POINT,
        CollectiveChannel::Local => LOCAL,
    }
}

/// Sizes and type of a collective's blocks.
struct Shape {
    element: ElementType,
    /// Bytes of each block; 0 for those that this process neither has nor gets.
    lengths: Vec<usize>,
    operator: Option<Operator>,
}

impl Shape {
    fn combine(&self, other: &[u8], own: &mut [u8]) {
        if let Some(operator) = self.operator {
            operator.apply(self.element, other, own);
        }
    }
}

impl Peer {
    /// Returns when all processes of the world have called it.
    ///
    /// # Errors
    /// If the job has failed. The same holds for all collectives.
    pub fn barrier(&self) -> Result<(), PeerError> {
        let shape = shape(ElementType::Byte, Vec::new(), None)?;
        self.run(Operation::Barrier, shape, &mut [])
    }

    /// The root's data replaces that of all.
    pub fn bcast(
        &self,
        data: &mut [u8],
        element: ElementType,
        root: usize,
    ) -> Result<(), PeerError> {
        self.check_peer(root)?;
        self.with_value(Operation::Bcast { root }, element, None, data)
    }

    /// Reduces: at the root `data` becomes the combination of all.
    pub fn reduce(
        &self,
        data: &mut [u8],
        element: ElementType,
        operator: Operator,
        root: usize,
    ) -> Result<(), PeerError> {
        self.check_peer(root)?;
        let operation = Operation::Reduce {
            root,
            commutative: true,
        };
        self.with_value(operation, element, Some(operator), data)
    }

    /// Reduces for all: `data` becomes the combination of all.
    pub fn allreduce(
        &self,
        data: &mut [u8],
        element: ElementType,
        operator: Operator,
    ) -> Result<(), PeerError> {
        self.with_value(
            Operation::Allreduce { commutative: true },
            element,
            Some(operator),
            data,
        )
    }

    /// Scans: `data` becomes the combination of all up to this process.
    pub fn scan(
        &self,
        data: &mut [u8],
        element: ElementType,
        operator: Operator,
    ) -> Result<(), PeerError> {
        self.with_value(Operation::Scan, element, Some(operator), data)
    }

    /// Gathers: at the root `all` gets the data of each process, in the order of ranks.
    pub fn gather(
        &self,
        own_data: &[u8],
        all: &mut [u8],
        element: ElementType,
        root: usize,
    ) -> Result<(), PeerError> {
        let lengths = vec![own_data.len(); self.size()];
        self.exchange_blocks(Operation::Gather { root }, own_data, all, lengths, element)
    }

    /// Gathers data of different lengths, which only the root has to know: `lengths` has the bytes of each process.
    pub fn gatherv(
        &self,
        own_data: &[u8],
        all: &mut [u8],
        lengths: &[usize],
        element: ElementType,
        root: usize,
    ) -> Result<(), PeerError> {
        let lengths = self.lengths_at_root(lengths, own_data.len(), root)?;
        self.exchange_blocks(Operation::Gatherv { root }, own_data, all, lengths, element)
    }

    /// Scatters: each process gets its part of the root's `all`.
    pub fn scatter(
        &self,
        all: &[u8],
        own_data: &mut [u8],
        element: ElementType,
        root: usize,
    ) -> Result<(), PeerError> {
        let lengths = vec![own_data.len(); self.size()];
        self.exchange_blocks(Operation::Scatter { root }, all, own_data, lengths, element)
    }

    /// Scatters parts of different lengths, which only the root has to know: `lengths` has the bytes of each process.
    pub fn scatterv(
        &self,
        all: &[u8],
        lengths: &[usize],
        own_data: &mut [u8],
        element: ElementType,
        root: usize,
    ) -> Result<(), PeerError> {
        let lengths = self.lengths_at_root(lengths, own_data.len(), root)?;
        self.exchange_blocks(
            Operation::Scatterv { root },
            all,
            own_data,
            lengths,
            element,
        )
    }

    /// Gathers for all: `all` gets the data of each process, in the order of ranks.
    pub fn allgather(
        &self,
        own_data: &[u8],
        all: &mut [u8],
        element: ElementType,
    ) -> Result<(), PeerError> {
        let lengths = vec![own_data.len(); self.size()];
        self.exchange_blocks(Operation::Allgather, own_data, all, lengths, element)
    }

    /// Gathers data of different lengths for all: `lengths` has the bytes of each process.
    pub fn allgatherv(
        &self,
        own_data: &[u8],
        all: &mut [u8],
        lengths: &[usize],
        element: ElementType,
    ) -> Result<(), PeerError> {
        let lengths = self.checked_lengths(lengths, own_data.len())?;
        self.exchange_blocks(Operation::Allgatherv, own_data, all, lengths, element)
    }

    /// Exchanges parts: part `r` of `out` goes to process `r`; part `r` of `all` comes from it.
    pub fn alltoall(
        &self,
        out: &[u8],
        all: &mut [u8],
        element: ElementType,
    ) -> Result<(), PeerError> {
        let size = self.size();
        let part = out.len() / size;
        let lengths = vec![part; size * size];
        self.exchange_blocks(Operation::Alltoall, out, all, lengths, element)
    }

    /// Exchanges parts of different lengths: `out_lengths` has the bytes for each process, `all_lengths` those from each.
    pub fn alltoallv(
        &self,
        out: &[u8],
        out_lengths: &[usize],
        all: &mut [u8],
        all_lengths: &[usize],
        element: ElementType,
    ) -> Result<(), PeerError> {
        let (rank, size) = (self.rank, self.size());
        let for_itself = out_lengths.get(rank).copied().unwrap_or(0);
        let from_each = self.checked_lengths(all_lengths, for_itself)?;
        let to_each = self.checked_lengths(out_lengths, for_itself)?;
        let mut lengths = vec![0; size * size];
        for (other, (to, from)) in to_each.into_iter().zip(from_each).enumerate() {
            lengths[rank * size + other] = to;
            lengths[other * size + rank] = from;
        }
        self.exchange_blocks(Operation::Alltoallv, out, all, lengths, element)
    }

    /// Runs a collective with blocks: those of this process are in `input`, and those that it gets go to `output`.
    fn exchange_blocks(
        &self,
        operation: Operation,
        input: &[u8],
        output: &mut [u8],
        lengths: Vec<usize>,
        element: ElementType,
    ) -> Result<(), PeerError> {
        let (rank, size) = (self.rank, self.size());
        let all = || (0..size).collect::<Vec<_>>();
        let all_at = |root: usize| if rank == root { all() } else { Vec::new() };
        let (sent, received) = match operation {
            Operation::Gather { root } | Operation::Gatherv { root } => {
                self.check_peer(root)?;
                (vec![rank], all_at(root))
            }
            Operation::Scatter { root } | Operation::Scatterv { root } => {
                self.check_peer(root)?;
                (all_at(root), vec![rank])
            }
            Operation::Alltoall | Operation::Alltoallv => {
                let to_each = rank * size..(rank + 1) * size;
                let from_each = (0..size).map(|from| from * size + rank);
                (to_each.collect(), from_each.collect())
            }
            _ => (vec![rank], all()),
        };
        let mut blocks = vec![Vec::new(); operation.blocks(size)];
        let sum: usize = sent.iter().map(|block| lengths[*block]).sum();
        if !sent.is_empty() && input.len() != sum {
            return Err(PeerError::Argument(format!(
                "{} bytes are not {} parts of {sum} bytes together",
                input.len(),
                sent.len()
            )));
        }
        let mut rest = input;
        for block in sent {
            let (part, next) = rest.split_at(lengths[block]);
            blocks[block] = part.to_vec();
            rest = next;
        }
        self.run(operation, shape(element, lengths, None)?, &mut blocks)?;
        if received.is_empty() {
            return Ok(());
        }
        let received = received.into_iter();
        let data: Vec<u8> = received
            .flat_map(|block| std::mem::take(&mut blocks[block]))
            .collect();
        if data.len() != output.len() {
            return Err(PeerError::Argument(format!(
                "the buffer has {} bytes, but {} arrived",
                output.len(),
                data.len()
            )));
        }
        output.copy_from_slice(&data);
        Ok(())
    }

    /// Returns the bytes of each process, of which the own must be these.
    fn checked_lengths(
        &self,
        lengths: &[usize],
        own_length: usize,
    ) -> Result<Vec<usize>, PeerError> {
        if lengths.len() != self.size() || lengths[self.rank] != own_length {
            return Err(PeerError::Argument(format!(
                "invalid lengths {lengths:?}: give one for each of {} processes, and {own_length} for process {}",
                self.size(),
                self.rank
            )));
        }
        Ok(lengths.to_vec())
    }

    /// Does the same where only the root uses `lengths`.
    fn lengths_at_root(
        &self,
        lengths: &[usize],
        own_length: usize,
        root: usize,
    ) -> Result<Vec<usize>, PeerError> {
        if self.rank == root {
            return self.checked_lengths(lengths, own_length);
        }
        let mut lengths = vec![0; self.size()];
        lengths[self.rank] = own_length;
        Ok(lengths)
    }

    fn with_value(
        &self,
        operation: Operation,
        element: ElementType,
        operator: Option<Operator>,
        data: &mut [u8],
    ) -> Result<(), PeerError> {
        let shape = shape(element, vec![data.len(); 2], operator)?;
        let mut blocks = [data.to_vec(), Vec::new()];
        self.run(operation, shape, &mut blocks)?;
        data.copy_from_slice(&blocks[0]);
        Ok(())
    }

    fn run(
        &self,
        operation: Operation,
        shape: Shape,
        blocks: &mut [Vec<u8>],
    ) -> Result<(), PeerError> {
        let longest = shape.lengths.iter().max().copied().unwrap_or(0);
        let long = longest >= self.world.limits.crossover_size as usize;
        let mut sends: Vec<RequestId> = Vec::new();
        for step in self.topology.steps(operation, long, self.rank) {
            match step {
                CollectiveStep::Send {
                    to,
                    tag,
                    channel,
                    blocks: sent,
                } => {
                    let data: Vec<u8> = sent
                        .iter()
                        .flat_map(|block| &blocks[*block])
                        .copied()
                        .collect();
                    let envelope = Envelope {
                        destination: to,
                        tag,
                        context: context(channel),
                        synchronous: false,
                    };
                    sends.push(self.send_in(envelope, &data, shape.element)?);
                }
                CollectiveStep::Receive {
                    from,
                    tag,
                    channel,
                    blocks: received,
                    join,
                } => {
                    let match_spec = MatchSpec {
                        source: Some(from),
                        tag: Some(tag),
                        context: context(channel),
                    };
                    let length = received.iter().map(|block| shape.lengths[*block]).sum();
                    let request = self.receive_in(match_spec, length, shape.element)?;
                    let Completion::Received(_, data) = self.wait(request)? else {
                        continue;
                    };
                    if data.len() != length {
                        let text = format!(
                            "process {from} sent {} bytes to a collective of {length}",
                            data.len()
                        );
                        return Err(PeerError::Argument(text));
                    }
                    let mut rest = &data[..];
                    for block in received {
                        let (part, next) = rest.split_at(shape.lengths[block]);
                        rest = next;
                        match join {
                            BlockMerge::Replace => blocks[block] = part.to_vec(),
                            BlockMerge::Before => shape.combine(part, &mut blocks[block]),
                        }
                    }
                }
                CollectiveStep::Copy { from, to } => blocks[to] = blocks[from].clone(),
                CollectiveStep::Combine { from, to } => {
                    let other = blocks[from].clone();
                    shape.combine(&other, &mut blocks[to]);
                }
            }
        }
        for request in sends {
            self.wait(request)?;
        }
        Ok(())
    }
}

fn shape(
    element: ElementType,
    lengths: Vec<usize>,
    operator: Option<Operator>,
) -> Result<Shape, PeerError> {
    if let Some(bytes) = lengths
        .iter()
        .find(|bytes| !bytes.is_multiple_of(element.size()))
    {
        return Err(PeerError::Argument(format!(
            "{bytes} bytes are not a whole number of elements"
        )));
    }
    if let Some(operator) = operator
        && !operator.takes(element)
    {
        return Err(PeerError::Argument(format!(
            "{operator:?} is not defined for {element:?}"
        )));
    }
    Ok(Shape {
        element,
        lengths,
        operator,
    })
}
