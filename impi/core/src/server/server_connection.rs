//! One connection: from bytes to requests, authentication included.

use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;

use super::SessionId;
use crate::auth::{CHALLENGE, Method, Secrets, choose};
use crate::command::{Command, Inbox, int4, words};

/// Bytes of one COLL command, and of all that a client has waiting.
pub const MAX_COLL: usize = 16 << 20;

/// Most bytes of a PRNT command; a longer one is discarded.
pub const MAX_PRINT: usize = 64 << 10;

/// Words of the mask: 2,048 methods.
const MAX_AUTH: usize = 256;

/// Protocol violation of a client, or a missing step of it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ProtocolViolation {
    /// A newer connection has taken the place of this one.
    #[error("dropped: it has not joined, and a newer connection needs its place")]
    Replaced,
    /// AUTH must be the first command.
    #[error("the first command is not AUTH")]
    NotAuth,
    /// The client sent AUTH twice.
    #[error("a second AUTH command")]
    SecondAuth,
    /// The client sent IMPI twice.
    #[error("a second IMPI command")]
    SecondImpi,
    /// A payload of a length that the command does not have.
    #[error("invalid payload of {length} bytes for {command}")]
    Length {
        /// Name of the command.
        command: &'static str,
        length: i32,
    },
    /// Masks have nothing in common.
    #[error("no authentication method in common")]
    NoMethod,
    /// The answer to the method is wrong.
    #[error("authentication failed: wrong key or token")]
    Wrong,
    /// A rank outside the job.
    #[error("rank out of range: the job has {count} clients")]
    Rank {
        /// Clients of the job.
        count: u32,
    },
    /// Two clients with one rank.
    #[error("rank {rank} is already taken by {holder}")]
    Taken {
        rank: u32,
        /// Address of the first.
        holder: String,
    },
    /// A command that needs an earlier one.
    #[error("{0} before IMPI")]
    Early(&'static str),
    /// The client's labels do not ascend.
    #[error("label {label:#x} after {before:#x}: labels must ascend")]
    Order {
        label: i32,
        /// The last before it.
        before: i32,
    },
    /// COLL or DONE after DONE.
    #[error("{0} after DONE")]
    Late(&'static str),
    /// The client sent FINI before DONE.
    #[error("FINI before DONE of all clients")]
    EarlyFini,
    /// The client sent more than the server stores for one client.
    #[error("more than 16 MiB wait for other clients")]
    Flood,
    /// Nothing came in time.
    #[error("did not join in time")]
    Silent,
    /// The client disconnected before FINI.
    #[error("disconnected before FINI")]
    Lost,
    /// The connection ended before it joined.
    #[error("disconnected before it joined")]
    Unfinished {
        /// Whether it had sent anything: port scanners do not.
        greeted: bool,
    },
}

/// Request of a connection.
#[derive(Debug)]
pub(super) enum Request {
    Send(Vec<u8>),
    Accepted(Method),
    Join(i32),
    Coll(i32, Vec<u8>),
    Done,
    Fini,
    Print(Vec<u8>),
}

#[derive(Debug)]
enum Phase {
    Greeting,
    /// The reply with this method was sent; the answer to it has this number of bytes.
    Proving(Method, usize),
    Authenticated,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: String,
    /// Source of the connection, as counted.
    pub(super) source: IpAddr,
    pub(super) inbox: Inbox,
    /// Session and rank of the client, once it has joined.
    pub(super) member: Option<(SessionId, u32)>,
    /// Time by which the client must have joined.
    pub(super) deadline: Option<Duration>,
    phase: Phase,
    challenge: [u8; CHALLENGE],
    greeted: bool,
}

impl Connection {
    pub(super) fn new(
        peer: String,
        source: IpAddr,
        challenge: [u8; CHALLENGE],
        deadline: Duration,
    ) -> Self {
        Self {
            peer,
            source,
            inbox: Inbox::default(),
            member: None,
            deadline: Some(deadline),
            phase: Phase::Greeting,
            challenge,
            greeted: false,
        }
    }

    /// Whether bytes have arrived.
    pub(super) fn has_input(&self) -> bool {
        self.greeted || !self.inbox.is_empty()
    }

    /// Returns the violation for the end of the connection.
    pub(super) fn lost(&self) -> ProtocolViolation {
        match (&self.member, &self.phase) {
            (Some(_), _) => ProtocolViolation::Lost,
            (None, _) => ProtocolViolation::Unfinished {
                greeted: self.greeted,
            },
        }
    }

    /// Returns the next request, once all its bytes have arrived.
    pub(super) fn next(
        &mut self,
        preference: &[Method],
        secrets: &Secrets,
    ) -> Result<Option<Request>, ProtocolViolation> {
        self.greeted |= !self.inbox.is_empty();
        match self.phase {
            Phase::Greeting => self.greeting(preference, secrets),
            Phase::Proving(Method::None, _) => {
                self.phase = Phase::Authenticated;
                Ok(Some(Request::Accepted(Method::None)))
            }
            Phase::Proving(method, bytes) => {
                let Some(proof) = self.inbox.take(bytes) else {
                    return Ok(None);
                };
                let right = match method {
                    Method::Key => secrets.is_key(&proof),
                    _ => secrets.answers(&self.challenge, &proof),
                };
                if !right {
                    return Err(ProtocolViolation::Wrong);
                }
                self.phase = Phase::Authenticated;
                Ok(Some(Request::Accepted(method)))
            }
            Phase::Authenticated => self.command(),
        }
    }

    fn greeting(
        &mut self,
        preference: &[Method],
        secrets: &Secrets,
    ) -> Result<Option<Request>, ProtocolViolation> {
        // A first byte that is none of AUTH is answered without waiting for the rest.
        if self.inbox.peek::<1>().is_some_and(|first| first != *b"A") {
            return Err(ProtocolViolation::NotAuth);
        }
        let Some(header) = self.inbox.header() else {
            return Ok(None);
        };
        if header.command != Command::Auth {
            return Err(ProtocolViolation::NotAuth);
        }
        let wrong = ProtocolViolation::Length {
            command: "AUTH",
            length: header.length,
        };
        let length = usize::try_from(header.length).map_err(|_| wrong.clone())?;
        if length == 0 || length % 4 != 0 || length > MAX_AUTH {
            return Err(wrong);
        }
        let Some(unit) = self.inbox.take(8 + length) else {
            return Ok(None);
        };
        let masks = words(&unit[8..]);
        let method = choose(preference, secrets, &masks).ok_or(ProtocolViolation::NoMethod)?;
        let follows: &[u8] = if method == Method::Token {
            &self.challenge
        } else {
            &[]
        };
        let mut reply = method.number().to_be_bytes().to_vec();
        reply.extend_from_slice(
            &u32::try_from(follows.len())
                .expect("32 bytes at most")
                .to_be_bytes(),
        );
        reply.extend_from_slice(follows);
        let proof = match method {
            Method::None => 0,
            Method::Key => 8,
            Method::Token => CHALLENGE,
        };
        self.phase = Phase::Proving(method, proof);
        Ok(Some(Request::Send(reply)))
    }

    fn command(&mut self) -> Result<Option<Request>, ProtocolViolation> {
        loop {
            let Some(header) = self.inbox.header() else {
                return Ok(None);
            };
            let wrong = |command| ProtocolViolation::Length {
                command,
                length: header.length,
            };
            let length = usize::try_from(header.length);
            let exactly = |command, expected| match length {
                Ok(length) if length == expected => Ok(()),
                _ => Err(wrong(command)),
            };
            match header.command {
                Command::Auth => return Err(ProtocolViolation::SecondAuth),
                Command::Impi => {
                    exactly("IMPI", 4)?;
                    let Some(unit) = self.inbox.take(12) else {
                        return Ok(None);
                    };
                    if self.member.is_some() {
                        return Err(ProtocolViolation::SecondImpi);
                    }
                    return Ok(int4(&unit[8..]).map(Request::Join));
                }
                Command::Coll => {
                    if self.member.is_none() {
                        return Err(ProtocolViolation::Early("COLL"));
                    }
                    let fits = length.ok().filter(|length| (4..=MAX_COLL).contains(length));
                    let length = fits.ok_or_else(|| wrong("COLL"))?;
                    let Some(mut unit) = self.inbox.take(8 + length) else {
                        return Ok(None);
                    };
                    let data = unit.split_off(12);
                    return Ok(int4(&unit[8..]).map(|label| Request::Coll(label, data)));
                }
                Command::Done => {
                    exactly("DONE", 0)?;
                    self.inbox.skip(8);
                    return Ok(Some(Request::Done));
                }
                Command::Fini => {
                    exactly("FINI", 0)?;
                    self.inbox.skip(8);
                    return Ok(Some(Request::Fini));
                }
                Command::Print
                    if self.member.is_some()
                        && let Some(length) = length.ok().filter(|length| *length <= MAX_PRINT) =>
                {
                    let Some(unit) = self.inbox.take(8 + length) else {
                        return Ok(None);
                    };
                    return Ok(Some(Request::Print(unit[8..].to_vec())));
                }
                Command::Print | Command::Unknown(_) => {
                    let length = length.map_err(|_| wrong("an unknown command"))?;
                    self.inbox.skip(8 + length);
                }
            }
        }
    }
}
