//! Messages between an attach server and its clients.

use serde::{Deserialize, Serialize};

/// Stream to which the launcher wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum LauncherStream {
    Stdout,
    Stderr,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum AttachRequest {
    /// Send all output that was not shown, and all that follows. A client that is attached already loses its connection.
    Attach,
    /// Send the exit status.
    Wait,
    /// Bytes for standard input; empty at its end.
    Input(Vec<u8>),
    /// Signal for the launcher.
    Signal(i32),
    /// Number of further bytes that were shown, lost ones included.
    Shown(u64),
    /// All output was shown, and the exit status was received.
    KnowsEnd,
    /// Send the output of the look-ups and [`AttachReply::Started`], or all output if the job ends before it has started.
    AwaitStart,
    /// The launcher has started all ranks.
    Started,
    /// The launcher has completed all look-ups. It continues when the connection is closed, which means that all its output
    /// was read.
    LookedUp,
    /// A look-up of the launcher waits for this source, or no longer waits. The launcher continues when the connection is closed.
    LookupWait(Option<String>),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum AttachReply {
    /// Number of bytes of output that were dropped.
    Lost(u64),
    /// Output of the launcher.
    Output(LauncherStream, Vec<u8>),
    /// The launcher has ended with this code, and all its output was sent.
    Ended(u8),
    /// The launcher has started all ranks.
    Started,
    /// A look-up of the launcher waits for this source, or no longer waits.
    LookupWait(Option<String>),
}
