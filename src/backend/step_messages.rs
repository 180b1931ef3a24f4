//! Messages between a launcher and the steps of its job, over the agents, which do not look
//! into it.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::backend::backend_message::{BackendCommand, BackendReport, NodeRefusal};
use crate::plan::inherited_context::InheritedContext;
use crate::plan::{JobPlan, SpawnedJobPlan, StagedFiles};
use wireup_core::job::hosts::HostSpec;
use wireup_core::job::ids::NodeId;
use wireup_core::job::octets;
use wireup_core::job::spec::JobSpec;
use wireup_core::node::JobContext;
use wireup_core::node::event::PeerMessage;
use wireup_core::record::Stream;

/// The job's description for every step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LaunchDescription {
    pub(crate) decided: JobPlan,
    /// What was asked for.
    pub(crate) spec: JobSpec,
    /// What the ranks inherit of the launcher.
    pub(crate) inheritance: InheritedContext,
    /// What goes along, by application context; nothing if there is none, or no rank of the first job.
    pub(crate) staged_files: Vec<StagedFiles>,
}

/// A carried message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum StepMessage {
    /// To a step: start the ranks.
    Start,
    /// To a step: a further job, spawned by a process of the launch.
    AddJob(Box<SpawnedJobPlan>),
    /// To a step that has joined: a job of the launch whose ranks have all ended.
    PastJob(Arc<JobContext>),
    /// To a step: other nodes have joined the launch.
    Joined {
        /// All nodes, those that joined at the end.
        hosts: Vec<HostSpec>,
        /// Those that could not.
        absent: BTreeSet<NodeId>,
    },
    /// To a step: an order for its backend.
    Order(BackendCommand),
    /// To a step: credit of this number of bytes for this stream.
    Credit { stream: Stream, bytes: u32 },
    /// To a step: the next piece of standard input for those of its ranks that read it; nothing at
    /// its end. The next one comes when this one was [taken](Carried::InputTaken).
    Input(#[serde(with = "octets")] Vec<u8>),
    /// To a step: the next piece of a file, by its number among all that are offered; nothing if it cannot be read any
    /// more. Steps that do not lack the file ignore it.
    Piece {
        file: u32,
        #[serde(with = "octets")]
        bytes: Vec<u8>,
    },
    /// To the launcher: which of the offered files the step lacks. It goes on when it has them.
    Lacks(Vec<u32>),
    /// To the launcher: the step has taken this number of further bytes of what it lacks.
    Taken { bytes: u64 },
    /// To the launcher: the backend's reports, in order.
    Told(Vec<BackendReport>),
    /// To the launcher: the step cannot take part, and ends.
    Refused(NodeRefusal),
    /// To the launcher: the ranks have the last piece of input.
    InputTaken { open: bool },
    /// From step to step.
    Peer(PeerMessage),
    /// To the launcher, once: a rank has read some of its input.
    InputRead,
}
