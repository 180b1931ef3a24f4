use proptest::prelude::*;

use super::*;
use crate::command::Command;

const NOW: Duration = Duration::ZERO;
const SOURCE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn settings(count: u32) -> ServerSettings {
    ServerSettings {
        count,
        sessions: Some(1),
        preference: Method::ALL.to_vec(),
        secrets: Secrets {
            none: true,
            key: Some(5678),
            token: Some("0123456789abcdef".into()),
        },
        greeting_timeout: Duration::from_secs(30),
        startup_timeout: None,
        is_print_server: false,
    }
}

/// A server with connected clients, and what it has sent to each.
struct World {
    server: Server,
    sent: BTreeMap<ConnectionId, Vec<u8>>,
    closed: Vec<ConnectionId>,
    reports: Vec<ServerNotice>,
    ended: Vec<bool>,
}

impl World {
    fn of(settings: ServerSettings, connections: u64) -> Self {
        let mut server = Server::new(settings);
        for id in 0..connections {
            server.connected(
                ConnectionId(id),
                format!("client:{id}"),
                SOURCE,
                [7; CHALLENGE],
                NOW,
            );
        }
        let (sent, closed, reports, ended) = Default::default();
        Self {
            server,
            sent,
            closed,
            reports,
            ended,
        }
    }

    fn write(&mut self, id: u64, bytes: &[u8]) {
        self.server.received(ConnectionId(id), bytes, NOW);
        self.collect();
    }

    fn hex(&mut self, id: u64, text: &str) {
        self.write(id, &hex(text));
    }

    fn collect(&mut self) {
        for action in self.server.take_actions() {
            match action {
                Action::Send(id, bytes) => self.sent.entry(id).or_default().extend(bytes),
                Action::Close(id) => self.closed.push(id),
                Action::Report(report) => self.reports.push(report),
                Action::Ended { success, .. } => self.ended.push(success),
            }
        }
    }

