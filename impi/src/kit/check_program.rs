//! The processes of the check program, without an MPI. `impi/kit/check.c` is the same program for the client under test.

use thiserror::Error;

use crate::peer::{ElementType, Operator, Peer, PeerError, RequestResult};

/// The program's text, for the user to compile.
pub const SOURCE: &str = include_str!("../../kit/check.c");

const INT: ElementType = ElementType::Int32;
const LENGTHS: [usize; 7] = [0, 1, 1000, 65_536, 65_537, 200_000, 1 << 20];
/// An integer whose bytes show their order.
const INTEGER: i32 = 0x1122_3344;
/// Integers of each process in gather and its kin: below and above the crossover point.
const COUNTS: [usize; 2] = [1, 300];

/// Reason for which a process failed.
#[derive(Debug, Error)]
pub enum ProgramError {
    /// Error of a call.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A call gave something else than it must.
    #[error("process {rank}: wrong result of {operation}")]
    Wrong {
        /// Rank in the world.
        rank: usize,
        operation: &'static str,
    },
}

/// Parts of the program that run; the same for all processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgramScope {
    /// Whether synchronous sends run.
    pub ssend: bool,
    /// Whether probe and cancel run.
    pub probe: bool,
    /// Whether gather, its kin and scan run.
    pub gather: bool,
}

/// Part of the program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the names of MPI")]
pub enum ProgramPart {
    /// Messages of all lengths.
    Messages,
    /// Messages that do not fit into the window.
    ManyMessages,
    SynchronousSend,
    Probe,
    Cancel,
    Barrier,
    Bcast,
    Reduce,
    Allreduce,
    Gather,
    Scatter,
    Allgather,
    Alltoall,
    Gatherv,
    Scatterv,
    Allgatherv,
    Alltoallv,
    Scan,
}

impl ProgramPart {
    /// All parts, in the order in which they end.
    pub const ALL: [Self; 18] = [
        Self::Messages,
        Self::ManyMessages,
        Self::SynchronousSend,
        Self::Probe,
        Self::Cancel,
        Self::Barrier,
        Self::Bcast,
        Self::Reduce,
        Self::Allreduce,
        Self::Gather,
        Self::Scatter,
        Self::Allgather,
        Self::Alltoall,
        Self::Gatherv,
        Self::Scatterv,
        Self::Allgatherv,
        Self::Alltoallv,
        Self::Scan,
    ];

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages of all lengths",
            Self::ManyMessages => "more messages than the window",
            Self::SynchronousSend => "synchronous send",
            Self::Probe => "probe",
            Self::Cancel => "cancel",
            Self::Barrier => "barrier",
            Self::Bcast => "bcast",
            Self::Reduce => "reduce",
            Self::Allreduce => "allreduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Allgather => "allgather",
            Self::Alltoall => "alltoall",
            Self::Gatherv => "gatherv",
            Self::Scatterv => "scatterv",
            Self::Allgatherv => "allgatherv",
            Self::Alltoallv => "alltoallv",
            Self::Scan => "scan",
        }
    }

    /// Whether the part runs.
    pub fn is_in(self, scope: ProgramScope) -> bool {
        match self {
            Self::SynchronousSend => scope.ssend,
            Self::Probe | Self::Cancel => scope.probe,
            Self::Gather
            | Self::Scatter
            | Self::Allgather
            | Self::Alltoall
            | Self::Gatherv
            | Self::Scatterv
            | Self::Allgatherv
            | Self::Alltoallv
            | Self::Scan => scope.gather,
            Self::Messages
            | Self::ManyMessages
            | Self::Barrier
            | Self::Bcast
            | Self::Reduce
            | Self::Allreduce => true,
        }
    }
}

/// Returns an integer whose bytes mean the same in both byte orders.
fn endian_neutral_bytes(value: usize) -> [u8; 4] {
    (i32::try_from(value).unwrap_or(0) * 0x0100_0001).to_ne_bytes()
}

