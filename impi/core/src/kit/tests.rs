mod talk;

use std::collections::BTreeSet;
use std::time::Duration;

use super::conformance_rules::{CheckedBy, Rule};
use super::conversation_record::{RecordedAction, RecordedEvent};
use super::server_checks::{Access, STARTS, checks};
use super::{Observer, Party};
use crate::command::Command;
use crate::packet::{PacketHeader, PacketType};
use crate::world::Label;
use talk::{BACK, Talk, coll, first, offer, packet, part, proc, sync};

type Break = fn(&mut Talk);

/// The short message is another one.
fn short(talk: &mut Talk, length: usize, change: impl Fn(&mut PacketHeader)) {
    talk.set("short", packet(PacketType::Data, 1, length, change));
}

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
        let reply = RecordedAction::Bytes(BACK, Command::Fini.unit(&[]));
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
        short(talk, 4, |header| header.tag = 11)
    }),
    (Rule::PacketProcs, |talk| {
        short(talk, 10, |header| header.source = proc(0))
    }),
    (Rule::WorldContext, |talk| {
        short(talk, 10, |header| header.context = 2)
    }),
    (Rule::TagRange, |talk| {
        short(talk, 10, |header| header.tag = -1)
    }),
    (Rule::PacketType, |talk| {
        let mut other = packet(PacketType::Data, 1, 0, |_| {});
        other[3] = 8;
        talk.set("short", other);
    }),
    (Rule::PacketLength, |talk| short(talk, 101, |_| {})),
    (Rule::LocalRank, |talk| {
        short(talk, 10, |header| header.rank = 0)
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
        short(talk, 5, |header| header.message_length = 10)
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
        short(talk, 10, |header| header.tag = 110)
    }),
];

#[test]
fn conversation_in_order_has_no_findings() {
    for program in [false, true] {
        let observer = Talk::good().observe(program);
        assert_eq!(observer.findings(), []);
        assert!(
            observer
                .applied_rules(Party::Client(1))
                .contains(&Rule::LongRequest)
        );
        assert!(
            observer
                .applied_rules(Party::Client(0))
                .contains(&Rule::CancelReply)
        );
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
fn each_rule_of_conversations_has_case() {
    let cases: BTreeSet<Rule> = CASES.iter().map(|(rule, _)| *rule).collect();
    let shown = |rule: &&Rule| matches!(rule.by(), CheckedBy::Conversation | CheckedBy::Both);
    let rules: BTreeSet<Rule> = Rule::ALL.iter().filter(shown).copied().collect();
    assert_eq!(cases, rules);
}

#[test]
fn each_rule_of_servers_has_check() {
    let access = Access {
        none: true,
        key: Some(5),
    };
    let mut rules: BTreeSet<Rule> = checks(3, access).iter().map(|check| check.rule).collect();
    // Those that need no client, in `wireup_impi_io::kit::server_under_test`.
    rules.extend(STARTS);
    let is_for_servers = |rule: &&Rule| matches!(rule.by(), CheckedBy::Server | CheckedBy::Both);
    let server_rules: BTreeSet<Rule> = Rule::ALL.iter().filter(is_for_servers).copied().collect();
    assert_eq!(rules, server_rules);
}

#[test]
fn page_has_each_rule_and_its_check() {
    let page = include_str!("../../../../docs/impi-conformance.md");
    let rows: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| Section"))
        .collect();
    let expected: Vec<String> = Rule::ALL.iter().map(|rule| rule.row()).collect();
    assert_eq!(rows, expected, "should be:\n{}", expected.join("\n"));
}

#[test]
fn notes_name_section() {
    let mut observer = Observer::new(false);
    let mut notes = Vec::new();
    for (_, connection, what) in Talk::good().0 {
        let time = Duration::from_micros(5);
        notes.extend(observer.event(&RecordedEvent {
            time,
            connection,
            action: what,
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
