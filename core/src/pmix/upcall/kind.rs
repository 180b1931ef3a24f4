//! The kinds of upcalls and their operation codes.

use wireup_shim::wire as c;

#[cfg(doc)]
use super::{Notice, UpcallRequest};

/// The variants of [`Notice`] and [`UpcallRequest`], by their names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum UpcallKind {
    ClientConnected,
    ClientFinalized,
    RegisterEvents,
    DeregisterEvents,
    NotifyEvent,
    GroupEnded,
    ConnectionsLost,
    Spawned,
    Abort,
    Fence,
    DirectModex,
    Query,
    Log,
    Publish,
    Lookup,
    Unpublish,
    Group,
    JobControl,
    Spawn,
    Connect,
    Disconnect,
    IofPull,
    PushStdin,
    GetCredential,
    ValidateCredential,
    Allocate,
    SessionControl,
    ToolConnected,
}

impl UpcallKind {
    /// Every kind.
    pub const ALL: [Self; 28] = [
        Self::ClientConnected,
        Self::ClientFinalized,
        Self::RegisterEvents,
        Self::DeregisterEvents,
        Self::NotifyEvent,
        Self::GroupEnded,
        Self::ConnectionsLost,
        Self::Spawned,
        Self::Abort,
        Self::Fence,
        Self::DirectModex,
        Self::Query,
        Self::Log,
        Self::Publish,
        Self::Lookup,
        Self::Unpublish,
        Self::Group,
        Self::JobControl,
        Self::Spawn,
        Self::Connect,
        Self::Disconnect,
        Self::IofPull,
        Self::PushStdin,
        Self::GetCredential,
        Self::ValidateCredential,
        Self::Allocate,
        Self::SessionControl,
        Self::ToolConnected,
    ];

    /// The operation's name as PMIx has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClientConnected => "client_connected",
            Self::ClientFinalized => "client_finalized",
            Self::RegisterEvents => "register_events",
            Self::DeregisterEvents => "deregister_events",
            Self::NotifyEvent => "notify_event",
            Self::GroupEnded => "group_ended",
            Self::ConnectionsLost => "connections_lost",
            Self::Spawned => "spawned",
            Self::Abort => "abort",
            Self::Fence => "fence",
            Self::DirectModex => "direct_modex",
            Self::Query => "query",
            Self::Log => "log",
            Self::Publish => "publish",
            Self::Lookup => "lookup",
            Self::Unpublish => "unpublish",
            Self::Group => "group",
            Self::JobControl => "job_control",
            Self::Spawn => "spawn",
            Self::Connect => "connect",
            Self::Disconnect => "disconnect",
            Self::IofPull => "iof_pull",
            Self::PushStdin => "push_stdin",
            Self::GetCredential => "get_credential",
            Self::ValidateCredential => "validate_credential",
            Self::Allocate => "allocate",
            Self::SessionControl => "session_control",
            Self::ToolConnected => "tool_connected",
        }
    }

    /// The operation code.
    pub fn op(self) -> u16 {
        let op = match self {
            Self::ClientConnected => c::WIREUP_OP_CLIENT_CONNECTED,
            Self::ClientFinalized => c::WIREUP_OP_CLIENT_FINALIZED,
            Self::RegisterEvents => c::WIREUP_OP_REGISTER_EVENTS,
            Self::DeregisterEvents => c::WIREUP_OP_DEREGISTER_EVENTS,
            Self::NotifyEvent => c::WIREUP_OP_NOTIFY_EVENT,
            Self::GroupEnded => c::WIREUP_OP_GROUP_ENDED,
            Self::ConnectionsLost => c::WIREUP_OP_CONNECTIONS_LOST,
            Self::Spawned => c::WIREUP_OP_SPAWNED,
            Self::Abort => c::WIREUP_OP_ABORT,
            Self::Fence => c::WIREUP_OP_FENCE,
            Self::DirectModex => c::WIREUP_OP_DIRECT_MODEX,
            Self::Query => c::WIREUP_OP_QUERY,
            Self::Log => c::WIREUP_OP_LOG,
            Self::Publish => c::WIREUP_OP_PUBLISH,
            Self::Lookup => c::WIREUP_OP_LOOKUP,
            Self::Unpublish => c::WIREUP_OP_UNPUBLISH,
            Self::Group => c::WIREUP_OP_GROUP,
            Self::JobControl => c::WIREUP_OP_JOB_CONTROL,
            Self::Spawn => c::WIREUP_OP_SPAWN,
            Self::Connect => c::WIREUP_OP_CONNECT,
            Self::Disconnect => c::WIREUP_OP_DISCONNECT,
            Self::IofPull => c::WIREUP_OP_IOF_PULL,
            Self::PushStdin => c::WIREUP_OP_PUSH_STDIN,
            Self::GetCredential => c::WIREUP_OP_GET_CREDENTIAL,
            Self::ValidateCredential => c::WIREUP_OP_VALIDATE_CREDENTIAL,
            Self::Allocate => c::WIREUP_OP_ALLOCATE,
            Self::SessionControl => c::WIREUP_OP_SESSION_CONTROL,
            Self::ToolConnected => c::WIREUP_OP_TOOL_CONNECTED,
        };
        op as u16
    }

    /// The kind of an operation code.
    pub fn of_op(op: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.op() == op)
    }
}
