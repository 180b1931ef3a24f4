//! What libpmix asks of its host, typed, and the agent's answers.
//!
//! Does not match answers with upcalls (see [`crate::pmix::sidecar`]). Payload layouts: docs/shim.md.

use super::value::{Channels, DataRange, Info, Proc, Status, Text};
pub use answer::{AnswerParts, Pdata, UpcallAnswer};
pub use app::SpawnedAppInfo;
pub use kind::UpcallKind;

mod answer;
mod app;
pub(crate) mod encoding;
mod kind;

/// One query of a client: keys, and what narrows them.
#[derive(Clone, PartialEq, Debug)]
pub struct Query {
    pub keys: Vec<Text>,
    /// Restrictions.
    pub qualifiers: Vec<Info>,
}

/// Group operations.
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

/// An upcall without an answer.
#[derive(Clone, PartialEq, Debug)]
pub enum Notice {
    /// A process completed `PMIx_Init`. libpmix already has its answer.
    ClientConnected {
        proc: Proc,
        /// User and group id, from libpmix 5 on.
        infos: Vec<Info>,
    },
    /// A process called `PMIx_Finalize`; a later exit is no abort.
    ClientFinalized { proc: Proc },
    /// Local processes register for these events.
    RegisterEvents {
        /// Empty for all events.
        codes: Vec<Status>,
        /// Directives.
        infos: Vec<Info>,
    },
    /// The last interest in these events ended.
    DeregisterEvents {
        /// Empty for all events.
        codes: Vec<Status>,
    },
    /// A local process, or libpmix itself, raised an event.
    NotifyEvent {
        code: Status,
        /// Who raised it; the nspace may be empty.
        source: Proc,
        /// The recipients.
        range: DataRange,
        /// Details.
        infos: Vec<Info>,
    },
    /// A group of this node's processes alone was ended by its members.
    GroupEnded { name: Text, procs: Vec<Proc> },
    /// Connections have ended: those of processes that died and of tools, in order or not.
    ConnectionsLost {
        source: Proc,
        /// Other processes are under `PROCID`.
        infos: Vec<Info>,
    },
    /// The answer to a spawn request has been passed on: if its client wanted output of the job,
    /// libpmix forwards what it gets from now on.
    Spawned { nspace: Text },
    /// An unnamed local process subscribes to output of others; or, with `IOF_STOP` among the
    /// infos, an unnamed local process ends an unnamed subscription.
    ///
    IofPull {
        procs: Vec<Proc>,
        /// `IOF_STOP`, and the requested buffering.
        infos: Vec<Info>,
        channels: Channels,
    },
}

/// An upcall that is answered.
#[derive(Clone, PartialEq, Debug)]
pub enum UpcallRequest {
    /// A process called `PMIx_Abort`.
    Abort {
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
        data: Vec<u8>,
    },
    /// The data of a process on another node is wanted.
    DirectModex {
        proc: Proc,
        /// `REQUIRED_KEY`, `TIMEOUT`.
        infos: Vec<Info>,
    },
    /// A question that libpmix cannot answer itself.
    Query {
        /// The server's own name, not the client's, which PMIx does not give.
        proc: Proc,
        queries: Vec<Query>,
    },
    /// Text for the user.
    Log {
        proc: Proc,
        /// What goes where: `LOG_STDERR`, `LOG_STDOUT`, `LOG_MSG`.
        data: Vec<Info>,
        directives: Vec<Info>,
    },
    /// Values to be made known.
    Publish {
        proc: Proc,
        /// The values, and among them `RANGE`, `PERSISTENCE`, `USERID`.
        infos: Vec<Info>,
    },
    Lookup {
        proc: Proc,
        /// Under which keys.
        keys: Vec<Text>,
        /// `RANGE`, `WAIT`, `TIMEOUT`, `USERID`.
        infos: Vec<Info>,
    },
    /// Values to be withdrawn.
    Unpublish {
        proc: Proc,
        /// Which; all if empty.
        keys: Vec<Text>,
        /// `RANGE`, `USERID`.
        infos: Vec<Info>,
    },
    /// All local members of a group have called to make it or to end it.
    Group {
        op: GroupOp,
        name: Text,
        procs: Vec<Proc>,
        /// `GROUP_ASSIGN_CONTEXT_ID`, `GROUP_ENDPT_DATA`, `GROUP_INFO`, `LOCAL_COLLECTIVE_STATUS`,
        /// `TIMEOUT`; of all callers, so some more than once.
        infos: Vec<Info>,
    },
    /// A process requests an action on processes.
    JobControl {
        proc: Proc,
        /// With whom; empty for the whole nspace of `proc`.
        targets: Vec<Proc>,
        /// What: `JOB_CTRL_KILL` and the like.
        directives: Vec<Info>,
    },
    /// A spawn request.
    Spawn {
        proc: Proc,
        /// Attributes of the whole job: `PERSONALITY`, `MAPBY`, `FWD_STDOUT` and the like.
        infos: Vec<Info>,
        apps: Vec<SpawnedAppInfo>,
    },
    /// All local participants connect with processes of other jobs or nodes.
    Connect {
        /// All participants, sorted by libpmix.
        procs: Vec<Proc>,
        /// `TIMEOUT`, `LOCAL_COLLECTIVE_STATUS`.
        infos: Vec<Info>,
    },
    /// All local participants disconnect.
    Disconnect {
        /// All participants, sorted by libpmix.
        procs: Vec<Proc>,
        /// `TIMEOUT`, `LOCAL_COLLECTIVE_STATUS`.
        infos: Vec<Info>,
    },
    /// A process has input for others.
    PushStdin {
        source: Proc,
        /// The targets; empty if the process names none.
        targets: Vec<Proc>,
        /// `IOF_COMPLETE` and the like.
        infos: Vec<Info>,
        /// The input; none means its end.
        data: Vec<u8>,
    },
    /// A process requests a credential. Munge's credentials never come here.
    GetCredential {
        proc: Proc,
        /// `CRED_TYPE`, `TIMEOUT`.
        directives: Vec<Info>,
    },
    /// A process validates a credential. Munge's never come here.
    ValidateCredential {
        /// Who wants to know.
        proc: Proc,
        credential: Vec<u8>,
        /// `CRED_TYPE`, `TIMEOUT`.
        directives: Vec<Info>,
    },
    /// A process requests or releases nodes or slots.
    Allocate {
        proc: Proc,
        /// What to do: a `pmix_alloc_directive_t`.
        directive: u8,
        /// `ALLOC_NUM_NODES`, `ALLOC_ID` and the like.
        infos: Vec<Info>,
    },
    /// A process requests an action on all jobs of a session. From libpmix 6 on.
    SessionControl {
        proc: Proc,
        /// Which; the caller's if `u32::MAX`.
        session: u32,
        /// What: `SESSION_PAUSE` and the like.
        directives: Vec<Info>,
    },
    /// A tool has connected; the answer is the name under which libpmix will know it.
    ToolConnected {
        /// `PROC_PID`, `CMD_LINE`, and `NSPACE` and `RANK` if the tool brings a name. What it says of
        /// itself may be false.
        infos: Vec<Info>,
    },
}

#[cfg(test)]
mod tests;
