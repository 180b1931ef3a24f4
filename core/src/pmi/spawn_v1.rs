//! The multi-line spawn request of PMI-1: collects its lines, then parses it as a whole.
//!
//! Rule: one block per command, `mcmd=spawn` to `endcmd`; the request is complete at the `endcmd`
//! of the block whose `spawnssofar` equals its `totspawns`. Source: docs/pmi-operations.md#spawn.
//! Rule: a value runs to the newline, may hold blanks and `=`, and may be empty; the order inside
//! a block differs between clients. Source: docs/pmi-operations.md#spawn.

use memchr::memchr;

use super::limits::SPAWN_MAX;
use super::reply::PmiRefusal;
use super::spawn::{PmiSpawn, SpawnBlock, SpawnCommand};
use super::wire_v1::{ProtocolError, excerpt, number};

/// First line of every block.
const START: &[u8] = b"mcmd=spawn";

/// Last line of every block.
const END: &[u8] = b"endcmd";

/// A spawn request that is still arriving; at most [`SPAWN_MAX`] bytes.
#[derive(Debug, Default)]
pub struct SpawnLines {
    /// All lines but the block ends, each with its newline; a block starts with [`START`].
    text: Vec<u8>,
    in_block: bool,
    total: Option<u32>,
    so_far: Option<u32>,
}

impl SpawnLines {
    /// Whether a line starts a multi-line request.
    pub fn starts_with(line: &[u8]) -> bool {
        line.starts_with(b"mcmd=")
    }

    /// Takes the next line, without newline; `true` once the request is complete.
    ///
    /// # Errors
    /// A [`ProtocolError`] when the line cannot stand here or the request grows too large.
    pub fn push(&mut self, line: &[u8]) -> Result<bool, ProtocolError> {
        if self.text.len() + line.len() >= SPAWN_MAX {
            return Err(ProtocolError::SpawnTooLong);
        }
        if !self.in_block {
            return self.open(line).map(|()| false);
        }
        if line == END {
            return self.close();
        }
        if Self::starts_with(line) {
            return Err(ProtocolError::SpawnSequence("block without endcmd"));
        }
        let Some(at) = memchr(b'=', line) else {
            return Err(ProtocolError::NoEquals(excerpt(line)));
        };
        let value = &line[at + 1..];
        match &line[..at] {
            b"totspawns" => self.total = number(value),
            b"spawnssofar" => self.so_far = number(value),
            _ => {}
        }
        self.append(line);
        Ok(false)
    }

    /// Bytes collected so far.
    pub fn unfinished(&self) -> usize {
        self.text.len()
    }

    /// Parses the complete request.
    ///
    /// # Errors
    /// [`PmiRefusal::MissingField`] or [`PmiRefusal::BadField`], naming the first field that is missing
    /// or malformed.
    pub fn parse(&self) -> Result<PmiSpawn, PmiRefusal<'static>> {
        let mut blocks: Vec<SpawnBlock<'_>> = Vec::new();
        for line in self.text.split(|&byte| byte == b'\n') {
            if line == START {
                blocks.push(SpawnBlock::default());
            } else if let (Some(block), Some(at)) = (blocks.last_mut(), memchr(b'=', line)) {
                block.add(&line[..at], &line[at + 1..]);
            }
        }
        let preputs = match blocks.first() {
            Some(first) => first.pairs("preput_num", "preput_key_", "preput_val_")?,
            None => Vec::new(),
        };
        let commands = blocks.iter().map(command).collect::<Result<_, _>>()?;
        Ok(PmiSpawn {
            commands,
            preputs,
            limit: None,
        })
    }

    fn open(&mut self, line: &[u8]) -> Result<(), ProtocolError> {
        if line != START {
            return Err(if Self::starts_with(line) {
                ProtocolError::UnknownMultiLine(excerpt(line))
            } else {
                ProtocolError::SpawnSequence("another request between its blocks")
            });
        }
        self.in_block = true;
        (self.total, self.so_far) = (None, None);
        self.append(line);
        Ok(())
    }

    fn close(&mut self) -> Result<bool, ProtocolError> {
        self.in_block = false;
        match (self.total, self.so_far) {
            (Some(total), Some(so_far)) if so_far <= total => Ok(so_far == total),
            (Some(_), Some(_)) => Err(ProtocolError::SpawnSequence("spawnssofar beyond totspawns")),
            _ => Err(ProtocolError::SpawnSequence(
                "block without a valid totspawns and spawnssofar",
            )),
        }
    }

    fn append(&mut self, line: &[u8]) {
        self.text.extend_from_slice(line);
        self.text.push(b'\n');
    }
}

fn command(block: &SpawnBlock<'_>) -> Result<SpawnCommand, PmiRefusal<'static>> {
    let program = block.get("execname").filter(|name| !name.is_empty());
    let program = program.ok_or(PmiRefusal::MissingField("execname"))?;
    let args = (1..=block.count("argcnt")?).map(|index| block.indexed("arg", index));
    Ok(SpawnCommand {
        args: args.collect::<Result<_, _>>()?,
        nprocs: block.required("nprocs")?,
        program: program.to_vec(),
        info: block.pairs("info_num", "info_key_", "info_val_")?,
    })
}
