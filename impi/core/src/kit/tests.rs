use std::collections::BTreeSet;
use std::time::Duration;

use super::record::{Direction, Event, Kind, What};
use super::rules::{By, Rule};
use super::server_checks::{Access, STARTS, checks};
use super::{Observer, Party};
use crate::command::Command;
use crate::packet::{Header, Packet, PacketType, ProcId};
use crate::world::{HostOffer, Label, Offer};

/// A conversation, whose steps have names.
struct Talk(Vec<(String, u32, What)>);

const FORTH: Direction = Direction::Forth;
const BACK: Direction = Direction::Back;

fn proc(client: u8) -> ProcId {
    let mut host = [0; 16];
    host[15] = client + 1;
    ProcId { host, pid: 7 }
}

fn offer(client: u8) -> Offer {
    Offer {
        versions: vec![(0, 0)],
        data_length: 100,
        tag_upper_bound: i32::MAX,
        crossover_size: -1,
        max_linear: -1,
        hosts: vec![HostOffer {
            address: proc(client).host,
            port: 99,
            ack_mark: 2,
            high_water: 3,
            procs: vec![proc(client)],
        }],
    }
}

fn coll(label: Label, mask: Option<u32>, value: &[u8]) -> Vec<u8> {
    let mask = mask.map(u32::to_be_bytes);
    let mask = mask.as_ref().map_or(&[][..], |mask| &mask[..]);
    Command::Coll.unit(&[&(label as i32).to_be_bytes()[..], mask, value].concat())
}

fn packet(kind: PacketType, from: u8, length: usize, change: impl Fn(&mut Header)) -> Vec<u8> {
    let mut header = Header::new(kind, proc(from), proc(1 - from));
    header.length = u32::try_from(length).unwrap();
    header.message_length = length as u64;
    header.rank = i32::from(from);
    header.source_request = 5;
    if kind == PacketType::Fini {
        header = Header::new(kind, ProcId::default(), ProcId::default());
    } else if kind == PacketType::ProtoAck {
        header = Header::new(kind, proc(from), proc(1 - from));
    } else if !kind.has_body() {
        (header.message_length, header.rank) = (0, 0);
    }
    change(&mut header);
    let data = vec![0; length];
    Packet { header, data }.bytes()
}

/// A further part of the long message.
fn part(length: usize, change: impl Fn(&mut Header)) -> Vec<u8> {
    packet(PacketType::Data, 1, length, |header| {
        (header.source_request, header.destination_request) = (7, 9);
        header.message_length = 250;
        change(header);
    })
}

fn first(change: impl Fn(&mut Header)) -> Vec<u8> {
    packet(PacketType::DataSync, 1, 100, |header| {
        (header.source_request, header.message_length) = (7, 250);
        change(header);
    })
}

fn sync(request: u64) -> Vec<u8> {
    packet(PacketType::SyncAck, 0, 0, |header| {
        (header.source_request, header.destination_request) = (request, 9);
    })
}

impl Talk {
    fn say(&mut self, name: impl Into<String>, connection: u32, from: Direction, bytes: Vec<u8>) {
        self.0
            .push((name.into(), connection, What::Bytes(from, bytes)));
    }

    fn each(&mut self, name: &str, from: Direction, bytes: impl Fn(u8) -> Vec<u8>) {
        for client in 0..2 {
            self.say(
                format!("{name}{client}"),
                client.into(),
                from,
                bytes(client),
            );
        }
    }

