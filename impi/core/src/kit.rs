//! The conformance kit, without I/O: the rules of the specification as data, and what a record of a conversation says
//! about them.

mod channel;
mod explain;
mod job;
mod observer;
pub mod record;
pub mod rewrite;
pub mod rules;

mod talk;
#[cfg(test)]
mod tests;

pub use observer::{Finding, Note, Observer, Party};
