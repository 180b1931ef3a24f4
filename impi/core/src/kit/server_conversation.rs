//! A conversation of a client with the server.

use std::collections::BTreeSet;

use super::analysis_log::{AnalysisLog, Party};
use super::conformance_rules::Rule;
use super::conversation_record::ConversationSide;
use super::job_analysis::Job;
use super::value_text;
use crate::auth::Method;
use crate::command::{Command, Inbox, int4};
use crate::world::Label;

/// Most that a unit may have; more is taken for garbage.
const MAX_UNIT: usize = 512 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum ConversationState {
    /// The AUTH command is due.
    #[default]
    Begun,
    /// The server's choice is due.
    Offered { masks: u32 },
    /// A proof of so many bytes is due from the client.
    Proving(usize),
    /// The client is authenticated.
    In,
    /// Further bytes cannot be parsed.
    Lost,
}

/// One connection to the server.
#[derive(Debug, Default)]
pub(super) struct ServerConversation {
    state: ConversationState,
    forth: Inbox,
    back: Inbox,
    client: Option<u32>,
    /// Whether the server has answered IMPI, and DONE.
    joined: bool,
    started: bool,
    fini: bool,
    answered: BTreeSet<i32>,
}

impl ServerConversation {
    pub(super) fn party(&self, connection: u32) -> Party {
        self.client
            .map_or(Party::Stranger(connection), Party::Client)
    }

    pub(super) fn bytes(
        &mut self,
        from: ConversationSide,
        bytes: &[u8],
        job: &mut Job,
        log: &mut AnalysisLog,
    ) {
        match from {
            ConversationSide::Forth => self.forth.extend(bytes),
            ConversationSide::Back => self.back.extend(bytes),
        }
        // Bytes of the client may have to wait for the server's choice.
        while self.state != ConversationState::Lost
            && (self.client_step(job, log) || self.server_step(job, log))
        {}
        let party = self.party(log.connection);
        if from == ConversationSide::Forth
            && matches!(self.state, ConversationState::Offered { .. })
        {
            log.check(Rule::AuthFirst, party, self.forth.is_empty(), || {
                "more than AUTH was sent before the server's answer".into()
            });
        }
        if from == ConversationSide::Back && self.fini {
            log.check(Rule::FiniNoReply, Party::Server, false, || {
                "the server answers FINI".into()
            });
        }
    }

    pub(super) fn end(&mut self, from: ConversationSide, log: &mut AnalysisLog) {
        let party = self.party(log.connection);
        if from == ConversationSide::Back {
            log.add_note("2.3.7", "the server closes the connection".into());
            if self.fini {
                log.check(Rule::FiniNoReply, Party::Server, true, String::new);
            }
            return;
        }
        log.add_note("2.3.7", format!("{party} closes the connection"));
        if self.client.is_some() {
            log.check(Rule::FiniSent, party, self.fini, || {
                "the connection ended before FINI".into()
            });
        }
    }

    pub(super) fn finish(&self, job: &Job, log: &mut AnalysisLog) {
        if self.started {
            let missing = job
                .collected
                .keys()
                .find(|label| !self.answered.contains(label));
            log.check(Rule::CollToAll, Party::Server, missing.is_none(), || {
                format!("no reply to label {:#x}", missing.unwrap_or(&0))
            });
        }
    }

    fn lose(&mut self, log: &mut AnalysisLog, why: &str) -> bool {
        log.add_note(
            "2.3.2",
            format!("{why}; the rest of the connection is not read"),
        );
        self.state = ConversationState::Lost;
        false
    }

    /// Reads the next unit of an end: command, length and payload.
    fn unit(
        &mut self,
        from: ConversationSide,
        log: &mut AnalysisLog,
    ) -> Option<(Command, Vec<u8>)> {
        let inbox = match from {
            ConversationSide::Forth => &mut self.forth,
            ConversationSide::Back => &mut self.back,
        };
        let header = inbox.header()?;
        let length = usize::try_from(header.length)
            .ok()
            .filter(|length| *length <= MAX_UNIT);
        let Some(length) = length else {
            self.lose(log, "a length that no unit has");
            return None;
        };
        let unit = inbox.take(8 + length)?;
        Some((header.command, unit[8..].to_vec()))
    }