    /// What a client has got since the last call.
    fn got(&mut self, id: u64) -> Vec<u8> {
        self.sent.remove(&ConnectionId(id)).unwrap_or_default()
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

fn coll(label: i32, data: &[u8]) -> Vec<u8> {
    Command::Coll.unit(&[&label.to_be_bytes()[..], data].concat())
}

fn join(rank: i32) -> Vec<u8> {
    [
        hex("41555448 00000004 00000001"),
        Command::Impi.unit(&rank.to_be_bytes()),
    ]
    .concat()
}

fn done() -> Vec<u8> {
    Command::Done.unit(&[])
}

fn fini() -> Vec<u8> {
    Command::Fini.unit(&[])
}

/// Recorded from two jobs of LAM/MPI 7.1.4 with two processes each: what client 0 and 1 send, and what both get.
const LAM: &[(&str, &str, &str)] = &[
    (
        "41555448 00000004 00000001",
        "41555448 00000004 00000001",
        "00000000 00000000",
    ),
    (
        "494d5049 00000004 00000000",
        "494d5049 00000004 00000001",
        "494d5049 00000004 00000002",
    ),
    (
        "434f4c4c 0000000c 00001000 00000000 00000000",
        "434f4c4c 0000000c 00001000 00000000 00000000",
        "434f4c4c 00000018 00001000 00000003 00000000 00000000 00000000 00000000",
    ),
    (
        "434f4c4c 00000008 00001100 00000001",
        "434f4c4c 00000008 00001100 00000001",
        "434f4c4c 00000010 00001100 00000003 00000001 00000001",
    ),
    (
        "434f4c4c 00000008 00001500 ffffffff",
        "434f4c4c 00000008 00001500 ffffffff",
        "434f4c4c 00000010 00001500 00000003 ffffffff ffffffff",
    ),
    (
        "434f4c4c 00000014 00002000 00000000 00000000 00000000 7f000002",
        "434f4c4c 00000014 00002000 00000000 00000000 00000000 7f000001",
        "434f4c4c 00000028 00002000 00000003 00000000 00000000 00000000 7f000002 00000000 00000000 00000000 7f000001",
    ),
    (
        "434f4c4c 00000014 00003100 00000000 0000276c 00000000 0000276f",
        "434f4c4c 00000014 00003100 00000000 0000276e 00000000 00002770",
        "434f4c4c 00000028 00003100 00000003 00000000 0000276c 00000000 0000276f 00000000 0000276e 00000000 00002770",
    ),
    (
        "444f4e45 00000000",
        "444f4e45 00000000",
        "444f4e45 00000000",
    ),
    ("46494e49 00000000", "46494e49 00000000", ""),
];

#[test]
fn two_recorded_lam_clients_get_recorded_replies() {
    let mut world = World::of(settings(2), 2);
    for (zero, one, reply) in LAM {
        world.hex(0, zero);
        world.hex(1, one);
        assert_eq!(world.got(0), hex(reply), "{zero}");
        assert_eq!(world.got(1), hex(reply), "{one}");
    }
    assert_eq!(world.ended, [true]);
    assert_eq!(world.server.finished(), Some(true));
    assert_eq!(world.server.held(), (0, 0, 0));
    assert_eq!(
        world.reports.len(),
        2,
        "one warning for each client without authentication"
    );
}

#[test]
fn examples_of_specification_are_answered_as_printed() {
    let mut world = World::of(settings(3), 3);
    for id in 0..3 {
        world.write(u64::try_from(id).unwrap(), &join(id));
    }
    for id in 0..3 {
        assert_eq!(
            world.got(id),
            hex("00000000 00000000 494d5049 00000004 00000003")
        );
    }
    // Figure 2.2, and a label that client 1 leaves out (2.3.5).
    for (id, hosts) in [(0, 3), (1, 2), (2, 2)] {
        world.write(id, &coll(0x1100, &[0, 0, 0, hosts]));
    }
    let reply = hex("434f4c4c 00000014 00001100 00000007 00000003 00000002 00000002");
    assert_eq!(world.got(1), reply);
    world.write(0, &coll(0x1300, &8000_u32.to_be_bytes()));
    world.write(2, &coll(0x1300, &4000_u32.to_be_bytes()));
    world.sent.clear();
    world.write(1, &coll(0x1400, &[0; 4]));
    let reply = hex("434f4c4c 00000010 00001300 00000005 00001f40 00000fa0");
    for id in 0..3 {
        assert_eq!(world.got(id), reply);
    }
}

#[test]
fn wrong_key_or_token_ends_only_its_connection() {
    let mut world = World::of(settings(1), 3);
    world.hex(0, "41555448 00000004 00000002 00000000 0000162f");
    assert_eq!(world.got(0), hex("00000001 00000000"));
    assert_eq!(world.closed, [ConnectionId(0)]);
    assert!(matches!(
        &world.reports[..],
        [ServerNotice::Refused {
            why: ProtocolViolation::Wrong,
            ..
        }]
    ));
    world.hex(
        1,
        "41555448 00000004 00000002 00000000 0000162e 494d5049 00000004 00000000",
    );
    assert_eq!(
        world.got(1),
        hex("00000001 00000000 494d5049 00000004 00000001")
    );
    let mut world = World::of(settings(1), 1);
    world.hex(0, "41555448 00000004 00000103");
    let reply = world.got(0);
    assert_eq!(reply[..8], hex("00000008 00000020"));
    let answer = settings(1).secrets.answer(&reply[8..]).unwrap();
    world.write(0, &answer);
    world.write(0, &Command::Impi.unit(&[0; 4]));
    assert_eq!(world.got(0), hex("494d5049 00000004 00000001"));
}

#[test]
fn second_client_of_rank_is_refused_and_first_keeps_it() {
    let mut world = World::of(settings(2), 3);
    world.write(0, &join(0));
    world.write(1, &join(0));
    assert_eq!(world.closed, [ConnectionId(1)]);
    let ServerNotice::Refused { peer, why } = &world.reports[world.reports.len() - 1] else {
        panic!()
    };
    assert_eq!(
        (peer.as_str(), why.to_string().as_str()),
        ("client:1", "rank 0 is already taken by client:0")
    );
    world.write(2, &join(1));
    assert!(world.got(0).ends_with(&hex("494d5049 00000004 00000002")));
}

#[test]
fn sessions_of_one_server_do_not_mix() {
    let mut world = World::of(
        ServerSettings {
            sessions: None,
            ..settings(2)
        },
        4,
    );
    for (id, rank) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        world.write(id, &join(rank));
    }
    world.sent.clear();
    for id in 0..4 {
        world.write(id, &coll(1, &[u8::try_from(id).unwrap()]));
    }
    assert_eq!(world.got(0), coll(1, &[0, 0, 0, 3, 0, 2]));
    assert_eq!(world.got(3), coll(1, &[0, 0, 0, 3, 1, 3]));
    world.server.closed(ConnectionId(1));
    world.collect();
    assert_eq!(world.ended, [false]);
    for id in [0, 2] {
        world.write(id, &[done(), fini()].concat());
        // FINI of the first comes before DONE of all.
    }
    assert_eq!(world.ended, [false, false]);
    assert_eq!(world.server.finished(), None);
}

#[test]
fn lost_client_ends_startup_but_later_only_fails_session() {
    let mut world = World::of(settings(2), 2);
    world.write(0, &join(0));
    world.server.closed(ConnectionId(0));
    world.collect();
    assert_eq!(world.ended, [false]);
    let mut world = World::of(settings(2), 2);
    world.write(0, &[join(0), done()].concat());
    world.write(1, &[join(1), done()].concat());
    world.server.closed(ConnectionId(0));
    world.collect();
    assert!(world.ended.is_empty());
    world.write(1, &fini());
    assert_eq!(world.server.finished(), Some(false));
}

#[test]
fn protocol_violation_is_named() {
    for (bytes, text) in [
        (hex("00"), "the first command is not AUTH"),
        (Command::Impi.unit(&[0; 4]), "the first command is not AUTH"),
        (
            hex("41555448 00000000"),
            "invalid payload of 0 bytes for AUTH",
        ),
        (
            hex("41555448 ffffffff"),
            "invalid payload of -1 bytes for AUTH",
        ),
        (
            hex("41555448 00000004 00000000"),
            "no authentication method in common",
        ),
        (
            [join(0), hex("41555448 00000004 00000001")].concat(),
            "a second AUTH command",
        ),
        (join(2), "rank out of range: the job has 2 clients"),
        (join(-1), "rank out of range: the job has 2 clients"),
        (
            [hex("41555448 00000004 00000001"), done()].concat(),
            "DONE before IMPI",
        ),
        (
            [hex("41555448 00000004 00000001"), hex("434f4c4c 7fffffff")].concat(),
            "COLL before IMPI",
        ),
        (
            [join(0), hex("434f4c4c 00000003")].concat(),
            "invalid payload of 3 bytes for COLL",
        ),
        (
            [join(0), hex("434f4c4c 7fffffff")].concat(),
            "invalid payload of 2147483647 bytes for COLL",
        ),
        (
            [join(0), coll(2, b""), coll(2, b"")].concat(),
            "label 0x2 after 0x2: labels must ascend",
        ),
        ([join(0), done(), coll(2, b"")].concat(), "COLL after DONE"),
        ([join(0), done(), done()].concat(), "DONE after DONE"),
        (
            [join(0), fini()].concat(),
            "FINI before DONE of all clients",
        ),
    ] {
        let mut world = World::of(settings(2), 1);
        world.write(0, &bytes);
        assert_eq!(world.closed, [ConnectionId(0)], "{text}");
        let report = world.reports[world.reports.len() - 1].to_string();
        assert!(report.ends_with(text), "{report} for {text}");
        assert_eq!(world.server.held(), (0, 0, 0));
    }
}

#[test]
fn unknown_commands_are_skipped_with_payload() {
    let mut world = World::of(settings(1), 1);
    world.write(0, &join(0));
    world.sent.clear();
    let mut bytes = Command::Unknown(0x5049_4E47).unit(&[b'D'; 1000]);
    bytes.extend(done());
    for byte in bytes {
        world.write(0, &[byte]);
    }
    assert_eq!(world.got(0), done());
}

#[test]
fn print_server_prints_lines_of_its_clients() {
    let settings = ServerSettings {
        is_print_server: true,
        ..settings(2)
    };
    let mut world = World::of(settings, 2);
    // Before the client has a rank, and too long: discarded.
    world.write(0, &hex("41555448 00000004 00000001"));
    world.write(0, &Command::Print.unit(b"early"));
    world.write(0, &Command::Impi.unit(&0_u32.to_be_bytes()));
    world.write(1, &join(1));
    world.sent.clear();
    world.reports.clear();
    world.write(0, &Command::Print.unit(&[b'x'; MAX_PRINT + 1]));
    world.write(1, &Command::Print.unit(&[]));
    assert_eq!(world.got(1), Command::Print.unit(&[]));
    world.write(1, &Command::Print.unit(b"one\ntwo\x1b[2J\n"));
    assert_eq!(world.got(0), []);
    let lines: Vec<String> = world.reports.iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["client 1: one", "client 1: two\u{fffd}[2J"]);
}

