//! The processes of the check program, without an MPI. `impi/kit/check.c` is the same program for the client under test.

use thiserror::Error;
use wireup_impi_core::endpoint::Completion;

use crate::peer::{ElementType, Operator, Peer, PeerError};

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

/// Function of each process in a part of the program.
type PartFn = fn(ProgramProcess<'_>) -> Result<(), ProgramError>;

/// Part of the program: its name in reports, whether it runs, and its function.
type ProgramPart = (&'static str, fn(ProgramScope) -> bool, PartFn);

/// The parts of the program, in the order in which they end.
pub(super) const PARTS: [ProgramPart; 18] = [
    ("messages of all lengths", |_| true, exchange_messages),
    ("more messages than the window", |_| true, exchange_many),
    ("synchronous send", |scope| scope.ssend, send_synchronously),
    ("probe", |scope| scope.probe, probe),
    ("cancel", |scope| scope.probe, cancel),
    ("barrier", |_| true, |me| Ok(me.peer.barrier()?)),
    ("bcast", |_| true, bcast),
    ("reduce", |_| true, reduce),
    ("allreduce", |_| true, allreduce),
    ("gather", |scope| scope.gather, gather),
    ("scatter", |scope| scope.gather, scatter),
    ("allgather", |scope| scope.gather, allgather),
    ("alltoall", |scope| scope.gather, alltoall),
    ("gatherv", |scope| scope.gather, gatherv),
    ("scatterv", |scope| scope.gather, scatterv),
    ("allgatherv", |scope| scope.gather, allgatherv),
    ("alltoallv", |scope| scope.gather, alltoallv),
    ("scan", |scope| scope.gather, scan),
];

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

/// Runs it, and reports each part that passes, by its name.
///
/// # Errors
/// When a call fails, or gives another result than it must.
pub fn play(
    peer: Peer,
    scope: ProgramScope,
    mut passed: impl FnMut(&'static str),
) -> Result<(), ProgramError> {
    let (rank, size) = (peer.rank(), peer.size());
    let process = ProgramProcess {
        peer: &peer,
        rank,
        size,
        to: (rank + size / 2) % size,
        from: (rank + size - size / 2) % size,
    };
    for (name, is_in, run) in PARTS {
        if is_in(scope) {
            run(process)?;
            passed(name);
        }
    }
    peer.close()?;
    Ok(())
}

/// A process of the program and its partners, half the world away.
#[derive(Clone, Copy)]
pub(super) struct ProgramProcess<'a> {
    peer: &'a Peer,
    rank: usize,
    size: usize,
    to: usize,
    from: usize,
}

impl ProgramProcess<'_> {
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

    /// Returns a block for each process, with the number and the value of its integers.
    fn blocks(self, count: impl Fn(usize) -> usize, value: impl Fn(usize) -> usize) -> Vec<u8> {
        (0..self.size)
            .flat_map(|process| block(value(process), count(process)))
            .collect()
    }

    /// Returns the bytes of each process with this number of integers.
    fn lengths(self, count: impl Fn(usize) -> usize) -> Vec<usize> {
        (0..self.size).map(|process| 4 * count(process)).collect()
    }

    /// Returns a part for each process, with its integers.
    fn parts(self, count: usize) -> Vec<u8> {
        self.blocks(|process| part_count(process, count), |process| process)
    }

    fn receive(self, limit: usize, element: ElementType, tag: i32) -> Result<Vec<u8>, PeerError> {
        let request = (self.peer).start_receive(limit, element, Some(self.from), Some(tag))?;
        Ok(match self.peer.wait(request)? {
            Completion::Received(_, data) => data,
            _ => Vec::new(),
        })
    }
}

/// Repeats a collective with few and with many integers.
fn for_counts(collective: impl Fn(usize) -> Result<(), ProgramError>) -> Result<(), ProgramError> {
    COUNTS.into_iter().try_for_each(collective)
}

fn exchange_messages(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    let first = (me.peer).start_send(&INTEGER.to_ne_bytes(), INT, me.to, 11, false)?;
    me.receive(4, INT, 11)?;
    me.peer.wait(first)?;
    for (step, length) in LENGTHS.into_iter().enumerate() {
        let data = vec![byte(me.rank + step); length];
        let send = (me.peer).start_send(&data, ElementType::Byte, me.to, 12, false)?;
        let message = me.receive(1 << 20, ElementType::Byte, 12)?;
        me.ensure(message == vec![byte(me.from + step); length], "a message")?;
        me.peer.wait(send)?;
    }
    Ok(())
}

fn exchange_many(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    for value in 0..45 {
        let data = endian_neutral_bytes(value);
        let send = me.peer.start_send(&data, INT, me.to, 13, false)?;
        me.peer.wait(send)?;
    }
    for value in 0..45 {
        let holds = me.receive(4, INT, 13)? == endian_neutral_bytes(value);
        me.ensure(holds, "the order of messages")?;
    }
    Ok(())
}

fn send_synchronously(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    let send = (me.peer).start_send(&[0], ElementType::Byte, me.to, 0, true)?;
    me.receive(1, ElementType::Byte, 0)?;
    Ok(me.peer.wait(send).map(drop)?)
}

fn probe(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    let send = (me.peer).start_send(b"five\0", ElementType::Byte, me.to, 14, false)?;
    let source = Some(me.from);
    for (tag, wait) in [(Some(14), true), (None, false)] {
        let status = me.peer.probe(source, tag, wait)?;
        let holds = status
            .is_some_and(|status| (status.source, status.tag, status.length) == (me.from, 14, 5));
        me.ensure(holds, "probe")?;
    }
    let message = me.receive(5, ElementType::Byte, 14)?;
    me.ensure(message == b"five\0", "a message after probe")?;
    let none = me.peer.probe(source, Some(14), false)?.is_none();
    me.ensure(none, "probe without a message")?;
    me.peer.wait(send)?;
    Ok(())
}

/// Cancels a send and a receive. A send may be cancelled or not: the receiver learns which.
fn cancel(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    let send = (me.peer).start_send(&[0], ElementType::Byte, me.to, 15, false)?;
    // Otherwise the message could still be in this process, and nothing would be on the wire.
    me.peer.barrier()?;
    me.peer.cancel(send)?;
    let cancelled = me.peer.wait(send)? == Completion::Cancelled;
    let flag = [u8::from(cancelled)];
    let send = (me.peer).start_send(&flag, ElementType::Byte, me.to, 16, false)?;
    let cancelled = me.receive(1, ElementType::Byte, 16)? == [1];
    me.peer.wait(send)?;
    let found = me.peer.probe(Some(me.from), Some(15), false)?.is_some();
    me.ensure(found != cancelled, "cancel of a send")?;
    if found {
        me.receive(1, ElementType::Byte, 15)?;
    }
    let receive = (me.peer).start_receive(1, ElementType::Byte, Some(me.from), Some(15))?;
    me.peer.cancel(receive)?;
    let cancelled = me.peer.wait(receive)? == Completion::Cancelled;
    me.ensure(cancelled, "cancel of a receive")
}

fn bcast(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    me.for_ends(|root| {
        let mut value = endian_neutral_bytes(me.rank + 1);
        me.peer.bcast(&mut value, INT, root)?;
        me.ensure(value == endian_neutral_bytes(root + 1), "bcast")
    })
}

fn reduce(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    let mut value = endian_neutral_bytes(1);
    let last = me.size - 1;
    me.peer.reduce(&mut value, INT, Operator::Sum, last)?;
    let holds = me.rank != last || value == endian_neutral_bytes(me.size);
    me.ensure(holds, "reduce")
}

fn allreduce(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    let mut value = endian_neutral_bytes(1);
    me.peer.allreduce(&mut value, INT, Operator::Sum)?;
    me.ensure(value == endian_neutral_bytes(me.size), "allreduce")
}

fn gather(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    let gather = |count: usize, root: usize| {
        let mut all = vec![0; 4 * count * me.size];
        (me.peer).gather(&block(me.rank, count), &mut all, INT, root)?;
        let holds = me.rank != root || all == me.blocks(|_| count, |process| process);
        me.ensure(holds, "gather")
    };
    for_counts(|count| me.for_ends(|root| gather(count, root)))
}

fn scatter(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    let scatter = |count: usize, root: usize| {
        let out = me.blocks(|_| count, |process| root + process);
        let mut own = vec![0; 4 * count];
        me.peer.scatter(&out, &mut own, INT, root)?;
        me.ensure(own == block(root + me.rank, count), "scatter")
    };
    for_counts(|count| me.for_ends(|root| scatter(count, root)))
}

fn allgather(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    for_counts(|count| {
        let mut all = vec![0; 4 * count * me.size];
        (me.peer).allgather(&block(me.rank, count), &mut all, INT)?;
        me.ensure(all == me.blocks(|_| count, |process| process), "allgather")
    })
}

fn alltoall(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    for_counts(|count| {
        let out = me.blocks(|_| count, |process| 2 * me.rank + process);
        let mut all = vec![0; out.len()];
        me.peer.alltoall(&out, &mut all, INT)?;
        let expected = me.blocks(|_| count, |process| 2 * process + me.rank);
        me.ensure(all == expected, "alltoall")
    })
}

fn gatherv(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    let gather = |count: usize, root: usize| {
        let lengths = me.lengths(|process| part_count(process, count));
        let own = block(me.rank, part_count(me.rank, count));
        let mut all = vec![0; lengths.iter().sum()];
        me.peer.gatherv(&own, &mut all, &lengths, INT, root)?;
        let holds = me.rank != root || all == me.parts(count);
        me.ensure(holds, "gatherv")
    };
    for_counts(|count| me.for_ends(|root| gather(count, root)))
}

fn scatterv(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    let scatter = |count: usize, root: usize| {
        let lengths = me.lengths(|process| part_count(process, count));
        let mut own = vec![0; lengths[me.rank]];
        (me.peer).scatterv(&me.parts(count), &lengths, &mut own, INT, root)?;
        let expected = block(me.rank, part_count(me.rank, count));
        me.ensure(own == expected, "scatterv")
    };
    for_counts(|count| me.for_ends(|root| scatter(count, root)))
}

fn allgatherv(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    for_counts(|count| {
        let lengths = me.lengths(|process| part_count(process, count));
        let own = block(me.rank, part_count(me.rank, count));
        let mut all = vec![0; lengths.iter().sum()];
        me.peer.allgatherv(&own, &mut all, &lengths, INT)?;
        me.ensure(all == me.parts(count), "allgatherv")
    })
}

/// Exchanges as many integers as the sum of the two ranks has; both know it.
fn alltoallv(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    for_counts(|count| {
        let count = |process: usize| part_count(me.rank + process, count);
        let lengths = me.lengths(count);
        let out = me.blocks(count, |process| 2 * me.rank + process);
        let mut all = vec![0; out.len()];
        (me.peer).alltoallv(&out, &lengths, &mut all, &lengths, INT)?;
        let expected = me.blocks(count, |process| 2 * process + me.rank);
        me.ensure(all == expected, "alltoallv")
    })
}

fn scan(me: ProgramProcess<'_>) -> Result<(), ProgramError> {
    for_counts(|count| {
        let mut value = endian_neutral_bytes(1).repeat(count);
        me.peer.scan(&mut value, INT, Operator::Sum)?;
        let expected = endian_neutral_bytes(me.rank + 1).repeat(count);
        me.ensure(value == expected, "scan")
    })
}
