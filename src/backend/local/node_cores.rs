//! The nodes here: each with its core and its sidecar.

use tracing::Span;

use crate::backend::sidecar_process::Sidecar;
use wireup_core::node::NodeCore;
use wireup_core::pmix::sidecar_protocol::Hello;

/// One node of the job.
pub(super) struct LocalNode {
    pub(super) core: NodeCore,
    /// Its sidecar, if the job needs one.
    pub(super) sidecar: Option<Sidecar>,
    /// What the sidecar said about itself.
    pub(super) hello: Option<Hello>,
    /// The last it printed.
    pub(super) printed: Vec<u8>,
    /// The node's part of the launch.
    pub(super) span: Span,
}

impl LocalNode {
    /// A node without a sidecar yet.
    pub(super) fn new(core: NodeCore, span: Span) -> Self {
        Self {
            core,
            sidecar: None,
            hello: None,
            printed: Vec::new(),
            span,
        }
    }
}
