//! Nodes of this host, each with its core and its sidecar.

use tracing::Span;

use crate::backend::sidecar_process::Sidecar;
use wireup_core::node::NodeCore;
use wireup_core::pmix::sidecar_protocol::Hello;

/// Node of the launch on this host.
pub(super) struct LocalNode {
    pub(super) core: NodeCore,
    /// Sidecar of the node, if the launch needs one.
    pub(super) sidecar: Option<Sidecar>,
    /// Greeting of the sidecar, with its versions; `None` before it.
    pub(super) hello: Option<Hello>,
    /// End of the sidecar's output.
    pub(super) printed: Vec<u8>,
    /// Tracing span of the node's part of the launch.
    pub(super) span: Span,
}

impl LocalNode {
    /// Creates a node without a sidecar.
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
