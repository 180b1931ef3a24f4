//! What libpmix asks of its host, typed, and the agent's answers.
//!
//! Does not match answers with upcalls (see [`super::host`]). Payload layouts: docs/shim.md.

use wireup_shim::wire as c;

use super::value::{DataRange, Info, Proc, Status, Text};
use super::wire::{Reader, WireError, Writer};
pub use answer::{Answer, Parts, Pdata};
pub use app::App;
pub use kind::UpcallKind;

mod answer;
mod app;
mod kind;

/// One query of a client: keys, and what narrows them.
#[derive(Clone, PartialEq, Debug)]
pub struct Query {
    /// What is asked.
    pub keys: Vec<Text>,
    /// Restrictions.
    pub qualifiers: Vec<Info>,
}

/// What is done with a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupOp {
    /// It is made.
    Construct,
    /// It is ended.
    Destruct,
}

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

/// One upcall.
#[derive(Clone, PartialEq, Debug)]
pub enum Upcall {
    /// A process completed `PMIx_Init`. Notice: libpmix was already told that it may go on.
    ClientConnected {
        /// Who.
        proc: Proc,
        /// User and group id, from libpmix 5 on.
        infos: Vec<Info>,
    },
    /// A process called `PMIx_Finalize`; a later exit is no abort. Notice.
    ClientFinalized {
        /// Who.
        proc: Proc,
    },
    /// Local processes want to hear of these events. Notice.
    RegisterEvents {
        /// Empty for all events.
        codes: Vec<Status>,
        /// Directives.
        infos: Vec<Info>,
    },
    /// The last interest in these events ended. Notice.
    DeregisterEvents {
        /// Empty for all events.
        codes: Vec<Status>,
    },
    /// A local process, or libpmix itself, raised an event. Notice.
    NotifyEvent {
        /// The event.
        code: Status,
        /// Who raised it; the nspace may be empty.
        source: Proc,
        /// Who shall hear of it.
        range: DataRange,
        /// Details.
        infos: Vec<Info>,
    },
    /// A process called `PMIx_Abort`.
    Abort {
        /// Who.
        proc: Proc,
        /// Status given by the program; MPI's abort code.
        status: i32,
        /// Text given by the program.
        message: Text,
        /// Whom to end; empty for the whole nspace of `proc`.
        targets: Vec<Proc>,
    },
    /// All local participants of a collective that spans nodes have arrived.
    Fence {
        /// The participants: this list is the collective's name.
        procs: Vec<Proc>,
        /// `COLLECT_DATA`, `LOCAL_COLLECTIVE_STATUS`, `TIMEOUT`.
        infos: Vec<Info>,
        /// This node's contribution.
        data: Vec<u8>,
    },
    /// The data of a process on another node is wanted.
    DirectModex {
        /// Whose.
        proc: Proc,
        /// `REQUIRED_KEY`, `TIMEOUT`.
        infos: Vec<Info>,
    },
    /// A question that libpmix cannot answer itself.
    Query {
        /// The server's own name, not the client's: PMIx does not tell.
        proc: Proc,
        /// The questions.
        queries: Vec<Query>,
    },
    /// Text for the user.
    Log {
        /// Who.
        proc: Proc,
        /// What goes where: `LOG_STDERR`, `LOG_STDOUT`, `LOG_MSG`.
        data: Vec<Info>,
        /// How.
        directives: Vec<Info>,
    },
    /// Values to be made known.
    Publish {
        /// Who.
        proc: Proc,
        /// The values, and among them `RANGE`, `PERSISTENCE`, `USERID`.
        infos: Vec<Info>,
    },
    /// Values are wanted.
    Lookup {
        /// By whom.
        proc: Proc,
        /// Under which keys.
        keys: Vec<Text>,
        /// `RANGE`, `WAIT`, `TIMEOUT`, `USERID`.
        infos: Vec<Info>,
    },
    /// Values to be withdrawn.
    Unpublish {
        /// By whom.
        proc: Proc,
        /// Which; all if empty.
        keys: Vec<Text>,
        /// `RANGE`, `USERID`.
        infos: Vec<Info>,
    },
    /// All local members of a group have called to make it or to end it.
    Group {
        /// Which of both.
        op: GroupOp,
        /// The group's name.
        name: Text,
        /// All its members.
        procs: Vec<Proc>,
        /// `GROUP_ASSIGN_CONTEXT_ID`, `GROUP_ENDPT_DATA`, `GROUP_INFO`, `LOCAL_COLLECTIVE_STATUS`,
        /// `TIMEOUT`; of all callers, so some more than once.
        infos: Vec<Info>,
    },
    /// A process wants something done with processes.
    JobControl {
        /// Who.
        proc: Proc,
        /// With whom; empty for the whole nspace of `proc`.
        targets: Vec<Proc>,
        /// What: `JOB_CTRL_KILL` and the like.
        directives: Vec<Info>,
    },
    /// A process wants a job to be started.
    Spawn {
        /// Who.
        proc: Proc,
        /// What is wanted for the whole job: `PERSONALITY`, `MAPBY`, `FWD_STDOUT` and the like.
        infos: Vec<Info>,
        /// The application contexts.
        apps: Vec<App>,
    },
    /// All local participants want to be connected with processes of other jobs or nodes.
    Connect {
        /// All participants, sorted by libpmix.
        procs: Vec<Proc>,
        /// `TIMEOUT`, `LOCAL_COLLECTIVE_STATUS`.
        infos: Vec<Info>,
    },
    /// All local participants of a connection want to end it.
    Disconnect {
        /// All participants, sorted by libpmix.
        procs: Vec<Proc>,
        /// `TIMEOUT`, `LOCAL_COLLECTIVE_STATUS`.
        infos: Vec<Info>,
    },
    /// A process wants something that tells others who it is. Munge's credentials never come here.
    GetCredential {
        /// Who.
        proc: Proc,
        /// `CRED_TYPE`, `TIMEOUT`.
        directives: Vec<Info>,
    },
    /// A process wants to know who made a credential. Munge's never come here.
    ValidateCredential {
        /// Who wants to know.
        proc: Proc,
        /// The credential.
        credential: Vec<u8>,
        /// `CRED_TYPE`, `TIMEOUT`.
        directives: Vec<Info>,
    },
}

