//! Requests to the sidecar, and its replies and notices.
//!
//! Does not match replies with requests (see [`crate::pmix::sidecar_link`]). The host's own side of these
//! messages is [`serve`]. Payload layouts: docs/shim.md.

use serde::{Deserialize, Serialize};
use wireup_shim::wire as c;

use super::keys;
use super::value::{Channels, DataRange, Info, PmixProc, Status, Text, Value};
use super::wire::{Reader, WireError, Writer};
use crate::job::ids::{Nspace, Rank};

pub mod serve;

/// The variants of [`SidecarCommand`], by their names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum ControlKind {
    Init = c::WIREUP_OP_INIT as u16,
    RegisterJob = c::WIREUP_OP_REGISTER_JOB as u16,
    DirectModex = c::WIREUP_OP_DMODEX_REQUEST as u16,
    Notify = c::WIREUP_OP_NOTIFY as u16,
    DeregisterJob = c::WIREUP_OP_DEREGISTER_JOB as u16,
    Finalize = c::WIREUP_OP_FINALIZE as u16,
    Probe = c::WIREUP_OP_PROBE as u16,
    IofDeliver = c::WIREUP_OP_IOF_DELIVER as u16,
}

impl ControlKind {
    const ALL: [Self; 8] = [
        Self::Init,
        Self::RegisterJob,
        Self::DirectModex,
        Self::Notify,
        Self::DeregisterJob,
        Self::Finalize,
        Self::Probe,
        Self::IofDeliver,
    ];

    /// Returns the operation code.
    pub fn op(self) -> u16 {
        self as u16
    }

    /// Returns the kind of an operation code.
    pub fn from_op(op: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.op() == op)
    }

    /// Returns the purpose of the request, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Init => "start the PMIx server",
            Self::RegisterJob => "register the job",
            Self::DirectModex => "fetch a process's data",
            Self::Notify => "raise an event",
            Self::DeregisterJob => "deregister the job",
            Self::Finalize => "stop the PMIx server",
            Self::Probe => "answer",
            Self::IofDeliver => "pass output on",
        }
    }
}

/// Identity and directory of the PMIx server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Init {
    /// Nspace of the server itself, not of a job.
    pub nspace: Nspace,
    /// Rank of the server: the node's number.
    pub rank: Rank,
    /// This node's name as the job's description has it.
    pub hostname: Text,
    /// Existing directory for the server's files, private to it, visible to the ranks.
    pub tmpdir: Text,
}

impl Init {
    /// Returns the infos for `PMIx_server_init`.
    ///
    /// Rule: forwarded output off, or libpmix crashes when it gets some; tool support off, which only means that
    /// libpmix writes no files; tools of other users allowed, or root's are refused: `accept` decides who may connect;
    /// the topology shared, or every rank discovers it by itself. Source: docs/pmix-server.md#server.
    pub fn infos(&self) -> Vec<Info> {
        let text = |text: &Text| Value::String(text.clone());
        vec![
            Info::new(keys::SERVER_NSPACE, Value::String((&self.nspace).into())),
            Info::new(keys::SERVER_RANK, Value::Rank(self.rank.into())),
            Info::new(keys::HOSTNAME, text(&self.hostname)),
            Info::new(keys::SERVER_TMPDIR, text(&self.tmpdir)),
            Info::new(keys::SYSTEM_TMPDIR, text(&self.tmpdir)),
            Info::new(keys::SERVER_TOOL_SUPPORT, Value::Bool(false)),
            Info::new(keys::SERVER_SYSTEM_SUPPORT, Value::Bool(false)),
            Info::new(keys::SERVER_SESSION_SUPPORT, Value::Bool(false)),
            Info::new(keys::SERVER_ALLOW_FOREIGN_TOOLS, Value::Bool(true)),
            Info::new(keys::IOF_LOCAL_OUTPUT, Value::Bool(false)),
            Info::new(keys::SERVER_SHARE_TOPOLOGY, Value::Bool(true)),
        ]
    }
}

/// One process that this node will start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientRegistration {
    pub rank: Rank,
    /// The user id it will run with.
    pub uid: u32,
    /// The group id it will run with.
    pub gid: u32,
}

