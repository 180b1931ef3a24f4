//! What the driver knows of a launch and only those ask for who want to look at it.

use crate::job::ids::{AppNum, NodeId};

/// Asked when somebody wants to know, so a run that nobody looks at pays nothing for it. Answers at
/// once, from memory.
pub trait Facts: Send + Sync {
    /// The name of a node.
    fn host(&self, node: NodeId) -> Option<&str>;

    /// The program of an application context as this node would start it.
    fn executable(&self, app: AppNum) -> Option<Vec<u8>>;

    /// Program and arguments of an application context, blank separated.
    fn command(&self, app: AppNum) -> Option<Vec<u8>>;
}
