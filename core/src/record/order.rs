//! Orders to a run, which it reads from `--control`.

use serde::{Deserialize, Serialize};

use crate::job::ids::GlobalRank;

/// A line with an order: a signal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlCommand {
    pub signal: i32,
    /// For these ranks; for the job if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<Vec<GlobalRank>>,
}

impl ControlCommand {
    /// Appends the order as one line.
    pub fn write(&self, out: &mut Vec<u8>) {
        serde_json::to_writer(&mut *out, self).expect("numbers can be written into memory");
        out.push(b'\n');
    }
}
