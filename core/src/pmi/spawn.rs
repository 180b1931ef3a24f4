//! Request to start a new job, in either version of PMI ([`spawn_v1`](super::spawn_v1), [`spawn_v2`](super::spawn_v2)),
//! and the resulting request to the launcher.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::str::FromStr;
use std::time::Duration;

use super::command::Dialect;
use super::limits::{KEYLEN_MAX, VALLEN_MAX};
use super::pmi_store::{MEMORY_KINDS, sendable};
use super::reply::PmiRefusal;
use super::wire_v1::number;
use crate::job::spawn::{SpawnApp, SpawnInfo, SpawnRequest};

/// A key and its value, as the client wrote them.
pub type KeyValue = (Vec<u8>, Vec<u8>);

/// A request to start a new job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PmiSpawn {
    /// Applications to start, in appnum order; at least one.
    pub commands: Vec<SpawnCommand>,
    /// Pairs to put into the new job's key-value store before its ranks start.
    pub preputs: Vec<KeyValue>,
    /// Timeout of the start, if the client has set one.
    pub limit: Option<Duration>,
}

/// One command of a [`PmiSpawn`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpawnCommand {
    pub nprocs: u32,
    /// The program, absolute or not.
    pub program: Vec<u8>,
    /// Arguments without the program itself; each may be empty.
    pub args: Vec<Vec<u8>>,
    /// Info keys and values given by the application (`wdir`, `path`, `host`, ...).
    pub info: Vec<KeyValue>,
}

/// Fields of one block of a request, the first of each key.
#[derive(Debug, Default)]
pub(super) struct SpawnBlock<'a>(HashMap<&'a [u8], &'a [u8]>);

impl<'a> SpawnBlock<'a> {
    pub(super) fn add(&mut self, key: &'a [u8], value: &'a [u8]) {
        self.0.entry(key).or_insert(value);
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a [u8]> {
        self.0.get(key.as_bytes()).copied()
    }

    /// Reads a number that the block must have.
    pub(super) fn required<N: FromStr>(&self, key: &'static str) -> Result<N, PmiRefusal<'static>> {
        let text = self.get(key).ok_or(PmiRefusal::MissingField(key))?;
        number(text).ok_or(PmiRefusal::BadField(key))
    }

    /// Reads the number of fields that follow; 0 in a block without it.
    pub(super) fn count(&self, key: &'static str) -> Result<u32, PmiRefusal<'static>> {
        match self.get(key) {
            Some(text) => number(text).ok_or(PmiRefusal::BadField(key)),
            None => Ok(0),
        }
    }

    /// Returns one of the counted fields. Each must be present, so a wrong count costs no more than the request.
    pub(super) fn indexed(
        &self,
        key: &'static str,
        index: u32,
    ) -> Result<Vec<u8>, PmiRefusal<'static>> {
        let value = self.get(&format!("{key}{index}"));
        value
            .map(<[u8]>::to_vec)
            .ok_or(PmiRefusal::MissingField(key))
    }

    /// Returns counted pairs of a key and its value, whose fields have an index from 0.
    pub(super) fn pairs(
        &self,
        count: &'static str,
        key: &'static str,
        value: &'static str,
    ) -> Result<Vec<KeyValue>, PmiRefusal<'static>> {
        (0..self.count(count)?)
            .map(|index| Ok((self.indexed(key, index)?, self.indexed(value, index)?)))
            .collect()
    }
}

impl PmiSpawn {
    /// Converts to the request to the launcher. Infos are never required: MPI ignores unknown ones.
    ///
    /// # Errors
    /// [`PmiRefusal`] when there is no process, a pair that the new job's ranks could not get, or a NUL byte where a
    /// process can have none.
    pub(super) fn into_request(self) -> Result<SpawnRequest, PmiRefusal<'static>> {
        let mut preputs = self.preputs;
        let mut infos = self.commands.iter().flat_map(|command| &command.info);
        if let Some((_, kinds)) = infos.find(|(key, _)| key == b"mpi_memory_alloc_kinds") {
            preputs.push((MEMORY_KINDS.into(), kinds.clone()));
        }
        for (key, value) in &preputs {
            if !(1..=KEYLEN_MAX).contains(&key.len()) {
                return Err(PmiRefusal::TooLong("preput_key"));
            }
            if value.len() > VALLEN_MAX || !sendable(Dialect::Pmi2, value) {
                return Err(PmiRefusal::BadField("preput_val"));
            }
        }
        let apps = self.commands.into_iter().map(SpawnCommand::into_app);
        // The launcher counts in seconds.
        let limit = self.limit.map(|limit| SpawnInfo {
            key: "pmix.timeout".to_owned(),
            value: limit.as_millis().div_ceil(1000).to_string(),
            required: false,
        });
        Ok(SpawnRequest {
            apps: apps.collect::<Result<_, _>>()?,
            infos: limit.into_iter().collect(),
            preputs,
        })
    }
}

impl SpawnCommand {
    fn into_app(self) -> Result<SpawnApp, PmiRefusal<'static>> {
        if self.nprocs == 0 {
            return Err(PmiRefusal::BadField("nprocs"));
        }
        let mut words = std::iter::once(&self.program).chain(&self.args);
        if words.any(|word| word.contains(&0)) {
            return Err(PmiRefusal::BadField("arg"));
        }
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let info = |(key, value)| SpawnInfo {
            key: text(key),
            value: text(value),
            required: false,
        };
        Ok(SpawnApp {
            program: OsString::from_vec(self.program),
            args: self.args.into_iter().map(OsString::from_vec).collect(),
            env: Vec::new(),
            cwd: None,
            count: self.nprocs,
            infos: self.info.into_iter().map(info).collect(),
        })
    }
}
