//! Handshake of a process of the launch with its agent. Both are of one version of wireup.
//!
//! The process sends `WIMP`, the ticket and its rank in the launch; the agent answers with the fields of
//! [`ProcessWelcome`]. From then on both send packets. FINI of the process reports that it has finished.

use std::io::{self, Read, Write};

use wireup_impi_core::external32::Representation;
use wireup_impi_core::hexadecimal::unhex;

use crate::secrets::challenge;

/// Variable with the agent's address; [`agent_of`] reads it.
pub const AGENT: &str = "WIREUP_IMPI_AGENT";
/// Variable with the ticket that admits a process.
pub const TICKET_VARIABLE: &str = "WIREUP_IMPI_TICKET";
/// Bytes of a ticket.
const TICKET: usize = 16;
/// Secret that admits a process.
pub type ProcessTicket = [u8; TICKET];
const MAGIC: &[u8; 4] = b"WIMP";
/// Size of a process's first message, in bytes.
pub(super) const HELLO: usize = MAGIC.len() + TICKET + 4;
/// Maximum size of the values, above that of [`wireup_impi_core::world::MAX_PROCS`] processes.
const MAX_VALUES: u32 = 64 << 20;

/// Data that the agent sends to its processes.
#[derive(Debug)]
pub(super) struct Welcome {
    pub(super) ticket: ProcessTicket,
    /// World rank of the first process.
    pub(super) first: usize,
    pub(super) lam: bool,
    pub(super) values: Vec<u8>,
}

/// Answer of the agent to a process.
#[derive(Debug)]
pub struct ProcessWelcome {
    /// World rank of the process.
    pub rank: usize,
    /// Whether another client is LAM.
    pub lam: bool,
    /// The byte order of messages.
    pub representation: Representation,
    /// The values of all clients.
    pub values: Vec<u8>,
}

/// Creates a random ticket.
pub(super) fn ticket() -> io::Result<ProcessTicket> {
    let random = challenge()?;
    Ok(std::array::from_fn(|at| random[at]))
}

/// Returns the agent of the process with this rank in the launch, by the variable [`AGENT`], and its index there. The
/// variable names one agent, or one for each host: `PROCS=HOST:PORT` in the order of ranks, with commas.
pub fn agent_of(variable: &str, rank: u32) -> Option<(&str, u32)> {
    if !variable.contains('=') {
        return Some((variable, rank));
    }
    let mut index = rank;
    for word in variable.split(',') {
        let (procs, agent) = word.split_once('=')?;
        match index.checked_sub(procs.parse().ok()?) {
            None => return Some((agent, index)),
            Some(behind) => index = behind,
        }
    }
    None
}

impl Welcome {
    /// Checks the first message of a connection, and returns its rank in the launch.
    pub(super) fn admit(&self, hello: &[u8; HELLO], procs: usize) -> io::Result<usize> {
        let ticket = hello[4..].iter().zip(&self.ticket);
        let differ = ticket.fold(0, |sum, (theirs, ours)| sum | (theirs ^ ours));
        let index = u32::from_be_bytes(std::array::from_fn(|at| hello[4 + TICKET + at])) as usize;
        if &hello[..4] != MAGIC || differ != 0 || index >= procs {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(index)
    }

    /// Sends an admitted process the data that it needs.
    pub(super) fn introduce(&self, stream: &mut impl Write, index: usize) -> io::Result<()> {
        let word = |value: usize| u32::try_from(value).map_err(io::Error::other);
        let mut reply = word(self.first + index)?.to_be_bytes().to_vec();
        // Whether another client is LAM, and whether messages are little-endian, which they are for LAM.
        reply.extend([u8::from(self.lam); 2]);
        reply.extend(word(self.values.len())?.to_be_bytes());
        reply.extend_from_slice(&self.values);
        stream.write_all(&reply)
    }
}

/// Executes the process's half. `ticket` is the variable's text, `index` the rank in the launch.
///
/// # Errors
/// When the agent refuses the process.
pub fn greet(
    stream: &mut (impl Read + Write),
    ticket: &str,
    index: u32,
) -> io::Result<ProcessWelcome> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let ticket = unhex(ticket).and_then(|bytes| ProcessTicket::try_from(bytes).ok());
    let ticket = ticket.ok_or_else(|| {
        wrong("invalid WIREUP_IMPI_TICKET; start processes with `wireup run --impi`")
    })?;
    let mut hello = MAGIC.to_vec();
    hello.extend(ticket);
    hello.extend(index.to_be_bytes());
    stream.write_all(&hello)?;
    let mut head = [0; 10];
    stream.read_exact(&mut head)?;
    let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| head[at + i]));
    let length = word(6);
    if length > MAX_VALUES {
        return Err(wrong("the agent's answer is too long"));
    }
    let mut values = vec![0; length as usize];
    stream.read_exact(&mut values)?;
    Ok(ProcessWelcome {
        rank: word(0) as usize,
        lam: head[4] != 0,
        representation: if head[5] == 0 {
            Representation::External32
        } else {
            Representation::LittleEndian
        },
        values,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_finds_agent_of_its_host() {
        assert_eq!(agent_of("10.0.0.1:5", 7), Some(("10.0.0.1:5", 7)));
        let several = "2=10.0.0.1:5,1=[fd00::1]:6,3=10.0.0.2:7";
        for (rank, expected) in [
            (0, Some(("10.0.0.1:5", 0))),
            (1, Some(("10.0.0.1:5", 1))),
            (2, Some(("[fd00::1]:6", 0))),
            (5, Some(("10.0.0.2:7", 2))),
            (6, None),
        ] {
            assert_eq!(agent_of(several, rank), expected, "{rank}");
        }
        assert_eq!(agent_of("x=10.0.0.1:5", 0), None);
    }
}
