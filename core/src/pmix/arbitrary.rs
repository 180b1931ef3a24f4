//! Random values for the property tests of this directory.

use proptest::collection::vec;
use proptest::prelude::*;

use super::upcall::{GroupOp, Notice, Query, SpawnedAppInfo, Upcall, UpcallRequest};
use super::value::{
    Array, Channels, DataRange, DeviceDistance, Info, PmixProc, PmixRank, ProcInfo, Status, Text,
    Value,
};

pub fn text() -> impl Strategy<Value = Text> {
    vec(1..=255_u8, 0..12).prop_map(Text::new)
}

pub fn proc() -> impl Strategy<Value = PmixProc> {
    (text(), any::<u32>()).prop_map(|(nspace, rank)| PmixProc {
        nspace,
        rank: PmixRank(rank),
    })
}

fn number() -> BoxedStrategy<Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::Bool),
        any::<u8>().prop_map(Value::Byte),
        any::<u64>().prop_map(Value::Size),
        any::<u32>().prop_map(Value::Pid),
        any::<i32>().prop_map(Value::Int),
        any::<i8>().prop_map(Value::Int8),
        any::<i16>().prop_map(Value::Int16),
        any::<i32>().prop_map(Value::Int32),
        any::<i64>().prop_map(Value::Int64),
        any::<u32>().prop_map(Value::Uint),
        any::<u8>().prop_map(Value::Uint8),
        any::<u16>().prop_map(Value::Uint16),
        any::<u32>().prop_map(Value::Uint32),
        any::<u64>().prop_map(Value::Uint64),
        any::<u8>().prop_map(|range| Value::Range(DataRange(range))),
        any::<u8>().prop_map(Value::Persistence),
        any::<u8>().prop_map(Value::Scope),
        any::<u8>().prop_map(Value::ProcState),
    ]
    .boxed()
}

fn other() -> BoxedStrategy<Value> {
    let proc_info = (
        proc(),
        text(),
        text(),
        any::<u32>(),
        any::<i32>(),
        any::<u8>(),
    );
    prop_oneof![
        text().prop_map(Value::String),
        (-1e9_f32..1e9).prop_map(Value::Float),
        (-1e99_f64..1e99).prop_map(Value::Double),
        any::<(i64, i64)>().prop_map(|(seconds, microseconds)| Value::Timeval {
            seconds,
            microseconds
        }),
        any::<i64>().prop_map(Value::Time),
        any::<i32>().prop_map(|status| Value::Status(Status(status))),
        proc().prop_map(Value::Proc),
        any::<u32>().prop_map(|rank| Value::Rank(PmixRank(rank))),
        vec(any::<u8>(), 0..20).prop_map(Value::Bytes),
        (text(), text(), any::<u8>()).prop_map(|(name, value, separator)| Value::Envar {
            name,
            value,
            separator
        }),
        proc_info.prop_map(|(proc, hostname, executable, pid, exit_code, state)| {
            Value::ProcInfo(ProcInfo {
                proc,
                hostname,
                executable,
                pid,
                exit_code,
                state,
            })
        }),
        (text(), text(), any::<u64>(), any::<(u16, u16)>()).prop_map(
            |(uuid, name, kinds, (least, most))| {
                Value::DeviceDistance(DeviceDistance {
                    uuid,
                    name,
                    kinds,
                    least,
                    most,
                })
            }
        ),
    ]
    .boxed()
}

pub fn value() -> impl Strategy<Value = Value> {
    let simple = prop_oneof![number(), other()].boxed();
    let array = (simple.clone(), 1..5_usize).prop_map(|(value, count)| {
        Value::Array(Array::new(vec![value; count]).expect("simple values"))
    });
    let leaf = prop_oneof![
        4 => simple,
        1 => array,
        1 => Just(Value::Undef),
        1 => vec(any::<u8>(), 0..20).prop_map(Value::Regex),
        1 => text().prop_map(Value::NodeList),
        1 => text().prop_map(Value::PpnList),
        1 => any::<u16>().prop_map(Value::Foreign),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        vec((text(), any::<bool>(), inner), 0..4).prop_map(|infos| {
            let info = |(key, required, value)| Info {
                key,
                required,
                value,
            };
            Value::Infos(infos.into_iter().map(info).collect())
        })
    })
}

pub fn infos() -> impl Strategy<Value = Vec<Info>> {
    let info = (text(), any::<bool>(), value());
    vec(
        info.prop_map(|(key, required, value)| Info {
            key,
            required,
            value,
        }),
        0..5,
    )
}

fn app() -> impl Strategy<Value = SpawnedAppInfo> {
    let texts = || vec(text(), 0..3);
    let parts = (text(), texts(), texts(), text(), any::<i32>(), infos());
    parts.prop_map(|(cmd, argv, env, cwd, maxprocs, infos)| SpawnedAppInfo {
        cmd,
        argv,
        env,
        cwd,
        maxprocs,
        infos,
    })
}

