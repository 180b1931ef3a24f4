//! Lines as their readers see them.

use super::*;
use crate::job::ids::{AppNum, NodeId, Rank};
use crate::job::outcome::RankEnd;
use crate::job::usage::ResourceUsage;

fn line(record: &StatusRecord<'_>) -> String {
    let mut out = Vec::new();
    record.write(
        WallClock::utc(Duration::ZERO),
        Duration::from_millis(1500),
        &mut out,
    );
    String::from_utf8(out).unwrap()
}

#[test]
fn line_starts_with_time_and_kind_and_has_one_newline() {
    let written = line(&StatusRecord::Warning {
        message: "two\nlines".into(),
    });
    let start = r#"{"time":"1970-01-01T00:00:01.500Z","ms":1500,"us":1500000,"event":"warning","#;
    assert!(written.starts_with(start), "{written}");
    assert_eq!(written.matches('\n').count(), 1);
    assert!(written.ends_with("}\n"));
}

#[test]
fn end_of_rank_is_code_or_signal() {
    let change = |end: RankEnd| {
        let place = RankLocation::new((JobIndex(0), Rank(3)).into(), NodeId(1), "h", AppNum(0));
        let change = RankChange {
            state: RankState::Ended,
            place,
            pid: Some(7),
            end: Some(end.into()),
            usage: None,
        };
        serde_json::from_str::<serde_json::Value>(&line(&StatusRecord::Rank(change))).unwrap()
    };
    let code = change(RankEnd::Code(3));
    assert_eq!((&code["code"], &code["signal"]), (&3.into(), &().into()));
    let signal = change(RankEnd::Signal(11));
    assert_eq!(signal["code"], serde_json::Value::Null);
    assert_eq!(signal["signal_name"], "SIGSEGV");
    assert_eq!((&signal["rank"], &signal["host"]), (&3.into(), &"h".into()));
}

fn read(line: &str) -> StatusRecord<'static> {
    StatusRecord::read(line.as_bytes()).unwrap().1
}

