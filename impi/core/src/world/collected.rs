//! Values that the server has sent to all clients: encoded for other processes, and decoded by label.

use std::collections::BTreeMap;

use super::label::Label;
use super::offer::count;
use super::{MAX_PROCS, WorldError};
use crate::command::words;

/// The values under each label, as the server sent them: mask and concatenation.
pub type LabelValues = BTreeMap<i32, (u32, Vec<u8>)>;

/// Encodes the values, to pass them on to processes.
pub fn encode(clients: usize, collected: &LabelValues) -> Vec<u8> {
    let mut bytes = count(clients).to_be_bytes().to_vec();
    for (label, (mask, data)) in collected {
        bytes.extend(label.to_be_bytes());
        bytes.extend(mask.to_be_bytes());
        bytes.extend(count(data.len()).to_be_bytes());
        bytes.extend_from_slice(data);
    }
    bytes
}

/// Decodes the bytes of [`encode`]; `None` for other bytes.
pub fn decode(bytes: &[u8]) -> Option<(usize, LabelValues)> {
    fn word(bytes: &mut &[u8]) -> Option<u32> {
        let (word, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        Some(u32::from_be_bytes(*word))
    }
    let mut rest = bytes;
    let clients = word(&mut rest)? as usize;
    let mut collected = LabelValues::new();
    while !rest.is_empty() {
        let (label, mask, length) = (
            word(&mut rest)?,
            word(&mut rest)?,
            word(&mut rest)? as usize,
        );
        let data = rest.get(..length)?;
        rest = &rest[length..];
        collected.insert(label.cast_signed(), (mask, data.to_vec()));
    }
    Some((clients, collected))
}

/// Reads values, and checks the rules for a single label.
pub(super) struct Reader<'a> {
    pub(super) clients: usize,
    pub(super) collected: &'a LabelValues,
}

impl Reader<'_> {
    fn bytes(&self, label: Label) -> Result<&[u8], WorldError> {
        let all = u32::MAX >> (32 - self.clients.clamp(1, 32));
        let values = self.collected.get(&(label as i32));
        let (mask, data) = values.map_or((0, &[][..]), |(mask, data)| (*mask, &data[..]));
        let missing = WorldError::Missing {
            label: label.name(),
            mask,
        };
        (mask == all).then_some(data).ok_or(missing)
    }

    pub(super) fn exactly(
        &self,
        label: Label,
        expected_length: usize,
    ) -> Result<&[u8], WorldError> {
        let bytes = self.bytes(label)?;
        let wrong = WorldError::Length {
            label: label.name(),
            got: bytes.len(),
            expected_length,
        };
        (bytes.len() == expected_length)
            .then_some(bytes)
            .ok_or(wrong)
    }

    pub(super) fn words(&self, label: Label, count: usize) -> Result<Vec<u32>, WorldError> {
        self.exactly(label, count * 4).map(words)
    }

    /// Returns words of which each is allowed.
    fn allowed_words(
        &self,
        label: Label,
        count: usize,
        mut is_allowed: impl FnMut(u32) -> bool,
    ) -> Result<Vec<u32>, WorldError> {
        let words = self.words(label, count)?;
        match words.iter().position(|value| !is_allowed(*value)) {
            Some(index) => Err(WorldError::out_of_range(label, index, words[index])),
            None => Ok(words),
        }
    }

    pub(super) fn counts(&self, label: Label, count: usize) -> Result<Vec<usize>, WorldError> {
        let mut total = 0;
        let words = self.allowed_words(label, count, |value| {
            total += u64::from(value);
            value > 0 && total <= MAX_PROCS
        })?;
        Ok(words.into_iter().map(|value| value as usize).collect())
    }

    pub(super) fn least(
        &self,
        label: Label,
        count: usize,
        is_allowed: impl Fn(u32) -> bool,
    ) -> Result<u32, WorldError> {
        let words = self.allowed_words(label, count, is_allowed)?;
        Ok(words.into_iter().min().unwrap_or_default())
    }

    pub(super) fn equal(&self, label: Label, default: i32) -> Result<u32, WorldError> {
        let words = self.words(label, self.clients)?;
        let values: Vec<i32> = words
            .into_iter()
            .map(u32::cast_signed)
            .map(|value| if value == -1 { default } else { value })
            .collect();
        let first = values.first().copied().unwrap_or(default);
        if values.iter().any(|value| *value != first) {
            let values = values.into_iter().map(i64::from).collect();
            return Err(WorldError::Disagree {
                label: label.name(),
                values,
            });
        }
        u32::try_from(first).map_err(|_| WorldError::out_of_range(label, 0, first))
    }

    /// Returns the greatest version that all clients have. Every list is ascending and contains 0.0, so each 0.0 begins
    /// the next client's.
    pub(super) fn version(&self) -> Result<(u32, u32), WorldError> {
        let bytes = self.bytes(Label::Version)?;
        if bytes.len() % 8 != 0 {
            return Err(WorldError::Versions);
        }
        let words = self.words(Label::Version, bytes.len() / 4)?;
        let mut lists: Vec<Vec<(u32, u32)>> = Vec::new();
        for pair in words.chunks_exact(2) {
            let version = (pair[0], pair[1]);
            if version == (0, 0) {
                lists.push(Vec::new());
            }
            let list = lists.last_mut().ok_or(WorldError::Versions)?;
            if list.last().is_some_and(|last| *last >= version) {
                return Err(WorldError::Versions);
            }
            list.push(version);
        }
        if lists.len() != self.clients {
            return Err(WorldError::Versions);
        }
        let first = lists.first().ok_or(WorldError::Versions)?;
        let common = first
            .iter()
            .rev()
            .find(|version| lists.iter().all(|list| list.contains(version)));
        common.copied().ok_or(WorldError::Versions)
    }
}