    fn client_step(&mut self, job: &mut Job, log: &mut AnalysisLog) -> bool {
        match self.state {
            ConversationState::Begun => self.auth(log),
            ConversationState::Offered { .. } | ConversationState::Lost => false,
            ConversationState::Proving(length) => {
                let Some(_) = self.forth.take(length) else {
                    return false;
                };
                log.add_note("2.3.3", format!("the client proves itself, {length} bytes"));
                self.state = ConversationState::In;
                true
            }
            ConversationState::In => {
                let Some((command, payload)) = self.unit(ConversationSide::Forth, log) else {
                    return false;
                };
                self.on_client_command(command, &payload, job, log);
                true
            }
        }
    }

    fn auth(&mut self, log: &mut AnalysisLog) -> bool {
        let party = self.party(log.connection);
        if let Some(header) = self.forth.header() {
            let holds = header.command == Command::Auth;
            log.check(Rule::AuthFirst, party, holds, || {
                format!("the first command is {:?}", header.command)
            });
            if !holds {
                return self.lose(log, "the client does not begin with AUTH");
            }
        }
        let Some((_, payload)) = self.unit(ConversationSide::Forth, log) else {
            return false;
        };
        let holds = !payload.is_empty() && payload.len().is_multiple_of(4);
        log.check(Rule::AuthMask, party, holds, || {
            format!("AUTH has {} bytes", payload.len())
        });
        let masks = int4(&payload).unwrap_or_default().cast_unsigned();
        let offered = (0..32).filter(|bit| masks >> bit & 1 == 1);
        let names: Vec<String> = offered.map(value_text::method).collect();
        log.add_note(
            "2.3.3",
            format!("AUTH: the client offers {}", names.join(", ")),
        );
        self.state = ConversationState::Offered { masks };
        true
    }

    fn on_client_command(
        &mut self,
        command: Command,
        payload: &[u8],
        job: &mut Job,
        log: &mut AnalysisLog,
    ) {
        let party = self.party(log.connection);
        match (command, self.client) {
            (Command::Impi, None) => {
                let rank = int4(payload).and_then(|rank| u32::try_from(rank).ok());
                let free = |rank: &u32| *rank < 32 && !job.clients.contains_key(rank);
                let rank = rank.filter(|rank| payload.len() == 4 && free(rank));
                log.check(Rule::ImpiRank, party, rank.is_some(), || {
                    format!("IMPI {payload:?}: no rank, or one that is taken")
                });
                if let Some(rank) = rank {
                    log.add_note("2.3.4", format!("IMPI: client {rank}"));
                    self.client = Some(rank);
                    job.clients
                        .insert(rank, super::job_analysis::ClientConversation::default());
                }
            }
            (Command::Coll, Some(client)) if payload.len() >= 4 => {
                let label = int4(payload).unwrap_or_default();
                let value = labelled(label, &payload[4..]);
                log.add_note("2.3.5", format!("COLL of client {client}: {value}"));
                log.check(Rule::CollAfterImpi, party, self.joined, || {
                    format!("label {label:#x} was sent before the answer to IMPI")
                });
                job.sent(client, label, &payload[4..], log);
            }
            (Command::Done, Some(client)) => {
                log.add_note("2.3.6", format!("DONE: client {client} has no more labels"));
                log.check(Rule::DoneEmpty, party, payload.is_empty(), || {
                    format!("DONE has {} bytes", payload.len())
                });
                job.clients.entry(client).or_default().done = true;
                let missing = job.missing_label(client);
                log.check(Rule::LabelsAll, party, missing.is_none(), || {
                    format!("{} was not sent", missing.unwrap_or_default())
                });
            }
            (Command::Fini, Some(client)) => {
                log.add_note("2.3.7", format!("FINI: client {client} has finished"));
                log.check(Rule::FiniEmpty, party, payload.is_empty(), || {
                    format!("FINI has {} bytes", payload.len())
                });
                let open = job.open_channel(client);
                log.check(Rule::FiniAfterChannels, party, open.is_none(), || {
                    let (host, other) = open.unwrap_or_default();
                    format!("host {host} has not received FINI of host {other}")
                });
                self.fini = true;
            }
            (Command::Print, Some(client)) => log.add_note(
                "2.3.2",
                format!(
                    "PRNT, wireup's own: {} bytes of client {client} for a print server",
                    payload.len()
                ),
            ),
            (command, _) => note_meaningless(command, payload, log),
        }
    }

