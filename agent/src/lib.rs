//! The long-running agent of a node.
