//! Faults of ours, put between the real types: the simulation must find each of them.

use wireup_core::fence::FenceMessage;
use wireup_core::job::ids::NodeId;
use wireup_core::node::event::PeerMessage;
use wireup_core::pmix::upcall::UpcallKind;
use wireup_core::pmix::wire::{FrameDecoder, SidecarFrame};

/// Defect of the simulated code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// A node takes what comes for any fence as if it came for its last one.
    GenerationDropped,
    /// A request is answered twice.
    AnsweredTwice,
    /// A rank that waits for a barrier is not answered.
    WaiterForgotten,
    /// The launcher does not give credit back.
    CreditLeaked,
    /// A node takes another one for its parent.
    WrongParent,
    /// The launcher does not answer who has spawned a job.
    SpawnForgotten,
    /// Reports of other hosts are believed in the order in which they come.
    NothingWithheld,
    /// A step whose launcher is lost continues.
    OrphanKept,
}

/// Injected defect, and the number of its chances so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mutation {
    pub(crate) fault: Option<Fault>,
    /// Number of times that the defect could have been applied.
    chances: u32,
}

impl Mutation {
    pub(crate) fn of(fault: Option<Fault>) -> Self {
        Self { fault, chances: 0 }
    }

    /// Whether it strikes now: at each third chance.
    pub(crate) fn strikes(&mut self, fault: Fault) -> bool {
        let may = self.fault == Some(fault);
        self.chances += u32::from(may);
        may && self.chances.is_multiple_of(3)
    }

    /// Returns the number of times that a reply to a rank is sent.
    pub(crate) fn times(&mut self, answer: &[u8]) -> usize {
        if self.strikes(Fault::AnsweredTwice) {
            return 2;
        }
        let released = answer.starts_with(b"cmd=barrier_out");
        usize::from(!(released && self.strikes(Fault::WaiterForgotten)))
    }

    /// Returns the number of times that a reply to a PMIx server is sent.
    pub(crate) fn times_served(&mut self, answer: &[u8]) -> usize {
        if self.strikes(Fault::AnsweredTwice) {
            return 2;
        }
        let mut frames = Vec::new();
        let read = FrameDecoder::default().push(answer, &mut frames);
        let waits = |frame: &SidecarFrame| {
            let kinds = [
                UpcallKind::Fence,
                UpcallKind::DirectModex,
                UpcallKind::Group,
                UpcallKind::Lookup,
            ];
            UpcallKind::from_op(frame.op).is_some_and(|kind| kinds.contains(&kind))
        };
        let waits = read.is_ok() && frames.iter().any(waits);
        usize::from(!(waits && self.strikes(Fault::WaiterForgotten)))
    }

    /// To whom a message goes.
    pub(crate) fn parent(
        &mut self,
        to: NodeId,
        message: &PeerMessage,
        nodes: u32,
        own: NodeId,
    ) -> NodeId {
        let arrives = matches!(message, PeerMessage::Fence(FenceMessage::Arrive { .. }));
        let others = (0..nodes).map(NodeId);
        let mut others = others.filter(|other| *other != to && *other != own);
        match others.next() {
            Some(other) if arrives && self.strikes(Fault::WrongParent) => other,
            _ => to,
        }
    }

    /// A message as a node takes it that has entered this number of barriers.
    pub(crate) fn generation(&self, mut message: PeerMessage, entered: u64) -> PeerMessage {
        if let PeerMessage::Fence(FenceMessage::Arrive { id, .. }) = &mut message
            && self.fault == Some(Fault::GenerationDropped)
        {
            id.generation = entered.saturating_sub(1);
        }
        message
    }
}