    /// Two clients of one process each, which do everything once.
    fn good() -> Self {
        let mut talk = Self(Vec::new());
        for client in 0..2 {
            talk.0
                .push((format!("open{client}"), client, What::Open(Kind::Server)));
        }
        talk.each("auth", FORTH, |_| Command::Auth.unit(&[0, 0, 0, 1]));
        talk.each("choice", BACK, |_| vec![0; 8]);
        talk.each("impi", FORTH, |client| {
            Command::Impi.unit(&[0, 0, 0, client])
        });
        talk.each("size", BACK, |_| Command::Impi.unit(&[0, 0, 0, 2]));
        for label in Label::ALL {
            let value = |client| offer(client).value(label);
            talk.each(label.name(), FORTH, |client| {
                coll(label, None, &value(client))
            });
            let all = [value(0), value(1)].concat();
            talk.each(&format!("reply {}", label.name()), BACK, |_| {
                coll(label, Some(3), &all)
            });
        }
        talk.each("done", FORTH, |_| Command::Done.unit(&[]));
        talk.each("started", BACK, |_| Command::Done.unit(&[]));
        talk.0
            .push(("channel".into(), 2, What::Open(Kind::Host(0))));
        talk.say("rank", 2, FORTH, vec![0, 0, 0, 1]);
        talk.say("short", 2, FORTH, packet(PacketType::Data, 1, 10, |_| {}));
        talk.say("first", 2, FORTH, first(|_| {}));
        talk.say("ack", 2, BACK, packet(PacketType::ProtoAck, 0, 0, |_| {}));
        talk.say("sync", 2, BACK, sync(7));
        talk.say("second", 2, FORTH, part(100, |_| {}));
        talk.say("third", 2, FORTH, part(50, |_| {}));
        talk.say(
            "ack of the third",
            2,
            BACK,
            packet(PacketType::ProtoAck, 0, 0, |_| {}),
        );
        talk.say("cancel", 2, FORTH, packet(PacketType::Cancel, 1, 0, |_| {}));
        talk.say("no", 2, BACK, packet(PacketType::CancelNo, 0, 0, |_| {}));
        talk.say(
            "ack of no",
            2,
            FORTH,
            packet(PacketType::ProtoAck, 1, 0, |_| {}),
        );
        talk.say("end of 1", 2, FORTH, packet(PacketType::Fini, 1, 0, |_| {}));
        talk.say("end of 0", 2, BACK, packet(PacketType::Fini, 0, 0, |_| {}));
        talk.0.push(("close of 1".into(), 2, What::End(FORTH)));
        talk.0.push(("close of 0".into(), 2, What::End(BACK)));
        talk.each("fini", FORTH, |_| Command::Fini.unit(&[]));
        for client in 0..2 {
            talk.0
                .push((format!("close{client}"), client, What::End(FORTH)));
            talk.0
                .push((format!("closed{client}"), client, What::End(BACK)));
        }
        talk
    }

    fn at(&self, name: &str) -> usize {
        let at = self.0.iter().position(|(known, ..)| known == name);
        at.unwrap_or_else(|| panic!("no step {name}"))
    }

    fn set(&mut self, name: &str, bytes: Vec<u8>) {
        let at = self.at(name);
        let What::Bytes(from, _) = self.0[at].2 else {
            panic!("{name} has no bytes")
        };
        self.0[at].2 = What::Bytes(from, bytes);
    }

    fn remove(&mut self, name: &str) {
        let at = self.at(name);
        self.0.remove(at);
    }

    fn earlier(&mut self, name: &str, before: &str) {
        let at = self.at(name);
        let step = self.0.remove(at);
        let before = self.at(before);
        self.0.insert(before, step);
    }

    fn value(&mut self, label: Label, value: &[u8]) {
        self.set(&format!("{}0", label.name()), coll(label, None, value));
    }

    fn observe(&self, program: bool) -> Observer {
        let mut observer = Observer::new(program);
        for (at, (_, connection, what)) in self.0.iter().enumerate() {
            let time = Duration::from_millis(at as u64);
            observer.event(&Event {
                time,
                connection: *connection,
                what: what.clone(),
            });
        }
        observer.finish();
        observer
    }
}

type Break = fn(&mut Talk);

