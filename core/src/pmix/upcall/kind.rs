//! The kinds of upcalls and their operation codes.

use wireup_shim::wire as c;

use super::{Notice, Upcall, UpcallRequest};

/// Declares the kinds: each with its form, the operation's name as PMIx has it, and its code in `shim/wire.h`.
macro_rules! kinds {
    ($($kind:ident: $form:ident($type:ident), $name:literal, $op:ident;)*) => {
        /// The variants of [`Notice`] and [`UpcallRequest`], by their names.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum UpcallKind {
            $($kind,)*
        }

        impl UpcallKind {
            /// Every kind.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// The operation's name as PMIx has it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// The operation code.
            pub fn op(self) -> u16 {
                let op = match self {
                    $(Self::$kind => c::$op,)*
                };
                op as u16
            }
        }

        impl Upcall {
            /// Which upcall it is.
            pub fn kind(&self) -> UpcallKind {
                match self {
                    $(Self::$form($type::$kind { .. }) => UpcallKind::$kind,)*
                }
            }
        }
    };
}

kinds! {
    ClientConnected: Notice(Notice), "client_connected", WIREUP_OP_CLIENT_CONNECTED;
    ClientFinalized: Notice(Notice), "client_finalized", WIREUP_OP_CLIENT_FINALIZED;
    RegisterEvents: Notice(Notice), "register_events", WIREUP_OP_REGISTER_EVENTS;
    DeregisterEvents: Notice(Notice), "deregister_events", WIREUP_OP_DEREGISTER_EVENTS;
    NotifyEvent: Notice(Notice), "notify_event", WIREUP_OP_NOTIFY_EVENT;
    GroupEnded: Notice(Notice), "group_ended", WIREUP_OP_GROUP_ENDED;
    ConnectionsLost: Notice(Notice), "connections_lost", WIREUP_OP_CONNECTIONS_LOST;
    Spawned: Notice(Notice), "spawned", WIREUP_OP_SPAWNED;
    Abort: Request(UpcallRequest), "abort", WIREUP_OP_ABORT;
    Fence: Request(UpcallRequest), "fence", WIREUP_OP_FENCE;
    DirectModex: Request(UpcallRequest), "direct_modex", WIREUP_OP_DIRECT_MODEX;
    Query: Request(UpcallRequest), "query", WIREUP_OP_QUERY;
    Log: Request(UpcallRequest), "log", WIREUP_OP_LOG;
    Publish: Request(UpcallRequest), "publish", WIREUP_OP_PUBLISH;
    Lookup: Request(UpcallRequest), "lookup", WIREUP_OP_LOOKUP;
    Unpublish: Request(UpcallRequest), "unpublish", WIREUP_OP_UNPUBLISH;
    Group: Request(UpcallRequest), "group", WIREUP_OP_GROUP;
    JobControl: Request(UpcallRequest), "job_control", WIREUP_OP_JOB_CONTROL;
    Spawn: Request(UpcallRequest), "spawn", WIREUP_OP_SPAWN;
    Connect: Request(UpcallRequest), "connect", WIREUP_OP_CONNECT;
    Disconnect: Request(UpcallRequest), "disconnect", WIREUP_OP_DISCONNECT;
    IofPull: Notice(Notice), "iof_pull", WIREUP_OP_IOF_PULL;
    PushStdin: Request(UpcallRequest), "push_stdin", WIREUP_OP_PUSH_STDIN;
    GetCredential: Request(UpcallRequest), "get_credential", WIREUP_OP_GET_CREDENTIAL;
    ValidateCredential: Request(UpcallRequest), "validate_credential", WIREUP_OP_VALIDATE_CREDENTIAL;
    Allocate: Request(UpcallRequest), "allocate", WIREUP_OP_ALLOCATE;
    SessionControl: Request(UpcallRequest), "session_control", WIREUP_OP_SESSION_CONTROL;
    ToolConnected: Request(UpcallRequest), "tool_connected", WIREUP_OP_TOOL_CONNECTED;
}

impl UpcallKind {
    /// The kind of an operation code.
    pub fn of_op(op: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.op() == op)
    }
}
