//! Records of the ranks' output and logs.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::StatusRecord;
use super::base64;
use super::ranks::RankId;
use crate::job::ids::{JobIndex, Rank};

/// Standard output or standard error of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Contents of a [`StatusRecord::Output`] record.
#[derive(Debug, Serialize, Deserialize)]
pub struct OutputRecord<'a> {
    #[serde(flatten)]
    pub speaker: OptionalRankId,
    pub stream: Stream,
    #[serde(flatten)]
    content: Content<'a>,
}

impl OutputRecord<'_> {
    /// Returns the printed bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        match self.content {
            Content::Text(text) => text.into_owned().into_bytes(),
            Content::Base64(bytes) => bytes.into_owned(),
        }
    }
}

/// Contents of a [`StatusRecord::Log`] record.
#[derive(Debug, Serialize, Deserialize)]
pub struct Log<'a> {
    #[serde(flatten)]
    speaker: OptionalRankId,
    #[serde(flatten)]
    content: Content<'a>,
}

/// The rank with output, if one has any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OptionalRankId {
    /// Index of the job; absent for the initial job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawned_job: Option<JobIndex>,
    /// Rank in its job.
    pub rank: Option<Rank>,
}

impl From<Option<RankId>> for OptionalRankId {
    fn from(speaker: Option<RankId>) -> Self {
        let spawned = |speaker: &RankId| !speaker.job.is_initial();
        Self {
            spawned_job: speaker.filter(spawned).map(|speaker| speaker.job),
            rank: speaker.map(|speaker| speaker.rank),
        }
    }
}

/// Bytes, as text where they are text.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Content<'a> {
    Text(Cow<'a, str>),
    Base64(#[serde(with = "base64")] Cow<'a, [u8]>),
}

impl<'a> Content<'a> {
    fn from_bytes(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.into()),
            Err(_) => Self::Base64(bytes.into()),
        }
    }
}

impl<'a> StatusRecord<'a> {
    /// Bytes of a rank, or of an MPI library that speaks through the launcher.
    pub fn output(speaker: Option<RankId>, stream: Stream, bytes: &'a [u8]) -> Self {
        Self::Output(OutputRecord {
            speaker: OptionalRankId::from(speaker),
            stream,
            content: Content::from_bytes(bytes),
        })
    }

    /// Creates the record of a rank's text for the job record.
    pub fn log(speaker: Option<RankId>, bytes: &'a [u8]) -> Self {
        Self::Log(Log {
            speaker: OptionalRankId::from(speaker),
            content: Content::from_bytes(bytes),
        })
    }
}
