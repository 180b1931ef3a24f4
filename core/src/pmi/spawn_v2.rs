//! The spawn request of PMI-2: one frame for all its commands.
//!
//! Rule: pairs of the new job first, then one block per command that starts with `subcmd`; counts
//! give the number of indexed pairs of a block, arguments count from 0. Source:
//! docs/pmi-wire.md#pmi-2-spawn.

use std::collections::HashMap;

use super::reply::PmiRefusal;
use super::request::number;
use super::spawn::{Pair, Spawn, SpawnCommand};
use super::wire_v2::Frame;

/// Key and value, the first of each key.
type Block<'a> = HashMap<&'a [u8], &'a [u8]>;

/// Parses the whole request.
///
/// # Errors
/// [`PmiRefusal::MissingField`] or [`PmiRefusal::BadField`], naming the first key that is missing or
/// malformed.
pub fn parse(frame: &Frame<'_>) -> Result<Spawn, PmiRefusal<'static>> {
    let mut head = Block::new();
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for (key, value) in frame.pairs() {
        if key == b"subcmd" {
            blocks.push(Block::new());
        }
        let block = blocks.last_mut().unwrap_or(&mut head);
        block.entry(key).or_insert(value);
    }
    let count: usize = match head.get(&b"ncmds"[..]) {
        Some(text) => number(text).ok_or(PmiRefusal::BadField("ncmds"))?,
        None => return Err(PmiRefusal::MissingField("ncmds")),
    };
    if count == 0 || blocks.len() != count {
        return Err(PmiRefusal::BadField("ncmds"));
    }
    Ok(Spawn {
        commands: blocks.iter().map(command).collect::<Result<_, _>>()?,
        preputs: pairs(&head, "preputcount", "ppkey", "ppval")?,
    })
}

fn command(block: &Block<'_>) -> Result<SpawnCommand, PmiRefusal<'static>> {
    let program = block.get(&b"subcmd"[..]).filter(|name| !name.is_empty());
    let program = program.ok_or(PmiRefusal::MissingField("subcmd"))?;
    let nprocs = block.get(&b"maxprocs"[..]);
    let nprocs = nprocs.ok_or(PmiRefusal::MissingField("maxprocs"))?;
    let args = (0..count(block, "argc")?).map(|index| indexed(block, "argv", index));
    Ok(SpawnCommand {
        nprocs: number(nprocs).ok_or(PmiRefusal::BadField("maxprocs"))?,
        program: program.to_vec(),
        args: args.collect::<Result<_, _>>()?,
        info: pairs(block, "infokeycount", "infokey", "infoval")?,
    })
}

fn pairs(
    block: &Block<'_>,
    count_key: &'static str,
    key: &'static str,
    value: &'static str,
) -> Result<Vec<Pair>, PmiRefusal<'static>> {
    (0..count(block, count_key)?)
        .map(|index| Ok((indexed(block, key, index)?, indexed(block, value, index)?)))
        .collect()
}

/// One of the pairs counted. Each must be there, so a wrong count costs no more than the frame.
fn indexed(
    block: &Block<'_>,
    key: &'static str,
    index: u32,
) -> Result<Vec<u8>, PmiRefusal<'static>> {
    let value = block.get(format!("{key}{index}").as_bytes());
    value
        .map(|value| value.to_vec())
        .ok_or(PmiRefusal::MissingField(key))
}

/// A count of pairs that follow; a block without it has none.
fn count(block: &Block<'_>, key: &'static str) -> Result<u32, PmiRefusal<'static>> {
    match block.get(key.as_bytes()) {
        Some(text) => number(text).ok_or(PmiRefusal::BadField(key)),
        None => Ok(0),
    }
}
