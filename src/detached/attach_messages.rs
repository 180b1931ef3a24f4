//! The messages between a keeper and its clients.

use serde::{Deserialize, Serialize};

/// Where the launcher wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum LauncherStream {
    Stdout,
    Stderr,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum AttachRequest {
    /// Send all output that was not shown, and what follows. A client that is attached loses its connection.
    Attach,
    /// Send the exit status.
    Wait,
    /// For standard input; empty at its end.
    Input(Vec<u8>),
    /// A signal for the launcher.
    Signal(i32),
    /// This number of further bytes, lost ones included, has been shown.
    Shown(u64),
    /// Everything has been shown, and the exit status has been received.
    KnowsEnd,
    /// Send the output of the look-ups and [`AttachReply::Started`], or all output if the job ends before it has started.
    AwaitStart,
    /// The launcher has started all ranks.
    Started,
    /// The launcher has looked everything up. It goes on when the connection is closed, which says that all its output
    /// has been read.
    LookedUp,
    /// A look-up of the launcher waits for this source, or for none any more. The launcher goes on when the connection is closed.
    LookupWait(Option<String>),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum AttachReply {
    /// This number of bytes of output was not kept.
    Lost(u64),
    /// The launcher wrote this.
    Output(LauncherStream, Vec<u8>),
    /// The launcher has ended with this code, and all its output has been sent.
    Ended(u8),
    /// The launcher has started all ranks.
    Started,
    /// A look-up of the launcher waits for this source, or for none any more.
    LookupWait(Option<String>),
}
