//! Upcalls of libpmix with their typed fields, and the node's answers.
//!
//! Does not match answers with upcalls (see [`crate::pmix::sidecar_link`]). Payload layouts: docs/shim.md.

use wireup_shim::wire as c;

use super::value::{Channels, DataRange, Info, PmixProc, Status, Text};
#[cfg(any(test, feature = "testing"))]
use super::wire::Writer;
use super::wire::{Reader, WireError};
pub use answer::{AnswerParts, Pdata, UpcallAnswer};
use payload::PayloadField;

mod answer;
mod payload;

/// Declares a structure whose fields are in a payload in this order.
macro_rules! payload_struct {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl PayloadField for $name {
            #[cfg(any(test, feature = "testing"))]
            fn encode_field(&self, out: &mut Writer) {
                $(self.$field.encode_field(out);)*
            }

            fn decode_field(from: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok(Self {
                    $($field: <$type>::decode_field(from)?,)*
                })
            }
        }
    };
}

payload_struct! {
    /// One query of a client: keys, and the qualifiers that narrow them.
    Query {
        keys: Vec<Text>,
        qualifiers: Vec<Info>,
    }
}

payload_struct! {
    /// An application context of [`UpcallRequest::Spawn`], as the client gave it.
    SpawnedAppInfo {
        /// The program; may be empty, then it is the first of `argv`.
        cmd: Text,
        /// Program name and arguments, or nothing at all.
        argv: Vec<Text>,
        /// Variables for its ranks, `NAME=VALUE`, that must reach them as they are.
        env: Vec<Text>,
        /// Working directory; empty if the client sets none.
        cwd: Text,
        /// Number of ranks, as the client gave it: it may be 0 or less.
        maxprocs: i32,
        /// `WDIR`, `HOST`, `PREFIX` and the like.
        infos: Vec<Info>,
    }
}

/// Operation on a PMIx group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupOp {
    Construct,
    Destruct,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Upcall {
    /// A notice of libpmix, without an answer.
    Notice(Notice),
    /// Something that a process waits for; it is answered.
    Request(UpcallRequest),
}

