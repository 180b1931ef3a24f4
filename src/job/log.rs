//! A text that a rank wants logged.

use serde::{Deserialize, Serialize};

use super::ids::GlobalRank;
use super::octets;

/// Where a text is to go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Channel {
    /// The launcher's standard output.
    Stdout,
    /// The launcher's standard error.
    Stderr,
    /// The job's record: the status stream, if somebody reads one.
    Record,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogText {
    /// Whose, if that is known.
    pub rank: Option<GlobalRank>,
    /// Where it is to go.
    pub channel: Channel,
    /// Only if no rank of the job has had the same text logged once before.
    pub once: bool,
    /// The text: any bytes.
    #[serde(with = "octets")]
    pub text: Vec<u8>,
}
