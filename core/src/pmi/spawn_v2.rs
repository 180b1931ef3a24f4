//! The spawn request of PMI-2: one frame for all its commands, or several that were joined
//! ([`continued`](super::fragments)).
//!
//! Rule: pairs of the new job first, then one block per command that starts with `subcmd`; counts
//! give the number of indexed pairs of a block, arguments count from 0. A block of a `spawn-cmd` has the program for its
//! first argument. Source: docs/pmi2-wire.md#pmi-2-spawn.
//! Rule: `timeout` in milliseconds, `threadsPerRank` and `credential` are infos of PMI-2 itself. Source: docs/pmi2-wire.md#pmi-2-spawn.

use std::collections::VecDeque;
use std::time::Duration;

use super::reply::PmiRefusal;
use super::spawn::{KeyValue, PmiSpawn, SpawnBlock, SpawnCommand};
use super::wire_v1::number;
use super::wire_v2::Pmi2Frame;

/// Parses the whole request.
///
/// # Errors
/// [`PmiRefusal::MissingField`] or [`PmiRefusal::BadField`], naming the first key that is missing or
/// malformed.
pub fn parse(frame: &Pmi2Frame<'_>) -> Result<PmiSpawn, PmiRefusal<'static>> {
    let mut head = SpawnBlock::default();
    let mut blocks: Vec<SpawnBlock<'_>> = Vec::new();
    for (key, value) in frame.pairs() {
        if matches!(key, b"subcmd" | b"spawn-cmd") {
            blocks.push(SpawnBlock::default());
        }
        let block = blocks.last_mut().unwrap_or(&mut head);
        block.add(key, value);
    }
    let count: usize = head.required("ncmds")?;
    if count == 0 || blocks.len() != count {
        return Err(PmiRefusal::BadField("ncmds"));
    }
    let commands = blocks.iter().map(command);
    let mut spawn = PmiSpawn {
        commands: commands.collect::<Result<_, _>>()?,
        preputs: head.pairs("preputcount", "ppkey", "ppval")?,
        limit: None,
    };
    for command in &mut spawn.commands {
        spawn.limit = spawn.limit.max(own_infos(&mut command.info)?);
    }
    Ok(spawn)
}

/// Reads the infos of a request with a single list of them.
///
/// # Errors
/// Those of [`parse`].
pub(super) fn infos(frame: &Pmi2Frame<'_>) -> Result<Vec<KeyValue>, PmiRefusal<'static>> {
    let mut block = SpawnBlock::default();
    for (key, value) in frame.pairs() {
        block.add(key, value);
    }
    block_infos(&block)
}

fn block_infos(block: &SpawnBlock<'_>) -> Result<Vec<KeyValue>, PmiRefusal<'static>> {
    block.pairs("infokeycount", "infokey", "infoval")
}

fn command(block: &SpawnBlock<'_>) -> Result<SpawnCommand, PmiRefusal<'static>> {
    let nprocs = block.get("maxprocs");
    let nprocs = nprocs.ok_or(PmiRefusal::MissingField("maxprocs"))?;
    let args = (0..block.count("argc")?).map(|index| block.indexed("argv", index));
    let mut args: VecDeque<_> = args.collect::<Result<_, _>>()?;
    let program = block.get("subcmd").map(<[u8]>::to_vec);
    let program = program.or_else(|| args.pop_front());
    let program = program.filter(|program| !program.is_empty());
    Ok(SpawnCommand {
        nprocs: number(nprocs).ok_or(PmiRefusal::BadField("maxprocs"))?,
        program: program.ok_or(PmiRefusal::MissingField("subcmd"))?,
        args: args.into(),
        info: block_infos(block)?,
    })
}

/// Renames the infos of PMI-2 itself to those of the launcher, and takes the timeout. A credential is refused: its job
/// would run with other rights than the client expects.
fn own_infos(infos: &mut Vec<KeyValue>) -> Result<Option<Duration>, PmiRefusal<'static>> {
    if infos.iter().any(|(key, _)| key == b"credential") {
        return Err(PmiRefusal::Credential);
    }
    let mut limit = None;
    for (_, value) in infos.extract_if(.., |(key, _)| key == b"timeout") {
        let millis = number(&value).ok_or(PmiRefusal::BadField("timeout"))?;
        limit = Some(Duration::from_millis(millis));
    }
    for (key, _) in infos.iter_mut().filter(|(key, _)| key == b"threadsPerRank") {
        *key = b"pmix.cpuperproc".to_vec();
    }
    Ok(limit)
}