impl Upcall {
    /// Which upcall it is.
    pub fn kind(&self) -> UpcallKind {
        match self {
            Self::ClientConnected { .. } => UpcallKind::ClientConnected,
            Self::ClientFinalized { .. } => UpcallKind::ClientFinalized,
            Self::RegisterEvents { .. } => UpcallKind::RegisterEvents,
            Self::DeregisterEvents { .. } => UpcallKind::DeregisterEvents,
            Self::NotifyEvent { .. } => UpcallKind::NotifyEvent,
            Self::Abort { .. } => UpcallKind::Abort,
            Self::Fence { .. } => UpcallKind::Fence,
            Self::DirectModex { .. } => UpcallKind::DirectModex,
            Self::Query { .. } => UpcallKind::Query,
            Self::Log { .. } => UpcallKind::Log,
            Self::Publish { .. } => UpcallKind::Publish,
            Self::Lookup { .. } => UpcallKind::Lookup,
            Self::Unpublish { .. } => UpcallKind::Unpublish,
            Self::Group { .. } => UpcallKind::Group,
            Self::JobControl { .. } => UpcallKind::JobControl,
            Self::Spawn { .. } => UpcallKind::Spawn,
            Self::Connect { .. } => UpcallKind::Connect,
            Self::Disconnect { .. } => UpcallKind::Disconnect,
            Self::GetCredential { .. } => UpcallKind::GetCredential,
            Self::ValidateCredential { .. } => UpcallKind::ValidateCredential,
        }
    }