/// A request of the agent.
#[derive(Clone, PartialEq, Debug)]
pub enum SidecarCommand {
    /// Start the PMIx server; the first request.
    Init(Init),
    /// Register a job and this node's clients of it; the reply has the clients' environments.
    RegisterJob {
        nspace: Nspace,
        /// The job's description; see [`super::job_info`].
        infos: Vec<Info>,
        /// This node's ranks of the job; their number decides when a local collective is complete.
        clients: Vec<ClientRegistration>,
    },
    /// Fetch the data that a local process has published; replied to once it has.
    DirectModex {
        /// The job, registered before.
        nspace: Nspace,
        /// A process of this node.
        rank: Rank,
    },
    /// Deliver an event to the local processes.
    Notify {
        code: Status,
        source: PmixProc,
        range: DataRange,
        infos: Vec<Info>,
    },
    /// Deregister a job whose local processes have ended.
    DeregisterJob { nspace: Nspace },
    /// Deregister everything, stop the server, reply, and exit with code 0.
    Finalize,
    /// Reply through libpmix's own thread: shows that the whole sidecar works.
    Probe,
    /// Pass output of a process on to the local subscribers; replied to when libpmix has put
    /// it where they read, whether they do or not.
    ///
    /// Rule: only if there is a local subscriber: libpmix caches output without one.
    IofDeliver {
        source: PmixProc,
        /// Stream of the output; exactly one.
        channel: Channels,
        /// Output; empty if the process has closed the stream.
        data: Vec<u8>,
    },
}

impl SidecarCommand {
    /// Returns the kind of the request.
    pub fn kind(&self) -> ControlKind {
        match self {
            Self::Init(_) => ControlKind::Init,
            Self::RegisterJob { .. } => ControlKind::RegisterJob,
            Self::DirectModex { .. } => ControlKind::DirectModex,
            Self::Notify { .. } => ControlKind::Notify,
            Self::DeregisterJob { .. } => ControlKind::DeregisterJob,
            Self::Finalize => ControlKind::Finalize,
            Self::Probe => ControlKind::Probe,
            Self::IofDeliver { .. } => ControlKind::IofDeliver,
        }
    }

    /// Encodes the request's frame.
    ///
    /// # Errors
    /// [`WireError::TooLarge`].
    pub fn encode(&self, id: u64) -> Result<Vec<u8>, WireError> {
        let mut out = Writer::frame();
        match self {
            Self::Init(init) => Info::encode_list(&init.infos(), &mut out),
            Self::RegisterJob {
                nspace,
                infos,
                clients,
            } => {
                Text::from(nspace).encode(&mut out);
                out.count(clients.len());
                for client in clients {
                    out.u32(client.rank.0);
                    out.u32(client.uid);
                    out.u32(client.gid);
                }
                Info::encode_list(infos, &mut out);
            }
            Self::DirectModex { nspace, rank } => PmixProc::new(nspace, *rank).encode(&mut out),
            Self::Notify {
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
            Self::DeregisterJob { nspace } => Text::from(nspace).encode(&mut out),
            Self::Finalize | Self::Probe => {}
            Self::IofDeliver {
                source,
                channel,
                data,
            } => {
                source.encode(&mut out);
                out.u16(channel.0);
                out.bytes(data);
            }
        }
        out.finish(self.kind().op(), false, id)
    }
}

/// Variables that PMIx needs in the ranks' environments, passed on unchanged.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ForkEnv {
    /// Variables that every client gets.
    pub common: Vec<(Text, Text)>,
    /// Variables that differ between clients, in the order of the request.
    pub clients: Vec<(Rank, Vec<(Text, Text)>)>,
}

impl ForkEnv {
    /// Returns the variables of one client; only the common ones for an unknown client.
    pub fn variables_of(&self, rank: Rank) -> impl Iterator<Item = &(Text, Text)> {
        let own = self.clients.iter().find(|(client, _)| *client == rank);
        self.common
            .iter()
            .chain(own.into_iter().flat_map(|(_, vars)| vars))
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, WireError> {
        let variables = |from: &mut Reader<'_>| {
            from.list(|from| Ok((Text::decode(from)?, Text::decode(from)?)))
        };
        Ok(Self {
            common: variables(from)?,
            clients: from.list(|from| Ok((Rank(from.u32()?), variables(from)?)))?,
        })
    }
}

/// Reason for which the sidecar did not execute a request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text} ({status})")]
pub struct ControlRefusal {
    pub status: Status,
    pub text: String,
}

impl ControlRefusal {
    /// Creates a refusal with the status for the requester and the text for people.
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { status, text }
    }
}

