//! Handshake of a PMI connection over TCP: identifies the client's rank and authenticates it before the rank's PMI
//! server sees the connection.
//!
//! ```text
//!          ┌─ initack ──────────────────────────────────────────────▶ admitted
//! first ───┼─ init 2 ──▶ full ── fullinit ─┬─────────────────────────▶ admitted
//!          │                               └─ challenge ── answer ──▶ admitted (several of both in some types)
//!          └─ init_oob ──▶ aside
//! ```
//! The caller reads bytes and executes the result of [`TcpHandshake::receive`]. The bytes of an admitted client go to
//! the server unchanged. The server's answer to the line of a PMI-2 init was sent already, so the caller drops that
//! answer. The first `fullinit` of a connection for several ranks has a `client_id`, which the replies repeat; the bytes
//! of an admitted one are for a [`ClientMultiplexer`](super::client_multiplexer::ClientMultiplexer).
//!
//! Rule: a PMI-1 client states its rank in `initack`, a PMI-2 client in `fullinit`. Source: docs/pmi-wire.md#tcp-mode.

use super::challenge::{AuthRound, Authentication, ClientAuth};
use super::client_multiplexer::{CLIENT_ID, RC_OTHER};
use super::command::PmiCommand;
use super::limits::COMMAND_MAX;
use super::request::PmiRequest;
use super::wire_v1::{Pmi1Line, ProtocolError, excerpt, number};
use super::wire_v2::{FrameBuilder, HEADER, Pmi2Frame, length};
use super::{request_v1, request_v2};
use crate::job::ids::{Nspace, Rank};

/// Most bytes of a client that is not admitted: real ones send fewer than 200.
pub const START_MAX: usize = 4096;

/// Reason for which a connection is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TcpHandshakeError {
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("no start of PMI within {START_MAX} bytes")]
    TooLong,
    #[error(
        "the client starts with `{0}`: a client of PMI-1 starts with initack, which needs PMI_ID"
    )]
    NotAStart(String),
    #[error("unsupported PMI version {0}")]
    Version(u32),
    #[error("the client does not state its rank: PMI_ID must be set")]
    NoRank,
    #[error("wrong rank: the client claims rank {claimed}, this port serves rank {expected}")]
    WrongRank { claimed: u32, expected: u32 },
    #[error(
        "wrong job: the client claims job `{claimed}` (PMI_JOBID), this port serves job {expected}"
    )]
    WrongJob { claimed: String, expected: Nspace },
    #[error("the client has no key, and this port requires one (--pmi-port-auth)")]
    ProofRequired,
    #[error(
        "unsupported authentication `{0}`; use challenge-hmac-sha256, or allow challenge-sha256 by --pmi-port-auth"
    )]
    UnknownProof(String),
    #[error("authentication failed: wrong key")]
    WrongKey,
    #[error(
        "the connection has a message of another client_id before its first client is admitted"
    )]
    EarlyClient,
}

/// State of a connection after the received bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum HandshakeOutcome {
    /// The handshake needs more bytes.
    Open,
    /// The connection is that of the rank's client.
    Admitted {
        /// Bytes for the rank's server.
        received: Vec<u8>,
        /// The server's first line answers a request that has been answered already.
        greeted: bool,
        /// Whether the connection is for several ranks.
        is_multiplexed: bool,
    },
    /// The connection carries notices for an admitted client, each with a signal if the client has requested one.
    Aside {
        signal: Option<Vec<u8>>,
    },
    Refused(TcpHandshakeError),
}

/// The answer to received bytes: to be sent in any case, before the verdict is carried out.
#[derive(Debug, PartialEq, Eq)]
pub struct HandshakeReply {
    pub reply: Vec<u8>,
    pub verdict: HandshakeOutcome,
}

#[derive(Debug, PartialEq, Eq)]
enum HandshakeState {
    First,
    /// After a PMI-2 init of this length.
    Full(usize),
    /// After a fullinit, with everything up to its end being for the server.
    Challenged(usize),
}

/// State of the handshake with one client.
#[derive(Debug)]
pub struct TcpHandshake {
    rank: Rank,
    size: u32,
    /// Job of the rank; `None` if unknown.
    job: Option<Nspace>,
    proof: ClientAuth,
    /// Random bytes for the challenge.
    random: [u8; 16],
    /// Authentication of the client, once it has chosen a type.
    authentication: Option<Box<dyn Authentication>>,
    /// Whether the messages have a `client_id`.
    is_multiplexed: bool,
    received: Vec<u8>,
    state: HandshakeState,
}

