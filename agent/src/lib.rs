//! The long-running agent of a node.

pub mod proto;
