//! Entry points of the fuzzer.

use std::time::Duration;

use crate::auth::{CHALLENGE, Method, Secrets};
use crate::command::Command;
use crate::endpoint::{Endpoint, Envelope, MatchSpec};
use crate::host::{ChannelPeer, HostAction, HostRouter};
use crate::kit::Observer;
use crate::kit::conversation_record::{ConversationSide, Kind, RecordedAction, RecordedEvent};
use crate::kit::rewrite::Rewriter;
use crate::packet::{HEADER, Packet, PacketHeader, ProcId};
use crate::server::{Action, ConnectionId, Server, ServerSettings};
use crate::startup::Startup;
use crate::world::{self, ClientOffer, HostOffer, ImpiClient, ImpiJob, Limits};

/// Arbitrary bytes to a server of three clients, in arbitrary pieces: a piece is a byte with the connection and
/// whether it then closes, a byte with the length, and its bytes. The first four connections begin with valid greetings.
///
/// # Panics
/// When the server keeps more than it may, or orders something for a connection after closing it.
pub fn server(data: &[u8]) {
    let mut server = Server::new(ServerSettings {
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
        is_print_server: true,
    });
    let mut now = Duration::ZERO;
    let mut closed = std::collections::BTreeSet::new();
    for id in 0..8 {
        let source = std::net::IpAddr::from([127, 0, 0, 1]);
        server.connected(
            ConnectionId(id),
            id.to_string(),
            source,
            [0; CHALLENGE],
            now,
        );
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

/// Arbitrary values of clients, as a process gets them from its agent.
pub fn values(data: &[u8]) {
    if let Some((clients, collected)) = world::decode(data) {
        drop(ImpiJob::new(clients, &collected));
    }
}

/// Arbitrary replies of a server to a client.
pub fn replies(data: &[u8]) {
    let host = HostOffer {
        address: [0; 16],
        port: 1,
        ack_mark: 1,
        high_water: 1,
        procs: vec![ProcId::default()],
    };
    let offer = ClientOffer {
        versions: vec![(0, 0)],
        data_length: 1,
        tag_upper_bound: i32::MAX,
        crossover_size: -1,
        max_linear: -1,
        hosts: vec![host],
    };
    let secrets = Secrets {
        none: true,
        key: Some(1),
        token: None,
    };
    let mut client = Startup::new(secrets, 0, offer);
    for piece in data.chunks(7) {
        if client.received(piece).is_err() {
            return;
        }
        drop(client.take_out());
    }
}

/// Arbitrary packets of other hosts to a host and its process, which sends and receives.
pub fn packets(data: &[u8]) {
    let limits = Limits {
        data_length: 64,
        tag_upper_bound: 32_767,
        crossover_size: 1024,
        max_linear: 4,
        ack_mark: 2,
        high_water: 4,
    };
    let procs: Vec<ProcId> = (0..2).map(|pid| ProcId { host: [0; 16], pid }).collect();
    let host = |client| world::ImpiHost {
        client,
        address: [0; 16],
        port: 1,
        first: client,
        size: 1,
    };
    let world = ImpiJob {
        version: (0, 0),
        clients: (0..2).map(|first| ImpiClient { first, size: 1 }).collect(),
        hosts: vec![host(0), host(1)],
        procs: procs.clone(),
        limits,
    };
    let mut agent = HostRouter::new(0, world);
    let mut process = Endpoint::new(0, procs, limits);
    let envelope = Envelope {
        destination: 1,
        tag: 0,
        context: 0,
        synchronous: true,
    };
    let any = MatchSpec {
        source: None,
        tag: None,
        context: 0,
    };
    let request = process.send(envelope, &[0; 200]);
    process.receive(any, 100);
    let mut rest = data;
    while let [kind, length, tail @ ..] = rest {
        let fields = tail.len().min(HEADER - 8);
        let mut bytes = [0; HEADER];
        bytes[3] = kind & 15;
        bytes[7] = *length;
        bytes[8..8 + fields].copy_from_slice(&tail[..fields]);
        rest = &tail[fields..];
        if kind & 16 != 0 {
            process.cancel(request);
        }
        if kind & 32 != 0 {
            process.receive(any, 10);
        }
        let Ok(header) = PacketHeader::decode(&bytes, limits.data_length) else {
            continue;
        };
        let packet = Packet {
            header,
            data: vec![0; header.length as usize],
        };
        if agent.packet(ChannelPeer::Host(1), packet).is_ok() {
            for order in agent.take_orders() {
                if let HostAction::Send(ChannelPeer::Proc(0), packet) = order {
                    agent.on_packet_taken(&packet.header);
                    let _ = process.received(packet);
                }
            }
        }
        while let Some(packet) = process.next_packet() {
            assert!(
                packet.header.length <= limits.data_length,
                "no packet is too long"
            );
        }
    }
}

/// A record of two connections to a server and one between hosts, with arbitrary bytes in arbitrary pieces: a byte with
/// the connection, the direction and whether it then ends, a byte with the length, and its bytes. If the first byte is
/// odd the connections begin with a start-up in order, so that packets are judged.
///
/// # Panics
/// When a line of the record is not read as it was written.
pub fn record(data: &[u8]) {
    let mut observer = Observer::new(true);
    let mut event = |connection, what| {
        let event = RecordedEvent {
            time: Duration::ZERO,
            connection,
            action: what,
        };
        assert_eq!(event.to_string().parse(), Ok(event.clone()));
        drop(observer.event(&event));
    };
    for connection in 0..2 {
        event(connection, RecordedAction::Open(Kind::Server));
    }
    event(2, RecordedAction::Open(Kind::Host(0)));
    let Some((started, mut rest)) = data.split_first() else {
        return;
    };
    if started & 1 == 1 {
        start_up(&mut event);
    }
    while let [head, length, tail @ ..] = rest {
        let connection = u32::from(head & 3);
        let from = if head & 4 == 0 {
            ConversationSide::Forth
        } else {
            ConversationSide::Back
        };
        let piece = usize::from(*length).min(tail.len());
        event(
            connection,
            RecordedAction::Bytes(from, tail[..piece].to_vec()),
        );
        if head & 0x80 != 0 {
            event(connection, RecordedAction::End(from));
        }
        rest = &tail[piece..];
    }
    observer.finish();
    for finding in observer.findings() {
        assert!(!finding.to_string().is_empty());
    }
}

/// What two clients and the server say until DONE, and the rank of the host that connects.
fn start_up(event: &mut impl FnMut(u32, RecordedAction)) {
    let offers = [0, 1].map(|pid| {
        let procs = vec![ProcId { host: [0; 16], pid }];
        let host = HostOffer {
            address: [0; 16],
            port: 1,
            ack_mark: 1,
            high_water: 2,
            procs,
        };
        ClientOffer {
            versions: vec![(0, 0)],
            data_length: 64,
            tag_upper_bound: i32::MAX,
            crossover_size: -1,
            max_linear: -1,
            hosts: vec![host],
        }
    });
    let mut both = |from, bytes: &dyn Fn(u8) -> Vec<u8>| {
        for client in 0..2 {
            event(client.into(), RecordedAction::Bytes(from, bytes(client)));
        }
    };
    let (forth, back) = (ConversationSide::Forth, ConversationSide::Back);
    both(forth, &|_| Command::Auth.unit(&[0, 0, 0, 1]));
    both(back, &|_| vec![0; 8]);
    both(forth, &|client| Command::Impi.unit(&[0, 0, 0, client]));
    both(back, &|_| Command::Impi.unit(&[0, 0, 0, 2]));
    for label in world::Label::ALL {
        let number = (label as i32).to_be_bytes();
        let value = |client: u8| offers[usize::from(client)].value(label);
        both(forth, &|client| {
            Command::Coll.unit(&[&number[..], &value(client)].concat())
        });
        both(back, &|_| {
            let all = [&number[..], &[0, 0, 0, 3], &value(0), &value(1)].concat();
            Command::Coll.unit(&all)
        });
    }
    both(forth, &|_| Command::Done.unit(&[]));
    both(back, &|_| Command::Done.unit(&[]));
    event(2, RecordedAction::Bytes(forth, vec![0, 0, 0, 1]));
}

/// What a server says, through a proxy in pieces. Replaced or not, the bytes are as many.
///
/// # Panics
/// When a byte is lost before the last unit.
pub fn replaced(data: &[u8]) {
    let mut rewriter = Rewriter::default();
    let mut out = Vec::new();
    for piece in data.chunks(5) {
        out.extend(rewriter.feed(piece, |_, value| Some(value.to_vec())));
    }
    assert!(data.starts_with(&out), "what is not changed is passed on");
}

/// One input of the target `impi`: its first byte chooses what gets the rest.
pub fn impi(data: &[u8]) {
    if let Some((choice, rest)) = data.split_first() {
        match choice & 7 {
            0 => server(rest),
            1 => packets(rest),
            2 => replies(rest),
            3 => values(rest),
            4 | 5 => record(rest),
            _ => replaced(rest),
        }
    }
}