pub fn upcall() -> impl Strategy<Value = Upcall> {
    let codes = || vec(any::<i32>().prop_map(Status), 0..4);
    let query = (vec(text(), 0..3), infos());
    let query = query.prop_map(|(keys, qualifiers)| Query { keys, qualifiers });
    prop_oneof![
        (proc(), infos())
            .prop_map(|(proc, infos)| Upcall::Notice(Notice::ClientConnected { proc, infos })),
        proc().prop_map(|proc| Upcall::Notice(Notice::ClientFinalized { proc })),
        (codes(), infos())
            .prop_map(|(codes, infos)| Upcall::Notice(Notice::RegisterEvents { codes, infos })),
        codes().prop_map(|codes| Upcall::Notice(Notice::DeregisterEvents { codes })),
        (text(), vec(proc(), 0..4))
            .prop_map(|(name, procs)| Upcall::Notice(Notice::GroupEnded { name, procs })),
        (proc(), infos()).prop_map(|(source, infos)| {
            Upcall::Notice(Notice::ConnectionsLost { source, infos })
        }),
        text().prop_map(|nspace| Upcall::Notice(Notice::Spawned { nspace })),
        infos().prop_map(|infos| Upcall::Request(UpcallRequest::ToolConnected { infos })),
        (any::<i32>(), proc(), any::<u8>(), infos()).prop_map(|(code, source, range, infos)| {
            let (code, range) = (Status(code), DataRange(range));
            Upcall::Notice(Notice::NotifyEvent {
                code,
                source,
                range,
                infos,
            })
        }),
        (proc(), any::<i32>(), text(), vec(proc(), 0..4)).prop_map(
            |(proc, status, message, targets)| Upcall::Request(UpcallRequest::Abort {
                proc,
                status,
                message,
                targets
            })
        ),
        (vec(proc(), 0..4), infos(), vec(any::<u8>(), 0..99)).prop_map(|(procs, infos, data)| {
            Upcall::Request(UpcallRequest::Fence { procs, infos, data })
        }),
        (proc(), infos())
            .prop_map(|(proc, infos)| Upcall::Request(UpcallRequest::DirectModex { proc, infos })),
        (proc(), vec(query, 0..3))
            .prop_map(|(proc, queries)| Upcall::Request(UpcallRequest::Query { proc, queries })),
        (proc(), infos(), infos()).prop_map(|(proc, data, directives)| Upcall::Request(
            UpcallRequest::Log {
                proc,
                data,
                directives
            }
        )),
        (proc(), infos())
            .prop_map(|(proc, infos)| Upcall::Request(UpcallRequest::Publish { proc, infos })),
        (proc(), vec(proc(), 0..3), infos()).prop_map(|(proc, targets, directives)| {
            Upcall::Request(UpcallRequest::JobControl {
                proc,
                targets,
                directives,
            })
        }),
        (proc(), any::<u32>(), infos()).prop_map(|(proc, session, directives)| {
            Upcall::Request(UpcallRequest::SessionControl {
                proc,
                session,
                directives,
            })
        }),
        (proc(), vec(text(), 0..3), infos()).prop_map(|(proc, keys, infos)| Upcall::Request(
            UpcallRequest::Lookup { proc, keys, infos }
        )),
        (proc(), vec(text(), 0..3), infos()).prop_map(|(proc, keys, infos)| Upcall::Request(
            UpcallRequest::Unpublish { proc, keys, infos }
        )),
        (proc(), infos(), vec(app(), 0..3)).prop_map(|(proc, infos, apps)| Upcall::Request(
            UpcallRequest::Spawn { proc, infos, apps }
        )),
        (vec(proc(), 0..4), infos(), any::<u16>()).prop_map(|(procs, infos, channels)| {
            let channels = Channels(channels);
            Upcall::Notice(Notice::IofPull {
                procs,
                infos,
                channels,
            })
        }),
        (proc(), vec(proc(), 0..4), infos(), vec(any::<u8>(), 0..99)).prop_map(
            |(source, targets, infos, data)| Upcall::Request(UpcallRequest::PushStdin {
                source,
                targets,
                infos,
                data
            })
        ),
        (any::<bool>(), vec(proc(), 0..4), infos()).prop_map(|(connect, procs, infos)| {
            match connect {
                true => Upcall::Request(UpcallRequest::Connect { procs, infos }),
                false => Upcall::Request(UpcallRequest::Disconnect { procs, infos }),
            }
        }),
        (proc(), infos()).prop_map(|(proc, directives)| Upcall::Request(
            UpcallRequest::GetCredential { proc, directives }
        )),
        (proc(), vec(any::<u8>(), 0..99), infos()).prop_map(|(proc, credential, directives)| {
            Upcall::Request(UpcallRequest::ValidateCredential {
                proc,
                credential,
                directives,
            })
        }),
        (proc(), any::<u8>(), infos()).prop_map(|(proc, directive, infos)| Upcall::Request(
            UpcallRequest::Allocate {
                proc,
                directive,
                infos,
            }
        )),
        (any::<bool>(), text(), vec(proc(), 0..4), infos()).prop_map(
            |(construct, name, procs, infos)| Upcall::Request(UpcallRequest::Group {
                op: match construct {
                    true => GroupOp::Construct,
                    false => GroupOp::Destruct,
                },
                name,
                procs,
                infos
            })
        ),
    ]
}
