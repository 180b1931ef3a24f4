//! The processes of the check program, without an MPI. `impi/kit/check.c` is the same program for the client under test.

use thiserror::Error;

use crate::peer::{ElementType, Operator, Peer, PeerError, RequestResult};

/// The program's text, for the user to compile.
pub const SOURCE: &str = include_str!("../../kit/check.c");

const INT: ElementType = ElementType::Int32;
const LENGTHS: [usize; 7] = [0, 1, 1000, 65_536, 65_537, 200_000, 1 << 20];
/// An integer whose bytes show their order.
const INTEGER: i32 = 0x1122_3344;

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

/// Returns an integer whose bytes mean the same in both byte orders.
fn endian_neutral_bytes(value: usize) -> [u8; 4] {
    (i32::try_from(value).unwrap_or(0) * 0x0100_0001).to_ne_bytes()
}

/// Runs it. Without `ssend` it leaves synchronous sends out.
///
/// # Errors
/// When a call fails, or gives another result than it must.
pub fn play(peer: Peer, ssend: bool) -> Result<(), ProgramError> {
    let (rank, size) = (peer.rank(), peer.size());
    let (to, from) = ((rank + size / 2) % size, (rank + size - size / 2) % size);
    let ensure = |holds: bool, what| {
        holds.then_some(()).ok_or(ProgramError::Wrong {
            rank,
            operation: what,
        })
    };
    let byte = |value: usize| u8::try_from(value % 256).unwrap_or(0);
    let receive = |limit, element, tag| -> Result<Vec<u8>, PeerError> {
        let request = peer.start_receive(limit, element, Some(from), Some(tag))?;
        Ok(match peer.wait(request)? {
            RequestResult::Received(_, data) => data,
            _ => Vec::new(),
        })
    };
    let first = peer.start_send(&INTEGER.to_ne_bytes(), INT, to, 11, false)?;
    receive(4, INT, 11)?;
    peer.wait(first)?;
    for (step, length) in LENGTHS.into_iter().enumerate() {
        let data = vec![byte(rank + step); length];
        let send = peer.start_send(&data, ElementType::Byte, to, 12, false)?;
        let got = receive(1 << 20, ElementType::Byte, 12)?;
        ensure(got == vec![byte(from + step); length], "a message")?;
        peer.wait(send)?;
    }
    for value in 0..45 {
        let send = peer.start_send(&endian_neutral_bytes(value), INT, to, 13, false)?;
        peer.wait(send)?;
    }
    for value in 0..45 {
        ensure(
            receive(4, INT, 13)? == endian_neutral_bytes(value),
            "the order of messages",
        )?;
    }
    if ssend {
        let send = peer.start_send(&[0], ElementType::Byte, to, 0, true)?;
        receive(1, ElementType::Byte, 0)?;
        peer.wait(send)?;
    }
    peer.barrier()?;
    for root in [0, size - 1] {
        let mut value = endian_neutral_bytes(rank + 1);
        peer.bcast(&mut value, INT, root)?;
        ensure(value == endian_neutral_bytes(root + 1), "bcast")?;
    }
    let mut value = endian_neutral_bytes(1);
    peer.reduce(&mut value, INT, Operator::Sum, size - 1)?;
    ensure(
        rank != size - 1 || value == endian_neutral_bytes(size),
        "reduce",
    )?;
    let mut value = endian_neutral_bytes(1);
    peer.allreduce(&mut value, INT, Operator::Sum)?;
    ensure(value == endian_neutral_bytes(size), "allreduce")?;
    peer.close()?;
    Ok(())
}