/// Returns the integers of a process in gather and its kin.
fn block(process: usize, count: usize) -> Vec<u8> {
    endian_neutral_bytes(process % 100 + 1).repeat(count)
}

/// Returns the number of integers of a process where they differ; of each third process none.
fn part_count(process: usize, count: usize) -> usize {
    process % 3 * count
}

/// Returns the low byte of a number.
fn byte(value: usize) -> u8 {
    u8::try_from(value % 256).unwrap_or(0)
}

/// Runs it, and reports each part that passes.
///
/// # Errors
/// When a call fails, or gives another result than it must.
pub fn play(
    peer: Peer,
    scope: ProgramScope,
    mut passed: impl FnMut(ProgramPart),
) -> Result<(), ProgramError> {
    let (rank, size) = (peer.rank(), peer.size());
    let process = ProgramProcess {
        peer: &peer,
        rank,
        size,
        to: (rank + size / 2) % size,
        from: (rank + size - size / 2) % size,
    };
    for part in ProgramPart::ALL {
        if part.is_in(scope) {
            process.run(part)?;
            passed(part);
        }
    }
    peer.close()?;
    Ok(())
}

/// A process of the program and its partners, half the world away.
#[derive(Clone, Copy)]
struct ProgramProcess<'a> {
    peer: &'a Peer,
    rank: usize,
    size: usize,
    to: usize,
    from: usize,
}

