//! Parsers for the values of infos.

use std::ffi::OsStr;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use crate::plan::spawned::{refuse, text};
use wireup_core::job::env_change::{EnvChange, EnvChangeKind};
use wireup_core::job::hosts::{HostEntry, HostList};
use wireup_core::job::ids::{Nspace, Rank};
use wireup_core::job::proc::{PMIX_RANK_WILDCARD, RankOrWildcard};
use wireup_core::job::rank_set::{RankChoice, RankSetError};
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind, SpawnInfo};
use wireup_core::job::spec::{OptionValueError, StdinTarget};

/// Reads ranks as PMIx names them: a truth value for all or none, a rank, the wildcard, or several ranks.
pub(super) fn choice(info: &SpawnInfo) -> Result<Option<RankChoice>, SpawnFailure> {
    let wildcard = PMIX_RANK_WILDCARD.to_string();
    match (info.value.as_str(), info.value.parse()) {
        (value, _) if value == wildcard => Ok(Some(RankChoice::All)),
        (_, Ok(ranks)) => Ok(Some(RankChoice::Only(ranks))),
        (_, Err(RankSetError { .. })) => Ok(truth(info)?.then_some(RankChoice::All)),
    }
}

pub(super) fn target(value: &str) -> Option<(Nspace, RankOrWildcard)> {
    let (nspace, rank) = value.rsplit_once(':')?;
    let rank = RankOrWildcard::from_pmix(rank.parse().ok()?)?;
    Some((Nspace::new(nspace).ok()?, rank))
}

pub(super) fn number(info: &SpawnInfo) -> Result<u32, SpawnFailure> {
    match info.value.parse() {
        Ok(number @ 1..) => Ok(number),
        _ => Err(wrong(info, "is not a number from 1 on")),
    }
}

/// Reads the ranks that get standard input. Open MPI uses PMIx's numbers for all and none.
pub(super) fn reader(info: &SpawnInfo) -> Result<StdinTarget, SpawnFailure> {
    const ALL: u32 = u32::MAX - 1;
    match (info.value.as_str(), info.value.parse::<u32>()) {
        ("all", _) | (_, Ok(ALL)) => Ok(StdinTarget::All),
        ("none", _) => Ok(StdinTarget::None),
        (_, Ok(rank)) if rank > i32::MAX as u32 => Ok(StdinTarget::None),
        (_, Ok(rank)) => Ok(StdinTarget::Rank(Rank(rank))),
        (_, Err(_)) => Err(wrong(info, "is not a rank; use a rank, all or none")),
    }
}

/// Reads a value from each line that is not empty.
pub(super) fn parsed_lines<T, E: Display>(
    info: &SpawnInfo,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Vec<T>, SpawnFailure> {
    let lines = info.value.lines().filter(|line| !line.is_empty());
    let values = lines.map(|line| parse(line).map_err(|error| text(&info.key, error)));
    values.collect()
}

pub(super) fn path(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| value.into())
}

pub(super) fn entries(info: &SpawnInfo) -> Result<Vec<HostEntry>, SpawnFailure> {
    if info.value.is_empty() {
        return Ok(Vec::new());
    }
    let list = info.value.parse::<HostList>();
    let HostList(entries) = list.map_err(|problem| text(&info.key, problem))?;
    Ok(entries)
}

pub(super) fn change(key: &str, line: &str, how: EnvChangeKind) -> Result<EnvChange, SpawnFailure> {
    // The value may be a secret.
    EnvChange::parse(how, OsStr::new(line))
        .ok_or_else(|| text(key, "invalid variable: write NAME=VALUE"))
}

/// Refusal of a value; `problem` continues a sentence that begins with the value.
pub(super) fn wrong(info: &SpawnInfo, problem: &str) -> SpawnFailure {
    text(&info.key, format!("{:?} {problem}", info.value))
}

/// Refusal of a value that the command-line option of the same directive refuses too.
pub(super) fn value_error(info: &SpawnInfo, error: OptionValueError) -> SpawnFailure {
    text(&info.key, format!("{:?}: {error}", info.value))
}

/// Reads a value as the command-line option of the same directive does.
pub(super) fn parsed<T: FromStr<Err = OptionValueError>>(
    info: &SpawnInfo,
) -> Result<T, SpawnFailure> {
    let value = info.value.to_ascii_lowercase();
    value.parse().map_err(|error| value_error(info, error))
}

/// Reads a truth value as Open MPI does in an `MPI_Info`; an empty value is true.
pub(super) fn truth(info: &SpawnInfo) -> Result<bool, SpawnFailure> {
    match info.value.to_ascii_lowercase().as_str() {
        "" | "true" | "t" | "yes" | "y" | "1" => Ok(true),
        "false" | "f" | "no" | "n" | "0" => Ok(false),
        _ => Err(wrong(info, "is not a truth value; use true or false")),
    }
}

/// Refuses an architecture other than this machine's, which all nodes of a launch have.
pub(super) fn architecture(value: &str) -> Result<(), SpawnFailure> {
    let own = std::env::consts::ARCH;
    let plain = value.to_ascii_lowercase().replace('-', "_");
    let arch = match plain.as_str() {
        "amd64" | "x64" => "x86_64",
        "arm64" => "aarch64",
        "ppc64le" => "powerpc64",
        "i386" | "i586" | "i686" => "x86",
        other => other,
    };
    match arch == own {
        true => Ok(()),
        false => Err(refuse(
            SpawnFailureKind::NotSupported,
            format!("info key arch: no nodes with {value:?}; the launch has {own}"),
        )),
    }
}