#[test]
fn server_without_printing_discards_lines_of_clients() {
    let mut world = World::of(settings(1), 1);
    world.write(0, &join(0));
    world.sent.clear();
    world.reports.clear();
    world.write(0, &Command::Print.unit(&[]));
    world.write(0, &Command::Print.unit(b"line"));
    world.write(0, &done());
    assert_eq!(world.got(0), done());
    assert_eq!(world.reports, []);
}

#[test]
fn silent_clients_and_start_ups_are_given_up() {
    let mut world = World::of(
        ServerSettings {
            startup_timeout: Some(Duration::from_secs(60)),
            is_print_server: false,
            ..settings(2)
        },
        2,
    );
    world.write(0, &join(0));
    assert_eq!(world.server.next_deadline(), Some(Duration::from_secs(30)));
    world.server.tick(Duration::from_secs(30));
    world.collect();
    assert_eq!(world.closed, [ConnectionId(1)]);
    world.server.tick(Duration::from_secs(60));
    world.collect();
    assert_eq!(world.ended, [false]);
    let report = world.reports[world.reports.len() - 1].to_string();
    assert!(report.contains("not finished: [0, 1]"), "{report}");
}

#[test]
fn new_connection_replaces_oldest_stranger_of_same_source() {
    let mut world = World::of(settings(2), MAX_STRANGERS_OF_SOURCE as u64);
    world.write(0, &join(0));
    let mut next = MAX_STRANGERS_OF_SOURCE as u64;
    let mut connect = |world: &mut World, source: IpAddr| {
        let id = ConnectionId(next);
        next += 1;
        world
            .server
            .connected(id, String::new(), source, [7; CHALLENGE], NOW);
        world.collect();
        std::mem::take(&mut world.closed)
    };
    // A member does not count, and stays.
    assert_eq!(connect(&mut world, SOURCE), []);
    assert_eq!(connect(&mut world, SOURCE), [ConnectionId(1)]);
    let report = world.reports[world.reports.len() - 1].to_string();
    assert_eq!(
        report,
        "client:1: dropped: it has not joined, and a newer connection needs its place"
    );
    // Others fill the rest, each from an address of its own or of its network.
    for id in 0..(MAX_STRANGERS - MAX_STRANGERS_OF_SOURCE) as u16 {
        let source = IpAddr::from([0x2001, 0xdb8, id, 0, 0, 0, 0, id]);
        assert_eq!(connect(&mut world, source), []);
    }
    let further = IpAddr::from([192, 0, 2, 1]);
    assert_eq!(connect(&mut world, further), [ConnectionId(2)]);
    assert!(world.server.drop_stranger());
    world.collect();
    assert_eq!(world.closed, [ConnectionId(3)]);
}

