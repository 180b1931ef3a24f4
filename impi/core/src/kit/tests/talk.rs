//! A conversation in order, whose steps can be changed.

use std::time::Duration;

use crate::command::Command;
use crate::kit::Observer;
use crate::kit::conversation_record::{ConversationSide, Kind, RecordedAction, RecordedEvent};
use crate::packet::{Packet, PacketHeader, PacketType, ProcId};
use crate::world::{ClientOffer, HostOffer, Label};

/// A conversation, whose steps have names.
pub(super) struct Talk(pub(super) Vec<(String, u32, RecordedAction)>);

pub(super) const FORTH: ConversationSide = ConversationSide::Forth;
pub(super) const BACK: ConversationSide = ConversationSide::Back;

pub(super) fn proc(client: u8) -> ProcId {
    let mut host = [0; 16];
    host[15] = client + 1;
    ProcId { host, pid: 7 }
}

pub(super) fn offer(client: u8) -> ClientOffer {
    ClientOffer {
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

pub(super) fn coll(label: Label, mask: Option<u32>, value: &[u8]) -> Vec<u8> {
    let mask = mask.map(u32::to_be_bytes);
    let mask = mask.as_ref().map_or(&[][..], |mask| &mask[..]);
    Command::Coll.unit(&[&(label as i32).to_be_bytes()[..], mask, value].concat())
}

pub(super) fn packet(
    kind: PacketType,
    from: u8,
    length: usize,
    change: impl Fn(&mut PacketHeader),
) -> Vec<u8> {
    let mut header = PacketHeader::new(kind, proc(from), proc(1 - from));
    header.length = u32::try_from(length).unwrap();
    header.message_length = length as u64;
    header.rank = i32::from(from);
    header.source_request = 5;
    if kind == PacketType::Fini {
        header = PacketHeader::new(kind, ProcId::default(), ProcId::default());
    } else if kind == PacketType::ProtoAck {
        header = PacketHeader::new(kind, proc(from), proc(1 - from));
    } else if !kind.has_body() {
        (header.message_length, header.rank) = (0, 0);
    }
    change(&mut header);
    let data = vec![0; length];
    Packet { header, data }.bytes()
}

/// A further part of the long message.
pub(super) fn part(length: usize, change: impl Fn(&mut PacketHeader)) -> Vec<u8> {
    packet(PacketType::Data, 1, length, |header| {
        (header.source_request, header.destination_request) = (7, 9);
        header.message_length = 250;
        change(header);
    })
}

pub(super) fn first(change: impl Fn(&mut PacketHeader)) -> Vec<u8> {
    packet(PacketType::DataSync, 1, 100, |header| {
        (header.source_request, header.message_length) = (7, 250);
        change(header);
    })
}

pub(super) fn sync(request: u64) -> Vec<u8> {
    packet(PacketType::SyncAck, 0, 0, |header| {
        (header.source_request, header.destination_request) = (request, 9);
    })
}

impl Talk {
    fn say(
        &mut self,
        name: impl Into<String>,
        connection: u32,
        from: ConversationSide,
        bytes: Vec<u8>,
    ) {
        self.0
            .push((name.into(), connection, RecordedAction::Bytes(from, bytes)));
    }

    fn each(&mut self, name: &str, from: ConversationSide, bytes: impl Fn(u8) -> Vec<u8>) {
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
    pub(super) fn good() -> Self {
        let mut talk = Self(Vec::new());
        for client in 0..2 {
            talk.0.push((
                format!("open{client}"),
                client,
                RecordedAction::Open(Kind::Server),
            ));
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
            .push(("channel".into(), 2, RecordedAction::Open(Kind::Host(0))));
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
        talk.0
            .push(("close of 1".into(), 2, RecordedAction::End(FORTH)));
        talk.0
            .push(("close of 0".into(), 2, RecordedAction::End(BACK)));
        talk.each("fini", FORTH, |_| Command::Fini.unit(&[]));
        for client in 0..2 {
            talk.0
                .push((format!("close{client}"), client, RecordedAction::End(FORTH)));
            talk.0
                .push((format!("closed{client}"), client, RecordedAction::End(BACK)));
        }
        talk
    }

    pub(super) fn at(&self, name: &str) -> usize {
        let at = self.0.iter().position(|(known, ..)| known == name);
        at.unwrap_or_else(|| panic!("no step {name}"))
    }

    pub(super) fn set(&mut self, name: &str, bytes: Vec<u8>) {
        let at = self.at(name);
        let RecordedAction::Bytes(from, _) = self.0[at].2 else {
            panic!("{name} has no bytes")
        };
        self.0[at].2 = RecordedAction::Bytes(from, bytes);
    }

    pub(super) fn remove(&mut self, name: &str) {
        let at = self.at(name);
        self.0.remove(at);
    }

    pub(super) fn earlier(&mut self, name: &str, before: &str) {
        let at = self.at(name);
        let step = self.0.remove(at);
        let before = self.at(before);
        self.0.insert(before, step);
    }

    pub(super) fn value(&mut self, label: Label, value: &[u8]) {
        self.set(&format!("{}0", label.name()), coll(label, None, value));
    }

    pub(super) fn observe(&self, program: bool) -> Observer {
        let mut observer = Observer::new(program);
        for (at, (_, connection, what)) in self.0.iter().enumerate() {
            let time = Duration::from_millis(at as u64);
            observer.event(&RecordedEvent {
                time,
                connection: *connection,
                action: what.clone(),
            });
        }
        observer.finish();
        observer
    }
}
