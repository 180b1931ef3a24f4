//! The client's half of the conversation with the server: bytes in, bytes out, at the end the world.

use thiserror::Error;

use crate::auth::{CHALLENGE, Method, Secrets};
use crate::command::{Command, Inbox, int4};
use crate::world::{ClientOffer, ImpiJob, Label, LabelValues, WorldError};

/// Most that a reply of the server may have: as much as 32 clients may send.
const MAX_REPLY: usize = 512 << 20;

/// Reason for which a client cannot join.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StartupError {
    /// The server chose a method that was not offered.
    #[error("the server chose authentication method {0}, which was not offered")]
    Method(u32),
    /// A command where another is due.
    #[error("the server sent {got:?} instead of {expected_command:?}")]
    Unexpected {
        /// Command that was received.
        got: Command,
        /// Command that was due.
        expected_command: Command,
    },
    /// A reply of a length that it cannot have.
    #[error("invalid {0:?} with {1} bytes from the server")]
    Length(Command, i32),
    /// Fewer clients than ranks.
    #[error("invalid client {rank}: the job has {size} clients")]
    Size {
        /// Number of clients, from the server.
        size: i32,
        /// Rank of this client.
        rank: u32,
    },
    /// The server disconnected before the end.
    #[error("the server disconnected during {0}{hint}", hint = hint(.0))]
    Ended(&'static str),
    /// The values make no world.
    #[error(transparent)]
    World(#[from] WorldError),
}

fn hint(state: &str) -> &'static str {
    match state {
        "authentication" | "IMPI" => {
            "; check the authentication key, the client's rank, TLS, and the number of connections of the server"
        }
        _ => "",
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StartupState {
    Authenticating,
    Joining,
    /// Waits for the reply to the label of this index.
    Collecting(usize),
    Finishing,
    Started,
}

#[derive(Debug)]
pub struct Startup {
    secrets: Secrets,
    rank: u32,
    offer: ClientOffer,
    state: StartupState,
    inbox: Inbox,
    clients: usize,
    collected: LabelValues,
    wants_print_server: bool,
    has_print_server: bool,
    out: Vec<u8>,
}

impl Startup {
    /// Makes client `rank`, with its first command in [`Self::take_out`].
    pub fn new(secrets: Secrets, rank: u32, offer: ClientOffer) -> Self {
        let out = Command::Auth.unit(&secrets.mask().to_be_bytes());
        Self {
            secrets,
            rank,
            offer,
            state: StartupState::Authenticating,
            inbox: Inbox::default(),
            clients: 0,
            collected: LabelValues::new(),
            wants_print_server: false,
            has_print_server: false,
            out,
        }
    }

    /// Makes the client ask whether the server prints lines.
    #[must_use]
    pub fn with_print_request(mut self) -> Self {
        self.wants_print_server = true;
        self
    }

    /// Whether the server has answered that it prints lines.
    pub fn has_print_server(&self) -> bool {
        self.has_print_server
    }

    /// Bytes for the server.
    pub fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Returns the phase of the start-up, for messages.
    pub fn phase(&self) -> &'static str {
        match self.state {
            StartupState::Authenticating => "authentication",
            StartupState::Joining => "IMPI",
            StartupState::Collecting(_) => "COLL",
            StartupState::Finishing => "DONE",
            StartupState::Started => "the job",
        }
    }

    /// Takes bytes of the server; returns the world of all clients once the start-up is over.
    ///
    /// # Errors
    /// When the server breaks the protocol or the values make no world.
    pub fn received(&mut self, bytes: &[u8]) -> Result<Option<ImpiJob>, StartupError> {
        self.inbox.extend(bytes);
        while self.step()? {}
        if self.state != StartupState::Started {
            return Ok(None);
        }
        Ok(Some(ImpiJob::new(self.clients, &self.collected)?))
    }

    /// Returns the number of clients and the values, to pass them on.
    pub fn collected(&self) -> (usize, &LabelValues) {
        (self.clients, &self.collected)
    }

    fn step(&mut self) -> Result<bool, StartupError> {
        if self.state == StartupState::Started {
            return Ok(false);
        }
        if self.state == StartupState::Authenticating {
            return self.authenticate();
        }
        let Some(header) = self.inbox.header() else {
            return Ok(false);
        };
        let wrong = StartupError::Length(header.command, header.length);
        let length = usize::try_from(header.length)
            .ok()
            .filter(|length| *length <= MAX_REPLY);
        let length = length.ok_or_else(|| wrong.clone())?;
        let Some(unit) = self.inbox.take(8 + length) else {
            return Ok(false);
        };
        let payload = &unit[8..];
        let unexpected = |expected_command| StartupError::Unexpected {
            got: header.command,
            expected_command,
        };
        match (self.state, header.command) {
            (_, Command::Print) => self.has_print_server = true,
            // Commands of later versions are ignored.
            (_, Command::Unknown(_)) => {}
            (StartupState::Joining, Command::Impi) => {
                let size = int4(payload).filter(|_| length == 4).ok_or(wrong)?;
                let size_fits = i64::from(size) > i64::from(self.rank) && size <= 32;
                if !size_fits {
                    return Err(StartupError::Size {
                        size,
                        rank: self.rank,
                    });
                }
                self.clients = usize::try_from(size).expect("checked above");
                self.submit(0);
            }
            (StartupState::Collecting(_) | StartupState::Finishing, Command::Coll) => {
                let (label, mask) = int4(payload)
                    .zip(payload.get(4..).and_then(int4))
                    .ok_or(wrong)?;
                self.collected
                    .insert(label, (mask.cast_unsigned(), payload[8..].to_vec()));
                // Labels of others are kept and otherwise ignored.
                if let StartupState::Collecting(index) = self.state
                    && label == Label::ALL[index] as i32
                {
                    self.submit(index + 1);
                }
            }
            (StartupState::Finishing, Command::Done) => self.state = StartupState::Started,
            (StartupState::Joining, _) => return Err(unexpected(Command::Impi)),
            (StartupState::Finishing, _) => return Err(unexpected(Command::Done)),
            _ => return Err(unexpected(Command::Coll)),
        }
        Ok(true)
    }

    fn authenticate(&mut self) -> Result<bool, StartupError> {
        let Some(reply) = self.inbox.peek::<8>() else {
            return Ok(false);
        };
        let [a, b, c, d, e, f, g, h] = reply;
        let number = u32::from_be_bytes([a, b, c, d]);
        let follows = i32::from_be_bytes([e, f, g, h]);
        let offered = Method::from_number(number).filter(|method| self.secrets.has(*method));
        let method = offered.ok_or(StartupError::Method(number))?;
        let length = if method == Method::Token {
            CHALLENGE
        } else {
            0
        };
        if usize::try_from(follows) != Ok(length) {
            return Err(StartupError::Length(Command::Auth, follows));
        }
        let Some(reply) = self.inbox.take(8 + length) else {
            return Ok(false);
        };
        match method {
            Method::None => {}
            Method::Key => self
                .out
                .extend(self.secrets.key.unwrap_or_default().to_be_bytes()),
            Method::Token => self
                .out
                .extend(self.secrets.answer(&reply[8..]).unwrap_or_default()),
        }
        self.out
            .extend(Command::Impi.unit(&self.rank.to_be_bytes()));
        self.state = StartupState::Joining;
        Ok(true)
    }

    fn submit(&mut self, index: usize) {
        if let Some(label) = Label::ALL.get(index) {
            let mut payload = (*label as i32).to_be_bytes().to_vec();
            payload.extend(self.offer.value(*label));
            self.out.extend(Command::Coll.unit(&payload));
            self.state = StartupState::Collecting(index);
        } else {
            if self.wants_print_server {
                self.out.extend(Command::Print.unit(&[]));
            }
            self.out.extend(Command::Done.unit(&[]));
            self.state = StartupState::Finishing;
        }
    }
}
