//! The notes and findings of a recorded conversation.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use thiserror::Error;

use super::conformance_rules::{Level, Rule};

/// A party of the conversation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Party {
    Server,
    /// Client with a still unknown rank, by its connection.
    Stranger(u32),
    /// A client or its hosts, by rank.
    Client(u32),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server => f.write_str("the server"),
            Self::Stranger(connection) => write!(f, "the client of connection {connection}"),
            Self::Client(rank) => write!(f, "client {rank}"),
        }
    }
}

/// An explained piece of a conversation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Since the beginning of the record.
    pub time: Duration,
    /// Number of the connection.
    pub connection: u32,
    /// Section of the specification that it follows.
    pub section: &'static str,
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:06} {:>2} [{}] {}",
            self.time.as_secs(),
            self.time.subsec_micros(),
            self.connection,
            self.section,
            self.text
        )
    }
}

/// A rule that was not kept.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "{} {} [{}] by {party} on connection {connection}: {text}",
    level_name(.rule.level()), .rule.name(), .rule.section()
)]
pub struct Finding {
    pub rule: Rule,
    /// Party that broke the rule.
    pub party: Party,
    /// Number of the connection.
    pub connection: u32,
    /// Description of the violation.
    pub text: String,
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Must => "violation",
        Level::Should => "advice",
        Level::Finding => "finding",
    }
}

/// The notes and findings of a recording, and where in it the analysis is.
#[derive(Debug, Default)]
pub(super) struct AnalysisLog {
    pub(super) notes: Vec<Note>,
    pub(super) findings: Vec<Finding>,
    pub(super) applied_rules: BTreeSet<(Rule, Party)>,
    pub(super) time: Duration,
    pub(super) connection: u32,
    /// Whether the processes run the check program.
    pub(super) program: bool,
}

impl AnalysisLog {
    pub(super) fn add_note(&mut self, section: &'static str, text: String) {
        self.notes.push(Note {
            time: self.time,
            connection: self.connection,
            section,
            text,
        });
    }

    /// Notes that a rule applied, and whether it was kept.
    pub(super) fn check(
        &mut self,
        rule: Rule,
        party: Party,
        holds: bool,
        operation: impl FnOnce() -> String,
    ) {
        self.applied_rules.insert((rule, party));
        let connection = self.connection;
        // Packets that all have the same fault are one finding for each connection.
        let known = |finding: &Finding| {
            (finding.rule, finding.party, finding.connection) == (rule, party, connection)
        };
        if !holds && !self.findings.iter().any(known) {
            self.findings.push(Finding {
                rule,
                party,
                connection,
                text: operation(),
            });
        }
    }
}
