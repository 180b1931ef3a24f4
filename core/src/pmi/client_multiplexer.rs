//! Connection of PMI-2 that carries the messages of several ranks, as a forwarding daemon has it. Each message has its
//! rank as `client_id`.
//!
//! ```text
//!                                    ┌── port of rank 0
//! daemon ── client_id=0, 1, 2 ───────┼── port of rank 1
//!                                    └── port of rank 2
//! ```
//! The caller connects with the port of each rank. A request goes to the port of its rank without `client_id`; a reply
//! gets it. So each port sees one client, which it admits by its own rules ([`tcp_handshake`](super::tcp_handshake)), and
//! the server of each rank sees one connection.
//!
//! Rule: the first message of a rank is its `fullinit`; a rank has one `client_id`, its number. Source:
//! docs/pmi2-wire.md#one-connection-for-several-ranks.

use std::collections::BTreeMap;

use super::command::PmiCommand;
use super::request_v2;
use super::wire_v1::{ProtocolError, excerpt, number};
use super::wire_v2::{FrameBuilder, Message, Pmi2Frame, Pmi2Framer};
use crate::job::ids::Rank;

/// Key with the rank to which a message belongs.
pub const CLIENT_ID: &str = "client_id";

/// PMI-2's code for "something else".
pub(super) const RC_OTHER: i64 = 14;

/// Effect of a message of the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MultiplexerAction {
    /// Connect with the port of this rank, in place of an earlier connection. [`ClientMultiplexer::on_port_closed`] takes a failure.
    Connect(Rank),
    /// Send bytes to the port of this rank.
    Forward(Rank, Vec<u8>),
    /// Send bytes to the daemon.
    Reply(Vec<u8>),
}

/// Reply of a rank's port to `fullinit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Admission {
    Pending,
    Admitted,
    Refused,
}

/// State of one rank.
#[derive(Debug)]
struct MultiplexedClient {
    replies: Pmi2Framer,
    admission: Admission,
}

/// State of the connection.
#[derive(Debug, Default)]
pub struct ClientMultiplexer {
    requests: Pmi2Framer,
    /// First line of the daemon, with its newline.
    init: Vec<u8>,
    clients: BTreeMap<Rank, MultiplexedClient>,
}

impl ClientMultiplexer {
    /// Takes bytes of the daemon, in any pieces, from the line of `init` on.
    ///
    /// # Errors
    /// A [`ProtocolError`] ends the connection.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<Vec<MultiplexerAction>, ProtocolError> {
        let mut actions = Vec::new();
        while let Some(message) = self.requests.next(&mut bytes)? {
            match message {
                Message::Line(line) if self.init.is_empty() => {
                    self.init = [line, b"\n"].concat();
                }
                Message::Line(line) => return Err(ProtocolError::NotAFrame(excerpt(line))),
                Message::Frame(text) => {
                    let frame = Pmi2Frame::parse(text)?;
                    forward_frame(&mut self.clients, &self.init, &frame, &mut actions);
                }
            }
        }
        Ok(actions)
    }

    /// Takes bytes from the port of a rank. Returns bytes for the daemon.
    ///
    /// # Errors
    /// A [`ProtocolError`] ends the connection.
    pub fn receive_from_port(
        &mut self,
        rank: Rank,
        mut bytes: &[u8],
    ) -> Result<Vec<u8>, ProtocolError> {
        let mut replies = Vec::new();
        let Some(client) = self.clients.get_mut(&rank) else {
            return Ok(replies);
        };
        while let Some(message) = client.replies.next(&mut bytes)? {
            // The daemon has had its reply to the line of `init`.
            let Message::Frame(text) = message else {
                continue;
            };
            let frame = Pmi2Frame::parse(text)?;
            if frame.name == b"fullinit-response" {
                client.admission = match frame.get("rc") {
                    Some(b"0") => Admission::Admitted,
                    _ => Admission::Refused,
                };
            }
            let reply = without_client_id(&frame);
            replies.extend(reply.number(CLIENT_ID, rank.0.into()).end());
        }
        Ok(replies)
    }

    /// Removes a rank whose port has closed its connection, or cannot be reached. Returns bytes for the daemon; `None` if the
    /// rank was admitted, since its requests get no replies then: the caller closes the connection.
    pub fn on_port_closed(&mut self, rank: Rank, reason: &str) -> Option<Vec<u8>> {
        let client = self.clients.remove(&rank)?;
        match client.admission {
            Admission::Pending => {
                let reply = FrameBuilder::response(b"fullinit").number("rc", RC_OTHER);
                let reply = reply.text("errmsg", reason);
                Some(reply.number(CLIENT_ID, rank.0.into()).end())
            }
            Admission::Refused => Some(Vec::new()),
            Admission::Admitted => None,
        }
    }
}