    fn server_step(&mut self, job: &mut Job, log: &mut AnalysisLog) -> bool {
        match self.state {
            ConversationState::Offered { masks } => self.choice(masks, log),
            ConversationState::In => {
                let Some((command, payload)) = self.unit(ConversationSide::Back, log) else {
                    return false;
                };
                self.on_server_command(command, &payload, job, log);
                true
            }
            _ => false,
        }
    }

    fn choice(&mut self, masks: u32, log: &mut AnalysisLog) -> bool {
        let Some(reply) = self.back.peek::<8>() else {
            return false;
        };
        let (which, follows) = (int4(&reply), int4(&reply[4..]));
        let which = which.unwrap_or_default().cast_unsigned();
        let follows = usize::try_from(follows.unwrap_or(-1)).unwrap_or(usize::MAX);
        let offered = masks.checked_shr(which).is_some_and(|bits| bits & 1 == 1);
        log.check(Rule::AuthChoice, Party::Server, offered, || {
            format!("{} was not offered", value_text::method(which))
        });
        let empty = |rule, log: &mut AnalysisLog| {
            log.check(rule, Party::Server, follows == 0, || {
                format!("{follows} bytes are to follow")
            });
        };
        let proof = match Method::from_number(which) {
            _ if follows > 1 << 16 => return self.lose(log, "a length that no answer has"),
            Some(Method::None) => {
                empty(Rule::AuthNone, log);
                0
            }
            Some(Method::Key) => {
                empty(Rule::AuthKey, log);
                8
            }
            Some(Method::Token) => crate::auth::CHALLENGE,
            None => return self.lose(log, "a method of which nothing is known"),
        };
        if self.back.take(8 + follows).is_none() {
            return false;
        }
        log.add_note(
            "2.3.3",
            format!("the server chooses {}", value_text::method(which)),
        );
        self.state = if proof == 0 {
            ConversationState::In
        } else {
            ConversationState::Proving(proof)
        };
        true
    }

    fn on_server_command(
        &mut self,
        command: Command,
        payload: &[u8],
        job: &mut Job,
        log: &mut AnalysisLog,
    ) {
        let party = self.party(log.connection);
        match command {
            Command::Impi => {
                let size = int4(payload).filter(|_| payload.len() == 4);
                log.add_note("2.3.4", format!("IMPI: {} clients", size.unwrap_or(-1)));
                let sent = i32::try_from(job.clients.len()).unwrap_or(i32::MAX);
                let same = size.is_some() && job.size.is_none_or(|known| Some(known) == size);
                log.check(Rule::ImpiSize, Party::Server, same, || {
                    format!(
                        "the size is {payload:?}, and {:?} for another client",
                        job.size
                    )
                });
                log.check(Rule::ImpiWaits, Party::Server, size <= Some(sent), || {
                    format!("{size:?} clients, of which {sent} have sent IMPI")
                });
                job.size = job.size.or(size);
                self.joined = true;
            }
            Command::Coll if payload.len() >= 8 => {
                let label = int4(payload).unwrap_or_default();
                let mask = int4(&payload[4..]).unwrap_or_default().cast_unsigned();
                let data = &payload[8..];
                let value = labelled(label, data);
                let note = format!("COLL to {party}, of clients {mask:#b}: {value}");
                log.add_note("2.3.5", note);
                job.answered(label, mask, data, log);
                self.answered.insert(label);
            }
            Command::Done => {
                log.add_note("2.3.6", format!("DONE to {party}: the start-up is over"));
                log.check(Rule::DoneEmpty, Party::Server, payload.is_empty(), || {
                    format!("DONE has {} bytes", payload.len())
                });
                let waits = job.clients.iter().find(|(_, client)| !client.done);
                log.check(Rule::DoneWaits, Party::Server, waits.is_none(), || {
                    format!("client {:?} has not sent DONE", waits.map(|(rank, _)| rank))
                });
                self.started = true;
            }
            command => note_meaningless(command, payload, log),
        }
    }
}

fn note_meaningless(command: Command, payload: &[u8], log: &mut AnalysisLog) {
    let length = payload.len();
    let note = format!("{command:?} with {length} bytes, which has no meaning here");
    log.add_note("2.3.2", note);
}

fn labelled(label: i32, data: &[u8]) -> String {
    Label::from_number(label).map_or_else(
        || format!("label {label:#x}, {} bytes", data.len()),
        |known| format!("{}: {}", known.name(), value_text::value(known, data)),
    )
}
