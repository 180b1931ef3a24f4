//! The steps of collectives, executed.

use wireup_impi_core::collective::{BlockMerge, CollectiveChannel, CollectiveStep, Operation};
use wireup_impi_core::endpoint::{Envelope, MatchSpec, RequestId};

use super::{COLLECTIVE, ElementType, LOCAL, Operator, POINT, Peer, PeerError, RequestResult};

fn context(channel: CollectiveChannel) -> u64 {
    match channel {
        CollectiveChannel::Collective => COLLECTIVE,
        CollectiveChannel::PointToPoint => POINT,
        CollectiveChannel::Local => LOCAL,
    }
}

/// Size and type of a collective's blocks.
#[derive(Clone, Copy)]
struct Shape {
    element: ElementType,
    /// Bytes of each block.
    block: usize,
    operator: Option<Operator>,
}

impl Shape {
    fn combine(self, other: &[u8], own: &mut [u8]) {
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
        let shape = Shape {
            element: ElementType::Byte,
            block: 0,
            operator: None,
        };
        self.run(Operation::Barrier, shape, &mut []).map(drop)
    }

    /// The root's data replaces that of all.
    #[allow(
        missing_docs,
        clippy::missing_errors_doc,
        reason = "as for the barrier"
    )]
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
    #[allow(clippy::missing_errors_doc, reason = "as for the barrier")]
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
    #[allow(clippy::missing_errors_doc, reason = "as for the barrier")]
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
    #[allow(clippy::missing_errors_doc, reason = "as for the barrier")]
    pub fn scan(
        &self,
        data: &mut [u8],
        element: ElementType,
        operator: Operator,
    ) -> Result<(), PeerError> {
        self.with_value(Operation::Scan, element, Some(operator), data)
    }

    /// Gathers: at the root `all` gets the data of each process, in the order of ranks.
    #[allow(clippy::missing_errors_doc, reason = "as for the barrier")]
    pub fn gather(
        &self,
        own_data: &[u8],
        all: &mut [u8],
        element: ElementType,
        root: usize,
    ) -> Result<(), PeerError> {
        self.check_peer(root)?;
        let mut blocks = vec![Vec::new(); self.size()];
        blocks[self.rank] = own_data.to_vec();
        self.run(
            Operation::Gather { root },
            self.shape(element, own_data.len(), None)?,
            &mut blocks,
        )?;
        if self.rank == root {
            copy_out(&blocks, all)
        } else {
            Ok(())
        }
    }

    /// Scatters: each process gets its part of the root's `all`.
    #[allow(clippy::missing_errors_doc, reason = "as for the barrier")]
    pub fn scatter(
        &self,
        all: &[u8],
        own_data: &mut [u8],
        element: ElementType,
        root: usize,
    ) -> Result<(), PeerError> {
        self.check_peer(root)?;
        let mut blocks = vec![Vec::new(); self.size()];
        if self.rank == root {
            copy_in(all, own_data.len(), &mut blocks)?;
        }
        self.run(
            Operation::Scatter { root },
            self.shape(element, own_data.len(), None)?,
            &mut blocks,
        )?;
        own_data.copy_from_slice(&blocks[self.rank]);
        Ok(())
    }

    /// Gathers for all: `all` gets the data of each process, in the order of ranks.
    #[allow(clippy::missing_errors_doc, reason = "as for the barrier")]
    pub fn allgather(
        &self,
        own_data: &[u8],
        all: &mut [u8],
        element: ElementType,
    ) -> Result<(), PeerError> {
        let mut blocks = vec![Vec::new(); self.size()];
        blocks[self.rank] = own_data.to_vec();
        self.run(
            Operation::Allgather,
            self.shape(element, own_data.len(), None)?,
            &mut blocks,
        )?;
        copy_out(&blocks, all)
    }

    /// Exchanges parts: part `r` of `out` goes to process `r`; part `r` of `all` comes from it.
    #[allow(clippy::missing_errors_doc, reason = "as for the barrier")]
    pub fn alltoall(
        &self,
        out: &[u8],
        all: &mut [u8],
        element: ElementType,
    ) -> Result<(), PeerError> {
        let size = self.size();
        let block = out.len() / size;
        let mut blocks = vec![Vec::new(); size * size];
        copy_in(
            out,
            block,
            &mut blocks[self.rank * size..(self.rank + 1) * size],
        )?;
        self.run(
            Operation::Alltoall,
            self.shape(element, block, None)?,
            &mut blocks,
        )?;
        let mine: Vec<Vec<u8>> = (0..size)
            .map(|from| std::mem::take(&mut blocks[from * size + self.rank]))
            .collect();
        copy_out(&mine, all)
    }

    fn shape(
        &self,
        element: ElementType,
        block: usize,
        operator: Option<Operator>,
    ) -> Result<Shape, PeerError> {
        if !block.is_multiple_of(element.size()) {
            return Err(PeerError::Argument(format!(
                "{block} bytes are not a whole number of elements"
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
            block,
            operator,
        })
    }

    fn with_value(
        &self,
        operation: Operation,
        element: ElementType,
        operator: Option<Operator>,
        data: &mut [u8],
    ) -> Result<(), PeerError> {
        let shape = self.shape(element, data.len(), operator)?;
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
        let long = shape.block >= self.world.limits.crossover_size as usize;
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
                    let context = context(channel);
                    let envelope = Envelope {
                        destination: to,
                        tag,
                        context,
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
                    let wanted = MatchSpec {
                        source: Some(from),
                        tag: Some(tag),
                        context: context(channel),
                    };
                    let length = shape.block * received.len();
                    let request = self.receive_in(wanted, length, shape.element)?;
                    let RequestResult::Received(_, data) = self.wait(request)? else {
                        continue;
                    };
                    if data.len() != length {
                        let text = format!(
                            "process {from} sent {} bytes to a collective of {length}",
                            data.len()
                        );
                        return Err(PeerError::Argument(text));
                    }
                    for (at, block) in received.into_iter().enumerate() {
                        let part = &data[at * shape.block..(at + 1) * shape.block];
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

fn copy_in(all: &[u8], block: usize, blocks: &mut [Vec<u8>]) -> Result<(), PeerError> {
    if all.len() != block * blocks.len() {
        return Err(PeerError::Argument(format!(
            "{} bytes are not {} parts of {block} bytes",
            all.len(),
            blocks.len()
        )));
    }
    for (at, one) in blocks.iter_mut().enumerate() {
        *one = all[at * block..(at + 1) * block].to_vec();
    }
    Ok(())
}

fn copy_out(blocks: &[Vec<u8>], all: &mut [u8]) -> Result<(), PeerError> {
    let data = blocks.concat();
    if data.len() != all.len() {
        return Err(PeerError::Argument(format!(
            "the buffer has {} bytes, but {} arrived",
            all.len(),
            data.len()
        )));
    }
    all.copy_from_slice(&data);
    Ok(())
}