/// Forwards a frame to the port of its rank, or refuses it.
fn forward_frame(
    clients: &mut BTreeMap<Rank, MultiplexedClient>,
    init: &[u8],
    frame: &Pmi2Frame<'_>,
    actions: &mut Vec<MultiplexerAction>,
) {
    let stated = frame.get(CLIENT_ID).unwrap_or_default();
    let is_fullinit = request_v2::call(frame).command == PmiCommand::FullInit;
    let rank = number::<u32>(stated).map(Rank);
    // A refused client may try again before its port has closed the connection.
    let client = rank.and_then(|rank| clients.get(&rank));
    let is_known = client.is_some_and(|client| client.admission != Admission::Refused);
    let refusal = match rank {
        None => Some("client_id is not a rank"),
        Some(_) => match (is_known, is_fullinit) {
            (false, false) => Some("client_id without fullinit"),
            (true, true) => Some("client_id has sent fullinit already"),
            _ => None,
        },
    };
    match (rank, refusal) {
        (Some(rank), None) => {
            if !is_known {
                let client = MultiplexedClient {
                    replies: Pmi2Framer::default(),
                    admission: Admission::Pending,
                };
                clients.insert(rank, client);
                actions.push(MultiplexerAction::Connect(rank));
                actions.push(MultiplexerAction::Forward(rank, init.to_vec()));
            }
            let request = without_client_id(frame).end();
            actions.push(MultiplexerAction::Forward(rank, request));
        }
        (_, reason) => {
            let reply = FrameBuilder::response(frame.name);
            let reply = reply.field("thrid", frame.get("thrid").unwrap_or_default());
            let reply = reply.number("rc", RC_OTHER);
            let reply = reply.text("errmsg", reason.unwrap_or_default());
            let reply = reply.field(CLIENT_ID, stated);
            actions.push(MultiplexerAction::Reply(reply.end()));
        }
    }
}