/// A way to break each rule.
const CASES: &[(Rule, Break)] = &[
    (Rule::AuthFirst, |talk| {
        talk.set("auth0", Command::Impi.unit(&[0; 4]))
    }),
    (Rule::AuthFirst, |talk| talk.earlier("impi0", "choice0")),
    (Rule::AuthMask, |talk| {
        talk.set("auth0", Command::Auth.unit(&[0, 0, 0, 1, 0]))
    }),
    (Rule::AuthChoice, |talk| {
        talk.set("choice0", vec![0, 0, 0, 1, 0, 0, 0, 0])
    }),
    (Rule::AuthNone, |talk| {
        talk.set("choice0", vec![0, 0, 0, 0, 0, 0, 0, 1, 0])
    }),
    (Rule::AuthKey, |talk| {
        talk.set("auth0", Command::Auth.unit(&[0, 0, 0, 2]));
        talk.set("choice0", vec![0, 0, 0, 1, 0, 0, 0, 1, 0]);
    }),
    (Rule::ImpiRank, |talk| {
        talk.set("impi1", Command::Impi.unit(&[0; 4]))
    }),
    (Rule::ImpiWaits, |talk| talk.earlier("size0", "impi1")),
    (Rule::ImpiSize, |talk| {
        talk.set("size1", Command::Impi.unit(&[0, 0, 0, 3]))
    }),
    (Rule::CollAfterImpi, |talk| {
        talk.earlier("IMPI_C_VERSION0", "size0")
    }),
    (Rule::LabelsAscend, |talk| {
        talk.earlier("IMPI_H_PORT0", "IMPI_H_IPV60")
    }),
    (Rule::LabelsAll, |talk| talk.remove("IMPI_C_TAGUB0")),
    (Rule::NoLabel, |talk| {
        talk.set("IMPI_C_VERSION0", Command::Coll.unit(&[0; 4]));
    }),
    (Rule::CollByRank, |talk| {
        let all = [
            offer(1).value(Label::HostAddress),
            offer(0).value(Label::HostAddress),
        ]
        .concat();
        talk.set(
            "reply IMPI_H_IPV60",
            coll(Label::HostAddress, Some(3), &all),
        );
    }),
    (Rule::CollMask, |talk| {
        let all = [offer(0).value(Label::Hosts), offer(1).value(Label::Hosts)].concat();
        talk.set("reply IMPI_C_NHOSTS0", coll(Label::Hosts, Some(1), &all));
    }),
    (Rule::CollComplete, |talk| {
        talk.earlier("reply IMPI_C_NHOSTS0", "IMPI_C_NHOSTS1")
    }),
    (Rule::CollToAll, |talk| talk.remove("reply IMPI_C_NHOSTS0")),
    (Rule::Versions, |talk| {
        talk.value(Label::Version, &[0, 0, 0, 0, 0, 0, 0, 1])
    }),
    (Rule::HostCount, |talk| talk.value(Label::Hosts, &[0; 4])),
    (Rule::HostCount, |talk| talk.value(Label::HostPort, &[0; 8])),
    (Rule::ProcCount, |talk| {
        talk.value(Label::HostProcs, &[0, 0, 0, 2])
    }),
    (Rule::ProcCount, |talk| talk.value(Label::ProcPid, &[0; 16])),
    (Rule::DataLength, |talk| {
        talk.value(Label::DataLength, &[0; 4])
    }),
    (Rule::Crossover, |talk| {
        let other = coll(Label::CrossoverSize, None, &[0, 0, 0, 5]);
        talk.set("IMPI_C_COLL_XSIZE1", other);
    }),
    (Rule::PidUnique, |talk| {
        talk.value(Label::ProcAddress, &proc(1).host);
    }),
    (Rule::DoneEmpty, |talk| {
        talk.set("done0", Command::Done.unit(&[0]))
    }),
    (Rule::DoneEmpty, |talk| {
        talk.set("started0", Command::Done.unit(&[0]))
    }),
    (Rule::DoneWaits, |talk| talk.earlier("started0", "done1")),
    (Rule::FiniEmpty, |talk| {
        talk.set("fini0", Command::Fini.unit(&[0]))
    }),
    (Rule::FiniSent, |talk| talk.remove("fini0")),
    (Rule::FiniNoReply, |talk| {
        let at = talk.at("close0");
        let reply = What::Bytes(BACK, Command::Fini.unit(&[]));
        talk.0.insert(at, ("reply".into(), 0, reply));
    }),
    (Rule::HigherConnects, |talk| talk.set("rank", vec![0; 4])),
    (Rule::RankFirst, |talk| talk.set("rank", vec![0, 0, 0, 9])),
    (Rule::FiniPackets, |talk| talk.remove("end of 1")),
    (Rule::FiniPackets, |talk| {
        talk.earlier("close of 1", "end of 0")
    }),
    (Rule::FiniAfterChannels, |talk| {
        talk.earlier("fini0", "end of 1")
    }),
    (Rule::AcksToTheEnd, |talk| talk.remove("ack of no")),
    (Rule::External32, |talk| {
        talk.set(
            "short",
            packet(PacketType::Data, 1, 4, |header| header.tag = 11),
        );
    }),
    (Rule::PacketProcs, |talk| {
        talk.set(
            "short",
            packet(PacketType::Data, 1, 10, |header| header.source = proc(0)),
        );
    }),
    (Rule::WorldContext, |talk| {
        talk.set(
            "short",
            packet(PacketType::Data, 1, 10, |header| header.context = 2),
        );
    }),
    (Rule::TagRange, |talk| {
        talk.set(
            "short",
            packet(PacketType::Data, 1, 10, |header| header.tag = -1),
        );
    }),
    (Rule::PacketType, |talk| {
        let mut other = packet(PacketType::Data, 1, 0, |_| {});
        other[3] = 8;
        talk.set("short", other);
    }),
    (Rule::PacketLength, |talk| {
        talk.set("short", packet(PacketType::Data, 1, 101, |_| {}))
    }),
    (Rule::LocalRank, |talk| {
        talk.set(
            "short",
            packet(PacketType::Data, 1, 10, |header| header.rank = 0),
        );
    }),
    (Rule::UnusedFields, |talk| {
        talk.set(
            "ack",
            packet(PacketType::ProtoAck, 0, 0, |header| header.tag = -1),
        );
    }),
    (Rule::AckMark, |talk| talk.earlier("ack", "short")),
    (Rule::Window, |talk| talk.remove("ack")),
    (Rule::ShortMessage, |talk| {
        talk.set(
            "short",
            packet(PacketType::Data, 1, 5, |header| header.message_length = 10),
        );
    }),
    (Rule::SyncAck, |talk| talk.set("sync", sync(8))),
    (Rule::SyncAck, |talk| {
        ["sync", "second", "third", "ack of the third"]
            .iter()
            .for_each(|step| talk.remove(step));
    }),
    (Rule::LongFirst, |talk| {
        talk.set("first", first(|header| header.kind = PacketType::Data))
    }),
    (Rule::LongWaits, |talk| talk.earlier("second", "sync")),
    (Rule::LongRequest, |talk| {
        talk.set("second", part(100, |header| header.destination_request = 8));
    }),
    (Rule::LongSum, |talk| talk.set("third", part(60, |_| {}))),
    (Rule::LongSum, |talk| talk.set("third", part(40, |_| {}))),
    (Rule::CancelWindow, |talk| {
        talk.set(
            "cancel",
            packet(PacketType::Cancel, 1, 0, |header| header.source_request = 6),
        );
    }),
    (Rule::CancelReply, |talk| talk.remove("no")),
    (Rule::CancelReply, |talk| talk.earlier("no", "cancel")),
    (Rule::AfterFini, |talk| talk.earlier("end of 1", "third")),
    (Rule::Limits, |talk| {
        talk.value(Label::TagUpperBound, &[0, 0, 0x7f, 0xfe])
    }),
    (Rule::Limits, |talk| talk.value(Label::AckMark, &[0; 4])),
    (Rule::CollectiveContext, |talk| {
        talk.set(
            "short",
            packet(PacketType::Data, 1, 10, |header| header.tag = 110),
        );
    }),
];

