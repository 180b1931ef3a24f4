//! Facts about a launch that the caller knows and that only queries need.

use crate::job::ids::{AppNum, NodeId};

/// Called only for a query, so a run without queries pays nothing for it. Answers at
/// once, from memory.
pub trait LaunchFacts: Send + Sync {
    /// The name of a node.
    fn host(&self, node: NodeId) -> Option<&str>;

    /// The program of an application context as this node would start it.
    fn executable(&self, app: AppNum) -> Option<Vec<u8>>;

    /// Program and arguments of an application context, blank separated.
    fn command(&self, app: AppNum) -> Option<Vec<u8>>;
}