    /// Reads the payload of a frame of this kind.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(kind: UpcallKind, payload: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(payload);
        let upcall = match kind {
            UpcallKind::ClientConnected => Self::ClientConnected {
                proc: Proc::decode(&mut from)?,
                infos: Info::decode_list(&mut from)?,
            },
            UpcallKind::ClientFinalized => Self::ClientFinalized {
                proc: Proc::decode(&mut from)?,
            },
            UpcallKind::RegisterEvents => Self::RegisterEvents {
                codes: from.list(|from| from.i32().map(Status))?,
                infos: Info::decode_list(&mut from)?,
            },
            UpcallKind::DeregisterEvents => Self::DeregisterEvents {
                codes: from.list(|from| from.i32().map(Status))?,
            },
            UpcallKind::NotifyEvent => Self::NotifyEvent {
                code: Status(from.i32()?),
                source: Proc::decode(&mut from)?,
                range: DataRange(from.u8()?),
                infos: Info::decode_list(&mut from)?,
            },
            UpcallKind::Abort => Self::Abort {
                proc: Proc::decode(&mut from)?,
                status: from.i32()?,
                message: Text::decode(&mut from)?,
                targets: from.list(Proc::decode)?,
            },
            UpcallKind::Fence => Self::Fence {
                procs: from.list(Proc::decode)?,
                infos: Info::decode_list(&mut from)?,
                data: from.bytes()?.to_vec(),
            },
            UpcallKind::DirectModex => Self::DirectModex {
                proc: Proc::decode(&mut from)?,
                infos: Info::decode_list(&mut from)?,
            },
            UpcallKind::Query => Self::Query {
                proc: Proc::decode(&mut from)?,
                queries: from.list(|from| {
                    Ok(Query {
                        keys: from.list(Text::decode)?,
                        qualifiers: Info::decode_list(from)?,
                    })
                })?,
            },
            UpcallKind::Log => Self::Log {
                proc: Proc::decode(&mut from)?,
                data: Info::decode_list(&mut from)?,
                directives: Info::decode_list(&mut from)?,
            },
            UpcallKind::Publish => Self::Publish {
                proc: Proc::decode(&mut from)?,
                infos: Info::decode_list(&mut from)?,
            },
            UpcallKind::Lookup => Self::Lookup {
                proc: Proc::decode(&mut from)?,
                keys: from.list(Text::decode)?,
                infos: Info::decode_list(&mut from)?,
            },
            UpcallKind::Unpublish => Self::Unpublish {
                proc: Proc::decode(&mut from)?,
                keys: from.list(Text::decode)?,
                infos: Info::decode_list(&mut from)?,
            },
            UpcallKind::Group => Self::Group {
                op: GroupOp::decode(&mut from)?,
                name: Text::decode(&mut from)?,
                procs: from.list(Proc::decode)?,
                infos: Info::decode_list(&mut from)?,
            },
            UpcallKind::JobControl => Self::JobControl {
                proc: Proc::decode(&mut from)?,
                targets: from.list(Proc::decode)?,
                directives: Info::decode_list(&mut from)?,
            },
            UpcallKind::Spawn => Self::Spawn {
                proc: Proc::decode(&mut from)?,
                infos: Info::decode_list(&mut from)?,
                apps: from.list(App::decode)?,
            },
            UpcallKind::Connect => Self::Connect {
                procs: from.list(Proc::decode)?,
                infos: Info::decode_list(&mut from)?,
            },
            UpcallKind::Disconnect => Self::Disconnect {
                procs: from.list(Proc::decode)?,
                infos: Info::decode_list(&mut from)?,
            },
            UpcallKind::GetCredential => Self::GetCredential {
                proc: Proc::decode(&mut from)?,
                directives: Info::decode_list(&mut from)?,
            },
            UpcallKind::ValidateCredential => Self::ValidateCredential {
                proc: Proc::decode(&mut from)?,
                credential: from.bytes()?.to_vec(),
                directives: Info::decode_list(&mut from)?,
            },
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
            Self::ClientConnected { proc, infos }
            | Self::DirectModex { proc, infos }
            | Self::Publish { proc, infos } => {
                proc.encode(&mut out);
                Info::encode_list(infos, &mut out);
            }
            Self::ClientFinalized { proc } => proc.encode(&mut out),
            Self::RegisterEvents { codes, infos } => {
                encode_codes(codes, &mut out);
                Info::encode_list(infos, &mut out);
            }
            Self::DeregisterEvents { codes } => encode_codes(codes, &mut out),
            Self::NotifyEvent {
                code,
                source,
                range,
                infos,
            } => {
                out.i32(code.0);
                source.encode(&mut out);
                out.u8(range.0);
                Info::encode_list(infos, &mut out);
            }
            Self::Abort {
                proc,
                status,
                message,
                targets,
            } => {
                proc.encode(&mut out);
                out.i32(*status);
                message.encode(&mut out);
                encode_procs(targets, &mut out);
            }
            Self::Fence { procs, infos, data } => {
                encode_procs(procs, &mut out);
                Info::encode_list(infos, &mut out);
                out.bytes(data);
            }
            Self::Query { proc, queries } => {
                proc.encode(&mut out);
                out.count(queries.len());
                for query in queries {
                    encode_texts(&query.keys, &mut out);
                    Info::encode_list(&query.qualifiers, &mut out);
                }
            }
            Self::Log {
                proc,
                data,
                directives,
            } => {
                proc.encode(&mut out);
                Info::encode_list(data, &mut out);
                Info::encode_list(directives, &mut out);
            }
            Self::Lookup { proc, keys, infos } | Self::Unpublish { proc, keys, infos } => {
                proc.encode(&mut out);
                encode_texts(keys, &mut out);
                Info::encode_list(infos, &mut out);
            }
            Self::Group {
                op,
                name,
                procs,
                infos,
            } => {
                op.encode(&mut out);
                name.encode(&mut out);
                encode_procs(procs, &mut out);
                Info::encode_list(infos, &mut out);
            }
            Self::JobControl {
                proc,
                targets,
                directives,
            } => {
                proc.encode(&mut out);
                encode_procs(targets, &mut out);
                Info::encode_list(directives, &mut out);
            }
            Self::Spawn { proc, infos, apps } => {
                proc.encode(&mut out);
                Info::encode_list(infos, &mut out);
                out.count(apps.len());
                apps.iter().for_each(|app| app.encode(&mut out));
            }
            Self::Connect { procs, infos } | Self::Disconnect { procs, infos } => {
                encode_procs(procs, &mut out);
                Info::encode_list(infos, &mut out);
            }
            Self::GetCredential { proc, directives } => {
                proc.encode(&mut out);
                Info::encode_list(directives, &mut out);
            }
            Self::ValidateCredential {
                proc,
                credential,
                directives,
            } => {
                proc.encode(&mut out);
                out.bytes(credential);
                Info::encode_list(directives, &mut out);
            }
        }
        out.finish(self.kind().op(), false, id)
    }
}

fn encode_codes(codes: &[Status], out: &mut Writer) {
    out.count(codes.len());
    codes.iter().for_each(|code| out.i32(code.0));
}

fn encode_texts(texts: &[Text], out: &mut Writer) {
    out.count(texts.len());
    texts.iter().for_each(|text| text.encode(out));
}

fn encode_procs(procs: &[Proc], out: &mut Writer) {
    out.count(procs.len());
    procs.iter().for_each(|proc| proc.encode(out));
}

#[cfg(test)]
mod tests;
