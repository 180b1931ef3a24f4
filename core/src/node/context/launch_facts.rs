//! Facts about a launch that the node core's caller has and that only queries need.

use crate::job::ids::{AppNum, NodeId};

/// Called only for a query, so a run without queries pays nothing for it. Answers at
/// once, from memory.
pub trait LaunchFacts: Send + Sync {
    /// Returns the host name of a node.
    fn host(&self, node: NodeId) -> Option<&str>;

    /// Returns the executable of an application context, as this node would start it.
    fn executable(&self, app: AppNum) -> Option<Vec<u8>>;

    /// Returns program and arguments of an application context, separated by blanks.
    fn command(&self, app: AppNum) -> Option<Vec<u8>>;
}
