//! Entry points of the fuzzer.

use std::time::Duration;

use crate::auth::{CHALLENGE, Method, Secrets};
use crate::server::{Action, ConnectionId, Server, Settings};

/// Arbitrary bytes to a server of three clients, in arbitrary pieces: a piece is a byte with the connection and
/// whether it then closes, a byte with the length, and its bytes. The first four connections begin with valid greetings.
///
/// # Panics
/// When the server keeps more than it may, or orders something for a connection after closing it.
pub fn server(data: &[u8]) {
    let mut server = Server::new(Settings {
        count: 3,
        sessions: Some(2),
        preference: Method::ALL.to_vec(),
        secrets: Secrets {
            none: true,
            key: Some(1),
            token: None,
        },
        greeting_timeout: Duration::from_secs(30),
        startup_timeout: Some(Duration::from_secs(60)),
    });
    let mut now = Duration::ZERO;
    let mut closed = std::collections::BTreeSet::new();
    for id in 0..8 {
        server.connected(ConnectionId(id), id.to_string(), [0; CHALLENGE], now);
        if id < 4 {
            server.received(
                ConnectionId(id),
                b"AUTH\0\0\0\x04\0\0\0\x01IMPI\0\0\0\x04\0\0\0",
                now,
            );
        }
    }
    let mut rest = data;
    while let [head, length, tail @ ..] = rest {
        let id = ConnectionId(u64::from(head & 7));
        let piece = usize::from(*length).min(tail.len());
        server.received(id, &tail[..piece], now);
        if head & 0x80 != 0 {
            server.closed(id);
        }
        now += Duration::from_millis(u64::from(head >> 3 & 15));
        server.tick(now);
        for action in server.take_actions() {
            match action {
                Action::Send(id, _) => {
                    assert!(!closed.contains(&id), "closed connections get nothing")
                }
                Action::Close(id) => assert!(closed.insert(id), "a connection is closed once"),
                Action::Report(report) => assert!(!report.to_string().is_empty()),
                Action::Ended { .. } => {}
            }
        }
        rest = &tail[piece..];
    }
    (0..8).for_each(|id| server.closed(ConnectionId(id)));
    assert_eq!(server.held().0, 0, "no connection is left");
}

/// One input of the target `impi`: its first byte chooses what gets the rest.
pub fn impi(data: &[u8]) {
    if let Some((_choice, rest)) = data.split_first() {
        server(rest);
    }
}
