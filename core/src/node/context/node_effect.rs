//! Work that one part of a node leaves to another, and for whom it waits.

use std::sync::Arc;

use crate::direct_modex::{ModexEvent, ModexResult};
use crate::fence::FenceEvent;
use crate::job::ids::{JobIndex, Nspace};
use crate::node::event::Notification;
use crate::pmi::pmi_collective::PmiCollective;
use crate::pmi::server::PmiAction;
use crate::pmix::sidecar_link::UpcallId;

/// The waiters of a fence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::node) enum FenceRequester {
    /// The PMI ranks of this node that are in a barrier or ring.
    Pmi(JobIndex, PmiCollective),
    Pmix(UpcallId),
    /// The sidecar, for processes that become connected or are so no more.
    Connect(UpcallId),
    /// No waiter any more: the barrier was local to this node, and has ended.
    Released,
}

/// A waiter for a process's data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::node) enum ModexRequester {
    Pmix(UpcallId),
    /// The launch of a job, which has given the question a number.
    Far {
        to: Nspace,
        serial: u64,
    },
}

/// Work that a service leaves to another part of the node. The dispatcher passes it on before anything that follows in the event.
pub(in crate::node) enum NodeEffect {
    /// Effects of a job's PMI server.
    Pmi(JobIndex, Vec<PmiAction>),
    /// A PMIx event for the processes here.
    Notify(Arc<Notification>),
    Fence(FenceEvent<FenceRequester>),
    /// Answers the processes that wait in fences which have failed the job.
    HeldFences,
    Modex(ModexEvent<ModexRequester>),
    /// The sidecar is lost, though its process may still run.
    SidecarLost {
        is_running: bool,
    },
    /// Send data that another launch has requested.
    FarData {
        to: Nspace,
        serial: u64,
        result: ModexResult,
    },
}