#[test]
fn connection_that_has_sent_is_replaced_last() {
    let mut world = World::of(settings(2), MAX_STRANGERS_OF_SOURCE as u64);
    world.write(0, &join(0)[..12]);
    world.write(1, &join(0)[..4]);
    let mut replaced = Vec::new();
    for id in 0..MAX_STRANGERS_OF_SOURCE as u64 {
        let id = ConnectionId(MAX_STRANGERS_OF_SOURCE as u64 + id);
        world
            .server
            .connected(id, String::new(), SOURCE, [7; CHALLENGE], NOW);
        world.collect();
        replaced.append(&mut world.closed);
    }
    let silent = (2..MAX_STRANGERS_OF_SOURCE as u64 + 2).map(ConnectionId);
    assert_eq!(replaced, silent.collect::<Vec<_>>());
}

#[test]
fn addresses_of_ipv6_network_are_one_source() {
    let mut world = World::of(settings(2), 0);
    for id in 0..MAX_STRANGERS_OF_SOURCE as u16 + 1 {
        let source = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, id]);
        let id = ConnectionId(id.into());
        world
            .server
            .connected(id, String::new(), source, [7; CHALLENGE], NOW);
    }
    world.collect();
    assert_eq!(world.closed, [ConnectionId(0)]);
}