impl ProgramProcess<'_> {
    fn run(self, part: ProgramPart) -> Result<(), ProgramError> {
        match part {
            ProgramPart::Messages => self.exchange_messages(),
            ProgramPart::ManyMessages => self.exchange_many_messages(),
            ProgramPart::SynchronousSend => {
                let send = (self.peer).start_send(&[0], ElementType::Byte, self.to, 0, true)?;
                self.receive(1, ElementType::Byte, 0)?;
                Ok(self.peer.wait(send).map(drop)?)
            }
            ProgramPart::Probe => self.probe(),
            ProgramPart::Cancel => self.cancel(),
            ProgramPart::Barrier => Ok(self.peer.barrier()?),
            ProgramPart::Bcast => self.for_ends(|root| {
                let mut value = endian_neutral_bytes(self.rank + 1);
                self.peer.bcast(&mut value, INT, root)?;
                self.ensure(value == endian_neutral_bytes(root + 1), "bcast")
            }),
            ProgramPart::Reduce => {
                let mut value = endian_neutral_bytes(1);
                let last = self.size - 1;
                self.peer.reduce(&mut value, INT, Operator::Sum, last)?;
                let holds = self.rank != last || value == endian_neutral_bytes(self.size);
                self.ensure(holds, "reduce")
            }
            ProgramPart::Allreduce => {
                let mut value = endian_neutral_bytes(1);
                self.peer.allreduce(&mut value, INT, Operator::Sum)?;
                self.ensure(value == endian_neutral_bytes(self.size), "allreduce")
            }
            ProgramPart::Gather => self.for_counts(|count| self.gather(count)),
            ProgramPart::Scatter => self.for_counts(|count| self.scatter(count)),
            ProgramPart::Allgather => self.for_counts(|count| {
                let mut all = vec![0; 4 * count * self.size];
                (self.peer).allgather(&block(self.rank, count), &mut all, INT)?;
                self.ensure(all == self.blocks(count, |process| process), "allgather")
            }),
            ProgramPart::Alltoall => self.for_counts(|count| {
                let out = self.blocks(count, |process| 2 * self.rank + process);
                let mut all = vec![0; out.len()];
                self.peer.alltoall(&out, &mut all, INT)?;
                let expected = self.blocks(count, |process| 2 * process + self.rank);
                self.ensure(all == expected, "alltoall")
            }),
            ProgramPart::Gatherv => self.for_counts(|count| self.gatherv(count)),
            ProgramPart::Scatterv => self.for_counts(|count| self.scatterv(count)),
            ProgramPart::Allgatherv => self.for_counts(|count| {
                let lengths = self.lengths(|process| part_count(process, count));
                let own = block(self.rank, part_count(self.rank, count));
                let mut all = vec![0; lengths.iter().sum()];
                self.peer.allgatherv(&own, &mut all, &lengths, INT)?;
                self.ensure(all == self.parts(count), "allgatherv")
            }),
            ProgramPart::Alltoallv => self.for_counts(|count| self.alltoallv(count)),
            ProgramPart::Scan => self.for_counts(|count| {
                let mut value = endian_neutral_bytes(1).repeat(count);
                self.peer.scan(&mut value, INT, Operator::Sum)?;
                let expected = endian_neutral_bytes(self.rank + 1).repeat(count);
                self.ensure(value == expected, "scan")
            }),
        }
    }

    fn ensure(self, holds: bool, operation: &'static str) -> Result<(), ProgramError> {
        let rank = self.rank;
        holds
            .then_some(())
            .ok_or(ProgramError::Wrong { rank, operation })
    }

    /// Repeats a collective with the first and the last process as root.
    fn for_ends(
        self,
        collective: impl Fn(usize) -> Result<(), ProgramError>,
    ) -> Result<(), ProgramError> {
        [0, self.size - 1].into_iter().try_for_each(collective)
    }

    /// Repeats a collective with few and with many integers.
    fn for_counts(
        self,
        collective: impl Fn(usize) -> Result<(), ProgramError>,
    ) -> Result<(), ProgramError> {
        COUNTS.into_iter().try_for_each(collective)
    }

    /// Returns a block for each process, with the integers that `value` gives it.
    fn blocks(self, count: usize, value: impl Fn(usize) -> usize) -> Vec<u8> {
        (0..self.size)
            .flat_map(|process| block(value(process), count))
            .collect()
    }

    /// Returns the bytes of each process with this number of integers.
    fn lengths(self, count: impl Fn(usize) -> usize) -> Vec<usize> {
        (0..self.size).map(|process| 4 * count(process)).collect()
    }

    /// Returns a part for each process, with its integers.
    fn parts(self, count: usize) -> Vec<u8> {
        (0..self.size)
            .flat_map(|process| block(process, part_count(process, count)))
            .collect()
    }

    fn receive(self, limit: usize, element: ElementType, tag: i32) -> Result<Vec<u8>, PeerError> {
        let request = (self.peer).start_receive(limit, element, Some(self.from), Some(tag))?;
        Ok(match self.peer.wait(request)? {
            RequestResult::Received(_, data) => data,
            _ => Vec::new(),
        })
    }

    fn exchange_messages(self) -> Result<(), ProgramError> {
        let first = (self.peer).start_send(&INTEGER.to_ne_bytes(), INT, self.to, 11, false)?;
        self.receive(4, INT, 11)?;
        self.peer.wait(first)?;
        for (step, length) in LENGTHS.into_iter().enumerate() {
            let data = vec![byte(self.rank + step); length];
            let send = (self.peer).start_send(&data, ElementType::Byte, self.to, 12, false)?;
            let got = self.receive(1 << 20, ElementType::Byte, 12)?;
            self.ensure(got == vec![byte(self.from + step); length], "a message")?;
            self.peer.wait(send)?;
        }
        Ok(())
    }

    fn exchange_many_messages(self) -> Result<(), ProgramError> {
        for value in 0..45 {
            let data = endian_neutral_bytes(value);
            let send = self.peer.start_send(&data, INT, self.to, 13, false)?;
            self.peer.wait(send)?;
        }
        for value in 0..45 {
            let holds = self.receive(4, INT, 13)? == endian_neutral_bytes(value);
            self.ensure(holds, "the order of messages")?;
        }
        Ok(())
    }

    fn probe(self) -> Result<(), ProgramError> {
        let send = (self.peer).start_send(b"five\0", ElementType::Byte, self.to, 14, false)?;
        let source = Some(self.from);
        for (tag, wait) in [(Some(14), true), (None, false)] {
            let status = self.peer.probe(source, tag, wait)?;
            let holds = status.is_some_and(|status| {
                (status.source, status.tag, status.length) == (self.from, 14, 5)
            });
            self.ensure(holds, "probe")?;
        }
        let got = self.receive(5, ElementType::Byte, 14)?;
        self.ensure(got == b"five\0", "a message after probe")?;
        let none = self.peer.probe(source, Some(14), false)?.is_none();
        self.ensure(none, "probe without a message")?;
        self.peer.wait(send)?;
        Ok(())
    }

    /// Cancels a send and a receive. A send may be cancelled or not: the receiver learns which.
    fn cancel(self) -> Result<(), ProgramError> {
        let send = (self.peer).start_send(&[0], ElementType::Byte, self.to, 15, false)?;
        // Otherwise the message could still be in this process, and nothing would be on the wire.
        self.peer.barrier()?;
        self.peer.cancel(send)?;
        let cancelled = self.peer.wait(send)? == RequestResult::Cancelled;
        let flag = [u8::from(cancelled)];
        let send = (self.peer).start_send(&flag, ElementType::Byte, self.to, 16, false)?;
        let cancelled = self.receive(1, ElementType::Byte, 16)? == [1];
        self.peer.wait(send)?;
        let found = self.peer.probe(Some(self.from), Some(15), false)?.is_some();
        self.ensure(found != cancelled, "cancel of a send")?;
        if found {
            self.receive(1, ElementType::Byte, 15)?;
        }
        let receive = (self.peer).start_receive(1, ElementType::Byte, Some(self.from), Some(15))?;
        self.peer.cancel(receive)?;
        let cancelled = self.peer.wait(receive)? == RequestResult::Cancelled;
        self.ensure(cancelled, "cancel of a receive")
    }

    fn gather(self, count: usize) -> Result<(), ProgramError> {
        self.for_ends(|root| {
            let mut all = vec![0; 4 * count * self.size];
            (self.peer).gather(&block(self.rank, count), &mut all, INT, root)?;
            let holds = self.rank != root || all == self.blocks(count, |process| process);
            self.ensure(holds, "gather")
        })
    }

    fn scatter(self, count: usize) -> Result<(), ProgramError> {
        self.for_ends(|root| {
            let out = self.blocks(count, |process| root + process);
            let mut own = vec![0; 4 * count];
            self.peer.scatter(&out, &mut own, INT, root)?;
            self.ensure(own == block(root + self.rank, count), "scatter")
        })
    }
    fn gatherv(self, count: usize) -> Result<(), ProgramError> {
        self.for_ends(|root| {
            let lengths = self.lengths(|process| part_count(process, count));
            let own = block(self.rank, part_count(self.rank, count));
            let mut all = vec![0; lengths.iter().sum()];
            self.peer.gatherv(&own, &mut all, &lengths, INT, root)?;
            let holds = self.rank != root || all == self.parts(count);
            self.ensure(holds, "gatherv")
        })
    }

    fn scatterv(self, count: usize) -> Result<(), ProgramError> {
        self.for_ends(|root| {
            let lengths = self.lengths(|process| part_count(process, count));
            let mut own = vec![0; lengths[self.rank]];
            (self.peer).scatterv(&self.parts(count), &lengths, &mut own, INT, root)?;
            let expected = block(self.rank, part_count(self.rank, count));
            self.ensure(own == expected, "scatterv")
        })
    }

    /// Exchanges as many integers as the sum of the two ranks has; both know it.
    fn alltoallv(self, count: usize) -> Result<(), ProgramError> {
        let lengths = self.lengths(|process| part_count(self.rank + process, count));
        let blocks = |value: &dyn Fn(usize) -> usize| -> Vec<u8> {
            (0..self.size)
                .flat_map(|process| block(value(process), part_count(self.rank + process, count)))
                .collect()
        };
        let out = blocks(&|process| 2 * self.rank + process);
        let mut all = vec![0; out.len()];
        (self.peer).alltoallv(&out, &lengths, &mut all, &lengths, INT)?;
        let expected = blocks(&|process| 2 * process + self.rank);
        self.ensure(all == expected, "alltoallv")
    }
}
