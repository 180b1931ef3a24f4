//! How a process of the launch meets its agent. Both are wireup's, and of one version.
//!
//! The process says `WIMP`, the ticket and its rank in the launch; the agent answers with what [`Introduction`] has.
//! From then on both send packets; FINI of the process says that it has finished.

use std::io::{self, Read, Write};

use wireup_impi_core::external32::Representation;

use crate::secrets::challenge;

/// Where the agent listens.
pub const AGENT: &str = "WIREUP_IMPI_AGENT";
/// What lets a process in.
pub const TICKET_VARIABLE: &str = "WIREUP_IMPI_TICKET";
/// Bytes of a ticket.
pub const TICKET: usize = 16;
const MAGIC: &[u8; 4] = b"WIMP";
/// More than the values of [`wireup_impi_core::world::MAX_PROCS`] processes.
const MAX_VALUES: u32 = 64 << 20;

/// What the agent knows and its processes need.
#[derive(Debug)]
pub(super) struct Welcome {
    pub(super) ticket: [u8; TICKET],
    /// World rank of the first process.
    pub(super) first: usize,
    pub(super) lam: bool,
    pub(super) representation: Representation,
    pub(super) values: Vec<u8>,
}

/// What a process gets.
#[derive(Debug)]
pub struct Introduction {
    /// Its rank in the world.
    pub rank: usize,
    /// Whether another client is LAM.
    pub lam: bool,
    /// The byte order of messages.
    pub representation: Representation,
    /// The values of all clients.
    pub values: Vec<u8>,
}

/// A new ticket.
pub(super) fn ticket() -> io::Result<[u8; TICKET]> {
    let random = challenge()?;
    Ok(std::array::from_fn(|at| random[at]))
}

/// As it is in the environment.
pub(super) fn hex(ticket: &[u8]) -> String {
    ticket.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; TICKET]> {
    let mut ticket = [0; TICKET];
    if text.len() != 2 * TICKET || !text.is_ascii() {
        return None;
    }
    for (at, byte) in ticket.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(ticket)
}

impl Welcome {
    /// Lets a process in; its rank in the launch.
    pub(super) fn admit(
        &self,
        stream: &mut (impl Read + Write),
        procs: usize,
    ) -> io::Result<usize> {
        let refuse = || io::Error::from(io::ErrorKind::PermissionDenied);
        let mut hello = [0; 4 + TICKET + 4];
        stream.read_exact(&mut hello)?;
        let ticket = hello[4..].iter().zip(&self.ticket);
        let differ = ticket.fold(0, |sum, (theirs, ours)| sum | (theirs ^ ours));
        if &hello[..4] != MAGIC || differ != 0 {
            return Err(refuse());
        }
        let index = u32::from_be_bytes(std::array::from_fn(|at| hello[4 + TICKET + at])) as usize;
        if index >= procs {
            return Err(refuse());
        }
        Ok(index)
    }

    /// Tells an admitted process what it needs.
    pub(super) fn introduce(&self, stream: &mut impl Write, index: usize) -> io::Result<()> {
        let word = |value: usize| u32::try_from(value).map_err(io::Error::other);
        let mut reply = word(self.first + index)?.to_be_bytes().to_vec();
        reply.push(u8::from(self.lam));
        reply.push(u8::from(
            self.representation == Representation::LittleEndian,
        ));
        reply.extend(word(self.values.len())?.to_be_bytes());
        reply.extend_from_slice(&self.values);
        stream.write_all(&reply)
    }
}

/// The process's half. `ticket` is the variable's text, `index` the rank in the launch.
///
/// # Errors
/// When the agent does not let it in.
pub fn greet(
    stream: &mut (impl Read + Write),
    ticket: &str,
    index: u32,
) -> io::Result<Introduction> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let ticket = unhex(ticket).ok_or_else(|| wrong("WIREUP_IMPI_TICKET is no ticket"))?;
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
    Ok(Introduction {
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