/// Declares the upcalls: each with the operation's name as PMIx has it, its code in `shim/wire.h`, and its fields in the order
/// of the payload.
macro_rules! upcalls {
    ($(
        $(#[$type_doc:meta])*
        $form:ident($type:ident) {
            $(
                $(#[$doc:meta])*
                $kind:ident($name:literal, $op:ident) {
                    $($(#[$field_doc:meta])* $field:ident: $field_type:ty),* $(,)?
                }
            ),* $(,)?
        }
    )*) => {
        $(
            $(#[$type_doc])*
            #[derive(Clone, PartialEq, Debug)]
            pub enum $type {
                $($(#[$doc])* $kind { $($(#[$field_doc])* $field: $field_type,)* },)*
            }
        )*

        /// The variants of [`Notice`] and [`UpcallRequest`], by their names.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum UpcallKind {
            $($($kind,)*)*
        }

        impl UpcallKind {
            /// All kinds of upcalls.
            pub const ALL: [Self; [$($($name,)*)*].len()] = [$($(Self::$kind,)*)*];

            /// Returns PMIx's name of the operation.
            pub fn name(self) -> &'static str {
                match self {
                    $($(Self::$kind => $name,)*)*
                }
            }

            /// Returns the operation code.
            pub fn op(self) -> u16 {
                let op = match self {
                    $($(Self::$kind => c::$op,)*)*
                };
                op as u16
            }
        }

        impl Upcall {
            /// Returns the kind of the upcall.
            pub fn kind(&self) -> UpcallKind {
                match self {
                    $($(Self::$form($type::$kind { .. }) => UpcallKind::$kind,)*)*
                }
            }

            fn decode_fields(kind: UpcallKind, from: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok(match kind {
                    $($(UpcallKind::$kind => Self::$form($type::$kind {
                        $($field: <$field_type>::decode_field(from)?,)*
                    }),)*)*
                })
            }

            #[cfg(any(test, feature = "testing"))]
            fn encode_fields(&self, out: &mut Writer) {
                match self {
                    $($(Self::$form($type::$kind { $($field),* }) => {
                        $($field.encode_field(out);)*
                    })*)*
                }
            }
        }
    };
}

upcalls! {
    /// An upcall without an answer.
    Notice(Notice) {
        /// A process completed `PMIx_Init`. libpmix already has its answer.
        ClientConnected("client_connected", WIREUP_OP_CLIENT_CONNECTED) {
            proc: PmixProc,
            /// User and group id, from libpmix 5 on.
            infos: Vec<Info>,
        },
        /// A process called `PMIx_Finalize`; a later exit is no abort.
        ClientFinalized("client_finalized", WIREUP_OP_CLIENT_FINALIZED) { proc: PmixProc },
        /// Local processes register for these events.
        RegisterEvents("register_events", WIREUP_OP_REGISTER_EVENTS) {
            /// Empty for all events.
            codes: Vec<Status>,
            infos: Vec<Info>,
        },
        /// The last interest in these events ended.
        DeregisterEvents("deregister_events", WIREUP_OP_DEREGISTER_EVENTS) {
            /// Empty for all events.
            codes: Vec<Status>,
        },
        /// A local process, or libpmix itself, raised an event.
        NotifyEvent("notify_event", WIREUP_OP_NOTIFY_EVENT) {
            code: Status,
            /// Process that raised the event; its nspace may be empty.
            source: PmixProc,
            range: DataRange,
            infos: Vec<Info>,
        },
        /// A group of this node's processes alone was ended by its members.
        GroupEnded("group_ended", WIREUP_OP_GROUP_ENDED) { name: Text, procs: Vec<PmixProc> },
        /// Connections have ended: those of processes that died and of tools, in order or not.
        ConnectionsLost("connections_lost", WIREUP_OP_CONNECTIONS_LOST) {
            source: PmixProc,
            /// Other processes are under `PROCID`.
            infos: Vec<Info>,
        },
        /// The answer to a spawn request has been passed on: if its client requested output of the job, libpmix
        /// forwards all later output.
        Spawned("spawned", WIREUP_OP_SPAWNED) { nspace: Text },
        /// An unnamed local process subscribes to output of others; or, with `IOF_STOP` among the
        /// infos, an unnamed local process ends an unnamed subscription.
        IofPull("iof_pull", WIREUP_OP_IOF_PULL) {
            procs: Vec<PmixProc>,
            /// `IOF_STOP`, and the requested buffering.
            infos: Vec<Info>,
            channels: Channels,
        },
    }

    /// An upcall that is answered.
    Request(UpcallRequest) {
        /// A process called `PMIx_Abort`.
        Abort("abort", WIREUP_OP_ABORT) {
            proc: PmixProc,
            /// Status given by the program; MPI's abort code.
            status: i32,
            /// Text given by the program.
            message: Text,
            /// Processes to abort; empty for the whole nspace of `proc`.
            targets: Vec<PmixProc>,
        },
        /// All local participants of a collective that spans nodes have arrived.
        Fence("fence", WIREUP_OP_FENCE) {
            /// The participants: this list is the collective's name.
            procs: Vec<PmixProc>,
            /// Options: `COLLECT_DATA`, `LOCAL_COLLECTIVE_STATUS`, `TIMEOUT`.
            infos: Vec<Info>,
            data: Vec<u8>,
        },
        /// A process on another node has data that a client requests.
        DirectModex("direct_modex", WIREUP_OP_DIRECT_MODEX) {
            proc: PmixProc,
            /// Options: `REQUIRED_KEY` and `TIMEOUT`.
            infos: Vec<Info>,
        },
        /// A question that libpmix cannot answer itself.
        Query("query", WIREUP_OP_QUERY) {
            /// The server's own name, not the client's, which PMIx does not give.
            proc: PmixProc,
            queries: Vec<Query>,
        },
        /// Text for the user.
        Log("log", WIREUP_OP_LOG) {
            proc: PmixProc,
            /// Texts with their channels: `LOG_STDERR`, `LOG_STDOUT`, `LOG_MSG`.
            data: Vec<Info>,
            directives: Vec<Info>,
        },
        /// A process publishes values.
        Publish("publish", WIREUP_OP_PUBLISH) {
            proc: PmixProc,
            /// The values, and among them `RANGE`, `PERSISTENCE`, `USERID`.
            infos: Vec<Info>,
        },
        Lookup("lookup", WIREUP_OP_LOOKUP) {
            proc: PmixProc,
            keys: Vec<Text>,
            /// `RANGE`, `WAIT`, `TIMEOUT`, `USERID`.
            infos: Vec<Info>,
        },
        /// A process unpublishes values.
        Unpublish("unpublish", WIREUP_OP_UNPUBLISH) {
            proc: PmixProc,
            /// Keys of the values; all if empty.
            keys: Vec<Text>,
            /// Options: `RANGE` and `USERID`.
            infos: Vec<Info>,
        },
        /// All local members of a group have called to make it or to end it.
        Group("group", WIREUP_OP_GROUP) {
            op: GroupOp,
            name: Text,
            procs: Vec<PmixProc>,
            /// `GROUP_ASSIGN_CONTEXT_ID`, `GROUP_ENDPT_DATA`, `GROUP_INFO`, `LOCAL_COLLECTIVE_STATUS`,
            /// `TIMEOUT`; of all callers, so some more than once.
            infos: Vec<Info>,
        },
        /// A process requests an action on processes.
        JobControl("job_control", WIREUP_OP_JOB_CONTROL) {
            proc: PmixProc,
            /// With whom; empty for the whole nspace of `proc`.
            targets: Vec<PmixProc>,
            /// Requested action: `JOB_CTRL_KILL` and others.
            directives: Vec<Info>,
        },
        /// A process or tool requests a spawn.
        Spawn("spawn", WIREUP_OP_SPAWN) {
            proc: PmixProc,
            /// Attributes of the whole job: `PERSONALITY`, `MAPBY`, `FWD_STDOUT` and the like.
            infos: Vec<Info>,
            apps: Vec<SpawnedAppInfo>,
        },
        /// All local participants connect with processes of other jobs or nodes.
        Connect("connect", WIREUP_OP_CONNECT) {
            /// All participants, sorted by libpmix.
            procs: Vec<PmixProc>,
            /// Options: `TIMEOUT` and `LOCAL_COLLECTIVE_STATUS`.
            infos: Vec<Info>,
        },
        /// All local participants disconnect.
        Disconnect("disconnect", WIREUP_OP_DISCONNECT) {
            /// All participants, sorted by libpmix.
            procs: Vec<PmixProc>,
            /// Options: `TIMEOUT` and `LOCAL_COLLECTIVE_STATUS`.
            infos: Vec<Info>,
        },
        /// A process has input for others.
        PushStdin("push_stdin", WIREUP_OP_PUSH_STDIN) {
            source: PmixProc,
            /// The targets; empty if the process names none.
            targets: Vec<PmixProc>,
            /// `IOF_COMPLETE` and the like.
            infos: Vec<Info>,
            /// The input; none means its end.
            data: Vec<u8>,
        },
        /// A process requests a credential. Munge's credentials never reach the node.
        GetCredential("get_credential", WIREUP_OP_GET_CREDENTIAL) {
            proc: PmixProc,
            /// Options: `CRED_TYPE` and `TIMEOUT`.
            directives: Vec<Info>,
        },
        /// A process validates a credential. Munge's credentials never reach the node.
        ValidateCredential("validate_credential", WIREUP_OP_VALIDATE_CREDENTIAL) {
            /// Process that requests the validation.
            proc: PmixProc,
            credential: Vec<u8>,
            /// Options: `CRED_TYPE` and `TIMEOUT`.
            directives: Vec<Info>,
        },
        /// A process requests or releases nodes or slots.
        Allocate("allocate", WIREUP_OP_ALLOCATE) {
            proc: PmixProc,
            /// Requested operation: a `pmix_alloc_directive_t`.
            directive: u8,
            /// `ALLOC_NUM_NODES`, `ALLOC_ID` and the like.
            infos: Vec<Info>,
        },
        /// A process requests an action on all jobs of a session. From libpmix 6 on.
        SessionControl("session_control", WIREUP_OP_SESSION_CONTROL) {
            proc: PmixProc,
            /// Session id; `u32::MAX` for the caller's session.
            session: u32,
            /// Requested action: `SESSION_PAUSE` and others.
            directives: Vec<Info>,
        },
        /// A tool has connected; the answer is its name in libpmix.
        ToolConnected("tool_connected", WIREUP_OP_TOOL_CONNECTED) {
            /// Data of the tool: `PROC_PID`, `CMD_LINE`, and `NSPACE` and `RANK` if the tool brings a name. Data from
            /// the tool itself may be false.
            infos: Vec<Info>,
        },
    }
}

impl UpcallKind {
    /// Returns the kind of an operation code.
    pub fn from_op(op: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.op() == op)
    }
}

impl Upcall {
    /// Reads the payload of a frame of this kind.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(kind: UpcallKind, payload: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(payload);
        let upcall = Self::decode_fields(kind, &mut from)?;
        from.end()?;
        Ok(upcall)
    }

    /// Encodes the frame that the shim sends, which is C; `id` is 0 for a notice.
    ///
    /// # Errors
    /// [`WireError::TooLarge`].
    #[cfg(any(test, feature = "testing"))]
    pub fn encode(&self, id: u64) -> Result<Vec<u8>, WireError> {
        let mut out = Writer::frame();
        self.encode_fields(&mut out);
        out.finish(self.kind().op(), false, id)
    }
}

#[cfg(test)]
mod tests;