/// The host's reply to a [`SidecarCommand`].
#[derive(Clone, PartialEq, Debug)]
pub enum ControlReply {
    /// The server runs, or does not.
    Init(Result<(), ControlRefusal>),
    /// The job is registered; start the ranks with these variables.
    RegisterJob(Result<ForkEnv, ControlRefusal>),
    /// Published data of the process.
    DirectModex(Result<Vec<u8>, ControlRefusal>),
    /// The event was passed to libpmix.
    Notify(Result<(), ControlRefusal>),
    /// The job is forgotten.
    DeregisterJob(Result<(), ControlRefusal>),
    /// The server has stopped; the host exits.
    Finalize(Result<(), ControlRefusal>),
    /// Answer to a probe: libpmix works.
    Probe(Result<(), ControlRefusal>),
    /// The output is where local processes read it.
    IofDeliver(Result<(), ControlRefusal>),
}

impl ControlReply {
    /// Reads the payload of a reply of this kind.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(kind: ControlKind, payload: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(payload);
        let status = Status(from.i32()?);
        let text = Text::decode(&mut from)?;
        let failed = (status != Status::SUCCESS).then(|| ControlRefusal {
            status,
            text: text.to_string(),
        });
        let done = failed.clone().map_or(Ok(()), Err);
        let reply = match (kind, failed) {
            (ControlKind::Init, _) => Self::Init(done),
            (ControlKind::RegisterJob, Some(refusal)) => Self::RegisterJob(Err(refusal)),
            (ControlKind::RegisterJob, None) => Self::RegisterJob(Ok(ForkEnv::decode(&mut from)?)),
            (ControlKind::DirectModex, Some(refusal)) => Self::DirectModex(Err(refusal)),
            (ControlKind::DirectModex, None) => Self::DirectModex(Ok(from.bytes()?.to_vec())),
            (ControlKind::Notify, _) => Self::Notify(done),
            (ControlKind::DeregisterJob, _) => Self::DeregisterJob(done),
            (ControlKind::Finalize, _) => Self::Finalize(done),
            (ControlKind::Probe, _) => Self::Probe(done),
            (ControlKind::IofDeliver, _) => Self::IofDeliver(done),
        };
        from.end()?;
        Ok(reply)
    }
}

/// First message of a sidecar that is ready for [`SidecarCommand::Init`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Version text of the loaded libpmix.
    pub libpmix: Text,
}

/// Stage of the start at which a sidecar failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum StartupStage {
    /// Finding and opening the two libraries.
    Load = c::WIREUP_STAGE_LOAD as u8,
    /// The shim is of another version than the host.
    Abi = c::WIREUP_STAGE_ABI as u8,
    /// libpmix is too old, or failed.
    Pmix = c::WIREUP_STAGE_PMIX as u8,
    /// The agent and the host do not understand each other.
    Link = c::WIREUP_STAGE_LINK as u8,
}

impl StartupStage {
    const ALL: [Self; 4] = [Self::Load, Self::Abi, Self::Pmix, Self::Link];
}

/// Last message of a sidecar that cannot continue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartupFailure {
    pub stage: StartupStage,
    /// The reason, one line.
    pub text: Text,
}

/// Notices of the sidecar.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SidecarNotice {
    Hello(Hello),
    Failed(StartupFailure),
    /// A warning for the user, one line; the sidecar continues.
    Warning(Text),
}

impl SidecarNotice {
    /// Decodes a notice of the sidecar.
    ///
    /// # Errors
    /// [`WireError`], also when the sidecar has another version of the protocol.
    pub fn decode(op: u16, payload: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(payload);
        let notice = match u32::from(op) {
            c::WIREUP_OP_HELLO => {
                if from.u32()? != c::WIREUP_SHIM_ABI {
                    return Err(WireError::Bad("protocol version of the sidecar"));
                }
                Self::Hello(Hello {
                    libpmix: Text::decode(&mut from)?,
                })
            }
            c::WIREUP_OP_FAILED => {
                let code = from.u8()?;
                let mut stages = StartupStage::ALL.into_iter();
                let stage = stages.find(|stage| *stage as u8 == code);
                Self::Failed(StartupFailure {
                    stage: stage.ok_or(WireError::Bad("stage"))?,
                    text: Text::decode(&mut from)?,
                })
            }
            c::WIREUP_OP_WARNING => Self::Warning(Text::decode(&mut from)?),
            _ => return Err(WireError::Operation { op, reply: false }),
        };
        from.end()?;
        Ok(notice)
    }
}

#[cfg(test)]
mod tests;