impl TcpHandshake {
    /// Starts a handshake on a port of a rank. The random bytes must be new for each.
    pub fn new(
        rank: Rank,
        size: u32,
        job: Option<Nspace>,
        proof: ClientAuth,
        random: [u8; 16],
    ) -> Self {
        Self {
            rank,
            size,
            job,
            proof,
            random,
            authentication: None,
            is_multiplexed: false,
            received: Vec::new(),
            state: HandshakeState::First,
        }
    }

    /// Takes bytes in any pieces. Nothing may be given to it after a verdict that is not [`HandshakeOutcome::Open`].
    pub fn receive(&mut self, bytes: &[u8]) -> HandshakeReply {
        self.received.extend_from_slice(bytes);
        let mut reply = Vec::new();
        let verdict = match self.advance(&mut reply) {
            Ok(Some(verdict)) => verdict,
            Ok(None) if self.received.len() > START_MAX => {
                self.refuse(TcpHandshakeError::TooLong, &mut reply)
            }
            Ok(None) => HandshakeOutcome::Open,
            Err(error) => self.refuse(error, &mut reply),
        };
        HandshakeReply { reply, verdict }
    }

    fn advance(
        &mut self,
        reply: &mut Vec<u8>,
    ) -> Result<Option<HandshakeOutcome>, TcpHandshakeError> {
        loop {
            match self.state {
                HandshakeState::First => {
                    let window = &self.received[..self.received.len().min(START_MAX)];
                    let Some(end) = memchr::memchr(b'\n', window) else {
                        return Ok(None);
                    };
                    if let Some(verdict) = self.first(end, reply)? {
                        return Ok(Some(verdict));
                    }
                }
                HandshakeState::Full(start) => {
                    let Some(end) = self.frame_end(start)? else {
                        return Ok(None);
                    };
                    if let Some(verdict) = self.full(start, end, reply)? {
                        return Ok(Some(verdict));
                    }
                }
                HandshakeState::Challenged(start) => {
                    let Some(end) = self.frame_end(start)? else {
                        return Ok(None);
                    };
                    let frame = Pmi2Frame::parse(&self.received[start + HEADER..end])?;
                    if self.is_multiplexed
                        && frame.get(CLIENT_ID).and_then(number) != Some(self.rank.0)
                    {
                        return Err(TcpHandshakeError::EarlyClient);
                    }
                    let message = frame.get("authinfo").unwrap_or_default();
                    let authentication = self.authentication.as_mut();
                    let round = authentication.map(|kind| kind.take(message));
                    match (frame.name, round) {
                        (b"auth-response", Some(AuthRound::Send(text))) => {
                            reply.extend(self.auth_response(&text));
                            self.received.drain(start..end);
                        }
                        (b"auth-response-complete", Some(AuthRound::Accepted)) => {
                            self.received.drain(start..end);
                            return Ok(Some(self.admitted(0, true)));
                        }
                        _ => return Err(TcpHandshakeError::WrongKey),
                    }
                }
            }
        }
    }

    /// Returns the end of the frame that starts there, if it has arrived.
    fn frame_end(&self, start: usize) -> Result<Option<usize>, TcpHandshakeError> {
        let Some(header) = self.received.get(start..start + HEADER) else {
            return Ok(None);
        };
        let end = start + HEADER + length(header)?;
        if end > START_MAX {
            return Err(TcpHandshakeError::TooLong);
        }
        Ok((self.received.len() >= end).then_some(end))
    }

    /// Handles the first line, which ends there.
    fn first(
        &mut self,
        end: usize,
        reply: &mut Vec<u8>,
    ) -> Result<Option<HandshakeOutcome>, TcpHandshakeError> {
        let line = Pmi1Line::parse(&self.received[..end])?;
        match line.name {
            b"initack" => {
                let [claimed] = request_v1::pick(line.fields(), ["pmiid"])?;
                self.check_rank(claimed)?;
                if self.proof.required {
                    return Err(TcpHandshakeError::ProofRequired);
                }
                let (rank, size) = (self.rank, self.size);
                reply.extend_from_slice(
                    format!("cmd=initack rc=0\ncmd=set size={size}\ncmd=set rank={rank}\ncmd=set debug=0\n")
                        .as_bytes(),
                );
                Ok(Some(self.admitted(end + 1, false)))
            }
            b"init_oob" => {
                let [signal] = request_v1::pick(line.fields(), ["signal"])?;
                let signal = signal.filter(|signal| *signal != b"NONE");
                if self.proof.required {
                    return Err(TcpHandshakeError::ProofRequired);
                }
                Ok(Some(HandshakeOutcome::Aside {
                    signal: signal.map(<[u8]>::to_vec),
                }))
            }
            b"init" => match request_v1::parse(&line)?.1 {
                Ok(PmiRequest::Init { version: 2, .. }) => {
                    let answer = b"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n";
                    reply.extend_from_slice(answer);
                    self.state = HandshakeState::Full(end + 1);
                    Ok(None)
                }
                Ok(PmiRequest::Init { version, .. }) if version != 1 => {
                    Err(TcpHandshakeError::Version(version))
                }
                _ => Err(TcpHandshakeError::NotAStart("cmd=init".to_owned())),
            },
            name => Err(TcpHandshakeError::NotAStart(excerpt(
                &name[..name.len().min(COMMAND_MAX)],
            ))),
        }
    }