/// What a reference client of rank `rank` sends: labels with values, as a map.
fn script(rank: i32, labels: &BTreeMap<i32, Vec<u8>>) -> Vec<u8> {
    let mut bytes = join(rank);
    labels
        .iter()
        .for_each(|(label, data)| bytes.extend(coll(*label, data)));
    bytes.extend(done());
    bytes
}

proptest! {
    /// Whatever labels clients submit and however their bytes arrive, each gets every label once, in ascending order,
    /// with the values of exactly those that submitted it, in the order of their ranks.
    #[test]
    fn any_arrival_gives_collections_of_model(
        clients in proptest::collection::vec(
            proptest::collection::btree_map(-3_i32..12, proptest::collection::vec(any::<u8>(), 0..9), 0..9), 1..6),
        order in proptest::collection::vec((0_usize..6, 1_usize..40), 0..400),
    ) {
        let count = u32::try_from(clients.len()).unwrap();
        let mut world = World::of(settings(count), u64::from(count));
        let mut left: Vec<Vec<u8>> =
            (0..).zip(&clients).map(|(rank, labels)| script(rank, labels)).collect();
        let rest = (0..clients.len()).map(|id| (id, usize::MAX));
        for (id, piece) in order.into_iter().chain(rest) {
            let id = id % clients.len();
            let piece = piece.min(left[id].len());
            let piece: Vec<u8> = left[id].drain(..piece).collect();
            world.write(id as u64, &piece);
        }
        let mut model = hex("00000000 00000000");
        model.extend(Command::Impi.unit(&count.to_be_bytes()));
        let labels: std::collections::BTreeSet<i32> =
            clients.iter().flat_map(|labels| labels.keys().copied()).collect();
        for label in labels {
            let mut mask = 0_u32;
            let mut values = Vec::new();
            for (rank, labels) in clients.iter().enumerate() {
                if let Some(data) = labels.get(&label) {
                    mask |= 1 << rank;
                    values.extend_from_slice(data);
                }
            }
            model.extend(coll(label, &[&mask.to_be_bytes()[..], &values].concat()));
        }
        model.extend(done());
        for id in 0..u64::from(count) {
            prop_assert_eq!(world.got(id), model.clone());
        }
        for id in 0..u64::from(count) {
            world.write(id, &fini());
        }
        prop_assert_eq!(world.server.finished(), Some(true));
        prop_assert_eq!(world.server.held(), (0, 0, 0));
    }

    #[test]
    fn garbage_ends_connections_without_leftovers(data in proptest::collection::vec(any::<u8>(), 0..600)) {
        crate::fuzzing::server(&data);
    }
}
