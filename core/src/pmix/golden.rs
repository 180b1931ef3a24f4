//! Vectors shared with the C tests: `golden/c` is made by the C driver and read here, `golden/rust`
//! is made here and read by the driver. Both sides also compare their own encoding.
//!
//! With `WIREUP_WRITE_GOLDEN` set, `golden/rust` is made anew; `shim/tests/run write` does it for C.
#![allow(clippy::disallowed_methods, reason = "tests read files")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::keys;
use super::upcall::{
    GroupOp, Notice, Pdata, Query, SpawnedAppInfo, Upcall, UpcallAnswer, UpcallKind, UpcallRequest,
};
use super::value::{
    Array, Channels, DataRange, DeviceDistance, Info, PmixProc, PmixRank, ProcInfo, Status, Text,
    Value, persistence,
};
use super::wire::{HEADER_LEN, Reader, Writer};
use crate::job::ids::Nspace;
use crate::pmix::sidecar_link::{SidecarEvent, SidecarLink};

fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shim/tests/golden")).join(name)
}

fn match_golden(name: &str, bytes: &[u8]) {
    if std::env::var_os("WIREUP_WRITE_GOLDEN").is_some() {
        std::fs::write(path(name), bytes).unwrap();
    }
    let expected = std::fs::read(path(name)).unwrap();
    assert!(bytes == expected, "{name} differs from what we write");
}

fn proc(nspace: &str, rank: u32) -> PmixProc {
    PmixProc {
        nspace: nspace.into(),
        rank: PmixRank(rank),
    }
}

fn encoded(infos: &[Info]) -> Vec<u8> {
    let mut out = Writer::frame();
    Info::encode_list(infos, &mut out);
    out.finish(1, false, 1).unwrap().split_off(HEADER_LEN)
}

/// The same list as `all_kinds` of the C tests.
fn all_kinds() -> Vec<Info> {
    let array = |items: Vec<Value>| Value::Array(Array::new(items).unwrap());
    let member = proc("job-1", 3);
    let mut infos: Vec<Info> = [
        ("undef", Value::Undef),
        ("bool", Value::Bool(true)),
        ("byte", Value::Byte(0xfe)),
        ("string", Value::String(Text::new(*b"caf\xc3\xa9 \xff"))),
        ("size", Value::Size(0x1234_5678_9abc_def0)),
        ("pid", Value::Pid(4711)),
        ("int", Value::Int(-5)),
        ("int8", Value::Int8(-8)),
        ("int16", Value::Int16(-16_000)),
        ("int32", Value::Int32(-32_000_000)),
        ("int64", Value::Int64(i64::MIN)),
        ("uint", Value::Uint(4_000_000_000)),
        ("uint8", Value::Uint8(200)),
        ("uint16", Value::Uint16(60_000)),
        ("uint32", Value::Uint32(0xdead_beef)),
        ("uint64", Value::Uint64(u64::MAX)),
        ("float", Value::Float(1.5)),
        ("double", Value::Double(-0.1)),
        (
            "timeval",
            Value::Timeval {
                seconds: -1,
                microseconds: 999_999,
            },
        ),
        ("time", Value::Time(1_700_000_000)),
        ("status", Value::Status(Status::ERR_NOT_FOUND)),
        ("proc", Value::Proc(member.clone())),
        ("rank", Value::Rank(PmixRank::UNDEF)),
        ("bytes", Value::Bytes(b"a\0b".to_vec())),
        (
            "envar",
            Value::Envar {
                name: "PATH".into(),
                value: "/bin".into(),
                separator: b':',
            },
        ),
        ("range", Value::Range(DataRange::SESSION)),
        ("persistence", Value::Persistence(3)),
        ("scope", Value::Scope(3)),
        ("state", Value::ProcState(5)),
        (
            "proc_info",
            Value::ProcInfo(ProcInfo {
                proc: member.clone(),
                hostname: "alpha".into(),
                executable: "".into(),
                pid: 12,
                exit_code: -1,
                state: 50,
            }),
        ),
        (
            "distance",
            Value::DeviceDistance(DeviceDistance {
                uuid: "gpu://alpha::0000:17:00.0".into(),
                name: "".into(),
                kinds: 2,
                least: 100,
                most: 65_535,
            }),
        ),
        ("regex", Value::Regex(b"blob:\0x".to_vec())),
        (
            "infos",
            Value::Infos(vec![
                Info::new("inner", Value::Uint16(7)),
                Info::new("flag", Value::Bool(false)),
            ]),
        ),
        (
            "numbers",
            array([1, 2, 0xffff_fffe].map(Value::Uint32).to_vec()),
        ),
        (
            "texts",
            array(["one", ""].map(|text| Value::String(text.into())).to_vec()),
        ),
        (
            "procs",
            array(vec![
                Value::Proc(member),
                Value::Proc(proc("", PmixRank::WILDCARD.0)),
            ]),
        ),
    ]
    .into_iter()
    .map(|(key, value)| Info::new(key, value))
    .collect();
    infos[1].required = true;
    infos
}

