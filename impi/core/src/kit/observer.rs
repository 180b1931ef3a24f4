//! Explains a recorded conversation, and finds its violations of the rules.

use std::collections::{BTreeMap, BTreeSet};

use super::analysis_log::{AnalysisLog, Finding, Note, Party};
use super::conformance_rules::Rule;
use super::conversation_record::{Kind, RecordedAction, RecordedEvent};
use super::host_channel::RecordedChannel;
use super::job_analysis::Job;
use super::server_conversation::ServerConversation;

#[derive(Debug)]
enum ObservedConnection {
    Server(ServerConversation),
    Host(RecordedChannel),
}

/// Reads the events of a record.
#[derive(Debug, Default)]
pub struct Observer {
    job: Job,
    links: BTreeMap<u32, ObservedConnection>,
    log: AnalysisLog,
}

impl Observer {
    /// Creates an observer of a job; `program` is true if its processes run the check program.
    pub fn new(program: bool) -> Self {
        let mut observer = Self::default();
        observer.log.program = program;
        observer
    }

    /// Handles an event, and returns the explanations of it.
    pub fn event(&mut self, event: &RecordedEvent) -> Vec<Note> {
        self.log.time = event.time;
        self.log.connection = event.connection;
        let link = self.links.get_mut(&event.connection);
        match (&event.action, link) {
            (RecordedAction::Open(Kind::Server), _) => {
                self.log.add_note("2.3", "a client connects".into());
                self.links.insert(
                    event.connection,
                    ObservedConnection::Server(ServerConversation::default()),
                );
            }
            (RecordedAction::Open(Kind::Host(rank)), _) => {
                self.log
                    .add_note("2.3.8", format!("a host connects to host {rank}"));
                self.links.insert(
                    event.connection,
                    ObservedConnection::Host(RecordedChannel::new(*rank)),
                );
            }
            (RecordedAction::Bytes(direction, bytes), Some(ObservedConnection::Server(talk))) => {
                talk.bytes(*direction, bytes, &mut self.job, &mut self.log);
            }
            (RecordedAction::End(direction), Some(ObservedConnection::Server(talk))) => {
                talk.end(*direction, &mut self.log);
            }
            (RecordedAction::Bytes(direction, bytes), Some(ObservedConnection::Host(channel))) => {
                channel.bytes(*direction, bytes, &mut self.job, &mut self.log);
            }
            (RecordedAction::End(direction), Some(ObservedConnection::Host(channel))) => {
                channel.end(*direction, &self.job, &mut self.log);
            }
            (_, None) => self
                .log
                .add_note("2.3", "a connection whose beginning is missing".into()),
        }
        std::mem::take(&mut self.log.notes)
    }

    /// Checks the rules that only the end of the record can show.
    pub fn finish(&mut self) {
        for (connection, link) in &mut self.links {
            self.log.connection = *connection;
            match link {
                ObservedConnection::Server(talk) => talk.finish(&self.job, &mut self.log),
                ObservedConnection::Host(channel) => channel.finish(&self.job, &mut self.log),
            }
        }
    }

    /// Returns the violated rules, in the order of the record.
    pub fn findings(&self) -> Vec<Finding> {
        let known = |finding: &Finding| Finding {
            party: self.resolve_party(finding.party),
            ..finding.clone()
        };
        self.log.findings.iter().map(known).collect()
    }

    /// Returns the rules that applied to a party.
    pub fn applied_rules(&self, party: Party) -> BTreeSet<Rule> {
        let applied_rules = self.log.applied_rules.iter();
        applied_rules
            .filter(|(_, who)| self.resolve_party(*who) == party)
            .map(|(rule, _)| *rule)
            .collect()
    }

    fn resolve_party(&self, party: Party) -> Party {
        match party {
            Party::Stranger(connection) => match self.links.get(&connection) {
                Some(ObservedConnection::Server(talk)) => talk.party(connection),
                _ => party,
            },
            _ => party,
        }
    }
}