#[test]
fn output_is_read_as_printed_bytes() {
    let bytes = |line: &str| match StatusRecord::read(line.as_bytes()).ok()?.1 {
        StatusRecord::Output(output) => Some(output.into_bytes()),
        other => panic!("{other:?}"),
    };
    let start = r#"{"time":"t","ms":1,"event":"output","rank":3,"stream":"stdout","#;
    let with = |ending: &str| bytes(&format!("{start}{ending}}}"));
    assert_eq!(with(r#""text":"a\nb\u0000""#).unwrap(), b"a\nb\0");
    for (digits, expected) in [
        ("", Some(&b""[..])),
        ("/w==", Some(b"\xff")),
        ("/4A=", Some(b"\xff\x80")),
        ("+v8A", Some(b"\xfa\xff\x00")),
        ("AAECAw==", Some(b"\x00\x01\x02\x03")),
        ("/w=", None),
        ("/w", None),
        ("A===", None),
        ("!w==", None),
    ] {
        let found = with(&format!("\"base64\":\"{digits}\""));
        assert_eq!(found.as_deref(), expected, "{digits}");
    }
    assert!(with(r#""other":1"#).is_none());
}

#[test]
fn unknown_records_of_later_version_are_skipped() {
    let event = r#"{"time":"t","ms":1,"event":"weather","x":1}"#;
    assert!(matches!(read(event), StatusRecord::Other));
    let state = r#"{"time":"t","ms":1,"event":"rank","state":"asleep","rank":0,"node":0,"host":"h",
        "app":0,"pid":7,"new":[]}"#;
    let asleep = |record| match record {
        StatusRecord::Rank(change) => change.state == RankState::Other,
        other => panic!("{other:?}"),
    };
    assert!(asleep(read(state)));
    assert!(StatusRecord::read(b"wireup: hello").is_err());
}

#[test]
fn record_survives_reading_and_writing() {
    let speaker = RankId::from((JobIndex(2), Rank(3)));
    let place = || RankLocation::new(speaker, NodeId(1), "h", AppNum(0));
    let first = || RankId::from((JobIndex(0), Rank(0)));
    let cause = || CauseRecord {
        kind: "fence_timeout".into(),
        message: "late".into(),
        place: Some(place()),
        pid: Some(7),
        program: Some("/bin/a".into()),
        code: None,
        signal: Some(9),
        last_activity: Some("put".into()),
        missing: Some(Box::new(Missing {
            count: 2,
            ranks: vec![MissingRank {
                place: place(),
                pid: None,
                last_activity: "nothing".into(),
                idle_ms: Some(5),
            }],
            nodes: vec!["h".into()],
            silent: Vec::new(),
        })),
    };
    let app = || AppRecord {
        app: 0,
        program: "/bin/a".into(),
        command: "/bin/a 'b c'".into(),
        needs: "no MPI".into(),
        ranks: 4,
    };
    let plan = JobPlanRecord {
        version: VERSION,
        job: "wireup-1".into(),
        pid: 5,
        size: 4,
        wireup: "0.1".into(),
        command: Some("wireup run /bin/a 'b c'".into()),
        offered: vec!["pmi".into()],
        libpmix: Some("/lib/libpmix.so.2".into()),
        nodes: vec![PlannedNode {
            node: 1,
            host: "h".into(),
            ranks: 4,
        }],
        virtual_nodes: Some(true),
        apps: vec![app()],
    };
    let usage = ResourceUsage {
        cpu_user_us: 1,
        cpu_system_us: 2,
        rss_max: Some(4096),
    };
    let result = RankResult {
        place: place(),
        pid: Some(7),
        start: Some("t".into()),
        start_ms: Some(1),
        end: None,
        end_ms: None,
        how: RankEnd::Signal(9).into(),
        usage: Some(usage),
        cause: Some("rank_failed".into()),
        connected: true,
        last_activity: "put".into(),
    };
    for record in [
        StatusRecord::Job(PlannedJob {
            state: JobState::Planned,
            plan: Some(Box::new(plan)),
            cause: None,
        }),
        StatusRecord::Job(PlannedJob {
            state: JobState::Killing,
            plan: None,
            cause: Some(cause()),
        }),
        StatusRecord::Rank(RankChange {
            state: RankState::Ended,
            place: place(),
            pid: Some(7),
            end: Some(RankEnd::Code(1).into()),
            usage: Some(usage),
        }),
        StatusRecord::Bindings(HostBindings {
            spawned_job: JobIndex(2),
            node: 1,
            host: "h".into(),
            topology: "1 package".into(),
            ranks: vec![RankBinding {
                rank: Rank(3),
                cpus: "core 1 (CPU 1)".into(),
            }],
        }),
        StatusRecord::output(Some(first()), Stream::Stderr, b"text\n"),
        StatusRecord::output(Some(speaker), Stream::Stdout, b"\xff\x00"),
        StatusRecord::output(None, Stream::Stdout, b"of the library"),
        StatusRecord::log(Some(speaker), b"\xff"),
        StatusRecord::Result(Box::new(ResultRecord {
            version: VERSION,
            job: Some("wireup-1".into()),
            exit_code: 137,
            exit_policy: Some("first".into()),
            on_failure: Some("abort".into()),
            requeue: false,
            cause: Some(cause()),
            start: "t".into(),
            end: "t".into(),
            elapsed_ms: 9,
            apps: vec![app()],
            ranks: vec![result],
        })),
    ] {
        let written = line(&record);
        assert_eq!(line(&read(&written)), written);
    }
}

#[test]
fn control_command_names_ranks_unless_for_all() {
    let written = |ranks| {
        let mut out = Vec::new();
        SignalCommand::new(9, ranks).write(&mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(written(None), "{\"signal\":9}\n");
    let ranks = Some(vec![Rank(3), Rank(17)]);
    assert_eq!(written(ranks), "{\"signal\":9,\"ranks\":[3,17]}\n");
}

#[test]
fn resize_command_is_read_as_written() {
    let resize = ResizeCommand {
        request: 7,
        add: "n5,n6:4".to_owned(),
        remove: String::new(),
        ends_ranks: true,
    };
    let mut line = Vec::new();
    resize.write(&mut line);
    let text = r#"{"resize":{"request":7,"add":"n5,n6:4","end_ranks":true}}"#;
    assert_eq!(line, format!("{text}\n").as_bytes());
    assert_eq!(
        ControlCommand::parse(&line).unwrap(),
        ControlCommand::Resize(resize)
    );
    assert!(ControlCommand::parse(br#"{"resize":{"hosts":"n5"}}"#).is_err());
    assert!(ControlCommand::parse(br#"{"resize":{},"signal":9}"#).is_err());
}