    /// Handles the frame in that range, which must be a fullinit.
    fn full(
        &mut self,
        start: usize,
        end: usize,
        reply: &mut Vec<u8>,
    ) -> Result<Option<HandshakeOutcome>, TcpHandshakeError> {
        let frame = Pmi2Frame::parse(&self.received[start + HEADER..end])?;
        let call = request_v2::call(&frame);
        if call.command != PmiCommand::FullInit {
            return Err(TcpHandshakeError::NotAStart(excerpt(frame.name)));
        }
        if let Some(claimed) = frame.get(CLIENT_ID) {
            self.check_rank(Some(claimed))?;
            self.is_multiplexed = true;
        }
        let claimed = frame.get("pmirank").or_else(|| frame.get("srcid"));
        self.check_rank(claimed)?;
        self.check_job(request_v2::claimed_job(&frame))?;
        match frame.get("authtype").unwrap_or_default() {
            b"" | b"none" if self.proof.required => Err(TcpHandshakeError::ProofRequired),
            b"" | b"none" => Ok(Some(self.admitted(0, true))),
            kind => {
                let started = self.proof.start(kind, self.random);
                let unknown = || TcpHandshakeError::UnknownProof(excerpt(kind));
                let mut authentication = started.ok_or_else(unknown)?;
                let message = frame.get("authinfo").unwrap_or_default();
                let AuthRound::Send(text) = authentication.take(message) else {
                    return Err(TcpHandshakeError::WrongKey);
                };
                reply.extend(self.auth_response(&text));
                self.authentication = Some(authentication);
                self.state = HandshakeState::Challenged(end);
                Ok(None)
            }
        }
    }

    fn check_rank(&self, claimed: Option<&[u8]>) -> Result<(), TcpHandshakeError> {
        let claimed = claimed
            .and_then(number::<u32>)
            .ok_or(TcpHandshakeError::NoRank)?;
        match claimed == self.rank.0 {
            true => Ok(()),
            false => Err(TcpHandshakeError::WrongRank {
                claimed,
                expected: self.rank.0,
            }),
        }
    }

    fn check_job(&self, claimed: Option<&[u8]>) -> Result<(), TcpHandshakeError> {
        match (claimed, &self.job) {
            (Some(claimed), Some(own)) if claimed != own.as_str().as_bytes() => {
                Err(TcpHandshakeError::WrongJob {
                    claimed: excerpt(claimed),
                    expected: own.clone(),
                })
            }
            _ => Ok(()),
        }
    }

    fn admitted(&mut self, from: usize, greeted: bool) -> HandshakeOutcome {
        let mut received = std::mem::take(&mut self.received);
        received.drain(..from);
        HandshakeOutcome::Admitted {
            received,
            greeted,
            is_multiplexed: self.is_multiplexed,
        }
    }

    /// Formats the server's message of a round.
    fn auth_response(&self, text: &str) -> Vec<u8> {
        let message = FrameBuilder::command(b"auth-response");
        self.addressed(message.field("authinfo", text.as_bytes()))
    }

    /// Completes a message to the client, with its `client_id` if it has one.
    fn addressed(&self, message: FrameBuilder) -> Vec<u8> {
        match self.is_multiplexed {
            true => message.number(CLIENT_ID, self.rank.0.into()).end(),
            false => message.end(),
        }
    }

    /// Writes a refusal in the client's own form, so that its message can name the reason.
    fn refuse(&self, error: TcpHandshakeError, reply: &mut Vec<u8>) -> HandshakeOutcome {
        match self.state {
            HandshakeState::First => {
                reply.extend_from_slice(b"cmd=initack rc=-1 msg=refused\n");
            }
            HandshakeState::Full(_) | HandshakeState::Challenged(_) => {
                let refusal = FrameBuilder::response(b"fullinit");
                let refusal = refusal
                    .number("rc", RC_OTHER)
                    .text("errmsg", &error.to_string());
                reply.extend(self.addressed(refusal));
            }
        }
        HandshakeOutcome::Refused(error)
    }
}

#[cfg(test)]
mod tests;
