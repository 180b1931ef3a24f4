//! What a recorded conversation is about, and where it is against the rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::channel::Channel;
use super::job::Job;
use super::record::{Event, Kind, What};
use super::rules::{Level, Rule};
use super::talk::Talk;

/// Who did something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Party {
    /// The server.
    Server,
    /// A client that has not said its rank, by its connection.
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
    /// On which connection.
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    pub rule: Rule,
    /// By whom.
    pub party: Party,
    /// On which connection.
    pub connection: u32,
    /// How.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.rule.level() {
            Level::Must => "violation",
            Level::Should => "advice",
            Level::Finding => "finding",
        };
        write!(
            f,
            "{level} {} [{}] by {} on connection {}: {}",
            self.rule.name(),
            self.rule.section(),
            self.party,
            self.connection,
            self.what
        )
    }
}

/// What is written down about a conversation.
#[derive(Debug, Default)]
pub(super) struct Log {
    notes: Vec<Note>,
    findings: Vec<Finding>,
    seen: BTreeSet<(Rule, Party)>,
    time: Duration,
    connection: u32,
    /// Whether the processes run the check program.
    pub(super) program: bool,
}

impl Log {
    pub(super) fn connection(&self) -> u32 {
        self.connection
    }

    pub(super) fn say(&mut self, section: &'static str, text: String) {
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
        what: impl FnOnce() -> String,
    ) {
        self.seen.insert((rule, party));
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
                what: what(),
            });
        }
    }
}

#[derive(Debug)]
enum Link {
    Server(Talk),
    Host(Channel),
}

/// Reads the events of a record.
#[derive(Debug, Default)]
pub struct Observer {
    job: Job,
    links: BTreeMap<u32, Link>,
    log: Log,
}

impl Observer {
    /// Of a job whose processes run the check program, or anything.
    pub fn new(program: bool) -> Self {
        let mut observer = Self::default();
        observer.log.program = program;
        observer
    }

    /// Takes an event; what it says.
    pub fn event(&mut self, event: &Event) -> Vec<Note> {
        self.log.time = event.time;
        self.log.connection = event.connection;
        let link = self.links.get_mut(&event.connection);
        match (&event.what, link) {
            (What::Open(Kind::Server), _) => {
                self.log.say("2.3", "a client connects".into());
                self.links
                    .insert(event.connection, Link::Server(Talk::default()));
            }
            (What::Open(Kind::Host(rank)), _) => {
                self.log
                    .say("2.3.8", format!("a host connects to host {rank}"));
                self.links
                    .insert(event.connection, Link::Host(Channel::new(*rank)));
            }
            (What::Bytes(direction, bytes), Some(Link::Server(talk))) => {
                talk.bytes(*direction, bytes, &mut self.job, &mut self.log);
            }
            (What::End(direction), Some(Link::Server(talk))) => {
                talk.end(*direction, &mut self.log);
            }
            (What::Bytes(direction, bytes), Some(Link::Host(channel))) => {
                channel.bytes(*direction, bytes, &mut self.job, &mut self.log);
            }
            (What::End(direction), Some(Link::Host(channel))) => {
                channel.end(*direction, &self.job, &mut self.log);
            }
            (_, None) => self
                .log
                .say("2.3", "a connection whose beginning is missing".into()),
        }
        std::mem::take(&mut self.log.notes)
    }

    /// Checks what only the end of the record shows.
    pub fn finish(&mut self) {
        for (connection, link) in &mut self.links {
            self.log.connection = *connection;
            match link {
                Link::Server(talk) => talk.finish(&self.job, &mut self.log),
                Link::Host(channel) => channel.finish(&self.job, &mut self.log),
            }
        }
    }

    /// The rules that were not kept, in the order of the record.
    pub fn findings(&self) -> Vec<Finding> {
        let known = |finding: &Finding| Finding {
            party: self.known(finding.party),
            ..finding.clone()
        };
        self.log.findings.iter().map(known).collect()
    }

    /// The rules that applied to someone.
    pub fn seen(&self, party: Party) -> BTreeSet<Rule> {
        let seen = self.log.seen.iter();
        seen.filter(|(_, who)| self.known(*who) == party)
            .map(|(rule, _)| *rule)
            .collect()
    }

    fn known(&self, party: Party) -> Party {
        match party {
            Party::Stranger(connection) => match self.links.get(&connection) {
                Some(Link::Server(talk)) => talk.party(connection),
                _ => party,
            },
            _ => party,
        }
    }
}