/// Copies a frame except `client_id`.
fn without_client_id(frame: &Pmi2Frame<'_>) -> FrameBuilder {
    let pairs = frame.pairs();
    let pairs = pairs.filter(|(key, _)| *key != CLIENT_ID.as_bytes());
    pairs.fold(FrameBuilder::command(frame.name), |copy, (key, value)| {
        copy.maybe_empty(key, value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INIT: &str = "cmd=init pmi_version=2 pmi_subversion=0\n";

    fn frame(text: &str) -> String {
        format!("{:>6}{text}", text.len())
    }

    /// Returns the actions as text, one a line; bytes for ports and the daemon without their lengths.
    fn actions(multiplexer: &mut ClientMultiplexer, text: &str) -> Vec<String> {
        let actions = multiplexer.receive(text.as_bytes()).unwrap();
        let text = |bytes: Vec<u8>| {
            let text = String::from_utf8(bytes).unwrap();
            match text.starts_with("cmd=") {
                true => text,
                false => text[6..].to_owned(),
            }
        };
        let shown = actions.into_iter().map(|action| match action {
            MultiplexerAction::Connect(rank) => format!("connect {rank}"),
            MultiplexerAction::Forward(rank, bytes) => format!("{rank} < {}", text(bytes)),
            MultiplexerAction::Reply(bytes) => format!("> {}", text(bytes)),
        });
        shown.collect()
    }

    fn replies(multiplexer: &mut ClientMultiplexer, rank: u32, text: &str) -> String {
        let replies = multiplexer.receive_from_port(Rank(rank), text.as_bytes());
        String::from_utf8(replies.unwrap()).unwrap()
    }

    fn started(ranks: &[u32]) -> ClientMultiplexer {
        let mut multiplexer = ClientMultiplexer::default();
        assert!(multiplexer.receive(INIT.as_bytes()).unwrap().is_empty());
        for rank in ranks {
            let fullinit = frame(&format!("cmd=fullinit;client_id={rank};pmirank={rank};"));
            assert_eq!(
                actions(&mut multiplexer, &fullinit),
                [
                    format!("connect {rank}"),
                    format!("{rank} < {INIT}"),
                    format!("{rank} < cmd=fullinit;pmirank={rank};"),
                ]
            );
        }
        multiplexer
    }

    #[test]
    fn messages_of_each_rank_go_to_its_port() {
        let mut multiplexer = started(&[1, 3]);
        let greeting = "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n";
        for rank in [3, 1] {
            let reply = frame(&format!("cmd=fullinit-response;rc=0;rank={rank};"));
            let all = [greeting, &reply].concat();
            let (first, last) = all.split_at(70);
            assert_eq!(replies(&mut multiplexer, rank, first), "");
            let expected = format!("cmd=fullinit-response;rc=0;rank={rank};client_id={rank};");
            assert_eq!(replies(&mut multiplexer, rank, last), frame(&expected));
        }
        let requests = [
            frame("cmd=kvs-put;client_id=3;thrid=7;key=a;value=x;;y;"),
            frame("cmd=kvs-put;key=a;value=;client_id=1;"),
        ];
        assert_eq!(
            actions(&mut multiplexer, &requests.concat()),
            [
                "3 < cmd=kvs-put;thrid=7;key=a;value=x;;y;",
                "1 < cmd=kvs-put;key=a;value=;",
            ]
        );
        let reply = frame("cmd=kvs-put-response;thrid=7;rc=0;");
        let expected = frame("cmd=kvs-put-response;thrid=7;rc=0;client_id=3;");
        assert_eq!(replies(&mut multiplexer, 3, &reply), expected);
    }

    #[test]
    fn message_of_unknown_or_repeated_client_is_refused() {
        let mut multiplexer = started(&[1]);
        for (request, refusal) in [
            (
                "cmd=kvs-fence;thrid=5;client_id=2;",
                "cmd=kvs-fence-response;thrid=5;rc=14;errmsg=client_id without fullinit;client_id=2;",
            ),
            (
                "cmd=kvs-fence;",
                "cmd=kvs-fence-response;rc=14;errmsg=client_id is not a rank;",
            ),
            (
                "cmd=fullinit;client_id=x;",
                "cmd=fullinit-response;rc=14;errmsg=client_id is not a rank;client_id=x;",
            ),
            (
                "cmd=fullinit;pmirank=1;client_id=1;",
                "cmd=fullinit-response;rc=14;errmsg=client_id has sent fullinit already;client_id=1;",
            ),
        ] {
            let refusal = format!("> {refusal}");
            assert_eq!(actions(&mut multiplexer, &frame(request)), [refusal]);
        }
        // The known client is unaffected.
        let request = frame("cmd=job-getid;client_id=1;client_id=2;");
        assert_eq!(actions(&mut multiplexer, &request), ["1 < cmd=job-getid;"]);
        multiplexer.receive(INIT.as_bytes()).unwrap_err();
    }

    #[test]
    fn closed_port_ends_its_client_or_whole_connection() {
        let mut multiplexer = started(&[1, 2, 3]);
        let refused = frame("cmd=fullinit-response;rc=14;errmsg=wrong key;");
        replies(&mut multiplexer, 2, &refused);
        replies(&mut multiplexer, 3, &frame("cmd=fullinit-response;rc=0;"));
        // A refused client may try again, and may send nothing else.
        let refusal =
            "> cmd=job-getid-response;rc=14;errmsg=client_id without fullinit;client_id=2;";
        let request = frame("cmd=job-getid;client_id=2;");
        assert_eq!(actions(&mut multiplexer, &request), [refusal]);
        let again = frame("cmd=fullinit;client_id=2;pmirank=2;");
        assert_eq!(actions(&mut multiplexer, &again)[0], "connect 2");
        replies(&mut multiplexer, 2, &refused);
        let reply = multiplexer.on_port_closed(Rank(1), "no port").unwrap();
        let expected = frame("cmd=fullinit-response;rc=14;errmsg=no port;client_id=1;");
        assert_eq!(String::from_utf8(reply).unwrap(), expected);
        assert_eq!(multiplexer.on_port_closed(Rank(2), ""), Some(Vec::new()));
        assert_eq!(multiplexer.on_port_closed(Rank(3), ""), None);
        assert_eq!(actions(&mut multiplexer, &again)[0], "connect 2");
    }
}
