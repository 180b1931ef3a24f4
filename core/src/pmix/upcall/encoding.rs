//! Payloads of upcalls. Layouts: docs/shim.md.

use wireup_shim::wire as c;

use crate::pmix::upcall::{
    GroupOp, Notice, Query, SpawnedAppInfo, Upcall, UpcallKind, UpcallRequest,
};
use crate::pmix::value::{Channels, DataRange, Info, Proc, Status, Text};
use crate::pmix::wire::{Reader, WireError, Writer};

impl GroupOp {
    fn encode(self, out: &mut Writer) {
        out.u8(match self {
            Self::Construct => c::WIREUP_GROUP_CONSTRUCT as u8,
            Self::Destruct => c::WIREUP_GROUP_DESTRUCT as u8,
        });
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, WireError> {
        match u32::from(from.u8()?) {
            c::WIREUP_GROUP_CONSTRUCT => Ok(Self::Construct),
            c::WIREUP_GROUP_DESTRUCT => Ok(Self::Destruct),
            _ => Err(WireError::Bad("group operation")),
        }
    }
}

impl Upcall {
    /// Reads the payload of a frame of this kind.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(kind: UpcallKind, payload: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(payload);
        let upcall = match kind {
            UpcallKind::ClientConnected => Self::Notice(Notice::ClientConnected {
                proc: Proc::decode(&mut from)?,
                infos: Info::decode_list(&mut from)?,
            }),
            UpcallKind::ClientFinalized => Self::Notice(Notice::ClientFinalized {
                proc: Proc::decode(&mut from)?,
            }),
            UpcallKind::RegisterEvents => Self::Notice(Notice::RegisterEvents {
                codes: from.list(|from| from.i32().map(Status))?,
                infos: Info::decode_list(&mut from)?,
            }),
            UpcallKind::DeregisterEvents => Self::Notice(Notice::DeregisterEvents {
                codes: from.list(|from| from.i32().map(Status))?,
            }),
            UpcallKind::NotifyEvent => Self::Notice(Notice::NotifyEvent {
                code: Status(from.i32()?),
                source: Proc::decode(&mut from)?,
                range: DataRange(from.u8()?),
                infos: Info::decode_list(&mut from)?,
            }),
            UpcallKind::GroupEnded => Self::Notice(Notice::GroupEnded {
                name: Text::decode(&mut from)?,
                procs: from.list(Proc::decode)?,
            }),
            UpcallKind::ConnectionsLost => Self::Notice(Notice::ConnectionsLost {
                source: Proc::decode(&mut from)?,
                infos: Info::decode_list(&mut from)?,
            }),
            UpcallKind::Spawned => Self::Notice(Notice::Spawned {
                nspace: Text::decode(&mut from)?,
            }),
            UpcallKind::ToolConnected => Self::Request(UpcallRequest::ToolConnected {
                infos: Info::decode_list(&mut from)?,
            }),
            UpcallKind::Abort => Self::Request(UpcallRequest::Abort {
                proc: Proc::decode(&mut from)?,
                status: from.i32()?,
                message: Text::decode(&mut from)?,
                targets: from.list(Proc::decode)?,
            }),
            UpcallKind::Fence => Self::Request(UpcallRequest::Fence {
                procs: from.list(Proc::decode)?,
                infos: Info::decode_list(&mut from)?,
                data: from.bytes()?.to_vec(),
            }),
            UpcallKind::DirectModex => Self::Request(UpcallRequest::DirectModex {
                proc: Proc::decode(&mut from)?,
                infos: Info::decode_list(&mut from)?,
            }),
            UpcallKind::Query => Self::Request(UpcallRequest::Query {
                proc: Proc::decode(&mut from)?,
                queries: from.list(|from| {
                    Ok(Query {
                        keys: from.list(Text::decode)?,
                        qualifiers: Info::decode_list(from)?,
                    })
                })?,
            }),
            UpcallKind::Log => Self::Request(UpcallRequest::Log {
                proc: Proc::decode(&mut from)?,
                data: Info::decode_list(&mut from)?,
                directives: Info::decode_list(&mut from)?,
            }),
            UpcallKind::Publish => Self::Request(UpcallRequest::Publish {
                proc: Proc::decode(&mut from)?,
                infos: Info::decode_list(&mut from)?,
            }),
            UpcallKind::Lookup => Self::Request(UpcallRequest::Lookup {
                proc: Proc::decode(&mut from)?,
                keys: from.list(Text::decode)?,
                infos: Info::decode_list(&mut from)?,
            }),
            UpcallKind::Unpublish => Self::Request(UpcallRequest::Unpublish {
                proc: Proc::decode(&mut from)?,
                keys: from.list(Text::decode)?,
                infos: Info::decode_list(&mut from)?,
            }),
            UpcallKind::Group => Self::Request(UpcallRequest::Group {
                op: GroupOp::decode(&mut from)?,
                name: Text::decode(&mut from)?,
                procs: from.list(Proc::decode)?,
                infos: Info::decode_list(&mut from)?,
            }),
            UpcallKind::JobControl => Self::Request(UpcallRequest::JobControl {
                proc: Proc::decode(&mut from)?,
                targets: from.list(Proc::decode)?,
                directives: Info::decode_list(&mut from)?,
            }),
            UpcallKind::SessionControl => Self::Request(UpcallRequest::SessionControl {
                proc: Proc::decode(&mut from)?,
                session: from.u32()?,
                directives: Info::decode_list(&mut from)?,
            }),
            UpcallKind::Spawn => Self::Request(UpcallRequest::Spawn {
                proc: Proc::decode(&mut from)?,
                infos: Info::decode_list(&mut from)?,
                apps: from.list(SpawnedAppInfo::decode)?,
            }),
            UpcallKind::Connect => Self::Request(UpcallRequest::Connect {
                procs: from.list(Proc::decode)?,
                infos: Info::decode_list(&mut from)?,
            }),
            UpcallKind::Disconnect => Self::Request(UpcallRequest::Disconnect {
                procs: from.list(Proc::decode)?,
                infos: Info::decode_list(&mut from)?,
            }),
            UpcallKind::IofPull => Self::Notice(Notice::IofPull {
                procs: from.list(Proc::decode)?,
                infos: Info::decode_list(&mut from)?,
                channels: Channels(from.u16()?),
            }),
            UpcallKind::PushStdin => Self::Request(UpcallRequest::PushStdin {
                source: Proc::decode(&mut from)?,
                targets: from.list(Proc::decode)?,
                infos: Info::decode_list(&mut from)?,
                data: from.bytes()?.to_vec(),
            }),
            UpcallKind::GetCredential => Self::Request(UpcallRequest::GetCredential {
                proc: Proc::decode(&mut from)?,
                directives: Info::decode_list(&mut from)?,
            }),
            UpcallKind::ValidateCredential => Self::Request(UpcallRequest::ValidateCredential {
                proc: Proc::decode(&mut from)?,
                credential: from.bytes()?.to_vec(),
                directives: Info::decode_list(&mut from)?,
            }),
            UpcallKind::Allocate => Self::Request(UpcallRequest::Allocate {
                proc: Proc::decode(&mut from)?,
                directive: from.u8()?,
                infos: Info::decode_list(&mut from)?,
            }),
        };
        from.end()?;
        Ok(upcall)
    }

