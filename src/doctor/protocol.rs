//! Messages between `wireup doctor` and its workers on hosts: lines of JSON.
//!
//! A worker splits a message into pieces that a pipe takes at once, so that the launcher between the two never shows
//! half of one: `+` and a piece that continues, `.` and the last piece. Any other line is text for the user.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use wireup_core::doctor::NeighbourView;
use wireup_core::doctor::facts::HostFacts;

/// Maximum bytes of a piece; a pipe takes 4096 at once. Source: `PIPE_BUF` in pipe(7).
const PIECE: usize = 3000;

/// Message to all workers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkerCommand {
    /// Request for the time, which is answered at once.
    Time(u32),
    /// All hosts that answered, by number.
    Neighbours(BTreeMap<usize, HostEndpoint>),
}

/// Endpoint at which a host can be reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HostEndpoint {
    pub(super) name: String,
    /// Addresses of the host's interfaces.
    pub(super) addresses: Vec<IpAddr>,
    /// Port on which the worker listens.
    pub(super) port: u16,
    /// Numbers of the hosts that the worker tries to reach.
    pub(super) reaches: Vec<usize>,
}

/// Message from a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkerReply {
    /// Facts about the host; the first message.
    Facts {
        facts: Box<HostFacts>,
        /// Port on which the worker listens; 0 if it cannot.
        port: u16,
    },
    /// Time on the host, in seconds since 1970.
    Time { number: u32, seconds: f64 },
    /// Results of checking its neighbours.
    #[serde(rename = "Seen")]
    Neighbours(Vec<NeighbourView>),
}

/// Splits an answer into lines.
pub(super) fn lines(answer: &WorkerReply) -> Vec<String> {
    let text = serde_json::to_string(answer).expect("text and numbers only");
    let mut lines = Vec::new();
    let mut rest = text.as_str();
    while rest.len() > PIECE {
        let whole = (0..=PIECE).rev().find(|at| rest.is_char_boundary(*at));
        let (piece, more) = rest.split_at(whole.expect("0 is a boundary"));
        lines.push(format!("+{piece}\n"));
        rest = more;
    }
    lines.push(format!(".{rest}\n"));
    lines
}

/// Assembles the lines of one worker to messages.
#[derive(Debug, Default)]
pub(super) struct LineAssembler(String);

/// Message that a line completes.
#[derive(Debug)]
pub(super) enum WorkerMessage {
    Answer(WorkerReply),
    /// Text that is not an answer.
    Text(String),
}

impl LineAssembler {
    /// Adds a line, and returns the message that it completes.
    pub(super) fn take(&mut self, line: &str) -> Option<WorkerMessage> {
        if let Some(piece) = line.strip_prefix('+') {
            self.0.push_str(piece);
            return None;
        }
        let Some(last) = line.strip_prefix('.') else {
            return Some(WorkerMessage::Text(line.to_owned()));
        };
        let mut text = std::mem::take(&mut self.0);
        text.push_str(last);
        Some(match serde_json::from_str(&text) {
            Ok(answer) => WorkerMessage::Answer(answer),
            Err(error) => WorkerMessage::Text(format!(
                "invalid message from wireup doctor on this host: {error}"
            )),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answers_are_put_together_again() {
        let facts = HostFacts {
            name: "é".repeat(10_000),
            ..HostFacts::default()
        };
        let answer = WorkerReply::Facts {
            facts: Box::new(facts.clone()),
            port: 7,
        };
        let lines = lines(&answer);
        assert!(lines.len() > 3 && lines.iter().all(|line| line.len() <= 4096));
        let mut pieces = LineAssembler::default();
        let mut found = lines.iter().filter_map(|line| pieces.take(line.trim_end()));
        let Some(WorkerMessage::Answer(WorkerReply::Facts {
            facts: got,
            port: 7,
        })) = found.next()
        else {
            panic!("no answer");
        };
        assert_eq!(*got, facts);
        assert!(matches!(
            pieces.take("sh: not found"),
            Some(WorkerMessage::Text(_))
        ));
    }
}
