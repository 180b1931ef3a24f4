//! Who is connected with whom, and what they say.

use std::sync::Arc;

use wireup_core::job::ids::{GlobalRank, NodeId};
use wireup_core::job::outcome::{Cause, PmiState, RankEnd};
use wireup_core::link::router::{Loss, Packet};
use wireup_core::node::event::PeerMessage;

/// One end of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum End {
    Launcher,
    /// Of a node; of none where only the launcher is.
    Agent(Option<NodeId>),
    Step(NodeId),
    /// A rank's PMI socket.
    Rank(GlobalRank),
    /// What tells that a rank's process has ended.
    Process(GlobalRank),
    /// A rank's standard output.
    Pipe(GlobalRank),
}

/// What is under way on a stream.
#[derive(Clone, Debug)]
pub(super) enum Message {
    /// Take part in the launch.
    Open,
    /// To a step: begin.
    Begin,
    Frame(Frame),
    Lost(Loss),
    Orphaned,
    Pmi(Vec<u8>),
    Exited(RankEnd),
    Printed(u32),
    /// The stream has ended.
    Closed(String),
}

/// What agents carry.
pub(super) type Frame = Packet<Arc<Carried>>;

/// What launcher and steps say to each other, and steps among themselves.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Carried {
    Start,
    Skip,
    Ending,
    Signal(i32),
    NodesLost { nodes: Vec<NodeId>, reason: String },
    Credit(u32),
    Finish,
    Told(Vec<Told>),
    Peer(PeerMessage),
}

/// What a step tells the launcher.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Told {
    Ready,
    Started(GlobalRank),
    NotStarted(GlobalRank),
    AllStarted,
    Ended(GlobalRank, RankEnd),
    Judged(GlobalRank, RankEnd, PmiState),
    Failed(Cause),
    Printed(u32),
    Over,
}

impl Told {
    /// Whether the launcher may hear it a moment later.
    pub(super) fn can_wait(&self) -> bool {
        match self {
            Self::Started(_) => true,
            Self::Ended(_, end) => *end == RankEnd::Code(0),
            Self::Judged(_, end, state) => *end == RankEnd::Code(0) && !state.active,
            _ => false,
        }
    }
}