#[test]
fn a_conversation_in_order_is_that() {
    for program in [false, true] {
        let observer = Talk::good().observe(program);
        assert_eq!(observer.findings(), []);
        assert!(observer.seen(Party::Client(1)).contains(&Rule::LongRequest));
        assert!(observer.seen(Party::Client(0)).contains(&Rule::CancelReply));
    }
}

#[test]
fn each_broken_rule_is_found() {
    for (rule, change) in CASES {
        let mut talk = Talk::good();
        change(&mut talk);
        let findings = talk.observe(true).findings();
        assert!(
            findings.iter().any(|finding| finding.rule == *rule),
            "{rule:?}: {findings:?}"
        );
    }
}

#[test]
fn each_rule_that_conversations_show_has_a_case() {
    let cases: BTreeSet<Rule> = CASES.iter().map(|(rule, _)| *rule).collect();
    let shown = |rule: &&Rule| matches!(rule.by(), By::Conversation | By::Both);
    let wanted: BTreeSet<Rule> = Rule::ALL.iter().filter(shown).copied().collect();
    assert_eq!(cases, wanted);
}

#[test]
fn each_rule_of_servers_has_a_check() {
    let access = Access {
        none: true,
        key: Some(5),
    };
    let mut made: BTreeSet<Rule> = checks(3, access).iter().map(|check| check.rule).collect();
    // Those that need no client, in `wireup_impi_io::kit::check_server`.
    made.extend(STARTS);
    let wanted = |rule: &&Rule| matches!(rule.by(), By::Server | By::Both);
    let wanted: BTreeSet<Rule> = Rule::ALL.iter().filter(wanted).copied().collect();
    assert_eq!(made, wanted);
}

#[test]
fn the_page_has_each_rule_and_what_checks_it() {
    let page = include_str!("../../../../docs/impi-conformance.md");
    let rows: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| Section"))
        .collect();
    let wanted: Vec<String> = Rule::ALL.iter().map(|rule| rule.row()).collect();
    assert_eq!(rows, wanted, "should be:\n{}", wanted.join("\n"));
}

#[test]
fn notes_name_the_section() {
    let mut observer = Observer::new(false);
    let mut notes = Vec::new();
    for (_, connection, what) in Talk::good().0 {
        let time = Duration::from_micros(5);
        notes.extend(observer.event(&Event {
            time,
            connection,
            what,
        }));
    }
    let text: Vec<String> = notes.iter().map(ToString::to_string).collect();
    for line in [
        "0.000005  0 [2.3.5] COLL to client 0, of clients 0b11: IMPI_H_PORT: 99, 99",
        "0.000005  2 [3.7.2] DATASYNC 1 -> 0: 100 of 250 bytes, tag 0, context 0, request 0x7, the first part",
        "0.000005  2 [3.7.4] CANCELNO 0 -> 1: request 0x5",
        "0.000005  2 [3.8] FINI",
    ] {
        assert!(text.iter().any(|note| note == line), "{line}: {text:#?}");
    }
}