    /// The frame that the shim sends; `id` is 0 for a notice. For peers of the agent in tests and
    /// tools, as the shim itself is C.
    ///
    /// # Errors
    /// [`WireError::TooLarge`].
    pub fn encode(&self, id: u64) -> Result<Vec<u8>, WireError> {
        let mut out = Writer::frame();
        match self {
            Self::Notice(Notice::ClientConnected { proc, infos })
            | Self::Notice(Notice::ConnectionsLost {
                source: proc,
                infos,
            })
            | Self::Request(UpcallRequest::DirectModex { proc, infos })
            | Self::Request(UpcallRequest::Publish { proc, infos }) => {
                proc.encode(&mut out);
                Info::encode_list(infos, &mut out);
            }
            Self::Notice(Notice::ClientFinalized { proc }) => proc.encode(&mut out),
            Self::Notice(Notice::Spawned { nspace }) => nspace.encode(&mut out),
            Self::Notice(Notice::RegisterEvents { codes, infos }) => {
                encode_codes(codes, &mut out);
                Info::encode_list(infos, &mut out);
            }
            Self::Notice(Notice::DeregisterEvents { codes }) => encode_codes(codes, &mut out),
            Self::Notice(Notice::NotifyEvent {
                code,
                source,
                range,
                infos,
            }) => {
                out.i32(code.0);
                source.encode(&mut out);
                out.u8(range.0);
                Info::encode_list(infos, &mut out);
            }
            Self::Notice(Notice::GroupEnded { name, procs }) => {
                name.encode(&mut out);
                encode_procs(procs, &mut out);
            }
            Self::Request(UpcallRequest::ToolConnected { infos }) => {
                Info::encode_list(infos, &mut out);
            }
            Self::Request(UpcallRequest::Abort {
                proc,
                status,
                message,
                targets,
            }) => {
                proc.encode(&mut out);
                out.i32(*status);
                message.encode(&mut out);
                encode_procs(targets, &mut out);
            }
            Self::Request(UpcallRequest::Fence { procs, infos, data }) => {
                encode_procs(procs, &mut out);
                Info::encode_list(infos, &mut out);
                out.bytes(data);
            }
            Self::Request(UpcallRequest::Query { proc, queries }) => {
                proc.encode(&mut out);
                out.count(queries.len());
                for query in queries {
                    encode_texts(&query.keys, &mut out);
                    Info::encode_list(&query.qualifiers, &mut out);
                }
            }
            Self::Request(UpcallRequest::Log {
                proc,
                data,
                directives,
            }) => {
                proc.encode(&mut out);
                Info::encode_list(data, &mut out);
                Info::encode_list(directives, &mut out);
            }
            Self::Request(UpcallRequest::Lookup { proc, keys, infos })
            | Self::Request(UpcallRequest::Unpublish { proc, keys, infos }) => {
                proc.encode(&mut out);
                encode_texts(keys, &mut out);
                Info::encode_list(infos, &mut out);
            }
            Self::Request(UpcallRequest::Group {
                op,
                name,
                procs,
                infos,
            }) => {
                op.encode(&mut out);
                name.encode(&mut out);
                encode_procs(procs, &mut out);
                Info::encode_list(infos, &mut out);
            }
            Self::Request(UpcallRequest::JobControl {
                proc,
                targets,
                directives,
            }) => {
                proc.encode(&mut out);
                encode_procs(targets, &mut out);
                Info::encode_list(directives, &mut out);
            }
            Self::Request(UpcallRequest::SessionControl {
                proc,
                session,
                directives,
            }) => {
                proc.encode(&mut out);
                out.u32(*session);
                Info::encode_list(directives, &mut out);
            }
            Self::Request(UpcallRequest::Spawn { proc, infos, apps }) => {
                proc.encode(&mut out);
                Info::encode_list(infos, &mut out);
                out.count(apps.len());
                apps.iter().for_each(|app| app.encode(&mut out));
            }
            Self::Request(UpcallRequest::Connect { procs, infos })
            | Self::Request(UpcallRequest::Disconnect { procs, infos }) => {
                encode_procs(procs, &mut out);
                Info::encode_list(infos, &mut out);
            }
            Self::Notice(Notice::IofPull {
                procs,
                infos,
                channels,
            }) => {
                encode_procs(procs, &mut out);
                Info::encode_list(infos, &mut out);
                out.u16(channels.0);
            }
            Self::Request(UpcallRequest::PushStdin {
                source,
                targets,
                infos,
                data,
            }) => {
                source.encode(&mut out);
                encode_procs(targets, &mut out);
                Info::encode_list(infos, &mut out);
                out.bytes(data);
            }
            Self::Request(UpcallRequest::GetCredential { proc, directives }) => {
                proc.encode(&mut out);
                Info::encode_list(directives, &mut out);
            }
            Self::Request(UpcallRequest::ValidateCredential {
                proc,
                credential,
                directives,
            }) => {
                proc.encode(&mut out);
                out.bytes(credential);
                Info::encode_list(directives, &mut out);
            }
            Self::Request(UpcallRequest::Allocate {
                proc,
                directive,
                infos,
            }) => {
                proc.encode(&mut out);
                out.u8(*directive);
                Info::encode_list(infos, &mut out);
            }
        }
        out.finish(self.kind().op(), false, id)
    }
}

fn encode_codes(codes: &[Status], out: &mut Writer) {
    out.count(codes.len());
    codes.iter().for_each(|code| out.i32(code.0));
}

pub(super) fn encode_texts(texts: &[Text], out: &mut Writer) {
    out.count(texts.len());
    texts.iter().for_each(|text| text.encode(out));
}

fn encode_procs(procs: &[Proc], out: &mut Writer) {
    out.count(procs.len());
    procs.iter().for_each(|proc| proc.encode(out));
}