#[test]
fn upcalls_of_c_driver_roundtrip() {
    let me = || proc("job-1", 1);
    let targets = || vec![proc("job-1", 0), proc("job-2", PmixRank::WILDCARD.0)];
    let collect = || vec![Info::new(keys::COLLECT_DATA, Value::Bool(true))];
    let upcalls = [
        Upcall::Notice(Notice::ClientConnected {
            proc: me(),
            infos: all_kinds()[..1].to_vec(),
        }),
        Upcall::Notice(Notice::ClientFinalized { proc: me() }),
        Upcall::Notice(Notice::RegisterEvents {
            codes: vec![Status(-7), Status::EVENT_NODE_DOWN],
            infos: all_kinds()[..2].to_vec(),
        }),
        Upcall::Notice(Notice::DeregisterEvents { codes: Vec::new() }),
        Upcall::Notice(Notice::NotifyEvent {
            code: Status(-3333),
            source: me(),
            range: DataRange::SESSION,
            infos: all_kinds(),
        }),
        Upcall::Notice(Notice::GroupEnded {
            name: "tag-1".into(),
            procs: vec![me()],
        }),
        Upcall::Notice(Notice::ConnectionsLost {
            source: me(),
            infos: vec![Info::new(keys::PROCID, Value::Proc(proc("job-1", 0)))],
        }),
        Upcall::Notice(Notice::Spawned {
            nspace: "job-1.2".into(),
        }),
        Upcall::Request(UpcallRequest::Abort {
            proc: me(),
            status: 7,
            message: "told to".into(),
            targets: targets(),
        }),
        Upcall::Request(UpcallRequest::Fence {
            procs: targets(),
            infos: collect(),
            data: vec![1, 0, 2, 0, 3],
        }),
        Upcall::Request(UpcallRequest::DirectModex {
            proc: proc("job-1", 0),
            infos: collect(),
        }),
        Upcall::Request(UpcallRequest::Query {
            proc: me(),
            queries: vec![
                Query {
                    keys: vec![keys::QUERY_NUM_PSETS.into(), "other".into()],
                    qualifiers: collect(),
                },
                Query {
                    keys: Vec::new(),
                    qualifiers: Vec::new(),
                },
            ],
        }),
        Upcall::Request(UpcallRequest::Log {
            proc: me(),
            data: vec![Info::new(keys::LOG_STDERR, Value::String("help\n".into()))],
            directives: Vec::new(),
        }),
        Upcall::Request(UpcallRequest::Publish {
            proc: me(),
            infos: collect(),
        }),
        Upcall::Request(UpcallRequest::Lookup {
            proc: me(),
            keys: vec!["name".into(), "".into()],
            infos: collect(),
        }),
        Upcall::Request(UpcallRequest::Unpublish {
            proc: me(),
            keys: Vec::new(),
            infos: Vec::new(),
        }),
        Upcall::Request(UpcallRequest::Group {
            op: GroupOp::Construct,
            name: "tag-1".into(),
            procs: targets(),
            infos: collect(),
        }),
        Upcall::Request(UpcallRequest::JobControl {
            proc: me(),
            targets: targets(),
            directives: collect(),
        }),
        Upcall::Request(UpcallRequest::Spawn {
            proc: me(),
            infos: collect(),
            apps: vec![
                SpawnedAppInfo {
                    cmd: "/bin/child".into(),
                    argv: vec!["child".into(), "".into(), "--go".into()],
                    env: vec!["OMPI_PARENT_PORT=1;a=b".into()],
                    cwd: "/tmp".into(),
                    maxprocs: 2,
                    infos: collect(),
                },
                SpawnedAppInfo {
                    cmd: "".into(),
                    argv: Vec::new(),
                    env: Vec::new(),
                    cwd: "".into(),
                    maxprocs: -1,
                    infos: Vec::new(),
                },
            ],
        }),
        Upcall::Request(UpcallRequest::Connect {
            procs: targets(),
            infos: collect(),
        }),
        Upcall::Request(UpcallRequest::Disconnect {
            procs: targets(),
            infos: Vec::new(),
        }),
        Upcall::Notice(Notice::IofPull {
            procs: targets(),
            infos: all_kinds()[..1].to_vec(),
            channels: Channels(Channels::STDOUT.0 | Channels::STDERR.0),
        }),
        Upcall::Request(UpcallRequest::PushStdin {
            source: me(),
            targets: targets(),
            infos: collect(),
            data: b"a\0b".to_vec(),
        }),
        Upcall::Request(UpcallRequest::GetCredential {
            proc: me(),
            directives: vec![Info::new(
                keys::CRED_TYPE,
                Value::String("wireup,munge".into()),
            )],
        }),
        Upcall::Request(UpcallRequest::ValidateCredential {
            proc: me(),
            credential: b"to\0ken".to_vec(),
            directives: Vec::new(),
        }),
        Upcall::Request(UpcallRequest::Allocate {
            proc: me(),
            directive: 2,
            infos: collect(),
        }),
        Upcall::Request(UpcallRequest::SessionControl {
            proc: me(),
            session: 7,
            directives: collect(),
        }),
        Upcall::Request(UpcallRequest::ToolConnected { infos: collect() }),
    ];
    let mut link = SidecarLink::default();
    let mut last_id = 0;
    for upcall in upcalls {
        let kind = upcall.kind();
        let frame = std::fs::read(path(&format!("c/{}.bin", kind.name()))).unwrap();
        let mut events = link.on_upcall_bytes(&frame).unwrap();
        let (id, read) = match events.pop() {
            Some(SidecarEvent::Notice(notice)) => (0, Upcall::Notice(notice)),
            Some(SidecarEvent::Request { request, .. }) => {
                last_id += 1;
                (last_id, Upcall::Request(request))
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(read, upcall);
        assert_eq!(upcall.encode(id).unwrap(), frame, "{kind:?}");
    }
    assert_eq!(link.outstanding_upcalls().count(), 19);
}

#[test]
fn replies_and_infos_for_c_driver_equal_stored_ones() {
    match_golden("rust/infos.bin", &encoded(&all_kinds()));
    let special = [
        Info::new("nodes", Value::NodeList("a,b".into())),
        Info::new("ranks", Value::PpnList("0,1;2,3".into())),
        Info::new("pointer", Value::Foreign(31)),
        Info::new("last", Value::Bool(true)),
    ];
    match_golden("rust/special.bin", &encoded(&special));
    let mut required = Info::new("pointer", Value::Foreign(31));
    required.required = true;
    match_golden("rust/foreign_required.bin", &encoded(&[required]));
    let bad = Info::new("nodes", Value::NodeList("bad".into()));
    match_golden("rust/bad_map.bin", &encoded(&[bad]));

    let infos = vec![
        Info::new("answer", Value::String("42".into())),
        Info::new("more", Value::Infos(all_kinds())),
    ];
    let pdata = |key: &str, value| Pdata {
        proc: proc("job-1", 3),
        key: key.into(),
        value,
    };
    let found = vec![
        pdata("name", Value::String("port".into())),
        pdata("pointer", Value::Foreign(31)),
        pdata("record", Value::Infos(all_kinds())),
    ];
    let members = vec![Value::Proc(proc("job-1", 1)), Value::Proc(proc("job-1", 0))];
    let members = Array::new(members).unwrap();
    let group = vec![
        Info::new(keys::GROUP_CONTEXT_ID, Value::Size(7)),
        Info::new(keys::GROUP_MEMBERSHIP, Value::Array(members)),
        Info::new(keys::GROUP_ENDPT_DATA, Value::Bytes(b"\0\x01\0".to_vec())),
    ];
    for (kind, id, answer) in [
        (UpcallKind::Abort, 1, UpcallAnswer::Status(Status::SUCCESS)),
        (
            UpcallKind::Fence,
            2,
            UpcallAnswer::Data(b"a\0b\0c".to_vec()),
        ),
        (
            UpcallKind::DirectModex,
            3,
            UpcallAnswer::Status(Status::ERR_NOT_FOUND),
        ),
        (
            UpcallKind::Query,
            4,
            UpcallAnswer::Infos(Status::SUCCESS, infos),
        ),
        (UpcallKind::Log, 5, UpcallAnswer::Status(Status::SUCCESS)),
        (
            UpcallKind::Publish,
            6,
            UpcallAnswer::Status(Status::ERR_DUPLICATE_KEY),
        ),
        (
            UpcallKind::Lookup,
            7,
            UpcallAnswer::Found(Status::SUCCESS, found),
        ),
        (
            UpcallKind::Unpublish,
            8,
            UpcallAnswer::Status(Status::ERR_NOT_FOUND),
        ),
        (
            UpcallKind::Group,
            9,
            UpcallAnswer::Infos(Status::SUCCESS, group),
        ),
        (
            UpcallKind::JobControl,
            10,
            UpcallAnswer::Status(Status::ERR_NOT_SUPPORTED),
        ),
        (
            UpcallKind::Spawn,
            11,
            UpcallAnswer::Spawned(Nspace::new("job-1.2").unwrap()),
        ),
        (
            UpcallKind::Connect,
            12,
            UpcallAnswer::Status(Status::ERR_TIMEOUT),
        ),
        (
            UpcallKind::Disconnect,
            13,
            UpcallAnswer::Status(Status::SUCCESS),
        ),
        (
            UpcallKind::PushStdin,
            14,
            UpcallAnswer::Status(Status::ERR_NOT_SUPPORTED),
        ),
        (
            UpcallKind::GetCredential,
            15,
            UpcallAnswer::Credential(
                b"to\0ken".to_vec(),
                vec![Info::new(keys::CRED_TYPE, Value::String("wireup".into()))],
            ),
        ),
        (
            UpcallKind::ValidateCredential,
            16,
            UpcallAnswer::Infos(
                Status::SUCCESS,
                vec![Info::new(keys::USERID, Value::Uint32(1000))],
            ),
        ),
        (
            UpcallKind::Allocate,
            17,
            UpcallAnswer::Infos(
                Status::SUCCESS,
                vec![Info::new(keys::ALLOC_ID, Value::String("a1".into()))],
            ),
        ),
        (
            UpcallKind::SessionControl,
            18,
            UpcallAnswer::Status(Status::ERR_NOT_FOUND),
        ),
        (
            UpcallKind::ToolConnected,
            19,
            UpcallAnswer::Named(proc("job-1-tool-0-1", 3)),
        ),
    ] {
        let name = format!("rust/answer_{}.bin", kind.name());
        match_golden(&name, &answer.encode(kind, id).unwrap());
    }
}

#[test]
fn infos_are_read_as_written() {
    let bytes = std::fs::read(path("rust/infos.bin")).unwrap();
    let mut from = Reader::new(&bytes);
    assert_eq!(Info::decode_list(&mut from), Ok(all_kinds()));
    assert_eq!(from.end(), Ok(()));
}

#[test]
fn keys_and_numbers_equal_pmix_headers() {
    let listing = std::fs::read_to_string(path("c/keys.txt")).unwrap();
    let mut headers = BTreeMap::new();
    for line in listing.lines() {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap();
        headers.insert((word(), word()), word());
    }
    for (name, key) in keys::ALL {
        let listed = headers.get(&("key", *name));
        assert_eq!(listed, Some(key), "{name}: is it in shim/tests/keys.c?");
    }
    let statuses = [
        ("SUCCESS", Status::SUCCESS),
        ("ERROR", Status::ERROR),
        ("DEBUGGER_RELEASE", Status::DEBUGGER_RELEASE),
        ("READY_FOR_DEBUG", Status::READY_FOR_DEBUG),
        ("ERR_PROC_ABORTED", Status::ERR_PROC_ABORTED),
        ("ERR_INVALID_CRED", Status::ERR_INVALID_CRED),
        (
            "ERR_JOB_APP_NOT_EXECUTABLE",
            Status::ERR_JOB_APP_NOT_EXECUTABLE,
        ),
        ("ERR_JOB_CANCELED", Status::ERR_JOB_CANCELED),
        ("ERR_JOB_FAILED_TO_LAUNCH", Status::ERR_JOB_FAILED_TO_LAUNCH),
        ("ERR_JOB_EXE_NOT_FOUND", Status::ERR_JOB_EXE_NOT_FOUND),
        (
            "ERR_JOB_INSUFFICIENT_RESOURCES",
            Status::ERR_JOB_INSUFFICIENT_RESOURCES,
        ),
        ("ERR_NO_PERMISSIONS", Status::ERR_NO_PERMISSIONS),
        ("ERR_TIMEOUT", Status::ERR_TIMEOUT),
        ("ERR_UNREACH", Status::ERR_UNREACH),
        ("ERR_BAD_PARAM", Status::ERR_BAD_PARAM),
        ("ERR_OUT_OF_RESOURCE", Status::ERR_OUT_OF_RESOURCE),
        ("ERR_INIT", Status::ERR_INIT),
        ("ERR_NOMEM", Status::ERR_NOMEM),
        ("ERR_NOT_FOUND", Status::ERR_NOT_FOUND),
        ("ERR_NOT_SUPPORTED", Status::ERR_NOT_SUPPORTED),
        ("ERR_PARTIAL_SUCCESS", Status::ERR_PARTIAL_SUCCESS),
        ("ERR_DUPLICATE_KEY", Status::ERR_DUPLICATE_KEY),
        ("ERR_LOST_CONNECTION", Status::ERR_LOST_CONNECTION),
        ("QUERY_PARTIAL_SUCCESS", Status::QUERY_PARTIAL_SUCCESS),
        ("PROC_TERMINATED", Status::PROC_TERMINATED),
        ("LAUNCHER_READY", Status::LAUNCHER_READY),
        ("LAUNCH_COMPLETE", Status::LAUNCH_COMPLETE),
        ("EVENT_JOB_END", Status::EVENT_JOB_END),
        ("EVENT_JOB_START", Status::EVENT_JOB_START),
        ("OPERATION_SUCCEEDED", Status::OPERATION_SUCCEEDED),
        ("ERR_JOB_ABORTED", Status::ERR_JOB_ABORTED),
        ("ERR_JOB_ABORTED_BY_SIG", Status::ERR_JOB_ABORTED_BY_SIG),
        ("ERR_JOB_TERM_WO_SYNC", Status::ERR_JOB_TERM_WO_SYNC),
        ("ERR_JOB_NON_ZERO_TERM", Status::ERR_JOB_NON_ZERO_TERM),
        ("ERR_PROC_TERM_WO_SYNC", Status::ERR_PROC_TERM_WO_SYNC),
        ("EVENT_NODE_DOWN", Status::EVENT_NODE_DOWN),
        ("EVENT_NODE_OFFLINE", Status::EVENT_NODE_OFFLINE),
        ("ERR_PROC_ABORTED_BY_SIG", Status::ERR_PROC_ABORTED_BY_SIG),
    ];
    for (name, status) in statuses {
        assert_eq!(headers[&("status", name)], status.0.to_string(), "{name}");
    }
    let ranges = [
        ("UNDEF", DataRange::UNDEF),
        ("RM", DataRange::RM),
        ("LOCAL", DataRange::LOCAL),
        ("NAMESPACE", DataRange::NAMESPACE),
        ("SESSION", DataRange::SESSION),
        ("GLOBAL", DataRange::GLOBAL),
        ("CUSTOM", DataRange::CUSTOM),
        ("PROC_LOCAL", DataRange::PROC_LOCAL),
    ];
    for (name, range) in ranges {
        assert_eq!(headers[&("range", name)], range.0.to_string(), "{name}");
    }
    let persistences = [
        ("INDEF", persistence::INDEF),
        ("FIRST_READ", persistence::FIRST_READ),
        ("PROC", persistence::PROC),
        ("APP", persistence::APP),
        ("SESSION", persistence::SESSION),
    ];
    for (name, number) in persistences {
        assert_eq!(headers[&("persistence", name)], number.to_string());
    }
    let channels = [
        ("STDIN", Channels::STDIN),
        ("STDOUT", Channels::STDOUT),
        ("STDERR", Channels::STDERR),
        ("STDDIAG", Channels::STDDIAG),
    ];
    for (name, channel) in channels {
        assert_eq!(headers[&("channel", name)], channel.0.to_string(), "{name}");
    }
    let ranks = [
        ("UNDEF", PmixRank::UNDEF),
        ("WILDCARD", PmixRank::WILDCARD),
        ("LOCAL_NODE", PmixRank::LOCAL_NODE),
        ("LOCAL_PEERS", PmixRank::LOCAL_PEERS),
    ];
    for (name, rank) in ranks {
        assert_eq!(headers[&("rank", name)], rank.0.to_string(), "{name}");
    }
}
